//! Files: many small ones at once, and one large one, both from the page cache.
//!
//! Nobody waits for a disk, so this measures the cost of not blocking the loop. pelton has 4 threads for files; tokio runs with
//! the same number, and with its default, up to 512.

mod ours;
mod peers;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::harness::{Better, Case, Contender, Contest, Elapsed, Side, Stopwatch};
use crate::machine::{std_version, version};
use crate::mark::Mark;

/// Threads that read files.
const THREADS: usize = 4;

/// Size of a small file: a page.
const SMALL: usize = 4 << 10;

/// Size of the pieces in which the large file is read.
const PIECE: usize = 1 << 20;

const STD_READ: &str = "std::fs::read";
const STD_PIECES: &str = "std read, one buffer";

/// The files to read. They are removed on drop.
pub struct Files {
    small: Vec<PathBuf>,
    large: PathBuf,
    large_size: u64,
    _directory: TempDir,
}

/// What was read: the number of bytes, and for small files how often the first byte was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    bytes: u64,
    marks: u64,
}

impl Tally {
    fn add(&mut self, index: usize, contents: &[u8]) {
        self.bytes += contents.len() as u64;
        self.marks += u64::from(contents.first() == Some(&mark(index)));
    }
}

/// Returns the byte that a small file is filled with.
fn mark(index: usize) -> u8 {
    (index % 251) as u8
}

/// Runs it twice and times the second run: the first one starts long-lived threads.
fn again(mut read: impl FnMut() -> Result<Tally>) -> Result<(Tally, Elapsed)> {
    read()?;
    let watch = Stopwatch::start();
    let tally = read()?;
    Ok((tally, watch.stop()))
}

impl Files {
    pub fn prepare(small: u32, large_mebibytes: u32) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let make = |index| {
            let path = directory.path().join(format!("small-{index}"));
            fs::write(&path, vec![mark(index); SMALL]).with_context(|| format!("write {}", path.display()))?;
            Ok(path)
        };
        let small = (0..small as usize).map(make).collect::<Result<Vec<_>>>()?;
        // A hole takes no room on disk; in the page cache, from which it is read, it takes as much as anything.
        let (large, large_size) = (directory.path().join("large"), u64::from(large_mebibytes) << 20);
        let file = File::create(&large).with_context(|| format!("create {}", large.display()))?;
        file.set_len(large_size).with_context(|| format!("make {} larger", large.display()))?;
        Ok(Self { small, large, large_size, _directory: directory })
    }

    pub fn contests(&self) -> Vec<Contest<'_>> {
        vec![self.many(), self.whole(), self.in_pieces()]
    }

    fn many(&self) -> Contest<'_> {
        let paths = self.small.as_slice();
        let count = paths.len() as u64;
        let name = format!("read {count} small files");
        // The default. With as many threads as pelton, tokio is about twice as far from blocking reads as pelton is.
        let case = Case::new(name.clone(), "k/s", Better::Higher)
            .mark(Mark::Times { factor: 3.0, against: vec![peers::TOKIO] });
        let entrant = |name, version, side, window: fn(&[PathBuf]) -> Result<(Tally, Elapsed)>| {
            Contender::new(name, version, side, move || {
                let (tally, elapsed) = window(paths)?;
                let expected = Tally { bytes: count * SMALL as u64, marks: count };
                ensure!(tally == expected, "read {tally:?} instead of {expected:?}");
                Ok(vec![Some(elapsed.thousands_per_second(count))])
            })
        };
        let contenders = vec![
            entrant("std, 1 thread", std_version(), Side::Floor, |paths| peers::std(paths, 1)),
            entrant("std, 4 threads", std_version(), Side::Floor, |paths| peers::std(paths, THREADS)),
            entrant(peers::TOKIO, version("tokio"), Side::Peer, peers::tokio),
            entrant(peers::TOKIO_NARROW, version("tokio"), Side::Peer, peers::tokio_narrow),
            entrant("pelton fs::read", version("pelton"), Side::Ours, ours::many),
            entrant("pelton fs::read, awaited", version("pelton"), Side::Ours, ours::many_awaited),
        ];
        Contest { name, cases: vec![case], contenders }
    }

    fn whole(&self) -> Contest<'_> {
        let name = format!("read {} MiB, whole", self.large_size >> 20);
        self.large(
            name,
            STD_READ,
            vec![
                self.reader(STD_READ, std_version(), Side::Floor, peers::std_whole),
                self.reader("tokio::fs::read", version("tokio"), Side::Peer, peers::tokio_whole),
                self.reader("pelton fs::read", version("pelton"), Side::Ours, ours::whole),
            ],
        )
    }

    fn in_pieces(&self) -> Contest<'_> {
        let name = format!("read {} MiB, by 1 MiB", self.large_size >> 20);
        self.large(
            name,
            STD_PIECES,
            vec![
                self.reader(STD_PIECES, std_version(), Side::Floor, peers::std_in_pieces),
                self.reader("tokio::fs::File", version("tokio"), Side::Peer, peers::tokio_in_pieces),
                self.reader("pelton File::read_into", version("pelton"), Side::Ours, ours::in_pieces),
            ],
        )
    }

    fn large<'a>(&self, name: String, floor: &'static str, contenders: Vec<Contender<'a>>) -> Contest<'a> {
        let case = Case::new(name.clone(), "ms", Better::Lower)
            .relative_to(floor)
            .mark(Mark::AtMost { factor: 1.1, against: floor });
        Contest { name, cases: vec![case], contenders }
    }

    fn reader(
        &self,
        name: &'static str,
        version: String,
        side: Side,
        window: fn(&Path) -> Result<(u64, Elapsed)>,
    ) -> Contender<'_> {
        Contender::new(name, version, side, move || {
            let (bytes, elapsed) = window(&self.large)?;
            ensure!(bytes == self.large_size, "read {bytes} bytes of {}", self.large_size);
            Ok(vec![Some(elapsed.milliseconds())])
        })
    }
}
