//! How many instructions in user space a message or a request costs. This table is what the documentation quotes.

use crate::shell::{Failure, Shell};

struct Count {
    /// The command of the benchmarks that counts.
    command: &'static str,
    /// Connections with a message for the server in every turn.
    connections: u32,
    /// With Rust 1.95 on x86-64.
    measured: u32,
    /// More is a failure. The margin is for other compilers. A change that needs more must say why.
    at_most: u32,
    /// The page that states the measured number.
    page: Option<&'static str>,
}

const CONNECTIONS: Option<&str> = Some("docs/connections.md");
const HTTP: Option<&str> = Some("docs/http.md");

const COUNTS: [Count; 6] = [
    // An echoed message.
    Count { command: "net-instructions", connections: 50, measured: 1_025, at_most: 1_080, page: CONNECTIONS },
    Count { command: "net-instructions", connections: 1, measured: 1_656, at_most: 1_740, page: CONNECTIONS },
    // A message that a codec decodes and a protocol answers.
    Count { command: "net-instructions --framed", connections: 50, measured: 2_290, at_most: 2_410, page: None },
    Count { command: "net-instructions --framed", connections: 1, measured: 2_920, at_most: 3_070, page: None },
    // An HTTP request with a short response.
    Count { command: "http-instructions", connections: 50, measured: 3_350, at_most: 3_520, page: HTTP },
    Count { command: "http-instructions", connections: 1, measured: 4_479, at_most: 4_710, page: HTTP },
];

/// Counts, and fails if there are too many.
pub fn check(shell: &Shell) -> Result<(), Failure> {
    for Count { command, connections, measured, at_most, page } in COUNTS {
        let quoted = page.map(|page| format!(", as {page} says")).unwrap_or_default();
        println!("{command} with {connections} connections: {measured} when the table was made{quoted}");
        let words = format!("{command} --connections {connections} --at-most {at_most}");
        shell.cargo(&format!("run --release --manifest-path bench/Cargo.toml -- {words}")).run()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// 1234 as `1,234`.
    fn with_comma(number: u32) -> String {
        format!("{},{:03}", number / 1_000, number % 1_000)
    }

    #[test]
    fn the_documentation_quotes_this_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for count in &COUNTS {
            let Some(page) = count.page else { continue };
            let text = std::fs::read_to_string(root.join(page)).unwrap();
            let (number, command) = (with_comma(count.measured), count.command);
            assert!(text.contains(&number), "{page} does not say {number} ({command})");
        }
    }

    #[test]
    fn measured_numbers_are_within_their_bounds() {
        assert!(COUNTS.iter().all(|count| (1_000..count.at_most).contains(&count.measured)));
    }
}
