//! Servers that are external programs. Each runs in the foreground, as one process, with its configuration from `peers/`.

use std::fs;
use std::net::SocketAddrV4;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Error, Result};

use super::{announce, free_port};

pub fn nginx(stage: &Path, tls: bool) -> Result<()> {
    let ssl = if tls { "ssl" } else { "" };
    let text = include_str!("../peers/nginx.conf").replace("@SSL@", ssl);
    let (port, configuration) = configured(stage, "nginx.conf", &text)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(stage).arg("-c").arg(configuration).args(["-e", "stderr"]);
    become_it(port, command)
}

/// nginx as a reverse proxy.
pub fn nginx_forward(stage: &Path, target: SocketAddrV4) -> Result<()> {
    let text = include_str!("../peers/nginx-forward.conf").replace("@TARGET@", &target.to_string());
    let (port, configuration) = configured(stage, "nginx-forward.conf", &text)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(stage).arg("-c").arg(configuration).args(["-e", "stderr"]);
    become_it(port, command)
}

pub fn serve_forward(target: SocketAddrV4) -> Result<()> {
    let port = free_port()?;
    become_it(port, crate::http::forwarding::serve_command(port, target))
}

pub fn apache(stage: &Path) -> Result<()> {
    let (port, configuration) = configured(stage, "apache.conf", include_str!("../peers/apache.conf"))?;
    let mut command = Command::new("apache2");
    // One process that stays in the foreground; the work per request is the same.
    command.arg("-X").arg("-f").arg(configuration);
    become_it(port, command)
}

pub fn node() -> Result<()> {
    let port = free_port()?;
    let mut command = Command::new("node");
    command.arg("-e").arg(include_str!("../peers/hello.js")).arg(port.to_string());
    become_it(port, command)
}

/// Writes a configuration with a free port.
fn configured(stage: &Path, name: &str, text: &str) -> Result<(u16, std::path::PathBuf)> {
    let port = free_port()?;
    let path = stage.join(format!("{port}-{name}"));
    let text = text.replace("@PORT@", &port.to_string()).replace("@STAGE@", &stage.display().to_string());
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok((port, path))
}

/// Announces the port and replaces this process with another program. Returns only if that fails.
fn become_it(port: u16, mut command: Command) -> Result<()> {
    announce(port)?;
    let program = command.get_program().to_string_lossy().into_owned();
    Err(Error::new(command.exec()).context(format!("become {program}")))
}
