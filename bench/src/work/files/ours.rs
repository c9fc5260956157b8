//! Reading with pelton.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pelton::{EventLoop, Lane, LaneSettings, Reactor, fs};

use super::{PIECE, THREADS, Tally, again};
use crate::harness::{Elapsed, Stopwatch};

fn reactor() -> Result<EventLoop> {
    let settings = LaneSettings { threads: THREADS, ..LaneSettings::FILES };
    Reactor::builder().lane(Lane::Files, settings).build().context("make a reactor")
}

/// The loop's own state.
#[derive(Default)]
struct State {
    tally: Tally,
    read: usize,
}

/// With callbacks.
pub fn many(paths: &[PathBuf]) -> Result<(Tally, Elapsed)> {
    fn read(reactor: &mut EventLoop, paths: &[PathBuf]) -> Result<Tally> {
        *reactor.state::<State>() = State::default();
        for (index, path) in paths.iter().enumerate() {
            fs::read(path).then(reactor, move |reactor, contents| {
                let state = reactor.state::<State>();
                state.read += 1;
                state.tally.add(index, &contents.unwrap_or_default());
            })?;
        }
        reactor.run_until(|reactor| reactor.state::<State>().read == paths.len())?;
        Ok(reactor.state::<State>().tally)
    }
    let mut reactor = reactor()?;
    again(|| read(&mut reactor, paths))
}

/// Started all at once, and awaited in turn.
pub fn many_awaited(paths: &[PathBuf]) -> Result<(Tally, Elapsed)> {
    async fn read(paths: &[PathBuf]) -> Result<Tally> {
        let begun: Vec<_> = paths.iter().map(|path| fs::read(path).into_future()).collect();
        let mut tally = Tally::default();
        for (index, contents) in begun.into_iter().enumerate() {
            tally.add(index, &contents.await?);
        }
        Ok(tally)
    }
    let mut reactor = reactor()?;
    again(|| reactor.block_on(read(paths))?)
}

pub fn whole(path: &Path) -> Result<(u64, Elapsed)> {
    let mut reactor = reactor()?;
    let watch = Stopwatch::start();
    let contents = reactor.block_on(async { fs::read(path).await })??;
    let elapsed = watch.stop();
    Ok((contents.len() as u64, elapsed))
}

/// With one buffer that is passed back and forth.
pub fn in_pieces(path: &Path) -> Result<(u64, Elapsed)> {
    let mut reactor = reactor()?;
    let watch = Stopwatch::start();
    let bytes = reactor.block_on(async {
        let file = fs::File::open(path).await?;
        let (mut buffer, mut bytes) = (Vec::with_capacity(PIECE), 0);
        loop {
            buffer = file.read_into(buffer).await?;
            if buffer.is_empty() {
                return anyhow::Ok(bytes);
            }
            bytes += buffer.len() as u64;
        }
    })??;
    Ok((bytes, watch.stop()))
}
