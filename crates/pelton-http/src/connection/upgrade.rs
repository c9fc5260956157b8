//! What comes after HTTP.

use std::rc::Rc;

use pelton::{ConnectionId, Io};

use super::HttpConnection;
use crate::server::Shared;

/// What is left of HTTP on a connection that is another handler's: it still counts as one of the server's.
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
    /// Gives the connection to the handler that follows, with what the client has sent after its request.
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
