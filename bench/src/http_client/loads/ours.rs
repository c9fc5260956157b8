//! Pelton's client in its usual configuration, with callbacks.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use pelton::Reactor;
use pelton_http::client::{Client, ResponseEvent, Settings, Url};

/// The requests of an order.
struct Order {
    client: Client,
    url: Url,
    left: Cell<u32>,
    unanswered: Cell<u32>,
    failed: Cell<u32>,
}

pub fn fetch(url: &str, in_flight: u32, certificate: &Path) -> Result<()> {
    let settings = Settings {
        per_origin: in_flight as usize,
        connections: in_flight as usize,
        // As the others: these are not limited, and do not ask for compression.
        whole: None,
        decompresses: false,
        ..Settings::default()
    };
    let mut builder = Client::builder().settings(settings);
    if url.starts_with("https:") {
        let tls = pelton_tls::Client::builder().roots(certificate).alpn("http/1.1").build();
        builder = builder.tls(tls.context("configure TLS")?);
    }
    let (client, url) = (builder.build(), Url::parse(url)?);
    let mut reactor = Reactor::new().context("make a reactor")?;
    let order = Order { client, url, left: Cell::new(0), unanswered: Cell::new(0), failed: Cell::new(0) };
    let order = Rc::new(order);
    super::obey(move |count| {
        order.left.set(count);
        order.unanswered.set(count);
        (0..in_flight.min(count)).for_each(|_| next(&mut reactor, &order));
        while order.unanswered.get() > 0 {
            reactor.turn(None)?;
        }
        ensure!(order.failed.get() == 0, "{} requests have failed", order.failed.get());
        Ok(())
    })
}

fn next(reactor: &mut Reactor, order: &Rc<Order>) {
    let Some(left) = order.left.get().checked_sub(1) else { return };
    order.left.set(left);
    let own = order.clone();
    order.client.get(&order.url).stream(reactor, move |reactor, event| match event {
        ResponseEvent::Head(head) if head.status() != 200 => own.failed.set(own.failed.get() + 1),
        ResponseEvent::End(_) => {
            own.unanswered.set(own.unanswered.get() - 1);
            next(reactor, &own);
        }
        ResponseEvent::Failed(error) => {
            eprintln!("{error}");
            own.failed.set(own.failed.get() + 1);
            own.unanswered.set(own.unanswered.get() - 1);
        }
        _ => {}
    });
}
