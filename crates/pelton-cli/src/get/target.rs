//! The file that a download is written to.
//!
//! Data goes to `NAME.part`, which becomes `NAME` when it is complete. `NAME.part.tag` has the validator of the response, so that a
//! download continues only if the file is still the same.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use pelton_http::client::Url;
use ring::digest::{Context, SHA256};

/// Checks that a text is a SHA-256, and returns it in lower case.
pub fn hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { Ok(text.to_ascii_lowercase()) } else { Err("a SHA-256 has 64 hexadecimal digits".to_owned()) }
}

/// Where a download goes.
pub struct Target {
    place: Place,
    hash: Context,
    /// Bytes so far.
    pub length: u64,
}

enum Place {
    Nowhere,
    Output(io::Stdout),
    File { file: File, path: PathBuf },
}

/// The name of the file for a URL: the last segment of its path, if that is a name.
pub fn name_of(url: &Url) -> String {
    let segment = url.path().rsplit('/').next().unwrap_or_default();
    let decoded = percent_decode(segment);
    let is_name = !decoded.is_empty() && decoded != "." && decoded != "..";
    let is_plain = !decoded.contains(['/', '\0']) && !decoded.chars().any(char::is_control);
    if is_name && is_plain { decoded } else { "index.html".to_owned() }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *byte == b'%') {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What is there of an interrupted download: its length, and the validator of what it is a part of.
pub fn interrupted(path: &Path) -> Option<(u64, String)> {
    let length = fs::metadata(with(path, ".part")).ok()?.len();
    let tag = fs::read_to_string(with(path, ".part.tag")).ok()?;
    (length > 0 && !tag.is_empty()).then_some((length, tag))
}

impl Target {
    pub fn nowhere() -> Target {
        Target { place: Place::Nowhere, hash: Context::new(&SHA256), length: 0 }
    }

    /// Opens the target. Continues an interrupted download from this length, or begins a new one.
    pub fn open(path: &Path, from: u64, tag: Option<&[u8]>) -> io::Result<Target> {
        let mut hash = Context::new(&SHA256);
        if path == Path::new("-") {
            return Ok(Target { place: Place::Output(io::stdout()), hash, length: 0 });
        }
        let part = with(path, ".part");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(from == 0).open(&part)?;
        if from > 0 {
            let mut buffer = vec![0; 1 << 16];
            let mut left = (&mut file).take(from);
            loop {
                match left.read(&mut buffer)? {
                    0 => break,
                    count => hash.update(&buffer[..count]),
                }
            }
            file.set_len(from)?;
            file.seek(SeekFrom::Start(from))?;
        }
        let tag_path = with(path, ".part.tag");
        match tag {
            Some(tag) => fs::write(tag_path, tag)?,
            None => drop(fs::remove_file(tag_path)),
        }
        Ok(Target { place: Place::File { file, path: path.to_owned() }, hash, length: from })
    }

    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.hash.update(data);
        self.length += data.len() as u64;
        match &mut self.place {
            Place::Nowhere => Ok(()),
            Place::Output(output) => output.write_all(data),
            Place::File { file, .. } => file.write_all(data),
        }
    }

    /// Completes the file if it has the expected hash. Returns the hash.
    pub fn finish(self, expected: Option<&str>) -> io::Result<Result<String, String>> {
        let found: String = self.hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if expected.is_some_and(|expected| expected != found) {
            return Ok(Err(found));
        }
        match self.place {
            Place::Nowhere => {}
            Place::Output(mut output) => output.flush()?,
            Place::File { file, path } => {
                drop(file);
                fs::rename(with(&path, ".part"), &path)?;
                let _ = fs::remove_file(with(&path, ".part.tag"));
            }
        }
        Ok(Ok(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_lead_elsewhere() {
        for (url, name) in [
            ("http://a/b/file.txt?x", "file.txt"),
            ("http://a/", "index.html"),
            ("http://a/b/", "index.html"),
            ("http://a/b%20c", "b c"),
            ("http://a/%2e%2e", "index.html"),
            ("http://a/..%2f..%2fetc%2fpasswd", "index.html"),
            ("http://a/%00", "index.html"),
            ("http://a/x%0ay", "index.html"),
        ] {
            assert_eq!(name_of(&url.parse().unwrap()), name, "{url}");
        }
    }
}
