//! `pelton completions` and `pelton man`: pages generated from the command line's own definition.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Args)]
pub struct CompletionOptions {
    /// Shell to generate the script for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Args)]
pub struct ManOptions {
    /// Command whose page is printed, such as `serve`; by default `pelton` itself
    #[arg(value_name = "COMMAND")]
    command: Option<String>,

    /// Writes all pages to this directory instead, as pelton.1, pelton-serve.1 and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

pub fn completions(mut command: Command, options: &CompletionOptions) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "pelton", &mut script);
    script
}

/// Why there is no page.
pub enum Failure {
    /// There is no such command.
    NoPage(String),
    /// The pages could not be written.
    Write(String),
}

/// Returns the requested page, or nothing if the pages were written to a directory.
pub fn man(command: Command, options: &ManOptions) -> Result<Vec<u8>, Failure> {
    let name = command.get_name().to_owned();
    if let Some(directory) = &options.directory {
        let doing = |path: &Path, error: io::Error| Failure::Write(format!("write {}: {error}", path.display()));
        fs::create_dir_all(directory).map_err(|error| doing(directory, error))?;
        for (page, text) in pages(command) {
            let path = directory.join(format!("{page}.1"));
            fs::write(&path, text).map_err(|error| doing(&path, error))?;
        }
        return Ok(Vec::new());
    }
    let wanted = match &options.command {
        Some(command) => format!("{name}-{command}"),
        None => name,
    };
    let pages = pages(command);
    let names: Vec<&str> = pages.iter().filter_map(|(page, _)| page.strip_prefix("pelton-")).collect();
    let asked = options.command.as_deref().unwrap_or_default();
    let unknown = format!("there is no page for {asked:?}; the pages are {}", names.join(", "));
    pages.into_iter().find(|(page, _)| *page == wanted).map(|(_, text)| text).ok_or(Failure::NoPage(unknown))
}

/// Returns the page of each command, by name.
fn pages(mut command: Command) -> Vec<(String, Vec<u8>)> {
    command.build();
    let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help").cloned();
    let all = std::iter::once(command.clone()).chain(subcommands);
    let page = |command: Command| {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        let mut text = Vec::new();
        let source = format!("pelton {}", env!("CARGO_PKG_VERSION"));
        clap_mangen::Man::new(command).source(source).render(&mut text).expect("writing to a Vec cannot fail");
        (name, text)
    };
    all.map(page).collect()
}
