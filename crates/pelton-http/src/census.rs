//! Counts the connections of one server, or of several together.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts connections, in total and by address. Servers that [share](crate::Server::sharing) one, on several threads, apply their
/// limits together. By default each server has its own.
///
/// ```
/// use pelton::Reactors;
/// use pelton_http::{Census, Server, Settings, plain};
///
/// let census = Census::default();
/// let serve = move |_, reactor: &mut pelton::Reactor| {
///     let settings = Settings { connections: 100, ..Settings::default() };
///     let server = Server::sharing(plain(|_| "hello\n"), settings, &census);
///     server.listen(reactor, "127.0.0.1:0")?;
///     Ok(())
/// };
/// // At most 100 connections, however they are spread over the four reactors.
/// let reactors = Reactors::start(4, |_| pelton::Reactor::builder(), serve)?;
/// # reactors.stop();
/// # Ok::<(), pelton::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Census {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: AtomicUsize,
    /// Counts only connections that have an address to limit by.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Census {
    /// The number of connections of all servers that share this census.
    pub fn connections(&self) -> usize {
        self.counts.all.load(Ordering::Relaxed)
    }

    /// Counts a connection, unless there are `most` connections already, or as many from its address as allowed.
    pub(crate) fn enter(&self, most: usize, from: Option<(IpAddr, usize)>) -> bool {
        // Count the address first. An address that is counted too often for a moment then affects only connections that would
        // be refused anyway.
        if from.is_some_and(|(address, most)| !self.enter_from(address, most)) {
            return false;
        }
        // Relaxed ordering suffices: these counts publish no other data.
        let room = |count: usize| (count < most).then_some(count + 1);
        let entered = self.counts.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if let (false, Some((address, _))) = (entered, from) {
            self.leave_from(address);
        }
        entered
    }

    /// Removes a connection that [entered](Census::enter). `from` is its address, if that was counted.
    pub(crate) fn leave(&self, from: Option<IpAddr>) {
        self.counts.all.fetch_sub(1, Ordering::Relaxed);
        if let Some(address) = from {
            self.leave_from(address);
        }
    }

    fn enter_from(&self, address: IpAddr, most: usize) -> bool {
        let address = counted_as(address);
        let mut counts = self.counts.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        let room = *count < most;
        *count += usize::from(room);
        if *count == 0 {
            counts.remove(&address);
        }
        room
    }

    fn leave_from(&self, address: IpAddr) {
        let address = counted_as(address);
        let mut counts = self.counts.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }
}

/// The length of an IPv6 network prefix. One customer usually has a whole network and may use any address in it.
const NETWORK: u128 = !(u64::MAX as u128);

/// The address to count by: an IPv4 address, mapped or not, is itself; an IPv6 address is its network.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & NETWORK).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn total_and_per_address_limits_are_independent() {
        let census = Census::default();
        assert!(census.enter(3, Some((HERE, 1))));
        assert!(!census.enter(3, Some((HERE, 1))), "the limit per address is one");
        assert!(census.enter(3, Some((THERE, 1))));
        assert!(census.enter(3, None), "a connection without an address");
        assert!(!census.enter(3, None));
        census.leave(Some(THERE));
        assert!(!census.enter(2, Some((THERE, 1))), "a smaller total limit");
        assert!(census.enter(3, Some((THERE, 1))), "the refused one was not counted");
        [Some(HERE), Some(THERE), None].into_iter().for_each(|from| census.leave(from));
        assert_eq!(census.connections(), 0);
        assert!(census.counts.by_address.lock().unwrap().is_empty(), "addresses without connections are removed");
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_count_as_one() {
        let from = |address: &str| Some((address.parse().unwrap(), 2));
        let census = Census::default();
        assert!(census.enter(9, from("2001:db8::1")) && census.enter(9, from("2001:db8::2:0:0:1")));
        assert!(!census.enter(9, from("2001:db8::3")), "the network already has two");
        assert!(census.enter(9, from("2001:db8:0:1::1")), "another network");
        assert!(census.enter(9, from("192.0.2.1")) && census.enter(9, from("::ffff:192.0.2.1")));
        assert!(!census.enter(9, from("192.0.2.1")), "the mapped address counted, too");
        assert!(census.enter(9, from("::ffff:192.0.2.2")), "each IPv4 address is counted separately");
        census.leave(Some("2001:db8::4".parse().unwrap()));
        assert!(census.enter(9, from("2001:db8::3")));
    }

    #[test]
    fn limit_holds_across_threads() {
        const MOST: usize = 1000;
        const FROM_HERE: usize = 600;
        let census = Census::default();
        let enter = |number: usize| {
            let census = census.clone();
            let from = if number.is_multiple_of(2) { (HERE, FROM_HERE) } else { (THERE, MOST) };
            std::thread::spawn(move || {
                let try_once = |_| {
                    let entered = census.enter(MOST, Some(from));
                    // Other connections come and go meanwhile.
                    if census.enter(MOST, None) {
                        census.leave(None);
                    }
                    entered
                };
                (0..MOST).map(try_once).filter(|entered| *entered).count()
            })
        };
        let threads: Vec<_> = (0..4).map(enter).collect();
        let entered: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let all = entered.iter().sum::<usize>();
        assert_eq!(census.connections(), all);
        assert!(all <= MOST && entered[0] + entered[2] <= FROM_HERE, "{entered:?}");
        let more = (0..MOST).take_while(|_| census.enter(MOST, None)).count();
        assert_eq!(all + more, MOST, "the remaining room can be used");
    }
}
