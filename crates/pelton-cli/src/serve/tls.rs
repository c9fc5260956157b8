//! TLS of `pelton serve`: its options, its certificates, and how both outlive changes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pelton::{Address, Lane, Reactor};
use pelton_tls::{Certificate, ClientCertificates, ConfigError, Identity, MinVersion, Server};
use rcgen::{CertificateParams, DnType, KeyPair};

/// How often files are looked at for changes that the system does not report.
const LOOK: Duration = Duration::from_secs(60);

/// Browsers forget the rule after at most this many seconds: 10 years.
const MOST_HSTS: i64 = 10 * 365 * 24 * 60 * 60;

#[derive(Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsOptions {
    /// Certificate with its chain, as PEM; with it, all addresses of --listen speak HTTPS. May be repeated, each with its
    /// --tls-key; clients choose by name, and the first is for the others. SIGHUP reloads it, and so does a change of the file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Vec<PathBuf>,

    /// Private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Vec<PathBuf>,

    /// Directory of certificates and keys: NAME.crt or NAME.pem with NAME.key, or NAME/fullchain.pem with NAME/privkey.pem
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,

    /// Makes a certificate for localhost that nobody trusts, for development, and prints its fingerprint
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_dir"])]
    tls_self_signed: bool,

    /// Accepts only clients with a certificate of one of the authorities in this file, as PEM
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// Rejects clients whose certificate is in this revocation list, as PEM. May be repeated
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    tls_client_crl: Vec<PathBuf>,

    /// Whether clients have to present a certificate of --tls-client-ca
    #[arg(long, value_name = "WHICH", default_value = "required", requires = "tls_client_ca")]
    tls_client_cert: WhichClients,

    /// Response of the certificate's authority that it is not revoked (OCSP), as DER, which is sent along. May be repeated, for the
    /// first --tls-cert, the second, and so on; the file is reloaded like the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ocsp: Vec<PathBuf>,

    /// The address of --admin speaks HTTPS too
    #[arg(long, requires = "admin")]
    pub admin_tls: bool,

    /// Lowest version of TLS
    #[arg(long, value_name = "VERSION", default_value = "1.2")]
    tls_min_version: Version,

    /// Tells browsers to use only HTTPS for this host, for this many seconds (Strict-Transport-Security)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=MOST_HSTS))]
    pub hsts: Option<u32>,

    /// Also listens at this address without TLS, and redirects every request to https://
    #[arg(long, value_name = "ADDRESS")]
    pub redirect_http: Option<Address>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum WhichClients {
    /// Only clients with a valid certificate
    Required,
    /// Also clients without one
    Optional,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Version {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

impl TlsOptions {
    pub fn is_on(&self) -> bool {
        !self.tls_cert.is_empty() || self.tls_dir.is_some() || self.tls_self_signed
    }

    /// Checks the options for contradictions.
    pub fn check(&self) -> Result<(), String> {
        if self.tls_cert.len() != self.tls_key.len() {
            return Err(format!(
                "each --tls-cert needs its --tls-key; there are {} and {}",
                self.tls_cert.len(),
                self.tls_key.len()
            ));
        }
        if self.tls_ocsp.len() > self.tls_cert.len() {
            return Err("there are more --tls-ocsp than --tls-cert".to_owned());
        }
        let others = [
            ("--hsts", self.hsts.is_some()),
            ("--redirect-http", self.redirect_http.is_some()),
            ("--tls-client-ca", self.tls_client_ca.is_some()),
            ("--admin-tls", self.admin_tls),
        ];
        match others.iter().find(|(_, given)| *given && !self.is_on()) {
            Some((name, _)) => Err(format!("{name} needs a certificate: --tls-cert, --tls-dir or --tls-self-signed")),
            None => Ok(()),
        }
    }

    /// Reads the certificates. Returns `None` without TLS.
    pub fn server(&self) -> Result<Option<Server>, ConfigError> {
        if !self.is_on() {
            return Ok(None);
        }
        let min_version = match self.tls_min_version {
            Version::Tls12 => MinVersion::Tls12,
            Version::Tls13 => MinVersion::Tls13,
        };
        let mut builder = Server::builder().alpn("http/1.1").min_version(min_version);
        for (number, (chain, key)) in self.tls_cert.iter().zip(&self.tls_key).enumerate() {
            let identity = Identity::new(chain, key);
            builder = builder.identity(match self.tls_ocsp.get(number) {
                Some(response) => identity.ocsp(response),
                None => identity,
            });
        }
        if let Some(directory) = &self.tls_dir {
            builder = builder.directory(directory);
        }
        if self.tls_self_signed {
            let (chain, key) = self_signed().map_err(|error| ConfigError::Unusable {
                what: "make a self-signed certificate".to_owned(),
                problem: error.to_string(),
            })?;
            builder = builder.certificate(chain.into_bytes(), key.into_bytes());
        }
        if let Some(authorities) = &self.tls_client_ca {
            let which = match self.tls_client_cert {
                WhichClients::Required => ClientCertificates::Required,
                WhichClients::Optional => ClientCertificates::Optional,
            };
            builder = builder.client_certificates(authorities, which);
        }
        for list in &self.tls_client_crl {
            builder = builder.revocation_list(list);
        }
        // HTTP says where a request ends. Many clients close without a closing message.
        let server = builder.tolerate_truncation().build()?;
        warn_about_expiry(&server.certificates());
        Ok(Some(server))
    }

    /// Returns the line to print about a certificate that was made.
    pub fn fingerprint(&self, server: Option<&Server>) -> Option<String> {
        let certificates = server.filter(|_| self.tls_self_signed)?.certificates();
        let fingerprint = certificates.first()?.fingerprint;
        Some(format!("self-signed certificate with the SHA-256 fingerprint {fingerprint}\n"))
    }
}

fn self_signed() -> Result<(String, String), rcgen::Error> {
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "pelton serve --tls-self-signed");
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Certificates are usually renewed a month before they expire.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

fn warn_about_expiry(certificates: &[Certificate]) {
    for certificate in certificates {
        let (names, left) = (certificate.names.join(", "), certificate.time_left());
        match left.as_secs() / (24 * 60 * 60) {
            _ if left > SOON => {}
            0 if left.is_zero() => tracing::warn!(names, "a certificate has expired"),
            days => tracing::warn!(names, days, "a certificate expires soon"),
        }
    }
}

fn report(server: &Server, outcome: Result<(), ConfigError>) {
    match outcome {
        Ok(()) => {
            tracing::info!("certificates reloaded");
            warn_about_expiry(&server.certificates());
        }
        Err(error) => tracing::error!(%error, "certificates were not reloaded; the old ones stay in use"),
    }
}

/// Reloads the certificates when a file changes.
pub fn watch(reactor: &mut Reactor, server: &Server) {
    let reloaded = server.clone();
    server.watch(reactor, LOOK, move |_, outcome| report(&reloaded, outcome));
}

/// Reloads the certificates now.
pub fn reload(reactor: &mut Reactor, server: &Server) {
    let (loading, reloaded) = (server.clone(), server.clone());
    let deferred = reactor.defer(
        Lane::Files,
        move || loading.reload(),
        move |_, outcome| {
            if let Ok(outcome) = outcome {
                report(&reloaded, outcome);
            }
        },
    );
    if deferred.is_err() {
        tracing::error!("certificates were not reloaded; the old ones stay in use");
    }
}
