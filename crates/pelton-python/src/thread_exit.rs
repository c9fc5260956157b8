//! Threads that CPython ends while the interpreter shuts down.
//!
//! Before Python 3.14, a daemon thread that asks for the interpreter lock during or after finalization is ended by `pthread_exit`.
//! In glibc that unwinds the thread's stack, and Rust frames must not be unwound like this: the process aborts. Python 3.14 suspends
//! such a thread for ever instead, and this module does the same for the threads that run a loop or call into one.
//!
//! When glibc ends a thread, it calls the handlers of [`_pthread_cleanup_push`] as it comes past the frame that each was pushed in,
//! and tells that by the address of the handler's record. A record that is not on the stack is below every frame, so its handler
//! is called before the first frame is unwound. It never returns. The thread holds no lock of Python's at that point.
//!
//! Other C libraries for which this crate is built end a thread without unwinding its stack, so there is nothing to do.

/// While this lives, `pthread_exit` suspends this thread.
pub(crate) struct Suspended {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    _record: Option<glibc::Record>,
}

impl Suspended {
    pub(crate) fn instead_of_exit() -> Suspended {
        Suspended {
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            _record: glibc::Record::push(),
        }
    }
}

/// Has `pthread_exit` suspend this thread for as long as it lives. For threads that call into a loop without running one.
pub(crate) fn protect_thread() {
    thread_local! {
        static SUSPENDED: Suspended = Suspended::instead_of_exit();
    }
    // A thread whose local values are gone already is past running any Python.
    let _ = SUSPENDED.try_with(|_| ());
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::{CStr, c_int, c_void};
    use std::mem::transmute;
    use std::ptr::{NonNull, null_mut};
    use std::sync::OnceLock;

    /// `struct _pthread_cleanup_buffer`
    #[repr(C)]
    struct Buffer {
        routine: Option<Routine>,
        argument: *mut c_void,
        cancel_type: c_int,
        previous: *mut Buffer,
    }

    type Routine = unsafe extern "C" fn(*mut c_void);

    type Push = unsafe extern "C" fn(*mut Buffer, Routine, *mut c_void);
    type Pop = unsafe extern "C" fn(*mut Buffer, c_int);

    struct Functions {
        push: Push,
        pop: Pop,
    }

    /// Looked up at run time: they are in another library, and of another version, in older releases of glibc.
    fn functions() -> Option<&'static Functions> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        let find = |name: &CStr| {
            // SAFETY: the name is a string.
            NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
        };
        let find = || {
            let (push, pop) = (find(c"_pthread_cleanup_push")?, find(c"_pthread_cleanup_pop")?);
            // SAFETY: these are functions of glibc's, with these signatures since its version 2.0.
            unsafe {
                Some(Functions {
                    push: transmute::<*mut c_void, Push>(push.as_ptr()),
                    pop: transmute::<*mut c_void, Pop>(pop.as_ptr()),
                })
            }
        };
        FUNCTIONS.get_or_init(find).as_ref()
    }

    /// A record in this thread's list of handlers. It is on the heap, and must stay there.
    pub(super) struct Record(NonNull<Buffer>, &'static Functions);

    impl Record {
        pub(super) fn push() -> Option<Record> {
            let functions = functions()?;
            let buffer = Box::new(Buffer { routine: None, argument: null_mut(), cancel_type: 0, previous: null_mut() });
            let buffer = NonNull::from(Box::leak(buffer));
            // SAFETY: the record lives until it is taken out of the list again, by the same thread: neither this type nor the one
            // around it can be sent to another.
            unsafe { (functions.push)(buffer.as_ptr(), suspend, null_mut()) };
            Some(Record(buffer, functions))
        }
    }

    impl Drop for Record {
        fn drop(&mut self) {
            // SAFETY: it is in the list. Records are pushed and popped like calls and returns, except for the one of a thread, which
            // is popped when the thread has nothing else to do. After that nobody has the record.
            unsafe {
                (self.1.pop)(self.0.as_ptr(), 0);
                drop(Box::from_raw(self.0.as_ptr()));
            }
        }
    }

    unsafe extern "C" fn suspend(_: *mut c_void) {
        loop {
            // SAFETY: it has no conditions.
            unsafe { libc::pause() };
        }
    }
}
