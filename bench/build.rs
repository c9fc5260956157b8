//! Passes the compiler's version to the crate: it is the version of every contender from `std`.

use std::{env, process::Command};

fn main() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed);
    let version = printed.split_whitespace().nth(1).unwrap_or("unknown");
    println!("cargo::rustc-env=RUSTC_VERSION={version}");
    println!("cargo::rerun-if-changed=build.rs");
}
