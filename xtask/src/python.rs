//! The Python front end: built for each installed Python, and tested there.

mod checks;
mod environment;
mod hosting;
mod interpreters;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::shell::{Failure, Shell, Task};
use crate::soak::Progress;
use environment::{build, cargo, pip, with_packages};
pub use interpreters::{Python, find};

/// Modules of CPython's tests that run on every version: they show differences between versions.
const SLICE: &str = "test_base_events test_events test_selector_events test_server test_streams test_tasks";

/// The crates of the front end. Those above `pelton-cpython` get their features from `pelton-python`.
const CRATES: &str = "-p pelton-cpython -p pelton-asyncio -p pelton-pyhost -p pelton-python";

/// How many connections the leak tests open, one after the other; 100,000 would take too long for every run.
const CONNECTIONS_OF_A_SOAK: &str = "100000";

/// A Python, with the package built for it.
struct Built<'a> {
    shell: &'a Shell,
    python: Python,
    package: PathBuf,
}

impl<'a> Built<'a> {
    fn new(shell: &'a Shell, python: Python) -> Result<Built<'a>, Failure> {
        let package = build(shell, &python)?;
        Ok(Built { shell, python, package })
    }

    fn run(&self, words: &str) -> Task<'a> {
        self.run_by(&self.python.program, words)
    }

    fn run_by(&self, program: &Path, words: &str) -> Task<'a> {
        // A user's preferred engine must not change what is tested.
        self.run_on("", program, words)
    }

    fn run_on(&self, engine: &str, program: &Path, words: &str) -> Task<'a> {
        self.shell.program(program, words).env("PYTHONPATH", &self.package).env("PELTON_ENGINE", engine)
    }

    fn conformance(&self, words: &str) -> Result<(), Failure> {
        if !self.python.has_tests {
            return Err(Failure::new(format!(
                "{} comes without CPython's own tests; install them (Debian has them in libpython3.X-testsuite)",
                self.python.program.display()
            )));
        }
        self.run(&format!("python/tests/conformance.py {words}")).run()
    }

    fn own_tests(&self) -> Result<(), Failure> {
        self.run("-m unittest discover -s python/tests").within(OWN_TESTS_DEADLINE).run()
    }

    /// Runs the tests that engines may affect: of the loop, leaks, sockets, streams, stress.
    fn own_tests_on(&self, engine: &str) -> Result<(), Failure> {
        self.run_on(engine, &self.python.program, "-m unittest discover -s python/tests -p test_[ls]*.py")
            .within(OWN_TESTS_DEADLINE)
            .run()
    }

    /// Creates an environment with the packages listed in a file beside the tests.
    fn with_packages(&self, name: &str) -> Result<PathBuf, Failure> {
        with_packages(self.shell, &self.python, name, &format!("python/tests/{name}/requirements.txt"))
    }

    /// Runs programs written by others.
    fn programs(&self) -> Result<(), Failure> {
        let program = self.with_packages("programs")?;
        self.run_by(&program, "python/tests/programs/run.py").run()
    }

    /// Runs other packages' own tests.
    fn suites(&self) -> Result<(), Failure> {
        let program = self.with_packages("suites")?;
        self.run_by(&program, "python/tests/suites/run.py").run()
    }

    /// Checks that very many connections leave nothing behind.
    fn leaks(&self) -> Result<(), Failure> {
        self.run("-m unittest discover -s python/tests -p test_leaks.py -v")
            .env("PELTON_LEAK_CONNECTIONS", CONNECTIONS_OF_A_SOAK)
            .within(LEAKS_DEADLINE)
            .run()
    }

    /// Checks that the stubs match the modules, and that programs that use them pass a type checker.
    fn types(&self) -> Result<(), Failure> {
        let program = self.with_packages("types")?;
        self.run_by(&program, "python/tests/types/check.py").run()
    }
}

/// The step of `cargo xtask test`: everything on one version, and tests of version differences on the others.
pub fn step(shell: &Shell) -> Result<(), Failure> {
    for (index, python) in find(shell)?.into_iter().enumerate() {
        if index == 0 {
            whole(&Built::new(shell, python)?)?;
        } else if python.has_tests {
            let built = Built::new(shell, python)?;
            built.own_tests()?;
            built.conformance(SLICE)?;
        } else {
            println!("Python {} is skipped: it comes without CPython's own tests", python.version);
        }
    }
    Ok(())
}

fn whole(built: &Built<'_>) -> Result<(), Failure> {
    crate::unsafe_code::count(built.shell)?;
    let lints = format!("clippy --release {CRATES} --features pelton-python/extension -- -D warnings");
    cargo(built.shell, &built.python, &lints).run()?;
    built.own_tests()?;
    // Besides the best engine, those that exist on every system.
    for engine in ["poll", "select"] {
        built.own_tests_on(engine)?;
    }
    built.conformance("")?;
    built.conformance("--sabotage")?;
    built.types()?;
    built.programs()?;
    checks::development_mode(built)?;
    checks::assertions(built.shell)?;
    checks::torture(built, checks::Seeds::Fixed, checks::TORTURE_SECONDS)?;
    hosting::step(built.shell, &built.python)
}

