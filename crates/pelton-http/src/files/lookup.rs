//! Looks up names. This blocks, so it runs on a thread of the file lane.

use std::time::SystemTime;

use pelton::Time;
use rustix::io::Errno;

use super::FileSettings;
use super::listing::{self, Listing};
use super::open_files::OpenFiles;
use super::representation::{Description, Representation, Stamp, content_type};
use super::resolve::{Directory, Seen, status_of};
use super::root::Root;
use crate::log::Printable;
use crate::wire::Coding;

/// The suffixes of precompressed files, best compression first.
const SIBLINGS: [(Coding, &str); 3] = [(Coding::Brotli, ".br"), (Coding::Zstandard, ".zst"), (Coding::Gzip, ".gz")];

/// The stamps of all forms of a file.
pub(super) type Stamps = [Option<Stamp>; 1 + SIBLINGS.len()];

/// What a name leads to.
#[derive(Debug)]
pub(super) enum Found {
    /// The known resource is unchanged.
    Same,
    File(Box<Resource>),
    /// A directory; its path must end with a slash.
    Directory,
    /// Nothing can be served; this is the status of the response.
    Nothing(u16),
}

/// A file in all its forms, or a listing.
#[derive(Debug)]
pub(super) struct Resource {
    /// At least one form. The uncompressed one is last.
    pub(super) forms: Vec<Representation>,
    /// `None` for a listing.
    pub(super) stamps: Option<Stamps>,
    /// The list of a directory.
    pub(super) listing: Option<Listing>,
}

/// Looks up a name and reads small files, unless they are unchanged since `known`.
pub(super) fn look_up(
    root: &Root,
    now: Time,
    name: &[u8],
    known: Option<Stamps>,
    settings: &FileSettings,
    open: &OpenFiles,
) -> Found {
    match root.directory(now).and_then(|directory| find(&directory, name, known.as_ref(), settings, open)) {
        Ok(found) => found,
        Err(error) => {
            let status = status_of(error);
            if status >= 500 {
                tracing::error!(%error, name = ?Printable::new(name), "cannot open a file");
            } else {
                tracing::debug!(%error, name = ?Printable::new(name), "nothing to serve");
            }
            Found::Nothing(status)
        }
    }
}

