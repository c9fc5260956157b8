//! The functions that Erlang calls. None runs Python or waits for it: they copy, queue and return.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use pelton_python::host::{Call, Foreign, RefusalKind, RefusedTask};
use rustler::types::atom;
use rustler::{Atom, Binary, Encoder, Env, Error, LocalPid, NifResult, ResourceArc, Term, TermType};

use crate::callbacks::{self, Answer, Question};
use crate::environment::OwnEnv;
use crate::running::{self, Running, Settings, ThreadRef};
use crate::task::Task;
use crate::times::{self, Timed};
use crate::{atoms, errands, spaces};

/// The number of terms up to which a scheduler copies them. More take longer than a native function should.
const COPIED_AT_ONCE: usize = 1_000;

/// The number of terms up to which arguments travel with their result instead of being freed first.
const SMALL: usize = 16;

rustler::init!("py_nif");

/// Starts Python. The answer is `{py_started, Reference, ok | {error, Text}}`.
#[rustler::nif]
fn nif_start(
    env: Env<'_>,
    reference: Term<'_>,
    loops: usize,
    queue_bound: usize,
    paths: Vec<String>,
    spin_microseconds: u64,
) -> Atom {
    let caller = env.pid();
    let mut kept = OwnEnv::new();
    let reference = kept.keep(reference);
    let settings = Settings { loops, queue_bound, paths, spin: Duration::from_micros(spin_microseconds) };
    errands::run(move || {
        let started = running::start(settings);
        kept.send(&caller, |env| {
            // SAFETY: the reference belongs to this environment.
            let reference = unsafe { Term::new(env, reference) };
            let answer = match &started {
                Ok(()) => atom::ok().to_term(env),
                Err(text) => (atom::error(), text).encode(env),
            };
            (atoms::py_started(), reference, answer).encode(env).as_c_arg()
        });
    });
    atom::ok()
}

/// Stops Python. The answer is `{py_stopped, Reference, {Abandoned, Stuck} | not_running}`.
#[rustler::nif]
fn nif_stop(env: Env<'_>, reference: Term<'_>, milliseconds: u64) -> Atom {
    let caller = env.pid();
    let mut kept = OwnEnv::new();
    let reference = kept.keep(reference);
    // On a thread of its own, because calls that end now may need the errands.
    let body = move || {
        let stopped = running::stop(Duration::from_millis(milliseconds));
        kept.send(&caller, |env| {
            // SAFETY: the reference belongs to this environment.
            let reference = unsafe { Term::new(env, reference) };
            let answer = match stopped {
                Some(remains) => remains.encode(env),
                None => atoms::not_running().to_term(env),
            };
            (atoms::py_stopped(), reference, answer).encode(env).as_c_arg()
        });
    };
    match std::thread::Builder::new().name("pelton-stop".to_owned()).spawn(body) {
        Ok(_) => atom::ok(),
        Err(_) => atom::error(),
    }
}

