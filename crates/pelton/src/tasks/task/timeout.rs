//! Time limits for futures.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::{Sleep, sleep};

/// Awaits `future` for at most `duration`. The future is dropped together with the `Timeout`. If both are ready at
/// once, the future wins.
///
/// ```
/// use pelton::{Reactor, task};
/// use std::time::Duration;
///
/// let mut reactor = Reactor::new()?;
/// let never = task::timeout(Duration::from_millis(1), std::future::pending::<()>());
/// assert!(reactor.block_on(never)?.is_err());
/// # Ok::<(), pelton::Error>(())
/// ```
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout { future, sleep: sleep(duration), duration }
}

/// The time limit has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out after {0:?}")]
pub struct Elapsed(
    /// The time limit.
    pub Duration,
);

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

pin_project! {
    /// The future of [`timeout`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
        duration: Duration,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(context) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(this.sleep).poll(context).map(|()| Err(Elapsed(*this.duration)))
    }
}
