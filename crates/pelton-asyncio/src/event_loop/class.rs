//! `pelton.Loop`: the final type, derived from `pelton._loop.BaseLoop`.

use std::ffi::CStr;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::event_loop::state::Loop;
use crate::event_loop::{attributes, batch, run, scheduling, slow, stats};
use crate::known::name;
use crate::readers::{self, Side, descriptors};
use crate::sockets::{datagrams, guards, operations as sockets};
use crate::transports::{opening, pipes};
use pelton_cpython::arguments::{Argument, Call, Scheduled};
use pelton_cpython::call::{Call as _, OrRaise, raise};
use pelton_cpython::class::{self, Method, NoArguments, Parts, This};
use pelton_cpython::object::Result;
use pelton_cpython::{keyword_arguments, no_arguments, one_argument, several_arguments};

/// `_run_once()`, which programs may replace.
struct RunOnce;

impl NoArguments for RunOnce {
    type State = Loop;

    fn call(this: This<'_, '_, Loop>) -> class::Answer {
        class::Answer::new(this.py(), run::once(this))
    }
}

/// Returns whether a loop's `_run_once` is this crate's.
pub(crate) fn has_own_turn(its_loop: &Bound<'_, PyAny>) -> Result<bool> {
    Ok(class::is_method::<RunOnce>(&its_loop.attribute(name!(its_loop.py(), _run_once))?))
}

fn get_debug(this: This<'_, '_, Loop>) -> Result<bool> {
    Ok(this.state_if_any().is_some_and(|state| state.debug.get()))
}

fn stop(this: This<'_, '_, Loop>) -> Result<()> {
    this.state().map(|state| state.stopping.set(true))
}

/// `_add_callback(handle)`: queues a handle, which may be of asyncio's type.
fn add_callback<'py>(this: This<'_, 'py, Loop>, handle: Argument<'_, 'py>) -> Result<()> {
    if !batch::is_cancelled(&handle)? {
        this.state()?.queue(handle.to_owned());
    }
    Ok(())
}

fn write_to_self(this: This<'_, '_, Loop>) -> Result<()> {
    this.state().map(|state| state.wake())
}

/// Does nothing: cancelling a `pelton.TimerHandle` removes it from the wheel, and other handles are never in the wheel.
fn timer_handle_cancelled<'py>(_: This<'_, 'py, Loop>, _: Argument<'_, 'py>) -> Result<()> {
    Ok(())
}

/// The descriptors that a method may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Only descriptors that no transport uses. For methods that programs call.
    Free,
    /// All descriptors. For methods that transports call.
    All,
}

fn add<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>, side: Side, reach: Reach) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let names = [name!(py, fd), name!(py, callback)];
    let Scheduled { named: [fd, callback], rest, context } = call.scheduled(py, names)?;
    call.refuse_context(py, context)?;
    if reach == Reach::Free {
        descriptors::refuse_transports(&this, this.state()?, &fd)?;
    }
    readers::add(&this, this.state()?, &fd, side, &callback, rest)
}

fn remove<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>, side: Side, reach: Reach) -> Result<bool> {
    if reach == Reach::Free {
        descriptors::refuse_transports(&this, this.state()?, &fd)?;
    }
    readers::remove(this.py(), this.state()?, &fd, side)
}

/// The methods for one side of a descriptor. Those with an underscore return the handle, the others nothing.
macro_rules! watching {
    ($side:expr, $add:ident, $add_any:ident, $remove:ident, $remove_any:ident) => {
        fn $add<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<()> {
            add(this, call, $side, Reach::Free).map(drop)
        }

        fn $add_any<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<Bound<'py, PyAny>> {
            add(this, call, $side, Reach::All)
        }

        fn $remove<'py>(this: This<'_, 'py, Loop>, call: Call<'_, 'py>) -> Result<bool> {
            let [fd] = call.named(this.py(), [name!(this.py(), fd)])?;
            remove(this, fd, $side, Reach::Free)
        }

        fn $remove_any<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<bool> {
            remove(this, fd, $side, Reach::All)
        }
    };
}

watching!(Side::Reader, add_reader, add_any_reader, remove_reader, remove_any_reader);
watching!(Side::Writer, add_writer, add_any_writer, remove_writer, remove_any_writer);

/// `_watched(fd)`: returns the reader and the writer of a descriptor, each a handle or `None`.
fn watched<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let fd = descriptors::descriptor(&fd)?;
    let pair = this.state()?.readers.of(py, fd);
    PyTuple::new(py, [pair.0, pair.1]).or_raise(py).map(Bound::into_any)
}

/// `_watched_descriptors()`: returns a list of numbers.
fn watched_descriptors<'py>(this: This<'_, 'py, Loop>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    this.state()?.readers.descriptors().into_pyobject(py).or_raise(py)
}

