//! `pelton bench`: sends a load of HTTP requests and reports how the server answered.
//!
//! Each thread runs a reactor with its share of the connections. `target.rs` parses the URL, `fetching.rs` sends requests with the
//! HTTP client and `pipelined.rs` several at once on a connection, `load.rs` decides when to send, `tally.rs` counts, and `report.rs` prints the result.

mod fetching;
mod load;
mod pipelined;
mod report;
mod tally;
mod target;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use pelton::{EngineKind, Error, Limit, Reactor, Reactors};
use pelton_http::client::Url;
use pelton_http::wire::responses::To;
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::SIGINT;

use crate::units;
use fetching::Requests;
use load::{Plan, Progress};
use report::Report;
use tally::Tally;

/// How often the progress line is refreshed.
const PROGRESS: Duration = Duration::from_millis(250);

#[derive(Args)]
pub struct Options {
    /// URL to request: http://host:port/path, or https://
    #[arg(value_name = "URL")]
    url: String,

    /// Number of connections, over all threads
    #[arg(short, long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,

    /// How long to run
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration)]
    duration: Duration,

    /// Number of requests to send; replaces --duration
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// Number of threads that send, each with its own reactor
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// Number of requests a connection may send before it waits for a response; more than 1 only over http://
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pipeline: u32,

    /// Requests per second, over all connections, sent at fixed times. Latency then counts from the time each request was due
    #[arg(long, value_name = "NUMBER", value_parser = rate)]
    rate: Option<f64>,

    /// Opens a new connection for each request
    #[arg(long, conflicts_with = "pipeline")]
    no_keepalive: bool,

    /// Request method
    #[arg(short, long, value_name = "NAME", default_value = "GET", value_parser = method)]
    method: String,

    /// Header field to send: 'Name: value'. May be repeated
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = field)]
    headers: Vec<(String, String)>,

    /// Request body; @FILE reads it from a file
    #[arg(short = 'b', long, value_name = "TEXT")]
    body: Option<String>,

    /// Connects to this Unix socket, whichever host the URL names
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// Trusts these authorities (PEM) for https://, instead of those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Does not verify the server's certificate
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,

    /// Deadline for a complete response, and for making a connection. A request that misses it has
    /// failed
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration)]
    timeout: Duration,

    /// Prints the result as JSON
    #[arg(long)]
    json: bool,

    /// Engine to run on, by name; see `pelton engines`
    #[arg(long, value_name = "NAME")]
    engine: Option<EngineKind>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.01..=1e8).contains(&rate) => Ok(rate),
        _ => Err("give a number of requests per second, from 0.01 to 100000000".to_owned()),
    }
}

fn method(text: &str) -> Result<String, String> {
    let fits =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte));
    if fits { Ok(text.to_owned()) } else { Err("a method is one word, such as GET".to_owned()) }
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("use the form 'Name: value'")?;
    method(name).map_err(|_| "a field name is one word, such as Accept")?;
    if value.contains(['\r', '\n', '\0']) {
        return Err("a field value is a single line".to_owned());
    }
    if ["connection", "content-length", "transfer-encoding"].contains(&name.to_ascii_lowercase().as_str()) {
        return Err(format!("{name} cannot be set: pelton bench sets it itself; see --no-keepalive and --body"));
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// Why there is no result.
pub enum Failure {
    /// The options make no sense.
    Usage(String),
    /// Something went wrong.
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::UnknownEngine(_) => Failure::Usage(format!("{}: {error}", pelton::ENGINE_VARIABLE)),
            _ => Failure::Other(error.to_string()),
        }
    }
}

/// Runs the load. Returns the text to print, and whether any request was answered.
pub fn run(options: &Options) -> Result<(String, bool), Failure> {
    let url = target::url(&options.url, options.unix.as_deref());
    let url = url.map_err(|why| Failure::Usage(format!("bench {}: {why}", options.url)))?;
    let plan = Arc::new(plan(options, &url)?);
    let progress = Arc::new(Progress::default());
    let (sender, done) = channel();
    let (engine, timeout) = (options.engine, options.timeout);
    let build = move |_| {
        let builder = Reactor::builder().limit(Limit::Connect, Some(timeout));
        match engine {
            Some(engine) => builder.engine(engine),
            None => builder,
        }
    };
    let (begun, cpu) = (Instant::now(), cpu_time());
    let of_all = (plan.clone(), progress.clone());
    let reactors = Reactors::start(plan.threads, build, move |thread, reactor| {
        load::start(reactor, &of_all.0, thread, &of_all.1, sender.clone())
    })?;
    let handles = reactors.handles().to_vec();
    // Ctrl-C ends the run early, with a report of the results so far.
    let signals = reactors.handles()[0].post_with_reply(move |reactor| {
        let interrupt = move |_: &mut Reactor, _| {
            for handle in &handles {
                let _ = handle.post(load::interrupt);
            }
        };
        reactor.on_signal(SIGINT, interrupt).map(drop)
    });
    // The run may have ended already.
    if let Ok(outcome) = signals.wait() {
        outcome?;
    }
    let tally = gather(&plan, &progress, &done, begun);
    let took = begun.elapsed();
    for exit in reactors.join() {
        exit?;
    }
    let report = Report::new(&options.url, &plan, tally, took, cpu_time().saturating_sub(cpu));
    let text = if options.json { report.to_json() } else { report.to_text() };
    Ok((text, report.is_success()))
}

