//! libcurl's multi interface, with one handle per request in flight.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curl::easy::{Easy2, Handler, WriteError};
use curl::multi::{Easy2Handle, Multi};

struct Discard;

impl Handler for Discard {
    fn write(&mut self, data: &[u8]) -> Result<usize, WriteError> {
        Ok(data.len())
    }
}

pub fn fetch(url: &str, in_flight: u32, certificate: &Path) -> Result<()> {
    let mut multi = Multi::new();
    multi.set_max_connects(in_flight as usize)?;
    let mut idle = Vec::new();
    for _ in 0..in_flight {
        let mut easy = Easy2::new(Discard);
        easy.url(url)?;
        easy.get(true)?;
        easy.tcp_nodelay(true)?;
        easy.cainfo(certificate)?;
        // As the command has it. The library's default is a sixth of it.
        easy.buffer_size(100 << 10)?;
        idle.push(easy);
    }
    super::obey(move |count| {
        let (mut left, mut unanswered) = (count, count);
        let mut busy: Vec<Option<Easy2Handle<Discard>>> = Vec::new();
        while left > 0
            && let Some(easy) = idle.pop()
        {
            let mut handle = multi.add2(easy)?;
            handle.set_token(busy.len())?;
            busy.push(Some(handle));
            left -= 1;
        }
        while unanswered > 0 {
            multi.perform()?;
            let mut done = Vec::new();
            let mut wrong = None;
            multi.messages(|message| {
                if let (Some(Ok(())), Ok(token)) = (message.result(), message.token()) {
                    done.push(token);
                } else {
                    wrong = Some(format!("{:?}", message.result()));
                }
            });
            ensure!(wrong.is_none(), "a request has failed: {wrong:?}");
            if done.is_empty() {
                multi.wait(&mut [], Duration::from_secs(10))?;
            }
            for token in done {
                let handle = busy[token].take().context("a request ended twice")?;
                let easy = multi.remove2(handle)?;
                ensure!(easy.response_code()? == 200, "status {}", easy.response_code()?);
                unanswered -= 1;
                if left > 0 {
                    left -= 1;
                    let mut handle = multi.add2(easy)?;
                    handle.set_token(token)?;
                    busy[token] = Some(handle);
                } else {
                    idle.push(easy);
                }
            }
        }
        Ok(())
    })
}
