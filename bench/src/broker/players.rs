//! The contenders that are part of this program. Each reads numbers and answers when it has done as much.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use pelton::{Reactor, SubscribeOptions};
use pelton_jobs::{Job, Jobs, WorkOptions};
use pelton_redis::Hub;

use crate::harness::quantile;
use crate::process::end_with_parent;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    PeltonPublish,
    FloorPublish,
    TokioPublish,
    PeltonJobs,
    FloorJobs,
    PeltonLatency,
    FloorLatency,
}

#[derive(Args)]
pub struct Playing {
    kind: Kind,
    socket: PathBuf,
}

/// Bytes of a message and of a job.
const SIZE: usize = 64;

/// Messages and jobs that are sent together.
const BATCH: u64 = 100;

/// Jobs that a worker runs at the same time.
const CONCURRENCY: usize = 50;

pub fn play(playing: &Playing) -> Result<()> {
    end_with_parent()?;
    let socket = &playing.socket;
    match playing.kind {
        Kind::PeltonPublish => pelton_publish(socket),
        Kind::FloorPublish => floor_publish(socket),
        Kind::TokioPublish => tokio_publish(socket),
        Kind::PeltonJobs => pelton_jobs(socket),
        Kind::FloorJobs => floor_jobs(socket),
        Kind::PeltonLatency => pelton_latency(socket),
        Kind::FloorLatency => floor_latency(socket),
    }
}

/// Calls `run` with each number that is read, and prints what it returns.
fn answer(mut run: impl FnMut(u64) -> Result<f64>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let count = line.context("read what to do")?.trim().parse().context("not a number")?;
        let answer = run(count)?;
        let mut out = std::io::stdout();
        writeln!(out, "{answer}").and_then(|()| out.flush()).context("answer")?;
    }
    Ok(())
}

