//! Bodies from values: forms and JSON.

use super::request::Request;

/// What need not be escaped in a form (WHATWG URL, section 5.2).
const FORM: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

/// Encodes names and values as `application/x-www-form-urlencoded`.
pub(super) fn urlencoded<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        for (part, end) in [(name.as_ref(), "="), (value.as_ref(), "")] {
            text.extend(percent_encoding::utf8_percent_encode(part, FORM));
            text.push_str(end);
        }
    }
    text
}

impl Request {
    /// Sets the body to a form with these names and values.
    ///
    /// ```
    /// use pelton_http::Client;
    ///
    /// let request = Client::new().post("http://example.org/login").form([("user", "ada"), ("word", "a&b")]);
    /// ```
    pub fn form<N: AsRef<str>, V: AsRef<str>>(self, pairs: impl IntoIterator<Item = (N, V)>) -> Request {
        self.header("Content-Type", "application/x-www-form-urlencoded").body(urlencoded(pairs))
    }

    /// Sets the body to a value as JSON.
    #[cfg(feature = "json")]
    pub fn json(mut self, value: &impl serde::Serialize) -> Request {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.header("Content-Type", "application/json").body(bytes),
            Err(error) => {
                self.fault(format!("the value has no JSON form: {error}"));
                self
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn forms_are_escaped() {
        let pairs = [("a b", "c&d=e"), ("ä", "+*-._~"), ("", "")];
        assert_eq!(super::urlencoded(pairs), "a%20b=c%26d%3De&%C3%A4=%2B*-._%7E&=");
    }
}
