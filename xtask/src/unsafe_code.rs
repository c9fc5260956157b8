//! Counts the `unsafe` code of the Python front end, and holds it to a limit.

use std::path::{Path, PathBuf};

use crate::shell::{Failure, Shell};

/// The crates of the front end.
const CRATES: [&str; 4] = ["pelton-cpython", "pelton-asyncio", "pelton-pyhost", "pelton-python"];

/// The limits: blocks, and lines within blocks.
const BLOCKS: usize = 210;
const LINES: usize = 730;

/// What a file, or several, have of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    /// `unsafe { … }`
    blocks: usize,
    /// Lines within blocks, with code.
    lines: usize,
    /// `unsafe impl`
    impls: usize,
    /// `unsafe fn`
    functions: usize,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.blocks += other.blocks;
        self.lines += other.lines;
        self.impls += other.impls;
        self.functions += other.functions;
    }
}

/// Prints the counts by file and crate. Fails if there is more than the limit.
pub fn count(shell: &Shell) -> Result<(), Failure> {
    let mut total = Count::default();
    for name in CRATES {
        let mut of_crate = Count::default();
        for path in sources(&shell.path(&format!("crates/{name}/src"))) {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| Failure::new(format!("read {}: {error}", path.display())))?;
            let count = in_text(&text);
            if count != Count::default() {
                let shown = path.strip_prefix(shell.path("crates")).unwrap_or(&path).display().to_string();
                println!(
                    "{:4} blocks {:4} lines {:3} impls {:3} functions  {shown}",
                    count.blocks, count.lines, count.impls, count.functions
                );
            }
            of_crate += count;
        }
        println!(
            "{name}: {} blocks, {} lines, {} impls, {} functions",
            of_crate.blocks, of_crate.lines, of_crate.impls, of_crate.functions
        );
        total += of_crate;
    }
    println!("all: {} blocks with {} lines in them (limits {BLOCKS} and {LINES})", total.blocks, total.lines);
    if total.blocks > BLOCKS || total.lines > LINES {
        return Err(Failure::new("the Python front end has more unsafe code than its limit"));
    }
    Ok(())
}

/// Returns the Rust files below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Counts in a source text, formatted by rustfmt. Comments and empty lines do not count.
fn in_text(text: &str) -> Count {
    let mut count = Count::default();
    // For each open brace, whether it opens an unsafe block.
    let mut braces: Vec<bool> = Vec::new();
    for line in text.lines() {
        let code = without_strings(line.split("//").next().unwrap_or_default());
        count.impls += code.matches("unsafe impl").count();
        count.functions += code.matches("unsafe fn").count() + code.matches("unsafe extern \"C\" fn").count();
        let mut inside = braces.contains(&true);
        let mut rest = code.as_str();
        while let Some(place) = rest.find(['{', '}']) {
            if rest.as_bytes()[place] == b'{' {
                let opens = rest[..place].trim_end().ends_with("unsafe");
                count.blocks += usize::from(opens);
                braces.push(opens);
                inside |= opens;
            } else {
                braces.pop();
            }
            rest = &rest[place + 1..];
        }
        count.lines += usize::from(inside && !code.trim().is_empty() && code.trim() != "}");
    }
    count
}

/// Empties string and character literals, whose braces do not count.
fn without_strings(code: &str) -> String {
    let code = code.replace("'{'", "' '").replace("'}'", "' '").replace("\\\"", "");
    let keep_extern = code.replace("extern \"C\"", "extern C");
    let parts: Vec<&str> = keep_extern.split('"').step_by(2).collect();
    parts.join("\"\"").replace("extern C", "extern \"C\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_their_lines_are_counted() {
        let text = "// unsafe { no }\nfn f() {\n    let a = unsafe { g() };\n    unsafe {\n        // why\n        h(\"{\");\n        if x {\n            i();\n        }\n    }\n    j();\n}\nunsafe fn k() {}\n";
        assert_eq!(in_text(text), Count { blocks: 2, lines: 5, impls: 0, functions: 1 });
    }
}
