//! Where it listens: the sockets, opened here or inherited, and who may remove their files.
//!
//! They are opened before any reactor is there and kept here, beside the copies that the workers adopt: what is handed over to
//! another process are these very sockets, so that connections that wait in their queues are not lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use pelton::{Address, Inherited, ListenOptions, Sharing, Socket, SocketFile};

/// One address to listen on.
pub struct Place {
    /// What its sockets are called when they are passed on.
    name: String,
    /// As it was bound.
    pub address: Address,
    /// One for each worker if the kernel spreads connections over them, else one that all share.
    sockets: Vec<Socket>,
    /// The file of a Unix socket that is this process's to remove.
    file: Option<SocketFile>,
    /// One that will be when this process serves; until then it is that of the process which hands over, and may go on.
    file_to_come: Option<SocketFile>,
}

/// A place that cannot be listened on.
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
                f.write_str("; another program listens there, so end that or choose another port")
            }
            (io::ErrorKind::PermissionDenied, Address::Tcp(address)) if address.port() < 1024 => {
                f.write_str("; ports below 1024 are root's, unless the system says otherwise")
            }
            _ => Ok(()),
        }
    }
}

/// What this process was started with, by name.
#[derive(Default)]
pub struct Inheritance(HashMap<String, Vec<Heirloom>>);

/// A socket that this process was started with, and the device and inode of its file, if it has one that is handed over.
type Heirloom = (Socket, Option<(u64, u64)>);

/// What sockets are called that come from a service manager, whatever it calls them.
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

    /// Sockets from a service manager, each a place by itself.
    pub fn activated(&mut self) -> Result<Vec<Place>, CannotListen> {
        let places = self.take(ACTIVATED).into_iter().enumerate();
        places.map(|(number, socket)| Place::inherited(format!("{ACTIVATED}.{number}"), vec![socket])).collect()
    }
}

/// Makes sure that connections can be accepted on all sockets but those of this name. Otherwise the server would say that it serves, and
/// not do it.
pub fn check(inherited: &[Inherited], other: &str) -> Result<(), String> {
    for Inherited { socket, .. } in inherited.iter().filter(|inherited| inherited.name.as_deref() != Some(other)) {
        let number = socket.as_fd().map_or(-1, |fd| fd.as_raw_fd());
        match socket.is_listening() {
            Ok(true) => {}
            Ok(false) => return Err(format!("descriptor {number} was announced as a listener, but does not listen")),
            Err(error) => return Err(format!("descriptor {number} was announced as a listener: {error}")),
        }
    }
    Ok(())
}

/// What a socket is called that is passed on with its file: its name, and which file that is.
fn with_identity(name: &str, file: Option<&SocketFile>) -> String {
    match file.map(SocketFile::identity) {
        Some((device, inode)) => format!("{name}.file-{device}-{inode}"),
        None => name.to_owned(),
    }
}

/// The opposite.
fn split_identity(name: &str) -> (&str, Option<(u64, u64)>) {
    let split = name.split_once(".file-").and_then(|(name, identity)| {
        let (device, inode) = identity.split_once('-')?;
        Some((name, (device.parse().ok()?, inode.parse().ok()?)))
    });
    split.map_or((name, None), |(name, identity)| (name, Some(identity)))
}

/// What the sockets for the `number`th address are called.
pub fn name_of(number: usize) -> String {
    format!("listen.{number}")
}

impl Place {
    /// Takes over the sockets of this name if they were inherited; otherwise listens on `address`, for so many workers.
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
        // The file of one that a service manager has opened stays; that of one that was handed over is ours now.
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
        // Another program of the same user that shares its port too would otherwise get some of the connections, unnoticed.
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

    /// What the worker of this number listens on: each socket is somebody's, and everybody has one.
    pub fn share_of(&self, worker: usize, workers: usize) -> io::Result<Vec<Socket>> {
        let count = self.sockets.len();
        let mine = (worker..count.max(workers)).step_by(workers).map(|number| self.sockets[number % count].try_clone());
        mine.collect()
    }

    /// It is served, so what comes with it is this process's from here on.
    pub fn take_over(&mut self) {
        if let Some(file) = self.file_to_come.take() {
            self.file = Some(file);
        }
    }

    /// Its sockets, to be passed on.
    pub fn to_pass_on(&self) -> impl Iterator<Item = (String, BorrowedFd<'_>)> {
        let name = with_identity(&self.name, self.file.as_ref());
        self.sockets.iter().filter_map(move |socket| Some((name.clone(), socket.as_fd()?)))
    }

    /// How many sockets it has.
    pub fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Nothing more is accepted by this process, and the file stays if it is somebody else's now.
    pub fn close(&mut self, handed_over: bool) {
        // Before the sockets are closed: until then no other file can have the same inode.
        if let Some(file) = self.file.take().filter(|_| !handed_over)
            && let Err(error) = file.remove()
        {
            tracing::warn!(%error, path = %file.path().display(), "could not remove the file of a Unix socket");
        }
        self.sockets.clear();
    }

    /// How a client would get there.
    pub fn url(&self) -> String {
        match &self.address {
            Address::Tcp(address) => format!("http://{address}/"),
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
    fn which_file_it_is_is_passed_on_with_the_name() {
        let file = SocketFile::known_as("/run/web.sock", (66_305, 4711));
        assert_eq!(split_identity(&with_identity("listen.0", Some(&file))), ("listen.0", Some((66_305, 4711))));
        for name in ["listen.0", "admin", "ready", "listen.0.file-", "listen.0.file-1", "listen.0.file-x-1"] {
            assert_eq!(split_identity(name), (name, None));
        }
    }
}
