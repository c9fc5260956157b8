//! Long operations that run step by step.

use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::Operation;
use crate::{Error, Reactor};

/// A long operation that runs step by step, so that it can report progress and be abandoned.
///
/// Each step is an [`Operation`]. Its outcome is one part of the whole and the remaining steps:
///
/// ```
/// # use pelton::fs::{self, Steps};
/// # async fn total() -> std::io::Result<usize> {
/// let (mut rest, mut total) = (Some(fs::walk("/etc")), 0);
/// while let Some(walk) = rest {
///     let (entries, more) = walk.step().await?;
///     total += entries.len();
///     rest = more;
/// }
/// # Ok(total)
/// # }
/// ```
pub trait Steps: Sized + Send + 'static {
    /// One part of the whole.
    type Step: Send + 'static;

    /// Returns the next step. Its outcome is a part, and the rest if there may be more.
    fn step(self) -> Operation<(Self::Step, Option<Self>)>;

    /// Runs all steps, one after the other, and passes each outcome to `callback` on the loop, then `None` at the end.
    /// Stops early when the callback breaks or after an error.
    ///
    /// ```
    /// use pelton::fs::{self, Steps};
    /// use pelton::Reactor;
    /// use std::ops::ControlFlow;
    ///
    /// let mut reactor = Reactor::new()?;
    /// fs::walk("/dev").each(&mut reactor, |reactor, entries| match entries {
    ///     Ok(Some(entries)) => {
    ///         println!("{} more", entries.len());
    ///         ControlFlow::Continue(())
    ///     }
    ///     Ok(None) | Err(_) => {
    ///         reactor.stop();
    ///         ControlFlow::Break(())
    ///     }
    /// })?;
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    fn each<F>(self, reactor: &mut Reactor, callback: F) -> Result<(), Error>
    where
        F: FnMut(&mut Reactor, io::Result<Option<Self::Step>>) -> ControlFlow<()> + 'static,
    {
        advance(self, reactor, Rc::new(RefCell::new(callback)))
    }
}

#[track_caller]
fn advance<S: Steps, F>(steps: S, reactor: &mut Reactor, callback: Rc<RefCell<F>>) -> Result<(), Error>
where
    F: FnMut(&mut Reactor, io::Result<Option<S::Step>>) -> ControlFlow<()> + 'static,
{
    let step = steps.step().then(reactor, move |reactor, outcome| {
        // The next step starts after this one, so the callback is never borrowed twice.
        let call = |reactor: &mut Reactor, outcome| (callback.borrow_mut())(reactor, outcome);
        let rest = match outcome {
            Ok((step, rest)) => call(reactor, Ok(Some(step))).is_continue().then_some(rest),
            Err(error) => {
                // There is nothing to continue with, whatever the callback returns.
                let _ = call(reactor, Err(error));
                None
            }
        };
        let over = match rest {
            None => return,
            Some(None) => Ok(None),
            Some(Some(rest)) => match advance(rest, reactor, callback.clone()) {
                Ok(()) => return,
                Err(error) => Err(error.into()),
            },
        };
        let _ = call(reactor, over);
    });
    step.map(drop)
}
