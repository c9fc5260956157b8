//~ error[E0277]: `Store` cannot run on a pool
//~ the codec and the protocol run on worker threads here, so `Store` must be `Send`
//~ on the loop, without `.on(&pool)`, nothing has to be `Send`
//~ to find the field that is not `Send`, let the compiler check that alone: `fn send<T: Send>() {} send::<Store>();`

use pelton::{Protocol, Replies, Service, serve};
use std::cell::RefCell;
use std::rc::Rc;

struct Store {
    lines: Rc<RefCell<Vec<String>>>,
}

impl Protocol for Store {
    type Message = String;

    fn process(&mut self, line: String, _: &mut Replies<String>) {
        self.lines.borrow_mut().push(line);
    }
}

fn main() {
    let pool = pelton::Pool::new().unwrap();
    let service = serve(pelton::codec::Lines::new, || Store { lines: Rc::default() });
    let _on_pool = service.on(&pool);
}
