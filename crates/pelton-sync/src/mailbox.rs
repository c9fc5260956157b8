//! The mailbox of an actor: many senders, and a receiver that runs only while it has messages.
//!
//! One atomic word, `head`, holds everything that senders and workers have to agree on:
//!
//! ```text
//!    head:   IDLE ──────────▶ newest ──▶ … ──▶ oldest        letters wait, and there is a turn
//!              ▲    push        │ ▲
//!              │                │ │ push
//!         rest │      take all  ▼ │
//!              └──────────── SCHEDULED                       none wait, and there is a turn
//!                               │
//!                               ▼ close
//!                             CLOSED                         for good
//! ```
//!
//! **Sending** puts a letter on top with one exchange of that word. The sender that finds `IDLE` creates a [`Turn`], the right
//! to run the receiver, and passes it to the scheduler. All others find that there is one. So a mailbox with letters has
//! exactly one turn. A turn cannot be copied or created in another way, so the receiver runs on one thread at a time and needs
//! no lock.
//!
//! **Receiving** takes all letters with one exchange and reverses them, because the newest is on top and the oldest is wanted
//! first. A letter that is pushed meanwhile is in the next batch. Going to rest is an exchange too, from `SCHEDULED` to `IDLE`.
//! It fails if a letter came first, so no letter is left behind.
//!
//! **Ending.** When the last address is dropped, it sends a letter without a message. No letter follows it, so the turn that
//! reaches it has received everything and frees the mailbox. If the mailbox is `CLOSED`, there is no turn any more, and the
//! address frees it instead. The word decides between the two, so only addresses are counted.
//!
//! **Memory.** The mailbox keeps a few empty letters. Only the receiver puts them there, and senders take them out. So a
//! mailbox with few queued messages does not allocate.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::memory::{AtomicPtr, AtomicUsize, UnsafeCell};
use crate::queue::PushError;

/// Empty letters that are kept for the next senders. With these, the fields that senders and receivers write fill one cache
/// line.
const SPARES: usize = if cfg!(loom) { 1 } else { 4 };

/// Added to `waiting` for each letter. The lowest bit says that a sender was refused and wants to know when there is room.
const ONE: usize = 2;
const WANTED: usize = 1;

/// Decides when a mailbox gets its turn.
pub trait Schedule: Clone + Send + Sync + 'static {
    /// Schedules `turn` to run soon. Dropping it closes the mailbox.
    fn schedule(&self, turn: Turn);
}

/// The receiver of a mailbox. It runs on one thread at a time.
pub trait Receive<M: Send + 'static, S: Schedule>: Send + 'static {
    /// Receives a message.
    fn receive(&mut self, message: M, inbox: &Inbox<'_, M, S>) -> Next;

    /// Called when no message follows for now: the mailbox is empty, or others have their turn. Not called after closing.
    fn rest(&mut self) -> Next {
        Next::GoOn
    }

    /// Called when there is room again in a mailbox that has refused a message.
    fn has_room(&mut self) {}
}

/// What happens to a mailbox after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It continues with the next message.
    GoOn,
    /// It is closed. Queued messages and the receiver are dropped.
    Close,
}

struct Letter<M> {
    /// The letter before it, or null.
    next: AtomicPtr<Letter<M>>,
    /// `None` in the last letter and in spares.
    message: UnsafeCell<Option<M>>,
}

/// The values of `head` that are not the address of a letter.
const fn idle<M>() -> *mut Letter<M> {
    ptr::null_mut()
}

const fn scheduled<M>() -> *mut Letter<M> {
    // No letter has this address or the next value, because letters are aligned.
    ptr::without_provenance_mut(1)
}

const fn closed<M>() -> *mut Letter<M> {
    ptr::without_provenance_mut(2)
}

/// An owned list of letters.
struct Letters<M>(*mut Letter<M>);

impl<M> Letters<M> {
    const NONE: Letters<M> = Letters(ptr::null_mut());

