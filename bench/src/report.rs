//! The table at the end of a run.

use crate::harness::{Row, Standing};
use crate::mark::judge;

const COLUMNS: usize = 10;

const HEADER: [&str; COLUMNS] = [
    "case",
    "contender",
    "version",
    "best",
    "median",
    "unit",
    "CPU ns/op",
    "ratio",
    "of medians",
    "pelton against its mark",
];

/// Columns with numbers, which are aligned on the right.
const NUMERIC: [bool; COLUMNS] = [false, false, false, true, true, false, true, true, true, false];

/// Formats all standings as one aligned table. `ratio` is best to best and median to median, of this row to the reference of its
/// case: the contender that the case names, or the best one that is not pelton.
pub fn table(standings: &[Standing]) -> String {
    let mut lines = vec![HEADER.map(str::to_owned)];
    for standing in standings {
        for (index, row) in standing.rows.iter().enumerate() {
            let case = if index == 0 { standing.case.name.as_str() } else { "" };
            lines.push(cells(case, standing, row));
        }
    }
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        if index > 0 && !line[0].is_empty() {
            text.push('\n');
        }
        let padded = line.iter().zip(widths).zip(NUMERIC).map(|((cell, width), numeric)| {
            if numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn cells(case: &str, standing: &Standing, row: &Row) -> [String; COLUMNS] {
    let ratio = |of: fn(&Row) -> f64| {
        let ratio = standing.reference().map(|other| of(row) / of(other));
        ratio.filter(|ratio| ratio.is_finite()).map_or("-".into(), |ratio| format!("{ratio:.2}"))
    };
    let judgements: Vec<String> = judge(standing, row).iter().map(ToString::to_string).collect();
    [
        case.to_owned(),
        row.contender.to_owned(),
        row.version.clone(),
        figure(row.best),
        figure(row.median),
        standing.case.unit.to_owned(),
        row.cpu_us.map_or("-".into(), |us| figure(us * 1e3)),
        ratio(|row| row.best),
        ratio(|row| row.median),
        judgements.join("; "),
    ]
}

/// Formats a number with about three significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Better, Case, Side};
    use crate::mark::Mark;

    #[test]
    fn columns_line_up_and_our_rows_are_judged() {
        let row = |contender, side, best| Row {
            contender,
            version: "1.0".into(),
            side,
            best,
            median: best * 1.1,
            windows: 5,
            cpu_us: Some(best / 1e3),
            syscalls: None,
        };
        let mark = Mark::Times { factor: 0.5, against: vec!["DelayQueue"] };
        let standing = Standing {
            case: Case::new("timers set", "ns", Better::Lower).mark(mark),
            rows: vec![row("DelayQueue", Side::Peer, 131.0), row("pelton Wheel", Side::Ours, 52.4)],
        };
        let text = table(&[standing]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].find("unit"), lines[1].find("ns"));
        assert!(lines[2].ends_with("0.40        0.40  win: 0.40x, mark <= 0.50x DelayQueue"), "{text}");
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!([1234.5, 56.78, 9.876, 0.5].map(figure), ["1234", "56.8", "9.88", "0.50"]);
    }
}
