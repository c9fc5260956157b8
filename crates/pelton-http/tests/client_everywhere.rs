//! The client in actors, in tasks of other loops, and from other threads.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use common::{Serve, Site};
use pelton::{Actor, Context, Handle, Pool, Reactor};
use pelton_http::client::{Error, Response};
use pelton_http::{Client, plain};
use pelton_testing::{On, on_every_engine};

on_every_engine![
    actors_send_requests_and_get_the_responses_as_messages,
    tasks_on_another_loop_send_requests,
    threads_share_a_client_and_a_loop,
];

fn site(on: On) -> Site {
    on.serve(plain(|request| format!("you asked for {}\n", request.path())))
}

/// An actor that fetches pages. The loop does the requests; the responses come back as messages.
struct Fetcher {
    client: Client,
    handle: Handle,
    address: String,
    fetched: mpsc::Sender<String>,
}

enum Message {
    Fetch(&'static str),
    Fetched(Box<Result<Response, Error>>),
}

impl Actor for Fetcher {
    type Message = Message;

    fn receive(&mut self, message: Message, context: &mut Context<'_, Message>) {
        match message {
            Message::Fetch(path) => {
                let (request, own) = (self.client.get(format!("http://{}{path}", self.address)), context.me().unwrap());
                let posted = self.handle.post(move |reactor| {
                    request.send(reactor, move |_, response| {
                        assert!(own.send(Message::Fetched(Box::new(response))).is_ok());
                    });
                });
                assert!(posted.is_ok());
            }
            Message::Fetched(response) => self.fetched.send(response.unwrap().text().into_owned()).unwrap(),
        }
    }
}

fn actors_send_requests_and_get_the_responses_as_messages(on: On) {
    let mut site = site(on);
    let (fetched, pages) = mpsc::channel();
    let (handle, address) = (site.reactor.handle(), site.address.clone());
    let pool = Pool::new().unwrap();
    let fetcher = pool.spawn(Fetcher { client: Client::new(), handle, address, fetched });
    for path in ["/a", "/b", "/c"] {
        assert!(fetcher.send(Message::Fetch(path)).is_ok());
    }
    let mut all = site.run(move |_| {
        let page = || pages.recv_timeout(common::DEADLINE).unwrap();
        [page(), page(), page()]
    });
    all.sort();
    assert_eq!(all, ["/a", "/b", "/c"].map(|path| format!("you asked for {path}\n")));
    drop(fetcher);
    pool.shutdown(Duration::from_secs(10)).unwrap();
}

fn tasks_on_another_loop_send_requests(on: On) {
    let mut site = site(on);
    let client = Client::new();
    let texts = site.run(move |address| {
        // The client is shared by two loops, each with its own connections.
        let mut other = Reactor::new().unwrap();
        let fetch = async {
            let first = client.get(format!("http://{address}/1")).await?;
            let second = client.get(format!("http://{address}/2")).await?;
            Ok::<_, Error>(format!("{}{}", first.text(), second.text()))
        };
        let texts = other.block_on(fetch).unwrap().unwrap();
        assert_eq!(client.connections(&mut other), (1, 1));
        texts
    });
    assert_eq!(texts, "you asked for /1\nyou asked for /2\n");
}

fn threads_share_a_client_and_a_loop(on: On) {
    let mut site = site(on);
    let (client, handle) = (Client::new(), site.reactor.handle());
    let statuses = site.run(move |address| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (client, handle) = (client.clone(), handle.clone());
                let url = format!("http://{address}/{number}");
                std::thread::spawn(move || client.get(url).reply(&handle).wait().unwrap().unwrap().status())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(statuses, [200; 4]);
    // Without a loop, the reply is lost instead of never given.
    let (client, handle) = (Client::new(), site.reactor.handle());
    drop(site);
    assert!(client.get("http://127.0.0.1:1/").reply(&handle).wait().is_err());
}
