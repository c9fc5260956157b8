//! A dictionary shared by Rust and Python.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::value::Value;

/// A dictionary shared by Rust and Python, with string keys. Clones are handles of the same dictionary. In Python
/// it is a `pelton.State`.
///
/// Each method is atomic. Values are copied in and out, so they never change in place. [`add`](State::add) uses an
/// atomic number, which a [`Counter`] accesses without a lookup.
///
/// ```
/// use pelton_python::native::State;
///
/// let state = State::new();
/// state.set("limit", 10)?;
/// assert_eq!(state.add("hits", 1)?, 1);
/// assert!(state.compare_and_swap("limit", &10.into(), 20)?);
/// assert_eq!(state.get("limit"), Some(20.into()));
/// # Ok::<(), pelton_python::native::StateError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct State(Arc<RwLock<HashMap<String, Entry>>>);

#[derive(Clone, Debug)]
enum Entry {
    Value(Value),
    Counter(Arc<AtomicI64>),
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The value to be added to is not a number.
    #[error("{key:?} is a {found}, not a number")]
    NoNumber {
        /// The key.
        key: String,
        /// Its type.
        found: &'static str,
    },
    /// A counter cannot be set to anything but a 64-bit integer. It must be removed first.
    #[error("{key:?} is a counter and cannot be set to a {found}")]
    Counter {
        /// The key.
        key: String,
        /// The type of the new value.
        found: &'static str,
    },
    /// A counter would exceed 64 bits. It is unchanged.
    #[error("{key:?} would exceed 64 bits")]
    Overflow {
        /// The key.
        key: String,
    },
}

impl Entry {
    fn value(&self) -> Value {
        match self {
            Entry::Value(value) => value.clone(),
            Entry::Counter(counter) => Value::Int(counter.load(Ordering::Acquire)),
        }
    }
}

// Code under the lock neither panics nor touches Python. Replaced values are dropped after the lock is released,
// because an object's finalizer is Python code.
impl State {
    /// Creates an empty dictionary.
    pub fn new() -> State {
        State::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, Entry>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, Entry>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.read().get(key).map(Entry::value)
    }

    /// Sets the value of a key. Returns the previous value.
    pub fn set(&self, key: &str, value: impl Into<Value>) -> Result<Option<Value>, StateError> {
        let value = value.into();
        let mut entries = self.write();
        match (entries.get_mut(key), value) {
            (Some(Entry::Counter(counter)), Value::Int(number)) => {
                Ok(Some(Value::Int(counter.swap(number, Ordering::AcqRel))))
            }
            (Some(Entry::Counter(_)), value) => {
                drop(entries);
                Err(StateError::Counter { key: key.to_owned(), found: value.type_name() })
            }
            (Some(Entry::Value(there)), value) => {
                let before = std::mem::replace(there, value);
                drop(entries);
                Ok(Some(before))
            }
            (None, value) => {
                entries.insert(key.to_owned(), Entry::Value(value));
                Ok(None)
            }
        }
    }

    /// Removes a key. Its counters keep working, but are no longer part of the dictionary.
    pub fn remove(&self, key: &str) -> Option<Value> {
        let removed = self.write().remove(key);
        removed.map(|entry| entry.value())
    }

    /// Adds to a number, which starts at 0. Returns the sum.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, StateError> {
        self.counter(key)?.add(amount).ok_or_else(|| StateError::Overflow { key: key.to_owned() })
    }

    /// Returns the counter of that name, which starts at 0.
    pub fn counter(&self, key: &str) -> Result<Counter, StateError> {
        if let Some(Entry::Counter(counter)) = self.read().get(key) {
            return Ok(Counter(counter.clone()));
        }
        let mut entries = self.write();
        let start = match entries.get(key) {
            Some(Entry::Counter(counter)) => return Ok(Counter(counter.clone())),
            Some(Entry::Value(Value::Int(number))) => *number,
            Some(Entry::Value(other)) => {
                return Err(StateError::NoNumber { key: key.to_owned(), found: other.type_name() });
            }
            None => 0,
        };
        let counter = Arc::new(AtomicI64::new(start));
        entries.insert(key.to_owned(), Entry::Counter(counter.clone()));
        Ok(Counter(counter))
    }

    /// Sets a value if the current value equals `expected`; `None` also matches a missing key. Returns whether it did.
    pub fn compare_and_swap(&self, key: &str, expected: &Value, new: impl Into<Value>) -> Result<bool, StateError> {
        let new = new.into();
        let mut entries = self.write();
        match (entries.get_mut(key), new) {
            (Some(Entry::Counter(counter)), Value::Int(new)) => {
                let Value::Int(expected) = *expected else { return Ok(false) };
                Ok(counter.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire).is_ok())
            }
            (Some(Entry::Counter(_)), new) => {
                drop(entries);
                Err(StateError::Counter { key: key.to_owned(), found: new.type_name() })
            }
            (Some(Entry::Value(there)), new) => {
                if there != expected {
                    drop(entries);
                    return Ok(false);
                }
                let before = std::mem::replace(there, new);
                drop(entries);
                drop(before);
                Ok(true)
            }
            (None, new) => {
                let swaps = expected.is_none();
                if swaps {
                    entries.insert(key.to_owned(), Entry::Value(new));
                }
                Ok(swaps)
            }
        }
    }

    /// Returns all keys.
    pub fn keys(&self) -> Vec<String> {
        self.read().keys().cloned().collect()
    }

    /// Returns a consistent copy of all keys and values.
    pub fn items(&self) -> Vec<(String, Value)> {
        self.read().iter().map(|(key, entry)| (key.clone(), entry.value())).collect()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Returns whether the key exists.
    pub fn contains(&self, key: &str) -> bool {
        self.read().contains_key(key)
    }
}

impl PartialEq for State {
    /// Returns whether both are handles of the same dictionary.
    fn eq(&self, other: &State) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A number in a [`State`] that several threads may change.
#[derive(Clone, Debug)]
pub struct Counter(Arc<AtomicI64>);

impl Counter {
    /// Returns the number.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the number. Returns the previous one.
    pub fn set(&self, number: i64) -> i64 {
        self.0.swap(number, Ordering::AcqRel)
    }

    /// Adds to the number. Returns the sum; `None`, leaving the number unchanged, if it would exceed 64 bits.
    pub fn add(&self, amount: i64) -> Option<i64> {
        let add = |number: i64| number.checked_add(amount);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).ok().map(|before| before + amount)
    }
}