/// Returns a loop by its number, modulo the number of loops.
#[rustler::nif]
fn nif_loop(env: Env<'_>, index: usize) -> NifResult<Term<'_>> {
    let running = running()?;
    Ok(ResourceArc::new(ThreadRef::of_loop(&running, index)).encode(env))
}

/// Returns the number of loops, of namespaces of processes, and of atoms that Python has created.
#[rustler::nif]
fn nif_counts() -> Result<(usize, usize, usize), Error> {
    let running = running()?;
    Ok((running.host.loops(), running.spaces.len(), atoms::made()))
}

fn running() -> NifResult<Arc<Running>> {
    running::current().ok_or_else(|| Error::Term(Box::new(atoms::not_running())))
}

/// Returns the number of a process, for choosing its loop.
#[rustler::nif]
fn nif_number(env: Env<'_>, process: LocalPid) -> usize {
    spaces::number(env, process)
}

/// Starts a worker. The answer is `{py_started, Reference, {ok, Thread} | {error, Text}}`.
#[rustler::nif]
fn nif_worker(env: Env<'_>, reference: Term<'_>) -> Result<Atom, Error> {
    let running = running()?;
    let caller = env.pid();
    let mut kept = OwnEnv::new();
    let reference = kept.keep(reference);
    errands::run(move || {
        let started = ThreadRef::of_worker(&running).map(ResourceArc::new);
        kept.send(&caller, |env| {
            // SAFETY: the reference belongs to this environment.
            let reference = unsafe { Term::new(env, reference) };
            let answer = match &started {
                Ok(thread) => (atom::ok(), thread).encode(env),
                Err(error) => (atom::error(), error.to_string()).encode(env),
            };
            (atoms::py_started(), reference, answer).encode(env).as_c_arg()
        });
    });
    Ok(atom::ok())
}

/// Ends a worker after the calls that were submitted before.
#[rustler::nif]
fn nif_worker_stop(thread: ResourceArc<ThreadRef>) -> Atom {
    thread.stop();
    atom::ok()
}

/// Interrupts the call that a thread is making. The answer is `{py_interrupted, Reference, WasRunning}`.
#[rustler::nif]
fn nif_interrupt(env: Env<'_>, reference: Term<'_>, thread: ResourceArc<ThreadRef>) -> Atom {
    let caller = env.pid();
    let mut kept = OwnEnv::new();
    let reference = kept.keep(reference);
    // It waits for Python's lock, so it may take long.
    errands::run(move || {
        let interrupted = thread.thread.interrupt();
        kept.send(&caller, |env| {
            // SAFETY: the reference belongs to this environment.
            let reference = unsafe { Term::new(env, reference) };
            (atoms::py_interrupted(), reference, interrupted).encode(env).as_c_arg()
        });
    });
    atom::ok()
}

/// Returns what a thread has done: tasks, batches, acquisitions of the lock, queued, pending.
#[rustler::nif]
fn nif_stats(thread: ResourceArc<ThreadRef>) -> (u64, u64, u64, usize, usize) {
    let stats = thread.thread.stats();
    (stats.tasks, stats.batches, stats.locks, stats.queued, stats.waiting)
}

/// Returns the text of a name: an atom, a binary, or a string.
fn name(term: Term<'_>) -> NifResult<Cow<'static, str>> {
    match term.get_type() {
        TermType::Atom => atoms::text(term).map(Cow::Borrowed).ok_or(Error::BadArg),
        TermType::Binary => {
            let bytes: Binary<'_> = term.decode()?;
            Ok(Cow::Owned(std::str::from_utf8(&bytes).map_err(|_| Error::BadArg)?.to_owned()))
        }
        _ => {
            let letters: Vec<u32> = term.decode()?;
            let text: Option<String> = letters.into_iter().map(char::from_u32).collect();
            text.map(Cow::Owned).ok_or(Error::BadArg)
        }
    }
}

/// How deep terms are that a scheduler looks at. Schedulers have small stacks.
const DEEPEST_AT_ONCE: usize = 64;

/// Counts the parts of a term, up to a limit and to some depth. Returns what is left of the limit.
fn count(term: Term<'_>, left: usize, levels: usize) -> Option<usize> {
    let mut left = left.checked_sub(1)?;
    let kind = term.get_type();
    if !matches!(kind, TermType::List | TermType::Tuple | TermType::Map) {
        return Some(left);
    }
    let levels = levels.checked_sub(1)?;
    match kind {
        TermType::List => {
            let mut rest = term;
            while let Ok((head, tail)) = rest.list_get_cell() {
                left = count(head, left, levels)?;
                rest = tail;
            }
        }
        TermType::Tuple => {
            for item in rustler::types::tuple::get_tuple(term).ok()? {
                left = count(item, left, levels)?;
            }
        }
        _ => {
            // Looking at one costs as much as copying it.
            left = left.checked_sub(term.map_size().unwrap_or(0) * 4)?;
            for (_, value) in rustler::MapIterator::new(term)? {
                left = count(value, left, levels)?;
            }
        }
    }
    Some(left)
}

/// The terms of a call that are common to functions and source code.
struct Where<'a> {
    thread: ResourceArc<ThreadRef>,
    /// `process` for the namespace of the caller, `context` for that of the thread.
    space: Atom,
    reference: Term<'a>,
    /// A question, if the caller is answering one.
    question: Term<'a>,
}

/// Submits a call. Returns `ok`, or `{error, Reason}`; or `large`, if a dirty scheduler has to copy the terms.
fn submit<'a>(
    env: Env<'a>,
    place: Where<'a>,
    call: Call,
    (args, keywords): (Term<'a>, Term<'a>),
    needs_space: bool,
    keeps_object: bool,
    dirty: bool,
) -> NifResult<Term<'a>> {
    let size = |(args, keywords)| {
        let left = count(args, COPIED_AT_ONCE, DEEPEST_AT_ONCE)?;
        count(keywords, left, DEEPEST_AT_ONCE)
    };
    let left = if dirty { None } else { size((args, keywords)) };
    if left.is_none() && !dirty {
        return Ok(atoms::large().to_term(env));
    }
    let small = left.is_some_and(|left| left >= COPIED_AT_ONCE - SMALL);
    let Where { thread, space, reference, question } = place;
    let caller = env.pid();
    let namespace = if !needs_space {
        None
    } else if space == atoms::context() {
        Some(thread.own.clone())
    } else {
        let Running { host, spaces } = &*thread.running;
        Some(spaces::of(env, spaces, host, caller).ok_or(Error::BadArg)?)
    };
    let task: Box<dyn Foreign> = Task::new(caller, reference, args, keywords, small, keeps_object, namespace.clone());
    let target = &thread.thread;
    let call = if thread.pooled { call.on_worker() } else { call };
    let visitor = question.decode::<ResourceArc<Question>>().ok().and_then(|question| question.visitor());
    let visitor = visitor.filter(|visitor| visitor.thread().is_some_and(|waiting| waiting.is(target)));
    let submitted = match (visitor, namespace) {
        (Some(visitor), namespace) => visitor.submit_foreign(namespace.as_ref(), call, task),
        (None, Some(namespace)) => namespace.submit_foreign_on(target, call, task),
        (None, None) => target.submit_foreign(call, task),
    };
    Ok(match submitted {
        Ok(_) => atom::ok().to_term(env),
        Err(RefusedTask { refused, .. }) => {
            let reason = if refused.kind == RefusalKind::Full { atoms::queue_full() } else { atoms::stopped() };
            (atom::error(), reason).encode(env)
        }
    })
}

