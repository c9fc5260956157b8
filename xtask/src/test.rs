//! The one test command: its steps, in the order in which they run. What fails soonest comes first.

use std::time::{Duration, Instant};

use crate::shell::{Failure, Look, Shell};
use crate::{fuzz, python, tools};

struct Step {
    name: &'static str,
    what: &'static str,
    run: fn(&Shell) -> Result<(), Failure>,
}

const STEPS: [Step; 10] = [
    Step { name: "tools", what: "what the other steps need", run: tools::provide },
    Step { name: "format", what: "rustfmt changes nothing", run: format },
    Step { name: "clippy", what: "no lint, on any set of features", run: clippy },
    Step { name: "docs", what: "rustdoc has nothing to complain about", run: docs },
    Step { name: "test", what: "unit, behaviour and documentation tests, on every engine", run: test },
    Step { name: "python", what: "the Python front end passes its tests, and CPython's", run: python::step },
    Step { name: "loom", what: "the lock-free queue under every interleaving", run: loom },
    Step { name: "fuzz", what: "codecs and protocols under made-up input", run: fuzz::step },
    Step { name: "examples", what: "every example runs, and says what it should; the README compiles", run: examples },
    Step { name: "bench", what: "the benchmarks build, pass their tests and run", run: bench },
];

/// Which steps to run; all if none is named.
#[derive(Debug, Default, PartialEq)]
pub struct Choice(Vec<&'static str>);

impl Choice {
    pub fn only(&mut self, name: &str) -> Result<(), String> {
        let names = STEPS.map(|step| step.name);
        let known = names.into_iter().find(|known| *known == name);
        self.0.push(known.ok_or_else(|| format!("there is no step {name:?}; the steps are {}", names.join(", ")))?);
        Ok(())
    }

    fn takes(&self, step: &Step) -> bool {
        self.0.is_empty() || self.0.contains(&step.name)
    }
}

pub fn list() {
    for step in STEPS {
        println!("{:<10}{}", step.name, step.what);
    }
}

pub fn run(shell: &Shell, choice: &Choice) -> Result<(), Failure> {
    let steps: Vec<&Step> = STEPS.iter().filter(|step| choice.takes(step)).collect();
    let start = Instant::now();
    let mut times = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let title = format!("[{}/{}] {}", index + 1, steps.len(), step.name);
        println!("\n{}  {}", shell.paint(Look::Bold, title), step.what);
        let begun = Instant::now();
        let outcome = (step.run)(shell);
        let time = begun.elapsed();
        if let Err(failure) = outcome {
            println!("\n{} in step {}, after {}", shell.paint(Look::Red, "FAILED"), step.name, seconds(time));
            return Err(Failure::new(format!("{failure}\nAgain, alone: cargo xtask test --only {}", step.name)));
        }
        println!("{} {} in {}", shell.paint(Look::Green, "ok"), step.name, seconds(time));
        times.push((step.name, time));
    }
    println!();
    for (name, time) in times {
        println!("{:<10}{:>9}", name, seconds(time));
    }
    println!("{}, in {}", shell.paint(Look::Green, "All is well"), seconds(start.elapsed()));
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn format(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("fmt --all --check").run()?;
    shell.cargo("fmt --manifest-path bench/Cargo.toml --check").run()?;
    shell.cargo("fmt --manifest-path fuzz/Cargo.toml --check").run()
}

fn clippy(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("clippy --workspace --all-targets -- -D warnings").run()?;
    shell.cargo("clippy -p pelton-os --all-targets --features emulated-kqueue -- -D warnings").run()?;
    shell.cargo("clippy -p pelton --all-targets --features tokio -- -D warnings").run()?;
    shell.cargo("clippy -p pelton-http --all-targets --all-features -- -D warnings").run()?;
    if on_linux_for_benches() {
        shell.cargo("clippy --manifest-path bench/Cargo.toml --all-targets -- -D warnings").run()?;
    }
    Ok(())
}

fn docs(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()
}

fn test(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("test -p pelton-os").run()?;
    shell.cargo("test -p pelton-os --features emulated-kqueue").run()?;
    // The examples are a step of their own: there they are built as users build them, without the features of tests.
    shell.cargo("test --workspace --exclude pelton-examples").run()?;
    shell.cargo("test -p pelton --features tokio --test async_tokio").run()?;
    shell.cargo("test -p pelton-http --all-features --lib --test values").run()
}

fn loom(shell: &Shell) -> Result<(), Failure> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " --cfg loom";
    shell
        .cargo("test --release -p pelton-sync --test loom")
        .env("RUSTFLAGS", flags.trim())
        // Elsewhere than the rest, which these flags would have built anew each time.
        .env("CARGO_TARGET_DIR", shell.target().join("loom"))
        .run()
}

fn examples(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("test -p pelton-examples").run()
}

/// Instructions that an echoed message may cost in user space, and how many connections have one in a turn: what was counted
/// (1,095 and 2,128, with Rust 1.95) and a little, because compilers differ. A change that needs more has to say why.
const INSTRUCTIONS: [(u32, u32); 2] = [(50, 1_150), (1, 2_200)];

/// The same of a message that a codec takes out and a protocol answers: 2,330 and 3,410 were counted.
const FRAMED_INSTRUCTIONS: [(u32, u32); 2] = [(50, 2_560), (1, 3_750)];

/// The same of an HTTP request with a short answer: 3,349 and 4,452 were counted.
const HTTP_INSTRUCTIONS: [(u32, u32); 2] = [(50, 3_750), (1, 5_050)];

/// In release mode throughout: what it is compared with is built once.
fn bench(shell: &Shell) -> Result<(), Failure> {
    if on_linux_for_benches() {
        shell.cargo("test --release --manifest-path bench/Cargo.toml").run()?;
        let run =
            |words: &str| shell.cargo(&format!("run --release --manifest-path bench/Cargo.toml -- {words}")).run();
        run("wheel --quick")?;
        run("net --quick")?;
        // Without the crates that run actors, which take longer to build than the rest.
        run("work --quick")?;
        // Likewise without the frameworks: only the floor, pelton and hyper.
        run("http --quick")?;
        python::bench_quickly(shell)?;
        for (connections, at_most) in INSTRUCTIONS {
            run(&format!("net-instructions --connections {connections} --at-most {at_most}"))?;
        }
        for (connections, at_most) in FRAMED_INSTRUCTIONS {
            run(&format!("net-instructions --framed --connections {connections} --at-most {at_most}"))?;
        }
        for (connections, at_most) in HTTP_INSTRUCTIONS {
            run(&format!("http-instructions --connections {connections} --at-most {at_most}"))?;
        }
    }
    Ok(())
}

/// The benchmarks compare with loops that only Linux has.
fn on_linux_for_benches() -> bool {
    if !cfg!(target_os = "linux") {
        println!("bench/ is left out: it builds on Linux only");
    }
    cfg!(target_os = "linux")
}