/// Deadlines for our tests and for the leak tests: many times what they take on an idle machine.
const OWN_TESTS_DEADLINE: Duration = Duration::from_secs(30 * 60);
const LEAKS_DEADLINE: Duration = Duration::from_secs(2 * 60 * 60);

/// A part of the soak: its description and what it runs.
type SoakPart = (&'static str, fn(&Built<'_>, u64) -> Result<(), Failure>);

/// Everything, with more connections.
const AFTER_BUILDING: [SoakPart; 11] = [
    ("tests of the loop, stress and TLS under torture", |built, _| built.own_tests()),
    ("CPython's own tests", |built, _| built.conformance("")),
    ("programs that others wrote", |built, _| built.programs()),
    ("other packages' own tests", |built, _| built.suites()),
    ("leaks, over 100,000 connections", |built, _| built.leaks()),
    ("hostile programs, compared with asyncio's own loop", |built, seconds| {
        checks::torture(built, checks::Seeds::New, seconds)
    }),
    ("development mode", |built, _| checks::all_in_development_mode(built)),
    ("an interpreter with assertions, and its references", |built, _| checks::all_assertions(built)),
    ("valgrind", |built, _| checks::valgrind(built)),
    ("AddressSanitizer", checks::address_sanitizer),
    ("hosting Python, with ten times the stress", |built, seconds| {
        hosting::step(built.shell, &built.python)?;
        hosting::soak(built.shell, &built.python, seconds)
    }),
];

/// The number of parts of the soak for each version.
pub const SOAK_PARTS: usize = 1 + AFTER_BUILDING.len();

/// Runs the soak for one version. Parts without a fixed duration run for this many seconds.
pub fn soak(shell: &Shell, python: Python, seconds: u64, progress: &mut Progress<'_>) {
    let version = python.version.clone();
    let built = progress.part(format!("Python {version}: the package is built"), || Built::new(shell, python));
    for (what, run) in AFTER_BUILDING {
        progress.part(format!("Python {version}: {what}"), || match &built {
            Some(built) => run(built, seconds),
            None => Err(Failure::new("there is no package to test")),
        });
    }
}

/// Checks that the benchmark of loops runs, without the loops to compare with.
pub fn bench_quickly(shell: &Shell) -> Result<(), Failure> {
    let python = most_important(shell)?;
    let package = build(shell, &python)?;
    let where_to_look = ["--python".into(), python.program.into(), "--package".into(), package.into()];
    shell.cargo("run --release --manifest-path bench/Cargo.toml -- python --quick").args(where_to_look).run()
}

/// Instructions of our module per operation, by row of `bench/python/counted.py`. Measured: 1,067, 2,549, 1,851 and 3,682 with Rust
/// 1.95 and Python 3.12; the margin is for other compilers, and for tasks, which vary by 80 from run to run. A change that needs
/// more must say why. Messages had 3,372 before the transports became safe code, which looks up the loop and checks borrows.
const INSTRUCTIONS: [(&str, u32); 4] =
    [("callbacks", 1_080), ("tasks", 2_800), ("readers", 1_880), ("messages", 3_750)];

/// Checks that the loop executes no more instructions than it may.
pub fn count_instructions(shell: &Shell) -> Result<(), Failure> {
    let python = most_important(shell)?;
    let package = build(shell, &python)?;
    let mut arguments: Vec<OsString> =
        ["--python".into(), python.program.into(), "--package".into(), package.into()].into();
    for (row, most) in INSTRUCTIONS {
        arguments.extend(["--at-most".into(), format!("{row}={most}").into()]);
    }
    let counting = shell.cargo("run --release --manifest-path bench/Cargo.toml -- python-instructions");
    counting.args(arguments).run()
}

/// Returns the Python that programs are linked with.
pub fn linkable(shell: &Shell) -> Result<PathBuf, Failure> {
    most_important(shell).map(|python| python.program)
}

fn most_important(shell: &Shell) -> Result<Python, Failure> {
    let first = find(shell)?.into_iter().next();
    first.ok_or_else(|| Failure::new("no Python was found"))
}

/// The arguments for the benchmark of loops: where Python is, with our package and those to compare with.
pub fn bench_arguments(shell: &Shell) -> Result<Vec<OsString>, Failure> {
    let python = most_important(shell)?;
    println!("Measuring with Python {}", python.version);
    let program = with_packages(shell, &python, "bench", "bench/python/requirements.txt")?;
    // Some packages have no build for every machine.
    let optional = "install --quiet --only-binary :all: --requirement bench/python/requirements-optional.txt";
    if let Err(failure) = pip(shell, &program, optional).run() {
        println!("{failure}\nIt is omitted from the comparison.");
    }
    let package = build(shell, &python)?;
    Ok(["--python".into(), program.into(), "--package".into(), package.into()].into())
}