fn url(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

fn pelton_publish(socket: &Path) -> Result<()> {
    let mut reactor = Reactor::new()?;
    let hub = Hub::open(&mut reactor, url(socket).as_str())?;
    let channel = hub.bytes_channel("pelton");
    let received = Rc::new(Cell::new(0u64));
    let count = received.clone();
    channel
        .subscribe_with(&mut reactor, SubscribeOptions::default(), move |_, delivery| {
            if let pelton::Delivery::Value(_) = delivery {
                count.set(count.get() + 1);
            }
        })
        .keep();
    let message = pelton::Bytes::from(vec![b'x'; SIZE]);
    answer(move |total| {
        let goal = received.get() + total;
        let mut sent = 0;
        while sent < total {
            for _ in 0..BATCH.min(total - sent) {
                channel.publish(message.clone()).map_err(|error| anyhow::anyhow!("{error:?}"))?;
                sent += 1;
            }
            let batch = goal - total + sent;
            reactor.run_until(|_| received.get() >= batch)?;
        }
        Ok(0.0)
    })
}

fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing to memory cannot fail.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads until as many line ends have arrived.
fn read_lines(stream: &mut UnixStream, lines: usize) -> Result<Vec<u8>> {
    let (mut found, mut all, mut bytes) = (0, Vec::new(), [0; 16 << 10]);
    while found < lines {
        let count = stream.read(&mut bytes).context("read from the server")?;
        ensure!(count > 0, "the server has closed the connection");
        found += bytes[..count].iter().filter(|byte| **byte == b'\n').count();
        all.extend_from_slice(&bytes[..count]);
    }
    Ok(all)
}

fn floor_publish(socket: &Path) -> Result<()> {
    let mut publisher = UnixStream::connect(socket)?;
    let mut subscriber = UnixStream::connect(socket)?;
    let mut out = Vec::new();
    command(&mut out, &[b"SUBSCRIBE", b"floor"]);
    subscriber.write_all(&out)?;
    read_lines(&mut subscriber, 6)?;
    answer(move |total| {
        let mut sent = 0;
        while sent < total {
            let batch = BATCH.min(total - sent);
            out.clear();
            (0..batch).for_each(|_| command(&mut out, &[b"PUBLISH", b"floor", &[b'x'; SIZE]]));
            publisher.write_all(&out)?;
            read_lines(&mut publisher, batch as usize)?;
            // Three strings in an array are seven lines.
            read_lines(&mut subscriber, 7 * batch as usize)?;
            sent += batch;
        }
        Ok(0.0)
    })
}

fn tokio_publish(socket: &Path) -> Result<()> {
    use redis::AsyncCommands;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
    let (connection, pubsub) = runtime.block_on(async {
        let connection = client.get_multiplexed_async_connection().await?;
        let mut pubsub = client.get_async_pubsub().await?;
        pubsub.subscribe("tokio").await?;
        redis::RedisResult::Ok((connection, pubsub))
    })?;
    let mut messages = pubsub.into_on_message();
    answer(move |total| {
        runtime.block_on(async {
            let mut sent = 0;
            while sent < total {
                let batch = BATCH.min(total - sent);
                let publishing = (0..batch).map(|_| {
                    let mut connection = connection.clone();
                    async move { connection.publish::<_, _, i64>("tokio", &[b'x'; SIZE][..]).await }
                });
                let receiving = async {
                    for _ in 0..batch {
                        futures_util::StreamExt::next(&mut messages).await.context("the subscription has ended")?;
                    }
                    anyhow::Ok(())
                };
                let (published, received) =
                    futures_util::future::join(futures_util::future::join_all(publishing), receiving).await;
                received?;
                for answer in published {
                    answer?;
                }
                sent += batch;
            }
            Ok(0.0)
        })
    })
}

fn pelton_jobs(socket: &Path) -> Result<()> {
    let mut reactor = Reactor::new()?;
    let jobs = Jobs::open(&mut reactor, &url(socket))?;
    let options = WorkOptions::new("pelton").concurrency(CONCURRENCY);
    let worker = jobs.work(&mut reactor, options, |_, run| run.done(Vec::new()))?;
    answer(move |total| {
        let goal = worker.stats().done + total;
        let mut sent = 0;
        while sent < total {
            let batch = BATCH.min(total - sent);
            let stored = Rc::new(Cell::new(0));
            for _ in 0..batch {
                let stored = stored.clone();
                jobs.enqueue(&mut reactor, "pelton", Job::new(vec![b'x'; SIZE])).done(move |_, result| {
                    result.expect("the server accepts jobs");
                    stored.set(stored.get() + 1);
                });
            }
            reactor.run_until(|_| stored.get() == batch)?;
            sent += batch;
        }
        reactor.run_until(|_| worker.stats().done >= goal)?;
        Ok(0.0)
    })
}

/// The least that jobs on a stream need: one pipelined command each to add, read, acknowledge and delete.
fn floor_jobs(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let mut out = Vec::new();
    command(&mut out, &[b"XGROUP", b"CREATE", b"floor", b"g", b"0", b"MKSTREAM"]);
    stream.write_all(&out)?;
    read_lines(&mut stream, 1)?;
    answer(move |total| {
        let mut sent = 0;
        while sent < total {
            let batch = BATCH.min(total - sent);
            out.clear();
            (0..batch).for_each(|_| command(&mut out, &[b"XADD", b"floor", b"*", b"p", &[b'x'; SIZE]]));
            stream.write_all(&out)?;
            let added = read_lines(&mut stream, 2 * batch as usize)?;
            let ids: Vec<&[u8]> = added.split(|byte| *byte == b'\n').skip(1).step_by(2).map(<[u8]>::trim_ascii).collect();
            out.clear();
            let count = batch.to_string();
            let read: [&[u8]; 9] =
                [b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", count.as_bytes(), b"STREAMS", b"floor", b">"];
            command(&mut out, &read);
            for id in ids.iter().take(batch as usize) {
                command(&mut out, &[b"XACK", b"floor", b"g", id]);
                command(&mut out, &[b"XDEL", b"floor", id]);
            }
            stream.write_all(&out)?;
            // A head of five lines; per job eight lines and two numbers.
            read_lines(&mut stream, 5 + 10 * batch as usize)?;
            sent += batch;
        }
        Ok(0.0)
    })
}

fn pelton_latency(socket: &Path) -> Result<()> {
    let mut reactor = Reactor::new()?;
    let jobs = Jobs::open(&mut reactor, &url(socket))?;
    let ran = Rc::new(RefCell::new(Vec::new()));
    let times = ran.clone();
    let worker = jobs.work(&mut reactor, WorkOptions::new("latency"), move |_, run| {
        times.borrow_mut().push(Instant::now());
        run.done(Vec::new());
    })?;
    answer(move |total| {
        let mut took = Vec::new();
        for _ in 0..total {
            ran.borrow_mut().clear();
            let done = worker.stats().done;
            let started = Instant::now();
            drop(jobs.enqueue(&mut reactor, "latency", Job::new(vec![b'x'; SIZE])));
            reactor.run_until(|_| worker.stats().done > done)?;
            took.push((ran.borrow()[0] - started).as_secs_f64() * 1e6);
            // Until the worker waits again.
            reactor.turn(Some(Duration::from_micros(500)))?;
        }
        Ok(quantile(&took, 0.99))
    })
}

/// The server's own round trip.
fn floor_latency(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    answer(move |total| {
        let mut took = Vec::new();
        for _ in 0..total {
            let started = Instant::now();
            stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
            read_lines(&mut stream, 1)?;
            took.push(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(quantile(&took, 0.99))
    })
}
