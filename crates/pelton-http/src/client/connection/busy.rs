//! The state of a connection that has a request.

use std::rc::Rc;
use std::sync::Arc;

use pelton::Chunk;

use super::intake::Intake;
use crate::Content;
use crate::client::Url;
use crate::client::call::Call;
use crate::wire::{ResponseLimits, ResponseReader, To};

/// The state of a connection that has a request. Its memory is reused.
pub(in crate::client) struct Busy {
    pub(super) call: Rc<Call>,
    pub(super) reader: ResponseReader,
    pub(super) to: To,
    /// The connection was used before.
    pub(super) is_kept: bool,
    pub(super) upload: Upload,
    pub(super) delivery: Delivery,
    pub(super) intake: Intake,
    /// Input that has arrived while the call is paused, and how much of it was read.
    pub(super) held: Option<(Chunk, usize)>,
    /// The peer has finished while the call is paused.
    pub(super) ended: bool,
    /// Memory for the head of the request.
    pub(super) out: Vec<u8>,
    pub(super) closes: bool,
    /// The head of the response has arrived.
    pub(super) has_head: bool,
}

/// How the body of the request is sent.
#[derive(Debug, Default)]
pub(super) enum Upload {
    /// It is sent, or there is none.
    #[default]
    Done,
    /// The rest of a body whose length was announced.
    Content(Content),
    /// The rest of a content, and those that follow it.
    Parts(Content, Arc<[Content]>, usize),
    /// A streamed body, of which this many bytes are missing, or that is chunked.
    Stream(Option<u64>),
    /// It waits for the server's consent.
    Held(Box<Upload>),
}

/// What happens to the response.
#[derive(Debug, Default)]
pub(super) enum Delivery {
    /// The receiver gets it.
    #[default]
    Receiver,
    /// It is skipped, then the redirect is followed.
    Redirect { to: Box<Url>, status: u16 },
}

impl Busy {
    pub(in crate::client) fn new(limits: ResponseLimits) -> Busy {
        Busy {
            call: Rc::default(),
            reader: ResponseReader::new(limits),
            to: To::Other,
            is_kept: false,
            upload: Upload::Done,
            delivery: Delivery::Receiver,
            intake: Intake::default(),
            held: None,
            ended: false,
            out: Vec::new(),
            closes: false,
            has_head: false,
        }
    }

    /// Prepares for another request. Keeps the memory.
    pub(in crate::client) fn clear(&mut self) {
        self.reader.reset();
        self.upload = Upload::Done;
        self.delivery = Delivery::Receiver;
        (self.ended, self.closes, self.has_head) = (false, false, false);
        self.held = None;
        self.intake.clear();
        self.out.clear();
    }
}
