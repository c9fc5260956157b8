//! Where it listens: the sockets, opened here or inherited, and who may remove their files.
//!
//! They are opened before any reactor is there and kept here, beside the copies that the workers adopt: what is handed over to
//! another process are these very sockets, so that connections that wait in their queues are not lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use pelton::{Address, Inherited, ListenOptions, Sharing, Socket};

/// One address to listen on.
pub struct Place {
    /// What its sockets are called when they are passed on.
    name: String,
    /// As it was bound.
    pub address: Address,
    /// One for each worker if the kernel spreads connections over them, else one that all share.
    sockets: Vec<Socket>,
    /// The file of a Unix socket that is this process's to remove.
    file: Option<PathBuf>,
    /// One that will be when this process serves; until then it is that of the process which hands over, and may go on.
    file_to_come: Option<PathBuf>,
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
pub struct Inheritance(HashMap<String, Vec<Socket>>);

/// What sockets are called that come from a service manager, whatever it calls them.
const ACTIVATED: &str = "activated";

impl Inheritance {
    pub fn new(inherited: Vec<Inherited>, is_known: impl Fn(&str) -> bool) -> Inheritance {
        let mut by_name = HashMap::<String, Vec<Socket>>::new();
        for Inherited { name, socket } in inherited {
            let name = name.filter(|name| is_known(name)).unwrap_or_else(|| ACTIVATED.to_owned());
            by_name.entry(name).or_default().push(socket);
        }
        Inheritance(by_name)
    }

    pub fn take(&mut self, name: &str) -> Vec<Socket> {
        self.0.remove(name).unwrap_or_default()
    }

    /// Sockets from a service manager, each a place by itself.
    pub fn activated(&mut self) -> Result<Vec<Place>, CannotListen> {
        let places = self.take(ACTIVATED).into_iter().enumerate();
        places.map(|(number, socket)| Place::inherited(format!("{ACTIVATED}.{number}"), vec![socket])).collect()
    }
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

    fn inherited(name: String, sockets: Vec<Socket>) -> Result<Place, CannotListen> {
        let address = sockets.first().map_or(Ok(Address::Unnamed), Socket::local_address);
        let address = address.map_err(|error| CannotListen { address: Address::Unnamed, error })?;
        // The file of one that a service manager has opened stays; that of one that was handed over is ours now.
        let file_to_come = match &address {
            Address::Unix(path) if !name.starts_with(ACTIVATED) => Some(path.clone()),
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
            let file = if let Address::Unix(path) = &address { Some(path.clone()) } else { None };
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
        if let Some(path) = self.file_to_come.take() {
            self.file = Some(path);
        }
    }

    /// Its sockets, to be passed on.
    pub fn to_pass_on(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.sockets.iter().filter_map(|socket| Some((self.name.as_str(), socket.as_fd()?)))
    }

    /// Nothing more is accepted by this process, and the file stays if it is somebody else's now.
    pub fn close(&mut self, handed_over: bool) {
        self.sockets.clear();
        if let Some(path) = self.file.take().filter(|_| !handed_over)
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "could not remove the file of a Unix socket");
        }
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
