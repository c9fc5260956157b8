//! Serves the files below a directory.
//!
//! A request passes through these files: `path.rs` decodes its path to a name. `cache.rs` returns the entry for that name, if
//! there is a fresh one. Otherwise a thread of the file lane looks the name up (`lookup.rs`): `root.rs` holds the served
//! directory, `resolve.rs` opens files inside it and nowhere else, and `representation.rs` or `listing.rs` describes the
//! result. `serving.rs` answers, with `multipart.rs` for several ranges and `cold.rs` for files that may not be in the page
//! cache. `open_files.rs` bounds the number of open files. The syntax of ranges, codings and conditions is in
//! [`wire`](crate::wire).

mod cache;
mod cold;
mod listing;
mod lookup;
mod multipart;
mod open_files;
mod path;
mod representation;
mod resolve;
mod root;
mod serving;
mod settings;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use pelton::{DeferFailure, Lane, Reactor};

use cache::{Absence, Cache, Knowledge};
use lookup::{Found, Resource};
use open_files::OpenFiles;
use path::NotAName;
use root::Root;
use serving::Trust;
pub use settings::FileSettings;

use crate::{Handler, KeptRequest, Method, Request, Responder, Response};

/// The methods that this handler supports.
const METHODS: &str = "GET, HEAD, OPTIONS";

/// How long a client is asked to wait when too many look-ups are pending, in seconds.
const RETRY_AFTER: &str = "1";

/// Serves the files below a directory.
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{Files, Server};
///
/// let mut reactor = Reactor::new()?;
/// let server = Server::new(Files::open(".")?);
/// server.listen(&mut reactor, "127.0.0.1:0")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// To serve the files below a prefix, [mount](crate::Router::mount) this handler in a router.
///
/// Responses have an `ETag` and a `Last-Modified` and support conditional and range requests. Small files are cached in
/// memory, and large ones stay open, until [`FileSettings`] require a new look-up. The loop never waits for a disk. Only regular
/// files inside the directory are served, wherever links point. See `docs/static-files.md`.
///
/// Clones share one cache. Each reactor needs its own instance.
#[derive(Clone)]
pub struct Files {
    site: Rc<Site>,
}

struct Site {
    root: Arc<Root>,
    settings: Arc<FileSettings>,
    open: Arc<OpenFiles>,
    cache: RefCell<Cache>,
    /// Names that are being looked up.
    pending: RefCell<HashMap<Box<[u8]>, Pending>>,
    /// A buffer for decoded names, reused between requests.
    name: Cell<Vec<u8>>,
    /// A timer is set that removes unused entries.
    sweeping: Cell<bool>,
}

/// A name that is being looked up.
struct Pending {
    /// The cached resource, if there was one.
    known: Option<Rc<Resource>>,
    waiting: Vec<(KeptRequest, Responder)>,
}

impl Files {
    /// Serves the files below `directory`, with the default [settings](FileSettings).
    pub fn open(directory: impl AsRef<Path>) -> io::Result<Files> {
        Files::with_settings(directory, FileSettings::default())
    }

    /// Serves the files below `directory`.
    pub fn with_settings(directory: impl AsRef<Path>, mut settings: FileSettings) -> io::Result<Files> {
        let directory = directory.as_ref();
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("serve the files of {}: {error}", directory.display()))
        };
        if settings.cache_control.as_ref().is_some_and(|text| !text.bytes().all(crate::wire::token::is_field_value)) {
            let text = format!("invalid Cache-Control {:?}", settings.cache_control.unwrap_or_default());
            return Err(named(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        // Leave descriptors for files that are being sent.
        settings.open = settings.open.min(settings.descriptors / 2);
        let site = Site {
            root: Arc::new(Root::open(directory, (!settings.pinned).then_some(settings.valid)).map_err(named)?),
            open: Arc::new(OpenFiles::new(settings.descriptors)),
            settings: Arc::new(settings),
            cache: RefCell::new(Cache::new()),
            pending: RefCell::default(),
            name: Cell::default(),
            sweeping: Cell::default(),
        };
        Ok(Files { site: Rc::new(site) })
    }
}

impl Handler for Files {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        match request.method() {
            Method::Get | Method::Head => {}
            Method::Options => return responder.respond(reactor, Response::new(204).header("Allow", METHODS)),
            _ => return responder.respond(reactor, Response::plain_status(405).header("Allow", METHODS)),
        }
        // The path is the mount's prefix without its slash. Redirect to the slash, or relative links in the page would break.
        if request.path() == "/" && !request.full_path().ends_with('/') {
            return answer_absent(reactor, Absence::Directory, &request, responder);
        }
        let mut name = self.site.name.take();
        match path::decode(request.path(), self.site.settings.hidden_files(), &mut name) {
            Ok(()) => {
                let known = self.site.cache.borrow_mut().get(&name, reactor.now());
                match known {
                    Knowledge::Fresh(resource) => {
                        let answered = self.site.answer(reactor, &resource, Trust::Kept, &request, responder);
                        if let Err(responder) = answered {
                            self.site.look_up(reactor, &name, Some(resource), &request, responder);
                        }
                    }
                    Knowledge::Absent(absence) => answer_absent(reactor, absence, &request, responder),
                    Knowledge::Stale(resource) => {
                        self.site.look_up(reactor, &name, Some(resource), &request, responder)
                    }
                    Knowledge::Nothing => self.site.look_up(reactor, &name, None, &request, responder),
                }
            }
            Err(NotAName::Malformed) => responder.respond(reactor, Response::plain_status(400)),
            Err(NotAName::Nothing) => responder.respond(reactor, Response::plain_status(404)),
        }
        self.site.name.set(name);
    }
}

