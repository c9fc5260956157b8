//! The Python front end: built for each Python that is asked for, and held to its tests there.

use std::path::{Path, PathBuf};

use crate::pyhost;
use crate::shell::{Failure, Shell};

/// The environment variable that names the Pythons to test with, apart by spaces; `python3` if it is not set.
const PYTHONS: &str = "PELTON_PYTHONS";

/// What Python says about itself: its version, how the names of its modules end, and whether it has its own tests with it.
const ABOUT: &str = "\
import importlib.util, sys, sysconfig
print('{}.{}'.format(*sys.version_info), sysconfig.get_config_var('EXT_SUFFIX'))
print(importlib.util.find_spec('test') is not None and importlib.util.find_spec('test.test_asyncio') is not None)
";

struct Python<'a> {
    program: &'a str,
    version: String,
    suffix: String,
    has_tests: bool,
}

impl<'a> Python<'a> {
    fn ask(shell: &Shell, program: &'a str) -> Result<Python<'a>, Failure> {
        let (fine, said) = shell.program(program, "-c").args([ABOUT.into()]).output()?;
        let words: Vec<&str> = said.split_whitespace().collect();
        match (fine, words.as_slice()) {
            (true, [version, suffix, has_tests]) => Ok(Python {
                program,
                version: (*version).to_owned(),
                suffix: (*suffix).to_owned(),
                has_tests: *has_tests == "True",
            }),
            _ => Err(Failure::new(format!("{program} does not say which Python it is: {said}"))),
        }
    }
}

pub fn step(shell: &Shell) -> Result<(), Failure> {
    let pythons = std::env::var(PYTHONS).unwrap_or_else(|_| "python3".to_owned());
    for program in pythons.split_whitespace() {
        let python = Python::ask(shell, program)?;
        let package = build(shell, &python)?;
        let run = |words: &str, engine: &str| {
            shell.program(python.program, words).env("PYTHONPATH", &package).env("PELTON_ENGINE", engine).run()
        };
        // The best there is, and those that there are everywhere.
        for engine in ["", "poll", "select"] {
            run("-m unittest discover -s python/tests", engine)?;
        }
        if !python.has_tests {
            return Err(Failure::new(format!(
                "{program} comes without CPython's own tests; install them (Debian has them in libpython3-testsuite)"
            )));
        }
        run("python/tests/conformance.py", "")?;
        pyhost::step(shell, python.program, &shell.target().join("python").join(&python.version))?;
    }
    Ok(())
}

/// Builds the module and puts the package together around it. Returns where to import it from.
fn build(shell: &Shell, python: &Python<'_>) -> Result<PathBuf, Failure> {
    // Apart for each version: building for one is no use for another.
    let target = shell.target().join("python").join(&python.version);
    let cargo =
        |words: &str| shell.cargo(words).env("CARGO_TARGET_DIR", &target).env("PYO3_PYTHON", python.program).run();
    cargo("clippy --release -p pelton-python --features extension -- -D warnings")?;
    cargo("build --release -p pelton-python --features extension")?;
    let library = if cfg!(target_vendor = "apple") { "libpelton_python.dylib" } else { "libpelton_python.so" };
    let package = target.join("package");
    let module = package.join("pelton");
    let copied = copy_sources(&shell.path("python/pelton"), &module).and_then(|()| {
        std::fs::copy(target.join("release").join(library), module.join(format!("_pelton{}", python.suffix)))
    });
    copied.map_err(|error| Failure::new(format!("put the package together in {}: {error}", package.display())))?;
    Ok(package)
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
