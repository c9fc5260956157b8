//! Table entries for methods and attributes, made of safe functions.

/// A method without arguments: `fn(This<State>) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! no_arguments {
    ($state:ty, $name:expr, $method:path, $doc:expr $(,)?) => {{
        struct Method;
        impl $crate::class::NoArguments for Method {
            type State = $state;
            #[inline]
            fn call(this: $crate::class::This<'_, '_, $state>) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), $method(this))
            }
        }
        $crate::class::method_without_arguments::<Method>($name, $doc)
    }};
}

/// A method with one argument: `fn(This<State>, Borrowed<PyAny>) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! one_argument {
    ($state:ty, $name:expr, $method:path, $doc:expr $(,)?) => {{
        struct Method;
        impl $crate::class::OneArgument for Method {
            type State = $state;
            #[inline]
            fn call<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                argument: $crate::Borrowed<'_, 'py, $crate::PyAny>,
            ) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), $method(this, argument))
            }
        }
        $crate::class::method_with_one::<Method>($name, $doc)
    }};
}

/// A method with exactly N positional arguments: `fn(This<State>, [Borrowed<PyAny>; N]) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! several_arguments {
    ($state:ty, $name:expr, $method:path, $doc:expr $(,)?) => {{
        struct Method;
        impl $crate::class::Keywords for Method {
            type State = $state;
            const NAME: &'static std::ffi::CStr = $name;
            #[inline]
            fn call<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                call: $crate::arguments::Call<'_, 'py>,
            ) -> $crate::class::Answer {
                $crate::class::Answer::new(
                    this.py(),
                    call.exactly(this.py()).and_then(|arguments| $method(this, arguments)),
                )
            }
        }
        $crate::class::method_with_several::<Method>($doc)
    }};
}

/// A method with positional and keyword arguments: `fn(This<State>, Call) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! keyword_arguments {
    ($state:ty, $name:expr, $method:path, $doc:expr $(,)?) => {{
        struct Method;
        impl $crate::class::Keywords for Method {
            type State = $state;
            const NAME: &'static std::ffi::CStr = $name;
            #[inline]
            fn call<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                call: $crate::arguments::Call<'_, 'py>,
            ) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), $method(this, call))
            }
        }
        $crate::class::method_with_keywords::<Method>($doc)
    }};
}

/// A method with one argument that may be passed by its name: `fn(This<State>, Borrowed<PyAny>) -> Result<impl ReturnValue>`.
/// `$argument` is a function that returns the interned name.
#[macro_export]
macro_rules! one_named_argument {
    ($state:ty, $name:expr, $argument:expr, $method:path, $doc:expr $(,)?) => {{
        struct Method;
        impl $crate::class::Keywords for Method {
            type State = $state;
            const NAME: &'static std::ffi::CStr = $name;
            #[inline]
            fn call<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                call: $crate::arguments::Call<'_, 'py>,
            ) -> $crate::class::Answer {
                let argument = match call.only() {
                    Some(argument) => Ok(argument),
                    None => call.named(this.py(), [$argument(this.py())]).map(|[argument]| argument),
                };
                $crate::class::Answer::new(this.py(), argument.and_then(|argument| $method(this, argument)))
            }
        }
        $crate::class::method_with_keywords::<Method>($doc)
    }};
}

/// An attribute with functions that read and set it: `fn(This<State>) -> Result<impl ReturnValue>` and
/// `fn(This<State>, Option<Borrowed<PyAny>>) -> Result<()>`.
#[macro_export]
macro_rules! accessed {
    ($state:ty, $name:expr, $get:path, $set:path) => {{
        struct Attribute;
        impl $crate::class::Access for Attribute {
            type State = $state;
            fn get(this: $crate::class::This<'_, '_, $state>) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), $get(this))
            }
            fn set<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                value: Option<$crate::Borrowed<'_, 'py, $crate::PyAny>>,
            ) -> $crate::object::Result<()> {
                $set(this, value)
            }
        }
        $crate::class::attribute::<Attribute>($name)
    }};
}

/// An attribute that is a `Cell<bool>` of the state.
#[macro_export]
macro_rules! flag_field {
    ($state:ty, $name:expr, $($field:ident).+) => {{
        struct Attribute;
        impl $crate::class::Access for Attribute {
            type State = $state;
            fn get(this: $crate::class::This<'_, '_, $state>) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), this.state().map(|state| state.$($field).+.get()))
            }
            fn set<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                value: Option<$crate::Borrowed<'_, 'py, $crate::PyAny>>,
            ) -> $crate::object::Result<()> {
                // The truth of the value is evaluated first, because that may run arbitrary code.
                let truth = value.map_or(Ok(false), |value| $crate::call::Call::truth(&*value))?;
                this.state().map(|state| state.$($field).+.set(truth))
            }
        }
        $crate::class::attribute::<Attribute>($name)
    }};
}

/// An attribute that is a `Cell` of an integer in the state.
#[macro_export]
macro_rules! number_field {
    ($state:ty, $name:expr, $($field:ident).+) => {{
        struct Attribute;
        impl $crate::class::Access for Attribute {
            type State = $state;
            fn get(this: $crate::class::This<'_, '_, $state>) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), this.state().map(|state| i64::from(state.$($field).+.get())))
            }
            fn set<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                value: Option<$crate::Borrowed<'_, 'py, $crate::PyAny>>,
            ) -> $crate::object::Result<()> {
                let number = value.map_or(Ok(0), |value| $crate::call::Call::whole(&*value))?;
                this.state().map(|state| state.$($field).+.set(number as _))
            }
        }
        $crate::class::attribute::<Attribute>($name)
    }};
}

/// An attribute that is a [`Slot`](crate::slot::Slot) of the state.
#[macro_export]
macro_rules! slot_field {
    ($state:ty, $name:expr, $($field:ident).+) => {{
        struct Attribute;
        impl $crate::class::Access for Attribute {
            type State = $state;
            fn get(this: $crate::class::This<'_, '_, $state>) -> $crate::class::Answer {
                $crate::class::Answer::new(this.py(), this.state().map(|state| state.$($field).+.get(this.py())))
            }
            fn set<'py>(
                this: $crate::class::This<'_, 'py, $state>,
                value: Option<$crate::Borrowed<'_, 'py, $crate::PyAny>>,
            ) -> $crate::object::Result<()> {
                this.state().map(|state| state.$($field).+.assign(this.py(), value))
            }
        }
        $crate::class::attribute::<Attribute>($name)
    }};
}
