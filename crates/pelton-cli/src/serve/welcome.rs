//! The welcome page, served when no directory is given.

use pelton_http::{Handler, Response, Router, plain};

const PAGE: &str = include_str!("welcome.html");

/// Answers `/` with the page, which names the engine and the workers.
pub fn handler(engine: &str, workers: usize) -> impl Handler {
    let workers = if workers == 1 { "one worker".to_owned() } else { format!("{workers} workers") };
    let page =
        PAGE.replace("{version}", env!("CARGO_PKG_VERSION")).replace("{engine}", engine).replace("{workers}", &workers);
    let page = pelton::Bytes::from(page);
    let welcome = plain(move |_| {
        Response::html(page.clone())
            .header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
            .header("Cache-Control", "no-cache")
    });
    Router::new().get("/", welcome)
}
