//! actix-web with one worker.

use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::{Context, Result};

use super::{HELLO, TEXT, listener};

pub fn serve() -> Result<()> {
    let listener = listener()?;
    actix_web::rt::System::new().block_on(async move {
        let server = HttpServer::new(|| App::new().route("/hello", web::get().to(hello)));
        let server = server.workers(1).disable_signals().listen(listener).context("hand a listener to actix-web")?;
        server.run().await.context("serve")
    })
}

async fn hello() -> HttpResponse {
    HttpResponse::Ok().content_type(TEXT).body(HELLO)
}
