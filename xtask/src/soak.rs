//! The long run: what the tests do for seconds, for as long as one likes.

use std::ffi::OsString;
use std::num::NonZeroU64;

use crate::shell::{Failure, Shell};
use crate::{fuzz, python};

/// Long enough for a leak of a few bytes per connection to show, short enough to wait for.
const DEFAULT_MINUTES: NonZeroU64 = NonZeroU64::new(10).unwrap();

/// How long it takes, for all engines together.
#[derive(Debug, PartialEq)]
pub struct Minutes(NonZeroU64);

impl Minutes {
    /// The argument of the chore, if it has one.
    pub fn parse(argument: Option<OsString>) -> Result<Minutes, String> {
        let Some(argument) = argument else { return Ok(Minutes(DEFAULT_MINUTES)) };
        let number = argument.to_str().and_then(|text| text.parse().ok());
        number.map(Minutes).ok_or_else(|| format!("soak takes a number of minutes, at least 1, and got {argument:?}"))
    }
}

/// Each target of fuzzing has this part of the time.
const PER_FUZZ_TARGET: u64 = 5;

/// Has connections come and go, then clients of an HTTP server, in release mode; then codecs and protocols are fuzzed. It says how far it
/// is now and then. Then come the tests of Python that take long.
pub fn run(shell: &Shell, minutes: &Minutes) -> Result<(), Failure> {
    let seconds = minutes.0.get().saturating_mul(60);
    println!(
        "This takes {0} min, an equal part of it for each engine, as long again for HTTP, and about as long again for fuzzing; then comes Python.",
        minutes.0
    );
    shell
        .cargo("test --release -p pelton --test churn -- --nocapture --test-threads 1")
        .env("PELTON_CHURN_SECONDS", seconds.to_string())
        .run()?;
    shell
        .cargo("test --release -p pelton-http --test soak -- --nocapture")
        .env("PELTON_SOAK_SECONDS", seconds.to_string())
        .run()?;
    let each = u32::try_from(seconds / PER_FUZZ_TARGET).unwrap_or(u32::MAX);
    fuzz::run(shell, &fuzz::Choice::each_for(each))?;
    python::soak(shell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_a_number_that_may_be_left_out() {
        assert_eq!(Minutes::parse(None), Ok(Minutes(DEFAULT_MINUTES)));
        assert_eq!(Minutes::parse(Some("90".into())), Ok(Minutes(NonZeroU64::new(90).unwrap())));
        for wrong in ["0", "-1", "ten", "1.5", ""] {
            let error = Minutes::parse(Some(wrong.into())).unwrap_err();
            assert!(error.contains("minutes") && error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
