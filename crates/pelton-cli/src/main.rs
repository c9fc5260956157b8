//! The `pelton` command.

#![forbid(unsafe_code)]

mod bench;
mod chat;
mod echo;
mod engines;
mod get;
mod jobs;
mod logging;
mod pages;
mod proxy;
mod serve;
mod service;
mod serving;
mod units;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

/// The command line of Pelton, a reactor
#[derive(Parser)]
#[command(name = "pelton", version, arg_required_else_help = true)]
#[command(after_help = "\
Environment:
  PELTON_ENGINE   Engine to run on, by name; see `pelton engines`

Exit codes: 0 success, 1 failure, 2 invalid command line or environment")]
struct Cli {
    /// Log level, on standard error
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn")]
    log_level: LogLevel,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the engines that this system has, and the one that a reactor would use.
    ///
    /// An engine is how a reactor waits for events. A reactor uses the best one that the system has, unless the environment
    /// variable PELTON_ENGINE names another. If that one is unavailable, the reactor uses the best one and logs a warning.
    ///
    /// Examples:
    ///   pelton engines                        engines here, and the default
    ///   PELTON_ENGINE=poll pelton engines     whether poll is available
    ///   pelton engines --log-level debug      also why others were passed over
    #[command(verbatim_doc_comment)]
    Engines,

    /// Serves a directory over HTTP/1.1, or a welcome page.
    ///
    /// Prints a line with the URL of each address once it accepts connections. With a certificate (--tls-cert, --tls-dir or
    /// --tls-self-signed), it speaks HTTPS.
    ///
    /// Signals:
    ///   SIGTERM, SIGINT   stop accepting, answer outstanding requests, exit; the second time, exit at once
    ///   SIGHUP            reopen the access log, after it was moved away; reload certificates
    ///   SIGUSR2           start a new process from the same path with the same arguments, pass it the sockets, and
    ///                     exit once it serves: no connection is refused, no request lost
    ///
    /// Exit codes: 0 everything was answered or handed over; 1 failure; 2 invalid command line or environment; 3 cannot listen; 4
    /// requests were cut off, by --drain-time or by a second signal.
    ///
    /// Examples:
    ///   pelton serve                             the welcome page, on 127.0.0.1:8080
    ///   pelton serve public                      the files in public/
    ///   pelton serve public --listen '[::]:8080' --workers auto
    ///                                            to the whole network, on all processors
    ///   pelton serve public --listen '[::]:443' --redirect-http '[::]:80' --tls-dir /etc/tls --user www-data
    ///                                            HTTPS on the open Internet, not as root
    ///   pelton serve public --listen unix:/run/pelton.sock --socket-mode 660
    ///                                            behind a server that terminates TLS
    ///   pelton serve --access-log - --log-format json
    ///                                            with a JSON line per request, for a pipe
    ///   pelton serve --admin 127.0.0.1:9090      with /metrics and /health
    ///   kill -USR2 $(cat pelton.pid)             replace a server started with --pid-file pelton.pid
    #[command(verbatim_doc_comment)]
    Serve(Box<serve::Options>),

