//! `pelton-bench`: pelton against its peers.
//!
//! `harness`, `mark`, `machine`, `report`, `results` and `plot` do not depend on what is measured; `client`, `process`, `floor`,
//! `callgrind` and `installed` are for benchmarks of servers. Each benchmark is a module of contests next to them, and a
//! subcommand here.

#[cfg(not(target_os = "linux"))]
compile_error!("the benchmarks compare with bare eventfd and epoll loops, which only Linux has");

mod broker;
mod callgrind;
mod client;
mod floor;
mod harness;
mod http;
mod http_client;
mod installed;
mod machine;
mod mark;
mod net;
mod plot;
mod process;
mod proxy;
#[cfg(feature = "pyhost")]
mod pyhost;
mod python;
mod report;
mod results;
mod tls;
mod tls_client;
mod wheel;
mod work;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use harness::Standing;

/// Measures pelton against its peers.
///
/// Every benchmark runs its contenders in many short windows, interleaved (A, B, C, A, B, C, ...), after one warm-up round. The
/// table shows the best and the median window, processor time per operation, and the ratios of both to the best contender that is
/// not pelton in the same run, or to the floor. Pelton's rows are compared with a stated mark: `win`, `tie` (within 15 % of the
/// mark) or `lose`; or with a bound: `pass`, `tie` (above it by at most 5 %, the difference between a program and its copy) or
/// `miss`. A contender that did not do all of its work is an error.
#[derive(Parser)]
#[command(name = "pelton-bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The reactor without connections: timers, posts from other threads, wake-ups, idle turns, the cost of statistics.
    ///
    /// Examples:
    ///   pelton-bench wheel                              everything, a few minutes
    ///   pelton-bench wheel --quick                      a check that it runs, a few seconds
    ///   pelton-bench wheel --only posts --windows 30    one part, with more windows
    #[command(verbatim_doc_comment)]
    Wheel {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: wheel::Load,
    },
    /// Connections: echo servers under load, system calls, memory, short-lived connections.
    ///
    /// Each server is a process on one core; the load is on another. Pelton is compared with a hand-written epoll loop (the
    /// floor; it runs twice, to show how large a difference must be to mean anything), tokio, mio, calloop and monoio, and with
    /// Node and EventMachine if they are installed. strace counts system calls and valgrind counts instructions, if installed.
    ///
    /// Examples:
    ///   pelton-bench net                              everything, about ten minutes
    ///   pelton-bench net --quick                      a check that it runs, a few seconds
    ///   pelton-bench net --only churn --windows 40    one part, with more windows
    ///   pelton-bench net --only instructions          the cost of a change, without noise
    ///   pelton-bench net --only echo --loads 64x50 --contenders pelton
    ///                                                 one load, pelton against the floor
    #[command(verbatim_doc_comment)]
    Net {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: net::Load,
    },
    /// Work beside the loop: deferring, actors, tasks, promises, files.
    ///
    /// Pelton is compared with tokio, channels and rayon, an actor pool made of locks, actix, kameo and ractor (if built with the
    /// feature actor-peers, as `cargo xtask bench work` does), an actor thread pool in Java (if javac is installed), and the
    /// standard library.
    ///
    /// Examples:
    ///   pelton-bench work                             everything, about five minutes
    ///   pelton-bench work --quick                     a check that it runs, a few seconds
    ///   pelton-bench work --only actors --windows 30  one part, with more windows
    #[command(verbatim_doc_comment)]
    Work {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: work::Load,
    },
    /// HTTP: short responses, one at a time and pipelined, files, overload, idle connections.
    ///
    /// Each server is a process on one core; the load is wrk on another. Pelton is compared with a hand-written epoll loop that
    /// parses heads and always gives the same response (the floor, twice), hyper, actix-web and may_minihttp (if built with the
    /// feature http-peers, as `cargo xtask bench http` does), and nginx, Apache and Node if they are installed. valgrind counts
    /// instructions, if installed.
    ///
    /// Examples:
    ///   pelton-bench http                             everything, about fifteen minutes
    ///   pelton-bench http --quick                     a check that it runs, a few seconds
    ///   pelton-bench http --only files --windows 30   one part, with more windows
    ///   pelton-bench http --only hello --contenders pelton,nginx
    ///                                                 pelton and nginx against the floor
    #[command(verbatim_doc_comment)]
    Http {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: http::Load,
    },
    /// HTTP clients: requests in flight, plain and over TLS, a large download, memory of kept connections.
    ///
    /// Each client is a process on one core; the server is on another: a hand-written epoll loop, or pelton's server for TLS and
    /// files. Pelton's client is compared with hyper's and reqwest on tokio and libcurl's multi interface (if built with the
    /// feature client-peers, as `cargo xtask bench client` does), and with Node's undici and aiohttp, if they are installed.
    ///
    /// Examples:
    ///   pelton-bench client                           everything, a few minutes
    ///   pelton-bench client --quick                   a check that it runs, a few seconds
    ///   pelton-bench client --only plain --contenders pelton,hyper
    ///                                                 one part, pelton against hyper
    #[command(verbatim_doc_comment)]
    Client {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: http_client::Load,
    },
    /// TLS: echo servers over encrypted connections, HTTPS, full and resumed handshakes, idle connections.
    ///
    /// Each server is a process on one core; the load is on another. Pelton is compared with rustls on blocking threads (the
    /// floor), tokio-rustls, hyper on it, and nginx with OpenSSL if it is installed. An echoed message is also compared with
    /// the sum of one without TLS and of rustls in memory. Requests need wrk.
    ///
    /// Examples:
    ///   pelton-bench tls                              everything, a few minutes
    ///   pelton-bench tls --quick                      a check that it runs, a few seconds
    ///   pelton-bench tls --only handshakes            one part
    #[command(verbatim_doc_comment)]
    Tls {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: tls::Load,
    },
    /// Proxies: round trips, connections and bulk transfers through them, and idle pairs.
    ///
    /// Each proxy is a process on one core; the load and the target are on another. Pelton, as a library and as the command
    /// `pelton proxy` (which `cargo xtask bench proxy` builds), is compared with HAProxy, nginx's stream module and socat, if
    /// they are installed.
    ///
    /// Examples:
    ///   pelton-bench proxy                            everything, a few minutes
    ///   pelton-bench proxy --quick                    a check that it runs, a few seconds
    ///   pelton-bench proxy --only bulk --windows 5    one part
    #[command(verbatim_doc_comment)]
    Proxy {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: proxy::Load,
    },
    /// Python from Rust: functions and coroutines of a hosted Python, called from other threads.
    ///
    /// Pelton is compared with a bare eventfd (the floor of a round trip), a loop in Python (the floor of a call), and asyncio
    /// itself, all in the same process. Needs the feature pyhost, which `cargo xtask bench pyhost` enables, and the Python that
    /// PYO3_PYTHON names.
    ///
    /// Examples:
    ///   pelton-bench pyhost                           everything, about three minutes
    ///   pelton-bench pyhost --quick                   a check that it runs, a few seconds
    ///   pelton-bench pyhost --only latency            one part
    #[cfg(feature = "pyhost")]
    #[command(verbatim_doc_comment)]
    Pyhost {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: pyhost::Load,
    },
    /// asyncio loops: callbacks, servers under load, the cost of a connection and of the import.
    ///
    /// Pelton is compared with asyncio's own loop, uvloop, rloop and rsloop, as far as they are installed for the given Python.
    /// `cargo xtask bench python` provides one, with pelton built for it and the others installed. Each loop is a process on one
    /// core; the load is on another.
    ///
    /// Examples:
    ///   cargo xtask bench python                              everything, about ten minutes
    ///   cargo xtask bench python --quick                      a check that it runs
    ///   cargo xtask bench python --only 'protocol,TLS' --contenders uvloop --windows 15
    ///                                                         some rows against one loop, with more windows
    #[command(verbatim_doc_comment)]
    Python {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: python::Load,
    },
    /// Prints instructions per echoed message of the floor and of pelton, in user space. Needs valgrind.
    ///
    /// One line each: the name and the number. The same build always gives the same numbers.
    NetInstructions {
        /// Number of connections with a message for the server in every turn
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
        connections: u16,
        /// Number of messages to count over
        #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
        messages: u64,
        /// Fails if pelton executes more than this per message
        #[arg(long, value_name = "N")]
        at_most: Option<u64>,
        /// Echoes messages with a codec and a protocol, instead of bytes with a handler
        #[arg(long)]
        framed: bool,
    },
    /// Prints instructions per HTTP request of the floor and of pelton, in user space. Needs valgrind.
    ///
    /// One line each: the name and the number.
    HttpInstructions {
        /// Number of connections with a request for the server in every turn
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
        connections: u16,
        /// Number of requests to count over
        #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
        requests: u64,
        /// Fails if pelton executes more than this per request
        #[arg(long, value_name = "N")]
        at_most: Option<u64>,
    },
    /// Prints instructions of the Python module per callback, task, watched descriptor and echoed message. Needs valgrind.
    ///
    /// One line each: the name of the row and the number, without the instructions of the interpreter.
    PythonInstructions(python::Counting),
    /// Redis: messages and jobs.
    ///
    /// Pelton is compared with raw pipelined commands on a socket (the floor), the redis crate on tokio, ioredis and BullMQ on Node
    /// and arq on Python, which are installed below the target directory. Needs redis-server.
    ///
    /// Examples:
    ///   pelton-bench broker                              everything, about three minutes
    ///   pelton-bench broker --quick                      a check that it runs, a few seconds
    ///   pelton-bench broker --only jobs --windows 20     one part, with more windows
    #[command(verbatim_doc_comment)]
    Broker {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: broker::Load,
    },
    /// Runs one of the contenders of `broker`, which reads what to do until its parent exits.
    #[command(hide = true)]
    BrokerPlayer(broker::Playing),
    /// Runs one of the servers of `net`. Prints its port, and echoes until its parent exits.
    #[command(hide = true)]
    NetServer { server: net::Kind },
    /// Runs one of the servers of `http`. Prints its port, and serves until its parent exits.
    #[command(hide = true)]
    HttpServer(http::Serving),
    /// Runs one of the clients of `client`: sends as many requests as each line of its input says.
    #[command(hide = true)]
    ClientLoad(http_client::Fetching),
    /// Runs one of the proxies of `proxy`. Prints its port, and proxies until its parent exits.
    #[command(hide = true)]
    ProxyServer(proxy::Serving),
    /// Runs one of the servers of `tls`. Prints its port, and echoes until its parent exits.
    #[command(hide = true)]
    TlsServer(tls::Serving),
}

