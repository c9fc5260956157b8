//! Selecting an engine.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Engine, ReadinessEngine};
use crate::{ENGINE_VARIABLE, Loopbreaker, fault, poller};

/// The engines that can be selected. All of them are the [`ReadinessEngine`], each on another poller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum EngineKind {
    /// On `epoll`: Linux.
    Epoll,
    /// On `kqueue`: macOS and the BSDs.
    Kqueue,
    /// On `poll`: everywhere. Each wait takes time proportional to the number of descriptors.
    Poll,
    /// On `select`: everywhere. Like `poll`, and limited to descriptors numbered below 1,024.
    Select,
}

impl EngineKind {
    /// All engines, in order of preference.
    pub const ALL: [EngineKind; 4] = [EngineKind::Epoll, EngineKind::Kqueue, EngineKind::Poll, EngineKind::Select];

    /// Returns the name that selects it.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Epoll => "epoll",
            EngineKind::Kqueue => "kqueue",
            EngineKind::Poll => "poll",
            EngineKind::Select => "select",
        }
    }

    /// Returns the engine that the environment variable [`ENGINE_VARIABLE`] selects, if it is set.
    pub fn from_environment() -> Result<Option<EngineKind>, UnknownEngine> {
        match std::env::var_os(ENGINE_VARIABLE) {
            None => Ok(None),
            Some(name) if name.is_empty() => Ok(None),
            Some(name) => name.to_string_lossy().parse().map(Some),
        }
    }

    /// Opens this engine and no other.
    pub fn open(self) -> io::Result<Box<dyn Engine>> {
        let loopbreaker = Loopbreaker::new()?;
        let name = self.name();
        Ok(match self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            EngineKind::Epoll => Box::new(ReadinessEngine::new(name, poller::Epoll::new()?, loopbreaker)?),
            #[cfg(not(any(target_os = "linux", target_os = "android")))]
            EngineKind::Epoll => return Err(absent("epoll exists only on Linux")),
            #[cfg(kqueue)]
            EngineKind::Kqueue => Box::new(ReadinessEngine::new(name, poller::Kqueue::new()?, loopbreaker)?),
            #[cfg(not(kqueue))]
            EngineKind::Kqueue => return Err(absent("kqueue exists only on macOS and the BSDs")),
            EngineKind::Poll => Box::new(ReadinessEngine::new(name, poller::Poll::new(), loopbreaker)?),
            EngineKind::Select => Box::new(ReadinessEngine::new(name, poller::Select::new(), loopbreaker)?),
        })
    }
}

/// The error for an engine that this build does not have.
#[cfg_attr(all(target_os = "linux", feature = "emulated-kqueue"), allow(dead_code))]
fn absent(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<EngineKind, UnknownEngine> {
        let known = EngineKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| UnknownEngine(name.to_owned()))
    }
}

/// A name that no engine has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no engine called {0:?}; the engines are {names}", names = EngineKind::ALL.map(EngineKind::name).join(", "))]
pub struct UnknownEngine(pub String);

/// An open engine and how it was selected.
pub struct Opened {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// The engine that was requested, if any.
    pub wanted: Option<EngineKind>,
    /// Engines that rank higher but are unavailable here.
    pub fallbacks: Vec<Fallback>,
}

/// An engine that could not be opened.
#[derive(Debug)]
pub struct Fallback {
    /// Which engine.
    pub wanted: EngineKind,
    /// Why it could not be opened.
    pub error: io::Error,
}

/// Whether it was already reported that a requested engine is unavailable. A program with many reactors requests it for each.
static WARNED: [AtomicBool; EngineKind::ALL.len()] = [const { AtomicBool::new(false) }; EngineKind::ALL.len()];

/// Returns whether this is the first failed request for `kind` in this process.
fn is_news(kind: EngineKind) -> bool {
    !WARNED[kind as usize].swap(true, Ordering::Relaxed)
}

impl Opened {
    /// If the requested engine is unavailable: returns a sentence with the reason.
    pub fn fallback(&self) -> Option<String> {
        let Fallback { wanted, error } =
            self.fallbacks.first().filter(|fallback| Some(fallback.wanted) == self.wanted)?;
        Some(format!("engine not available: {wanted} was requested, using {} instead: {error}", self.engine.name()))
    }

    /// Returns whether the unavailable engine was not reported before in this process. Only the first call returns `true`.
    pub fn is_news(&self) -> bool {
        self.wanted.is_some_and(is_news)
    }
}

/// Opens the engine `wanted`, or else the best one that works on this system. If that is another one, [reports](crate::fault)
/// it, once per process.
#[track_caller]
pub fn open(wanted: Option<EngineKind>) -> io::Result<Opened> {
    let opened = open_quietly(wanted)?;
    if let Some(fallback) = opened.fallback().filter(|_| opened.is_news()) {
        fault::report_here("engine", &fallback);
    }
    Ok(opened)
}

/// Like [`open`], for callers that report a [fallback](Opened::fallback) themselves.
pub fn open_quietly(wanted: Option<EngineKind>) -> io::Result<Opened> {
    let mut fallbacks = Vec::new();
    for kind in wanted.into_iter().chain(EngineKind::ALL.into_iter().filter(|kind| Some(*kind) != wanted)) {
        match kind.open() {
            Ok(engine) => {
                for Fallback { wanted: passed, error } in &fallbacks {
                    tracing::debug!(wanted = %passed, using = %kind, reason = %error, "engine not available");
                }
                return Ok(Opened { engine, wanted, fallbacks });
            }
            Err(error) => fallbacks.push(Fallback { wanted: kind, error }),
        }
    }
    // Every engine failed. The error of the most portable one is the most informative.
    let last = fallbacks.pop().expect("there is at least one engine");
    Err(io::Error::new(last.error.kind(), NoEngine { kind: last.wanted, source: last.error }))
}

/// No engine could be opened. The source is the system's error with its number.
#[derive(Debug, thiserror::Error)]
#[error("open an engine: {kind}: {source}")]
struct NoEngine {
    kind: EngineKind,
    source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_names() {
        let error = "epol".parse::<EngineKind>().unwrap_err().to_string();
        assert_eq!(error, r#"there is no engine called "epol"; the engines are epoll, kqueue, poll, select"#);
        assert_eq!("EPOLL".parse(), Ok(EngineKind::Epoll));
    }

    #[test]
    fn unavailable_engine_is_reported_once() {
        // Poll and select are always available, so no other test marks them.
        assert!(is_news(EngineKind::Poll) && !is_news(EngineKind::Poll));
        assert!(is_news(EngineKind::Select));
    }

    #[cfg(all(target_os = "linux", not(feature = "emulated-kqueue")))]
    #[test]
    fn an_engine_of_another_system_falls_back_with_a_reason() {
        let opened = open(Some(EngineKind::Kqueue)).unwrap();
        assert_eq!(opened.engine.name(), "epoll");
        assert_eq!(opened.fallbacks.len(), 1);
        assert_eq!(opened.fallbacks[0].wanted, EngineKind::Kqueue);
        assert!(opened.fallbacks[0].error.to_string().contains("macOS"));
    }
}