fn find(
    root: &Directory,
    name: &[u8],
    known: Option<&Stamps>,
    settings: &FileSettings,
    open: &OpenFiles,
) -> Result<Found, Errno> {
    let wants_directory = name.is_empty() || name.ends_with(b"/");
    let seen = root.look(name)?;
    match (seen.metadata.is_dir(), wants_directory) {
        (false, false) => return forms(root, name, seen, known, settings, open),
        (false, true) => return Err(Errno::NOENT),
        (true, false) => return Ok(Found::Directory),
        (true, true) => {}
    }
    if let Some(index) = &settings.index {
        let name = [name, index.as_bytes()].concat();
        match root.look(&name) {
            Ok(seen) if seen.metadata.is_file() => return forms(root, &name, seen, known, settings, open),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    if !settings.listing {
        return Err(Errno::NOENT);
    }
    let listing = listing::list(root, name, root.read(name, seen)?, settings)?;
    Ok(Found::File(Box::new(listing.resource("", settings))))
}

/// Finds the forms of a file and opens them, unless they are unchanged since `known`.
fn forms(
    root: &Directory,
    name: &[u8],
    seen: Seen,
    known: Option<&Stamps>,
    settings: &FileSettings,
    open: &OpenFiles,
) -> Result<Found, Errno> {
    let now = SystemTime::now();
    let stamp = |seen: &Seen| Stamp::of(&seen.metadata, now, settings.settled_after);
    let own = stamp(&seen);
    let mut stamps: Stamps = [None; 1 + SIBLINGS.len()];
    let mut siblings = Vec::new();
    for (at, (coding, ending)) in SIBLINGS.into_iter().enumerate().filter(|_| settings.precompressed) {
        let name = [name, ending.as_bytes()].concat();
        let sibling = match root.look(&name) {
            Ok(sibling) => sibling,
            // It is unknown whether there is one.
            Err(error) if status_of(error) == 503 => return Err(error),
            Err(_) => continue,
        };
        // An older sibling was made from an earlier version of the file.
        let found = stamp(&sibling);
        if sibling.metadata.is_file() && !found.is_older_than(&own) {
            stamps[at] = Some(found);
            siblings.push((at, coding, name, sibling, found));
        }
    }
    stamps[SIBLINGS.len()] = Some(own);
    // A young file may have changed without its stamp changing.
    if known == Some(&stamps) && !stamps.iter().flatten().any(|stamp| stamp.young) {
        return Ok(Found::Same);
    }
    let mut opened = Vec::new();
    for (at, coding, name, sibling, stamp) in siblings {
        match root.read(&name, sibling) {
            Ok(file) => opened.push((at, coding, file, stamp)),
            // An unreadable sibling is ignored until it changes. Other errors may be temporary, so look again next time.
            Err(error) if status_of(error) < 500 => {}
            Err(_) => stamps[at] = None,
        }
    }
    let varies = !opened.is_empty();
    let content_type = content_type(name);
    let form = |coding, file, stamp| {
        let description = Description { coding, content_type: &content_type, varies, settings };
        Representation::of_file(file, stamp, &description, now, open)
    };
    // If only some forms can be held open, hold the uncompressed one: every client accepts it.
    let Some(plain) = form(Coding::Identity, root.read(name, seen)?, own) else {
        tracing::debug!(name = ?Printable::new(name), "too many files are open");
        return Ok(Found::Nothing(503));
    };
    let mut forms = Vec::with_capacity(opened.len() + 1);
    for (at, coding, file, stamp) in opened {
        match form(coding, file, stamp) {
            Some(form) => forms.push(form),
            None => stamps[at] = None,
        }
    }
    forms.push(plain);
    Ok(Found::File(Box::new(Resource { forms, stamps: Some(stamps), listing: None })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::representation::Held;
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    #[test]
    fn unchanged_files_are_not_read_again() {
        let tree = std::env::temp_dir().join(format!("pelton-lookup-{}", std::process::id()));
        fs::create_dir_all(&tree).unwrap();
        let then = SystemTime::now() - Duration::from_secs(3600);
        // Repeat until the change time differs: file systems' clocks tick every few milliseconds.
        let write = |name: &str, text: &str| {
            let path = tree.join(name);
            let changed = || fs::metadata(&path).map(|metadata| (metadata.ctime(), metadata.ctime_nsec())).ok();
            let before = changed();
            while changed() == before {
                fs::write(&path, text).unwrap();
                File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
            }
        };
        let settings = FileSettings { settled_after: Duration::ZERO, ..FileSettings::default() };
        let (root, open) = (Root::open(&tree, None).unwrap(), OpenFiles::new(usize::MAX));
        let look = |known: Option<Stamps>| match look_up(&root, Time::ZERO, b"a", known, &settings, &open) {
            Found::Same => None,
            Found::File(resource) => Some(resource),
            other => panic!("{other:?}"),
        };
        write("a", "one");
        let first = look(None).unwrap();
        assert!(look(first.stamps).is_none());
        // Same length and modification time: only the change time of the inode differs.
        write("a", "two");
        let second = look(first.stamps).unwrap();
        assert!(matches!(&second.forms[0].held, Held::Memory(bytes) if bytes == "two"));
        assert!(look(second.stamps).is_none());
        write("a.gz", "compressed");
        let third = look(second.stamps).unwrap();
        assert_eq!(third.forms.iter().map(|form| form.coding).collect::<Vec<_>>(), [Coding::Gzip, Coding::Identity]);
        let with = |settings: &FileSettings, known| look_up(&root, Time::ZERO, b"a", known, settings, &open);
        let large = FileSettings { small: 2, ..settings.clone() };
        let Found::File(held_open) = with(&large, None) else { panic!("not found") };
        assert!(held_open.forms.iter().all(|form| matches!(form.held, Held::Open { .. })));
        // If not all forms can be held open, the uncompressed one is, and the others are looked up again.
        let few = OpenFiles::new(1);
        let Found::File(alone) = look_up(&root, Time::ZERO, b"a", None, &large, &few) else { panic!("not found") };
        assert_eq!(alone.forms.iter().map(|form| form.coding).collect::<Vec<_>>(), [Coding::Identity]);
        assert!(String::from_utf8_lossy(alone.forms[0].lines()).contains("Vary: Accept-Encoding\r\n"));
        assert!(matches!(look_up(&root, Time::ZERO, b"a", None, &large, &few), Found::Nothing(503)));
        let stamps = alone.stamps;
        drop(alone);
        assert!(matches!(look_up(&root, Time::ZERO, b"a", stamps, &large, &OpenFiles::new(2)), Found::File(_)));
        // A file that could change again without its stamp changing is read every time and has no validators.
        let young = FileSettings { settled_after: Duration::from_secs(3600), ..settings };
        let Found::File(first) = with(&young, None) else { panic!("not found") };
        assert!(first.forms.iter().all(|form| form.validators().tag.is_none() && form.validators().modified.is_none()));
        assert!(matches!(with(&young, first.stamps), Found::File(_)));
        fs::remove_dir_all(tree).unwrap();
    }
}
