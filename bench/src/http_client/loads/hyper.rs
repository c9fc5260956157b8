//! hyper's pooled client on a tokio runtime with one thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::task::JoinSet;

type Connector = hyper_rustls::HttpsConnector<HttpConnector>;

/// A runtime with one thread, as the others have.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("make a runtime")
}

/// Trusts the certificate of the server.
pub fn trusting(certificate: &Path) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).context("read the certificate")?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

pub fn fetch(url: &str, in_flight: u32, certificate: &Path) -> Result<()> {
    let runtime = runtime()?;
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(trusting(certificate)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    let client: Client<Connector, Empty<hyper::body::Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let url: hyper::Uri = url.parse().context("parse the URL")?;
    super::obey(move |count| {
        let left = Arc::new(AtomicU32::new(count));
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..in_flight.min(count) {
                let (client, url, left) = (client.clone(), url.clone(), left.clone());
                tasks.spawn(async move {
                    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                        let request = hyper::Request::get(url.clone()).body(Empty::new())?;
                        let response = client.request(request).await?;
                        ensure!(response.status() == 200, "status {}", response.status());
                        let mut body = response.into_body();
                        while let Some(frame) = body.frame().await {
                            frame?;
                        }
                    }
                    Ok(())
                });
            }
            while let Some(outcome) = tasks.join_next().await {
                outcome??;
            }
            Ok(())
        })
    })
}
