//! Prefixes that are forwarded to other servers: `--proxy`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pelton::{Reactor, Targets};
use pelton_http::client::{Client, Settings};
use pelton_http::{BadRoute, HostField, Networks, ReverseProxy, Router, Scheme, Upstream};

use super::Failure;
use super::descriptors::Budget;
use crate::proxy::options::{Balance, Health};
use crate::units;

#[derive(Args)]
#[command(next_help_heading = "Reverse proxy")]
pub struct ProxyOptions {
    /// Forwards requests below a prefix: /api=http://127.0.0.1:3000. The target may be https://, and unix:/path for a socket;
    /// several are separated by commas, or given by repeating the option. If the URL has a path, even /, it replaces the prefix.
    /// May be repeated
    #[arg(long, value_name = "PREFIX=URL", value_parser = forwarding)]
    pub proxy: Vec<Forwarding>,

    /// How a target is chosen if a prefix has several
    #[arg(long, value_name = "HOW", default_value = "least")]
    pub balance: Balance,

    /// Believes the Forwarded and X-Forwarded-* fields of clients in this network, such as 10.0.0.0/8, or `unix` for clients of
    /// Unix sockets. Those of all others are removed. May be repeated
    #[arg(long, value_name = "NETWORK", requires = "proxy")]
    pub trusted_proxy: Vec<Networks>,

    /// Which Host the targets get
    #[arg(long, value_name = "WHOSE", default_value = "client")]
    pub proxy_host: ProxyHost,

    /// How long connecting to a target may take, including its TLS handshake
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration)]
    pub proxy_connect_time: Duration,

    /// How long a target may take until its response begins, and between two parts of it; a slower one is answered with 504
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration)]
    pub proxy_time: Duration,

    /// How long an unused connection to a target is kept; less than the target keeps it
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = units::positive_duration)]
    pub proxy_idle_time: Duration,

    /// Closes connections that have switched to another protocol (WebSocket) if nothing was sent in either direction for this
    /// long; 0 disables this
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::duration)]
    pub proxy_tunnel_time: Duration,

    /// Verifies https:// targets against the authorities in this file, as PEM, instead of the system's
    #[arg(long, value_name = "FILE", requires = "proxy")]
    pub proxy_ca: Option<PathBuf>,

    /// Does not verify https:// targets: anyone who can redirect the connection can read and change everything
    #[arg(long, requires = "proxy", conflicts_with = "proxy_ca")]
    pub proxy_insecure: bool,

    #[command(flatten)]
    pub health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ProxyHost {
    /// The one that the client has asked for
    Client,
    /// Host and port of the target
    Target,
}

/// A prefix and its targets.
#[derive(Clone, Debug)]
pub struct Forwarding {
    prefix: String,
    urls: Vec<String>,
}

fn forwarding(text: &str) -> Result<Forwarding, String> {
    let wrong = || "give a prefix and a target, such as /api=http://127.0.0.1:3000".to_owned();
    let (prefix, urls) = text.split_once('=').ok_or_else(wrong)?;
    if !prefix.starts_with('/') {
        return Err(wrong());
    }
    let urls: Vec<String> = urls.split(',').map(url).collect();
    let mut scratch = Targets::new(pelton::Balance::Least, 1, Duration::ZERO);
    Upstream::new(&mut scratch, &urls).map_err(|bad| bad.to_string())?;
    let mut router = Router::new();
    router.try_mount(prefix, pelton_http::plain(|_| "")).map_err(|bad| bad.to_string())?;
    Ok(Forwarding { prefix: prefix.to_owned(), urls })
}

