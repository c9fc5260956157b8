//! Bodies of several parts (`multipart/form-data`, RFC 7578).

use std::fs::File;
use std::sync::Arc;

use super::request::{Payload, Request};
use crate::Content;

/// A form with files.
///
/// ```
/// use pelton_http::client::{Client, Multipart};
///
/// let form = Multipart::new().text("title", "a note").part("file", "note.txt", "text/plain", "the text");
/// let request = Client::new().post("http://example.org/upload").multipart(form);
/// ```
#[derive(Debug)]
pub struct Multipart {
    boundary: String,
    /// What is sent, in order.
    contents: Vec<Content>,
    /// The bytes since the last content that is not in memory.
    text: Vec<u8>,
    fault: Option<&'static str>,
}

impl Default for Multipart {
    fn default() -> Multipart {
        Multipart::new()
    }
}

impl Multipart {
    /// An empty form.
    pub fn new() -> Multipart {
        use std::hash::{BuildHasher, Hasher};
        // Random, so that no content can contain it on purpose.
        let random = || std::hash::RandomState::new().build_hasher().finish();
        let boundary = format!("pelton-{:016x}{:016x}", random(), random());
        Multipart { boundary, contents: Vec::new(), text: Vec::new(), fault: None }
    }

    /// Adds a value.
    #[must_use]
    pub fn text(mut self, name: &str, value: &str) -> Multipart {
        self.begin(name, None, None);
        self.text.extend_from_slice(value.as_bytes());
        self.text.extend_from_slice(b"\r\n");
        self
    }

    /// Adds a file with this name, type and content.
    #[must_use]
    pub fn part(mut self, name: &str, file_name: &str, media_type: &str, content: impl Into<Content>) -> Multipart {
        self.begin(name, Some(file_name), Some(media_type));
        match content.into() {
            Content::Empty => {}
            Content::Bytes(bytes) if bytes.len() <= 4096 => self.text.extend_from_slice(&bytes),
            content => {
                self.contents.push(Content::from(std::mem::take(&mut self.text)));
                self.contents.push(content);
            }
        }
        self.text.extend_from_slice(b"\r\n");
        self
    }

    /// Adds an open file, which is sent without reading it into memory. It must not become shorter meanwhile.
    #[must_use]
    pub fn file(mut self, name: &str, file_name: &str, media_type: &str, file: File) -> Multipart {
        let Ok(metadata) = file.metadata() else {
            self.fault = Some("the length of a file in the form is unknown");
            return self;
        };
        self.part(
            name,
            file_name,
            media_type,
            Content::File { file: Arc::new(file), offset: 0, length: metadata.len() },
        )
    }

    fn begin(&mut self, name: &str, file_name: Option<&str>, media_type: Option<&str>) {
        let text = &mut self.text;
        for part in ["--", &self.boundary, "\r\nContent-Disposition: form-data; name=\"", &quoted(name), "\""] {
            text.extend_from_slice(part.as_bytes());
        }
        if let Some(file_name) = file_name {
            text.extend_from_slice(format!("; filename=\"{}\"", quoted(file_name)).as_bytes());
        }
        if let Some(media_type) = media_type {
            if media_type.bytes().any(|byte| !(b' '..0x7f).contains(&byte)) {
                self.fault = Some("a media type in the form is invalid");
            } else {
                text.extend_from_slice(format!("\r\nContent-Type: {media_type}").as_bytes());
            }
        }
        text.extend_from_slice(b"\r\n\r\n");
    }
}

/// Escapes a name as browsers do (WHATWG HTML, "multipart/form-data encoding algorithm").
fn quoted(name: &str) -> String {
    name.replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22")
}

impl Request {
    /// Sets the body to a form with files.
    pub fn multipart(mut self, mut form: Multipart) -> Request {
        if let Some(fault) = form.fault {
            self.fault(fault);
        }
        form.text.extend_from_slice(format!("--{}--\r\n", form.boundary).as_bytes());
        form.contents.push(Content::from(form.text));
        self.parts.payload = Payload::Parts(form.contents.into());
        self.header("Content-Type", format!("multipart/form-data; boundary={}", form.boundary))
    }
}
