//! Compiler errors for misuse of the public API: they must name the mistake and the fix.
//!
//! Each file in `tests/teaching` is a program that does not compile. Lines that begin with `//~` must appear in the compiler's
//! output; they come from this crate's attributes. The rest is the compiler's own and may change.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

#[test]
fn errors_name_the_fix() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("teaching");
    std::fs::create_dir_all(&scratch).unwrap();
    let mut cases: Vec<_> =
        std::fs::read_dir(here.join("tests/teaching")).unwrap().map(|entry| entry.unwrap()).collect();
    cases.sort_by_key(|case| case.path());
    assert!(cases.len() >= 9, "{}", cases.len());

    let http = here.with_file_name("pelton-http");
    let mut manifest = format!(
        "[package]\nname = \"teaching\"\nversion = \"0.0.0\"\nedition = \"2024\"\nautobins = false\n\n[workspace]\n\n\
         [dependencies]\npelton = {{ path = {here:?} }}\npelton-http = {{ path = {http:?} }}\n"
    );
    for case in &cases {
        let path = case.path();
        write!(manifest, "\n[[bin]]\nname = {:?}\npath = {path:?}\n", path.file_stem().unwrap().to_str().unwrap())
            .unwrap();
    }
    std::fs::write(scratch.join("Cargo.toml"), manifest).unwrap();
    // The same dependency versions, so nothing is downloaded.
    std::fs::copy(here.join("../../Cargo.lock"), scratch.join("Cargo.lock")).unwrap();

    let mut missing = String::new();
    for case in &cases {
        let text = std::fs::read_to_string(case.path()).unwrap();
        let name = case.path().file_stem().unwrap().to_str().unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["check", "--offline", "--quiet", "--color", "never", "--bin", &name, "--manifest-path"]);
        cargo.arg(scratch.join("Cargo.toml")).env("CARGO_TARGET_DIR", scratch.parent().unwrap().parent().unwrap());
        let output = cargo.env_remove("RUSTFLAGS").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{name} compiles");
        let expected: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
        assert!(!expected.is_empty(), "{name} expects nothing");
        for part in expected.into_iter().filter(|part| !said.contains(part)) {
            write!(missing, "{name}: not said: {part}\nbut:\n{said}\n").unwrap();
        }
    }
    assert!(missing.is_empty(), "{missing}");
}
