//! What is done step by step.

use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::Operation;
use crate::{Error, Reactor};

/// Something long that is done step by step, so that one hears of it while it is being done, and can end it.
///
/// Each step is an [`Operation`], whose outcome is a piece of the whole and the rest of it:
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
    /// A piece of the whole.
    type Step: Send + 'static;

    /// The next step. Gives its piece, and the rest if there may be more.
    fn step(self) -> Operation<(Self::Step, Option<Self>)>;

    /// Does all steps, one after the other, and has `callback` told of each, on the loop; then of the end, with `None`. It is
    /// over at once when that breaks off or is told of an error.
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
        // Nobody else calls it: the next step begins after this one.
        let call = |reactor: &mut Reactor, outcome| (callback.borrow_mut())(reactor, outcome);
        let rest = match outcome {
            Ok((step, rest)) => call(reactor, Ok(Some(step))).is_continue().then_some(rest),
            Err(error) => {
                // There is nothing to go on with, whatever it says.
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
