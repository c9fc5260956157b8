//! One download.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pelton::{Lane, Reactor};
use pelton_http::Method;
use pelton_http::client::{Client, Error, Response, Url};

use super::target::{self, Target};
use super::{Options, code};

/// A download that was not started yet.
pub struct Transfer {
    url: String,
    output: Option<PathBuf>,
    directory: PathBuf,
    resume: bool,
    sha256: Option<String>,
    head: bool,
    headers: Vec<(String, String)>,
}

/// What has become of a download.
pub struct Outcome {
    pub url: String,
    pub final_url: Option<String>,
    pub status: Option<u16>,
    pub fields: Vec<(String, String)>,
    pub path: Option<PathBuf>,
    pub bytes: u64,
    pub sha256: Option<String>,
    pub took: Duration,
    pub error: Option<String>,
    pub code: u8,
}

impl Outcome {
    fn of(url: &str) -> Outcome {
        Outcome {
            url: url.to_owned(),
            final_url: None,
            status: None,
            fields: Vec::new(),
            path: None,
            bytes: 0,
            sha256: None,
            took: Duration::ZERO,
            error: None,
            code: 0,
        }
    }
}

impl Transfer {
    pub fn new(url: &str, options: &Options) -> Transfer {
        Transfer {
            url: url.to_owned(),
            output: options.output.clone(),
            directory: options.directory.clone(),
            resume: options.resume,
            sha256: options.sha256.clone(),
            head: options.head,
            headers: options.headers.clone(),
        }
    }

    /// Starts the download. `received` is called with the number of bytes of each piece, and the total once it is known.
    pub fn start(
        self,
        reactor: &mut Reactor,
        client: &Client,
        received: impl Fn(u64, Option<u64>) + 'static,
        done: impl FnOnce(&mut Reactor, Outcome) + 'static,
    ) {
        let client = client.clone();
        reactor.spawn(async move {
            let began = Instant::now();
            let mut outcome = Outcome::of(&self.url);
            if let Err((error, code)) = self.run(&client, &received, &mut outcome).await {
                (outcome.error, outcome.code) = (Some(error), code);
            }
            outcome.took = began.elapsed();
            Reactor::with_current(|reactor| done(reactor, outcome));
        });
    }

    async fn run(
        self,
        client: &Client,
        received: &impl Fn(u64, Option<u64>),
        outcome: &mut Outcome,
    ) -> Result<(), Reason> {
        let method = if self.head { Method::Head } else { Method::Get };
        let mut request = client.request(method, &self.url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let path = match (&self.output, Url::parse(&self.url)) {
            _ if self.head => None,
            (Some(output), _) => Some(output.clone()),
            (None, Ok(url)) => Some(self.directory.join(target::name_of(&url))),
            (None, Err(_)) => None,
        };
        let mut from = 0;
        if let Some(path) = path.clone().filter(|_| self.resume)
            && let Some((length, tag)) = at_files(move || target::interrupted(&path)).await?
        {
            request = request.header("Range", format!("bytes={length}-")).header("If-Range", tag);
            from = length;
        }
        let mut incoming = request.open().await.map_err(|error| failure(&error))?;
        let mut target = begin(outcome, incoming.head(), path.clone(), from).await?;
        let total = incoming.head().fields().text("content-length").and_then(|length| length.parse::<u64>().ok());
        received(target.length, total.map(|length| length + target.length));
        outcome.bytes = target.length;
        let unwritable = |error: io::Error| unwritable(path.as_deref().unwrap_or(Path::new("-")), &error);
        while let Some(piece) = incoming.next().await.map_err(|error| failure(&error))? {
            received(piece.len() as u64, None);
            let written = move || target.write(&piece).map(|()| target);
            target = at_files(written).await?.map_err(unwritable)?;
            outcome.bytes = target.length;
        }
        let expected = self.sha256.clone();
        match at_files(move || target.finish(expected.as_deref())).await?.map_err(unwritable)? {
            Ok(hash) => {
                outcome.sha256 = path.is_some().then_some(hash);
                outcome.path = path;
                Ok(())
            }
            Err(hash) => {
                let expected = self.sha256.as_deref().unwrap_or_default();
                Err((format!("{}: its SHA-256 is {hash}, not {expected}", outcome.url), code::HASH))
            }
        }
    }
}

/// Works with files on a thread of the file lane: a disk may be slow, and so may be a reader of standard output.
async fn at_files<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Reason> {
    let failed = |why: String| (format!("work with files: {why}"), code::WRITE);
    let deferred = Reactor::with_current(|reactor| reactor.defer_reply(Lane::Files, work));
    let reply = deferred.ok_or_else(|| failed("no reactor is running".to_owned()))?;
    let reply = reply.map_err(|error| failed(error.refusal.to_string()))?;
    let outcome = reply.await.map_err(|lost| failed(lost.to_string()))?;
    outcome.map_err(|error| failed(error.to_string()))
}

/// A message and its exit code.
type Reason = (String, u8);

fn failure(error: &Error) -> Reason {
    (error.to_string(), code::of(error))
}

/// The head has arrived: opens the file.
async fn begin(outcome: &mut Outcome, head: &Response, path: Option<PathBuf>, from: u64) -> Result<Target, Reason> {
    let fields = head.fields();
    outcome.status = Some(head.status());
    outcome.final_url = Some(head.url().to_string());
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    outcome.fields = fields.iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
    if head.status() >= 400 {
        return Err((format!("{}: status {}", outcome.url, head.status()), code::STATUS));
    }
    let Some(path) = path else { return Ok(Target::nowhere()) };
    let from = match head.status() {
        206 => {
            let range = fields.text("content-range").unwrap_or_default();
            if from == 0 || !range.starts_with(&format!("bytes {from}-")) {
                let why = format!("{}: the server sent another range: {range:?}", outcome.url);
                return Err((why, code::BAD_RESUME));
            }
            from
        }
        _ => 0,
    };
    // Weak validators do not promise that the bytes are the same.
    let tag = fields.get("etag").filter(|tag| !tag.starts_with(b"W/")).or_else(|| fields.get("last-modified"));
    let (tag, opened) = (tag.map(<[u8]>::to_vec), path.clone());
    let target = at_files(move || Target::open(&opened, from, tag.as_deref())).await?;
    target.map_err(|error| unwritable(&path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Reason {
    (format!("write {}: {error}", path.display()), code::WRITE)
}
