//! TLS, with the OpenSSL that Ruby itself uses.

use std::path::PathBuf;
use std::rc::Rc;

use magnus::{Error, RString, Ruby};
use pelton::{Io, Reactor};
use pelton_openssl::openssl::x509::X509Ref;
use pelton_openssl::{Config, ConfigError, Roots, Tls, Version};

use crate::access::{act, ask};
use crate::errors;
use crate::machine::{self, Machine, Source, Standing};

/// The bits of EventMachine for versions.
const VERSIONS: [(i32, Version); 4] =
    [(8, Version::Tls10), (16, Version::Tls11), (32, Version::Tls12), (64, Version::Tls13)];

/// What `start_tls` was given. Empty texts mean that something was not given.
#[derive(Default)]
pub(crate) struct Settings {
    key_file: String,
    key: String,
    passphrase: String,
    certificate_file: String,
    certificate: String,
    asks_program: bool,
    requires_certificate: bool,
    server_name: String,
    ciphers: String,
    curve: String,
    dh_params: String,
    versions: i32,
    /// The file with the roots to verify against, or `system`.
    roots: String,
    /// The name that the certificate has to be valid for.
    verified_name: String,
}

/// How far a connection is with TLS.
pub(crate) enum Progress {
    /// The settings are known.
    Set(Box<Settings>),
    /// The connection is not established yet. Bytes that were sent after TLS was asked for wait.
    Waits(Box<Tls>, Vec<u8>),
    Started,
}

/// `set_tls_parms`: the settings of the connection's TLS, before `start_tls`.
#[allow(clippy::too_many_arguments, reason = "it is the interface of EventMachine's library")]
pub(crate) fn set_tls_parms(
    sig: u64,
    key_file: String,
    key: String,
    passphrase: String,
    certificate_file: String,
    certificate: String,
    asks_program: bool,
    requires_certificate: bool,
    server_name: String,
    ciphers: String,
    curve: String,
    dh_params: String,
    versions: i32,
) -> Result<(), Error> {
    let settings = Settings {
        key_file,
        key,
        passphrase,
        certificate_file,
        certificate,
        asks_program,
        requires_certificate,
        server_name,
        ciphers,
        curve,
        dh_params,
        versions,
        ..Settings::default()
    };
    ask("set_tls_parms", move |machine, _| machine.set_tls(sig, settings))?.map_err(errors::runtime)
}

/// `set_tls_trust`: verifies the peer against these roots (a file, or `system`), and its name if there is one. Called between
/// `set_tls_parms` and `start_tls`.
pub(crate) fn set_tls_trust(sig: u64, roots: String, name: String) -> Result<(), Error> {
    act("set_tls_trust", move |machine, _| {
        if let Some(Progress::Set(settings)) = machine.tls.borrow_mut().get_mut(&sig) {
            settings.roots = roots;
            settings.verified_name = name;
        }
    })
}

/// `start_tls`
pub(crate) fn start_tls(sig: u64) -> Result<(), Error> {
    let started = ask("start_tls", move |machine, reactor| machine.start_tls(reactor, sig))?;
    started.map_err(|error| match error {
        Refused::Config(ConfigError::PrivateKey(text)) => errors::of_module("InvalidPrivateKey", text),
        Refused::Config(ConfigError::Certificate(text)) => errors::of_module("InvalidCertificate", text),
        Refused::Config(error) => errors::runtime(format!("start_tls: {error}")),
        Refused::Otherwise(text) => errors::runtime(format!("start_tls: {text}")),
    })
}

/// Why TLS cannot be started.
enum Refused {
    Config(ConfigError),
    Otherwise(&'static str),
}

impl Settings {
    fn layer(self, sig: u64, standing: Standing) -> Result<Tls, ConfigError> {
        let of = |text: String| Some(text).filter(|text| !text.is_empty());
        let is_server = standing == Standing::Accepted;
        // As in EventMachine, the end of the connection is the end of the stream.
        let mut builder = if is_server { Config::server() } else { Config::client() }.tolerate_truncation();
        if let Some(path) = of(self.certificate_file) {
            builder = builder.certificate_file(path);
        } else if let Some(pem) = of(self.certificate) {
            builder = builder.certificate(pem);
        }
        if let Some(path) = of(self.key_file) {
            builder = builder.key_file(path);
        } else if let Some(pem) = of(self.key) {
            builder = builder.key(pem);
        }
        if let Some(passphrase) = of(self.passphrase) {
            builder = builder.passphrase(passphrase);
        }
        if let Some(list) = of(self.ciphers) {
            builder = builder.ciphers(list);
        }
        if let Some(curve) = of(self.curve) {
            builder = builder.groups(curve);
        }
        if let Some(path) = of(self.dh_params) {
            builder = builder.dh_params_file(path);
        }
        if self.versions != 0 {
            let wanted = VERSIONS.iter().filter(|(bit, _)| self.versions & bit != 0).map(|(_, version)| *version);
            builder = builder.versions(wanted);
        }
        match of(self.roots).as_deref() {
            Some("system") => builder = builder.roots(Roots::System),
            Some(path) => builder = builder.roots(Roots::File(PathBuf::from(path))),
            None => {}
        }
        if self.asks_program {
            builder = builder.check_certificates(move |reactor, certificate| check(reactor, sig, certificate));
        }
        if self.requires_certificate {
            builder = builder.require_certificate();
        }
        let config = builder.build()?;
        match of(self.verified_name).or_else(|| of(self.server_name)) {
            Some(name) if !is_server => config.layer_to(&name),
            _ => config.layer(),
        }
    }
}

/// Asks the program about a certificate, in the middle of a handshake.
fn check(reactor: &mut Reactor, sig: u64, certificate: &X509Ref) -> bool {
    let (Some(machine), Ok(pem)) = (machine::current(), certificate.to_pem()) else { return false };
    machine.accepts_certificate(reactor, sig, &pem)
}

impl Machine {
    fn set_tls(&self, sig: u64, settings: Settings) -> Result<(), &'static str> {
        let mut tls = self.tls.borrow_mut();
        if matches!(tls.get(&sig), Some(Progress::Waits(..) | Progress::Started)) {
            return Err("start_tls: TLS is already running on this connection");
        }
        if let Some(Source::Connection(_)) = self.source(sig) {
            tls.insert(sig, Progress::Set(Box::new(settings)));
        }
        Ok(())
    }

