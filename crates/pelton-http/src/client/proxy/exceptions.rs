//! Hosts that are reached without a proxy.

use std::net::IpAddr;

use crate::client::Url;

/// A list of hosts, networks and ports.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions(Vec<Exception>);

#[derive(Clone, Debug)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum Hosts {
    All,
    /// A name, and those below it.
    Domain(Box<str>),
    /// A network, with the length of its prefix.
    Network(IpAddr, u32),
}

impl Exceptions {
    /// Parses a list separated by commas or blanks. Members that mean nothing are ignored, as everywhere.
    pub(super) fn parse(text: &str) -> Exceptions {
        let members = text.split([',', ' ', '\t']).filter(|member| !member.is_empty());
        Exceptions(members.filter_map(Exception::parse).collect())
    }

    pub(super) fn contain(&self, url: &Url) -> bool {
        self.0.iter().any(|exception| {
            exception.port.is_none_or(|port| port == url.port()) && exception.hosts.contain(url.host())
        })
    }
}

impl Exception {
    fn parse(text: &str) -> Option<Exception> {
        if text == "*" {
            return Some(Exception { hosts: Hosts::All, port: None });
        }
        if let Some(hosts) = network(text) {
            return Some(Exception { hosts, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        if let Some(hosts) = network(host.trim_matches(['[', ']'])) {
            return Some(Exception { hosts, port });
        }
        let name = host.trim_start_matches("*.").trim_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then(|| Exception { hosts: Hosts::Domain(name.into()), port })
    }
}

fn network(text: &str) -> Option<Hosts> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(bits);
    (length <= bits).then_some(Hosts::Network(address, length))
}

impl Hosts {
    fn contain(&self, host: &str) -> bool {
        match self {
            Hosts::All => true,
            Hosts::Domain(name) => {
                let host = host.trim_end_matches('.');
                let above = host.strip_suffix(&**name);
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            Hosts::Network(network, length) => {
                let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else { return false };
                let prefix = |bits: u128, all: u32| bits.checked_shr(all - length).unwrap_or(0);
                match (network, address) {
                    (IpAddr::V4(network), IpAddr::V4(address)) => {
                        prefix(network.to_bits().into(), 32) == prefix(address.to_bits().into(), 32)
                    }
                    (IpAddr::V6(network), IpAddr::V6(address)) => {
                        prefix(network.to_bits(), 128) == prefix(address.to_bits(), 128)
                    }
                    _ => false,
                }
            }
        }
    }
}

/// Whether a host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}