    /// Takes the letters that `head` pointed to, if any, and returns them with the oldest first.
    fn oldest_first(newest: *mut Letter<M>) -> Letters<M> {
        let mut letters = Letters::NONE;
        let mut rest = if newest == scheduled() { ptr::null_mut() } else { newest };
        while !rest.is_null() {
            // SAFETY: a letter in `head` came from a box and leads to those pushed before it. They are ours, because the caller
            // removed them with an exchange.
            let next = unsafe { (*rest).next.load(Relaxed) };
            // SAFETY: as above.
            unsafe { (*rest).next.store(letters.0, Relaxed) };
            letters.0 = rest;
            rest = next;
        }
        letters
    }

    fn pop(&mut self) -> Option<Box<Letter<M>>> {
        let first = NonNull::new(self.0)?;
        // SAFETY: the letter is in a list that we own, and came from a box.
        let letter = unsafe { Box::from_raw(first.as_ptr()) };
        self.0 = letter.next.load(Relaxed);
        Some(letter)
    }
}

impl<M> Letter<M> {
    fn take(&self) -> Option<M> {
        // SAFETY: the caller has exclusive access to the letter: it is in a box.
        self.message.with_mut(|message| unsafe { (*message).take() })
    }
}

/// The part of a mailbox that a turn refers to, independent of its types. Turns are linked through it.
pub(crate) struct Link {
    kind: &'static Kind,
    /// The next turn in a list. Belongs to the holder of the turn.
    pub(crate) next: AtomicPtr<Link>,
}

/// `repr(C)`, so that the link has the address of the mailbox.
#[repr(C)]
struct Mailbox<M: Send + 'static, S: Schedule> {
    link: Link,
    /// See the module documentation.
    head: AtomicPtr<Letter<M>>,
    /// `ONE` times the number of queued letters, plus `WANTED`. The receiver updates it in steps, so it may be too high.
    waiting: AtomicUsize,
    /// The number of addresses.
    addresses: AtomicUsize,
    spares: [AtomicPtr<Letter<M>>; SPARES],
    /// How many letters may be queued before `try_push` is refused.
    bound: usize,
    scheduler: S,
    /// Belongs to the holder of the turn.
    inside: UnsafeCell<Inside<M, S>>,
}

struct Inside<M: Send + 'static, S: Schedule> {
    /// Letters that were taken but not received yet, the oldest first.
    batch: Letters<M>,
    receiver: Option<Box<dyn Receive<M, S>>>,
}

/// Why the receiver stopped.
enum Work {
    /// No letter was left.
    Empty,
    /// It has received `budget` messages.
    Enough,
    /// It has reached the last letter.
    Last,
    /// It wants to close the mailbox.
    Close,
}

