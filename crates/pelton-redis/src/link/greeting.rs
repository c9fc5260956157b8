//! The first commands of a connection: protocol, user, name, database.

use crate::{Command, Options, Protocol, ServerError, Value};

pub(super) struct Greeting {
    step: Step,
    protocol: Protocol,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Begin,
    Hello,
    Auth,
    Name,
    Select,
    Role,
}

/// What follows.
pub(super) enum Progress {
    Send(Command),
    Ready(Protocol),
    Refused(ServerError),
    /// The server is loading its data, or has too many clients.
    NotYet(ServerError),
    Nonsense,
}

impl Greeting {
    pub(super) fn new(options: &Options) -> Greeting {
        Greeting { step: Step::Begin, protocol: options.protocol }
    }

    pub(super) fn begin(&mut self, options: &Options) -> Progress {
        match self.protocol {
            Protocol::Resp3 => {
                self.step = Step::Hello;
                Progress::Send(hello(options))
            }
            Protocol::Resp2 => self.after(Step::Begin, options),
        }
    }

    pub(super) fn answered(&mut self, answer: Value, options: &Options) -> Progress {
        match (self.step, answer) {
            (Step::Hello, Value::Map(_)) => self.after(Step::Name, options),
            (Step::Hello, Value::Error(error)) if is_unknown(&error) => {
                self.protocol = Protocol::Resp2;
                self.after(Step::Begin, options)
            }
            (_, Value::Error(error)) if is_temporary(&error) => Progress::NotYet(error),
            // Servers that cannot name connections are old, not unusable.
            (Step::Name, Value::Error(_)) => self.after(Step::Name, options),
            (_, Value::Error(error)) => Progress::Refused(error),
            (Step::Role, Value::Array(role)) => match role.first().and_then(Value::as_bytes) {
                Some(role) if role == "master" => self.after(Step::Role, options),
                Some(_) => Progress::NotYet(ServerError::new(b"READONLY it is a replica, not the master")),
                None => Progress::Nonsense,
            },
            (step @ (Step::Auth | Step::Name | Step::Select), Value::Status(status)) if status == "OK" => {
                self.after(step, options)
            }
            _ => Progress::Nonsense,
        }
    }

    /// Goes to the next step that these options need.
    fn after(&mut self, step: Step, options: &Options) -> Progress {
        let (step, command) = match (step, &options.password, &options.name) {
            (Step::Begin, Some(password), _) => {
                (Step::Auth, Command::new("AUTH").args(options.user.as_ref()).arg(password))
            }
            (Step::Begin | Step::Auth, _, Some(name)) => (Step::Name, Command::new("CLIENT").arg("SETNAME").arg(name)),
            (Step::Role, ..) => return Progress::Ready(self.protocol),
            (step, ..) if step != Step::Select && options.database != 0 => {
                (Step::Select, Command::new("SELECT").arg(options.database))
            }
            // A Sentinel may not have noticed yet that the master has changed.
            _ if options.sentinels.is_some() => (Step::Role, Command::new("ROLE")),
            _ => return Progress::Ready(self.protocol),
        };
        self.step = step;
        Progress::Send(command)
    }
}

fn hello(options: &Options) -> Command {
    let mut command = Command::new("HELLO").arg(3);
    if let Some(password) = &options.password {
        command = command.arg("AUTH").arg(options.user.as_deref().unwrap_or("default")).arg(password);
    }
    match &options.name {
        Some(name) => command.arg("SETNAME").arg(name),
        None => command,
    }
}

/// Returns whether the server does not know the command, or version 3 of the protocol.
fn is_unknown(error: &ServerError) -> bool {
    error.code() == "NOPROTO" || error.text().to_ascii_lowercase().contains("unknown command")
}

fn is_temporary(error: &ServerError) -> bool {
    matches!(error.code(), "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN")
        || error.text().contains("max number of clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a greeting with these answers. Returns the names of the commands, and what the end was.
    fn play(options: &Options, answers: &[&str]) -> (Vec<&'static str>, String) {
        let mut greeting = Greeting::new(options);
        let mut progress = greeting.begin(options);
        let mut sent = Vec::new();
        let mut answers = answers.iter();
        loop {
            match progress {
                Progress::Send(command) => sent.push(command.name()),
                Progress::Ready(protocol) => return (sent, format!("{protocol:?}")),
                Progress::Refused(error) => return (sent, format!("refused {}", error.code())),
                Progress::NotYet(error) => return (sent, format!("not yet {}", error.code())),
                Progress::Nonsense => return (sent, "nonsense".into()),
            }
            let answer = match *answers.next().expect("an answer for each command") {
                role @ ("master" | "slave") => Value::Array(vec![Value::Bytes(role.to_owned().into())]),
                "map" => Value::Map(vec![]),
                "OK" => Value::Status("OK".into()),
                "7" => Value::Int(7),
                error => Value::Error(ServerError::new(error.as_bytes())),
            };
            progress = greeting.answered(answer, options);
        }
    }

    #[test]
    fn greetings_fall_back_and_fail_as_they_should() {
        let plain: Options = "redis://h".parse().unwrap();
        let full: Options = "redis://u:p@h/2".parse().unwrap();
        let full = full.name("me");
        let unknown = "ERR unknown command `HELLO`, with args";
        let cases: [(&Options, &[&str], &[&str], &str); 11] = [
            (&plain, &["map"], &["HELLO"], "Resp3"),
            (&full, &["map", "OK"], &["HELLO", "SELECT"], "Resp3"),
            (&plain, &[unknown], &["HELLO"], "Resp2"),
            (&full, &["NOPROTO no", "OK", "OK", "OK"], &["HELLO", "AUTH", "CLIENT", "SELECT"], "Resp2"),
            (&full, &[unknown, "OK", "ERR what", "OK"], &["HELLO", "AUTH", "CLIENT", "SELECT"], "Resp2"),
            (&full, &["WRONGPASS no"], &["HELLO"], "refused WRONGPASS"),
            (&full, &[unknown, "ERR invalid password"], &["HELLO", "AUTH"], "refused ERR"),
            (&full, &["map", "ERR DB index is out of range"], &["HELLO", "SELECT"], "refused ERR"),
            (&plain, &["LOADING wait"], &["HELLO"], "not yet LOADING"),
            (&plain, &["ERR max number of clients reached"], &["HELLO"], "not yet ERR"),
            (&plain, &["7"], &["HELLO"], "nonsense"),
        ];
        for (options, answers, commands, end) in cases {
            assert_eq!(play(options, answers), (commands.to_vec(), end.to_owned()), "{answers:?}");
        }
        let guarded: Options = "redis+sentinel://h/name/2".parse().unwrap();
        let sent = vec!["HELLO", "SELECT", "ROLE"];
        assert_eq!(play(&guarded, &["map", "OK", "master"]), (sent.clone(), "Resp3".to_owned()));
        assert_eq!(play(&guarded, &["map", "OK", "slave"]), (sent, "not yet READONLY".to_owned()));
        let old = plain.clone().protocol(Protocol::Resp2);
        assert_eq!(play(&old, &[]), (vec![], "Resp2".to_owned()));
    }
}
