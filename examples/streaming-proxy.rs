//! A streaming proxy in forty lines: bodies of any size in both directions, with back-pressure and in constant memory.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin streaming-proxy http://127.0.0.1:8080
//! http://127.0.0.1:43175 forwards to http://127.0.0.1:8080
//! ```

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;

use pelton::Reactor;
use pelton_http::client::{Client, Exchange, ResponseEvent, Settings};
use pelton_http::{BodyEvent, Request, Responder, Response, ResponseStream, SendState, Server};

/// The answer to the client: not begun, or on its way.
enum Answer {
    Due(Responder),
    Sent(ResponseStream),
}

fn forward(reactor: &mut Reactor, client: &Client, target: &str, request: Request<'_>, responder: Responder) {
    let mut onward = client.get(format!("{target}{}", request.target())).method(request.method_name());
    for (name, value) in request.fields() {
        onward = onward.header(name, value);
    }
    if request.content_length() != Some(0) {
        onward = onward.streamed_body(request.content_length());
    }
    let (answer, own) = (RefCell::new(Some(Answer::Due(responder))), Rc::new(RefCell::new(None::<Exchange>)));
    let (answer, exchange) = (Rc::new(answer), own.clone());
    let upstream = onward.stream(reactor, move |reactor, event| match (event, answer.take()) {
        (ResponseEvent::Head(head), Some(Answer::Due(responder))) => {
            let mut response = Response::new(head.status());
            head.fields().iter().for_each(|(name, value)| response.fields_mut().append(name, value));
            *answer.borrow_mut() = Some(Answer::Sent(responder.stream(reactor, response)));
        }
        (ResponseEvent::Data(data), Some(Answer::Sent(stream))) => match stream.send(reactor, data.to_vec()) {
            Ok(SendState::Ready) => *answer.borrow_mut() = Some(Answer::Sent(stream)),
            Ok(SendState::Full) => {
                let (exchange, answer) = (exchange.borrow().clone().expect("it was sent"), answer.clone());
                exchange.pause(reactor);
                stream.when_ready(reactor, move |reactor, stream| {
                    *answer.borrow_mut() = Some(Answer::Sent(stream));
                    exchange.resume(reactor);
                });
            }
            Err(_) => exchange.borrow().iter().for_each(|exchange| exchange.cancel(reactor)),
        },
        (ResponseEvent::End(_), Some(Answer::Sent(stream))) => stream.finish(reactor),
        (ResponseEvent::Failed(error), Some(Answer::Due(responder))) => {
            responder.respond(reactor, Response::plain_status(if error.is_timeout() { 504 } else { 502 }));
        }
        // Dropping the stream closes the connection, so the client notices.
        _ => {}
    });
    *own.borrow_mut() = Some(upstream.clone());
    let body = request.body();
    request.body().read(reactor, move |reactor, event| match event {
        BodyEvent::Data(data) => {
            if let Ok(SendState::Full) = upstream.send(reactor, data.to_vec()) {
                body.pause(reactor);
                let body = body.clone();
                upstream.when_ready(reactor, move |reactor| body.resume(reactor));
            }
        }
        BodyEvent::End(_) => upstream.finish(reactor),
        BodyEvent::Failed(_) => upstream.cancel(reactor),
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).ok_or("usage: streaming-proxy URL")?.trim_end_matches('/').to_owned();
    // Compressed bodies and redirects pass through as they are.
    let settings = Settings { decompresses: false, redirects: 0, user_agent: None, ..Settings::default() };
    let (client, to) = (Client::with_settings(settings), target.clone());
    let server = Server::new(move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        forward(reactor, &client, &to, request, responder);
    });
    let mut reactor = Reactor::new()?;
    let listener = server.listen(&mut reactor, "127.0.0.1:0")?;
    println!("http://{} forwards to {target}", reactor.listening_on(listener).expect("the listener was just started"));
    reactor.run()?;
    Ok(())
}