/// Returns the URL of a target. A Unix socket has a shorter form.
fn url(text: &str) -> String {
    let Some(path) = text.strip_prefix("unix:") else { return text.to_owned() };
    let mut url = "http+unix://".to_owned();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => url.push(char::from(byte)),
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

impl ProxyOptions {
    pub fn is_on(&self) -> bool {
        !self.proxy.is_empty()
    }

    /// Returns whether everything is forwarded, so that no file can be served.
    pub fn takes_everything(&self) -> bool {
        self.proxy.iter().any(|forwarding| forwarding.prefix == "/")
    }

    /// Describes the prefixes, for the line at the start.
    pub fn described(&self) -> String {
        let all = self.proxy.iter().map(|Forwarding { prefix, urls }| format!("{prefix}={}", urls.join(",")));
        all.collect::<Vec<_>>().join(" ")
    }
}

/// The prefixes, as all workers share them.
#[derive(Clone)]
pub struct Proxies {
    pub targets: Arc<Targets>,
    upstreams: Vec<(String, Arc<Upstream>)>,
    client: Client,
    trusted: Arc<Networks>,
    host: HostField,
    scheme: Scheme,
    retries: u32,
    tunnel_idle: Option<Duration>,
}

impl Proxies {
    pub fn new(options: &ProxyOptions, budget: &Budget, scheme: Scheme) -> Result<Proxies, Failure> {
        let health = &options.health;
        let mut targets = Targets::new(options.balance.into(), health.max_failures, health.down_time);
        let mut by_prefix: Vec<(String, Vec<String>)> = Vec::new();
        for Forwarding { prefix, urls } in &options.proxy {
            match by_prefix.iter_mut().find(|(known, _)| known == prefix) {
                Some((_, known)) => known.extend_from_slice(urls),
                None => by_prefix.push((prefix.clone(), urls.clone())),
            }
        }
        let mut upstreams = Vec::new();
        for (prefix, urls) in by_prefix {
            let upstream = Upstream::new(&mut targets, urls).map_err(|bad| Failure::Usage(bad.to_string()))?;
            upstreams.push((prefix, Arc::new(upstream)));
        }
        let mut tls = pelton_tls::Client::builder().alpn("http/1.1");
        if let Some(authorities) = &options.proxy_ca {
            tls = tls.roots(authorities);
        }
        if options.proxy_insecure {
            tls = tls.dangerous_without_verification();
        }
        let settings = Settings {
            connect: options.proxy_connect_time,
            head: options.proxy_time,
            between: options.proxy_time,
            idle: options.proxy_idle_time,
            per_origin: budget.upstream,
            connections: budget.upstream,
            ..Settings::default()
        };
        let mut client = Client::builder().settings(settings);
        if options.proxy.iter().flat_map(|forwarding| &forwarding.urls).any(|url| url.starts_with("https:")) {
            client = client.tls(tls.build().map_err(Failure::Tls)?);
        }
        let mut trusted = Networks::default();
        options.trusted_proxy.iter().for_each(|networks| trusted.extend(networks.clone()));
        Ok(Proxies {
            targets: Arc::new(targets),
            upstreams,
            client: client.build(),
            trusted: Arc::new(trusted),
            host: match options.proxy_host {
                ProxyHost::Client => HostField::Client,
                ProxyHost::Target => HostField::Target,
            },
            scheme,
            retries: health.retries,
            tunnel_idle: Some(options.proxy_tunnel_time).filter(|time| !time.is_zero()),
        })
    }

    /// Mounts the prefixes.
    pub fn mount(&self, mut router: Router) -> Result<Router, BadRoute> {
        for (prefix, upstream) in &self.upstreams {
            let proxy = ReverseProxy::balanced(&self.targets, upstream)
                .client(self.client.clone())
                .trust(self.trusted.clone())
                .host(self.host)
                .scheme(self.scheme)
                .retries(self.retries)
                .tunnel_idle(self.tunnel_idle);
            router.try_mount(prefix, proxy)?;
        }
        Ok(router)
    }

    /// Starts the checks of the targets.
    pub fn check(&self, reactor: &mut Reactor, options: &ProxyOptions) {
        if !options.health.check_interval.is_zero() {
            self.targets.check_every(reactor, options.health.check_interval, options.proxy_connect_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_targets_are_parsed() {
        let parsed = forwarding("/api=http://a:1,https://b/x").unwrap_err();
        assert!(parsed.contains("path"), "{parsed}");
        let parsed = forwarding("/api=http://a:1,https://b").unwrap();
        assert_eq!((&*parsed.prefix, parsed.urls.len()), ("/api", 2));
        assert_eq!(forwarding("/=unix:/run/a b.sock").unwrap().urls, ["http+unix://%2Frun%2Fa%20b.sock"]);
        for bad in ["", "/api", "api=http://a", "/api=", "/api=ftp://a", "/a//b=http://a", "/a=unix:relative"] {
            assert!(forwarding(bad).is_err(), "{bad}");
        }
    }
}
