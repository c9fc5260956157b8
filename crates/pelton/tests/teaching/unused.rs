//~ unused `ReplySlot` that must be used
//~ a slot that is dropped unanswered closes the connection
//~ unused `Operation` that must be used
//~ an operation does nothing until it is started
//~ unused `Hold` that must be used
//~ draining waits only as long as this is held
//~ unused `Deferred` in tuple element 0 that must be used
//~ a promise whose `Deferred`s are all dropped unsettled is abandoned

#![deny(unused_must_use)]

fn main() {
    let reactor = pelton::Reactor::new().unwrap();
    let mut replies = pelton::Replies::<String>::new();
    replies.later();
    pelton::fs::read("file");
    reactor.handle().hold();
    reactor.promise::<u32, String>();
}
