//! Reading with the standard library, which blocks, and with tokio.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Builder, Runtime};

use super::{PIECE, THREADS, Tally, again};
use crate::harness::{Elapsed, Stopwatch};

pub const TOKIO: &str = "tokio::fs";
pub const TOKIO_NARROW: &str = "tokio::fs, 4 threads";

/// Each thread reads its share. Starting the threads is included, because none can be reused.
pub fn std(paths: &[PathBuf], threads: usize) -> Result<(Tally, Elapsed)> {
    let share = paths.len().div_ceil(threads);
    let read = |start: usize| -> Result<Tally> {
        let mut tally = Tally::default();
        for (index, path) in paths.iter().enumerate().skip(start).take(share) {
            tally.add(index, &std::fs::read(path)?);
        }
        Ok(tally)
    };
    let watch = Stopwatch::start();
    if threads == 1 {
        let tally = read(0)?;
        return Ok((tally, watch.stop()));
    }
    let tally = thread::scope(|scope| {
        let started: Vec<_> = (0..paths.len()).step_by(share).map(|start| scope.spawn(move || read(start))).collect();
        let mut all = Tally::default();
        for thread in started {
            let tally = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            all.bytes += tally.bytes;
            all.marks += tally.marks;
        }
        anyhow::Ok(all)
    })?;
    Ok((tally, watch.stop()))
}

/// With the default number of threads.
pub fn tokio(paths: &[PathBuf]) -> Result<(Tally, Elapsed)> {
    many(paths, Builder::new_current_thread().enable_io())
}

/// With as many threads as pelton.
pub fn tokio_narrow(paths: &[PathBuf]) -> Result<(Tally, Elapsed)> {
    many(paths, Builder::new_current_thread().enable_io().max_blocking_threads(THREADS))
}

fn many(paths: &[PathBuf], runtime: &mut Builder) -> Result<(Tally, Elapsed)> {
    async fn read(paths: &[PathBuf]) -> Result<Tally> {
        // tokio's operations start when they are polled, so each has a task.
        let begun: Vec<_> = paths.iter().map(|path| tokio::spawn(tokio::fs::read(path.clone()))).collect();
        let mut tally = Tally::default();
        for (index, contents) in begun.into_iter().enumerate() {
            tally.add(index, &contents.await??);
        }
        Ok(tally)
    }
    let runtime = runtime.build().context("build a tokio runtime")?;
    again(|| runtime.block_on(read(paths)))
}

pub fn std_whole(path: &Path) -> Result<(u64, Elapsed)> {
    let watch = Stopwatch::start();
    let contents = std::fs::read(path)?;
    let elapsed = watch.stop();
    Ok((contents.len() as u64, elapsed))
}

pub fn std_in_pieces(path: &Path) -> Result<(u64, Elapsed)> {
    let watch = Stopwatch::start();
    let (mut file, mut buffer, mut bytes) = (File::open(path)?, vec![0; PIECE], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, watch.stop())),
            read => bytes += read as u64,
        }
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_io().build().context("build a tokio runtime")
}

pub fn tokio_whole(path: &Path) -> Result<(u64, Elapsed)> {
    let runtime = runtime()?;
    let watch = Stopwatch::start();
    let contents = runtime.block_on(tokio::fs::read(path))?;
    let elapsed = watch.stop();
    Ok((contents.len() as u64, elapsed))
}

pub fn tokio_in_pieces(path: &Path) -> Result<(u64, Elapsed)> {
    let runtime = runtime()?;
    let watch = Stopwatch::start();
    let bytes = runtime.block_on(async {
        let mut file = tokio::fs::File::open(path).await?;
        // It reads into its own buffer of this size, and copies from there.
        file.set_max_buf_size(PIECE);
        let (mut buffer, mut bytes) = (vec![0; PIECE], 0);
        loop {
            match file.read(&mut buffer).await? {
                0 => return anyhow::Ok(bytes),
                read => bytes += read as u64,
            }
        }
    })?;
    Ok((bytes, watch.stop()))
}