fn plan(options: &Options, url: &Url) -> Result<Plan, Failure> {
    if options.method == "CONNECT" {
        return Err(Failure::Usage(
            "bench -m CONNECT: the response would open a tunnel, which cannot be measured".to_owned(),
        ));
    }
    if options.pipeline > 1 && url.is_https() {
        return Err(Failure::Usage("bench --pipeline: requests over https are not pipelined".to_owned()));
    }
    // Also a check that the name exists.
    let address = target::address(url, options.unix.as_deref()).map_err(Failure::Other)?;
    let body = match options.body.as_deref().map(|body| (body, body.strip_prefix('@'))) {
        None => None,
        Some((_, Some(path))) => {
            Some(std::fs::read(path).map_err(|error| Failure::Other(format!("read the body from {path}: {error}")))?)
        }
        Some((text, None)) => Some(text.as_bytes().to_vec()),
    };
    let mut fields = options.headers.clone();
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        // With a Unix socket, the URL still names the host.
        let asked = Url::parse(&options.url).map_err(|bad| Failure::Usage(bad.to_string()))?;
        let host = asked.origin().split_once("://").map_or("", |(_, host)| host);
        fields.insert(0, ("Host".to_owned(), host.to_owned()));
    }
    let mut request = format!("{} {} HTTP/1.1\r\n", options.method, url.target());
    fields.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
    if let Some(body) = &body {
        request.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    let request = [request.as_bytes(), body.as_deref().unwrap_or_default()].concat();
    if options.no_keepalive {
        fields.push(("Connection".to_owned(), "close".to_owned()));
    }
    let requests_to_send = Requests {
        url: url.clone(),
        method: options.method.clone(),
        fields,
        body: body.map(Into::into),
        tls: if url.is_https() { Some(tls(options)?) } else { None },
    };
    Ok(Plan {
        requests_to_send: Arc::new(requests_to_send),
        address,
        request,
        to: if options.method == "HEAD" { To::Head } else { To::Other },
        // More threads than connections would be idle.
        threads: options.threads.min(options.connections) as usize,
        connections: options.connections as usize,
        pipeline: options.pipeline as usize,
        keep_alive: !options.no_keepalive,
        duration: options.duration,
        requests: options.requests,
        rate: options.rate,
        timeout: options.timeout,
    })
}

fn tls(options: &Options) -> Result<pelton_tls::Client, Failure> {
    let mut builder = pelton_tls::Client::builder().alpn("http/1.1");
    if let Some(authorities) = &options.ca {
        builder = builder.roots(authorities);
    }
    if options.insecure {
        builder = builder.dangerous_without_verification();
    }
    builder.build().map_err(|error| Failure::Usage(format!("bench {}: {error}", options.url)))
}

/// Waits for the counts of all threads. Shows progress meanwhile if standard error is a terminal.
fn gather(plan: &Plan, progress: &Progress, done: &Receiver<Tally>, begun: Instant) -> Tally {
    let watched = std::io::stderr().is_terminal();
    let mut all = Tally::new();
    let (mut before, mut at) = (0, begun);
    loop {
        match done.recv_timeout(PROGRESS) {
            Ok(tally) => all.add(tally),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if watched => {
                let completed = progress.completed.load(Ordering::Relaxed);
                let rate = (completed - before) as f64 / at.elapsed().as_secs_f64().max(1e-9);
                (before, at) = (completed, Instant::now());
                let failed = progress.failed.load(Ordering::Relaxed);
                let so_far = match plan.requests {
                    Some(requests) => format!("{completed} of {requests}"),
                    None => format!("{:.0} of {:.0} s", begun.elapsed().as_secs_f64(), plan.duration.as_secs_f64()),
                };
                let _ = write!(std::io::stderr(), "\r\x1b[K{so_far}: {rate:.0} requests/s, {failed} failed");
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    if watched {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    all
}

/// Returns the processor time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_would_break_the_request_are_refused() {
        assert_eq!(field("Accept:  text/html "), Ok(("Accept".to_owned(), "text/html".to_owned())));
        for nonsense in ["Accept", ": x", "A b: c", "A: b\r\nC: d", "Content-Length: 5", "connection: close"] {
            assert!(field(nonsense).is_err(), "{nonsense:?}");
        }
        assert!(method("GET /").is_err());
        assert!(rate("0").is_err() && rate("NaN").is_err() && rate("1e3").is_ok());
    }
}
