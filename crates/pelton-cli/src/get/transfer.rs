//! One download.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pelton::Reactor;
use pelton_http::Method;
use pelton_http::client::{Client, Error, Exchange, Head, ResponseEvent, Url};

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

/// A download in progress.
struct Running {
    outcome: Outcome,
    began: Instant,
    path: Option<PathBuf>,
    /// The interrupted part that the request continues.
    from: u64,
    expected: Option<String>,
    target: Option<Target>,
    exchange: Option<Exchange>,
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
        if self.resume
            && let Some((length, tag)) = path.as_deref().and_then(target::interrupted)
        {
            request = request.header("Range", format!("bytes={length}-")).header("If-Range", tag);
            from = length;
        }
        let outcome = Outcome {
            url: self.url,
            final_url: None,
            status: None,
            fields: Vec::new(),
            path: None,
            bytes: 0,
            sha256: None,
            took: Duration::ZERO,
            error: None,
            code: 0,
        };
        let began = Instant::now();
        let running = Running { outcome, began, path, from, expected: self.sha256, target: None, exchange: None };
        let running = Rc::new(RefCell::new(Some(running)));
        let (own, mut done) = (running.clone(), Some(done));
        let exchange = request.stream(reactor, move |reactor, event| {
            let Some(mut state) = own.take() else { return };
            let is_over = match event {
                ResponseEvent::Head(head) => {
                    let outcome = state.begin(&head);
                    if outcome.is_ok() {
                        let total = head.content_length().map(|length| length + state.resumed_at());
                        received(state.resumed_at(), total);
                    }
                    outcome
                }
                ResponseEvent::Data(data) => {
                    received(data.len() as u64, None);
                    state.write(data)
                }
                ResponseEvent::End(_) => Err(state.finish()),
                ResponseEvent::Failed(error) => Err(Some(failure(&error))),
            };
            match is_over {
                Ok(()) => *own.borrow_mut() = Some(state),
                Err(failure) => {
                    if let Some(exchange) = &state.exchange {
                        exchange.cancel(reactor);
                    }
                    if let Some(done) = done.take() {
                        done(reactor, state.end(failure));
                    }
                }
            }
        });
        if let Some(state) = &mut *running.borrow_mut() {
            state.exchange = Some(exchange);
        }
    }
}

/// A message and its exit code.
type Reason = (String, u8);

fn failure(error: &Error) -> Reason {
    (error.to_string(), code::of(error))
}

impl Running {
    fn resumed_at(&self) -> u64 {
        self.target.as_ref().map_or(0, |target| target.length)
    }

    /// The head has arrived: opens the file.
    fn begin(&mut self, head: &Head<'_>) -> Result<(), Option<Reason>> {
        let fields = head.fields();
        self.outcome.status = Some(head.status());
        self.outcome.final_url = Some(head.url().to_string());
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        self.outcome.fields = fields.iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
        if head.status() >= 400 {
            return Err(Some((format!("{}: status {}", self.outcome.url, head.status()), code::STATUS)));
        }
        let Some(path) = &self.path else {
            self.target = Some(Target::nowhere());
            return Ok(());
        };
        let from = match head.status() {
            206 => {
                let range = fields.text("content-range").unwrap_or_default();
                if self.from == 0 || !range.starts_with(&format!("bytes {}-", self.from)) {
                    let why = format!("{}: the server sent another range: {range:?}", self.outcome.url);
                    return Err(Some((why, code::BAD_RESUME)));
                }
                self.from
            }
            _ => 0,
        };
        // Weak validators do not promise that the bytes are the same.
        let tag = fields.get("etag").filter(|tag| !tag.starts_with(b"W/")).or_else(|| fields.get("last-modified"));
        match Target::open(path, from, tag) {
            Ok(target) => self.target = Some(target),
            Err(error) => return Err(Some(unwritable(path, &error))),
        }
        Ok(())
    }

    fn write(&mut self, data: &[u8]) -> Result<(), Option<Reason>> {
        let Some(target) = &mut self.target else { return Ok(()) };
        let path = self.path.as_deref().unwrap_or(Path::new("-"));
        target.write(data).map_err(|error| Some(unwritable(path, &error)))
    }

    /// The response is complete. Returns why the file is not.
    fn finish(&mut self) -> Option<Reason> {
        let target = self.target.take()?;
        self.outcome.bytes = target.length;
        let path = self.path.clone();
        match target.finish(self.expected.as_deref()) {
            Ok(Ok(hash)) => {
                self.outcome.sha256 = path.is_some().then_some(hash);
                self.outcome.path = path;
                None
            }
            Ok(Err(hash)) => {
                let expected = self.expected.as_deref().unwrap_or_default();
                Some((format!("{}: its SHA-256 is {hash}, not {expected}", self.outcome.url), code::HASH))
            }
            Err(error) => Some(unwritable(path.as_deref().unwrap_or(Path::new("-")), &error)),
        }
    }

    fn end(mut self, failure: Option<Reason>) -> Outcome {
        self.outcome.took = self.began.elapsed();
        if let Some(target) = &self.target {
            self.outcome.bytes = target.length;
        }
        if let Some((error, code)) = failure {
            (self.outcome.error, self.outcome.code) = (Some(error), code);
        }
        self.outcome
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Reason {
    (format!("write {}: {error}", path.display()), code::WRITE)
}
