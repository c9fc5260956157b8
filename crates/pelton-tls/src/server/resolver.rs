//! Chooses the certificate of a server by the name that the client asks for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

thread_local! {
    /// The name in the client hello that rustls is processing on this thread. Its unbuffered connections do not tell it
    /// otherwise.
    static NAME: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// Takes the name that the client has asked for in the hello that was just processed.
pub(crate) fn take_server_name() -> Option<Box<str>> {
    NAME.take()
}

/// Notes the requested name, and leaves the choice to another resolver.
#[derive(Debug)]
pub(crate) struct Noting(pub(crate) Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for Noting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        NAME.set(hello.server_name().map(|name| name.to_ascii_lowercase().into()));
        self.0.resolve(hello)
    }
}

/// The certificates of a server by name. There may be several for a name, with different kinds of keys.
#[derive(Default)]
pub(crate) struct ByName {
    /// In the order in which they were added. The first is for clients that name nothing, or something unknown.
    all: Vec<Arc<CertifiedKey>>,
    names: HashMap<Box<str>, Vec<usize>>,
}

impl ByName {
    pub(crate) fn add(&mut self, key: Arc<CertifiedKey>, names: &[String]) {
        let index = self.all.len();
        self.all.push(key);
        for name in names {
            let of_name = self.names.entry(name.to_ascii_lowercase().into()).or_default();
            if !of_name.contains(&index) {
                of_name.push(index);
            }
        }
    }

    /// Returns the certificates for a name: those with the name itself before those with a wildcard.
    fn with_name(&self, name: &str) -> &[usize] {
        let wildcard = || {
            let (_, domain) = name.split_once('.')?;
            self.names.get(format!("*.{domain}").as_str())
        };
        self.names.get(name).or_else(wildcard).map_or(&[], Vec::as_slice)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let named = name.as_deref().map_or(&[][..], |name| self.with_name(name));
        let of_name = named.iter().filter_map(|index| self.all.get(*index)).find(usable);
        // With a key that the client cannot use, rustls fails with the right alert.
        of_name.or_else(|| self.all.iter().find(usable)).or(self.all.first()).cloned()
    }
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByName").field("names", &self.names).finish_non_exhaustive()
    }
}
