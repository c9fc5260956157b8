//! What connections of one kind have in common.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openssl::dh::Dh;
use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslStream, SslVerifyMode,
};
use openssl::x509::{X509, X509Ref, X509VerifyResult};
use pelton::Reactor;

use crate::error::text;
use crate::pipe::Pipe;
use crate::self_signed::{self, Algorithm};
use crate::verify::{Check, Checks};
use crate::{ConfigError, Tls};

/// Ciphers up to TLS 1.2 that are used unless a program says otherwise: the strong ones, with authentication.
const DEFAULT_CIPHERS: &str = "ALL:!aNULL:!eNULL:!LOW:!EXP:!DES-CBC3-SHA:@STRENGTH";

/// Sessions that servers resume belong to this name.
const SESSION_CONTEXT: &[u8] = b"pelton";

/// A version of TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// TLS 1.0. Most builds of OpenSSL refuse it.
    Tls10,
    /// TLS 1.1. Most builds of OpenSSL refuse it.
    Tls11,
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    const ALL: [Version; 4] = [Version::Tls10, Version::Tls11, Version::Tls12, Version::Tls13];

    /// The option that forbids it.
    fn forbidden(self) -> SslOptions {
        match self {
            Version::Tls10 => SslOptions::NO_TLSV1,
            Version::Tls11 => SslOptions::NO_TLSV1_1,
            Version::Tls12 => SslOptions::NO_TLSV1_2,
            Version::Tls13 => SslOptions::NO_TLSV1_3,
        }
    }
}

/// The certificates of the authorities that are trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Roots {
    /// Those of the system.
    System,
    /// Those in this file, as PEM.
    File(PathBuf),
    /// These, as PEM.
    Pem(Vec<u8>),
}

/// Which side of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

/// Where something in the PEM format comes from.
enum Pem {
    File(PathBuf),
    Given(Vec<u8>),
}

impl Pem {
    fn read(self) -> Result<Vec<u8>, String> {
        match self {
            Pem::File(path) => fs::read(&path).map_err(|error| format!("{}: {error}", path.display())),
            Pem::Given(bytes) => Ok(bytes),
        }
    }
}

/// Makes a [`Config`].
pub struct Builder {
    side: Side,
    certificate: Option<Pem>,
    key: Option<Pem>,
    passphrase: Option<Vec<u8>>,
    ciphers: Option<String>,
    groups: Option<String>,
    dh_params: Option<PathBuf>,
    versions: Vec<Version>,
    roots: Option<Roots>,
    check: Option<Check>,
    requires_certificate: bool,
    tolerates_truncation: bool,
}

impl Builder {
    fn new(side: Side) -> Builder {
        Builder {
            side,
            certificate: None,
            key: None,
            passphrase: None,
            ciphers: None,
            groups: None,
            dh_params: None,
            versions: Version::ALL.to_vec(),
            roots: None,
            check: None,
            requires_certificate: false,
            tolerates_truncation: false,
        }
    }

    /// Reads the certificate of this side, followed by those of its issuers, from a PEM file.
    pub fn certificate_file(mut self, path: impl AsRef<Path>) -> Builder {
        self.certificate = Some(Pem::File(path.as_ref().into()));
        self
    }

    /// Sets the certificate of this side, followed by those of its issuers, as PEM.
    pub fn certificate(mut self, pem: impl Into<Vec<u8>>) -> Builder {
        self.certificate = Some(Pem::Given(pem.into()));
        self
    }

    /// Reads the private key from a PEM file.
    pub fn key_file(mut self, path: impl AsRef<Path>) -> Builder {
        self.key = Some(Pem::File(path.as_ref().into()));
        self
    }

    /// Sets the private key, as PEM.
    pub fn key(mut self, pem: impl Into<Vec<u8>>) -> Builder {
        self.key = Some(Pem::Given(pem.into()));
        self
    }

    /// Sets the passphrase of an encrypted private key.
    pub fn passphrase(mut self, passphrase: impl Into<Vec<u8>>) -> Builder {
        self.passphrase = Some(passphrase.into());
        self
    }

    /// Sets the ciphers of versions up to 1.2, in OpenSSL's syntax.
    pub fn ciphers(mut self, list: impl Into<String>) -> Builder {
        self.ciphers = Some(list.into());
        self
    }

    /// Sets the groups of elliptic curves for the exchange of keys, separated by colons.
    pub fn groups(mut self, list: impl Into<String>) -> Builder {
        self.groups = Some(list.into());
        self
    }

    /// Reads the parameters of Diffie-Hellman from a PEM file. Without them, a server does not offer that exchange for versions
    /// up to 1.2.
    pub fn dh_params_file(mut self, path: impl AsRef<Path>) -> Builder {
        self.dh_params = Some(path.as_ref().into());
        self
    }

    /// Allows only these versions. By default all that OpenSSL allows are allowed.
    pub fn versions(mut self, versions: impl IntoIterator<Item = Version>) -> Builder {
        self.versions = versions.into_iter().collect();
        self
    }