    /// Forwards connections to one of several targets: TCP, Unix sockets and TLS.
    ///
    /// Bytes go both ways unchanged, and so do half-closes and resets. TLS can be terminated (--tls-cert), spoken to the targets
    /// (--to-tls), or passed through to a target that the client's TLS hello names (--to-sni). If a target does not accept, the
    /// client gets another one. Prints a line for each address once it accepts connections.
    ///
    /// The access log has one line per connection: time, client, target, TLS name, bytes to the target, bytes to the client,
    /// seconds, and why it ended.
    ///
    /// Signals:
    ///   SIGTERM, SIGINT   stop accepting, wait for connections to end, exit; the second time, exit at once
    ///   SIGHUP            reopen the access log, reload certificates
    ///   SIGUSR2           start a new process from the same path with the same arguments, pass it the sockets, and
    ///                     exit once it serves and the connections here have ended: no connection is refused
    ///
    /// Exit codes: 0 all connections had ended; 1 failure; 2 invalid command line or environment; 3 cannot listen; 4 connections
    /// were cut off, by --drain-time or by a second signal.
    ///
    /// Examples:
    ///   pelton proxy --listen 127.0.0.1:8080 --to 192.0.2.1:80
    ///                                            one target
    ///   pelton proxy -l '[::]:5432' --to 10.0.0.1:5432,10.0.0.2:5432 --check-interval 2s
    ///                                            two, and not those that do not accept
    ///   pelton proxy -l 0.0.0.0:443 --tls-cert site.pem --tls-key site.key --to unix:/run/app.sock
    ///                                            terminate TLS in front of a Unix socket
    ///   pelton proxy -l 0.0.0.0:443 --to-sni www.example.org=10.0.0.1:443 --to-sni '*.example.com=10.0.0.2:443'
    ///                                            choose by name, without keys
    ///   pelton proxy -l 127.0.0.1:5000 --to db.example.org:5433 --to-tls
    ///                                            TLS for a client that has none
    ///   pelton proxy -l 0.0.0.0:80 --to 10.0.0.1:8080 --send-proxy v2 --access-log -
    ///                                            tell the target who the client is
    #[command(verbatim_doc_comment)]
    Proxy(Box<proxy::Options>),

    /// Sends requests to an HTTP server and reports throughput and latency.
    ///
    /// Without --rate, each connection sends its next request when it has the response: this measures throughput. With --rate,
    /// requests are due at fixed times, and latency counts from then, even if all connections were busy: this measures how long
    /// clients wait. Responses are parsed strictly, and a malformed one is an error. Ctrl-C ends the run early.
    ///
    /// Exit codes: 0 at least one request was answered; 1 none was, or another failure; 2 invalid command line.
    ///
    /// Examples:
    ///   pelton bench http://127.0.0.1:8080/                 for ten seconds, on 50 connections
    ///   pelton bench http://127.0.0.1:8080/ -c 500 -t 2 -d 30s
    ///                                                       on 500, from two threads
    ///   pelton bench http://127.0.0.1:8080/ --rate 1000     latency at 1,000 requests per second
    ///   pelton bench http://127.0.0.1:8080/ --pipeline 16   sixteen at a time on each connection
    ///   pelton bench http://localhost/ --unix /run/pelton.sock --json
    ///                                                       over a Unix socket, for a program to read
    #[command(verbatim_doc_comment)]
    Bench(bench::Options),

    /// Downloads files over HTTP and HTTPS.
    ///
    /// A file is written under a temporary name, NAME.part, and gets its own when it is complete. With --resume, an interrupted
    /// download continues if the server says that the file is still the same. Proxies are taken from the environment.
    ///
    /// Exit codes, as curl's: 0 success; 1 another hash than expected; 2 invalid command line; 3 invalid URL; 6 unknown host; 7 not
    /// connected; 8 malformed response; 18 incomplete; 22 status 400 or above; 23 cannot write; 28 timeout; 33 cannot resume; 35 TLS
    /// failed; 47 redirect not followed; 52 no response; 60 certificate not valid; 97 proxy failed. With several URLs, that of the
    /// first failure.
    ///
    /// Examples:
    ///   pelton get https://example.org/a.tar.gz             to a.tar.gz
    ///   pelton get -o - http://127.0.0.1:8080/              to standard output
    ///   pelton get -r https://example.org/a.tar.gz          continues after an interruption
    ///   pelton get -p 8 -d files https://example.org/1 https://example.org/2
    ///                                                       several at once
    ///   pelton get --head --json https://example.org/       the head, for a program to read
    #[command(verbatim_doc_comment)]
    Get(Box<get::Options>),

