//! The tools that the tests need besides cargo. What is missing is installed; what cannot be installed is an error, since
//! a test that is left out silently is worse than one that fails.

use crate::shell::{Failure, Shell};

pub fn provide(shell: &Shell) -> Result<(), Failure> {
    provide_component(shell, "rustfmt", "fmt")?;
    provide_component(shell, "clippy", "clippy")?;
    if cfg!(target_os = "linux") {
        provide_strace(shell)?;
    }
    Ok(())
}

fn provide_component(shell: &Shell, component: &str, subcommand: &str) -> Result<(), Failure> {
    let present = || shell.cargo(&format!("{subcommand} --version")).succeeds();
    let by_hand = format!("{component} is needed; install it with: rustup component add {component}");
    provide_with(component, &by_hand, present, || shell.program("rustup", &format!("component add {component}")).run())
}

/// The tests in `crates/pelton/tests/syscalls.rs` count system calls with it.
fn provide_strace(shell: &Shell) -> Result<(), Failure> {
    let present = || shell.program("strace", "--version").succeeds();
    let by_hand = "strace is needed to count system calls; install the package `strace` of your distribution";
    provide_with("strace", by_hand, present, || {
        let apt = AptGet::find(shell).ok_or_else(|| {
            Failure::new("it cannot be installed from here: that takes apt-get, and root or sudo without a password")
        })?;
        apt.run(shell, "update")?;
        apt.run(shell, "install -y strace")
    })
}

/// Installs a tool that is not present, and makes sure that it is afterwards.
fn provide_with(
    name: &str,
    by_hand: &str,
    present: impl Fn() -> bool,
    install: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    if present() {
        println!("{name}: found");
        return Ok(());
    }
    println!("{name}: missing; installing it");
    install().map_err(|failure| Failure::new(format!("{failure}\n{by_hand}")))?;
    if present() {
        Ok(())
    } else {
        Err(Failure::new(format!("{name} was installed and still cannot be run\n{by_hand}")))
    }
}

/// Debian's package manager, and how we may use it.
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
