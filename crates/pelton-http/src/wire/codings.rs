//! Negotiates the content coding (RFC 9110, section 12.5.3).

use super::token::{list, trim};

/// A content coding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Coding {
    /// `br`
    Brotli,
    /// `zstd`
    Zstandard,
    /// `gzip`
    Gzip,
    /// No coding.
    Identity,
}

/// The number of codings.
const COUNT: usize = Coding::ALL.len();

impl Coding {
    /// All codings, best compression first.
    pub const ALL: [Coding; 4] = [Coding::Brotli, Coding::Zstandard, Coding::Gzip, Coding::Identity];

    /// The name in header fields.
    pub const fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstandard => "zstd",
            Coding::Gzip => "gzip",
            Coding::Identity => "identity",
        }
    }

    fn of(name: &[u8]) -> Option<Coding> {
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Coding::Gzip);
        }
        Coding::ALL.into_iter().find(|coding| name.eq_ignore_ascii_case(coding.name().as_bytes()))
    }
}

/// Returns the coding in `offered` that the client prefers, by its `Accept-Encoding` fields. Among equals, the one with the
/// smallest body wins. Returns `None` if the client accepts none.
///
/// ```
/// use pelton_http::wire::{Coding, choose_coding};
///
/// let offered = [Coding::Brotli, Coding::Gzip, Coding::Identity];
/// let choose = |value: &'static str| choose_coding([value.as_bytes()], &offered);
/// assert_eq!(choose("gzip, br"), Some(Coding::Brotli));
/// assert_eq!(choose("gzip, br;q=0.5"), Some(Coding::Gzip));
/// assert_eq!(choose("zstd, identity;q=0"), None);
/// ```
pub fn choose_coding<'a>(values: impl IntoIterator<Item = &'a [u8]>, offered: &[Coding]) -> Option<Coding> {
    let mut weights: [Option<u16>; COUNT] = [None; COUNT];
    let mut others = None;
    let mut said = false;
    for value in values {
        said = true;
        for member in list(value) {
            let mut parts = member.split(|byte| *byte == b';').map(trim);
            let name = parts.next().unwrap_or_default();
            // A member with an invalid weight is ignored.
            let Some(weight) = weight(parts) else { continue };
            if name == b"*" {
                others = Some(weight);
            } else if let Some(coding) = Coding::of(name) {
                weights[coding as usize] = Some(weight);
            }
        }
    }
    if !said {
        // Anything is acceptable, but a client without `Accept-Encoding` may not support any coding.
        return offered.contains(&Coding::Identity).then_some(Coding::Identity);
    }
    // Weights are doubled thousandths. An uncoded body that the client does not mention gets 1: more than nothing, less than
    // any weight.
    let liked = |coding: Coding| match weights[coding as usize].or(others) {
        Some(weight) => 2 * weight,
        None => u16::from(coding == Coding::Identity),
    };
    let best =
        Coding::ALL.into_iter().filter(|coding| offered.contains(coding)).rev().max_by_key(|coding| liked(*coding));
    best.filter(|coding| liked(*coding) > 0)
}

/// The weight in a member's parameters, in thousandths; 1,000 if there is none.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let Some(parameter) = parameters.next() else { return Some(1000) };
    let (b"q" | b"Q", [b'=', value @ ..]) = parameter.split_at_checked(1)? else { return None };
    let (whole, fraction) = match value {
        [whole] => (*whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (*whole, fraction),
        _ => return None,
    };
    if !matches!(whole, b'0' | b'1') || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().map(|digit| u16::from(digit - b'0')).chain(std::iter::repeat(0)).take(3);
    let thousandths = digits.fold(u16::from(whole - b'0'), |sum, digit| 10 * sum + digit);
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Coding::{Brotli, Gzip, Identity, Zstandard};

    #[test]
    fn coding_with_the_highest_weight_is_chosen() {
        for (value, expected) in [
            ("", Some(Identity)),
            ("br", Some(Brotli)),
            ("gzip", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("GZIP", Some(Gzip)),
            ("zstd,gzip,br", Some(Brotli)),
            ("gzip;q=1.0, br;q=0.9", Some(Gzip)),
            ("gzip;q=0.001, identity;q=0.002", Some(Identity)),
            ("gzip;q=0.001", Some(Gzip)),
            ("gzip;q=0", Some(Identity)),
            ("deflate", Some(Identity)),
            ("*", Some(Brotli)),
            ("*;q=0.5, gzip", Some(Gzip)),
            ("br;q=0, *", Some(Zstandard)),
            ("*;q=0", None),
            ("*;q=0, identity", Some(Identity)),
            ("*;q=0, gzip;q=0.1", Some(Gzip)),
            ("identity;q=0", None),
            ("identity;q=0, zstd ; q=0.3", Some(Zstandard)),
            ("identity, br", Some(Brotli)),
            ("br;q=1.001", Some(Identity)),
            ("br;q=0.1234", Some(Identity)),
            ("br;q=-1", Some(Identity)),
            ("br;q", Some(Identity)),
            ("br;q=", Some(Identity)),
            ("br;level=3", Some(Identity)),
            ("br;Q=1", Some(Brotli)),
            (",,;q=1,br,", Some(Brotli)),
        ] {
            assert_eq!(choose_coding([value.as_bytes()], &Coding::ALL), expected, "{value}");
        }
    }

    #[test]
    fn only_offered_codings_are_chosen_and_none_without_a_field() {
        assert_eq!(choose_coding([], &Coding::ALL), Some(Identity));
        assert_eq!(choose_coding([&b"br"[..]], &[Gzip, Identity]), Some(Identity));
        assert_eq!(choose_coding([&b"br"[..], b"gzip;q=0.5"], &[Gzip, Identity]), Some(Gzip));
        assert_eq!(choose_coding([&b"br, identity;q=0"[..]], &[Gzip, Identity]), None);
        assert_eq!(choose_coding([&b"br"[..]], &[]), None);
    }
}
