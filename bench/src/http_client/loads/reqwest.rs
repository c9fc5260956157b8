//! reqwest on a tokio runtime with one thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::hyper::{runtime, trusting};

pub fn fetch(url: &str, in_flight: u32, certificate: &Path) -> Result<()> {
    let runtime = runtime()?;
    let client = reqwest::Client::builder()
        .use_preconfigured_tls(trusting(certificate)?)
        .http1_only()
        .tcp_nodelay(true)
        .build()
        .context("make a client")?;
    let url: reqwest::Url = url.parse().context("parse the URL")?;
    super::obey(move |count| {
        let left = Arc::new(AtomicU32::new(count));
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..in_flight.min(count) {
                let (client, url, left) = (client.clone(), url.clone(), left.clone());
                tasks.spawn(async move {
                    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                        let mut response = client.get(url.clone()).send().await?;
                        ensure!(response.status() == 200, "status {}", response.status());
                        while response.chunk().await?.is_some() {}
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
