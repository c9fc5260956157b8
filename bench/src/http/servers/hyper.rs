//! hyper on one thread of tokio: a task per connection.

use std::convert::Infallible;

use std::path::Path;

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::super::stage::{CHAIN, KEY};
use super::{HELLO, TEXT, listener};

/// Serves, with the certificate on a stage if there is one.
pub fn serve(certificate: Option<&Path>) -> Result<()> {
    let tls = match certificate {
        Some(stage) => Some(TlsAcceptor::from(crate::tls::config(&stage.join(CHAIN), &stage.join(KEY))?)),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("make a tokio runtime")?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener()?).context("hand a listener to tokio")?;
        loop {
            let (stream, _) = listener.accept().await.context("accept a connection")?;
            stream.set_nodelay(true).context("send without delay")?;
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => answer(stream).await,
                    Some(tls) => {
                        // A client that leaves during the handshake is no error.
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream).await;
                        }
                    }
                }
            });
        }
    })
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin) {
    // As cheap as possible: pipelined responses are flushed together, no timeouts.
    let mut http = http1::Builder::new();
    http.pipeline_flush(true);
    // A client that disconnects is no error.
    let _ = http.serve_connection(TokioIo::new(stream), service_fn(hello)).await;
}

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(HELLO.as_bytes())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    if request.uri().path() != "/hello" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}
