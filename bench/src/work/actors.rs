//! Actors: messages to very many of them, from outside and among each other.
//!
//! Everybody runs the same [`Member`]s on the same number of threads, and sends without waiting for room, which is the fastest
//! way each of them has. From outside, messages go to one actor after the other; a window ends when each has received its share.
//! Among each other, they pass on messages in a ring, many at once; it ends when all of these have made their last hop.

#[cfg(feature = "actor-peers")]
mod actix;
mod java;
#[cfg(feature = "actor-peers")]
mod kameo;
mod keyed;
mod mutex;
mod ours;
#[cfg(feature = "actor-peers")]
mod ractor;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::harness::{Better, Case, Contender, Contest, Elapsed, Side, Stopwatch};
use crate::machine::{std_version, version};
use crate::mark::Mark;

/// Threads that run actors.
const WORKERS: usize = 2;

/// One of this many actors in the ring has a message to pass on.
const APART: usize = 10;

/// A window that takes longer has lost a message.
const PATIENCE: Duration = Duration::from_secs(60);

const OURS: &str = "pelton Pool";
const MUTEX: &str = "Mutex<VecDeque> pool";
const CRATES: [&str; 3] = ["actix", "kameo", "ractor"];
const JAVA: &str = "Java actor thread pool";

/// A way to run actors. They all receive numbers.
trait ActorSystem: Sized + 'static {
    type Ref: Send + Sync;

    /// Starts the threads, and an actor for each of the members.
    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)>;

    fn send(to: &Self::Ref, number: u64);

    /// Ends the threads.
    fn end(self) -> Result<()>;
}

/// What one actor does, in any system.
struct Member<S: ActorSystem> {
    index: usize,
    /// How much it has yet to receive.
    left: u64,
    sum: u64,
    scene: Arc<Scene<S>>,
}

/// State shared by the actors of a window.
struct Scene<S: ActorSystem> {
    play: Play,
    cast: OnceLock<Vec<S::Ref>>,
    curtain: Curtain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Play {
    /// Each adds up the numbers from this many outside threads.
    Outside { senders: u64 },
    /// Each passes on its number, less one, to the next.
    Ring,
}

impl Play {
    const ALL: [Play; 3] = [Play::Outside { senders: 1 }, Play::Outside { senders: 2 }, Play::Ring];

    fn name(self, actors: usize) -> String {
        match self {
            Play::Outside { senders: 1 } => format!("{actors} actors, 1 outside sender"),
            Play::Outside { senders } => format!("{actors} actors, {senders} outside senders"),
            Play::Ring => format!("{actors} actors, to each other"),
        }
    }
}

impl<S: ActorSystem> Member<S> {
    fn receive(&mut self, number: u64) {
        match self.scene.play {
            Play::Outside { .. } => {
                self.sum += number;
                self.left -= 1;
                if self.left == 0 {
                    self.scene.curtain.fall(self.sum);
                }
            }
            Play::Ring if number == 0 => self.scene.curtain.fall(1),
            Play::Ring => {
                let cast = self.scene.cast.get().expect("set before the first message");
                let next = if self.index + 1 == cast.len() { 0 } else { self.index + 1 };
                S::send(&cast[next], number - 1);
            }
        }
    }
}

/// Tells the waiting thread when everything is done.
struct Curtain {
    left: AtomicU64,
    sum: AtomicU64,
    waits: Thread,
}

impl Curtain {
    fn new(parts: u64) -> Self {
        Self { left: AtomicU64::new(parts), sum: AtomicU64::new(0), waits: thread::current() }
    }

    /// Records that one of the parts is done.
    fn fall(&self, sum: u64) {
        self.sum.fetch_add(sum, SeqCst);
        if self.left.fetch_sub(1, SeqCst) == 1 {
            self.waits.unpark();
        }
    }

    /// Waits for all parts; returns the sum.
    fn wait(&self) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.left.load(SeqCst);
            if left == 0 {
                return Ok(self.sum.load(SeqCst));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            ensure!(!rest.is_zero(), "after {PATIENCE:?}, {left} parts were still not done");
            thread::park_timeout(rest);
        }
    }
}

/// How many actors there are, and how many messages they get.
#[derive(Clone, Copy, Debug)]
struct Size {
    actors: usize,
    /// How many each receives from each sender.
    each: u64,
}

impl Size {
    fn messages(self, play: Play) -> u64 {
        match play {
            Play::Outside { senders } => self.actors as u64 * self.each * senders,
            Play::Ring => self.tokens() * self.hops(),
        }
    }

    /// Returns the number of messages in the ring at any time.
    fn tokens(self) -> u64 {
        self.actors.div_ceil(APART) as u64
    }

    fn hops(self) -> u64 {
        self.each * APART as u64
    }
}

/// The contests of this part, and the one contender that is a separate process.
pub struct Stage {
    actors: usize,
    messages: u64,
    java: Option<java::Pool>,
}