    /// Verifies the peer's certificate against these roots. A client also verifies that it is for the name that
    /// [`Config::layer_to`] gets. Without roots, nothing is verified.
    pub fn roots(mut self, roots: Roots) -> Builder {
        self.roots = Some(roots);
        self
    }

    /// Calls `check` for each certificate of the peer's chain, from the issuer down, in the middle of the handshake. If it
    /// returns false, the handshake fails. The reactor's code must not be left by anything but a return or a panic.
    ///
    /// Without [`roots`](Builder::roots), this is all that decides.
    pub fn check_certificates(
        mut self,
        check: impl Fn(&mut Reactor, &X509Ref) -> bool + Send + Sync + 'static,
    ) -> Builder {
        self.check = Some(Arc::new(check));
        self
    }

    /// Refuses clients without a certificate, if certificates are verified or checked.
    pub fn require_certificate(mut self) -> Builder {
        self.requires_certificate = true;
        self
    }

    /// Treats the end of the connection as the end of the stream even if the peer has not sent a closing message. Use this for
    /// protocols that tell the end of their messages themselves.
    pub fn tolerate_truncation(mut self) -> Builder {
        self.tolerates_truncation = true;
        self
    }

    /// Reads all files, and makes the configuration.
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut context = SslContextBuilder::new(SslMethod::tls())?;
        context.set_mode(SslMode::RELEASE_BUFFERS | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
        context.set_session_cache_mode(SslSessionCacheMode::OFF);
        context.set_session_id_context(SESSION_CONTEXT)?;
        let mut options = SslOptions::NO_SSLV2 | SslOptions::NO_SSLV3 | SslOptions::NO_RENEGOTIATION;
        options |= SslOptions::NO_COMPRESSION;
        for version in Version::ALL.iter().filter(|version| !self.versions.contains(version)) {
            options |= version.forbidden();
        }
        context.set_options(options);
        context.set_min_proto_version(None)?;
        let ciphers = without_zero("list of ciphers", self.ciphers.as_deref().unwrap_or(DEFAULT_CIPHERS))?;
        context.set_cipher_list(ciphers).map_err(|error| setting("list of ciphers", &error))?;
        if let Some(groups) = &self.groups {
            let groups = without_zero("group", groups)?;
            context.set_groups_list(groups).map_err(|error| setting("group", &error))?;
        }
        if let Some(path) = &self.dh_params {
            set_dh_params(&mut context, path)?;
        }
        let verifies = self.roots.is_some();
        if let Some(roots) = self.roots {
            set_roots(&mut context, roots)?;
        }
        match (self.certificate, self.key) {
            (Some(certificate), key) => set_identity(&mut context, certificate, key, self.passphrase.as_deref())?,
            (None, Some(_)) => return Err(ConfigError::PrivateKey("it has no certificate".to_owned())),
            (None, None) if self.side == Side::Server => set_self_signed(&mut context, self.ciphers.is_some())?,
            (None, None) => {}
        }
        Ok(Config {
            context: context.build(),
            side: self.side,
            check: self.check,
            verifies,
            requires_certificate: self.requires_certificate,
            tolerates_truncation: self.tolerates_truncation,
        })
    }
}

fn setting(what: &'static str, error: &ErrorStack) -> ConfigError {
    ConfigError::Setting { what, reason: text(error) }
}

/// Refuses a text that a C string cannot hold.
fn without_zero<'a>(what: &'static str, text: &'a str) -> Result<&'a str, ConfigError> {
    match text.contains('\0') {
        true => Err(ConfigError::Setting { what, reason: "it contains a zero byte".to_owned() }),
        false => Ok(text),
    }
}

fn set_dh_params(context: &mut SslContextBuilder, path: &Path) -> Result<(), ConfigError> {
    const WHAT: &str = "Diffie-Hellman parameters";
    let pem = fs::read(path)
        .map_err(|error| ConfigError::Setting { what: WHAT, reason: format!("{}: {error}", path.display()) })?;
    Dh::params_from_pem(&pem).and_then(|params| context.set_tmp_dh(&params)).map_err(|error| setting(WHAT, &error))
}

fn set_roots(context: &mut SslContextBuilder, roots: Roots) -> Result<(), ConfigError> {
    let failed = |error: ErrorStack| ConfigError::Roots(text(&error));
    let pem = match roots {
        Roots::System => return context.set_default_verify_paths().map_err(failed),
        Roots::File(path) => Pem::File(path).read().map_err(ConfigError::Roots)?,
        Roots::Pem(pem) => pem,
    };
    let certificates = X509::stack_from_pem(&pem).map_err(failed)?;
    if certificates.is_empty() {
        return Err(ConfigError::Roots("there is none".to_owned()));
    }
    for certificate in certificates {
        context.cert_store_mut().add_cert(certificate).map_err(failed)?;
    }
    Ok(())
}

