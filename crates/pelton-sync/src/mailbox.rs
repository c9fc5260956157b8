//! The mailbox of an actor: many senders, and a receiver that runs only while there is something for it to do.
//!
//! One word says everything that senders and workers have to agree on:
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
//! **Sending** puts a letter on top with one exchange of that word. Whoever finds it `IDLE` has made a [`Turn`], the right to
//! run the receiver, and hands it to the scheduler; all others find that there is one. So a mailbox with letters always has
//! exactly one turn, and as a turn can be neither copied nor made otherwise, the receiver runs on one thread at a time and
//! needs no lock.
//!
//! **Receiving** takes all letters off with one exchange, and turns them round: the newest is on top, the oldest is wanted
//! first. A letter that is being pushed meanwhile lands in the next batch. Rest is an exchange too, from `SCHEDULED` to `IDLE`:
//! it fails if a letter came first, so none is left behind.
//!
//! **Ending.** The last address that goes sends a letter without a message. It is the newest for good, so the turn that gets
//! to it has received everything and frees the mailbox. If the mailbox is `CLOSED`, there is no turn any more, and the
//! address frees it instead. The word decides between the two, so nobody counts references to it but addresses.
//!
//! **Memory.** A few empty letters stay with the mailbox. The receiver alone puts them there, senders take them out: so a
//! mailbox in which few wait allocates nothing.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::memory::{AtomicPtr, AtomicUsize, UnsafeCell};
use crate::queue::PushError;

/// Empty letters kept for the next senders. With these, what senders and receivers write to fills one cache line.
const SPARES: usize = if cfg!(loom) { 1 } else { 4 };

/// Added to `waiting` for each letter; the lowest bit says that somebody was refused and wants to know of room.
const ONE: usize = 2;
const WANTED: usize = 1;

/// What decides when a mailbox gets its turn.
pub trait Schedule: Clone + Send + Sync + 'static {
    /// Has `turn` run soon. To drop it closes the mailbox.
    fn schedule(&self, turn: Turn);
}

/// What receives: it runs on one thread at a time.
pub trait Receive<M: Send + 'static, S: Schedule>: Send + 'static {
    /// A message has come.
    fn receive(&mut self, message: M, inbox: &Inbox<'_, M, S>) -> Next;

    /// No more messages for now: there are none, or others have their turn. Not called once it is closed.
    fn rest(&mut self) -> Next {
        Next::GoOn
    }

    /// There is room again in a mailbox that has refused a message.
    fn has_room(&mut self) {}
}

/// What becomes of a mailbox after a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The next message.
    GoOn,
    /// It is closed: what waits is dropped, and the receiver too.
    Close,
}

struct Letter<M> {
    /// The one that came before it, or null.
    next: AtomicPtr<Letter<M>>,
    /// `None` in the last letter, and in spares.
    message: UnsafeCell<Option<M>>,
}

/// What the word says if it is not the address of a letter.
const fn idle<M>() -> *mut Letter<M> {
    ptr::null_mut()
}

const fn scheduled<M>() -> *mut Letter<M> {
    // Letters are aligned, so these are none.
    ptr::without_provenance_mut(1)
}

const fn closed<M>() -> *mut Letter<M> {
    ptr::without_provenance_mut(2)
}

/// Letters in a row, owned.
struct Letters<M>(*mut Letter<M>);

impl<M> Letters<M> {
    const NONE: Letters<M> = Letters(ptr::null_mut());

