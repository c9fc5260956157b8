//! The arguments of a Rust function.

use serde::de::DeserializeOwned;

use crate::ConversionError;
use crate::value::{Value, from_value};

use super::Raise;

/// The arguments of a call from Python.
///
/// ```
/// # use pelton_python::native::{Args, Raise};
/// fn area(args: Args) -> Result<f64, Raise> {
///     let (width, height): (f64, f64) = args.positional()?;
///     Ok(width * height)
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Args {
    /// Positional arguments.
    pub values: Vec<Value>,
    /// Keyword arguments.
    pub keywords: Vec<(String, Value)>,
}

impl Args {
    /// Converts the positional arguments to a tuple. Fails, with a `TypeError` in Python, if their number differs
    /// or if there are keyword arguments.
    pub fn positional<T>(self) -> Result<T, Raise>
    where
        T: TryFrom<Value, Error = ConversionError>,
    {
        if let Some((keyword, _)) = self.keywords.first() {
            return Err(Raise::type_error(format!("unexpected keyword argument '{keyword}'")));
        }
        Ok(T::try_from(Value::Tuple(self.values)).map_err(|error| error.within("args"))?)
    }

    /// Converts the only argument.
    pub fn one<T>(self) -> Result<T, Raise>
    where
        T: TryFrom<Value>,
        ConversionError: From<T::Error>,
    {
        Ok(self.positional::<(T,)>()?.0)
    }

    /// Fails if there are any arguments.
    pub fn none(self) -> Result<(), Raise> {
        match (self.values.len(), self.keywords.first()) {
            (0, None) => Ok(()),
            (0, Some((keyword, _))) => Err(Raise::type_error(format!("unexpected keyword argument '{keyword}'"))),
            (count, _) => Err(Raise::type_error(format!("takes no arguments, but {count} were given"))),
        }
    }

    /// Converts arguments by name to a struct, positional ones in the order of `names`. Fields of type `Option` may
    /// be missing.
    ///
    /// ```
    /// # use pelton_python::native::{Args, Raise};
    /// #[derive(serde::Deserialize)]
    /// struct Fetch {
    ///     url: String,
    ///     timeout: Option<f64>,
    /// }
    ///
    /// fn fetch(args: Args) -> Result<String, Raise> {
    ///     let Fetch { url, timeout } = args.named(&["url", "timeout"])?;
    ///     Ok(format!("{url} {timeout:?}"))
    /// }
    /// ```
    pub fn named<T: DeserializeOwned>(self, names: &[&str]) -> Result<T, Raise> {
        let Args { values, keywords } = self;
        if values.len() > names.len() {
            let (most, given) = (names.len(), values.len());
            return Err(Raise::type_error(format!(
                "takes at most {most} positional arguments, but {given} were given"
            )));
        }
        let mut pairs: Vec<(Value, Value)> = names.iter().map(|&name| name.into()).zip(values).collect();
        for (keyword, value) in keywords {
            if !names.contains(&keyword.as_str()) {
                return Err(Raise::type_error(format!("unexpected keyword argument '{keyword}'")));
            }
            if pairs.iter().any(|(name, _)| name.as_str() == Some(&keyword)) {
                return Err(Raise::type_error(format!("multiple values for argument '{keyword}'")));
            }
            pairs.push((keyword.into(), value));
        }
        Ok(from_value(Value::Dict(pairs)).map_err(|error| error.within("args"))?)
    }
}