    fn start_tls(&self, reactor: &mut Reactor, sig: u64) -> Result<(), Refused> {
        let (id, standing) = match self.entries.borrow().get(&sig) {
            Some(entry) => match entry.source {
                Source::Connection(id) => (id, entry.standing),
                Source::Over(_) => return Ok(()),
                _ => return Err(Refused::Otherwise("only connections have TLS")),
            },
            // It has ended.
            None => return Ok(()),
        };
        let settings = match self.tls.borrow_mut().insert(sig, Progress::Started) {
            Some(Progress::Set(settings)) => *settings,
            None => Settings::default(),
            Some(running) => {
                self.tls.borrow_mut().insert(sig, running);
                return Err(Refused::Otherwise("TLS is already running on this connection"));
            }
        };
        let layer = match settings.layer(sig, standing) {
            Ok(layer) => layer,
            Err(error) => {
                self.tls.borrow_mut().remove(&sig);
                return Err(Refused::Config(error));
            }
        };
        if standing == Standing::Opening {
            self.tls.borrow_mut().insert(sig, Progress::Waits(Box::new(layer), Vec::new()));
        } else if let Some(mut io) = reactor.connection(id) {
            io.push_layer(layer);
        }
        Ok(())
    }

    /// Begins TLS that was asked for before the connection was established.
    pub(crate) fn start_waiting_tls(&self, io: &mut Io<'_>, sig: u64) {
        if self.tls.borrow().is_empty() || !matches!(self.tls.borrow().get(&sig), Some(Progress::Waits(..))) {
            return;
        }
        if let Some(Progress::Waits(layer, unsent)) = self.tls.borrow_mut().insert(sig, Progress::Started) {
            io.push_layer(*layer);
            // Sends are unbounded here, and the connection was established just now.
            let _ = io.send(&unsent);
        }
    }

    /// Keeps bytes that have to be encrypted once the connection is established. Returns whether they have to.
    #[inline]
    pub(crate) fn sends_after_tls(&self, sig: u64, bytes: &[u8]) -> bool {
        match self.tls.borrow_mut().get_mut(&sig) {
            Some(Progress::Waits(_, unsent)) => {
                unsent.extend_from_slice(bytes);
                true
            }
            _ => false,
        }
    }

    /// Returns how many bytes wait for TLS.
    pub(crate) fn waiting_for_tls(&self, sig: u64) -> usize {
        match self.tls.borrow().get(&sig) {
            Some(Progress::Waits(_, unsent)) => unsent.len(),
            _ => 0,
        }
    }
}

/// Asks the TLS of a connection something.
fn visit<T: Send + 'static>(
    function: &'static str,
    sig: u64,
    question: impl FnOnce(&mut Tls) -> Option<T> + Send + 'static,
) -> Result<Option<T>, Error> {
    ask(function, move |machine: &Rc<Machine>, reactor| match machine.source(sig) {
        Some(Source::Connection(id)) => reactor.connection(id)?.visit_layer(question).flatten(),
        _ => None,
    })
}

/// `get_peer_cert`: the certificate of the peer as PEM.
pub(crate) fn get_peer_cert(ruby: &Ruby, sig: u64) -> Result<Option<RString>, Error> {
    let pem = visit("get_peer_cert", sig, |tls| tls.peer_certificate()?.to_pem().ok())?;
    Ok(pem.map(|pem| ruby.str_from_slice(&pem)))
}

/// `get_cipher_bits`
pub(crate) fn get_cipher_bits(sig: u64) -> Result<Option<i32>, Error> {
    visit("get_cipher_bits", sig, |tls| tls.cipher_bits())
}

/// `get_cipher_name`
pub(crate) fn get_cipher_name(sig: u64) -> Result<Option<String>, Error> {
    visit("get_cipher_name", sig, |tls| tls.cipher_name().map(str::to_owned))
}

/// `get_cipher_protocol`
pub(crate) fn get_cipher_protocol(sig: u64) -> Result<Option<String>, Error> {
    visit("get_cipher_protocol", sig, |tls| tls.protocol().map(str::to_owned))
}

/// `get_sni_hostname`
pub(crate) fn get_sni_hostname(sig: u64) -> Result<Option<String>, Error> {
    visit("get_sni_hostname", sig, |tls| tls.server_name().map(str::to_owned))
}

/// `get_tls_error`: in `unbind`, why TLS has ended the connection.
pub(crate) fn get_tls_error(sig: u64) -> Result<Option<String>, Error> {
    ask("get_tls_error", move |machine, _| {
        let error = machine.tls_error.borrow();
        error.as_ref().filter(|(of, _)| *of == sig).map(|(_, text)| text.clone())
    })
}