    /// Those that the word named, if any, the oldest first.
    fn oldest_first(newest: *mut Letter<M>) -> Letters<M> {
        let mut letters = Letters::NONE;
        let mut rest = if newest == scheduled() { ptr::null_mut() } else { newest };
        while !rest.is_null() {
            // SAFETY: what the word names is a letter that came from a box, and leads to those pushed before it. It is ours,
            // as it was taken off by an exchange.
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
        // SAFETY: a letter in a row that we own, which came from a box.
        let letter = unsafe { Box::from_raw(first.as_ptr()) };
        self.0 = letter.next.load(Relaxed);
        Some(letter)
    }
}

impl<M> Letter<M> {
    fn take(&self) -> Option<M> {
        // SAFETY: whoever calls this has the letter to themselves: it is in a box.
        self.message.with_mut(|message| unsafe { (*message).take() })
    }
}

/// How a turn refers to its mailbox, whatever the type of that, and stands in a row with others.
pub(crate) struct Link {
    kind: &'static Kind,
    /// The next in the row. Belongs to whoever has the turn.
    pub(crate) next: AtomicPtr<Link>,
}

/// In this order, so that the link is where the mailbox is.
#[repr(C)]
struct Mailbox<M: Send + 'static, S: Schedule> {
    link: Link,
    /// See above.
    head: AtomicPtr<Letter<M>>,
    /// `ONE` times how many letters wait, plus `WANTED`. The receiver settles it from time to time, so it may be too high.
    waiting: AtomicUsize,
    /// How many addresses there are.
    addresses: AtomicUsize,
    spares: [AtomicPtr<Letter<M>>; SPARES],
    /// How many may wait, for those who care.
    bound: usize,
    scheduler: S,
    /// Belongs to whoever has the turn.
    inside: UnsafeCell<Inside<M, S>>,
}

struct Inside<M: Send + 'static, S: Schedule> {
    /// Taken off, and not received yet; the oldest first.
    batch: Letters<M>,
    receiver: Option<Box<dyn Receive<M, S>>>,
}

/// How far the holder of the turn got.
enum Work {
    /// No letters were left.
    Empty,
    /// It has received as many as it may.
    Enough,
    /// It has come to the last letter.
    Last,
    /// The receiver wants no more.
    Close,
}