    /// Enqueues jobs, works them off with a command, and looks at them.
    ///
    /// Jobs are kept in a STORE: file:/directory for this machine, or redis://host, rediss://host, unix:///path or
    /// redis+sentinel://host/name for many. Each job runs at least once; it is tried again if its command fails or its worker dies,
    /// and ends in the dead-letter list if that does not help. A directory can be used by one process at a time.
    ///
    /// Examples:
    ///   pelton jobs enqueue redis://localhost mail '{"to": "ana"}' --key ana
    ///                                             one job; those of a key run one after the other
    ///   pelton jobs work redis://localhost mail -c 8 -- ./send-mail
    ///                                             eight at a time; the payload is on standard input
    ///   pelton jobs top redis://localhost         a live table of all queues
    ///   pelton jobs list redis://localhost mail --state dead
    ///                                             what failed, and why
    ///   pelton jobs requeue redis://localhost mail --all
    ///                                             tries these again
    #[command(verbatim_doc_comment)]
    Jobs(jobs::Options),

    /// Prints a completion script for a shell.
    ///
    /// Examples:
    ///   pelton completions bash > ~/.local/share/bash-completion/completions/pelton
    ///   pelton completions fish > ~/.config/fish/completions/pelton.fish
    ///   pelton completions zsh > ~/.zfunc/_pelton    with ~/.zfunc in $fpath
    #[command(verbatim_doc_comment)]
    Completions(pages::CompletionOptions),

    /// Prints the manual page of this command, or of a subcommand.
    ///
    /// Examples:
    ///   pelton man serve | man -l -                  reads it
    ///   pelton man --directory /usr/local/share/man/man1
    ///                                                installs all of them
    #[command(verbatim_doc_comment)]
    Man(pages::ManOptions),

    /// Sends back all input: for trying out a client, or telnet.
    ///
    /// Prints the addresses that it listens on. On Ctrl-C or SIGTERM it stops accepting, sends what is queued, and exits within
    /// ten seconds; the second time it exits at once.
    ///
    /// Examples:
    ///   pelton echo                              on 127.0.0.1:7007; try `telnet 127.0.0.1 7007`
    ///   pelton echo --listen 127.0.0.1:0         on any free port
    ///   pelton echo --listen unix:/tmp/e.sock    on a Unix socket
    ///   pelton echo --listen '[::]:7007' --workers auto
    ///                                            to the whole network, on all processors
    ///   pelton echo --spin 50                    lower latency for more processor time
    #[command(verbatim_doc_comment)]
    Echo(echo::Options),

    /// Runs a chat room: connect with telnet, enter a name, and type.
    ///
    /// Everybody sees what the others type. /who lists the guests, /me describes an action, /quit leaves, /help lists these. A
    /// line has up to 1024 bytes. A guest that does not read is dropped, with a warning, when 128 KiB are queued for it.
    ///
    /// Prints the addresses that it listens on. On Ctrl-C or SIGTERM it says goodbye and exits within ten seconds; the second
    /// time it exits at once.
    ///
    /// Examples:
    ///   pelton chat                              on 127.0.0.1:7008; try `telnet 127.0.0.1 7008`, twice
    ///   pelton chat --listen 0.0.0.0:7008        for the whole network
    ///   pelton chat --listen 127.0.0.1:7008 --listen unix:/tmp/chat.sock
    ///                                            one room, two ways in; try `nc -U /tmp/chat.sock`
    ///   pelton chat --workers auto               on all processors, and still one room
    ///   pelton chat --broker redis://localhost   one room with all other servers on this broker
    #[command(verbatim_doc_comment)]
    Chat(chat::Options),
}