#[derive(Args)]
struct Output {
    /// Directory for the JSON and the SVG [default: bench/results; bench/target/quick for a partial or quick run]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Output {
    fn directory(self, whole: bool) -> PathBuf {
        // A quick or partial run must never replace a complete measurement.
        let default = if whole { "results" } else { "target/quick" };
        self.out.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(default))
    }
}

fn main() -> Result<()> {
    // Before anything is pinned.
    let machine = machine::Machine::this();
    match Cli::parse().bench {
        Bench::Wheel { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), wheel::run(&load)?);
            publish("wheel", "Pelton's wheel against its peers", &out, machine, &standings)
        }
        Bench::Net { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), net::run(&load)?);
            publish("net", "Pelton's connections against a bare epoll loop and its peers", &out, machine, &standings)
        }
        Bench::Work { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), work::run(&load)?);
            publish("work", "Pelton's work beside the loop against its peers", &out, machine, &standings)
        }
        Bench::Http { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), http::run(&load)?);
            publish("http", "Pelton's HTTP against a bare epoll loop and its peers", &out, machine, &standings)
        }
        Bench::Client { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), http_client::run(&load)?);
            publish("client", "Pelton's HTTP client against its peers", &out, machine, &standings)
        }
        Bench::Tls { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), tls::run(&load)?);
            publish("tls", "Pelton's TLS against rustls on threads and its peers", &out, machine, &standings)
        }
        Bench::Proxy { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), proxy::run(&load)?);
            publish("proxy", "Pelton's proxy against HAProxy, nginx and socat", &out, machine, &standings)
        }
        #[cfg(feature = "pyhost")]
        Bench::Pyhost { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), pyhost::run(&load)?);
            publish("pyhost", "Python from Rust, against a bare eventfd and asyncio itself", &out, machine, &standings)
        }
        Bench::Python { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), python::run(&load)?);
            publish("python", "pelton.Loop against other asyncio loops", &out, machine, &standings)
        }
        Bench::NetInstructions { connections, messages, at_most, framed } => {
            net::print_instructions(framed, connections.into(), messages, at_most)
        }
        Bench::HttpInstructions { connections, requests, at_most } => {
            http::print_instructions(connections.into(), requests, at_most)
        }
        Bench::PythonInstructions(counting) => python::print_instructions(&counting),
        Bench::Broker { output, load } => {
            let (out, standings) = (output.directory(load.is_whole()), broker::run(&load)?);
            publish("broker", "Pelton's messages and jobs on Redis against its peers", &out, machine, &standings)
        }
        Bench::BrokerPlayer(playing) => broker::play(&playing),
        Bench::NetServer { server } => net::serve(server),
        Bench::HttpServer(serving) => http::serve(&serving),
        Bench::ClientLoad(fetching) => http_client::fetch(&fetching),
        Bench::ProxyServer(serving) => proxy::serve(&serving),
        Bench::TlsServer(serving) => tls::serve(&serving),
    }
}

/// Prints the table and writes `<bench>.json` and `<bench>.svg` to `out`.
fn publish(bench: &str, title: &str, out: &Path, machine: machine::Machine, standings: &[Standing]) -> Result<()> {
    let commit = machine::commit(Path::new(env!("CARGO_MANIFEST_DIR")));
    let results = results::Results::new(bench, commit, machine, standings);
    std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let write = |extension: &str, text: String| {
        let path = out.join(bench).with_extension(extension);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write("json", results.to_json()?)?;
    write("svg", plot::svg(title, &results.caption(), standings))?;
    print!("{}", report::table(standings));
    println!("\n{}", results.caption());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