impl<M: Send + 'static, S: Schedule> Mailbox<M, S> {
    /// An empty letter, to send `message` in.
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

    /// Keeps an empty letter for the next sender, or frees it if there are enough. For the holder of the turn.
    fn keep(&self, letter: Box<Letter<M>>) {
        // Nobody else puts letters here, so a place that is empty stays so.
        if let Some(place) = self.spares.iter().find(|place| place.load(Relaxed).is_null()) {
            place.store(Box::into_raw(letter), Release);
        }
    }

    /// Puts a letter on top, and says what was there. `Err`: closed, and the letter is the caller's again.
    ///
    /// # Safety
    ///
    /// The mailbox is there, and the letter is the caller's. Unless the caller has an address, the mailbox may be gone when
    /// this returns.
    unsafe fn put(mailbox: NonNull<Self>, letter: *mut Letter<M>) -> Result<*mut Letter<M>, ()> {
        // SAFETY: it is there until the exchange has succeeded; and a reference to an atomic promises no more than it is used.
        let head = unsafe { &(*mailbox.as_ptr()).head };
        // Acquire: whoever finds it closed may free it.
        let mut found = head.load(Acquire);
        loop {
            if found == closed() {
                return Err(());
            }
            let next = if found == scheduled() { ptr::null_mut() } else { found };
            // SAFETY: the caller's, and in nobody's sight before the exchange.
            unsafe { (*letter).next.store(next, Relaxed) };
            // Release: the letter is written. Acquire: so is what the receiver left when it went to rest.
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
    /// The caller has the turn.
    unsafe fn work(this: NonNull<Self>, budget: usize, received: &mut usize) -> Work {
        // SAFETY: the turn keeps it.
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
                    // Acquire: the letters are written. Nobody but the holder of the turn makes the word idle or closed.
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

    /// Counts what was taken out, and says so if somebody waits for room.
    fn settle(&self, taken: &mut usize, receiver: &mut dyn Receive<M, S>) {
        if *taken == 0 {
            return;
        }
        let before = self.waiting.fetch_sub(*taken * ONE, Relaxed);
        let left = before / ONE - std::mem::take(taken);
        // Half of it, so that a sender which fills it up is not called back for each message.
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

/// Makes a mailbox for `receiver`, in which `bound` messages may wait, and gives its address.
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

/// Where messages are sent to. When the last one has gone, and everything has been received, the receiver is dropped.
pub struct Address<M: Send + 'static, S: Schedule> {
    mailbox: NonNull<Mailbox<M, S>>,
}

// SAFETY: messages go from thread to thread, and the receiver with the turn; both are `Send`. All else that addresses share is
// atomic, or the scheduler, which is `Sync`.
unsafe impl<M: Send + 'static, S: Schedule> Send for Address<M, S> {}
// SAFETY: as above.
unsafe impl<M: Send + 'static, S: Schedule> Sync for Address<M, S> {}

impl<M: Send + 'static, S: Schedule> Address<M, S> {
    fn mailbox(&self) -> &Mailbox<M, S> {
        // SAFETY: it is not freed before the last address has gone.
        unsafe { self.mailbox.as_ref() }
    }

    /// Sends `message`, however many wait. Refused only if the mailbox is closed.
    pub fn push(&self, message: M) -> Result<(), PushError<M>> {
        if self.is_closed() {
            return Err(PushError::Closed(message));
        }
        self.mailbox().waiting.fetch_add(ONE, Relaxed);
        self.post(message)
    }

    /// Sends `message` if fewer wait than the mailbox is bound to. If it is refused, the receiver
    /// [is told](Receive::has_room) when half of them have been received.
    pub fn try_push(&self, message: M) -> Result<(), PushError<M>> {
        if self.is_closed() {
            return Err(PushError::Closed(message));
        }
        let Mailbox { waiting, bound, .. } = self.mailbox();
        let mut found = waiting.load(Relaxed);
        loop {
            // The wish for room is in the same word as the number, so the receiver that makes room cannot miss it.
            let full = found / ONE >= *bound;
            let wanted = if full { found | WANTED } else { found + ONE };
            match waiting.compare_exchange_weak(found, wanted, Relaxed, Relaxed) {
                Ok(_) if full => return Err(PushError::Full(message)),
                Ok(_) => return self.post(message),
                Err(changed) => found = changed,
            }
        }
    }

    /// Sends what has been counted.
    fn post(&self, message: M) -> Result<(), PushError<M>> {
        let letter = self.mailbox().letter(Some(message));
        // SAFETY: there is an address, and the letter is ours.
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

    /// Whether messages are refused for good.
    pub fn is_closed(&self) -> bool {
        self.mailbox().head.load(Relaxed) == closed()
    }

    /// How many messages wait. Those that are just being received may be counted too.
    pub fn waiting(&self) -> usize {
        self.mailbox().waiting.load(Relaxed) / ONE
    }

    /// How many may wait before [`try_push`](Address::try_push) is refused.
    pub fn bound(&self) -> usize {
        self.mailbox().bound
    }

    /// What schedules it.
    pub fn scheduler(&self) -> &S {
        &self.mailbox().scheduler
    }
}

/// Two are equal if they are addresses of the same mailbox.
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
        // Release and acquire: what was sent by way of the others is in the mailbox before the last letter.
        if self.mailbox().addresses.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        // The mailbox may be gone as soon as the letter is in it.
        let scheduler = self.mailbox().scheduler.clone();
        let letter = self.mailbox().letter(None);
        // SAFETY: without a last letter in it, the mailbox is there; the letter is ours.
        match unsafe { Mailbox::put(self.mailbox, letter) } {
            Ok(found) if found == idle() => scheduler.schedule(Turn::new(self.mailbox)),
            Ok(_) => {}
            Err(()) => {
                drop(Letters(letter).pop());
                // SAFETY: there is neither an address nor, as it was closed without a last letter, a turn: it is ours.
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
    /// The receiver's own address; `None` if all others are gone, and it is about to end.
    pub fn address(&self) -> Option<Address<M, S>> {
        let one_more = |addresses| (addresses > 0).then_some(addresses + 1);
        // SAFETY: the turn keeps it for as long as it is borrowed.
        let addresses = unsafe { &(*self.mailbox.as_ptr()).addresses };
        addresses.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Address { mailbox: self.mailbox })
    }
}

/// The right to run a receiver. There is at most one for a mailbox; to drop it closes the mailbox.
#[must_use = "a mailbox whose turn is dropped is closed"]
pub struct Turn {
    link: NonNull<Link>,
}

/// What a mailbox does, whatever its type.
struct Kind {
    run: unsafe fn(NonNull<Link>, usize) -> (usize, bool),
    close: unsafe fn(NonNull<Link>),
}

/// What mailboxes of these types do.
struct Of<M, S>(PhantomData<(M, S)>);

impl<M: Send + 'static, S: Schedule> Of<M, S> {
    const KIND: Kind = Kind { run: run::<M, S>, close: close::<M, S> };
}

// SAFETY: it is made for mailboxes of `Send` messages and receivers only.
unsafe impl Send for Turn {}

/// What came of a turn.
#[derive(Debug)]
pub struct Ran {
    /// So many messages were received.
    pub messages: usize,
    /// There may be more: to be scheduled again.
    pub again: Option<Turn>,
}

impl Turn {
    /// For a mailbox that has just got one.
    fn new<M: Send + 'static, S: Schedule>(mailbox: NonNull<Mailbox<M, S>>) -> Turn {
        Turn { link: mailbox.cast() }
    }

    pub(crate) fn into_link(self) -> NonNull<Link> {
        ManuallyDrop::new(self).link
    }

    /// # Safety
    ///
    /// The link came from a turn, and nobody else makes one of it.
    pub(crate) unsafe fn from_link(link: NonNull<Link>) -> Turn {
        Turn { link }
    }

    fn kind(&self) -> &'static Kind {
        // SAFETY: the mailbox is there while there is a turn.
        unsafe { self.link.as_ref() }.kind
    }

    /// Has up to `budget` messages received. If the receiver panics, the mailbox is closed, and the panic goes on.
    pub fn run(self, budget: usize) -> Ran {
        // If this unwinds, the turn is dropped.
        // SAFETY: the kind is that of the mailbox, and this is its turn.
        let (messages, more) = unsafe { (self.kind().run)(self.link, budget) };
        if more {
            return Ran { messages, again: Some(self) };
        }
        // The mailbox may be gone.
        std::mem::forget(self);
        Ran { messages, again: None }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: as in `run`; and the turn ends here.
        unsafe { (self.kind().close)(self.link) };
    }
}

