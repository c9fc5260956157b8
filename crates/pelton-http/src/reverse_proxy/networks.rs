//! Networks whose hosts are trusted.

use std::net::IpAddr;
use std::str::FromStr;

use pelton::Address;

/// Networks in CIDR notation, addresses, and `unix` for the clients of Unix sockets.
///
/// ```
/// use pelton_http::Networks;
///
/// let networks: Networks = "10.0.0.0/8, 2001:db8::/32, 192.0.2.7, unix".parse()?;
/// assert!(networks.has(&"10.1.2.3:4".parse()?) && networks.has(&"192.0.2.7:4".parse()?));
/// assert!(!networks.has(&"192.0.2.8:4".parse()?) && !networks.has(&"[2001:db9::1]:4".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Networks {
    /// An address and the number of leading bits that matter.
    networks: Vec<(IpAddr, u8)>,
    unix: bool,
}

/// The text does not name networks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network; give 10.0.0.0/8, 2001:db8::/32, an address, or unix")]
pub struct BadNetwork(pub Box<str>);

impl Networks {
    /// Whether an address is in one of the networks. An IPv4 address in an IPv6 socket counts as IPv4.
    pub fn has(&self, address: &Address) -> bool {
        match address {
            Address::Tcp(address) => self.has_ip(address.ip()),
            _ => self.unix,
        }
    }

    fn has_ip(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.networks.iter().any(|(network, bits)| masked(ip, *bits) == Some(*network))
    }

    /// Adds the networks of another list.
    pub fn extend(&mut self, other: Networks) {
        self.networks.extend(other.networks);
        self.unix |= other.unix;
    }
}

/// The first bits of an address. `None` if it does not have as many.
fn masked(ip: IpAddr, bits: u8) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => {
            let host = 32u32.checked_sub(bits.into())?;
            Some(IpAddr::V4((u32::from(ip) & u32::MAX.checked_shl(host).unwrap_or(0)).into()))
        }
        IpAddr::V6(ip) => {
            let host = 128u32.checked_sub(bits.into())?;
            Some(IpAddr::V6((u128::from(ip) & u128::MAX.checked_shl(host).unwrap_or(0)).into()))
        }
    }
}

impl FromStr for Networks {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Networks, BadNetwork> {
        let mut networks = Networks::default();
        for part in text.split(',').map(str::trim) {
            let bad = || BadNetwork(part.into());
            if part == "unix" {
                networks.unix = true;
                continue;
            }
            let (address, bits) = match part.split_once('/') {
                Some((address, bits)) => (address, Some(bits)),
                None => (part, None),
            };
            let ip: IpAddr = address.parse().map_err(|_| bad())?;
            let bits = match bits {
                Some(bits) if bits.bytes().all(|digit| digit.is_ascii_digit()) => bits.parse().map_err(|_| bad())?,
                Some(_) => return Err(bad()),
                None if ip.is_ipv4() => 32,
                None => 128,
            };
            // Bits beyond the mask are probably a mistake.
            if masked(ip, bits) != Some(ip) {
                return Err(bad());
            }
            networks.networks.push((ip, bits));
        }
        Ok(networks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_their_addresses() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("192.0.2.128/25", "192.0.2.129", "192.0.2.127"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
            ("127.0.0.1", "::ffff:127.0.0.1", "127.0.0.2"),
        ] {
            let networks: Networks = network.parse().unwrap();
            assert!(networks.has_ip(inside.parse().unwrap()), "{inside} in {network}");
            assert!(!networks.has_ip(outside.parse().unwrap()), "{outside} in {network}");
            assert!(!networks.has(&Address::Unix("/a".into())));
        }
        assert!("10.0.0.0/8, unix".parse::<Networks>().unwrap().has(&Address::Unix("/a".into())));
        for bad in ["", "a", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.0/", "10.0.0.0/+8", "::/129", "10.0.0.0/8,", "Unix"] {
            assert!(bad.parse::<Networks>().is_err(), "{bad:?}");
        }
    }
}
