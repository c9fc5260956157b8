//~ error[E0277]: `String` does not handle connections
//~ implement `Connection` for it: `received` is the only method without a default
//~ for messages instead of bytes, `serve(codec, protocol)` makes a handler of a `Codec` and a `Protocol`

fn main() {
    let mut reactor = pelton::Reactor::new().unwrap();
    let _ = reactor.listen("127.0.0.1:0", |_| String::new());
}
