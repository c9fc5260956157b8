//! Parses URLs of servers.

use std::path::PathBuf;

use pelton::{Address, Endpoint};
use percent_encoding::percent_decode_str;

use super::{Options, Protocol};

const DEFAULT_PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

/// Parses a URL. Errors say what is wrong without showing the URL, which may contain a password.
pub(super) fn parse(url: &str) -> Result<Options, String> {
    let (scheme, rest) =
        url.split_once("://").ok_or("it has no scheme; write redis://host, rediss://host or unix:///path")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if rest.contains('#') || query.contains('#') {
        return Err("it has a fragment (#); write %23 in a password".into());
    }
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(path)),
        None => (rest, None),
    };
    let (who, place) = match authority.rsplit_once('@') {
        Some((who, place)) => (Some(who), place),
        None => (None, authority),
    };
    let mut options = match scheme {
        "redis" | "rediss" => {
            let mut options = Options::new(endpoint(place, DEFAULT_PORT)?);
            options.secure = scheme == "rediss";
            if let Some(database) = path.filter(|path| !path.is_empty()) {
                options.database = number(database)?;
            }
            options
        }
        "unix" | "redis+unix" => {
            let path = path.filter(|path| !path.is_empty() && place.is_empty());
            let path = path.ok_or("a Unix socket has an absolute path; write unix:///path")?;
            Options::new(Address::Unix(PathBuf::from(decode(&format!("/{path}"))?)))
        }
        "redis+sentinel" | "rediss+sentinel" => {
            let (master, database) = path.map_or(("", ""), |path| path.split_once('/').unwrap_or((path, "")));
            if master.is_empty() {
                return Err("it has no name of a master; write redis+sentinel://host/name".into());
            }
            let mut places = place.split(',').map(|place| endpoint(place, SENTINEL_PORT));
            let first = places.next().ok_or("it has no host")??;
            let mut options = Options::sentinels(first, places.collect::<Result<Vec<_>, _>>()?, decode(master)?);
            options.secure = scheme == "rediss+sentinel";
            if !database.is_empty() {
                options.database = number(database)?;
            }
            options
        }
        _ => return Err("its scheme is none of redis, rediss, unix and redis+sentinel".into()),
    };
    if options.secure && cfg!(not(feature = "tls")) {
        return Err("rediss needs the feature `tls` of pelton-redis".into());
    }
    if let Some((user, password)) = who.map(|who| who.split_once(':').unwrap_or((who, ""))) {
        options.user = Some(decode(user)?).filter(|user| !user.is_empty());
        options.password = Some(decode(password)?).filter(|password| !password.is_empty());
    }
    for (name, value) in
        query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    {
        match name {
            "db" => options.database = number(value)?,
            "user" => options.user = Some(decode(value)?),
            "sentinel_user" | "sentinel_pass" => {
                let sentinels =
                    options.sentinels.as_mut().ok_or("it has a parameter for Sentinels, and there are none")?;
                let field = if name == "sentinel_user" { &mut sentinels.user } else { &mut sentinels.password };
                *field = Some(decode(value)?);
            }
            "pass" | "password" => options.password = Some(decode(value)?),
            "protocol" => {
                options.protocol = match value {
                    "resp2" | "2" => Protocol::Resp2,
                    "resp3" | "3" => Protocol::Resp3,
                    _ => return Err("its protocol is neither resp2 nor resp3".into()),
                }
            }
            _ => {
                return Err(
                    "it has an unknown parameter; these exist: db, user, pass, protocol, sentinel_user, sentinel_pass"
                        .into(),
                );
            }
        }
    }
    if options.user.is_some() && options.password.is_none() {
        return Err("it has a user without a password".into());
    }
    Ok(options)
}

fn endpoint(place: &str, port: u16) -> Result<Endpoint, String> {
    const BAD: &str = "its host and port are malformed";
    // The last colon belongs to the port, unless it is inside the brackets of an IPv6 address.
    let has_port = place.rfind(':').is_some_and(|colon| place.rfind(']').is_none_or(|bracket| colon > bracket));
    let place = match (place, has_port) {
        ("", _) => return Err("it has no host".into()),
        (place, true) => place.to_owned(),
        (place, false) => format!("{place}:{port}"),
    };
    match place.parse() {
        Ok(Endpoint::Address(Address::Unix(_))) | Err(_) => Err(BAD.into()),
        Ok(endpoint) => Ok(endpoint),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| "its database is not a number".into())
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "it has escapes that are not UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> String {
        parse(url).unwrap().target.to_string()
    }

    #[test]
    fn hosts_ports_and_paths() {
        assert_eq!(target("redis://localhost"), "localhost:6379");
        assert_eq!(target("redis://localhost:7/"), "localhost:7");
        assert_eq!(target("redis://[::1]"), "[::1]:6379");
        assert_eq!(target("redis://[::1]:7/3"), "[::1]:7");
        assert_eq!(target("redis://a:b@127.0.0.1:7"), "127.0.0.1:7");
        assert_eq!(target("unix:///run/redis%20x.sock?db=4"), "unix:/run/redis x.sock");
    }

    #[test]
    fn users_passwords_and_parameters() {
        let options = parse("redis://ana:a%3Ab%40c@h/2?protocol=resp2").unwrap();
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ana"), Some("a:b@c")));
        assert_eq!((options.database, options.protocol), (2, Protocol::Resp2));
        let options = parse("redis://:secret@h").unwrap();
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (None, Some("secret")));
        let options = parse("unix:///s?user=u&pass=p&db=1").unwrap();
        assert_eq!((options.user.as_deref(), options.password.as_deref(), options.database), (Some("u"), Some("p"), 1));
        assert_eq!(parse("rediss://h").is_ok(), cfg!(feature = "tls"));
    }

    #[test]
    fn sentinels_and_the_name_of_the_master() {
        let options = parse("redis+sentinel://:secret@one,[::1]:7/my%20master/2?sentinel_pass=p").unwrap();
        let sentinels = options.sentinels.unwrap();
        let endpoints: Vec<String> = sentinels.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!((&endpoints[..], &*sentinels.master), (&["one:26379".into(), "[::1]:7".into()][..], "my master"));
        assert_eq!((sentinels.password.as_deref(), options.password.as_deref()), (Some("p"), Some("secret")));
        assert_eq!(options.database, 2);
    }

    #[test]
    fn bad_urls_are_refused_without_showing_secrets() {
        let bad = [
            "localhost",
            "http://:secret@h",
            "redis://",
            "redis://:secret@",
            "redis://h:port",
            "redis://h:99999",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/+1",
            "unix://h/path",
            "unix://",
            "redis://secret@h",
            "redis://h?x=secret",
            "redis://h?protocol=secret",
            "redis://:secret#x@h",
            "redis://h/99999999999",
            "redis://a:%ff@h",
            "redis://h:80:80",
            "redis+sentinel://h",
            "redis+sentinel://h,,i/name",
            "redis+sentinel:///name",
            "redis+sentinel://h/name/x",
            "redis://h?sentinel_pass=secret",
        ];
        for url in bad {
            let error = parse(url).expect_err(url);
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
