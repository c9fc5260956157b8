//! Finds the Pythons on this machine.

use std::path::{Path, PathBuf};

use crate::shell::{Failure, Shell};

/// The environment variable that names the Pythons to use, separated by spaces.
const PYTHONS: &str = "PELTON_PYTHONS";

/// The supported versions. Whatever runs on only one uses the first of these that is installed.
const VERSIONS: [&str; 3] = ["3.12", "3.13", "3.11"];

/// Prints a Python's version, the file name suffix of its modules, and whether CPython's tests are installed.
const ABOUT: &str = "\
import importlib.util, sys, sysconfig
print('{}.{}'.format(*sys.version_info), sysconfig.get_config_var('EXT_SUFFIX'))
print(importlib.util.find_spec('test') is not None and importlib.util.find_spec('test.test_asyncio') is not None)
";

/// A working Python.
#[derive(Clone, Debug, PartialEq)]
pub struct Python {
    pub program: PathBuf,
    /// For example 3.12.
    pub version: String,
    /// File name suffix of its modules.
    pub suffix: String,
    /// Whether CPython's own tests are installed with it.
    pub has_tests: bool,
}

impl Python {
    pub fn ask(shell: &Shell, program: &Path) -> Result<Python, Failure> {
        let (fine, said) = shell.program(program, "-c").args([ABOUT.into()]).output()?;
        Python::parse(program, &said)
            .filter(|_| fine)
            .ok_or_else(|| Failure::new(format!("{} did not report its version: {said}", program.display())))
    }

    fn parse(program: &Path, said: &str) -> Option<Python> {
        let words: Vec<&str> = said.split_whitespace().collect();
        let [version, suffix, has_tests] = words.as_slice() else { return None };
        Some(Python {
            program: program.to_owned(),
            version: (*version).to_owned(),
            suffix: (*suffix).to_owned(),
            has_tests: *has_tests == "True",
        })
    }
}

/// Returns the Pythons to use, like [`search`], and prints which are found.
pub fn find(shell: &Shell) -> Result<Vec<Python>, Failure> {
    let pythons = search(shell)?;
    if std::env::var_os(PYTHONS).is_some() {
        for python in &pythons {
            println!("Python {}: {}, named in {PYTHONS}", python.version, python.program.display());
        }
        return Ok(pythons);
    }
    for version in VERSIONS {
        match pythons.iter().find(|python| python.version == version) {
            Some(python) => {
                let without = if python.has_tests { "" } else { ", without CPython's own tests" };
                println!("Python {version}: {}{without}", python.program.display());
            }
            None => println!("Python {version}: not found"),
        }
    }
    Ok(pythons)
}

/// Returns the Pythons to use, the most important first: those named in the environment, or one of each supported version.
pub fn search(shell: &Shell) -> Result<Vec<Python>, Failure> {
    if let Ok(named) = std::env::var(PYTHONS) {
        let pythons: Result<Vec<Python>, Failure> =
            named.split_whitespace().map(|program| Python::ask(shell, Path::new(program))).collect();
        let mut pythons = pythons?;
        if pythons.is_empty() {
            return Err(Failure::new(format!("{PYTHONS} is set but names no Python")));
        }
        pythons.sort_by_key(|python| VERSIONS.iter().position(|version| *version == python.version));
        return Ok(pythons);
    }
    let installed = installed_by_pyenv(shell);
    let found = VERSIONS.iter().filter_map(|version| best(candidates(shell, version, &installed)));
    let mut found: Vec<Python> = found.collect();
    // A Python without them is of little use, whichever version it is.
    found.sort_by_key(|python| !python.has_tests);
    if found.is_empty() {
        return Err(Failure::new(format!("none of Python {} is installed", VERSIONS.join(", "))));
    }
    Ok(found)
}

/// Returns all interpreters of this version, in search order.
fn candidates(shell: &Shell, version: &str, installed_by_pyenv: &[PathBuf]) -> Vec<Python> {
    let on_path = [PathBuf::from(format!("python{version}")), PathBuf::from("python3")];
    let of_version = |directory: &PathBuf| {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(version).is_some_and(|rest| rest.starts_with('.'))
    };
    let by_pyenv = installed_by_pyenv.iter().filter(|directory| of_version(directory)).map(|d| d.join("bin/python3"));
    // A program of that name may exist and not run: pyenv puts names of disabled versions on the path.
    let answers = on_path.into_iter().chain(by_pyenv).filter_map(|program| Python::ask(shell, &program).ok());
    answers.filter(|python| python.version == version).collect()
}

/// Returns the first with CPython's tests, or else the first.
fn best(candidates: Vec<Python>) -> Option<Python> {
    let with_tests = candidates.iter().position(|python| python.has_tests);
    candidates.into_iter().nth(with_tests.unwrap_or(0))
}

/// Returns the directories in which pyenv has installed Pythons, newest first.
fn installed_by_pyenv(shell: &Shell) -> Vec<PathBuf> {
    let asked = || match shell.program("pyenv", "root").output() {
        Ok((true, said)) => Some(PathBuf::from(said.trim())),
        _ => None,
    };
    let root = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(asked)
        .or_else(|| std::env::home_dir().map(|home| home.join(".pyenv")));
    let Some(Ok(entries)) = root.map(|root| std::fs::read_dir(root.join("versions"))) else { return Vec::new() };
    let mut directories: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    directories.sort_by_key(|directory| std::cmp::Reverse(numbers(directory)));
    directories
}

/// Parses the version, because 3.12.10 is newer than 3.12.9.
fn numbers(directory: &Path) -> Vec<u32> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split('.').map_while(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(program: &str, has_tests: bool) -> Python {
        Python { program: program.into(), version: "3.12".into(), suffix: ".so".into(), has_tests }
    }

    #[test]
    fn the_description_of_a_python_is_parsed() {
        let said = "3.12 .cpython-312-x86_64-linux-gnu.so\nTrue\n";
        let parsed = Python::parse(Path::new("python3.12"), said).unwrap();
        assert_eq!((parsed.version.as_str(), parsed.has_tests), ("3.12", true));
        assert_eq!(parsed.suffix, ".cpython-312-x86_64-linux-gnu.so");
        assert_eq!(Python::parse(Path::new("python3"), "pyenv: python3: command not found"), None);
    }

    #[test]
    fn a_python_with_its_own_tests_is_preferred() {
        let found = vec![python("first", false), python("second", true), python("third", true)];
        assert_eq!(best(found).unwrap().program, PathBuf::from("second"));
        assert_eq!(best(vec![python("only", false)]).unwrap().program, PathBuf::from("only"));
        assert_eq!(best(Vec::new()), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers(Path::new("some/3.12.10")) > numbers(Path::new("some/3.12.9")));
        assert_eq!(numbers(Path::new("some/pypy3.10")), []);
    }
}
