//! The two sides of a handshake.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};

use crate::TlsError;
use crate::handshakes::{Counters, Handshake};
use crate::session::Session;

/// What a layer needs to begin its handshake.
pub(crate) enum Side {
    Server { config: Arc<ServerConfig>, verifies_clients: bool, counters: Arc<Counters> },
    Client { config: Arc<ClientConfig>, name: ServerName<'static>, counters: Arc<Counters> },
}

impl Side {
    pub(crate) fn start(self) -> Result<(Session, Handshake), TlsError> {
        let (session, handshake) = match self {
            Side::Server { config, counters, .. } => {
                let handshake = counters.begin()?;
                (UnbufferedServerConnection::new(config).map(|server| Session::Server(Box::new(server))), handshake)
            }
            Side::Client { config, name, counters } => {
                let handshake = counters.begin()?;
                let client = UnbufferedClientConnection::new(config, name);
                (client.map(|client| Session::Client(Box::new(client))), handshake)
            }
        };
        match session {
            Ok(session) => Ok((session, handshake)),
            Err(error) => {
                let error = TlsError::from_rustls(error, &[]);
                handshake.failed(&error);
                Err(error)
            }
        }
    }
}
