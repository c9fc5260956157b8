//! Calls and their arguments.

use std::borrow::Cow;
use std::time::Duration;

use crate::value::Value;

/// A name. A `&'static str` costs no allocation.
pub type Name = Cow<'static, str>;

/// A call to Python code, to be submitted to a host.
///
/// ```
/// use pelton_python::host::Call;
///
/// let call = Call::new("json", "dumps").arg(vec![1, 2, 3]).keyword("indent", 2);
/// assert_eq!(call.name(), "json.dumps");
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call has no effect until it is submitted to a host"]
pub struct Call {
    pub(crate) target: Target,
    pub(crate) args: Vec<Value>,
    pub(crate) keywords: Vec<(Name, Value)>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) keep_exception: bool,
    pub(crate) as_object: bool,
    pub(crate) on_worker: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A function in a module.
    Function(Name, Name),
    /// Statements, run in a namespace.
    Exec(Name),
    /// An expression, evaluated in a namespace.
    Eval(Name),
    /// A callable object.
    Object(crate::value::Object),
}

impl Call {
    /// Calls a function in a module, which is imported if necessary. `function` may be a path of attributes:
    /// `"Class.method"`.
    pub fn new(module: impl Into<Name>, function: impl Into<Name>) -> Call {
        Call::of(Target::Function(module.into(), function.into()))
    }

    /// Runs statements in the namespace that the call is submitted to.
    pub fn exec(source: impl Into<Name>) -> Call {
        Call::of(Target::Exec(source.into()))
    }

    /// Evaluates an expression in the namespace that the call is submitted to.
    pub fn eval(source: impl Into<Name>) -> Call {
        Call::of(Target::Eval(source.into()))
    }

    /// Calls an object that came from Python.
    pub fn object(object: crate::value::Object) -> Call {
        Call::of(Target::Object(object))
    }

    pub(crate) fn of(target: Target) -> Call {
        let (args, keywords) = (Vec::new(), Vec::new());
        Call { target, args, keywords, timeout: None, keep_exception: false, as_object: false, on_worker: false }
    }

    /// Adds a positional argument.
    pub fn arg(mut self, value: impl Into<Value>) -> Call {
        self.args.push(value.into());
        self
    }

    /// Adds positional arguments: a tuple, an array or a `Vec`.
    pub fn args(mut self, args: impl Arguments) -> Call {
        if self.args.is_empty() {
            self.args = args.into_values();
        } else {
            self.args.append(&mut args.into_values());
        }
        self
    }

    /// Adds a keyword argument.
    pub fn keyword(mut self, name: impl Into<Name>, value: impl Into<Value>) -> Call {
        self.keywords.push((name.into(), value.into()));
        self
    }

    /// Adds keyword arguments.
    pub fn keywords(mut self, keywords: impl Into<Keywords>) -> Call {
        let Keywords(mut keywords) = keywords.into();
        self.keywords.append(&mut keywords);
        self
    }

    /// Sets how long it may take from its submission, including the time in the queue. After that the outcome is
    /// [`TimedOut`](super::TaskError::TimedOut). A task that awaits something is cancelled and gets this outcome
    /// immediately. A call that has not started never starts. If a function returns late, its value is still delivered.
    pub fn timeout(mut self, timeout: Duration) -> Call {
        self.timeout = Some(timeout);
        self
    }

    /// Keeps the exception object if one is raised: [`Exception::object`](super::Exception::object). The object
    /// keeps alive everything that its traceback refers to.
    pub fn keep_exception(mut self) -> Call {
        self.keep_exception = true;
        self
    }

    /// Leaves the result in Python: the outcome is always a [`Value::Object`].
    pub fn as_object(mut self) -> Call {
        self.as_object = true;
        self
    }

    /// Calls it on a thread for blocking functions instead of the loop. If it returns an awaitable, that is awaited
    /// on the loop.
    pub fn on_worker(mut self) -> Call {
        self.on_worker = true;
        self
    }

    /// Returns the name of the callee, for messages.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.target {
            Target::Function(module, function) => Cow::Owned(format!("{module}.{function}")),
            Target::Exec(_) => Cow::Borrowed("exec"),
            Target::Eval(_) => Cow::Borrowed("eval"),
            Target::Object(_) => Cow::Borrowed("an object"),
        }
    }
}

/// Positional arguments: a tuple or an array of types that convert to values, or a `Vec` of values.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of arguments",
    label = "expected a tuple, an array or a `Vec` of positional arguments",
    note = "use `(value,)` for one argument and `()` for none"
)]
pub trait Arguments {
    /// Returns the values.
    fn into_values(self) -> Vec<Value>;
}

impl Arguments for Vec<Value> {
    fn into_values(self) -> Vec<Value> {
        self
    }
}

impl<V: Into<Value>, const N: usize> Arguments for [V; N] {
    fn into_values(self) -> Vec<Value> {
        self.into_iter().map(Into::into).collect()
    }
}

impl Arguments for () {
    fn into_values(self) -> Vec<Value> {
        Vec::new()
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Into<Value>),*> Arguments for ($($name,)*) {
            fn into_values(self) -> Vec<Value> {
                #[allow(non_snake_case, reason = "the names of the types are also those of the values")]
                let ($($name,)*) = self;
                vec![$($name.into()),*]
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);

/// Keyword arguments: `()` for none, or an array or `Vec` of pairs.
#[derive(Clone, Debug, Default)]
pub struct Keywords(pub(crate) Vec<(Name, Value)>);

impl From<()> for Keywords {
    fn from((): ()) -> Keywords {
        Keywords::default()
    }
}

impl<N: Into<Name>, V: Into<Value>> From<Vec<(N, V)>> for Keywords {
    fn from(pairs: Vec<(N, V)>) -> Keywords {
        Keywords(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl<N: Into<Name>, V: Into<Value>, const L: usize> From<[(N, V); L]> for Keywords {
    fn from(pairs: [(N, V); L]) -> Keywords {
        Keywords(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
