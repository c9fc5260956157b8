//! The tools that the tests need besides cargo. Missing ones are installed. A tool that cannot be installed is an error: a
//! silently skipped test is worse than a failing one.

use std::fs;

use crate::shell::{Failure, Shell};

/// A program that tests run.
struct Tool {
    program: &'static str,
    /// The Debian package that contains it.
    package: &'static str,
    /// A shell command that succeeds if the right program is installed.
    check: &'static str,
    what_for: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "strace", package: "strace", check: "strace --version", what_for: "to count system calls" },
    Tool { program: "socat", package: "socat", check: "socat -V", what_for: PEER },
    // Several programs have this name. With this one, the end of input can end the connection (-N).
    Tool { program: "nc", package: "netcat-openbsd", check: "nc -h 2>&1 | grep -q OpenBSD", what_for: PEER },
    Tool { program: "curl", package: "curl", check: "curl --version", what_for: PEER },
    Tool { program: "openssl", package: "openssl", check: "openssl version", what_for: TLS_PEER },
    Tool {
        program: "OpenSSL's headers",
        package: "libssl-dev",
        check: "pkg-config --exists openssl",
        what_for: "to build pelton-openssl",
    },
    Tool { program: "pkg-config", package: "pkg-config", check: "pkg-config --version", what_for: "to find OpenSSL" },
    Tool { program: "gnutls-cli", package: "gnutls-bin", check: "gnutls-cli --version", what_for: TLS_PEER },
    Tool { program: "sslscan", package: "sslscan", check: "sslscan --version", what_for: TLS_PEER },
    Tool { program: "valgrind", package: "valgrind", check: "valgrind --version", what_for: "to count instructions" },
    // It has no option that prints a version and succeeds.
    Tool { program: "wrk", package: "wrk", check: "command -v wrk", what_for: "to put HTTP servers under load" },
    Tool { program: "c++", package: "g++", check: "c++ --version", what_for: "to build the fuzzer" },
    Tool { program: "python3", package: "python3", check: "python3 -c 'import asyncio'", what_for: PEER },
    // Parts of Python that some distributions package separately.
    Tool {
        program: "Python's environments",
        package: "python3-venv",
        check: "python3 -c 'import ensurepip, venv'",
        what_for: "to install packages for tests of the Python front end",
    },
    Tool {
        program: "Python's own tests",
        package: PYTHON_TESTS,
        check: "python3 -c 'import test.test_asyncio'",
        what_for: "to test the Python front end with",
    },
    Tool {
        program: "python3-dbg",
        package: "python3-dbg",
        check: "python3-dbg -c 'import sys; sys.gettotalrefcount()'",
        what_for: "to run the Python front end with assertions",
    },
    Tool {
        program: "the tests of python3-dbg",
        package: PYTHON_TESTS,
        check: "python3-dbg -c 'import test.test_asyncio'",
        what_for: "to test the Python front end with assertions",
    },
    Tool { program: "ruby", package: "ruby", check: "ruby --version", what_for: RUBY },
    Tool {
        program: "Ruby's headers",
        package: "ruby-dev",
        check: "ruby -rrbconfig -e 'exit File.exist?(RbConfig::CONFIG[%q(rubyhdrdir)] + %q(/ruby.h))'",
        what_for: RUBY,
    },
    Tool {
        program: "libclang",
        package: "libclang-dev",
        check: "ls /usr/lib/llvm-*/lib/libclang.so /usr/lib/*/libclang*.so",
        what_for: "to read the headers of Ruby",
    },
    Tool {
        program: "test-unit",
        package: "ruby-test-unit",
        check: "ruby -e 'require %q(test/unit); Test::Unit::AutoRunner.need_auto_run = false'",
        what_for: RUBY,
    },
    Tool {
        program: "EventMachine",
        package: "ruby-eventmachine",
        check: "RUBYLIB= ruby -e 'require %q(rubyeventmachine)'",
        what_for: "to compare the Ruby front end with",
    },
    Tool {
        program: "ip",
        package: "iproute2",
        check: "ip -Version",
        what_for: "to run tests in a network of their own",
    },
    Tool { program: "memcached", package: "memcached", check: "memcached -V", what_for: PEER },
    Tool { program: "bundle", package: "ruby-bundler", check: "bundle --version", what_for: RUBY },
    Tool {
        program: "programs for EventMachine",
        package: "thin ruby-sinatra ruby-em-http-request ruby-em-websocket ruby-faye ruby-faye-websocket ruby-em-redis",
        check: "ruby -e '%w[thin sinatra/base em-http-request em-websocket faye faye/websocket em-redis].each { require _1 }'",
        what_for: "to run on the Ruby front end",
    },
    Tool {
        program: "faketime",
        package: "faketime",
        check: "ls /usr/lib/*/faketime/libfaketime.so.1",
        what_for: "to run workers whose clocks differ",
    },
    Tool { program: "erl", package: "erlang-base", check: "erl -noshell -eval 'halt().'", what_for: ERLANG },
    Tool { program: "ct_run", package: "erlang-common-test", check: "command -v ct_run", what_for: ERLANG },
    Tool { program: "redis-server", package: "redis-server", check: "redis-server --version", what_for: PEER },
];

/// Debian names this package after the version of Python; apt-get takes a pattern.
const PYTHON_TESTS: &str = "libpython3.*-testsuite";

const ERLANG: &str = "to build and test the Erlang front end";

const RUBY: &str = "to build and test the Ruby front end";

const PEER: &str = "as a peer to talk to";