/// Runs a receiver. `false`: there is no turn any more.
///
/// # Safety
///
/// The caller has the turn of a mailbox of these types.
unsafe fn run<M: Send + 'static, S: Schedule>(link: NonNull<Link>, budget: usize) -> (usize, bool) {
    let mailbox: NonNull<Mailbox<M, S>> = link.cast();
    let mut received = 0;
    loop {
        // SAFETY: the caller has the turn.
        match unsafe { Mailbox::work(mailbox, budget, &mut received) } {
            Work::Enough => return (received, true),
            Work::Empty => {
                // SAFETY: the turn keeps it up to the exchange, and the reference is to the atomic alone.
                let head = unsafe { &(*mailbox.as_ptr()).head };
                // Release: whoever has the next turn finds the receiver as it is now. A failure means that a letter has come.
                if head.compare_exchange(scheduled(), idle(), Release, Relaxed).is_ok() {
                    return (received, false);
                }
            }
            Work::Last => {
                // SAFETY: all addresses are gone, and nothing can follow the last letter: it is ours.
                drop(unsafe { Box::from_raw(mailbox.as_ptr()) });
                return (received, false);
            }
            Work::Close => {
                // SAFETY: we have the turn, and give it up.
                unsafe { close::<M, S>(link) };
                return (received, false);
            }
        }
    }
}

/// Closes a mailbox, and drops its receiver and what waits.
///
/// # Safety
///
/// The caller has the turn of a mailbox of these types, and gives it up.
unsafe fn close<M: Send + 'static, S: Schedule>(link: NonNull<Link>) {
    let mailbox: NonNull<Mailbox<M, S>> = link.cast();
    // What is the turn's is taken out before the exchange: after it, the last address may free the mailbox.
    // SAFETY: the turn keeps it, and lets nobody else in.
    let inside = unsafe { &(*mailbox.as_ptr()).inside };
    let (receiver, batch) = inside.with_mut(|inside| {
        // SAFETY: as above.
        let inside = unsafe { &mut *inside };
        (inside.receiver.take(), std::mem::replace(&mut inside.batch, Letters::NONE))
    });
    // SAFETY: as above, up to the exchange; the reference is to the atomic alone.
    let newest = unsafe { &(*mailbox.as_ptr()).head }.swap(closed(), AcqRel);
    let mut has_last = false;
    for mut letters in [batch, Letters::oldest_first(newest)] {
        while let Some(letter) = letters.pop() {
            has_last |= letter.take().is_none();
        }
    }
    drop(receiver);
    if has_last {
        // SAFETY: all addresses are gone, and so is the turn: it is ours.
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
