//! Tests against curl and Python's http.client.

mod common;

use common::{On, Serve, on_every_engine};
use pelton::Reactor;
use pelton_http::{Handler, Request, Responder, Response, Router, plain};

on_every_engine![
    curl_gets_several_answers_over_one_connection,
    curl_posts_and_waits_for_continue,
    curl_sends_and_receives_chunks,
    curl_sees_heads_redirects_and_errors,
    python_uses_one_connection,
    python_notices_a_truncated_body,
];

fn sum(body: &[u8]) -> u64 {
    body.iter().map(|byte| u64::from(*byte)).sum()
}

/// Answers with the length of the body and the sum of its bytes.
fn measure(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().limit(10_000_000).collect(reactor, |reactor, body| match body {
        Ok(body) => responder.respond(reactor, format!("{} {}\n", body.len(), sum(&body))),
        Err(error) => responder.respond(reactor, error.response()),
    });
}

fn count(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    let stream = responder.stream(reactor, Response::text(""));
    for number in 0..1000 {
        stream.send(reactor, format!("{number}\n")).unwrap();
    }
    stream.finish(reactor);
}

fn cut_off(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    let stream = responder.stream(reactor, Response::text(""));
    stream.send(reactor, "some").unwrap();
}

fn site() -> impl Handler {
    Router::new()
        .get("/", plain(|_| "home\n"))
        .get("/users/{id}", plain(|request| format!("{}\n", request.parameter("id").unwrap_or_default())))
        .get("/old", plain(|_| Response::redirect(301, "/users/new")))
        .get("/count", count)
        .get("/cut", cut_off)
        .get("/none", plain(|_| Response::new(204)))
        .post("/", measure)
        .put("/", measure)
}

fn curl_gets_several_answers_over_one_connection(on: On) {
    let mut site = on.serve(site());
    let said = site.curl("-w %{num_connects}; URL/ URL/users/7 URL/users/a%20b", Vec::new());
    assert_eq!(said, "home\n1;7\n0;a b\n0;");
}

fn curl_posts_and_waits_for_continue(on: On) {
    let mut site = on.serve(site());
    let body: Vec<u8> = (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = format!("3000000 {}\n", sum(&body));
    assert_eq!(site.curl("--data-binary @- URL/", body.clone()), expected);
    let asked =
        site.curl("-w %{http_code} --expect100-timeout 10 -H Expect:100-continue -X PUT --data-binary @- URL/", body);
    assert_eq!(asked, expected + "200");
}

fn curl_sends_and_receives_chunks(on: On) {
    let mut site = on.serve(site());
    let said = site.curl("-T - -H Transfer-Encoding:chunked URL/", b"abc".repeat(100_000));
    assert_eq!(said, format!("300000 {}\n", sum(b"abc") * 100_000));
    let numbers: String = (0..1000).map(|number| format!("{number}\n")).collect();
    assert_eq!(site.curl("URL/count", Vec::new()), numbers);
    assert_eq!(site.curl("--http1.0 URL/count", Vec::new()), numbers);
}

fn curl_sees_heads_redirects_and_errors(on: On) {
    let mut site = on.serve(site());
    let head = site.curl("-I URL/", Vec::new());
    assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(site.curl("-L URL/old", Vec::new()), "new\n");
    assert_eq!(site.curl("-w %{http_code} URL/none", Vec::new()), "204");
    assert_eq!(site.curl("-w %{http_code} -o /dev/null -X DELETE URL/", Vec::new()), "405");
    assert_eq!(site.curl("-w %{http_code} -o /dev/null URL/nothing", Vec::new()), "404");
}

const TALK: &str = "
import http.client, sys
c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)
socket = None
for method, path, body, expected in [
    ('GET', '/', None, b'home\\n'),
    ('POST', '/', b'abc', b'3 294\\n'),
    ('HEAD', '/', None, b''),
    ('PUT', '/', iter([b'ab', b'c']), b'3 294\\n'),
    ('GET', '/none', None, b''),
    ('GET', '/users/x', None, b'x\\n'),
]:
    c.request(method, path, body, encode_chunked=not isinstance(body, (bytes, type(None))),
              headers={} if isinstance(body, (bytes, type(None))) else {'Transfer-Encoding': 'chunked'})
    r = c.getresponse()
    assert r.read() == expected, (method, path)
    assert r.getheader('Date'), r.getheaders()
    assert socket in (None, c.sock), 'another connection'
    socket = c.sock
print('fine')
";

fn python_uses_one_connection(on: On) {
    assert_eq!(on.serve(site()).python(TALK), "fine\n");
}

const BROKEN: &str = "
import http.client, sys
c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)
c.request('GET', '/count')
assert c.getresponse().read() == b''.join(b'%d\\n' % n for n in range(1000))
c.request('GET', '/cut')
try:
    c.getresponse().read()
except http.client.IncompleteRead as error:
    print(error.partial)
";

fn python_notices_a_truncated_body(on: On) {
    assert_eq!(on.serve(site()).python(BROKEN), "b'some'\n");
}