impl<M: Send + 'static, S: Schedule> Mailbox<M, S> {
    /// Returns a letter with `message`, reusing an empty one if possible.
    fn letter(&self, message: Option<M>) -> *mut Letter<M> {
        for place in &self.spares {
            if place.load(Relaxed).is_null() {
                continue;
            }
            // Acquire: the receiver has emptied it.
            let spare = place.swap(ptr::null_mut(), Acquire);
            if !spare.is_null() {
                // SAFETY: the receiver put it there from a box, and the swap made it ours.
                unsafe { (*spare).message.with_mut(|place| *place = message) };
                return spare;
            }
        }
        Box::into_raw(Box::new(Letter { next: AtomicPtr::new(ptr::null_mut()), message: UnsafeCell::new(message) }))
    }

    /// Keeps an empty letter for the next sender, or frees it if there are enough. Only for the holder of the turn.
    fn keep(&self, letter: Box<Letter<M>>) {
        // Nobody else puts letters here, so an empty place stays empty.
        if let Some(place) = self.spares.iter().find(|place| place.load(Relaxed).is_null()) {
            place.store(Box::into_raw(letter), Release);
        }
    }

    /// Puts a letter on top and returns what was there. `Err`: the mailbox is closed, and the caller owns the letter again.
    ///
    /// # Safety
    ///
    /// The mailbox must exist, and the caller must own the letter. Unless the caller has an address, the mailbox may be freed
    /// when this returns.
    unsafe fn put(mailbox: NonNull<Self>, letter: *mut Letter<M>) -> Result<*mut Letter<M>, ()> {
        // SAFETY: the mailbox exists until the exchange has succeeded, and a reference to an atomic is not accessed beyond its
        // last use.
        let head = unsafe { &(*mailbox.as_ptr()).head };
        // Acquire: a caller that finds it closed may free it.
        let mut found = head.load(Acquire);
        loop {
            if found == closed() {
                return Err(());
            }
            let next = if found == scheduled() { ptr::null_mut() } else { found };
            // SAFETY: the caller owns the letter, and nobody else sees it before the exchange.
            unsafe { (*letter).next.store(next, Relaxed) };
            // Release: the letter is written. Acquire: so is the receiver's state from when it went to rest.
            match head.compare_exchange_weak(found, letter, AcqRel, Acquire) {
                Ok(_) => return Ok(found),
                Err(changed) => found = changed,
            }
        }
    }

    /// Receives up to `budget` messages.
    ///
    /// # Safety
    ///
    /// The caller must have the turn.
    unsafe fn work(this: NonNull<Self>, budget: usize, received: &mut usize) -> Work {
        // SAFETY: the mailbox exists as long as its turn.
        let mailbox = unsafe { this.as_ref() };
        mailbox.inside.with_mut(|inside| {
            // SAFETY: there is one turn, and the caller has it.
            let inside = unsafe { &mut *inside };
            let Some(receiver) = &mut inside.receiver else { return Work::Close };
            let mut unsettled = 0;
            let work = loop {
                if inside.batch.0.is_null() {
                    if mailbox.head.load(Relaxed) == scheduled() {
                        break Work::Empty;
                    }
                    // Acquire: the letters are written. Only the holder of the turn sets the word to idle or closed.
                    inside.batch = Letters::oldest_first(mailbox.head.swap(scheduled(), Acquire));
                }
                if *received >= budget {
                    break Work::Enough;
                }
                let Some(letter) = inside.batch.pop() else { continue };
                let Some(message) = letter.take() else {
                    receiver.rest();
                    break Work::Last;
                };
                mailbox.keep(letter);
                unsettled += 1;
                if mailbox.waiting.load(Relaxed) & WANTED != 0 {
                    mailbox.settle(&mut unsettled, &mut **receiver);
                }
                *received += 1;
                if receiver.receive(message, &Inbox { mailbox: this, borrowed: PhantomData }) == Next::Close {
                    break Work::Close;
                }
            };
            mailbox.settle(&mut unsettled, &mut **receiver);
            match work {
                Work::Empty | Work::Enough if receiver.rest() == Next::Close => Work::Close,
                work => work,
            }
        })
    }

    /// Subtracts the letters that were received, and tells the receiver if a sender waits for room.
    fn settle(&self, taken: &mut usize, receiver: &mut dyn Receive<M, S>) {
        if *taken == 0 {
            return;
        }
        let before = self.waiting.fetch_sub(*taken * ONE, Relaxed);
        let left = before / ONE - std::mem::take(taken);
        // At half of the bound, so that a sender that fills the mailbox is not called back for each message.
        if before & WANTED != 0 && left <= self.bound / 2 {
            self.waiting.fetch_and(!WANTED, Relaxed);
            receiver.has_room();
        }
    }
}

impl<M: Send + 'static, S: Schedule> Drop for Mailbox<M, S> {
    fn drop(&mut self) {
        for place in &self.spares {
            let mut spare = Letters(place.load(Acquire));
            drop(spare.pop());
        }
    }
}

