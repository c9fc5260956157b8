//! The target of a load.

use std::net::ToSocketAddrs;
use std::path::Path;

use pelton::Address;
use pelton_http::client::Url;

/// Parses the URL of a load. A Unix socket replaces its host.
pub fn url(text: &str, unix: Option<&Path>) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|bad| format!("{}; use http://host:port/path", bad.why))?;
    match unix {
        None => Ok(url),
        Some(path) => {
            let escaped: String =
                path.as_os_str().as_encoded_bytes().iter().map(|byte| format!("%{byte:02X}")).collect();
            Url::parse(&format!("http+unix://{escaped}{}", url.target())).map_err(|bad| bad.why.to_owned())
        }
    }
}

/// Returns the address to connect to: the Unix socket if there is one, whatever the URL says.
pub fn address(url: &Url, unix: Option<&Path>) -> Result<Address, String> {
    if let Some(path) = unix {
        return Ok(Address::Unix(path.to_owned()));
    }
    let host = url.host().trim_matches(['[', ']']);
    let mut addresses = (host, url.port()).to_socket_addrs().map_err(|error| format!("look up {host}: {error}"))?;
    addresses.next().map(Address::Tcp).ok_or_else(|| format!("look up {host}: it has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_replaces_the_host() {
        let unix = url("http://a:81/b?c", Some(Path::new("/run/x y.sock"))).unwrap();
        assert_eq!((unix.target(), unix.is_https()), ("/b?c", false));
        assert_eq!(address(&unix, Some(Path::new("/run/x"))), Ok(Address::Unix("/run/x".into())));
        assert_eq!(address(&url("http://[::1]:81/", None).unwrap(), None), Ok("[::1]:81".parse().unwrap()));
        for nonsense in ["", "a", "ftp://a/", "http://", "http://:80/", "http://a:b/"] {
            assert!(url(nonsense, None).unwrap_err().contains("use http://host:port/path"), "{nonsense}");
        }
    }
}
