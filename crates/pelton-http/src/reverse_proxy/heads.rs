//! Which fields pass: those that concern one connection only do not (RFC 9110, section 7.6.1).

use pelton::Address;

use super::{HostField, Shared, forwarded};
use crate::client::Buffer;
use crate::wire::token::list;
use crate::wire::{Fields, ResponseHead};
use crate::{Request, ResponseFields};

/// Whether a field concerns one connection only, whatever `Connection` says.
fn is_for_connection(name: &[u8]) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    match name.len() {
        2 => is("te"),
        7 => is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        14 => is("http2-settings"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        18 => is("proxy-authenticate"),
        19 => is("proxy-authorization"),
        _ => false,
    }
}

/// The further fields that `Connection` names.
struct Named<'a> {
    fields: Fields<'a>,
    /// There are some. Usually there are none.
    any: bool,
}

impl<'a> Named<'a> {
    fn of(fields: Fields<'a>) -> Named<'a> {
        let is_usual = |option: &[u8]| {
            [&b"close"[..], b"keep-alive", b"upgrade"].iter().any(|usual| option.eq_ignore_ascii_case(usual))
        };
        let any = fields.all("connection").flat_map(list).any(|option| !is_usual(option));
        Named { fields, any }
    }

    fn has(&self, name: &[u8]) -> bool {
        self.any && self.fields.all("connection").flat_map(list).any(|option| option.eq_ignore_ascii_case(name))
    }
}

/// Appends the fields of a request that are passed on, and those of the proxy.
pub(super) fn request(out: &mut Buffer, shared: &Shared, request: &Request<'_>, peer: Option<&Address>) {
    let fields = request.fields();
    let named = Named::of(fields);
    let trusts = shared.trusts(peer);
    if shared.host == HostField::Client
        && let Some(host) = request.host()
    {
        line(out, b"Host", host.as_bytes());
    }
    for (name, value) in fields {
        let name = name.as_bytes();
        // Framing, expectations and the host are set anew.
        let is_set = match name.len() {
            4 => name.eq_ignore_ascii_case(b"host"),
            6 => name.eq_ignore_ascii_case(b"expect"),
            14 => name.eq_ignore_ascii_case(b"content-length"),
            _ => false,
        };
        if is_set || is_for_connection(name) || named.has(name) {
            continue;
        }
        if forwarded::is_forwarded(name) && (!trusts || forwarded::is_written(name)) {
            continue;
        }
        line(out, name, value);
    }
    if trusts {
        forwarded::append_trusting(out, request, peer, shared.scheme);
    } else {
        forwarded::append(out, &mut shared.lines.borrow_mut(), request, peer, shared.scheme);
    }
    out.extend_from_slice(b"Via: 1.1 pelton\r\n");
    if request.wants_upgrade() {
        fields.all("upgrade").for_each(|protocol| line(out, b"Upgrade", protocol));
    }
}

/// Appends the fields of a response that are passed on.
pub(super) fn response(out: &mut ResponseFields, head: &ResponseHead<'_>) {
    let fields = head.fields();
    let named = Named::of(fields);
    for (name, value) in fields {
        let name = name.as_bytes();
        if name.eq_ignore_ascii_case(b"content-length") {
            // The reader has parsed it, and knows whether it counts.
            continue;
        }
        let is_answer_to_upgrade = head.status() == 101 && name.eq_ignore_ascii_case(b"upgrade");
        if is_answer_to_upgrade || !is_for_connection(name) && !named.has(name) {
            out.append_parsed(name, value);
        }
    }
}

/// Appends the trailers that are passed on: not those that a reader could take for a part of the head (RFC 9110, section 6.5.1).
pub(super) fn trailers(out: &mut Vec<u8>, fields: Fields<'_>) {
    const IN_HEADS: [&str; 7] =
        ["content-length", "host", "trailer", "content-encoding", "content-type", "content-range", "set-cookie"];
    for (name, value) in fields {
        let name = name.as_bytes();
        let is_in_heads = IN_HEADS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        let is_credential = ["authorization", "cookie"].iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        if !is_in_heads && !is_credential && !is_for_connection(name) && !forwarded::is_forwarded(name) {
            line(out, name, value);
        }
    }
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
