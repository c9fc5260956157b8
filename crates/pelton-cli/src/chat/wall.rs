//! The wall: what the servers of one room write to each other, over a broker.
//!
//! Lines go over the wall to all servers, the writing one included, so that everybody hears everything in the same order. Each
//! server also writes who its guests are: when that changes, when another server asks, and every few seconds. A server that is
//! not heard of for a while has no guests. Two guests who ask for the same name at the same moment on two servers both get it.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use pelton::{Channel, Delivery, Error, Handle, Missed, Reactor, SubscribeOptions, Time};
use pelton_redis::{ConfigError, Hub, Options};
use serde::{Deserialize, Serialize};

use super::lines::LONGEST;
use super::room::{self, Door};

/// How often a server writes who its guests are.
const PERIOD: Duration = Duration::from_secs(10);

/// A server that is not heard of for this long is gone.
const SILENCE: Duration = Duration::from_secs(35);

/// The most names of other servers' guests that are remembered. The broker is trusted, but mistakes happen.
const MOST_NAMES: usize = 100_000;

/// A line on the wall: a guest's line and its name. Anybody who can write to the broker could write longer ones.
const LONGEST_ON_WALL: usize = LONGEST + 200;

#[derive(Clone)]
pub struct Wall {
    /// A random number that tells the servers apart.
    server: u64,
    channel: Channel<News>,
}

#[derive(Clone, Serialize, Deserialize)]
struct News {
    server: u64,
    what: What,
}

#[derive(Clone, Serialize, Deserialize)]
enum What {
    /// A line for everybody, except the guest with this number on the writing server.
    Line {
        line: String,
        except: u64,
    },
    Joined {
        name: String,
    },
    Left {
        name: String,
    },
    /// All guests of the writing server.
    Guests {
        names: Vec<String>,
    },
    /// Asks the others for their guests.
    WhoIsThere,
}

/// The guests of other servers; in the first worker's state.
#[derive(Default)]
struct Others(HashMap<u64, Other>);

struct Other {
    names: BTreeSet<String>,
    heard_at: Time,
}

impl Wall {
    /// Connects to the broker, on the loop of this worker.
    pub fn open(worker: &Handle, broker: &Options, room: &str) -> Result<Wall, Error> {
        let options = broker.clone().name("pelton-chat");
        let hub = worker.post_with_reply(move |reactor| Hub::open(reactor, options)).wait();
        let hub = match hub.map_err(|_| Error::Stopped)? {
            Ok(hub) => hub,
            Err(ConfigError::Reactor(error)) => return Err(error),
            Err(error) => {
                let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, error);
                return Err(Error::System { doing: "connect to the broker".into(), error });
            }
        };
        let server = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
        Ok(Wall { server, channel: hub.channel(format!("pelton-chat:{room}")) })
    }

    /// Reads the wall from now on, on this worker.
    pub fn read(self, reactor: &mut Reactor, door: Door) {
        let wall = self.clone();
        let read = move |reactor: &mut Reactor, delivery| match delivery {
            Delivery::Value(news) => wall.heard(reactor, &door, news),
            // Somebody else writes there, too.
            Delivery::Missed(Missed::Unreadable) => tracing::warn!("a message on the broker is not from a chat server"),
            Delivery::Missed(missed) => {
                tracing::warn!(?missed, "news of other servers are missing");
                door.tell_here("* The connection to other servers was interrupted. Some lines may be missing.", None);
                wall.introduce(reactor);
            }
            Delivery::Ended(_) => {}
        };
        self.channel.subscribe_with(reactor, SubscribeOptions::default(), read).keep();
        self.introduce(reactor);
        reactor.every(PERIOD, move |reactor, _| {
            let now = reactor.now();
            reactor.state::<Others>().0.retain(|_, other| now - other.heard_at < SILENCE);
            let names = room::names(reactor);
            self.publish(What::Guests { names });
        });
    }

    /// Writes a line. Returns `false` if too much waits for the broker.
    pub fn write(&self, line: &str, except: u64) -> bool {
        self.publish(What::Line { line: line.to_owned(), except })
    }

    pub fn joined(&self, name: &str) {
        self.publish(What::Joined { name: name.to_owned() });
    }

    pub fn left(&self, name: &str) {
        self.publish(What::Left { name: name.to_owned() });
    }

    /// Says who is here, and asks the others.
    fn introduce(&self, reactor: &mut Reactor) {
        let names = room::names(reactor);
        self.publish(What::Guests { names });
        self.publish(What::WhoIsThere);
    }

    fn publish(&self, what: What) -> bool {
        let published = self.channel.publish(News { server: self.server, what });
        if let Err(error) = &published {
            tracing::warn!(%error, "other servers miss news of this one");
        }
        published.is_ok()
    }

    fn heard(&self, reactor: &mut Reactor, door: &Door, news: News) {
        let own = news.server == self.server;
        match news.what {
            What::Line { line, .. } if line.len() > LONGEST_ON_WALL => {
                tracing::warn!("a line of another server is too long")
            }
            What::Line { line, except } => {
                let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
                match own {
                    true => door.tell_from(reactor, &line, except),
                    false => door.tell_here(&line, None),
                }
            }
            _ if own => {}
            What::WhoIsThere => {
                let names = room::names(reactor);
                self.publish(What::Guests { names });
            }
            What::Guests { names } => learn(reactor, news.server, |known| *known = names.into_iter().collect()),
            What::Joined { name } => learn(reactor, news.server, |known| known.extend([name])),
            What::Left { name } => learn(reactor, news.server, |known| known.retain(|other| *other != name)),
        }
    }
}

/// Changes what is known of another server's guests.
fn learn(reactor: &mut Reactor, server: u64, change: impl FnOnce(&mut BTreeSet<String>)) {
    let heard_at = reactor.now();
    let others = reactor.state::<Others>();
    let other = others.0.entry(server).or_insert_with(|| Other { names: BTreeSet::new(), heard_at });
    other.heard_at = heard_at;
    change(&mut other.names);
    other.names.retain(|name| !name.contains(char::is_control));
    let known: usize = others.0.values().map(|other| other.names.len()).sum();
    if known > MOST_NAMES {
        tracing::warn!(known, "other servers have too many guests: those of one are ignored");
        others.0.remove(&server);
    }
}

/// The guests of other servers.
pub fn names(reactor: &mut Reactor) -> Vec<String> {
    let others = reactor.state::<Others>();
    others.0.values().flat_map(|other| other.names.iter().cloned()).collect()
}