fn set_identity(
    context: &mut SslContextBuilder,
    certificate: Pem,
    key: Option<Pem>,
    passphrase: Option<&[u8]>,
) -> Result<(), ConfigError> {
    let pem = certificate.read().map_err(ConfigError::Certificate)?;
    let failed = |error: ErrorStack| ConfigError::Certificate(text(&error));
    let mut chain = X509::stack_from_pem(&pem).map_err(failed)?.into_iter();
    let first = chain.next().ok_or_else(|| ConfigError::Certificate("there is none".to_owned()))?;
    context.set_certificate(&first).map_err(failed)?;
    for issuer in chain {
        context.add_extra_chain_cert(issuer).map_err(failed)?;
    }
    // The key may be in the same file.
    let pem = match key {
        Some(key) => key.read().map_err(ConfigError::PrivateKey)?,
        None => pem,
    };
    let failed = |error: ErrorStack| ConfigError::PrivateKey(text(&error));
    // Without a passphrase OpenSSL would ask for one on the terminal.
    let key = PKey::private_key_from_pem_callback(&pem, |buffer| {
        let passphrase = passphrase.unwrap_or_default();
        if passphrase.len() > buffer.len() {
            return Ok(0);
        }
        buffer[..passphrase.len()].copy_from_slice(passphrase);
        Ok(passphrase.len())
    });
    context.set_private_key(&*key.map_err(failed)?).map_err(failed)?;
    context.check_private_key().map_err(failed)
}

/// Gives a server a certificate of its own. With ECDSA all current clients are content; ciphers that a program has chosen may
/// need RSA.
fn set_self_signed(context: &mut SslContextBuilder, with_rsa: bool) -> Result<(), ConfigError> {
    let algorithms: &[Algorithm] = if with_rsa { &[Algorithm::Rsa, Algorithm::Ecdsa] } else { &[Algorithm::Ecdsa] };
    for algorithm in algorithms {
        let identity = self_signed::identity(*algorithm)?;
        context.set_certificate(&identity.certificate)?;
        context.set_private_key(&*identity.key)?;
    }
    Ok(())
}

/// A configuration for many connections. Cloning it is cheap.
///
/// ```
/// use pelton::{Chunk, Connection, Io, Layered, Reactor};
/// use pelton_openssl::Config;
///
/// struct Echo;
///
/// impl Connection for Echo {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         io.send_chunk(chunk).ok();
///     }
/// }
///
/// // Without a certificate it makes one, which nobody can verify.
/// let tls = Config::server().ciphers("ECDHE+AESGCM").build()?;
/// let mut reactor = Reactor::new()?;
/// reactor.listen("127.0.0.1:0", move |_| {
///     let layer = tls.layer();
///     Layered::new(Echo, |io| match layer {
///         Ok(layer) => io.push_layer(layer),
///         Err(_) => io.close(),
///     })
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Config {
    context: SslContext,
    side: Side,
    check: Option<Check>,
    verifies: bool,
    requires_certificate: bool,
    tolerates_truncation: bool,
}

impl Config {
    /// Begins a configuration for servers. Without a certificate, they use a self-signed one that is made for this process.
    pub fn server() -> Builder {
        Builder::new(Side::Server)
    }

    /// Begins a configuration for clients.
    pub fn client() -> Builder {
        Builder::new(Side::Client)
    }

    /// Makes the layer of a connection.
    pub fn layer(&self) -> Result<Tls, ConfigError> {
        self.layer_with(None)
    }

    /// Makes the layer of a client's connection to a name or an address. The server is told the name. If the configuration has
    /// [roots](Builder::roots), the server's certificate has to be valid for it.
    pub fn layer_to(&self, name: &str) -> Result<Tls, ConfigError> {
        self.layer_with(Some(name))
    }

    fn layer_with(&self, name: Option<&str>) -> Result<Tls, ConfigError> {
        let mut ssl = Ssl::new(&self.context)?;
        match self.side {
            Side::Client => ssl.set_connect_state(),
            Side::Server => ssl.set_accept_state(),
        }
        if let Some(name) = name {
            let name = without_zero("name of the server", name)?;
            let address = name.parse::<IpAddr>().ok();
            if address.is_none() {
                ssl.set_hostname(name).map_err(|error| setting("name of the server", &error))?;
            }
            if self.verifies {
                let expected = match address {
                    Some(address) => ssl.param_mut().set_ip(address),
                    None => ssl.param_mut().set_host(name),
                };
                expected.map_err(|error| setting("name of the server", &error))?;
            }
        }
        let checks = Arc::new(Checks::new(self.check.clone(), self.verifies));
        if self.verifies || self.check.is_some() {
            let mut mode = SslVerifyMode::PEER;
            if self.requires_certificate {
                mode |= SslVerifyMode::FAIL_IF_NO_PEER_CERT;
            }
            let asked = Arc::clone(&checks);
            ssl.set_verify_callback(mode, move |verified, context| {
                let accepted = asked.accepts(verified, context);
                if accepted && !verified {
                    context.set_error(X509VerifyResult::OK);
                }
                accepted
            });
        }
        Ok(Tls::new(SslStream::new(ssl, Pipe::default())?, checks, self.tolerates_truncation))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("side", &self.side).field("verifies", &self.verifies).finish_non_exhaustive()
    }
}
