//! A chat room built on a channel. People speak from threads, ann listens on her own loop, and a bot on a third
//! loop answers questions, with two libraries to look things up in.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin channel-chat
//! ann hears bob: ?wheel
//! ann hears cid: hello
//! ann hears cid: ?jet
//! ann hears bob: ?reactor
//! ann hears bot: wheel has 5 letters
//! ann hears bot: jet has 3 letters
//! ann hears bot: reactor has 7 letters
//! the room is closed: ann has heard 7 lines, and the bot used 2 libraries
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pelton::{Channel, Delivery, Promise, Queue, Reactor, ResourcePool, SubscribeOptions};

/// Every listener gets a clone of each line, so the line is in an `Arc`.
type Room = Channel<Arc<str>>;

/// The room closes after this many answers.
const QUESTIONS: usize = 3;

/// The number of answers so far.
#[derive(Default)]
struct Answers(usize);

/// The number of lines ann has heard.
#[derive(Default)]
struct Heard(usize);

/// Answers one question at a time, slowly.
struct Library;

impl Library {
    fn look_up(&mut self, reactor: &mut Reactor, word: &str) -> Promise<String, Box<dyn Error>> {
        let answer = format!("{word} has {} letters", word.len());
        let (deferred, promise) = reactor.promise();
        reactor.after(Duration::from_millis(10), move |_| drop(deferred.resolve(answer)));
        promise
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let room = Room::new();
    // Nobody speaks before ann listens.
    let ready = Queue::bounded(1);
    let (her_room, she_is_ready) = (room.clone(), ready.clone());
    let ann = thread::spawn(move || listen(her_room, &she_is_ready));

    let mut reactor = Reactor::new()?;
    let questions = Queue::bounded(100);
    let libraries = ResourcePool::new(&reactor, 2, |_| Ok::<_, String>(Library)).max_waiting(100);
    let asked = questions.clone();
    // The bot hears everything, its own answers included, but queues only the questions.
    let bot = room.subscribe(&mut reactor, move |_, line| {
        if let Some((_, word)) = line.split_once(": ?")
            && asked.push(word.to_owned()).is_err()
        {
            println!("the bot is overloaded");
        }
    });
    answer(&mut reactor, QUESTIONS, questions, libraries.clone(), room.clone());

    let public = room.clone();
    ready.pop_then(&mut reactor, move |_, _| {
        for (name, lines) in [("bob", ["?wheel", "?reactor"]), ("cid", ["hello", "?jet"])] {
            let room = public.clone();
            thread::spawn(move || lines.map(|line| say(&room, &format!("{name}: {line}"))));
        }
    });
    reactor.run()?;
    drop(bot);

    let heard = ann.join().map_err(|_| "ann panicked")??;
    println!("the room is closed: ann has heard {heard} lines, and the bot used {} libraries", libraries.stats().free);
    Ok(())
}

/// A listener that is behind refuses the line. A speaker has its own thread, so it may wait and say it again.
fn say(room: &Room, line: &str) {
    while room.publish(line.into()).is_err() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Answers the remaining questions, as many at a time as there are libraries.
fn answer(
    reactor: &mut Reactor,
    left: usize,
    questions: Queue<String>,
    libraries: ResourcePool<Library, String>,
    room: Room,
) {
    if left == 0 {
        return;
    }
    questions.clone().pop_then(reactor, move |reactor, word| {
        let Ok(word) = word else { return };
        let public = room.clone();
        // Waits in line for a library, and meanwhile for the next question.
        libraries.perform(reactor, move |reactor, library| library.look_up(reactor, &word)).done(
            move |reactor, answer| {
                let line = answer.unwrap_or_else(|error| format!("I cannot say: {error}"));
                if public.publish(format!("bot: {line}").into()).is_err() {
                    println!("nobody heard what the bot said");
                }
                let answers = reactor.state::<Answers>();
                answers.0 += 1;
                if answers.0 == QUESTIONS {
                    public.close();
                    reactor.stop();
                }
            },
        );
        answer(reactor, left - 1, questions, libraries, room);
    });
}

/// Listens on its own loop until the room is closed. Returns the number of lines heard.
fn listen(room: Room, ready: &Queue<()>) -> Result<usize, pelton::Error> {
    let mut reactor = Reactor::new()?;
    let subscription =
        room.subscribe_with(&mut reactor, SubscribeOptions::default(), |reactor, delivery| match delivery {
            Delivery::Value(line) => {
                println!("ann hears {line}");
                reactor.state::<Heard>().0 += 1;
            }
            Delivery::Missed(_) => {}
            Delivery::Ended(_) => reactor.stop(),
        });
    // The queue has room for one item, and nobody else pushes.
    let _ = ready.push(());
    reactor.run()?;
    drop(subscription);
    Ok(reactor.state::<Heard>().0)
}
