//! The format of an access log line.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pelton::Address;
use pelton_http::Request;
use pelton_http::log::{Printable, may_appear_unescaped};
use pelton_http::wire::Version;
use serde::Serialize;

use super::options::LogFormat;

/// What a request's line needs of the request.
pub struct Subject {
    peer: Option<Address>,
    method: Box<str>,
    target: Box<str>,
    version: Version,
    host: Option<Box<str>>,
    referer: Option<Box<[u8]>>,
    agent: Option<Box<[u8]>>,
}

/// How the request ended.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub status: u16,
    pub bytes: u64,
    pub took: Duration,
}

impl Subject {
    pub fn new(request: &Request<'_>, peer: Option<Address>) -> Subject {
        let field = |name: &str| request.header(name).map(Into::into);
        Subject {
            peer,
            method: request.method_name().into(),
            target: request.target().into(),
            version: request.version(),
            host: request.host().map(Into::into),
            referer: field("Referer"),
            agent: field("User-Agent"),
        }
    }

    /// Appends the line of the request.
    pub fn write(&self, format: LogFormat, outcome: Outcome, now: SystemTime, text: &mut Vec<u8>) {
        match format {
            LogFormat::Text => self.write_text(outcome, now, text),
            LogFormat::Json => self.write_json(outcome, now, text),
        }
    }

    fn write_text(&self, Outcome { status, bytes, took }: Outcome, now: SystemTime, text: &mut Vec<u8>) {
        write_peer(text, self.peer.as_ref());
        text.extend_from_slice(b" - - [");
        write_common_date(text, now);
        let (method, target) = (Printable::new(&*self.method), Printable::new(&*self.target));
        // Writing to a Vec cannot fail.
        let _ = write!(text, "] \"{method} {target} {}\" {status} {bytes}", version(self.version));
        for field in [&self.referer, &self.agent] {
            let _ = write!(text, " {:?}", Printable::new(field.as_deref().unwrap_or(b"-")));
        }
        let _ = writeln!(text, " {:.6}", took.as_secs_f64());
    }

    fn write_json(&self, Outcome { status, bytes, took }: Outcome, now: SystemTime, text: &mut Vec<u8>) {
        let lossy =
            |bytes: &Option<Box<[u8]>>| bytes.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let line = Json {
            time: timestamp(now),
            peer: self.peer.as_ref().map(ToString::to_string),
            method: Some(&self.method),
            target: Some(&self.target),
            version: Some(version(self.version)),
            host: self.host.as_deref(),
            status,
            bytes,
            seconds: took.as_secs_f64(),
            referer: lossy(&self.referer),
            agent: lossy(&self.agent),
            refused: None,
        };
        line.write(text);
    }
}

/// Appends the line of input that was refused before it was a request.
pub fn write_refusal(
    format: LogFormat,
    peer: Option<&Address>,
    status: u16,
    why: &'static str,
    now: SystemTime,
    text: &mut Vec<u8>,
) {
    match format {
        LogFormat::Text => {
            write_peer(text, peer);
            text.extend_from_slice(b" - - [");
            write_common_date(text, now);
            // Other servers also write `-` for input that was no request.
            let _ = writeln!(text, "] \"-\" {status} 0 \"-\" \"-\" 0.000000");
        }
        LogFormat::Json => {
            let peer = peer.map(ToString::to_string);
            Json { time: timestamp(now), peer, status, refused: Some(why), ..Json::default() }.write(text);
        }
    }
}

#[derive(Serialize, Default)]
struct Json<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    status: u16,
    bytes: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
}

impl Json<'_> {
    fn write(&self, text: &mut Vec<u8>) {
        // Writing to a Vec cannot fail, and the value is valid JSON.
        let _ = self.serialize(&mut serde_json::Serializer::with_formatter(&mut *text, Ascii));
        text.push(b'\n');
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    }
}

/// Appends the address as the format requires: without a port, and always one word.
fn write_peer(text: &mut Vec<u8>, peer: Option<&Address>) {
    let _ = match peer {
        Some(Address::Tcp(address)) => write!(text, "{}", address.ip()),
        Some(_) => write!(text, "unix"),
        None => write!(text, "-"),
    };
}

