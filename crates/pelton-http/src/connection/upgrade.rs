//! Hands a connection over to another protocol.

use std::rc::Rc;

use pelton::{ConnectionId, Io};

use super::HttpConnection;
use crate::server::Shared;

/// Stays with a connection that was handed over, so that it still counts towards the server's limits.
struct HandedOver {
    shared: Rc<Shared>,
    id: ConnectionId,
    counted: bool,
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        self.shared.handed_over.borrow_mut().remove(&self.id);
        if self.counted {
            self.shared.dismiss(self.id);
        }
    }
}

impl HttpConnection {
    /// Hands the connection to the next handler, with the bytes that followed the request.
    pub(super) fn hand_over(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        let Some(handler) = busy.upgraded.take() else { return };
        let (mut unread, at) = busy.take_input();
        unread.drain(..at);
        let (shared, id) = (self.shared.clone(), io.id());
        shared.handed_over.borrow_mut().insert(id);
        io.keep(HandedOver { shared, id, counted: std::mem::take(&mut self.counted) });
        io.hand_over(handler, unread);
    }
}
