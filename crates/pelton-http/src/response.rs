//! Responses.

mod fields;

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

pub use fields::ResponseFields;

/// A response: a status, header fields and a body.
///
/// ```
/// use pelton_http::Response;
///
/// let response = Response::new(201).header("Location", "/users/7").body("made\n");
/// assert_eq!(response.status(), 201);
/// ```
#[derive(Debug)]
pub struct Response {
    status: u16,
    fields: ResponseFields,
    content: Content,
}

/// The body of a response.
#[derive(Clone, Debug, Default)]
pub enum Content {
    /// Nothing.
    #[default]
    Empty,
    /// Bytes. Large ones are not copied. They are sent in one write with the head.
    Bytes(Bytes),
    /// A range of a file, sent inside the kernel where possible. The descriptor is shared, so one open file can serve many
    /// responses.
    File {
        /// The file. Its own position is neither used nor moved.
        file: Arc<File>,
        /// The offset of the range.
        offset: u64,
        /// The length in bytes. If the file is shorter, the connection is closed.
        length: u64,
    },
}

impl Content {
    /// The length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Content::Empty => 0,
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File { length, .. } => *length,
        }
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits off the first `most` bytes.
    pub(crate) fn split_to(&mut self, most: usize) -> Content {
        match self {
            Content::Empty => Content::Empty,
            Content::Bytes(bytes) => Content::Bytes(bytes.split_to(bytes.len().min(most))),
            Content::File { file, offset, length } => {
                let taken = (*length).min(most as u64);
                let first = Content::File { file: file.clone(), offset: *offset, length: taken };
                *offset = offset.saturating_add(taken);
                *length -= taken;
                first
            }
        }
    }
}

macro_rules! content_from {
    ($($type:ty => $convert:expr),* $(,)?) => {
        $(impl From<$type> for Content {
            fn from(content: $type) -> Content {
                Content::Bytes($convert(content))
            }
        })*
    };
}

content_from! {
    Bytes => |bytes| bytes,
    &'static [u8] => Bytes::from_static,
    &'static str => |text: &'static str| Bytes::from_static(text.as_bytes()),
    Vec<u8> => Bytes::from,
    String => Bytes::from,
}

impl Response {
    /// Creates a response with this status and no body. A status outside 200 to 599 is a fault, and the client gets a 500.
    #[inline]
    pub fn new(status: u16) -> Response {
        Response { status, fields: ResponseFields::default(), content: Content::Empty }
    }

    /// Creates a 200.
    pub fn ok() -> Response {
        Response::new(200)
    }

    /// Creates a 200 with plain text.
    #[inline]
    pub fn text(text: impl Into<Content>) -> Response {
        let mut response = Response::ok().body(text);
        response.fields.append_line("Content-Type: text/plain; charset=utf-8\r\n");
        response
    }

    /// Creates a 200 with HTML.
    pub fn html(html: impl Into<Content>) -> Response {
        let mut response = Response::ok().body(html);
        response.fields.append_line("Content-Type: text/html; charset=utf-8\r\n");
        response
    }

    /// Creates a response with this status and its meaning as plain text.
    pub fn plain_status(status: u16) -> Response {
        let phrase = crate::wire::reason_phrase(status);
        Response::new(status).header("Content-Type", "text/plain; charset=utf-8").body(format!("{status} {phrase}\n"))
    }

    /// Creates a redirect, with a status from 300 to 308.
    pub fn redirect(status: u16, location: &str) -> Response {
        Response::new(status).header("Location", location)
    }

    /// Adds a header field. See [`ResponseFields`] for invalid fields and those that the server controls.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Response {
        self.fields.append(name, value);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, content: impl Into<Content>) -> Response {
        self.content = content.into();
        self
    }

    /// Sets the body to a range of a file. Only the descriptor is held.
    #[must_use]
    pub fn file(mut self, file: impl Into<Arc<File>>, offset: u64, length: u64) -> Response {
        self.content = Content::File { file: file.into(), offset, length };
        self
    }

    /// Closes the connection after this response.
    #[must_use]
    pub fn close(mut self) -> Response {
        self.fields.close();
        self
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Changes the status.
    pub fn set_status(&mut self, status: u16) {
        self.status = status;
    }

    /// The header fields.
    pub fn fields(&self) -> &ResponseFields {
        &self.fields
    }

    /// The header fields, for changes.
    pub fn fields_mut(&mut self) -> &mut ResponseFields {
        &mut self.fields
    }

    /// The body.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Takes the body out.
    pub fn take_content(&mut self) -> Content {
        std::mem::take(&mut self.content)
    }

    /// Whether the status and the fields are valid.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        (200..=599).contains(&self.status) && self.fields.fault().is_none()
    }

    /// Why the response is invalid, if it is.
    pub(crate) fn fault(&self) -> Option<String> {
        if !(200..=599).contains(&self.status) {
            return Some(format!("{} is not a valid status for a response", self.status));
        }
        self.fields.fault().map(str::to_owned)
    }
}

impl From<&'static str> for Response {
    fn from(text: &'static str) -> Response {
        Response::text(text)
    }
}

impl From<String> for Response {
    fn from(text: String) -> Response {
        Response::text(text)
    }
}

/// Creates a response with this status and no body.
impl From<u16> for Response {
    fn from(status: u16) -> Response {
        Response::new(status)
    }
}
