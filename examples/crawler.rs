//! A crawler with bounded concurrency and politeness: at most eight requests at once, and a pause between two requests to a host.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin crawler
//! http://127.0.0.1:43175/0: 2 links
//! http://127.0.0.1:43175/1: 2 links
//! …
//! 31 pages of 1 host, at most 8 requests at once
//! $ cargo run -p pelton-examples --bin crawler http://example.org/
//! ```
//!
//! It stays on the host that it begins with, follows no more than 100 links, and reads no page larger than 1 MiB.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use pelton::{Reactor, Time, task};
use pelton_http::client::{Client, Response, Settings, Url};
use pelton_http::{Router, Server, plain};

const AT_ONCE: usize = 8;
const PAGES: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// The links of a page to the same host. A real crawler would parse the HTML.
fn links(page: &Response) -> Vec<Url> {
    let text = page.text();
    let targets = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let urls = targets.filter_map(|target| page.url().join(target).ok());
    urls.filter(|url| url.origin() == page.url().origin()).collect()
}

async fn crawl(start: Url) -> (usize, usize, usize) {
    let client = Client::with_settings(Settings { body: 1 << 20, ..Settings::default() });
    let mut seen = HashSet::from([start.as_str().to_owned()]);
    let mut frontier = VecDeque::from([start]);
    // When each host may be asked again.
    let mut next: HashMap<String, Time> = HashMap::new();
    let mut running = FuturesUnordered::new();
    let (mut pages, mut most) = (0, 0);
    loop {
        while running.len() < AT_ONCE
            && let Some(url) = frontier.pop_front()
        {
            let now = Reactor::with_current(|reactor| reactor.now()).expect("this is a task");
            let slot = next.entry(url.host().to_owned()).or_insert(now);
            let at = (*slot).max(now);
            *slot = at + PAUSE;
            let client = client.clone();
            running.push(async move {
                task::sleep_until(at).await;
                client.get(&url).await
            });
            most = most.max(running.len());
        }
        match running.next().await {
            None => return (pages, next.len(), most),
            Some(Err(error)) => println!("{error}"),
            Some(Ok(page)) => {
                pages += 1;
                let links = links(&page);
                println!("{}: {} links", page.url(), links.len());
                let new = links.into_iter().filter(|url| seen.len() < PAGES && seen.insert(url.as_str().to_owned()));
                frontier.extend(new.collect::<Vec<_>>());
            }
        }
    }
}

/// Serves a tree of 31 pages, each of which links to two others.
fn serve_tree(reactor: &mut Reactor) -> Result<String, Box<dyn Error>> {
    let page = plain(|request| {
        let number: u32 = request.plain_parameter("number").and_then(|number| number.parse().ok()).unwrap_or(0);
        let link = |number: u32| format!("<a href=\"{}\">next</a>\n", if number < 31 { number } else { 0 });
        pelton_http::Response::html(link(2 * number + 1) + &link(2 * number + 2))
    });
    let listener = Server::new(Router::new().get("/{number}", page)).listen(reactor, "127.0.0.1:0")?;
    Ok(format!("http://{}/0", reactor.listening_on(listener).expect("the listener was just started")))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let start = match std::env::args().nth(1) {
        Some(url) => url,
        None => serve_tree(&mut reactor)?,
    };
    let (pages, hosts, most) = reactor.block_on(crawl(start.parse()?))?;
    println!("{pages} pages of {hosts} host, at most {most} requests at once");
    Ok(())
}