impl Stage {
    /// Prepares the contests. Prints which contenders are missing.
    pub fn prepare(actors: usize, messages: u64) -> Result<Self> {
        if !cfg!(feature = "actor-peers") {
            eprintln!("{}: built without the feature actor-peers", CRATES.join(", "));
        }
        let java = java::Pool::start(actors)?;
        if java.is_none() {
            eprintln!("{JAVA}: javac is not installed");
        }
        Ok(Self { actors, messages, java })
    }

    pub fn contests(&self) -> Vec<Contest<'_>> {
        Play::ALL.into_iter().map(|play| self.contest(play)).collect()
    }

    fn contest(&self, play: Play) -> Contest<'_> {
        let senders = if let Play::Outside { senders } = play { senders } else { 1 };
        let size = Size { actors: self.actors, each: self.messages.div_ceil(self.actors as u64 * senders) };
        let name = play.name(self.actors);
        let case = Case::new(name.clone(), "M/s", Better::Higher)
            .mark(Mark::Times { factor: 2.0, against: vec![MUTEX] })
            .mark(Mark::Times { factor: 1.0, against: CRATES.to_vec() })
            .mark(Mark::Times { factor: 3.0, against: vec![JAVA] });
        let mut contenders = vec![entrant::<mutex::Pool>(MUTEX, std_version(), Side::Peer, play, size)];
        #[cfg(feature = "actor-peers")]
        contenders.extend([
            entrant::<actix::Arbiters>("actix", version("actix"), Side::Peer, play, size),
            entrant::<kameo::Kameo>("kameo", version("kameo"), Side::Peer, play, size),
            entrant::<ractor::Ractor>("ractor", version("ractor"), Side::Peer, play, size),
        ]);
        if let Some(java) = &self.java {
            let window = move || Ok(vec![Some(java.play(play, size)?.millions_per_second(size.messages(play)))]);
            contenders.push(Contender::new(JAVA, java.version.clone(), Side::Peer, window));
        }
        // Not a competitor: it shows what the same ordering costs without an actor.
        contenders.push(entrant::<keyed::Keyed>("pelton Keyed", version("pelton"), Side::Peer, play, size));
        contenders.push(entrant::<ours::Pool>(OURS, version("pelton"), Side::Ours, play, size));
        Contest { name, cases: vec![case], contenders }
    }
}

fn entrant<S: ActorSystem>(
    name: &'static str,
    version: String,
    side: Side,
    play: Play,
    size: Size,
) -> Contender<'static> {
    Contender::new(name, version, side, move || {
        let elapsed = window::<S>(play, size)?;
        Ok(vec![Some(elapsed.millions_per_second(size.messages(play)))])
    })
}

/// Runs a window. Setup and teardown are not timed.
fn window<S: ActorSystem>(play: Play, size: Size) -> Result<Elapsed> {
    let (parts, left, expected) = match play {
        Play::Outside { senders } => {
            let left = size.each * senders;
            let numbers: u64 = (0..size.each).sum();
            (size.actors as u64, left, numbers * senders * size.actors as u64)
        }
        Play::Ring => (size.tokens(), 0, size.tokens()),
    };
    let scene = Arc::new(Scene::<S> { play, cast: OnceLock::new(), curtain: Curtain::new(parts) });
    let member = |index| Member { index, left, sum: 0, scene: scene.clone() };
    let (system, cast) = S::start((0..size.actors).map(member).collect()).context("start the actors")?;
    let cast = scene.cast.get_or_init(|| cast);
    let (sum, elapsed) = match play {
        Play::Outside { senders } => from_outside::<S>(senders, size.each, cast, &scene.curtain),
        Play::Ring => {
            let watch = Stopwatch::start();
            cast.iter().step_by(APART).for_each(|to| S::send(to, size.hops() - 1));
            (scene.curtain.wait(), watch.stop())
        }
    };
    system.end().context("end the actors")?;
    let sum = sum?;
    ensure!(sum == expected, "the actors report {sum} instead of {expected}");
    Ok(elapsed)
}

fn from_outside<S: ActorSystem>(senders: u64, each: u64, cast: &[S::Ref], curtain: &Curtain) -> (Result<u64>, Elapsed) {
    let (waiting, gate) = (AtomicUsize::new(0), Barrier::new(senders as usize + 1));
    thread::scope(|scope| {
        for _ in 0..senders {
            scope.spawn(|| {
                waiting.fetch_add(1, SeqCst);
                gate.wait();
                for number in 0..each {
                    cast.iter().for_each(|to| S::send(to, number));
                }
            });
        }
        // Starting a thread is not measured.
        while waiting.load(SeqCst) < senders as usize {
            thread::yield_now();
        }
        let watch = Stopwatch::start();
        gate.wait();
        (curtain.wait(), watch.stop())
    })
}