/// `_close_core()`
fn close_core(this: This<'_, '_, Loop>) -> Result<()> {
    let state = this.state()?;
    if !state.can_close() {
        return Err(raise::<PyRuntimeError>(this.py(), "Cannot close a running event loop"));
    }
    state.close(this.py());
    Ok(())
}

fn stats_method<'py>(this: This<'_, 'py, Loop>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    stats::snapshot(py, this.state()?).or_raise(py).map(Bound::into_any)
}

/// `_set_slow_hook(nanoseconds, hook)`
fn set_slow_hook<'py>(this: This<'_, 'py, Loop>, [nanoseconds, hook]: [Argument<'_, 'py>; 2]) -> Result<()> {
    slow::set_hook(this.py(), this.state()?, slow::threshold(&nanoseconds)?, &hook)
}

// The docs of public methods begin with the signature, in the form that `inspect.signature` parses.
fn methods() -> Vec<Method<Loop>> {
    vec![
        keyword_arguments!(Loop, c"call_soon", scheduling::call_soon, c"call_soon($self, callback, *args, context=None)\n--\n\nArrange for a callback to be called as soon as possible."),
        keyword_arguments!(Loop, c"call_soon_threadsafe", scheduling::call_soon_threadsafe, c"call_soon_threadsafe($self, callback, *args, context=None)\n--\n\nLike call_soon(), but may be called from any thread."),
        keyword_arguments!(Loop, c"call_later", scheduling::call_later, c"call_later($self, delay, callback, *args, context=None)\n--\n\nArrange for a callback to be called after a delay."),
        keyword_arguments!(Loop, c"call_at", scheduling::call_at, c"call_at($self, when, callback, *args, context=None)\n--\n\nArrange for a callback to be called at a time of loop.time()."),
        keyword_arguments!(Loop, c"create_task", scheduling::create_task, c"create_task($self, coro, *, name=None, context=None)\n--\n\nSchedule a coroutine, and return a task for it."),
        no_arguments!(Loop, c"create_future", scheduling::create_future, c"create_future($self)\n--\n\nCreate a future that belongs to the loop."),
        no_arguments!(Loop, c"time", scheduling::time_method, c"time($self)\n--\n\nReturn the time on the loop's clock, in seconds."),
        no_arguments!(Loop, c"get_debug", get_debug, c"get_debug($self)\n--\n\nReturn whether the loop is in debug mode."),
        no_arguments!(Loop, c"stop", stop, c"stop($self)\n--\n\nStop running the loop, after the turn under way."),
        no_arguments!(Loop, c"stats", stats_method, c"stats($self)\n--\n\nReturn what the loop has counted, as a dictionary."),
        class::method_without_arguments::<RunOnce>(c"_run_once", c"Run one turn of the loop."),
        no_arguments!(Loop, c"_run_until_stopped", run::until_stopped, c"Turn the loop until it is told to stop."),
        no_arguments!(Loop, c"_write_to_self", write_to_self, c"Wake the loop if it sleeps."),
        no_arguments!(Loop, c"_watched_descriptors", watched_descriptors, c"Return the descriptors that are watched."),
        no_arguments!(Loop, c"_close_core", close_core, c"Let go of everything that is queued or watched."),
        one_argument!(Loop, c"_add_callback", add_callback, c"Queue a handle."),
        one_argument!(Loop, c"_timer_handle_cancelled", timer_handle_cancelled, c"Nothing that the loop needs to be told."),
        one_argument!(Loop, c"_watched", watched, c"Return the handles of the reader and the writer of a descriptor."),
        keyword_arguments!(Loop, c"remove_reader", remove_reader, c"remove_reader($self, fd)\n--\n\nStop watching a descriptor for reading."),
        keyword_arguments!(Loop, c"remove_writer", remove_writer, c"remove_writer($self, fd)\n--\n\nStop watching a descriptor for writing."),
        one_argument!(Loop, c"_remove_reader", remove_any_reader, c"Stop watching any descriptor for reading."),
        one_argument!(Loop, c"_remove_writer", remove_any_writer, c"Stop watching any descriptor for writing."),
        keyword_arguments!(Loop, c"add_reader", add_reader, c"add_reader($self, fd, callback, *args)\n--\n\nHave a callback called when a descriptor is readable."),
        keyword_arguments!(Loop, c"add_writer", add_writer, c"add_writer($self, fd, callback, *args)\n--\n\nHave a callback called when a descriptor is writable."),
        keyword_arguments!(Loop, c"_add_reader", add_any_reader, c"Have a callback called when any descriptor is readable."),
        keyword_arguments!(Loop, c"_add_writer", add_any_writer, c"Have a callback called when any descriptor is writable."),
        several_arguments!(Loop, c"_accept_streams", opening::accept, c"Accept connections, and make transports for them."),
        several_arguments!(Loop, c"_open_stream", opening::open_descriptor, c"Make a transport for a connected socket."),
        several_arguments!(Loop, c"_accept_one", opening::accept_one, c"Accept a connection, and make a socket for it."),
        several_arguments!(Loop, c"_adopt_listener", readers::adopt_listener, c"Make a listener of a listening socket."),
        several_arguments!(Loop, c"_adopt_datagrams", readers::adopt_datagrams, c"Make a datagram socket of a socket."),
        one_argument!(Loop, c"_adopt_pipe", readers::adopt_pipe, c"Make a connection of an end of a pipe."),
        one_argument!(Loop, c"_release", readers::release_descriptor, c"Give back a descriptor that was adopted."),
        several_arguments!(Loop, c"_pause_accepting", readers::pause_accepting, c"Accept nothing for some seconds."),
        several_arguments!(Loop, c"_queue_datagram", datagrams::queue, c"Queue a datagram."),
        one_argument!(Loop, c"_queued_datagrams", datagrams::queued, c"Return the number of queued datagrams and bytes."),
        one_argument!(Loop, c"_check_datagrams", datagrams::check, c"Raise the error of a queued datagram."),
        one_argument!(Loop, c"_drop_datagrams", datagrams::drop_queue, c"Drop the queued datagrams."),
        several_arguments!(Loop, c"_sendto", datagrams::send_to, c"Send a datagram, if that takes no waiting and no looking up."),
        several_arguments!(Loop, c"_receive_from_pipe", pipes::receive, c"Receive from a pipe."),
        several_arguments!(Loop, c"_send_to_pipe", pipes::send, c"Send to a pipe, and queue what has no room."),
        several_arguments!(Loop, c"_queue_for_pipe", pipes::queue, c"Queue data until a pipe has room."),
        one_argument!(Loop, c"_queued_for_pipe", pipes::queued, c"Return how much is queued, or raise why it was not sent."),
        one_argument!(Loop, c"_pipe_backlog", pipes::backlog, c"Return how much is queued."),
        one_argument!(Loop, c"_drop_pipe_queue", pipes::drop_queue, c"Drop what is queued."),
        no_arguments!(Loop, c"_sockets_are_guarded", guards::are_guarded, c"Return whether somebody watches over sockets."),
        several_arguments!(Loop, c"_start_connecting", opening::connect, c"Begin to connect to an address."),
        one_argument!(Loop, c"_connect_outcome", opening::connect_outcome, c"Return the number of the error, or 0."),
        several_arguments!(Loop, c"_receive_datagrams", datagrams::receive, c"Receive datagrams, and tell a protocol of them."),
        several_arguments!(Loop, c"_send_datagram", datagrams::send, c"Send a datagram, if that takes no waiting and no looking up."),
        several_arguments!(Loop, c"_recv", sockets::recv, c"Receive, or return a future for what will be received."),
        several_arguments!(Loop, c"_recv_ready", sockets::recv_ready, c"Receive what somebody waits for."),
        several_arguments!(Loop, c"_recv_into", sockets::recv_into, c"Likewise, into a buffer."),
        several_arguments!(Loop, c"_recv_into_ready", sockets::recv_into_ready, c"Likewise, into a buffer."),
        several_arguments!(Loop, c"_recvfrom", sockets::recvfrom, c"Likewise, with the address that it comes from."),
        several_arguments!(Loop, c"_recvfrom_ready", sockets::recvfrom_ready, c"Likewise, with the address that it comes from."),
        several_arguments!(Loop, c"_accept", sockets::accept, c"Accept a connection, or return a future for one."),
        several_arguments!(Loop, c"_accept_ready", sockets::accept_ready, c"Accept a connection that somebody waits for."),
        several_arguments!(Loop, c"_connect", sockets::connect, c"Begin to connect a socket."),
        several_arguments!(Loop, c"_stop_waiting", sockets::stop_waiting, c"Give up waiting to receive."),
        several_arguments!(Loop, c"_send", sockets::send, c"Send what there is room for."),
        several_arguments!(Loop, c"_set_slow_hook", set_slow_hook, c"Have a callback told of slow callbacks."),
    ]
}

/// Makes the class, derived from `pelton._loop.BaseLoop`.
pub(crate) fn make<'py>(base: &Bound<'py, PyType>) -> Result<Bound<'py, PyType>> {
    const DOC: &CStr = c"An asyncio event loop on the Pelton reactor.";
    class::make(
        base,
        Parts { name: c"pelton.Loop", doc: DOC, methods: methods(), attributes: attributes::attributes() },
    )
}