/// Creates a mailbox for `receiver` with room for `bound` messages, and returns its address.
///
/// ```
/// use pelton_sync::{Inbox, Next, Receive, Schedule, Turn, mailbox};
/// use std::sync::mpsc;
///
/// #[derive(Clone)]
/// struct Turns(mpsc::Sender<Turn>);
///
/// impl Schedule for Turns {
///     fn schedule(&self, turn: Turn) {
///         self.0.send(turn).ok();
///     }
/// }
///
/// struct Printer;
///
/// impl Receive<&'static str, Turns> for Printer {
///     fn receive(&mut self, message: &'static str, _: &Inbox<'_, &'static str, Turns>) -> Next {
///         println!("{message}");
///         Next::GoOn
///     }
/// }
///
/// let (turns, scheduled) = mpsc::channel();
/// let address = mailbox(Turns(turns), 100, Box::new(Printer));
/// address.push("one").unwrap();
/// address.push("two").unwrap();
/// assert_eq!(scheduled.recv().unwrap().run(10).messages, 2);
/// ```
pub fn mailbox<M, S>(scheduler: S, bound: usize, receiver: Box<dyn Receive<M, S>>) -> Address<M, S>
where
    M: Send + 'static,
    S: Schedule,
{
    let mailbox = Box::new(Mailbox {
        link: Link { kind: &Of::<M, S>::KIND, next: AtomicPtr::new(ptr::null_mut()) },
        head: AtomicPtr::new(idle()),
        waiting: AtomicUsize::new(0),
        addresses: AtomicUsize::new(1),
        spares: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        bound: bound.max(1),
        scheduler,
        inside: UnsafeCell::new(Inside { batch: Letters::NONE, receiver: Some(receiver) }),
    });
    Address { mailbox: NonNull::from(Box::leak(mailbox)) }
}

/// The sending end of a mailbox. When the last address is dropped and everything has been received, the receiver is dropped.
pub struct Address<M: Send + 'static, S: Schedule> {
    mailbox: NonNull<Mailbox<M, S>>,
}

// SAFETY: messages move between threads, and so does the receiver with its turn. Both are `Send`. Everything else that
// addresses share is atomic, or the scheduler, which is `Sync`.
unsafe impl<M: Send + 'static, S: Schedule> Send for Address<M, S> {}
// SAFETY: as above.
unsafe impl<M: Send + 'static, S: Schedule> Sync for Address<M, S> {}

impl<M: Send + 'static, S: Schedule> Address<M, S> {
    fn mailbox(&self) -> &Mailbox<M, S> {
        // SAFETY: the mailbox is not freed before the last address is dropped.
        unsafe { self.mailbox.as_ref() }
    }

    /// Sends `message`, regardless of how many are queued. Refused only if the mailbox is closed.
    pub fn push(&self, message: M) -> Result<(), PushError<M>> {
        if self.is_closed() {
            return Err(PushError::Closed(message));
        }
        self.mailbox().waiting.fetch_add(ONE, Relaxed);
        self.post(message)
    }

    /// Sends `message` if there is room. If it is refused, the receiver [is told](Receive::has_room) when the mailbox is half
    /// empty.
    pub fn try_push(&self, message: M) -> Result<(), PushError<M>> {
        if self.is_closed() {
            return Err(PushError::Closed(message));
        }
        let Mailbox { waiting, bound, .. } = self.mailbox();
        let mut found = waiting.load(Relaxed);
        loop {
            // The request for room is in the same word as the number, so a receiver that makes room cannot miss it.
            let full = found / ONE >= *bound;
            let wanted = if full { found | WANTED } else { found + ONE };
            match waiting.compare_exchange_weak(found, wanted, Relaxed, Relaxed) {
                Ok(_) if full => return Err(PushError::Full(message)),
                Ok(_) => return self.post(message),
                Err(changed) => found = changed,
            }
        }
    }

    /// Sends a message that `waiting` already counts.
    fn post(&self, message: M) -> Result<(), PushError<M>> {
        let letter = self.mailbox().letter(Some(message));
        // SAFETY: this address keeps the mailbox alive, and the letter is ours.
        match unsafe { Mailbox::put(self.mailbox, letter) } {
            Ok(found) => {
                if found == idle() {
                    self.mailbox().scheduler.schedule(Turn::new(self.mailbox));
                }
                Ok(())
            }
            Err(()) => {
                self.mailbox().waiting.fetch_sub(ONE, Relaxed);
                let letter = Letters(letter).pop();
                match letter.and_then(|letter| letter.take()) {
                    Some(message) => Err(PushError::Closed(message)),
                    None => Ok(()),
                }
            }
        }
    }

    /// Returns whether the mailbox is closed.
    pub fn is_closed(&self) -> bool {
        self.mailbox().head.load(Relaxed) == closed()
    }

    /// Returns how many messages are queued. Messages that are being received may be included.
    pub fn waiting(&self) -> usize {
        self.mailbox().waiting.load(Relaxed) / ONE
    }

    /// Returns how many messages may be queued before [`try_push`](Address::try_push) is refused.
    pub fn bound(&self) -> usize {
        self.mailbox().bound
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &S {
        &self.mailbox().scheduler
    }
}

