//! Calls Ruby code, and keeps its jumps from crossing Rust frames.
//!
//! An exception, a `throw`, a `break` and the end of a thread are jumps over the C stack. Every call is protected here, and a
//! jump is continued only in the outermost frame of [`run`](crate::run), where nothing is left to drop.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use rb_sys::{ID, Qnil, VALUE};

/// The state of a jump that was caught. What is thrown stays in the interpreter's `$!`, where the garbage collector finds it,
/// so no other Ruby code may run until the jump is continued or forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Jump(c_int);

/// The state of an exception, as opposed to a `throw` and others.
const RAISE: c_int = 6;

impl Jump {
    /// Forgets the jump.
    pub(crate) fn forget(self) {
        // SAFETY: nil is always accepted.
        unsafe { rb_sys::rb_set_errinfo(nil()) };
    }

    /// Continues the jump.
    ///
    /// # Safety
    /// No frame between this one and Ruby's has anything to drop.
    pub(crate) unsafe fn resume(self) -> ! {
        // SAFETY: the caller guarantees it, and the state comes from a protected call.
        unsafe { rb_sys::rb_jump_tag(self.0) }
    }

    /// Returns the exception, if the jump is one of the given class.
    fn exception_of(self, class: VALUE) -> Option<VALUE> {
        if self.0 != RAISE {
            return None;
        }
        // SAFETY: reads `$!`, and asks for its class, which calls no Ruby code.
        unsafe {
            let error = rb_sys::rb_errinfo();
            (rb_sys::rb_obj_is_kind_of(error, class) == rb_sys::Qtrue as VALUE).then_some(error)
        }
    }
}

pub(crate) fn nil() -> VALUE {
    Qnil as VALUE
}

/// Calls `f`, and catches jumps out of it. `f` is `Copy`, so it owns nothing that a jump would leak.
#[inline]
pub(crate) fn protect<F: FnOnce() -> VALUE + Copy>(f: F) -> Result<VALUE, Jump> {
    unsafe extern "C" fn call<F: FnOnce() -> VALUE + Copy>(f: VALUE) -> VALUE {
        // SAFETY: `protect` passes a pointer to a live `F`.
        let f = unsafe { *(f as *const F) };
        f()
    }
    let mut state = 0;
    // SAFETY: `call` is made for `F`, and `f` outlives the call.
    let value = unsafe { rb_sys::rb_protect(Some(call::<F>), &raw const f as VALUE, &raw mut state) };
    if state == 0 { Ok(value) } else { Err(Jump(state)) }
}

/// Handles interrupts: traps, `Thread#raise`, `Thread#kill`, and other threads that wait for the lock.
pub(crate) fn check_interrupts() -> Result<(), Jump> {
    protect(|| {
        // SAFETY: the lock is held. It may run Ruby code and jump.
        unsafe { rb_sys::rb_thread_check_ints() };
        nil()
    })
    .map(drop)
}

/// Lets other threads of Ruby run, if any is waiting for the lock.
pub(crate) fn let_others_run() -> Result<(), Jump> {
    protect(|| {
        // SAFETY: as in `check_interrupts`.
        unsafe { rb_sys::rb_thread_schedule() };
        nil()
    })
    .map(drop)
}

/// Names that are looked up often, and the module. Names and modules are never freed; the module is a constant of `Object`.
pub(crate) struct Known {
    pub(crate) module: VALUE,
    conns: ID,
    timers: ID,
    error_handler: ID,
    signature: ID,
    call: ID,
    cancel: ID,
    add_timer_checked: ID,
    receive_data: ID,
    connection_completed: ID,
    event_callback: ID,
    run_deferred_callbacks: ID,
    notify_readable: ID,
    notify_writable: ID,
    proxy_target_unbound: ID,
    proxy_completed: ID,
    outbound_drained: ID,
    ssl_handshake_completed: ID,
    ssl_verify_peer: ID,
}

// SAFETY: the values are immutable, and used with the lock held only.
unsafe impl Sync for Known {}
// SAFETY: as above.
unsafe impl Send for Known {}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// Looks up what [`known`] returns. Called when the library is loaded.
///
/// # Safety
/// The lock is held, and `module` is the module EventMachine.
pub(crate) unsafe fn set_known(module: VALUE) {
    // SAFETY: the names are C strings; interning runs no Ruby code.
    let id = |name: &CStr| unsafe { rb_sys::rb_intern(name.as_ptr()) };
    // SAFETY: the module is never moved or freed after this.
    unsafe { rb_sys::rb_gc_register_mark_object(module) };
    KNOWN.get_or_init(|| Known {
        module,
        conns: id(c"@conns"),
        timers: id(c"@timers"),
        error_handler: id(c"@error_handler"),
        signature: id(c"@signature"),
        call: id(c"call"),
        cancel: id(c"cancel"),
        add_timer_checked: id(c"add_timer_checked"),
        receive_data: id(c"receive_data"),
        connection_completed: id(c"connection_completed"),
        event_callback: id(c"event_callback"),
        run_deferred_callbacks: id(c"run_deferred_callbacks"),
        notify_readable: id(c"notify_readable"),
        notify_writable: id(c"notify_writable"),
        proxy_target_unbound: id(c"proxy_target_unbound"),
        proxy_completed: id(c"proxy_completed"),
        outbound_drained: id(c"outbound_drained"),
        ssl_handshake_completed: id(c"ssl_handshake_completed"),
        ssl_verify_peer: id(c"ssl_verify_peer"),
    });
}

