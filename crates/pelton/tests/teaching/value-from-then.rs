//~ error[E0277]: a continuation of `then` returns a `Result` or a `Promise` with the error type `String`, not `u32`
//~ for a continuation that cannot fail and does not wait, use `map`, or return `Ok(value)`

fn main() {
    let reactor = pelton::Reactor::new().unwrap();
    let (_deferred, promise) = reactor.promise::<u32, String>();
    let _next = promise.then(|_, value| value + 1);
}
