//! Threads that CPython terminates during interpreter shutdown.
//!
//! Before Python 3.14, a daemon thread that requests the interpreter lock during or after finalization is
//! terminated with `pthread_exit`. In glibc that unwinds the thread's stack. Rust frames must not be unwound this
//! way, and the process aborts. Python 3.14 suspends such a thread forever instead. This module does the same for
//! threads that run a loop or call into one.
//!
//! When glibc terminates a thread, it calls each handler of `_pthread_cleanup_push` when unwinding reaches the
//! frame that pushed it. It finds that frame by the address of the handler's record. A record that is not on the
//! stack counts as below every frame, so its handler is called before the first frame is unwound. The handler never
//! returns. At that point the thread holds none of Python's locks.
//!
//! The other supported C libraries terminate a thread without unwinding its stack, so nothing needs to be done there.

/// While this value lives, `pthread_exit` suspends this thread.
pub struct Suspended {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    _record: Option<glibc::Record>,
}

impl Suspended {
    /// Suspends this thread from now on when it is to exit.
    pub fn instead_of_exit() -> Suspended {
        Suspended {
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            _record: glibc::Record::push(),
        }
    }
}

/// Makes `pthread_exit` suspend this thread for the rest of its life. For threads that call into a loop without
/// running one.
#[inline]
pub fn protect_thread() {
    thread_local! {
        static SUSPENDED: Suspended = Suspended::instead_of_exit();
    }
    // A thread that has destroyed its thread-locals no longer runs Python.
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

    /// Looked up at run time: in older releases of glibc they are in another library and have another symbol version.
    fn functions() -> Option<&'static Functions> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        let find = |name: &CStr| {
            // SAFETY: the name is a C string.
            NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
        };
        let find = || {
            let (push, pop) = (find(c"_pthread_cleanup_push")?, find(c"_pthread_cleanup_pop")?);
            // SAFETY: these are functions of glibc, which have had these signatures since version 2.0.
            unsafe {
                Some(Functions {
                    push: transmute::<*mut c_void, Push>(push.as_ptr()),
                    pop: transmute::<*mut c_void, Pop>(pop.as_ptr()),
                })
            }
        };
        FUNCTIONS.get_or_init(find).as_ref()
    }

    /// A record in this thread's list of handlers. It is on the heap and must stay there.
    pub struct Record(NonNull<Buffer>, &'static Functions);

    impl Record {
        pub fn push() -> Option<Record> {
            let functions = functions()?;
            let buffer = Box::new(Buffer { routine: None, argument: null_mut(), cancel_type: 0, previous: null_mut() });
            let buffer = NonNull::from(Box::leak(buffer));
            // SAFETY: the record lives until the same thread removes it from the list: neither this type nor the
            // one around it is `Send`.
            unsafe { (functions.push)(buffer.as_ptr(), suspend, null_mut()) };
            Some(Record(buffer, functions))
        }
    }

    impl Drop for Record {
        fn drop(&mut self) {
            // SAFETY: the record is in the list. Records are pushed and popped in stack order. The exception is a
            // thread's own record, which is popped when the thread's locals are destroyed. After that nothing
            // refers to the record.
            unsafe {
                (self.1.pop)(self.0.as_ptr(), 0);
                drop(Box::from_raw(self.0.as_ptr()));
            }
        }
    }

    unsafe extern "C" fn suspend(_: *mut c_void) {
        loop {
            // SAFETY: `pause` has no preconditions.
            unsafe { libc::pause() };
        }
    }
}