pub(crate) fn known() -> &'static Known {
    KNOWN.get().expect("set when the library was loaded")
}

/// What the reactor tells a program. Each is one call.
#[derive(Clone, Copy)]
pub(crate) enum Told<'a> {
    Received(u64, &'a [u8]),
    Completed(u64),
    /// The queue of a connection has become short.
    Drained(u64),
    /// The handshake of TLS is complete.
    HandshakeCompleted(u64),
    Readable(u64),
    Writable(u64),
    TimerFired(u64),
    /// A connection was accepted: the signatures of the server and of the connection.
    Accepted(u64, u64),
    /// A connection or a watch has ended, with a number of an error or 0.
    Unbound(u64, i32),
    /// The target of this connection's proxy has ended.
    ProxyTargetUnbound(u64),
    /// The proxy has sent as many bytes as it should.
    ProxyCompleted(u64),
    /// Deferred results and ticks are to be run.
    LoopBreak,
}

/// The opcodes of `event_callback`.
pub(crate) mod opcode {
    pub(crate) const TIMER_FIRED: u64 = 100;
    pub(crate) const DATA: u64 = 101;
    pub(crate) const UNBOUND: u64 = 102;
    pub(crate) const ACCEPTED: u64 = 103;
    pub(crate) const COMPLETED: u64 = 104;
}

fn fixnum(number: u64) -> VALUE {
    // SAFETY: conversion of a number; signatures are far below 2^62.
    unsafe { rb_sys::rb_uint2inum(number as usize) }
}

impl Told<'_> {
    /// Calls Ruby.
    ///
    /// # Safety
    /// The lock is held, and a jump may leave this frame.
    unsafe fn tell(self) -> VALUE {
        let known = known();
        // SAFETY: the caller guarantees it. Objects are on the stack, where the garbage collector finds them.
        unsafe {
            match self {
                Told::Received(sig, bytes) => {
                    let data = rb_sys::rb_str_new(bytes.as_ptr().cast(), bytes.len() as _);
                    match connection(sig) {
                        Some(connection) => rb_sys::rb_funcallv(connection, known.receive_data, 1, &raw const data),
                        None => callback(sig, opcode::DATA, data),
                    }
                }
                Told::Completed(sig) => match connection(sig) {
                    Some(connection) => {
                        rb_sys::rb_funcallv(connection, known.connection_completed, 0, std::ptr::null())
                    }
                    None => callback(sig, opcode::COMPLETED, nil()),
                },
                Told::Drained(sig) => notify(sig, known.outbound_drained),
                Told::HandshakeCompleted(sig) => notify(sig, known.ssl_handshake_completed),
                Told::ProxyTargetUnbound(sig) => notify(sig, known.proxy_target_unbound),
                Told::ProxyCompleted(sig) => notify(sig, known.proxy_completed),
                Told::Readable(sig) => notify(sig, known.notify_readable),
                Told::Writable(sig) => notify(sig, known.notify_writable),
                Told::TimerFired(sig) => {
                    let timers = rb_sys::rb_ivar_get(known.module, known.timers);
                    let timer = rb_sys::rb_hash_delete(timers, fixnum(sig));
                    if timer == nil() {
                        return callback(sig, opcode::TIMER_FIRED, fixnum(sig));
                    }
                    if rb_sys::rb_obj_is_proc(timer) == rb_sys::Qtrue as VALUE {
                        // Without looking a method up.
                        return rb_sys::rb_proc_call_with_block(timer, 0, std::ptr::null(), nil());
                    }
                    rb_sys::rb_funcallv(timer, known.call, 0, std::ptr::null())
                }
                Told::Accepted(server, sig) => callback(server, opcode::ACCEPTED, fixnum(sig)),
                Told::Unbound(sig, error) => callback(sig, opcode::UNBOUND, fixnum(error.unsigned_abs().into())),
                Told::LoopBreak => rb_sys::rb_funcallv(known.module, known.run_deferred_callbacks, 0, std::ptr::null()),
            }
        }
    }
}

/// Looks up a connection by its signature.
///
/// # Safety
/// The lock is held, and a jump may leave this frame.
unsafe fn connection(sig: u64) -> Option<VALUE> {
    let known = known();
    // SAFETY: the caller guarantees it. `@conns` is a hash unless a program has replaced it; then the lookup raises.
    let found = unsafe { rb_sys::rb_hash_lookup(rb_sys::rb_ivar_get(known.module, known.conns), fixnum(sig)) };
    (found != nil()).then_some(found)
}

