//! Reports the state to a service manager: systemd's `sd_notify`, a datagram to the socket that `NOTIFY_SOCKET` names.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that this process is serving and is now the main process, replacing any earlier one.
pub fn serving() {
    let process = std::process::id();
    tell(&format!("READY=1\nMAINPID={process}\nSTATUS=serving\n"));
}

/// Reports that this process is shutting down and that no other process has taken over.
pub fn ending() {
    tell("STOPPING=1\nSTATUS=finishing requests in progress\n");
}

fn tell(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    let told = address(&name).and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not block the server.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        tracing::warn!(%error, socket = %name.display(), "could not notify the service manager");
    }
}

fn address(name: &std::ffi::OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        if let Some(name) = name.as_bytes().strip_prefix(b"@") {
            return SocketAddr::from_abstract_name(name);
        }
    }
    SocketAddr::from_pathname(name)
}
