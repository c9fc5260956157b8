//! Builds our package for a Python, and installs others from the package registry.

use std::path::{Path, PathBuf};

use super::interpreters::Python;
use crate::shell::{Failure, Shell};

/// Builds the module and assembles the package around it. Returns the directory to import it from.
pub fn build(shell: &Shell, python: &Python) -> Result<PathBuf, Failure> {
    let target = target(shell, python);
    cargo(shell, python, BUILD).run()?;
    put_together(shell, python, &target.join("release"), target.join("package"))
}

const BUILD: &str = "build --release -p pelton-python --features extension";

/// The target for AddressSanitizer: it must be named, so that build scripts are built without it.
const SANITIZED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Does the same with AddressSanitizer, which requires a nightly toolchain.
pub fn build_with_address_sanitizer(shell: &Shell, python: &Python) -> Result<PathBuf, Failure> {
    let target = shell.target().join("python").join(format!("{}-address", python.version));
    shell
        .program("cargo", &format!("+nightly {BUILD} --target {SANITIZED_TARGET}"))
        .env("CARGO_TARGET_DIR", &target)
        .env("PYO3_PYTHON", &python.program)
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .run()?;
    put_together(shell, python, &target.join(SANITIZED_TARGET).join("release"), target.join("package"))
}

/// Assembles the package from the Python sources and a library in `built`.
fn put_together(shell: &Shell, python: &Python, built: &Path, package: PathBuf) -> Result<PathBuf, Failure> {
    let library = if cfg!(target_vendor = "apple") { "libpelton_python.dylib" } else { "libpelton_python.so" };
    let module = package.join("pelton");
    let copied = copy_sources(&shell.path("python/pelton"), &module)
        .and_then(|()| std::fs::copy(built.join(library), module.join(format!("_pelton{}", python.suffix))));
    copied.map_err(|error| Failure::new(format!("assemble the package in {}: {error}", package.display())))?;
    // Compile the sources as pip does: otherwise every import compiles them where Python may not write beside the sources.
    shell.program(&python.program, "-m compileall -q").args([module.into()]).run()?;
    Ok(package)
}

/// `cargo`, building for this Python.
pub fn cargo<'a>(shell: &'a Shell, python: &Python, words: &str) -> crate::shell::Task<'a> {
    shell.cargo(words).env("CARGO_TARGET_DIR", target(shell, python)).env("PYO3_PYTHON", &python.program)
}

/// A target directory per version: builds for one are useless for another.
fn target(shell: &Shell, python: &Python) -> PathBuf {
    shell.target().join("python").join(&python.version)
}

fn copy_sources(from: &Path, to: &Path) -> std::io::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Creates a virtual environment with the packages that `requirements`, a file in the repository, lists, unless it exists.
/// Returns its interpreter.
pub fn with_packages(shell: &Shell, python: &Python, name: &str, requirements: &str) -> Result<PathBuf, Failure> {
    let directory = target(shell, python).join(name);
    let program = directory.join("bin/python");
    let listed = std::fs::read_to_string(shell.path(requirements));
    let listed = listed.map_err(|error| Failure::new(format!("read {requirements}: {error}")))?;
    // Written once everything is installed, so that an incomplete environment is created again.
    let installed = directory.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == listed) {
        return Ok(program);
    }
    if directory.exists() {
        let removed = std::fs::remove_dir_all(&directory);
        removed.map_err(|error| Failure::new(format!("remove {}: {error}", directory.display())))?;
    }
    shell.program(&python.program, "-m venv").args([directory.clone().into()]).run()?;
    pip(shell, &program, &format!("install --quiet --requirement {requirements}")).run()?;
    let noted = std::fs::write(&installed, listed);
    noted.map_err(|error| Failure::new(format!("write {}: {error}", installed.display())))?;
    Ok(program)
}

/// Python's package manager in an environment.
pub fn pip<'a>(shell: &'a Shell, program: &Path, words: &str) -> crate::shell::Task<'a> {
    shell.program(program, &format!("-m pip --disable-pip-version-check --no-input {words}"))
}