/// JSON with every character escaped that [must be escaped](may_appear_unescaped) in a log. JSON itself requires only some of
/// these escapes.
struct Ascii;

impl serde_json::ser::Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while !rest.is_empty() {
            // Unescaped characters are ASCII, so the run ends at a character boundary.
            let run = rest.bytes().position(|byte| !may_appear_unescaped(byte)).unwrap_or(rest.len());
            to.write_all(&rest.as_bytes()[..run])?;
            let mut others = rest[run..].chars();
            if let Some(char) = others.next() {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    write!(to, "\\u{unit:04x}")?;
                }
            }
            rest = others.as_str();
        }
        Ok(())
    }
}

thread_local! {
    /// The last date written, and its second: most lines have the same date as the line before.
    static LAST_DATE: RefCell<(Option<u64>, String)> = const { RefCell::new((None, String::new())) };
}

/// Appends `16/Nov/2026:02:51:02 +0000`, made from `Mon, 16 Nov 2026 02:51:02 GMT`.
fn write_common_date(text: &mut Vec<u8>, now: SystemTime) {
    let second = now.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
    LAST_DATE.with_borrow_mut(|(of, last)| {
        if second.is_none() || *of != second {
            let date = httpdate::fmt_http_date(now);
            *last = format!("{}/{}/{}:{} +0000", &date[5..7], &date[8..11], &date[12..16], &date[17..25]);
            *of = second;
        }
        text.extend_from_slice(last.as_bytes());
    });
}

/// Returns `2026-11-16T02:51:02.123Z`, made from the same.
fn timestamp(now: SystemTime) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let date = httpdate::fmt_http_date(now);
    let month = MONTHS.iter().position(|month| *month == &date[8..11]).map_or(0, |month| month + 1);
    let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    format!("{}-{month:02}-{}T{}.{millis:03}Z", &date[12..16], &date[5..7], &date[17..25])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            peer: Some("192.0.2.1:4711".parse().unwrap()),
            method: "GET".into(),
            target: "/a?b=\"c\"".into(),
            version: Version::Http11,
            host: Some("example.org".into()),
            referer: None,
            agent: Some(b"x\x1b[2J\"\n\xff".as_slice().into()),
        }
    }

    const OUTCOME: Outcome = Outcome { status: 200, bytes: 12, took: Duration::from_micros(1500) };

    fn written(format: LogFormat) -> String {
        let mut text = Vec::new();
        subject().write(format, OUTCOME, UNIX_EPOCH + Duration::from_millis(1_794_797_462_123), &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn text_format_has_one_line_per_request_whatever_the_client_sends() {
        let expected = "192.0.2.1 - - [16/Nov/2026:02:51:02 +0000] \"GET /a?b=\\x22c\\x22 HTTP/1.1\" 200 12 \"-\" \
                        \"x\\x1b[2J\\x22\\x0a\\xff\" 0.001500\n";
        assert_eq!(written(LogFormat::Text), expected);
    }

    #[test]
    fn json_format_has_one_object_per_line() {
        let line = written(LogFormat::Json);
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["time"], "2026-11-16T02:51:02.123Z");
        assert_eq!(value["peer"], "192.0.2.1:4711");
        assert_eq!(value["target"], "/a?b=\"c\"");
        assert_eq!(value["status"], 200);
        assert_eq!(value["agent"], "x\u{1b}[2J\"\n\u{fffd}");
        assert_eq!(value.get("referer"), None);
    }

    #[test]
    fn refused_input_is_logged() {
        let mut text = Vec::new();
        write_refusal(LogFormat::Text, None, 400, "no", UNIX_EPOCH, &mut text);
        write_refusal(LogFormat::Json, None, 400, "no", UNIX_EPOCH, &mut text);
        let text = String::from_utf8(text).unwrap();
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first, "- - - [01/Jan/1970:00:00:00 +0000] \"-\" 400 0 \"-\" \"-\" 0.000000");
        assert_eq!(serde_json::from_str::<serde_json::Value>(second).unwrap()["refused"], "no");
    }
}
