//! Promises: the cost of a link of a chain, compared with a boxed closure.
//!
//! Chains have a hundred links, and are made and run one after the other. The number includes everything that a chain needs: its
//! first promise, its end, and the turn of the loop that runs it. The comparison has none of that: the same number of boxed
//! closures, made first and then called with the result of the one before, which is the minimum cost of deferred work.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pelton::{EventLoop, Promise, Reactor};

use crate::harness::{Better, Case, Contender, Contest, Elapsed, Side, Stopwatch};
use crate::machine::{std_version, version};
use crate::mark::Mark;

/// Links of a chain.
const LENGTH: u64 = 100;

const BOXED: &str = "boxed closure";

/// Returns the contests over at least `links` links.
pub fn contests(links: u64) -> Vec<Contest<'static>> {
    let chains = links.div_ceil(LENGTH);
    vec![
        contest("promise link, settled after", chains, settled_after),
        contest("promise link, settled before", chains, settled_before),
    ]
}

/// `chain` makes and runs one chain that begins with a number; the loop keeps its result.
fn contest(name: &'static str, chains: u64, chain: fn(&mut EventLoop, u64)) -> Contest<'static> {
    let mark = Mark::AtMost { factor: 2.0, against: BOXED };
    let readings = move |(sum, elapsed): (u64, Elapsed)| {
        // Each link adds its position in the chain.
        let expected = (0..chains).map(|start| start + (0..LENGTH).sum::<u64>()).sum::<u64>();
        ensure!(sum == expected, "{chains} chains add up to {sum} instead of {expected}");
        Ok(vec![Some(elapsed.cpu_ns_each(chains * LENGTH))])
    };
    let contenders = vec![
        Contender::new(BOXED, std_version(), Side::Floor, move || readings(boxed(chains))),
        Contender::new("pelton then", version("pelton"), Side::Ours, move || readings(promised(chains, chain)?)),
    ];
    Contest { name: name.into(), cases: vec![Case::new(name, "ns", Better::Lower).mark(mark)], contenders }
}

fn boxed(chains: u64) -> (u64, Elapsed) {
    type Link = Box<dyn FnOnce(u64) -> u64>;
    let (mut sum, mut links) = (0, Vec::<Link>::with_capacity(LENGTH as usize));
    let watch = Stopwatch::start();
    for start in 0..chains {
        // Prevents the optimiser from removing or inlining the calls.
        links.extend((0..LENGTH).map(|number| black_box(Box::new(move |value| value + number) as Link)));
        sum += links.drain(..).fold(start, |value, link| link(value));
    }
    (sum, watch.stop())
}

/// The sum of the results of the chains.
#[derive(Default)]
struct Ends {
    count: u64,
    sum: u64,
}

fn promised(chains: u64, chain: fn(&mut EventLoop, u64)) -> Result<(u64, Elapsed)> {
    let mut reactor = Reactor::new().context("make a reactor")?;
    let watch = Stopwatch::start();
    for start in 0..chains {
        chain(&mut reactor, start);
        while reactor.state::<Ends>().count <= start {
            reactor.turn(Some(Duration::ZERO))?;
        }
    }
    let elapsed = watch.stop();
    Ok((reactor.state::<Ends>().sum, elapsed))
}

fn settled_after(reactor: &mut EventLoop, start: u64) {
    let (deferred, promise) = reactor.promise::<u64, ()>();
    link(promise);
    assert!(deferred.resolve(start).is_ok(), "nothing else settles it");
}

fn settled_before(reactor: &mut EventLoop, start: u64) {
    link(Promise::<u64, ()>::resolved(reactor, start));
}

fn link(promise: Promise<u64, ()>) {
    let chain = (0..LENGTH).fold(promise, |promise, number| promise.then(move |_, value| Ok(value + number)));
    chain.done(|reactor, outcome| {
        let ends = reactor.state::<Ends>();
        ends.count += 1;
        ends.sum += outcome.unwrap_or(0);
    });
}
