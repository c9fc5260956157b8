//! The format of the log.
//!
//! ```text
//! "pelton jobs 1\n"  then records:  mark (4) | length (8) | CRC-32 of length and contents (4) | contents
//! ```
//!
//! A record is written with one call and synced before the next one is written, so only the last one can be torn.

use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::store::Request;

pub(super) const HEADER: &[u8] = b"pelton jobs 1\n";

const MARK: &[u8; 4] = b"\xa9PJr";

const HEAD: usize = 16;

/// The contents of a record. Fields are only ever added in new variants.
#[derive(Serialize, Deserialize)]
pub(super) enum Record<'a> {
    /// Everything up to here.
    Snapshot(std::borrow::Cow<'a, [u8]>),
    /// Requests, and their time in milliseconds since 1970.
    Batch(u64, Vec<Request>),
}

impl Record<'_> {
    pub(super) fn snapshot(ledger: &Ledger) -> Result<Record<'static>, postcard::Error> {
        Ok(Record::Snapshot(postcard::to_stdvec(ledger)?.into()))
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        let contents = postcard::to_stdvec(self)?;
        let length = (contents.len() as u64).to_le_bytes();
        let mut bytes = Vec::with_capacity(HEAD + contents.len());
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&checksum(&length, &contents).to_le_bytes());
        bytes.extend_from_slice(&contents);
        Ok(bytes)
    }
}

fn checksum(length: &[u8], contents: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(contents);
    hasher.finalize()
}

/// Returns the contents of the record at the beginning of `bytes`, and its length in all, if it is whole.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let length = u64::from_le_bytes(head[4..12].try_into().ok()?);
    let sum = u32::from_le_bytes(head[12..16].try_into().ok()?);
    let contents = rest.get(..usize::try_from(length).ok()?)?;
    (head.starts_with(MARK) && sum == checksum(&head[4..12], contents)).then_some((contents, HEAD + contents.len()))
}

/// Returns whether there is a whole record anywhere in `bytes`.
pub(super) fn contains_record(bytes: &[u8]) -> bool {
    memchr::memmem::find_iter(bytes, MARK).any(|at| split(&bytes[at..]).is_some())
}
