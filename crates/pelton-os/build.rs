//! Defines the condition that several files share: whether the kqueue poller is built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(kqueue)");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let native = ["macos", "ios", "freebsd", "netbsd", "openbsd", "dragonfly"].contains(&system.as_str());
    let emulated = std::env::var_os("CARGO_FEATURE_EMULATED_KQUEUE").is_some();
    if native || emulated {
        println!("cargo::rustc-cfg=kqueue");
    }
}
