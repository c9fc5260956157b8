//! What users are told about a certificate in use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;

use crate::Pin;

/// A certificate that a server presents.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Certificate {
    /// The DNS names for which it is valid. They may begin with a wildcard: `*.example.org`.
    pub names: Vec<String>,
    /// When it expires.
    pub expires: SystemTime,
    /// The SHA-256 of the certificate.
    pub fingerprint: Pin,
    /// The SHA-256 of its public key.
    pub key: Pin,
}

impl Certificate {
    pub(super) fn parse(der: &CertificateDer<'_>) -> Option<Certificate> {
        let certificate = webpki::EndEntityCert::try_from(der).ok()?;
        Some(Certificate {
            names: certificate.valid_dns_names().map(str::to_owned).collect(),
            expires: expiry(der)?,
            fingerprint: Pin::of(der),
            key: Pin::of_key(&certificate.subject_public_key_info()),
        })
    }

    /// Returns how long it is still valid: zero if it has expired.
    pub fn time_left(&self) -> Duration {
        self.expires.duration_since(SystemTime::now()).unwrap_or_default()
    }
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const ENUMERATED: u8 = 0x0a;
const EXPLICIT_0: u8 = 0xa0;

/// Checks that this is a whole OCSP response with an answer. What the answer is, is between the authority and the client.
pub(super) fn check_ocsp(response: &[u8]) -> Result<(), String> {
    let not_one = || "this is not an OCSP response in DER".to_owned();
    let Some((SEQUENCE, fields, [])) = element(response) else { return Err(not_one()) };
    match element(fields).ok_or_else(not_one)? {
        (ENUMERATED, [0], answer) if matches!(element(answer), Some((EXPLICIT_0, _, []))) => Ok(()),
        (ENUMERATED, [status @ 1..=255], []) => {
            Err(format!("this OCSP response is an error of the authority, with the status {status}"))
        }
        _ => Err(not_one()),
    }
}

/// Splits the first element off DER. Returns its tag, its contents and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, length, rest @ ..] = der else { return None };
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((*tag, contents, rest))
}

/// Finds the end of validity in a certificate: webpki does not tell.
fn expiry(certificate: &[u8]) -> Option<SystemTime> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut fields, _) = element(certificate)? else { return None };
    if let Some((VERSION, _, rest)) = element(fields) {
        fields = rest;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, validity, _) = element(fields)? else { return None };
    let (tag, time, _) = element(element(validity)?.2)?;
    time_of(tag, time)
}

/// Parses `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time_of(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let digits: Option<Vec<u64>> =
        text.strip_suffix(b"Z")?.iter().map(|byte| char::from(*byte).to_digit(10).map(u64::from)).collect();
    let digits = digits?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year = number(year);
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (number(year), rest)
        }
        _ => return None,
    };
    let (pairs, []) = rest.as_chunks::<2>() else { return None };
    let &[month, day, hour, minute, second] = pairs else { return None };
    let [month, day, hour, minute, second] = [month, day, hour, minute, second].map(|pair| number(&pair));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn number(digits: &[u64]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + digit)
}

/// Days from 1970 to a date in the Gregorian calendar. Years begin in March here, so that leap days come last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_years = year * 365 + year / 4 - year / 100 + year / 400;
    let of_months = (month * 153 + 2) / 5;
    of_years + of_months + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocsp_responses_are_whole_and_have_an_answer() {
        let whole = [0x30, 7, 0x0a, 1, 0, 0xa0, 2, 1, 2];
        assert_eq!(check_ocsp(&whole), Ok(()));
        for cut in 0..whole.len() {
            assert!(check_ocsp(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(check_ocsp(&[&whole[..], b"more"].concat()).is_err());
        assert!(check_ocsp(b"-----BEGIN").is_err());
        let error = check_ocsp(&[0x30, 3, 0x0a, 1, 6]).unwrap_err();
        assert!(error.ends_with("the status 6"), "{error}");
    }

    #[test]
    fn times_are_parsed() {
        let seconds =
            |tag, text: &str| Some(time_of(tag, text.as_bytes())?.duration_since(UNIX_EPOCH).unwrap().as_secs());
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "000229120000Z"), Some(951_825_600));
        assert_eq!(seconds(GENERALIZED_TIME, "20380119031408Z"), Some(1 << 31));
        assert_eq!(seconds(GENERALIZED_TIME, "21000301000000Z"), Some(4_107_542_400));
        for bad in ["", "Z", "7001010000Z", "700101000000", "701301000000Z", "70010100000xZ", "69010100000000Z"] {
            assert_eq!(seconds(UTC_TIME, bad), None, "{bad}");
        }
    }
}