fn submit_function<'a>(env: Env<'a>, terms: Vec<Term<'a>>, dirty: bool) -> NifResult<Term<'a>> {
    let [thread, space, reference, module, function, args, keywords, question, keeps] = terms[..] else {
        return Err(Error::BadArg);
    };
    let place = Where { thread: thread.decode()?, space: space.decode()?, reference, question };
    if !args.is_list() || !keywords.is_map() {
        return Err(Error::BadArg);
    }
    let module = name(module)?;
    let needs_space = module == "__main__";
    let call = Call::new(module, name(function)?);
    submit(env, place, call, (args, keywords), needs_space, keeps.decode()?, dirty)
}

/// Submits a call of a function. The answer is `{async_result, Reference, {ok, Value} | {error, Reason}}`.
#[rustler::nif]
#[allow(clippy::too_many_arguments, reason = "a native function has one for each argument in Erlang")]
fn nif_submit<'a>(
    env: Env<'a>,
    thread: Term<'a>,
    space: Term<'a>,
    reference: Term<'a>,
    module: Term<'a>,
    function: Term<'a>,
    arguments: Term<'a>,
    keywords: Term<'a>,
    question: Term<'a>,
    keeps: Term<'a>,
) -> NifResult<Term<'a>> {
    let _timed = Timed::begin();
    submit_function(env, vec![thread, space, reference, module, function, arguments, keywords, question, keeps], false)
}

