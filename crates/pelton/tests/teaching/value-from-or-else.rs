//~ error[E0277]: a continuation of `or_else` returns `Result<u32, Rejected<String>>` or `Promise<u32, String>`, not `u32`
//~ to replace the value, return `Ok(value)`; to pass the rejection on, return `Err(rejected)`

fn main() {
    let reactor = pelton::Reactor::new().unwrap();
    let (_deferred, promise) = reactor.promise::<u32, String>();
    let _next = promise.or_else(|_, _| 0u32);
}
