//! Commands, packed as they go over the wire.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// A command with its arguments.
///
/// ```
/// use pelton_redis::Command;
///
/// let command = Command::new("SET").arg("greeting").arg("hello").arg("PX").arg(1500);
/// assert_eq!(command.name(), "SET");
/// ```
#[derive(Clone)]
#[must_use = "a command does nothing until a client sends it"]
pub struct Command {
    name: &'static str,
    /// The name and the arguments as strings of the protocol, without the header that says how many they are.
    packed: Vec<u8>,
    count: usize,
    pub(crate) idempotent: bool,
    pub(crate) limit: Option<Duration>,
}

impl Command {
    /// Begins a command. Names with two words, such as `CLIENT INFO`, have the second one as their first argument.
    pub fn new(name: &'static str) -> Command {
        let command = Command { name, packed: Vec::with_capacity(64), count: 0, idempotent: false, limit: None };
        command.arg(name)
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Argument) -> Command {
        argument.add_to(&mut self);
        self
    }

    /// Adds arguments.
    pub fn args<A: Argument>(mut self, arguments: impl IntoIterator<Item = A>) -> Command {
        arguments.into_iter().for_each(|argument| argument.add_to(&mut self));
        self
    }

    /// Declares that running the command twice does no harm. If the connection ends before the answer has arrived, it is
    /// sent again on the next one, instead of failing as [interrupted](crate::Error::Interrupted).
    pub fn idempotent(mut self) -> Command {
        self.idempotent = true;
        self
    }

    /// Sets a time limit for this command, instead of that of the [options](crate::Options::time_limit).
    pub fn time_limit(mut self, limit: Duration) -> Command {
        self.limit = Some(limit);
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns how many bytes the command has on the wire, without its header.
    pub(crate) fn len(&self) -> usize {
        self.packed.len()
    }

    /// Appends the command to `out`.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.packed.len() + 16);
        if self.count > 0 {
            header(out, b'*', self.count);
        }
        out.extend_from_slice(&self.packed);
    }

    /// Makes one of several commands that are sent together, with this name. Their answers follow each other.
    pub(crate) fn batch(name: &'static str, commands: &[Command]) -> Command {
        let mut packed = Vec::new();
        commands.iter().for_each(|command| command.write_to(&mut packed));
        let idempotent = commands.iter().all(|command| command.idempotent);
        Command { name, packed, count: 0, idempotent, limit: None }
    }

    /// Frees the memory of a command that is not sent again.
    pub(crate) fn forget_arguments(&mut self) {
        self.packed = Vec::new();
    }

    fn add(&mut self, bytes: &[u8]) {
        header(&mut self.packed, b'$', bytes.len());
        self.packed.extend_from_slice(bytes);
        self.packed.extend_from_slice(b"\r\n");
        self.count += 1;
    }
}

fn header(out: &mut Vec<u8>, mark: u8, number: usize) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Only the name: arguments may be secret.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("name", &self.name)
            .field("arguments", &self.count.saturating_sub(1))
            .finish_non_exhaustive()
    }
}

/// A value that can be an argument of a [`Command`].
pub trait Argument {
    /// Adds the value to the command.
    fn add_to(&self, command: &mut Command);
}

macro_rules! bytes {
    ($($type:ty),*) => {
        $(impl Argument for $type {
            fn add_to(&self, command: &mut Command) {
                command.add(self.as_ref());
            }
        })*
    };
}

bytes![str, String, [u8], Vec<u8>, Bytes];

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Argument for $type {
            fn add_to(&self, command: &mut Command) {
                command.add(itoa::Buffer::new().format(*self).as_bytes());
            }
        })*
    };
}

integers![u8, u16, u32, u64, usize, i8, i16, i32, i64, isize];

/// The shortest decimal number that is parsed to the same value.
impl Argument for f64 {
    fn add_to(&self, command: &mut Command) {
        command.add(self.to_string().as_bytes());
    }
}

impl<const N: usize> Argument for [u8; N] {
    fn add_to(&self, command: &mut Command) {
        command.add(self);
    }
}

impl<A: Argument + ?Sized> Argument for &A {
    fn add_to(&self, command: &mut Command) {
        (**self).add_to(command);
    }
}

/// Commands that change the state of a connection, which others use as well, with what to use instead.
const MISPLACED: [(&str, &str); 15] = [
    ("AUTH", "the user and password of the URL"),
    ("HELLO", "the user, password and protocol of the URL"),
    ("SELECT", "the database of the URL"),
    ("MULTI", "`Client::transaction`"),
    ("EXEC", "`Client::transaction`"),
    ("DISCARD", "`Client::transaction`"),
    ("WATCH", "a script"),
    ("SUBSCRIBE", "a channel"),
    ("PSUBSCRIBE", "a channel"),
    ("SSUBSCRIBE", "a channel"),
    ("UNSUBSCRIBE", "a channel"),
    ("PUNSUBSCRIBE", "a channel"),
    ("SUNSUBSCRIBE", "a channel"),
    ("MONITOR", "`redis-cli monitor`"),
    ("RESET", "another client"),
];

impl Command {
    /// Returns what to use instead, if the command must not be sent on a connection that others use too.
    pub(crate) fn misplaced(&self) -> Option<&'static str> {
        let found = MISPLACED.iter().find(|(name, _)| name.eq_ignore_ascii_case(self.name));
        if found.is_none() && self.name.eq_ignore_ascii_case("QUIT") {
            return Some("`Client::close`");
        }
        // `CLIENT REPLY` turns replies off.
        let reply = self.name.eq_ignore_ascii_case("CLIENT") && {
            let start = self.packed.get(b"$6\r\nCLIENT\r\n".len()..).unwrap_or_default();
            start.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"$5\r\nREPLY"))
        };
        if reply { Some("`Client::tell`") } else { found.map(|(_, instead)| *instead) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(command: &Command) -> String {
        let mut out = Vec::new();
        command.write_to(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn arguments_are_counted_strings() {
        let command = Command::new("SET").arg("k\r\n").arg(b"\0".to_vec()).arg(-5).arg(0.1).args(["a", ""]);
        let expected = "*7\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$1\r\n\0\r\n$2\r\n-5\r\n$3\r\n0.1\r\n$1\r\na\r\n$0\r\n\r\n";
        assert_eq!(wire(&command), expected);
    }

    #[test]
    fn commands_that_change_the_connection_are_found() {
        assert!(Command::new("subscribe").arg("c").misplaced().is_some());
        assert!(Command::new("Client").arg("Reply").arg("OFF").misplaced().is_some());
        assert!(Command::new("QUIT").misplaced().is_some());
        assert!(Command::new("CLIENT").arg("INFO").misplaced().is_none());
        assert!(Command::new("GET").arg("MULTI").misplaced().is_none());
    }

    #[test]
    fn arguments_are_not_printed() {
        assert!(!format!("{:?}", Command::new("SET").arg("k").arg("secret")).contains("secret"));
    }
}
