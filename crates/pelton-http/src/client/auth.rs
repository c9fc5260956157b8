//! Authentication.

use super::request::Request;

impl Request {
    /// Authenticates with a user and a password. It is sent as it is: use it with `https`.
    pub fn basic_auth(mut self, user: &str, password: &str) -> Request {
        if user.contains(':') {
            self.fault("the user of basic authentication has a colon");
            return self;
        }
        let value = basic(format!("{user}:{password}").as_bytes());
        self.authorize(&value);
        self
    }

    /// Authenticates with a token.
    pub fn bearer_auth(mut self, token: &str) -> Request {
        self.authorize(&format!("Bearer {token}"));
        self
    }

    /// Sets the field. Credentials that were given before, in the URL, are replaced.
    fn authorize(&mut self, value: &str) {
        super::redirect::remove_field(&mut self.parts.fields, "authorization");
        self.append(b"Authorization", value.as_bytes());
    }
}

/// The value of the field for basic authentication.
pub(super) fn basic(credentials: &[u8]) -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials))
}
