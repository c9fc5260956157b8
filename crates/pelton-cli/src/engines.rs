//! `pelton engines`: lists the engines, which of them work here, and which one a reactor would use.

use std::fmt::{self, Write};

use pelton::{ENGINE_VARIABLE, EngineKind, Error, Reactor};
use rustix::process::{Resource, getrlimit};

/// Width of the first column. No engine has a longer name.
const NAME_WIDTH: usize = 8;

pub fn report() -> Result<String, Error> {
    let asked = EngineKind::from_environment()?;
    // Builds a reactor to find out, as any program would.
    let picked = Reactor::new()?.engine_name();
    let mut text = String::new();
    write_report(&mut text, asked, picked).expect("writing to a String cannot fail");
    Ok(text)
}

fn write_report(text: &mut String, asked: Option<EngineKind>, picked: &str) -> fmt::Result {
    for kind in EngineKind::ALL {
        let mark = if kind.name() == picked { "*" } else { " " };
        write!(text, "{mark} {:<NAME_WIDTH$}", kind.name())?;
        match kind.open() {
            Ok(_) => writeln!(text, "yes  {}", what_it_costs(kind))?,
            Err(error) => writeln!(text, "no   {error}")?,
        }
    }
    let because = match asked {
        None => format!("the best one on this system. Set {ENGINE_VARIABLE} to use another."),
        Some(asked) if asked.name() == picked => format!("because {ENGINE_VARIABLE} asks for it."),
        Some(asked) => {
            format!("the best one on this system. {ENGINE_VARIABLE} asks for {asked}, which is unavailable: see above.")
        }
    };
    writeln!(text, "\nA reactor would run on {picked}: {because}")?;
    writeln!(text, "{}", this_system())
}

/// Describes the cost of this engine.
fn what_it_costs(kind: EngineKind) -> &'static str {
    match kind.name() {
        "epoll" | "kqueue" => {
            "the kernel keeps the list: the cost of a wait depends on what is ready, not on what is watched"
        }
        "poll" => "passes the whole list with each wait: fine for hundreds of connections",
        "select" => "like poll, but only for descriptors below 1024",
        _ => "",
    }
}

/// Describes other limits of this system that matter to a server.
fn this_system() -> String {
    // Only Linux has this file; other systems omit the version.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let limit = getrlimit(Resource::Nofile);
    let show = |limit: Option<u64>| limit.map_or("any number of".to_owned(), |limit| limit.to_string());
    format!(
        "This is {} {}with {processors} {}. A process may have {} descriptors, and may raise that to {} (ulimit -n).",
        std::env::consts::OS,
        if release.is_empty() { String::new() } else { format!("{} ", release.trim()) },
        if processors == 1 { "processor" } else { "processors" },
        show(limit.current),
        show(limit.maximum),
    )
}
