//! A page that lists a directory.

use std::fmt::Write;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::FileSettings;
use super::lookup::Resource;
use super::representation::{Description, Representation};
use super::resolve::Directory;
use crate::wire::Coding;

/// The maximum number of entries. Such a page takes a megabyte, and nobody reads a longer one.
const MOST_ENTRIES: usize = 10_000;

/// Everything but the unreserved characters of RFC 3986 is escaped in links.
const IN_LINKS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}\
    h1{font-size:1.25rem;overflow-wrap:anywhere}table{border-collapse:collapse;width:100%}\
    td{padding:.1rem .5rem;overflow-wrap:anywhere}td+td{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
    tr:hover{background:#8882}a{text-decoration:none}a:hover{text-decoration:underline}:root{color-scheme:light dark}";

struct Entry {
    name: Vec<u8>,
    is_directory: bool,
    size: u64,
    modified: Option<SystemTime>,
}

/// A page that lists a directory, without the prefix of its mount, so a directory that is mounted in several places is listed
/// once.
#[derive(Debug)]
pub(super) struct Listing {
    page: Bytes,
    /// The offsets in the page at which the prefix is inserted.
    headings: [usize; 2],
}

impl Listing {
    /// The page for a prefix, which is percent-encoded.
    pub(super) fn resource(&self, prefix: &str, settings: &FileSettings) -> Resource {
        let [title, heading] = self.headings;
        let prefix_in_page = escape(&percent_decode_str(prefix).collect::<Vec<u8>>());
        let page = if prefix.is_empty() {
            self.page.clone()
        } else {
            let mut page = BytesMut::with_capacity(self.page.len() + 2 * prefix_in_page.len());
            for part in [&self.page[..title], &self.page[title..heading], &self.page[heading..]] {
                if !page.is_empty() {
                    page.extend_from_slice(prefix_in_page.as_bytes());
                }
                page.extend_from_slice(part);
            }
            page.freeze()
        };
        let mut hasher = DefaultHasher::new();
        page.hash(&mut hasher);
        let tag = format!("\"{:x}\"", hasher.finish());
        let description =
            Description { coding: Coding::Identity, content_type: "text/html; charset=utf-8", varies: false, settings };
        let form = Representation::of_bytes(page, tag, &description);
        let listing = Listing { page: self.page.clone(), headings: self.headings };
        Resource { forms: vec![form], stamps: None, listing: Some(listing) }
    }
}

/// Lists an open directory.
pub(super) fn list(root: &Directory, name: &[u8], directory: File, settings: &FileSettings) -> Result<Listing, Errno> {
    let mut entries = Vec::new();
    let mut extent = Extent::Complete;
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let own = entry.file_name().to_bytes();
        let hidden = own == b"." || own == b".." || (own.starts_with(b".") && !settings.hidden);
        if hidden || own.contains(&b'\\') {
            continue;
        }
        if entries.len() == MOST_ENTRIES {
            extent = Extent::CutOff;
            break;
        }
        // Skip sockets, FIFOs and devices without looking at them.
        if !matches!(
            entry.file_type(),
            FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown
        ) {
            continue;
        }
        // List only entries that can be served.
        let path = [name, own].concat();
        let Ok(seen) = root.look(&path) else { continue };
        let metadata = seen.metadata.clone();
        if root.may_read(&path, seen) {
            let modified = metadata.modified().ok();
            entries.push(Entry { name: own.to_vec(), is_directory: metadata.is_dir(), size: metadata.len(), modified });
        }
    }
    entries.sort_unstable_by(|one, other| {
        other.is_directory.cmp(&one.is_directory).then_with(|| one.name.cmp(&other.name))
    });
    Ok(page(name, &entries, extent))
}

/// Whether a listing has all entries of its directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    Complete,
    CutOff,
}

fn page(name: &[u8], entries: &[Entry], extent: Extent) -> Listing {
    let own = escape(&[b"/", name].concat());
    let mut page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>"
        .to_owned();
    let title = page.len();
    // Writing to a string does not fail.
    let _ = write!(page, "{own}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>");
    let heading = page.len();
    let _ = write!(page, "{own}</h1>\n<table>\n");
    if !name.is_empty() {
        page.push_str("<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for entry in entries {
        let slash = if entry.is_directory { "/" } else { "" };
        let link = percent_encode(&entry.name, IN_LINKS);
        let name = escape(&entry.name);
        let size = if entry.is_directory { String::new() } else { size(entry.size) };
        let date = entry.modified.map_or(String::new(), date);
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{link}{slash}\">{name}{slash}</a></td><td>{size}</td><td>{date}</td></tr>"
        );
    }
    page.push_str("</table>\n");
    if extent == Extent::CutOff {
        let _ = writeln!(page, "<p>There are more than {MOST_ENTRIES} entries; the rest are not listed.</p>");
    }
    page.push_str("</body>\n</html>\n");
    Listing { page: page.into(), headings: [title, heading] }
}

fn escape(text: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            control if control.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Formats a size for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a time in UTC, so that dates sort as text.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    // Years that begin in March have their leap day at the end, and repeat every 400 years, or 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::representation::Held;
    use std::time::Duration;

    #[test]
    fn names_are_escaped_in_the_page() {
        let name = b"<script>\"a\"&'b'\n%?#\xff.txt";
        let entry = Entry { name: name.to_vec(), is_directory: false, size: 5, modified: None };
        let listing = page(b"<b>/", &[entry], Extent::Complete);
        let page = str::from_utf8(&listing.page).unwrap();
        let line = page.lines().find(|line| line.contains("txt")).unwrap();
        assert_eq!(
            line,
            "<tr><td><a href=\"%3Cscript%3E%22a%22%26%27b%27%0A%25%3F%23%FF.txt\">\
             &lt;script&gt;&quot;a&quot;&amp;&#39;b&#39;\u{fffd}%?#\u{fffd}.txt</a></td><td>5 B</td><td></td></tr>"
        );
        assert!(page.contains("<title>/&lt;b&gt;/</title>") && page.contains("\"../\""), "{page}");
    }

    #[test]
    fn headings_include_the_prefix_of_the_mount() {
        let settings = FileSettings::default();
        let listing = page(b"sub/", &[], Extent::Complete);
        let (plain, below) = (listing.resource("", &settings), listing.resource("/a%20<b>", &settings));
        let text = |resource: &Resource| match &resource.forms[0].held {
            Held::Memory(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            other @ Held::Open { .. } => panic!("{other:?}"),
        };
        assert!(text(&plain).contains("<title>/sub/</title>") && text(&plain).contains("<h1>/sub/</h1>"));
        let expected = "/a &lt;b&gt;/sub/";
        let page = text(&below);
        assert!(page.contains(&format!("<title>{expected}</title>")), "{page}");
        assert!(page.contains(&format!("<h1>{expected}</h1>")), "{page}");
        assert!(plain.forms[0].validators().tag != below.forms[0].validators().tag);
        // A listing made for one prefix can be turned into one for any other.
        let again = below.listing.unwrap().resource("", &settings);
        assert_eq!(text(&again), text(&plain));
    }

    #[test]
    fn sizes_and_dates_are_formatted_for_people() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1 << 30, "1.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (784_111_777, "1994-11-06 08:49"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
