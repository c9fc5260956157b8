//~ error[E0277]: a continuation of `then` returns a `Result` or a `Promise` with the error type `String`, not `Result<u32, ParseIntError>`
//~ to change the error type of the promise, use `map_err` before `then`

fn main() {
    let reactor = pelton::Reactor::new().unwrap();
    let (_deferred, promise) = reactor.promise::<String, String>();
    let _next = promise.then(|_, text| text.parse::<u32>());
}
