//! Streams without descriptors: two pipes between two ends. Each end belongs to an engine or to a blocking thread.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pelton::Address;

use crate::Duplex;

/// The capacity of a pipe, in bytes.
pub(super) const ROOM: usize = 50_000;

/// What wakes an engine.
#[derive(Default)]
pub(super) struct Alarm {
    rung: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    /// Set by the waker.
    woken: bool,
    /// Set when the network changes.
    news: bool,
}

impl Alarm {
    fn tell_news(&self) {
        self.rung.lock().unwrap().news = true;
        self.changed.notify_one();
    }

    /// Called before the engine checks the network. Any change after this call ends the next sleep. A pending wake-up is not
    /// cleared, because it may be about something other than the network.
    pub(super) fn forget_news(&self) {
        self.rung.lock().unwrap().news = false;
    }

    /// Sleeps until the alarm rings or the timeout expires.
    pub(super) fn sleep(&self, timeout: Option<Duration>) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut rung = self.rung.lock().unwrap();
        while !rung.woken && !rung.news {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => rung = self.changed.wait(rung).unwrap(),
                Some(Duration::ZERO) => break,
                Some(left) => rung = self.changed.wait_timeout(rung, left).unwrap().0,
            }
        }
        *rung = Rung::default();
    }
}

impl std::task::Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.rung.lock().unwrap().woken = true;
        self.changed.notify_one();
    }
}

/// The listeners, by address.
#[derive(Default)]
pub(super) struct Switchboard {
    listeners: Mutex<HashMap<Address, Arc<Backlog>>>,
    ports: Mutex<u16>,
}

impl Switchboard {
    fn unused(&self) -> Address {
        let mut port = self.ports.lock().unwrap();
        *port += 1;
        SocketAddr::from((Ipv4Addr::LOCALHOST, 1024 + *port)).into()
    }

    pub(super) fn listen(&'static self, address: &Address) -> io::Result<Listener> {
        let address = match address {
            Address::Tcp(socket) if socket.port() == 0 => self.unused(),
            Address::Unnamed => return Err(io::ErrorKind::InvalidInput.into()),
            address => address.clone(),
        };
        let mut listeners = self.listeners.lock().unwrap();
        if listeners.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let backlog = Arc::new(Backlog::default());
        listeners.insert(address.clone(), backlog.clone());
        Ok(Listener { board: self, address, backlog })
    }

    /// Connects to the listener on this address. As in a kernel, the connection is established before it is accepted.
    pub(super) fn connect(&self, address: &Address) -> io::Result<End> {
        let listeners = self.listeners.lock().unwrap();
        let backlog = listeners.get(address).ok_or(io::ErrorKind::ConnectionRefused)?;
        let mut waiting = backlog.waiting.lock().unwrap();
        if waiting.silent {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let link = Arc::new(Link::default());
        let addresses = [self.unused(), address.clone()];
        let [near, far] = [0, 1].map(|side| End { link: link.clone(), side, addresses: addresses.clone() });
        waiting.ends.push_back(far);
        waiting.alarm.iter().for_each(|alarm| alarm.tell_news());
        backlog.changed.notify_one();
        Ok(near)
    }
}

/// Connections that are not yet accepted.
#[derive(Default)]
struct Backlog {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    ends: VecDeque<End>,
    alarm: Option<Arc<Alarm>>,
    /// Neither accepts nor refuses.
    silent: bool,
}

pub(super) struct Listener {
    board: &'static Switchboard,
    address: Address,
    backlog: Arc<Backlog>,
}

impl Listener {
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn fall_silent(&self) {
        self.backlog.waiting.lock().unwrap().silent = true;
    }

    pub(super) fn set_alarm(&self, alarm: &Arc<Alarm>) {
        self.backlog.waiting.lock().unwrap().alarm = Some(alarm.clone());
    }

    pub(super) fn try_accept(&self) -> Option<End> {
        self.backlog.waiting.lock().unwrap().ends.pop_front()
    }

    /// Blocks until there is a connection, and accepts it.
    pub(super) fn accept(&self) -> End {
        let waiting = self.backlog.waiting.lock().unwrap();
        let mut waiting = self.backlog.changed.wait_while(waiting, |waiting| waiting.ends.is_empty()).unwrap();
        waiting.ends.pop_front().unwrap()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.board.listeners.lock().unwrap().remove(&self.address);
        let unserved = std::mem::take(&mut self.backlog.waiting.lock().unwrap().ends);
        unserved.iter().for_each(|end| end.reset());
    }
}

/// The connection between two ends.
#[derive(Default)]
struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The bytes in flight to each side.
    pipes: [Pipe; 2],
    /// The engine on each side, if there is one.
    alarms: [Option<Arc<Alarm>>; 2],
}

