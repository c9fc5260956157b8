//! Exceptions.

use crate::call::Jump;
use magnus::{Class, Error, ExceptionClass, Module, RModule, Ruby, TryConvert};

fn ruby() -> Ruby {
    // Every caller was called by Ruby, or by a reactor that Ruby turns, with the lock held.
    Ruby::get().expect("called on a thread of Ruby")
}

/// Makes a RuntimeError.
pub(crate) fn runtime(message: impl Into<String>) -> Error {
    Error::new(ruby().exception_runtime_error(), message.into())
}

/// Makes an ArgumentError.
pub(crate) fn argument(message: impl Into<String>) -> Error {
    Error::new(ruby().exception_arg_error(), message.into())
}

/// Makes an error of a class of the module EventMachine.
pub(crate) fn of_module(class: &str, message: impl Into<String>) -> Error {
    let found = ruby()
        .class_object()
        .const_get::<_, RModule>("EventMachine")
        .and_then(|module| module.const_get::<_, magnus::Value>(class))
        .and_then(ExceptionClass::try_convert);
    match found {
        Ok(class) => Error::new(class, message.into()),
        Err(error) => error,
    }
}

/// Makes an EventMachine::ConnectionError.
pub(crate) fn connection(message: impl Into<String>) -> Error {
    of_module("ConnectionError", message)
}

/// Makes the exception of the module Errno for a system error.
pub(crate) fn errno(error: &std::io::Error) -> Error {
    let Some(number) = error.raw_os_error() else { return runtime(error.to_string()) };
    let ruby = ruby();
    let made = ruby
        .class_object()
        .const_get::<_, magnus::RClass>("SystemCallError")
        .and_then(|class| class.new_instance((ruby.qnil(), number)))
        .and_then(magnus::Exception::try_convert);
    made.map_or_else(|error| error, Error::from)
}

/// The error of a function that needs a machine when there is none.
pub(crate) fn not_initialized(function: &str) -> Error {
    runtime(format!("eventmachine not initialized: evma_{function}"))
}

/// Makes the error that continues a jump when it is returned to Ruby.
pub(crate) fn continue_jump(jump: Jump) -> Error {
    // The bindings have an error for jumps, which only their own protected call makes.
    let continued = magnus::rb_sys::protect(|| {
        // SAFETY: this closure has nothing to drop, and neither have the frames between it and the protected call.
        unsafe { jump.resume() }
    });
    match continued {
        Ok(_) => runtime("a jump out of Ruby code was lost"),
        Err(error) => error,
    }
}
