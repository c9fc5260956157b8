//! The client's cookie jar.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::scripted::Scripted;
use pelton::Reactor;
use pelton_http::client::{Client, Cookies};
use pelton_testing::run_until;

#[test]
fn cookies_are_kept_and_sent_through_redirects() {
    let server = Scripted::new(|visitor| {
        while let Some(request) = visitor.request() {
            let answer = if request.starts_with("GET /login ") {
                "HTTP/1.1 302 Found\r\nSet-Cookie: session=7; Path=/\r\nSet-Cookie: b=c\r\nLocation: /home\r\nContent-Length: 0\r\n\r\n"
                    .to_owned()
            } else {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{request}", request.len())
            };
            visitor.send(answer);
        }
    });
    let mut reactor = Reactor::new().unwrap();
    let cookies = Cookies::new();
    let client = Client::builder().cookies(cookies.clone()).build();
    let mut fetch = |request: pelton_http::client::Request| {
        let answer = Rc::new(RefCell::new(None));
        let slot = answer.clone();
        request.send(&mut reactor, move |_, response| *slot.borrow_mut() = Some(response));
        run_until(&mut reactor, |_| answer.borrow().is_some());
        answer.take().unwrap().unwrap().text().into_owned()
    };
    let home = fetch(client.get(format!("{}login", server.url())));
    assert!(home.starts_with("GET /home ") && home.contains("Cookie: session=7; b=c\r\n"), "{home}");
    let own = fetch(client.get(server.url()).header("Cookie", "mine=1"));
    assert!(own.contains("Cookie: mine=1\r\n") && !own.contains("session"), "{own}");
    let other = fetch(client.get(server.url().replace("127.0.0.1", "localhost")));
    assert!(!other.contains("Cookie"), "{other}");
    assert_eq!(cookies.len(), 2);
}