/// Addresses are equal if they belong to the same mailbox.
impl<M: Send + 'static, S: Schedule> PartialEq for Address<M, S> {
    fn eq(&self, other: &Self) -> bool {
        self.mailbox == other.mailbox
    }
}

impl<M: Send + 'static, S: Schedule> Eq for Address<M, S> {}

impl<M: Send + 'static, S: Schedule> Hash for Address<M, S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mailbox.hash(state);
    }
}

impl<M: Send + 'static, S: Schedule> Clone for Address<M, S> {
    fn clone(&self) -> Self {
        self.mailbox().addresses.fetch_add(1, Relaxed);
        Address { mailbox: self.mailbox }
    }
}

impl<M: Send + 'static, S: Schedule> Drop for Address<M, S> {
    fn drop(&mut self) {
        // Release and acquire: everything sent through other addresses is in the mailbox before the last letter.
        if self.mailbox().addresses.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        // The mailbox may be freed as soon as it has the letter.
        let scheduler = self.mailbox().scheduler.clone();
        let letter = self.mailbox().letter(None);
        // SAFETY: the mailbox exists until it has a last letter, and the letter is ours.
        match unsafe { Mailbox::put(self.mailbox, letter) } {
            Ok(found) if found == idle() => scheduler.schedule(Turn::new(self.mailbox)),
            Ok(_) => {}
            Err(()) => {
                drop(Letters(letter).pop());
                // SAFETY: there is no address left. There is no turn either, because the mailbox was closed without a last
                // letter. So nobody else can access it.
                drop(unsafe { Box::from_raw(self.mailbox.as_ptr()) });
            }
        }
    }
}

/// A mailbox, as its receiver sees it.
pub struct Inbox<'a, M: Send + 'static, S: Schedule> {
    mailbox: NonNull<Mailbox<M, S>>,
    borrowed: PhantomData<&'a Mailbox<M, S>>,
}

impl<M: Send + 'static, S: Schedule> Inbox<'_, M, S> {
    /// Returns an address of the mailbox, or `None` if all addresses are gone and the mailbox is about to end.
    pub fn address(&self) -> Option<Address<M, S>> {
        let one_more = |addresses| (addresses > 0).then_some(addresses + 1);
        // SAFETY: the mailbox exists as long as its turn, which outlives this borrow.
        let addresses = unsafe { &(*self.mailbox.as_ptr()).addresses };
        addresses.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Address { mailbox: self.mailbox })
    }
}

/// The right to run a receiver. A mailbox has at most one. Dropping it closes the mailbox.
#[must_use = "a mailbox whose turn is dropped is closed"]
pub struct Turn {
    link: NonNull<Link>,
}

/// The operations of a mailbox, independent of its types.
struct Kind {
    run: unsafe fn(NonNull<Link>, usize) -> (usize, bool),
    close: unsafe fn(NonNull<Link>),
}

/// The operations of mailboxes with these types.
struct Of<M, S>(PhantomData<(M, S)>);

impl<M: Send + 'static, S: Schedule> Of<M, S> {
    const KIND: Kind = Kind { run: run::<M, S>, close: close::<M, S> };
}

// SAFETY: turns exist only for mailboxes whose messages and receivers are `Send`.
unsafe impl Send for Turn {}

/// The outcome of a turn.
#[derive(Debug)]
pub struct Ran {
    /// How many messages were received.
    pub messages: usize,
    /// The turn, to be scheduled again, if there may be more.
    pub again: Option<Turn>,
}

