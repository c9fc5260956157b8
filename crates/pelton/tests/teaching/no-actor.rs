//~ is not an actor
//~ implement `Actor` for it, or spawn a closure: `pool.spawn_fn(|message, context| ...)`

fn main() {
    let pool = pelton::Pool::new().unwrap();
    pool.spawn(|_message: u32| {});
}