#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// The writer has ended its direction.
    finished: bool,
    /// An error follows the bytes.
    broken: bool,
    /// The reader is gone.
    abandoned: bool,
}

impl State {
    fn receive(&mut self, side: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let pipe = &mut self.pipes[side];
        match io::Read::read(&mut pipe.bytes, buffer)? {
            0 if pipe.broken => Err(io::ErrorKind::ConnectionReset.into()),
            0 if !pipe.finished && !buffer.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn send(&mut self, side: usize, bytes: &[u8]) -> io::Result<usize> {
        if self.pipes[side].broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let pipe = &mut self.pipes[1 - side];
        if pipe.abandoned || pipe.finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match bytes.len().min(ROOM - pipe.bytes.len()) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => {
                pipe.bytes.extend(&bytes[..count]);
                Ok(count)
            }
        }
    }
}

/// One end of a stream. Dropping it closes it.
pub(super) struct End {
    link: Arc<Link>,
    side: usize,
    addresses: [Address; 2],
}

impl End {
    pub(super) fn local_address(&self) -> &Address {
        &self.addresses[self.side]
    }

    pub(super) fn peer_address(&self) -> &Address {
        &self.addresses[1 - self.side]
    }

    pub(super) fn set_alarm(&self, alarm: Option<&Arc<Alarm>>) {
        self.link.state.lock().unwrap().alarms[self.side] = alarm.cloned();
    }

    /// Reads without blocking.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.attempt(|state| state.receive(self.side, buffer))
    }

    /// Writes without blocking.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt(|state| state.send(self.side, bytes))
    }

    /// Whether a write would not block.
    pub(super) fn has_room(&self) -> bool {
        let state = self.link.state.lock().unwrap();
        let pipe = &state.pipes[1 - self.side];
        pipe.bytes.len() < ROOM || pipe.abandoned || state.pipes[self.side].broken
    }

    /// The number of bytes that the other side has not read.
    pub(super) fn on_its_way(&self) -> u64 {
        self.link.state.lock().unwrap().pipes[1 - self.side].bytes.len() as u64
    }

    /// Changes the state, and wakes the other side.
    fn act(&self, act: impl FnOnce(&mut State)) {
        let mut state = self.link.state.lock().unwrap();
        act(&mut state);
        self.tell(&state);
    }

    /// Tries something, and wakes the other side only if bytes moved: two engines that woke each other for attempts would never
    /// sleep.
    fn attempt(&self, act: impl FnOnce(&mut State) -> io::Result<usize>) -> io::Result<usize> {
        let mut state = self.link.state.lock().unwrap();
        let outcome = act(&mut state);
        if matches!(outcome, Ok(1..)) {
            self.tell(&state);
        }
        outcome
    }

    fn tell(&self, state: &State) {
        self.link.changed.notify_all();
        if let Some(alarm) = &state.alarms[1 - self.side] {
            alarm.tell_news();
        }
    }

    /// Retries until it does not block.
    fn block_on<T>(&self, mut act: impl FnMut(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.link.state.lock().unwrap();
        loop {
            match act(&mut state) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state = self.link.changed.wait(state).unwrap();
                }
                outcome => {
                    self.tell(&state);
                    return outcome;
                }
            }
        }
    }
}

/// For threads: these calls block.
impl Duplex for End {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.block_on(|state| state.receive(self.side, buffer))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.block_on(|state| state.send(self.side, bytes))
    }

    fn finish(&self) {
        self.act(|state| state.pipes[1 - self.side].finished = true);
    }

    fn reset(&self) {
        self.act(|state| state.pipes.iter_mut().for_each(|pipe| pipe.broken = true));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.act(|state| {
            // As in TCP, closing with unread bytes resets the connection.
            let unread = !state.pipes[self.side].bytes.is_empty();
            state.pipes[self.side].abandoned = true;
            state.pipes[1 - self.side].finished = true;
            state.pipes[1 - self.side].broken |= unread;
            state.alarms[self.side] = None;
        });
    }
}
