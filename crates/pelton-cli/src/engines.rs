//! `pelton engines`: what a reactor could run on here, and what it would.

use std::fmt::{self, Write};

use pelton::{ENGINE_VARIABLE, EngineKind, Error, Reactor};

/// Width of the first column: no engine has a longer name.
const NAME_WIDTH: usize = 8;

pub fn report() -> Result<String, Error> {
    let asked = EngineKind::from_environment()?;
    // Found out by building one, as any program would.
    let picked = Reactor::new()?.engine_name();
    let mut text = String::new();
    write_report(&mut text, asked, picked).expect("a String takes any text");
    Ok(text)
}

fn write_report(text: &mut String, asked: Option<EngineKind>, picked: &str) -> fmt::Result {
    for kind in EngineKind::ALL {
        let mark = if kind.name() == picked { "*" } else { " " };
        write!(text, "{mark} {:<NAME_WIDTH$}", kind.name())?;
        match kind.open() {
            Ok(_) => writeln!(text, "yes")?,
            Err(error) => writeln!(text, "no   {error}")?,
        }
    }
    let because = match asked {
        None => format!("the best that this system has. {ENGINE_VARIABLE} would pick another."),
        Some(asked) if asked.name() == picked => format!("because {ENGINE_VARIABLE} asks for it."),
        Some(asked) => {
            format!(
                "the best that this system has. {ENGINE_VARIABLE} asks for {asked}, which cannot be had: see above."
            )
        }
    };
    writeln!(text, "\nA reactor would run on {picked}: {because}")
}
