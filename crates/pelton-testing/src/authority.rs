//! Certificates for tests.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

/// A certificate authority that exists for one test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub pem: Vec<u8>,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub chain: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
    serial: u64,
}

impl Authority {
    /// Makes an authority with this name.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pem = issuer.pem().into_bytes();
        Authority { issuer, pem }
    }

    /// Returns the authority's private key, as PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate for these names or addresses, for servers and clients.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    /// Issues a certificate that expired in 2001.
    pub fn issue_expired(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        })
    }

    fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = params(names);
        let key = KeyPair::generate().unwrap();
        // Derived from the key, so that it is unique.
        let serial = u64::from_be_bytes(*key.public_key_raw().last_chunk().unwrap()) >> 1;
        params.serial_number = Some(SerialNumber::from(serial));
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { chain: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes(), serial }
    }

    /// Makes a list that revokes these certificates, as PEM.
    pub fn revoke(&self, revoked: &[&Issued]) -> Vec<u8> {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked
                .iter()
                .map(|issued| RevokedCertParams {
                    serial_number: SerialNumber::from(issued.serial),
                    revocation_time: date_time_ymd(2020, 1, 1),
                    reason_code: None,
                    invalidity_date: None,
                })
                .collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap().into_bytes()
    }
}

impl Issued {
    /// Makes a certificate that no authority has issued.
    pub fn self_signed(names: &[&str]) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).self_signed(&key).unwrap();
        Issued { chain: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes(), serial: 0 }
    }

    /// Writes `NAME.crt` and `NAME.key` into a directory, and returns their paths.
    pub fn write_to(&self, directory: &std::path::Path, name: &str) -> (PathBuf, PathBuf) {
        let paths = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        std::fs::write(&paths.0, &self.chain).unwrap();
        std::fs::write(&paths.1, &self.key).unwrap();
        paths
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(names.iter().map(|name| name.to_string()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, names[0]);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}
