//! What pelton has promised, and whether it was kept.

use std::fmt;

use crate::harness::{Better, Row, Side, Standing};

/// Differences under this factor mean nothing on a shared machine: a program measured against a copy of itself
/// differs by a third of it.
pub const TIE: f64 = 1.15;

/// A promise about a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Against the best of the named contenders: at most (where lower is better) or at least (where higher is) this many times it.
    Times { factor: f64, against: Vec<&'static str> },
    /// At most this much more than the named contender, in the unit of the case.
    Above { at_most: f64, contender: &'static str },
}

/// How a result stands to a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Win,
    /// Within [`TIE`] of the mark, on either side.
    Tie,
    Lose,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::Win => "win",
            Self::Tie => "tie",
            Self::Lose => "lose",
        })
    }
}

impl Verdict {
    /// `margin` is how many times better than the mark the result is.
    fn from_margin(margin: f64) -> Self {
        if margin >= TIE {
            Self::Win
        } else if margin > 1.0 / TIE {
            Self::Tie
        } else {
            Self::Lose
        }
    }
}

/// A mark applied to one of our rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    pub verdict: Verdict,
    /// The same, going by the medians instead of the best windows.
    pub median_verdict: Verdict,
    /// The measured ratio or difference, and the mark it is held to.
    pub reason: String,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.verdict, self.reason)?;
        if self.median_verdict != self.verdict {
            write!(f, " (by median: {})", self.median_verdict)?;
        }
        Ok(())
    }
}

/// Holds `row` to the marks of its case. A row that is not ours has none; nor has a mark whose opponent did not run.
pub fn judge(standing: &Standing, row: &Row) -> Vec<Judgement> {
    if row.side != Side::Ours {
        return Vec::new();
    }
    if standing.case.marks.is_empty() {
        let unstated = standing.reference().and_then(|other| {
            let mark = Mark::Times { factor: 1.0, against: vec![other.contender] };
            let reason = format!("{:.2}x {}, no stated mark", row.best / other.best, other.contender);
            hold(standing, row, &mark).map(|judgement| Judgement { reason, ..judgement })
        });
        return unstated.into_iter().collect();
    }
    standing.case.marks.iter().filter_map(|mark| hold(standing, row, mark)).collect()
}

fn hold(standing: &Standing, row: &Row, mark: &Mark) -> Option<Judgement> {
    let better = standing.case.better;
    let other = mark.opponent(standing)?;
    Some(Judgement {
        verdict: Verdict::from_margin(mark.margin(better, row.best, other.best)),
        median_verdict: Verdict::from_margin(mark.margin(better, row.median, other.median)),
        reason: mark.reason(standing, row, other),
    })
}

impl Mark {
    fn opponent<'a>(&self, standing: &'a Standing) -> Option<&'a Row> {
        standing.best_of(|row| match self {
            Self::Times { against, .. } => against.contains(&row.contender),
            Self::Above { contender, .. } => row.contender == *contender,
        })
    }

    /// How many times better than the mark `ours` is.
    fn margin(&self, better: Better, ours: f64, theirs: f64) -> f64 {
        match (self, better) {
            (Self::Times { factor, .. }, Better::Lower) => factor * theirs / ours,
            (Self::Times { factor, .. }, Better::Higher) => ours / (factor * theirs),
            // A difference below zero is noise around no difference at all: as good as it gets.
            (Self::Above { at_most, .. }, _) => at_most / (ours - theirs).max(f64::MIN_POSITIVE),
        }
    }

    fn reason(&self, standing: &Standing, row: &Row, other: &Row) -> String {
        let (unit, opponent) = (standing.case.unit, other.contender);
        match self {
            Self::Times { factor, .. } => {
                let sign = if standing.case.better == Better::Lower { "<=" } else { ">=" };
                format!("{:.2}x, mark {sign} {factor:.2}x {opponent}", row.best / other.best)
            }
            Self::Above { at_most, .. } => {
                format!("{:+.1} {unit}, mark <= +{at_most:.0} over {opponent}", row.best - other.best)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Case;

    fn row(contender: &'static str, side: Side, best: f64, median: f64) -> Row {
        Row { contender, version: "1".into(), side, best, median, windows: 3, cpu_us: None, syscalls: None }
    }

    fn verdicts(case: Case, ours: (f64, f64), peer: f64) -> (Verdict, Verdict) {
        let ours = row("pelton", Side::Ours, ours.0, ours.1);
        let standing = Standing { case, rows: vec![ours.clone(), row("peer", Side::Peer, peer, peer)] };
        let judgements = judge(&standing, &ours);
        assert_eq!(judgements.len(), 1);
        (judgements[0].verdict, judgements[0].median_verdict)
    }

    #[test]
    fn within_fifteen_percent_of_the_mark_is_a_tie() {
        let mark = || Mark::Times { factor: 0.5, against: vec!["peer"] };
        let case = || Case::new("timers", "ns", Better::Lower).mark(mark());
        assert_eq!(verdicts(case(), (40.0, 47.0), 100.0), (Verdict::Win, Verdict::Tie));
        assert_eq!(verdicts(case(), (55.0, 60.0), 100.0), (Verdict::Tie, Verdict::Lose));
    }

    #[test]
    fn a_rate_has_to_be_above_the_mark() {
        let mark = || Mark::Times { factor: 1.5, against: vec!["peer"] };
        let case = || Case::new("posts", "M/s", Better::Higher).mark(mark());
        assert_eq!(verdicts(case(), (18.0, 15.0), 10.0), (Verdict::Win, Verdict::Tie));
        assert_eq!(verdicts(case(), (10.0, 10.0), 10.0), (Verdict::Lose, Verdict::Lose));
    }

    #[test]
    fn a_difference_is_held_to_its_bound() {
        let mark = || Mark::Above { at_most: 120.0, contender: "peer" };
        let case = || Case::new("stats", "ns", Better::Lower).mark(mark());
        assert_eq!(verdicts(case(), (150.0, 230.0), 100.0), (Verdict::Win, Verdict::Tie));
        assert_eq!(verdicts(case(), (99.0, 300.0), 100.0), (Verdict::Win, Verdict::Lose));
    }

    #[test]
    fn without_a_mark_the_best_of_the_others_is_the_mark() {
        let case = Case::new("idle", "ns", Better::Lower);
        assert_eq!(verdicts(case, (105.0, 120.0), 100.0), (Verdict::Tie, Verdict::Lose));
    }
}