impl Site {
    /// Answers with the cached resource, unless it must be looked up again.
    fn answer(
        &self,
        reactor: &mut Reactor,
        resource: &Rc<Resource>,
        trust: Trust,
        request: &Request<'_>,
        responder: Responder,
    ) -> Result<(), Responder> {
        match &resource.listing {
            Some(listing) if !request.prefix().is_empty() => {
                let below = Rc::new(listing.resource(request.prefix(), &self.settings));
                serving::answer(reactor, &below, trust, request, responder)
            }
            _ => serving::answer(reactor, resource, trust, request, responder),
        }
    }

    /// Looks up a name, once for all requests that wait for it.
    fn look_up(
        self: &Rc<Site>,
        reactor: &mut Reactor,
        name: &[u8],
        known: Option<Rc<Resource>>,
        request: &Request<'_>,
        responder: Responder,
    ) {
        let waiting = (request.keep(), responder);
        let mut all = self.pending.borrow_mut();
        if let Some(pending) = all.get_mut(name) {
            return pending.waiting.push(waiting);
        }
        let stamps = known.as_ref().and_then(|known| known.stamps);
        all.insert(name.into(), Pending { known, waiting: vec![waiting] });
        drop(all);
        let (root, settings, own): (_, _, Box<[u8]>) = (self.root.clone(), self.settings.clone(), name.into());
        let open = self.open.clone();
        let (site, looked_up, now): (_, Box<[u8]>, _) = (self.clone(), name.into(), reactor.now());
        let deferred = reactor.defer(
            Lane::Files,
            move || lookup::look_up(&root, now, &own, stamps, &settings, &open),
            move |reactor, outcome| site.finish_look_up(reactor, looked_up, outcome),
        );
        if let Err(error) = deferred {
            tracing::warn!(%error, "file not looked up");
            let Some(Pending { known, waiting }) = self.pending.borrow_mut().remove(name) else { return };
            for (request, responder) in waiting {
                // The known file is old, not necessarily out of date.
                let known = known.clone().ok_or(Absence::Status(503));
                self.answer_waiting(reactor, &known, Trust::Kept, &request.get(), responder);
            }
        }
    }

    /// Answers a request that waited for a look-up.
    fn answer_waiting(
        &self,
        reactor: &mut Reactor,
        found: &Result<Rc<Resource>, Absence>,
        trust: Trust,
        request: &Request<'_>,
        responder: Responder,
    ) {
        match found {
            Ok(resource) => {
                if let Err(responder) = self.answer(reactor, resource, trust, request, responder) {
                    responder.respond(reactor, overloaded());
                }
            }
            Err(absence) => answer_absent(reactor, *absence, request, responder),
        }
    }

    fn finish_look_up(self: &Rc<Site>, reactor: &mut Reactor, name: Box<[u8]>, outcome: Result<Found, DeferFailure>) {
        let Some(pending) = self.pending.borrow_mut().remove(&name) else { return };
        let (now, settings) = (reactor.now(), &self.settings);
        // The look-up failed for lack of descriptors or memory. If the file is known and unchanged, it is served a while
        // longer.
        let failed = matches!(outcome, Ok(Found::Nothing(503)));
        let trust = if failed { Trust::Kept } else { Trust::LookedUp };
        let found = match (outcome, pending.known) {
            (Ok(Found::File(resource)), _) => Ok(Rc::from(resource)),
            (Ok(Found::Same), Some(known)) => Ok(known),
            (Ok(Found::Nothing(503)), Some(known)) => Ok(known),
            (Ok(Found::Directory), _) => Err(Absence::Directory),
            (Ok(Found::Nothing(status)), _) => Err(Absence::Status(status)),
            (Ok(Found::Same) | Err(_), _) => Err(Absence::Status(500)),
        };
        match &found {
            Ok(resource) => self.cache.borrow_mut().found(name, resource.clone(), now, settings),
            // The error may be temporary.
            Err(Absence::Status(500..)) => self.cache.borrow_mut().forget(&name),
            Err(absence) => self.cache.borrow_mut().absent(name, *absence, now, settings),
        }
        self.sweep_later(reactor);
        for (request, responder) in pending.waiting {
            self.answer_waiting(reactor, &found, trust, &request.get(), responder);
        }
    }

    /// Schedules the removal of unused entries.
    fn sweep_later(self: &Rc<Site>, reactor: &mut Reactor) {
        if self.sweeping.replace(true) {
            return;
        }
        let site = Rc::downgrade(self);
        reactor.after(self.settings.idle, move |reactor| {
            let Some(site) = site.upgrade() else { return };
            site.sweeping.set(false);
            let left = site.cache.borrow_mut().sweep(reactor.now(), &site.settings);
            if left {
                site.sweep_later(reactor);
            }
        });
    }
}

/// The response when too many look-ups or reads are pending.
fn overloaded() -> Response {
    Response::plain_status(503).header("Retry-After", RETRY_AFTER)
}

fn answer_absent(reactor: &mut Reactor, absence: Absence, request: &Request<'_>, responder: Responder) {
    let response = match absence {
        Absence::Status(503) => overloaded(),
        Absence::Status(status) => Response::plain_status(status),
        Absence::Directory => {
            // The location begins with a single slash (two would name another host), because neither file names nor prefixes
            // have empty segments.
            let query = request.query().map_or(String::new(), |query| format!("?{query}"));
            Response::redirect(301, &format!("{}/{query}", request.full_path())).header("Cache-Control", "no-cache")
        }
    };
    responder.respond(reactor, response);
}
