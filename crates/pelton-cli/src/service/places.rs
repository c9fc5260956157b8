//! The listening sockets, opened here or inherited, and the ownership of their files.
//!
//! They are opened before any reactor starts and kept here, besides the copies that the workers adopt. A handover passes on these
//! very sockets, so connections waiting in their backlogs are not lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use pelton::{Address, Inherited, ListenOptions, Sharing, Socket, SocketFile};

/// One address to listen on.
pub struct Place {
    /// The name under which its sockets are passed on.
    name: String,
    /// The address that was actually bound.
    pub address: Address,
    /// One socket per worker if the kernel distributes connections among them, otherwise one that all workers share.
    sockets: Vec<Socket>,
    /// The file of a Unix socket, if this process has to remove it.
    file: Option<SocketFile>,
    /// A file that becomes this process's once it serves; until then it belongs to the process that hands over, which may
    /// continue.
    file_to_come: Option<SocketFile>,
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct CannotListen {
    pub address: Address,
    pub error: io::Error,
}

impl std::fmt::Display for CannotListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "listen on {}: {}", self.address, self.error)?;
        match (self.error.kind(), &self.address) {
            (io::ErrorKind::AddrInUse, Address::Tcp(_)) => {
                f.write_str("; another program is listening there; stop it or choose another port")
            }
            (io::ErrorKind::PermissionDenied, Address::Tcp(address)) if address.port() < 1024 => {
                f.write_str("; ports below 1024 usually require root")
            }
            _ => Ok(()),
        }
    }
}

/// The sockets that this process was started with, by name.
#[derive(Default)]
pub struct Inheritance(HashMap<String, Vec<Heirloom>>);

/// An inherited socket, and the device and inode of its file, if that is handed over too.
type Heirloom = (Socket, Option<(u64, u64)>);

/// The name given to sockets from a service manager, whatever it calls them.
const ACTIVATED: &str = "activated";

impl Inheritance {
    pub fn new(inherited: Vec<Inherited>, is_known: impl Fn(&str) -> bool) -> Inheritance {
        let mut by_name = HashMap::<String, Vec<Heirloom>>::new();
        for Inherited { name, socket } in inherited {
            let (name, identity) = name.as_deref().map_or((ACTIVATED, None), split_identity);
            let name = if is_known(name) { name } else { ACTIVATED };
            by_name.entry(name.to_owned()).or_default().push((socket, identity));
        }
        Inheritance(by_name)
    }

    pub fn take(&mut self, name: &str) -> Vec<Heirloom> {
        self.0.remove(name).unwrap_or_default()
    }

    /// Takes the sockets from a service manager, each as a place of its own.
    pub fn activated(&mut self) -> Result<Vec<Place>, CannotListen> {
        let places = self.take(ACTIVATED).into_iter().enumerate();
        places.map(|(number, socket)| Place::inherited(format!("{ACTIVATED}.{number}"), vec![socket])).collect()
    }
}

/// Checks that all sockets except those of this name are listening. Otherwise the server would claim to serve, but not do it.
pub fn check(inherited: &[Inherited], other: &str) -> Result<(), String> {
    for Inherited { socket, .. } in inherited.iter().filter(|inherited| inherited.name.as_deref() != Some(other)) {
        let number = socket.as_fd().map_or(-1, |fd| fd.as_raw_fd());
        match socket.is_listening() {
            Ok(true) => {}
            Ok(false) => return Err(format!("descriptor {number} was passed as a listener, but is not listening")),
            Err(error) => return Err(format!("descriptor {number} was passed as a listener: {error}")),
        }
    }
    Ok(())
}

/// Appends a file's identity to the name of its socket, to be passed on.
fn with_identity(name: &str, file: Option<&SocketFile>) -> String {
    match file.map(SocketFile::identity) {
        Some((device, inode)) => format!("{name}.file-{device}-{inode}"),
        None => name.to_owned(),
    }
}

/// Splits what [`with_identity`] joined.
fn split_identity(name: &str) -> (&str, Option<(u64, u64)>) {
    let split = name.split_once(".file-").and_then(|(name, identity)| {
        let (device, inode) = identity.split_once('-')?;
        Some((name, (device.parse().ok()?, inode.parse().ok()?)))
    });
    split.map_or((name, None), |(name, identity)| (name, Some(identity)))
}

/// Returns the name of the sockets for the `number`th address.
pub fn name_of(number: usize) -> String {
    format!("listen.{number}")
}

