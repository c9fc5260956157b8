//! What the long-running commands share: controlling their workers; their listening sockets, opened or inherited; handing over
//! to a new process; the access log; giving up root; telling a service manager.

pub mod access_log;
pub mod control;
pub mod handover;
pub mod notify;
pub mod pid_file;
pub mod places;
pub mod privileges;
pub mod reports;
