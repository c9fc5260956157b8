//! The promises about pelton's performance, and whether it keeps them.

use std::fmt;

use crate::harness::{Better, Row, Side, Standing};
use crate::report::figure;

/// Differences below this factor are insignificant on a shared machine: a program and its own copy differ by a third of it.
pub const TIE: f64 = 1.15;

/// Largest difference between a program and its own copy: a bound that is missed by less may have been kept.
const NOISE: f64 = 1.05;

/// A promise about a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Relative to the best of the named contenders: at most (where lower is better) or at least (where higher is better) this
    /// factor.
    Times { factor: f64, against: Vec<&'static str> },
    /// At most this much more than the named contender, in the unit of the case.
    Above { at_most: f64, contender: &'static str },
    /// At most this many times the named contender. The factor already includes the tolerance: anything below it is a pass.
    AtMost { factor: f64, against: &'static str },
    /// At most this much, in the unit of the case, for values that are counted, not timed.
    Limit { at_most: f64 },
    /// At least this much, in the unit of the case, whatever the others do.
    #[cfg_attr(
        not(feature = "pyhost"),
        allow(dead_code, reason = "only the calls of a hosted Python have such a mark")
    )]
    Rate { at_least: f64 },
}

/// The result of comparing with a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Win,
    /// Within [`TIE`] of the mark, on either side; for a bound, above it by at most [`NOISE`].
    Tie,
    Lose,
    /// The bound was kept.
    Pass,
    /// The bound was not kept.
    Miss,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::Win => "win",
            Self::Tie => "tie",
            Self::Lose => "lose",
            Self::Pass => "pass",
            Self::Miss => "miss",
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

    /// `share` is how much of the bound was used; up to `tolerated`, it counts as a tie.
    fn from_bound(share: f64, tolerated: f64) -> Self {
        if share <= 1.0 {
            Self::Pass
        } else if share <= tolerated {
            Self::Tie
        } else {
            Self::Miss
        }
    }
}

/// A mark applied to one of our rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    pub verdict: Verdict,
    /// The same for the medians instead of the best windows.
    pub median_verdict: Verdict,
    /// The measured ratio or difference, and its mark.
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

/// Compares `row` with the marks of its case. Rows that are not ours have no marks; marks whose opponent did not run are skipped.
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
    let (better, unit) = (standing.case.better, standing.case.unit);
    let best_of = |names: &[&'static str]| standing.best_of(|row| names.contains(&row.contender));
    // Best windows are compared with best windows, and medians with medians.
    let judged = |verdict: &dyn Fn(f64, f64) -> Verdict, other: Option<&Row>, reason: String| {
        let (best, median) = other.map_or((f64::NAN, f64::NAN), |other| (other.best, other.median));
        Judgement { verdict: verdict(row.best, best), median_verdict: verdict(row.median, median), reason }
    };
    let judgement = match mark {
        Mark::Times { factor, against } => {
            let other = best_of(against)?;
            let verdict = |ours, theirs| {
                Verdict::from_margin(match better {
                    Better::Lower => factor * theirs / ours,
                    Better::Higher => ours / (factor * theirs),
                })
            };
            let sign = if better == Better::Lower { "<=" } else { ">=" };
            let ratio = row.best / other.best;
            judged(&verdict, Some(other), format!("{ratio:.2}x, mark {sign} {factor:.2}x {}", other.contender))
        }
        Mark::Above { at_most, contender } => {
            let other = best_of(&[contender])?;
            // A difference below zero is noise around no difference.
            let verdict =
                |ours: f64, theirs: f64| Verdict::from_margin(at_most / (ours - theirs).max(f64::MIN_POSITIVE));
            let difference = row.best - other.best;
            let reason = format!("{difference:+.1} {unit}, mark <= +{at_most:.0} over {contender}");
            judged(&verdict, Some(other), reason)
        }
        Mark::AtMost { factor, against } => {
            let other = best_of(&[against])?;
            let verdict = |ours, theirs| Verdict::from_bound(ours / (factor * theirs), NOISE);
            let ratio = row.best / other.best;
            judged(&verdict, Some(other), format!("{ratio:.2}x, mark <= {factor:.2}x {against}"))
        }
        Mark::Limit { at_most } => {
            // Not divided by the limit, which may be zero.
            let verdict = |ours, _| if ours <= *at_most { Verdict::Pass } else { Verdict::Miss };
            judged(&verdict, None, format!("{} {unit}, mark <= {}", figure(row.best), figure(*at_most)))
        }
        Mark::Rate { at_least } => {
            let verdict = |ours, _| Verdict::from_bound(at_least / ours, NOISE);
            judged(&verdict, None, format!("{} {unit}, mark >= {}", figure(row.best), figure(*at_least)))
        }
    };
    Some(judgement)
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
    fn a_bound_is_kept_up_to_its_factor_and_missed_beyond_the_noise() {
        let mark = || Mark::AtMost { factor: 1.05, against: "peer" };
        let case = || Case::new("echo", "µs", Better::Lower).mark(mark());
        assert_eq!(verdicts(case(), (105.0, 109.0), 100.0), (Verdict::Pass, Verdict::Tie));
        assert_eq!(verdicts(case(), (90.0, 112.0), 100.0), (Verdict::Pass, Verdict::Miss));
    }

    #[test]
    fn a_limit_needs_no_opponent_and_may_be_zero() {
        let case = |at_most| Case::new("epoll_ctl", "each", Better::Lower).mark(Mark::Limit { at_most });
        assert_eq!(verdicts(case(0.0), (0.0, 0.1), 0.0), (Verdict::Pass, Verdict::Miss));
        assert_eq!(verdicts(case(2.1), (2.05, 2.2), 2.0), (Verdict::Pass, Verdict::Miss));
    }

    #[test]
    fn without_a_mark_the_best_peer_is_the_mark() {
        let case = Case::new("idle", "ns", Better::Lower);
        assert_eq!(verdicts(case, (105.0, 120.0), 100.0), (Verdict::Tie, Verdict::Lose));
    }
}