const TLS_PEER: &str = "as a peer to talk to over TLS";

impl Tool {
    fn is_there(&self, shell: &Shell) -> bool {
        shell.program("sh", "-c").args([self.check.into()]).succeeds()
    }

    fn by_hand(&self) -> String {
        let Tool { program, package, what_for, .. } = self;
        format!("{program} is needed {what_for}; install the package `{package}` of your distribution")
    }
}

pub fn provide(shell: &Shell) -> Result<(), Failure> {
    provide_component(shell, "rustfmt", "fmt")?;
    provide_component(shell, "clippy", "clippy")?;
    if cfg!(target_os = "linux") {
        provide_tools(shell)?;
    }
    provide_python_peers(shell)
}

/// The Python packages that tests use as peers, one per line.
const PYTHON_PEERS: &str = "crates/pelton-http/tests/python/requirements.txt";

/// Succeeds if Python can import them.
const TRY_PYTHON_PEERS: &str = "import aiohttp, brotli";

/// Installs Python packages in an environment below the target directory, where the tests find it.
fn provide_python_peers(shell: &Shell) -> Result<(), Failure> {
    let environment = shell.target().join("peers");
    let (python, installed) = (environment.join("bin/python3"), environment.join("installed.txt"));
    let wanted = fs::read_to_string(shell.path(PYTHON_PEERS))
        .map_err(|error| Failure::new(format!("read {PYTHON_PEERS}: {error}")))?;
    let present = || {
        fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted)
            && shell.program(&python, "-c").args([TRY_PYTHON_PEERS.into()]).succeeds()
    };
    if present() {
        println!("aiohttp: found");
        return Ok(());
    }
    println!("aiohttp: missing; installing it");
    let install = || {
        shell.program("python3", "-m venv --clear").args([environment.clone().into()]).run()?;
        let pip = "-m pip install --quiet --disable-pip-version-check --no-input --requirement";
        shell.program(&python, pip).args([PYTHON_PEERS.into()]).run()?;
        fs::write(&installed, &wanted).map_err(|error| Failure::new(format!("write {}: {error}", installed.display())))
    };
    let by_hand = format!("aiohttp is needed {PEER}; pip installs it from {PYTHON_PEERS}, so pip must work");
    install().map_err(|failure: Failure| Failure::new(format!("{failure}\n{by_hand}")))?;
    if present() { Ok(()) } else { Err(still_missing(&[by_hand])) }
}

fn provide_component(shell: &Shell, component: &str, subcommand: &str) -> Result<(), Failure> {
    let present = || shell.cargo(&format!("{subcommand} --version")).succeeds();
    if present() {
        println!("{component}: found");
        return Ok(());
    }
    println!("{component}: missing; installing it");
    let by_hand = format!("{component} is needed; install it with: rustup component add {component}");
    let install = shell.program("rustup", &format!("component add {component}")).run();
    install.map_err(|failure| Failure::new(format!("{failure}\n{by_hand}")))?;
    if present() { Ok(()) } else { Err(still_missing(&[by_hand])) }
}

fn provide_tools(shell: &Shell) -> Result<(), Failure> {
    let missing = || TOOLS.iter().filter(|tool| !tool.is_there(shell));
    let wanted: Vec<&Tool> = missing().collect();
    for tool in TOOLS {
        let found = wanted.iter().all(|wanted| wanted.program != tool.program);
        println!("{}: {}", tool.program, if found { "found" } else { "missing; installing it" });
    }
    if wanted.is_empty() {
        return Ok(());
    }
    install(shell, &wanted).map_err(|failure| {
        let by_hand: Vec<String> = wanted.iter().map(|tool| tool.by_hand()).collect();
        Failure::new(format!("{failure}\n{}", by_hand.join("\n")))
    })?;
    let left: Vec<String> = missing().map(Tool::by_hand).collect();
    if left.is_empty() { Ok(()) } else { Err(still_missing(&left)) }
}

/// Installs all of them in one go, because updating the package lists takes longer than installing most packages.
fn install(shell: &Shell, tools: &[&Tool]) -> Result<(), Failure> {
    let apt = AptGet::find(shell).ok_or_else(|| {
        Failure::new("cannot install packages: that requires apt-get, and root or sudo without a password")
    })?;
    let packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    apt.run(shell, "update")?;
    // Recommended packages would bring a graphical desktop with Erlang.
    apt.run(shell, &format!("install -y --no-install-recommends {}", packages.join(" ")))
}

fn still_missing(by_hand: &[String]) -> Failure {
    Failure::new(format!("still not usable after installation:\n{}", by_hand.join("\n")))
}

/// Debian's package manager, and how to run it.
enum AptGet {
    AsRoot,
    WithSudo,
}

impl AptGet {
    fn find(shell: &Shell) -> Option<AptGet> {
        if !shell.program("apt-get", "--version").succeeds() {
            return None;
        }
        if shell.program("sh", "-c").args(["test \"$(id -u)\" = 0".into()]).succeeds() {
            return Some(AptGet::AsRoot);
        }
        // Without a password, or not at all: nobody may be there to type one.
        shell.program("sudo", "-n true").succeeds().then_some(AptGet::WithSudo)
    }

    fn run(&self, shell: &Shell, words: &str) -> Result<(), Failure> {
        match self {
            AptGet::AsRoot => shell.program("apt-get", words).env("DEBIAN_FRONTEND", "noninteractive").run(),
            AptGet::WithSudo => shell.program("sudo", &format!("-n apt-get {words}")).run(),
        }
    }
}
