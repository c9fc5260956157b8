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
/// // At most 100 connections, however they are spread over the four.
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
    /// Only of connections whose address counts.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Census {
    /// The number of connections of all servers that share this census.
    pub fn connections(&self) -> usize {
        self.counts.all.load(Ordering::Relaxed)
    }

    /// Counts a connection, unless there are `most` already, or the given number from its address.
    pub(crate) fn enter(&self, most: usize, from: Option<(IpAddr, usize)>) -> bool {
        // The address comes first: one that is counted too many for a moment is then refused only where there was no room anyway.
        if from.is_some_and(|(address, most)| !self.enter_from(address, most)) {
            return false;
        }
        // Nothing else is published by these counts, so no order is needed.
        let room = |count: usize| (count < most).then_some(count + 1);
        let entered = self.counts.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if let (false, Some((address, _))) = (entered, from) {
            self.leave_from(address);
        }
        entered
    }

    /// One that has [entered](Census::enter) is over; `from` if its address counted.
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

/// Bits of an IPv6 address that name a network. One customer has all addresses of one, and may use as many as they like.
const NETWORK: u128 = !(u64::MAX as u128);

/// The address that stands for this one: itself with IPv4, also within IPv6; else its network.
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
    fn each_limit_counts_for_itself() {
        let census = Census::default();
        assert!(census.enter(3, Some((HERE, 1))));
        assert!(!census.enter(3, Some((HERE, 1))), "one from there is enough");
        assert!(census.enter(3, Some((THERE, 1))));
        assert!(census.enter(3, None), "a connection without an address");
        assert!(!census.enter(3, None));
        census.leave(Some(THERE));
        assert!(!census.enter(2, Some((THERE, 1))), "another has less room");
        assert!(census.enter(3, Some((THERE, 1))), "which has not been counted");
        [Some(HERE), Some(THERE), None].into_iter().for_each(|from| census.leave(from));
        assert_eq!(census.connections(), 0);
        assert!(census.counts.by_address.lock().unwrap().is_empty(), "nothing is kept of those that have gone");
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_count_as_one() {
        let from = |address: &str| Some((address.parse().unwrap(), 2));
        let census = Census::default();
        assert!(census.enter(9, from("2001:db8::1")) && census.enter(9, from("2001:db8::2:0:0:1")));
        assert!(!census.enter(9, from("2001:db8::3")), "the network has two already");
        assert!(census.enter(9, from("2001:db8:0:1::1")), "another network");
        assert!(census.enter(9, from("192.0.2.1")) && census.enter(9, from("::ffff:192.0.2.1")));
        assert!(!census.enter(9, from("192.0.2.1")), "it came by IPv6 the second time");
        assert!(census.enter(9, from("::ffff:192.0.2.2")), "each IPv4 address counts for itself");
        census.leave(Some("2001:db8::4".parse().unwrap()));
        assert!(census.enter(9, from("2001:db8::3")));
    }

    #[test]
    fn no_more_enter_than_may_from_however_many_threads() {
        const MOST: usize = 1000;
        const FROM_HERE: usize = 600;
        let census = Census::default();
        let enter = |number: usize| {
            let census = census.clone();
            let from = if number.is_multiple_of(2) { (HERE, FROM_HERE) } else { (THERE, MOST) };
            std::thread::spawn(move || {
                let try_once = |_| {
                    let entered = census.enter(MOST, Some(from));
                    // Others come and go meanwhile.
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
        assert_eq!(all + more, MOST, "there was room for as many as were missing");
    }
}