/// Like `nif_submit`, for large terms.
#[rustler::nif(schedule = "DirtyCpu")]
#[allow(clippy::too_many_arguments, reason = "a native function has one for each argument in Erlang")]
fn nif_submit_large<'a>(
    env: Env<'a>,
    thread: Term<'a>,
    space: Term<'a>,
    reference: Term<'a>,
    module: Term<'a>,
    function: Term<'a>,
    arguments: Term<'a>,
    keywords: Term<'a>,
    question: Term<'a>,
    keeps: Term<'a>,
) -> NifResult<Term<'a>> {
    submit_function(env, vec![thread, space, reference, module, function, arguments, keywords, question, keeps], true)
}

/// Submits source code: `exec` for statements, `eval` for an expression. The answer is as for `nif_submit`.
#[rustler::nif]
#[allow(clippy::too_many_arguments, reason = "a native function has one for each argument in Erlang")]
fn nif_source<'a>(
    env: Env<'a>,
    thread: ResourceArc<ThreadRef>,
    space: Atom,
    reference: Term<'a>,
    is_expression: bool,
    code: Term<'a>,
    locals: Term<'a>,
    question: Term<'a>,
    keeps: bool,
) -> NifResult<Term<'a>> {
    let _timed = Timed::begin();
    if !locals.is_map() {
        return Err(Error::BadArg);
    }
    let code = source(code)?;
    let call = if is_expression { Call::eval(code) } else { Call::exec(code) };
    let nothing = rustler::types::map::map_new(env);
    // Local variables are few, and copied here whatever their size.
    submit(env, Where { thread, space, reference, question }, call, (locals, nothing), true, keeps, true)
}

/// Returns source code: a binary, or a list of characters and binaries.
fn source(code: Term<'_>) -> NifResult<String> {
    let code = code.decode_as_binary().map_err(|_| Error::BadArg)?;
    Ok(std::str::from_utf8(&code).map_err(|_| Error::BadArg)?.to_owned())
}

/// Answers a question of Python. Returns whether it was waiting.
#[rustler::nif]
fn nif_answer(question: ResourceArc<Question>, is_ok: bool, answer: Term<'_>) -> bool {
    question.answer(Answer::new(answer, is_ok))
}

/// Returns the thread for calls of a process that answers a question: the thread that waits for the answer, or else one
/// that nothing can block. A context could be the one that waits, in a way that Python does not show.
#[rustler::nif]
fn nif_question_thread(env: Env<'_>, question: ResourceArc<Question>) -> NifResult<Term<'_>> {
    let running = running()?;
    let waiting = question.visitor().and_then(|visitor| visitor.thread().cloned());
    Ok(ResourceArc::new(ThreadRef::for_answers(&running, waiting)).encode(env))
}

/// Sets the process that gets the questions of Python: the caller.
#[rustler::nif]
fn nif_serve(env: Env<'_>) -> Atom {
    callbacks::set_server(env.pid());
    atom::ok()
}

/// Registers or unregisters the name of a function that Python may call.
#[rustler::nif]
fn nif_register(function: Term<'_>, on: bool) -> NifResult<Atom> {
    callbacks::register(name(function)?.into_owned(), on);
    Ok(atom::ok())
}

/// Returns whether a term refers to a Python object.
#[rustler::nif]
fn nif_is_object(term: Term<'_>) -> bool {
    callbacks::is_kept_object(term)
}

/// Begins or ends measuring the native functions.
#[rustler::nif]
fn nif_measure(on: bool) -> Atom {
    times::measure(on);
    atom::ok()
}

/// Returns upper bounds in nanoseconds, and how many calls took at most that long.
#[rustler::nif]
fn nif_times() -> Vec<(u64, u64)> {
    times::counts()
}
