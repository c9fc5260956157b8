//! Finding out what a name leads to. This blocks, so it is done on a thread of the file lane.

use std::fs::File;
use std::time::SystemTime;

use rustix::io::Errno;

use super::FileSettings;
use super::listing;
use super::representation::{Description, Representation, Stamp, content_type};
use super::resolve::{Root, status_of};
use crate::wire::Coding;

/// What ends the names of files that are compressed already, the smallest first.
const SIBLINGS: [(Coding, &str); 3] = [(Coding::Brotli, ".br"), (Coding::Zstandard, ".zst"), (Coding::Gzip, ".gz")];

/// What all forms of a file were like.
pub(super) type Stamps = [Option<Stamp>; 1 + SIBLINGS.len()];

/// What a name leads to.
#[derive(Debug)]
pub(super) enum Found {
    /// What is known already, unchanged.
    Same,
    File(Box<Resource>),
    /// A directory, whose name ends with a slash in paths.
    Directory,
    /// Nothing that is served; this is the status that says why.
    Nothing(u16),
}

/// A file, in all its forms.
#[derive(Debug)]
pub(super) struct Resource {
    /// At least one. The file as it is comes last.
    pub(super) forms: Vec<Representation>,
    /// `None` if it was made up.
    pub(super) stamps: Option<Stamps>,
}

/// Looks up a name, and reads what is small, unless that is `known`.
pub(super) fn look_up(root: &Root, name: &[u8], known: Option<Stamps>, settings: &FileSettings) -> Found {
    let now = if settings.pinned { Ok(None) } else { root.opened_again().map(Some) };
    let found = now.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    match found.and_then(|now| find(now.as_ref().unwrap_or(root), name, known.as_ref(), settings)) {
        Ok(found) => found,
        Err(error) => {
            let status = status_of(error);
            if status >= 500 {
                tracing::error!(%error, name = %String::from_utf8_lossy(name), "a file cannot be opened");
            } else {
                tracing::debug!(%error, name = %String::from_utf8_lossy(name), "there is nothing to serve");
            }
            Found::Nothing(status)
        }
    }
}

fn find(root: &Root, name: &[u8], known: Option<&Stamps>, settings: &FileSettings) -> Result<Found, Errno> {
    let wants_directory = name.is_empty() || name.ends_with(b"/");
    let file = root.file(name)?;
    let metadata = file.metadata().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if metadata.is_file() && !wants_directory {
        return forms(root, name, file, known, settings);
    }
    if !metadata.is_dir() {
        return Err(Errno::NOENT);
    }
    if !wants_directory {
        return Ok(Found::Directory);
    }
    if let Some(index) = &settings.index {
        let name = [name, index.as_bytes()].concat();
        match root.file(&name) {
            Ok(file) if is_regular(&file) => return forms(root, &name, file, known, settings),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    if !settings.listing {
        return Err(Errno::NOENT);
    }
    Ok(Found::File(Box::new(Resource { forms: vec![listing::list(root, name, file, settings)?], stamps: None })))
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

/// The forms of a file that is open.
fn forms(
    root: &Root,
    name: &[u8],
    file: File,
    known: Option<&Stamps>,
    settings: &FileSettings,
) -> Result<Found, Errno> {
    let now = SystemTime::now();
    let stamp = |file: &File| {
        let metadata = file.metadata().ok().filter(|metadata| metadata.is_file());
        metadata.map(|metadata| Stamp::of(&metadata, now))
    };
    let own = stamp(&file).ok_or(Errno::NOENT)?;
    let mut stamps: Stamps = [None; 1 + SIBLINGS.len()];
    let mut opened = Vec::new();
    for (at, (coding, ending)) in SIBLINGS.into_iter().enumerate().filter(|_| settings.precompressed) {
        let Ok(sibling) = root.file(&[name, ending.as_bytes()].concat()) else { continue };
        // One that is older is what the file used to be.
        if let Some(found) = stamp(&sibling).filter(|found| !found.is_older_than(&own)) {
            stamps[at] = Some(found);
            opened.push((coding, sibling, found));
        }
    }
    stamps[SIBLINGS.len()] = Some(own);
    if known == Some(&stamps) {
        return Ok(Found::Same);
    }
    let varies = !opened.is_empty();
    opened.push((Coding::Identity, file, own));
    let content_type = content_type(name);
    let form = |(coding, file, stamp): (Coding, File, Stamp)| {
        let description = Description { coding, content_type: &content_type, varies, settings };
        Representation::of_file(file, &stamp, &description, now)
    };
    Ok(Found::File(Box::new(Resource { forms: opened.into_iter().map(form).collect(), stamps: Some(stamps) })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::representation::Held;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn what_has_not_changed_is_not_read_again() {
        let tree = std::env::temp_dir().join(format!("pelton-lookup-{}", std::process::id()));
        fs::create_dir_all(&tree).unwrap();
        let then = SystemTime::now() - Duration::from_secs(3600);
        let write = |name: &str, text: &str| {
            fs::write(tree.join(name), text).unwrap();
            File::options().write(true).open(tree.join(name)).unwrap().set_modified(then).unwrap();
        };
        let (root, settings) = (Root::open(&tree).unwrap(), FileSettings::default());
        let look = |known: Option<Stamps>| match look_up(&root, b"a", known, &settings) {
            Found::Same => None,
            Found::File(resource) => Some(resource),
            other => panic!("{other:?}"),
        };
        write("a", "one");
        let first = look(None).unwrap();
        assert!(look(first.stamps).is_none());
        // The same length and date: the time of the change of the inode tells.
        write("a", "two");
        let second = look(first.stamps).unwrap();
        assert!(matches!(&second.forms[0].held, Held::Memory(bytes) if bytes == "two"));
        assert!(look(second.stamps).is_none());
        write("a.gz", "compressed");
        let third = look(second.stamps).unwrap();
        assert_eq!(third.forms.iter().map(|form| form.coding).collect::<Vec<_>>(), [Coding::Gzip, Coding::Identity]);
        let large = FileSettings { small: 2, ..settings };
        let Found::File(held_open) = look_up(&root, b"a", None, &large) else { panic!("it is there") };
        assert!(held_open.forms.iter().all(|form| matches!(form.held, Held::Open { .. })));
        fs::remove_dir_all(tree).unwrap();
    }
}