impl Place {
    /// Takes over the inherited sockets of this name if there are any; otherwise listens on `address`, for this many workers.
    pub fn open(
        name: String,
        address: &Address,
        inheritance: &mut Inheritance,
        workers: usize,
        mode: Option<u32>,
    ) -> Result<Place, CannotListen> {
        let inherited = inheritance.take(&name);
        if !inherited.is_empty() {
            return Place::inherited(name, inherited);
        }
        Place::listen(name, address, workers, mode).map_err(|error| CannotListen { address: address.clone(), error })
    }

    fn inherited(name: String, inherited: Vec<Heirloom>) -> Result<Place, CannotListen> {
        let identity = inherited.iter().find_map(|(_, identity)| *identity);
        let sockets: Vec<Socket> = inherited.into_iter().map(|(socket, _)| socket).collect();
        let address = sockets.first().map_or(Ok(Address::Unnamed), Socket::local_address);
        let address = address.map_err(|error| CannotListen { address: Address::Unnamed, error })?;
        // The file of a socket from a service manager stays; the file of one that was handed over is now ours.
        let file_to_come = match (&address, identity) {
            (Address::Unix(path), Some(identity)) => Some(SocketFile::known_as(path, identity)),
            _ => None,
        };
        Ok(Place { name, address, sockets, file: None, file_to_come })
    }

    fn listen(name: String, address: &Address, workers: usize, mode: Option<u32>) -> io::Result<Place> {
        let options = match mode {
            Some(mode) => ListenOptions::default().permissions(mode),
            None => ListenOptions::default(),
        };
        let spread = workers > 1 && Sharing::default() == Sharing::ReusePort && matches!(address, Address::Tcp(_));
        if !spread {
            let socket = Socket::listen(address, &options)?;
            let address = socket.local_address()?;
            let file = if let Address::Unix(path) = &address { Some(SocketFile::at(path)?) } else { None };
            return Ok(Place { name, address, sockets: vec![socket], file, file_to_come: None });
        }
        // Otherwise another program of the same user that shares its port too would silently get some of the connections.
        if matches!(address, Address::Tcp(address) if address.port() != 0) {
            drop(Socket::listen(address, &options)?);
        }
        let options = options.reuse_port(true);
        let first = Socket::listen(address, &options)?;
        let address = first.local_address()?;
        let mut sockets = vec![first];
        for _ in 1..workers {
            sockets.push(Socket::listen(&address, &options)?);
        }
        Ok(Place { name, address, sockets, file: None, file_to_come: None })
    }

    /// Returns the sockets for one worker: every socket has a worker, and every worker has a socket.
    pub fn share_of(&self, worker: usize, workers: usize) -> io::Result<Vec<Socket>> {
        let count = self.sockets.len();
        let mine = (worker..count.max(workers)).step_by(workers).map(|number| self.sockets[number % count].try_clone());
        mine.collect()
    }

    /// Takes ownership of the file, now that this process serves.
    pub fn take_over(&mut self) {
        if let Some(file) = self.file_to_come.take() {
            self.file = Some(file);
        }
    }

    /// Returns its sockets, to be passed on.
    pub fn to_pass_on(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        let name = with_identity(&self.name, self.file.as_ref());
        self.sockets.iter().filter_map(move |socket| Some((name.clone(), socket.as_fd()?)))
    }

    /// Returns whether requests are only redirected here.
    pub fn redirects(&self) -> bool {
        self.name == crate::serve::REDIRECT
    }

    /// Returns how many sockets it has.
    pub fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Stops accepting in this process. Removes the file unless another process owns it now.
    pub fn close(&mut self, handed_over: bool) {
        // Done before the sockets are closed: until then no other file can have the same inode.
        if let Some(file) = self.file.take().filter(|_| !handed_over)
            && let Err(error) = file.remove()
        {
            tracing::warn!(%error, path = %file.path().display(), "could not remove the file of a Unix socket");
        }
        self.sockets.clear();
    }

    /// Returns the URL for clients.
    pub fn url(&self, scheme: &str) -> String {
        match &self.address {
            Address::Tcp(address) => format!("{scheme}://{address}/"),
            other => other.to_string(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.close(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_the_file_is_passed_on_with_the_name() {
        let file = SocketFile::known_as("/run/web.sock", (66_305, 4711));
        assert_eq!(split_identity(&with_identity("listen.0", Some(&file))), ("listen.0", Some((66_305, 4711))));
        for name in ["listen.0", "admin", "ready", "listen.0.file-", "listen.0.file-1", "listen.0.file-x-1"] {
            assert_eq!(split_identity(name), (name, None));
        }
    }
}