impl Turn {
    /// Creates the turn of a mailbox that has just left `IDLE`.
    fn new<M: Send + 'static, S: Schedule>(mailbox: NonNull<Mailbox<M, S>>) -> Turn {
        Turn { link: mailbox.cast() }
    }

    pub(crate) fn into_link(self) -> NonNull<Link> {
        ManuallyDrop::new(self).link
    }

    /// # Safety
    ///
    /// The link must come from a turn, and no other turn may be made from it.
    pub(crate) unsafe fn from_link(link: NonNull<Link>) -> Turn {
        Turn { link }
    }

    fn kind(&self) -> &'static Kind {
        // SAFETY: the mailbox exists as long as its turn.
        unsafe { self.link.as_ref() }.kind
    }

    /// Receives up to `budget` messages. If the receiver panics, the mailbox is closed, and the panic continues.
    pub fn run(self, budget: usize) -> Ran {
        // If this unwinds, the turn is dropped.
        // SAFETY: `kind` belongs to the mailbox's types, and this is the mailbox's turn.
        let (messages, more) = unsafe { (self.kind().run)(self.link, budget) };
        if more {
            return Ran { messages, again: Some(self) };
        }
        // The mailbox may be freed.
        std::mem::forget(self);
        Ran { messages, again: None }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: as in `run`. The turn ends here.
        unsafe { (self.kind().close)(self.link) };
    }
}

/// Runs a receiver. Returns the number of messages, and whether there still is a turn.
///
/// # Safety
///
/// The caller must have the turn of a mailbox of these types.
unsafe fn run<M: Send + 'static, S: Schedule>(link: NonNull<Link>, budget: usize) -> (usize, bool) {
    let mailbox: NonNull<Mailbox<M, S>> = link.cast();
    let mut received = 0;
    loop {
        // SAFETY: the caller has the turn.
        match unsafe { Mailbox::work(mailbox, budget, &mut received) } {
            Work::Enough => return (received, true),
            Work::Empty => {
                // SAFETY: the turn keeps the mailbox alive up to the exchange, and the reference is to the atomic only.
                let head = unsafe { &(*mailbox.as_ptr()).head };
                // Release: the holder of the next turn sees the receiver as it is now. A failure means that a letter has come.
                if head.compare_exchange(scheduled(), idle(), Release, Relaxed).is_ok() {
                    return (received, false);
                }
            }
            Work::Last => {
                // SAFETY: all addresses are gone, and nothing can follow the last letter, so nobody else can access the
                // mailbox.
                drop(unsafe { Box::from_raw(mailbox.as_ptr()) });
                return (received, false);
            }
            Work::Close => {
                // SAFETY: we have the turn and give it up.
                unsafe { close::<M, S>(link) };
                return (received, false);
            }
        }
    }
}

/// Closes a mailbox and drops its receiver and the queued messages.
///
/// # Safety
///
/// The caller must have the turn of a mailbox of these types, and gives it up.
unsafe fn close<M: Send + 'static, S: Schedule>(link: NonNull<Link>) {
    let mailbox: NonNull<Mailbox<M, S>> = link.cast();
    // Taken out before the exchange, because after it the last address may free the mailbox.
    // SAFETY: the turn keeps the mailbox alive, and nobody else accesses `inside`.
    let inside = unsafe { &(*mailbox.as_ptr()).inside };
    let (receiver, batch) = inside.with_mut(|inside| {
        // SAFETY: as above.
        let inside = unsafe { &mut *inside };
        (inside.receiver.take(), std::mem::replace(&mut inside.batch, Letters::NONE))
    });
    // SAFETY: as above, up to the exchange. The reference is to the atomic only.
    let newest = unsafe { &(*mailbox.as_ptr()).head }.swap(closed(), AcqRel);
    let mut has_last = false;
    for mut letters in [batch, Letters::oldest_first(newest)] {
        while let Some(letter) = letters.pop() {
            has_last |= letter.take().is_none();
        }
    }
    drop(receiver);
    if has_last {
        // SAFETY: all addresses are gone, and so is the turn, so nobody else can access the mailbox.
        drop(unsafe { Box::from_raw(mailbox.as_ptr()) });
    }
}

impl<M: Send + 'static, S: Schedule> fmt::Debug for Address<M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} waiting)", self.waiting())
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}
