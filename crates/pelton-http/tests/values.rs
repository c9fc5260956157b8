//! Decoding bodies and queries to values, and values as responses. Needs the features `json` and `forms`.

mod common;

use common::{On, Serve, on_every_engine, statuses};
use pelton::Reactor;
use pelton_http::{Request, Responder, Response, Router};
use serde::{Deserialize, Serialize};

on_every_engine![json_is_decoded_and_encoded, forms_and_queries_are_decoded, unexpected_values_get_400];

#[derive(Serialize, Deserialize)]
struct User {
    name: String,
    age: u32,
}

fn json(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().json(reactor, |reactor, user: Result<User, _>| match user {
        Ok(user) => responder.respond(reactor, Response::json(&User { age: user.age + 1, ..user })),
        Err(error) => responder.respond(reactor, error.response()),
    });
}

fn form(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().form(reactor, |reactor, user: Result<User, _>| match user {
        Ok(user) => responder.respond(reactor, format!("{} is {}\n", user.name, user.age)),
        Err(error) => responder.respond(reactor, error.response()),
    });
}

fn query(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    match request.query_as::<User>() {
        Ok(user) => responder.respond(reactor, format!("{} is {}\n", user.name, user.age)),
        Err(error) => responder.respond(reactor, error.response()),
    }
}

fn site() -> Router {
    Router::new().post("/json", json).post("/form", form).get("/query", query)
}

fn json_is_decoded_and_encoded(on: On) {
    let said = on.serve(site()).curl("--data {\"name\":\"ann\",\"age\":7} -i URL/json", Vec::new());
    assert!(said.contains("Content-Type: application/json\r\n"), "{said}");
    assert!(said.ends_with("\r\n\r\n{\"name\":\"ann\",\"age\":8}"), "{said}");
}

fn forms_and_queries_are_decoded(on: On) {
    let mut site = on.serve(site());
    assert_eq!(site.curl("--data-urlencode name=a&b --data age=7 URL/form", Vec::new()), "a&b is 7\n");
    assert_eq!(site.curl("URL/query?age=7&name=a%20b+c", Vec::new()), "a b c is 7\n");
}

fn unexpected_values_get_400(on: On) {
    let mut site = on.serve(site());
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let answer =
        site.ask(post("/json", "{\"name\":1}") + &post("/form", "name=x") + "GET /query HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(statuses(&answer), [400, 400, 400]);
    assert!(answer.contains("unexpected JSON: ") && answer.contains("missing field"), "{answer}");
    let unwritable = Response::json(&std::collections::HashMap::from([(vec![1], 2)]));
    assert!(unwritable.fields().fault().is_some());
}
