//! `pelton get`: downloads files over HTTP.
//!
//! `transfer.rs` is one download, `target.rs` is the file that it writes, `report.rs` prints progress and results, and `code.rs` maps
//! errors to exit codes.

mod code;
mod report;
mod target;
mod transfer;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use pelton::{Error, Reactor};
use pelton_http::client::{Client, Proxies, Proxy, Settings};

use self::report::Report;
use self::transfer::{Outcome, Transfer};
use crate::units;

/// How often the progress line is refreshed.
const PROGRESS: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct Options {
    /// URLs to download
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,

    /// File to write, or - for standard output; only with one URL
    #[arg(short, long, value_name = "FILE", conflicts_with = "directory")]
    output: Option<PathBuf>,

    /// Directory to write to; files are named by their URLs
    #[arg(short, long, value_name = "PATH", default_value = ".")]
    directory: PathBuf,

    /// Continues a download that was interrupted, if the file has not changed on the server
    #[arg(short, long)]
    resume: bool,

    /// Number of downloads at once
    #[arg(short, long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    parallel: u32,

    /// Expected SHA-256 of the file, in hexadecimal; only with one URL
    #[arg(long, value_name = "HASH", value_parser = target::hash)]
    sha256: Option<String>,

    /// Requests and prints the head only
    #[arg(short = 'I', long, conflicts_with_all = ["output", "resume", "sha256"])]
    head: bool,

    /// Prints a line of JSON for each URL
    #[arg(long)]
    json: bool,

    /// Prints no progress
    #[arg(short, long)]
    quiet: bool,

    /// Header field to send: 'Name: value'. May be repeated
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = field)]
    headers: Vec<(String, String)>,

    /// Time limit of each download
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration)]
    time_limit: Option<Duration>,

    /// Proxy for all URLs, instead of those in the environment: http://host:port or socks5://host:port
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,

    /// Trusts these authorities (PEM), instead of those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("give a field as 'Name: value'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Why nothing was downloaded.
pub enum Failure {
    /// The command line or the environment is invalid.
    Usage(String),
    Reactor(Error),
}

/// The state that all transfers share.
struct Shared {
    client: Client,
    report: Report,
    waiting: VecDeque<Transfer>,
    running: u32,
    /// The exit code: that of the first failure.
    code: u8,
}

fn client(options: &Options) -> Result<Client, String> {
    let proxies = match &options.proxy {
        Some(proxy) => Proxies::all(Proxy::new(proxy).map_err(|bad| format!("--proxy {bad}"))?),
        None => Proxies::from_environment().map_err(|bad| format!("the proxy in the environment: {bad}"))?,
    };
    // A download takes as long as it takes, and a file is what its hash says: as the server has it.
    let settings = Settings { whole: options.time_limit, retries: 2, decompresses: false, ..Settings::default() };
    let mut builder = Client::builder().settings(settings).proxies(proxies);
    if let Some(authorities) = &options.ca {
        let tls = pelton_tls::Client::builder().roots(authorities.clone()).alpn("http/1.1").build();
        builder = builder.tls(tls.map_err(|error| format!("--ca: {error}"))?);
    }
    Ok(builder.build())
}

/// Downloads everything. Returns the exit code.
pub fn run(options: &Options) -> Result<u8, Failure> {
    if options.urls.len() > 1 && (options.output.is_some() || options.sha256.is_some()) {
        return Err(Failure::Usage("--output and --sha256 are for a single URL".to_owned()));
    }
    let client = client(options).map_err(Failure::Usage)?;
    let waiting: VecDeque<Transfer> = options.urls.iter().map(|url| Transfer::new(url, options)).collect();
    let report = Report::new(options.json, options.quiet || options.head, waiting.len());
    let shared = Rc::new(RefCell::new(Shared { client, report, waiting, running: 0, code: 0 }));
    let mut reactor = Reactor::new().map_err(Failure::Reactor)?;
    let progress = shared.clone();
    reactor.every(PROGRESS, move |_, _| progress.borrow_mut().report.progress());
    start_more(&mut reactor, &shared, options.parallel);
    if shared.borrow().running > 0 {
        reactor.run().map_err(Failure::Reactor)?;
    }
    let shared = shared.borrow();
    Ok(shared.code)
}

/// Starts as many transfers as may run at once. Stops the reactor after the last.
fn start_more(reactor: &mut Reactor, shared: &Rc<RefCell<Shared>>, most: u32) {
    loop {
        let (transfer, client) = {
            let state = &mut *shared.borrow_mut();
            if state.running >= most {
                return;
            }
            let Some(transfer) = state.waiting.pop_front() else {
                if state.running == 0 {
                    state.report.clear();
                    reactor.stop();
                }
                return;
            };
            state.running += 1;
            (transfer, state.client.clone())
        };
        let (done, counting) = (shared.clone(), shared.clone());
        transfer.start(
            reactor,
            &client,
            move |bytes, total| counting.borrow_mut().report.received(bytes, total),
            move |reactor, outcome: Outcome| {
                {
                    let state = &mut *done.borrow_mut();
                    state.running -= 1;
                    if state.code == 0 {
                        state.code = outcome.code;
                    }
                    state.report.finished(&outcome);
                }
                start_more(reactor, &done, most);
            },
        );
    }
}