/// # Safety
/// As for [`connection`].
unsafe fn notify(sig: u64, name: ID) -> VALUE {
    // SAFETY: the caller guarantees it.
    unsafe { connection(sig).map_or(nil(), |connection| rb_sys::rb_funcallv(connection, name, 0, std::ptr::null())) }
}

/// Calls `EventMachine.event_callback`.
///
/// # Safety
/// As for [`connection`].
unsafe fn callback(sig: u64, opcode: u64, data: VALUE) -> VALUE {
    let arguments = [fixnum(sig), fixnum(opcode), data];
    // SAFETY: the caller guarantees it.
    unsafe { rb_sys::rb_funcallv(known().module, known().event_callback, 3, arguments.as_ptr()) }
}

/// Tells the program something. A StandardError goes to `EM.error_handler` if there is one; other jumps come back.
pub(crate) fn tell(told: Told<'_>) -> Result<(), Jump> {
    // SAFETY: only the reactor's callbacks call this, with the lock held. `protect` catches jumps.
    match protect(|| unsafe { told.tell() }) {
        Ok(_) => Ok(()),
        Err(jump) => offer(jump),
    }
}

/// Asks a connection whether it accepts a certificate. A StandardError goes to `EM.error_handler` if there is one, and means no.
pub(crate) fn accepts_certificate(sig: u64, pem: &[u8]) -> Result<bool, Jump> {
    // SAFETY: only the reactor's callbacks call this, with the lock held. `protect` catches jumps. The string is on the stack.
    let asked = protect(|| unsafe {
        let pem = rb_sys::rb_str_new(pem.as_ptr().cast(), pem.len() as _);
        match connection(sig) {
            Some(connection) => rb_sys::rb_funcallv(connection, known().ssl_verify_peer, 1, &raw const pem),
            None => nil(),
        }
    });
    match asked {
        Ok(answer) => Ok(answer != nil() && answer != rb_sys::Qfalse as VALUE),
        Err(jump) => offer(jump).map(|()| false),
    }
}

/// Offers a jump to `EM.error_handler`.
fn offer(jump: Jump) -> Result<(), Jump> {
    let known = known();
    // SAFETY: reading an instance variable of a module and a global class.
    let (handler, standard) =
        unsafe { (rb_sys::rb_ivar_get(known.module, known.error_handler), rb_sys::rb_eStandardError) };
    if handler == nil() || handler == rb_sys::Qfalse as VALUE {
        return Err(jump);
    }
    let Some(error) = jump.exception_of(standard) else { return Err(jump) };
    jump.forget();
    // SAFETY: the lock is held, and jumps are caught. Both objects are on the stack.
    protect(|| unsafe { rb_sys::rb_funcallv(handler, known.call, 1, &raw const error) }).map(drop)
}

/// Puts a timer into `@timers`. Returns its signature as an object.
///
/// # Safety
/// The lock is held, and a jump may leave this frame.
pub(crate) unsafe fn keep_timer(module: VALUE, sig: u64, callback: VALUE) -> VALUE {
    let sig = fixnum(sig);
    // SAFETY: the caller guarantees it, and has the callback on its stack.
    unsafe { rb_sys::rb_hash_aset(rb_sys::rb_ivar_get(module, known().timers), sig, callback) };
    sig
}

/// Removes a timer from `@timers`. Returns whether it was there.
///
/// # Safety
/// As for [`keep_timer`].
pub(crate) unsafe fn drop_timer(module: VALUE, sig: VALUE) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe { rb_sys::rb_hash_delete(rb_sys::rb_ivar_get(module, known().timers), sig) != nil() }
}

/// Calls `EventMachine.add_timer_checked`.
///
/// # Safety
/// As for [`keep_timer`].
pub(crate) unsafe fn add_timer_checked(module: VALUE, arguments: &[VALUE]) -> VALUE {
    // SAFETY: the caller guarantees it, and the arguments are on the stack.
    unsafe { rb_sys::rb_funcallv(module, known().add_timer_checked, arguments.len() as _, arguments.as_ptr()) }
}

/// Cancels an object that can be cancelled. Others, such as nil, are no timers, which is no error.
///
/// # Safety
/// As for [`keep_timer`].
pub(crate) unsafe fn cancel(timer: VALUE) -> VALUE {
    // SAFETY: the caller guarantees it.
    unsafe {
        match rb_sys::rb_respond_to(timer, known().cancel) {
            0 => nil(),
            _ => rb_sys::rb_funcallv(timer, known().cancel, 0, std::ptr::null()),
        }
    }
}

/// Returns the signature of a connection object.
///
/// # Safety
/// The lock is held, and `connection` is an object.
pub(crate) unsafe fn signature_of(connection: VALUE) -> Option<u64> {
    // SAFETY: the caller guarantees it; reading an instance variable runs no Ruby code.
    unsafe {
        let value = rb_sys::rb_ivar_get(connection, known().signature);
        rb_sys::FIXNUM_P(value).then(|| rb_sys::FIX2LONG(value) as u64)
    }
}
