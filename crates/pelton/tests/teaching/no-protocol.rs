//~ error[E0277]: `String` is not a protocol
//~ implement `Protocol` for it: `process` is the only method without a default

fn main() {
    let _service = pelton::serve(pelton::codec::Lines::new, String::new);
}
