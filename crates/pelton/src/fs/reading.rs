//! Reads into uninitialised memory, with as few system calls as possible.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::{pread, read, retry_on_intr};

/// Some systems refuse to read 2 GiB or more at a time.
const MOST_AT_ONCE: usize = 1 << 30;

/// How many bytes to ask for when the size is unknown.
const AT_A_GUESS: usize = 8 << 10;

/// Reads a file to its end. If the size is as reported, this takes one system call: the buffer has room for one more
/// byte, and a short read means the end.
pub(super) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    to_end(&File::open(path)?)
}

/// Reads an open file to its end.
pub(super) fn to_end(file: &File) -> io::Result<Vec<u8>> {
    let size = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    loop {
        let expected = size.saturating_sub(bytes.len());
        let wanted = if expected > 0 { expected + 1 } else { AT_A_GUESS };
        bytes.try_reserve(wanted.min(MOST_AT_ONCE)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let room = bytes.capacity() - bytes.len();
        let read = append(file, &mut bytes)?;
        if read == 0 || (read < room && bytes.len() == size) {
            return Ok(bytes);
        }
    }
}

/// Reads a text file to its end.
pub(super) fn text(path: &Path) -> io::Result<String> {
    into_text(whole(path)?)
}

pub(super) fn into_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Reads once into `bytes`, replacing its contents, up to its capacity.
pub(super) fn into(file: &File, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    bytes.clear();
    append(file, &mut bytes)?;
    Ok(bytes)
}

/// Reads once from `offset`. See [`into`].
pub(super) fn into_at(file: &File, mut bytes: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
    bytes.clear();
    retry_on_intr(|| pread(file, spare_capacity(&mut bytes), offset))?;
    Ok(bytes)
}

fn append(file: &File, bytes: &mut Vec<u8>) -> io::Result<usize> {
    Ok(retry_on_intr(|| read(file, spare_capacity(bytes)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_every_size_are_read_to_their_end() {
        let path = std::env::temp_dir().join(format!("pelton-reading-{}", std::process::id()));
        for size in [0, 1, 2, 4095, 4096, 4097, AT_A_GUESS - 1, AT_A_GUESS, AT_A_GUESS + 1, 1 << 20] {
            let contents: Vec<u8> = (0..size).map(|index| index as u8).collect();
            std::fs::write(&path, &contents).unwrap();
            assert!(whole(&path).unwrap() == contents, "{size} bytes");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn file_of_unknown_size_is_read_to_its_end() {
        let path = Path::new("/proc/self/maps");
        assert_eq!(std::fs::metadata(path).unwrap().len(), 0);
        let maps = text(path).unwrap();
        assert!(maps.ends_with('\n') && maps.lines().count() > 5, "{maps}");
    }

    #[test]
    fn invalid_utf8_is_an_error() {
        let path = std::env::temp_dir().join(format!("pelton-reading-text-{}", std::process::id()));
        std::fs::write(&path, b"caf\xe9").unwrap();
        let error = text(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("index 3"), "{error}");
    }
}
