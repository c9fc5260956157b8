//! What the long-running commands share: their listening sockets, opened or inherited; handing over to a new process; the
//! access log; giving up root; telling a service manager.

pub mod access_log;
pub mod handover;
pub mod notify;
pub mod pid_file;
pub mod places;
pub mod privileges;
