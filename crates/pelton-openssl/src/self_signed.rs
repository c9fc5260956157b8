//! A certificate for servers that have none. Nobody can verify it. It is made when it is first needed, so that no two processes
//! share its key.

use std::sync::Mutex;

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::x509::{X509, X509Name};

const RSA_BITS: u32 = 2048;
const VALID_DAYS: u32 = 3650;

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: X509,
    pub(crate) key: PKey<Private>,
}

/// The algorithm of the key. Making one for RSA takes a tenth of a second, so that is done only where the ciphers need it.
#[derive(Clone, Copy)]
pub(crate) enum Algorithm {
    Ecdsa,
    Rsa,
}

static MADE: Mutex<[Option<Identity>; 2]> = Mutex::new([None, None]);

/// Returns the certificate of this process.
pub(crate) fn identity(algorithm: Algorithm) -> Result<Identity, ErrorStack> {
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let place = &mut made[algorithm as usize];
    if let Some(identity) = place {
        return Ok(identity.clone());
    }
    let identity = make(algorithm)?;
    *place = Some(identity.clone());
    Ok(identity)
}

fn make(algorithm: Algorithm) -> Result<Identity, ErrorStack> {
    let key = match algorithm {
        Algorithm::Ecdsa => {
            let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
            PKey::from_ec_key(EcKey::generate(&group)?)?
        }
        Algorithm::Rsa => PKey::from_rsa(Rsa::generate(RSA_BITS)?)?,
    };
    let mut name = X509Name::builder()?;
    name.append_entry_by_nid(Nid::COMMONNAME, "localhost")?;
    let name = name.build();
    let mut builder = X509::builder()?;
    builder.set_version(2)?;
    let mut serial = BigNum::new()?;
    serial.rand(127, openssl::bn::MsbOption::MAYBE_ZERO, false)?;
    let serial = serial.to_asn1_integer()?;
    builder.set_serial_number(&serial)?;
    builder.set_subject_name(&name)?;
    builder.set_issuer_name(&name)?;
    let (begin, end) = (Asn1Time::days_from_now(0)?, Asn1Time::days_from_now(VALID_DAYS)?);
    builder.set_not_before(&begin)?;
    builder.set_not_after(&end)?;
    builder.set_pubkey(&key)?;
    builder.sign(&key, MessageDigest::sha256())?;
    Ok(Identity { certificate: builder.build(), key })
}
