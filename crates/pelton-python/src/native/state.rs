//! A dictionary that Rust and Python share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::value::Value;

/// A dictionary that Rust and Python share, by names. Copies of this are handles of the same one; handed to Python, it is a
/// `pelton.State`.
///
/// Each method is atomic. Values are copied in and out, so that nobody sees one change. What is counted with
/// [`add`](State::add) is an atomic number, which a [`Counter`] reaches without looking it up.
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

/// What cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Something other than a number is there, and was to be counted.
    #[error("{key:?} is a {found}, which cannot be counted with")]
    NoNumber {
        /// The name.
        key: String,
        /// Its type.
        found: &'static str,
    },
    /// A counter was to become something other than a number of 64 bits. It has to be removed first.
    #[error("{key:?} is a counter, which cannot become a {found}")]
    Counter {
        /// The name.
        key: String,
        /// The type of what was to be put there.
        found: &'static str,
    },
    /// A counter would have gone beyond 64 bits. It is as it was.
    #[error("{key:?} would be beyond 64 bits")]
    Overflow {
        /// The name.
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

// Nothing panics under the lock, and nothing of Python's is touched: values that are replaced are dropped after it was let
// go of, because an object's finalizer is Python code.
impl State {
    /// An empty one.
    pub fn new() -> State {
        State::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<String, Entry>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<String, Entry>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.read().get(key).map(Entry::value)
    }

    /// Puts something there. Returns what was there before.
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

    /// Takes something away. Counters that were handed out count on, by themselves.
    pub fn remove(&self, key: &str) -> Option<Value> {
        let removed = self.write().remove(key);
        removed.map(|entry| entry.value())
    }

    /// Adds to a number, which is 0 if there is nothing yet. Returns the sum.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, StateError> {
        self.counter(key)?.add(amount).ok_or_else(|| StateError::Overflow { key: key.to_owned() })
    }

    /// The counter of that name, which is 0 if there is nothing yet.
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

    /// Puts something there if what is there equals `expected`; `None` stands for nothing too. Says whether it did.
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

    /// All names.
    pub fn keys(&self) -> Vec<String> {
        self.read().keys().cloned().collect()
    }

    /// All of it, as it is at one time.
    pub fn items(&self) -> Vec<(String, Value)> {
        self.read().iter().map(|(key, entry)| (key.clone(), entry.value())).collect()
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Whether there is something of that name.
    pub fn contains(&self, key: &str) -> bool {
        self.read().contains_key(key)
    }
}

impl PartialEq for State {
    /// Whether both are handles of the same one.
    fn eq(&self, other: &State) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A number in a [`State`] that many threads count with.
#[derive(Clone, Debug)]
pub struct Counter(Arc<AtomicI64>);

impl Counter {
    /// The number.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it. Returns what it was.
    pub fn set(&self, number: i64) -> i64 {
        self.0.swap(number, Ordering::AcqRel)
    }

    /// Adds to it. Returns the sum; `None`, and it is as it was, if that would be beyond 64 bits.
    pub fn add(&self, amount: i64) -> Option<i64> {
        let add = |number: i64| number.checked_add(amount);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).ok().map(|before| before + amount)
    }
}