#[derive(Clone, Copy, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> LevelFilter {
        match level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(LevelFilter::from(cli.log_level));
    let outcome = match cli.command {
        Command::Serve(options) => return serve(&options),
        Command::Proxy(options) => return proxy(&options),
        Command::Bench(options) => return bench(&options),
        Command::Get(options) => return get(&options),
        Command::Jobs(options) => return jobs(&options),
        Command::Completions(options) => return printed(Ok(pages::completions(Cli::command(), &options))),
        Command::Man(options) => match pages::man(Cli::command(), &options) {
            Err(pages::Failure::NoPage(why)) => {
                logging::fail(why);
                return ExitCode::from(2);
            }
            Err(pages::Failure::Write(why)) => return printed(Err(why)),
            Ok(page) => return printed(Ok(page)),
        },
        Command::Engines => engines::report(),
        Command::Echo(options) => echo::run(&options, print).map(|()| String::new()),
        Command::Chat(options) => match chat::run(&options, print) {
            Err(chat::Failure::Usage(why)) => {
                logging::fail(why);
                return ExitCode::from(2);
            }
            Err(chat::Failure::Other(error)) => Err(error),
            Ok(()) => Ok(String::new()),
        },
    };
    let printed = match outcome {
        Ok(text) => print(&text),
        Err(error @ pelton::Error::UnknownEngine(_)) => {
            logging::fail(format_args!("{}: {error}", pelton::ENGINE_VARIABLE));
            return ExitCode::from(2);
        }
        Err(error) => {
            logging::fail(error);
            return ExitCode::FAILURE;
        }
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::fail(format_args!("write to standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &serve::Options) -> ExitCode {
    let say = announce(options.access_log.as_deref());
    ended(serve::run(options, say))
}

fn proxy(options: &proxy::Options) -> ExitCode {
    let say = announce(options.access_log.as_deref());
    ended(proxy::run(options, say))
}

/// Returns what prints the addresses: to standard output, unless the access log goes there.
fn announce(access_log: Option<&std::path::Path>) -> impl Fn(&str) -> io::Result<()> {
    // Otherwise the output would be interleaved with the log.
    let logs_to_stdout = access_log == Some(std::path::Path::new("-"));
    move |line: &str| if logs_to_stdout { io::stderr().write_all(line.as_bytes()) } else { print(line) }
}

/// Returns the exit code of a server, and prints why it failed.
fn ended(outcome: Result<serve::Ended, serve::Failure>) -> ExitCode {
    let (text, code) = match outcome {
        Ok(serve::Ended::Drained) => return ExitCode::SUCCESS,
        Ok(serve::Ended::CutShort) => return ExitCode::from(4),
        Err(serve::Failure::Usage(text)) => (text, 2),
        Err(serve::Failure::Listen(text)) => (text, 3),
        Err(serve::Failure::Other(error @ pelton::Error::UnknownEngine(_))) => {
            (format!("{}: {error}", pelton::ENGINE_VARIABLE), 2)
        }
        Err(serve::Failure::Files(error)) => (error.to_string(), 1),
        Err(serve::Failure::Tls(error)) => (error.to_string(), 1),
        Err(serve::Failure::Other(error)) => (error.to_string(), 1),
    };
    logging::fail(text);
    ExitCode::from(code)
}

fn get(options: &get::Options) -> ExitCode {
    match get::run(options) {
        Ok(code) => ExitCode::from(code),
        Err(get::Failure::Usage(why)) => {
            logging::fail(why);
            ExitCode::from(2)
        }
        Err(get::Failure::Reactor(error)) => {
            logging::fail(error);
            ExitCode::FAILURE
        }
    }
}

fn jobs(options: &jobs::Options) -> ExitCode {
    match jobs::run(options, print) {
        Ok(code) => ExitCode::from(code),
        Err(jobs::Failure::Usage(why)) => {
            logging::fail(why);
            ExitCode::from(2)
        }
        Err(jobs::Failure::Other(why)) => {
            logging::fail(why);
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &bench::Options) -> ExitCode {
    match bench::run(options) {
        Ok((text, true)) => printed(Ok(text.into_bytes())),
        Ok((text, false)) => {
            printed(Ok(text.into_bytes()));
            ExitCode::FAILURE
        }
        Err(bench::Failure::Usage(why)) => {
            logging::fail(why);
            ExitCode::from(2)
        }
        Err(bench::Failure::Other(why)) => printed(Err(why)),
    }
}

/// Prints the outcome, to standard output or standard error.
fn printed(outcome: Result<Vec<u8>, String>) -> ExitCode {
    let why = match outcome.map(|text| print_bytes(&text)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => format!("write to standard output: {error}"),
        Err(why) => why,
    };
    logging::fail(why);
    ExitCode::FAILURE
}

/// Prints to standard output. A reader that closes early, such as `head`, is no failure.
fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(text: &[u8]) -> io::Result<()> {
    match io::stdout().write_all(text).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
