//! Routes requests to handlers by method and path.

mod mount;
mod spelling;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

use pelton::Reactor;

use crate::wire::Form;
use crate::{Handler, Method, Request, Responder, Response};
pub(crate) use mount::Mount;
use spelling::normal;

/// Routes requests to handlers by method and path.
///
/// A path may have parameters: `/users/{id}` matches any one segment, `/files/{*rest}` all remaining ones.
/// [`Request::parameter`] returns the matched text. Exact segments win over parameters, regardless of the order in which routes
/// are added. Paths are compared with their escapes: `/a%2Fb` is one segment. Only spellings that RFC 3986 calls equivalent
/// match: `/%61` is `/a`, and `%2f` is `%2F`.
///
/// [`mount`](Router::mount) puts a whole handler, such as another router or [`Files`](crate::Files), below a prefix.
///
/// The handler for `GET` also answers `HEAD`, unless that has its own. The router answers `OPTIONS` with the allowed methods. An
/// unknown path gets a 404, an unknown method a 405.
///
/// ```
/// use pelton_http::{Response, Router, plain};
///
/// let router = Router::new()
///     .get("/", plain(|_| "home\n"))
///     .get("/users/{id}", plain(|request| format!("user {}\n", request.parameter("id").unwrap_or_default())))
///     .delete("/users/{id}", plain(|_| Response::new(204)));
/// ```
#[derive(Default)]
pub struct Router {
    /// Indexes into `routes` of paths without parameters, by length and then in order.
    exact: Vec<Vec<(Box<str>, usize)>>,
    /// Indexes into `routes` of paths with parameters.
    patterns: matchit::Router<usize>,
    /// The same, by pattern.
    numbers: HashMap<String, usize>,
    routes: Vec<Route>,
    /// The mounts, most specific first: the first match wins.
    mounts: Vec<Mount>,
    /// The methods of all paths.
    allow: Allow,
    fallback: Option<Box<dyn Handler>>,
}

/// The handlers of one path.
#[derive(Default)]
struct Route {
    /// The pattern as it was added.
    path: Box<str>,
    known: [Option<Box<dyn Handler>>; Method::Other as usize],
    others: Vec<(Box<str>, Box<dyn Handler>)>,
    allow: Allow,
}

/// The value of an `Allow` field.
#[derive(Default)]
struct Allow(String);

impl Allow {
    fn add(&mut self, method: &str) {
        let known = self.0.split(", ").any(|known| known == method);
        if !known {
            if !self.0.is_empty() {
                self.0.push_str(", ");
            }
            self.0.push_str(method);
        }
    }
}

/// A route that cannot be added because its path is malformed or conflicts with another.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("route {path:?}: {why}")]
pub struct BadRoute {
    path: String,
    why: String,
}

impl BadRoute {
    fn new(path: &str, why: impl ToString) -> BadRoute {
        BadRoute { path: path.to_owned(), why: why.to_string() }
    }
}

macro_rules! by_method {
    ($($name:ident $method:literal),* $(,)?) => {
        $(
            #[doc = concat!("Routes `", $method, "` requests for this path to `handler`.")]
            ///
            /// # Panics
            ///
            /// Panics as [`route`](Router::route) does.
            #[must_use]
            pub fn $name(self, path: &str, handler: impl Handler) -> Router {
                self.route($method, path, handler)
            }
        )*
    };
}

impl Router {
    /// Creates a router without routes.
    pub fn new() -> Router {
        Router::default()
    }

    by_method![get "GET", head "HEAD", post "POST", put "PUT", delete "DELETE", patch "PATCH", options "OPTIONS"];

    /// Routes a method and path to `handler`. A later call with the same method and path replaces it.
    ///
    /// # Panics
    ///
    /// If the path is malformed or conflicts with another, as `/{a}` does with `/{b}`. Use [`try_route`](Router::try_route) for
    /// paths that are not constants.
    #[must_use]
    pub fn route(mut self, method: &str, path: &str, handler: impl Handler) -> Router {
        match self.try_route(method, path, handler) {
            Ok(()) => self,
            Err(error) => panic!("{error}"),
        }
    }

    /// Routes a method and path to `handler`. Fails if the path is malformed or conflicts with another.
    pub fn try_route(&mut self, method: &str, path: &str, handler: impl Handler) -> Result<(), BadRoute> {
        if !path.starts_with('/') {
            return Err(BadRoute::new(path, "a path must begin with a slash"));
        }
        let path = &*normal(path);
        let number = self.number_of(path).map_err(|error| BadRoute::new(path, error))?;
        if number == self.routes.len() {
            self.routes.push(Route { path: path.into(), ..Route::default() });
        }
        let route = &mut self.routes[number];
        for allow in [&mut route.allow, &mut self.allow] {
            allow.add(method);
            if method == "GET" {
                allow.add("HEAD");
            }
            allow.add("OPTIONS");
        }
        let handler: Box<dyn Handler> = Box::new(handler);
        match route.known.get_mut(Method::of(method.as_bytes()) as usize) {
            Some(known) => *known = Some(handler),
            None => {
                route.others.retain(|(name, _)| **name != *method);
                route.others.push((method.into(), handler));
            }
        }
        Ok(())
    }

    /// Routes everything below a prefix to `handler`: `/api` is a prefix of `/api`, `/api/` and `/api/users`, but not of
    /// `/apis`. A trailing slash makes no difference, and `/` is a prefix of everything.
    ///
    /// The handler sees the rest as [`Request::path`], which begins with a slash; [`Request::full_path`] returns all of it. It
    /// gets requests with any method and answers unknown paths itself: a router with its own fallback. A segment of the prefix
    /// may be a parameter, which [`Request::parameter`] returns.
    ///
    /// If a path is below several prefixes or also has a route, the first segment that differs decides: text wins over a
    /// parameter, as among routes. If none differs, a route wins over a mount, and a longer prefix over a shorter one. If a route
    /// matches the path but not the method, the client gets a 405.
    ///
    /// ```
    /// use pelton_http::{Files, Router, plain};
    ///
    /// let users = Router::new().get("/", plain(|_| "all\n")).get("/{id}", plain(|request| {
    ///     format!("{} of {}\n", request.parameter("id").unwrap_or_default(), request.parameter("team").unwrap_or_default())
    /// }));
    /// let router = Router::new()
    ///     .mount("/teams/{team}/users", users)
    ///     .mount("/assets", Files::open(".")?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the prefix is malformed or already used. Use [`try_mount`](Router::try_mount) for prefixes that are not constants.
    #[must_use]
    pub fn mount(mut self, prefix: &str, handler: impl Handler) -> Router {
        match self.try_mount(prefix, handler) {
            Ok(()) => self,
            Err(error) => panic!("{error}"),
        }
    }

    /// Routes everything below a prefix to `handler`, as [`mount`](Router::mount) does. Fails if the prefix is malformed or
    /// already used.
    pub fn try_mount(&mut self, prefix: &str, handler: impl Handler) -> Result<(), BadRoute> {
        let mount = Mount::new(&normal(prefix), Box::new(handler)).map_err(|why| BadRoute::new(prefix, why))?;
        match self.mounts.binary_search_by(|known| known.cmp_specific(&mount)) {
            Ok(_) => Err(BadRoute::new(prefix, "the prefix is already used")),
            Err(at) => {
                self.mounts.insert(at, mount);
                Ok(())
            }
        }
    }

    /// The index in `routes` of a path that is being added.
    fn number_of(&mut self, path: &str) -> Result<usize, matchit::InsertError> {
        let new = self.routes.len();
        if path.contains(['{', '}']) {
            if let Some(number) = self.numbers.get(path) {
                return Ok(*number);
            }
            self.patterns.insert(path, new)?;
            self.numbers.insert(path.to_owned(), new);
            return Ok(new);
        }
        self.exact.resize_with(self.exact.len().max(path.len() + 1), Vec::new);
        let same_length = &mut self.exact[path.len()];
        match same_length.binary_search_by(|(known, _)| (**known).cmp(path)) {
            Ok(at) => Ok(same_length[at].1),
            Err(at) => {
                same_length.insert(at, (path.into(), new));
                Ok(new)
            }
        }
    }

    /// The index in `routes` of the path with exactly these bytes.
    #[inline]
    fn find_exact(&self, path: &str) -> Option<usize> {
        let same_length = self.exact.get(path.len())?;
        let at = same_length.binary_search_by(|(known, _)| (**known).cmp(path)).ok()?;
        Some(same_length[at].1)
    }

    /// Whether a route wins over a mount if a path matches both.
    fn is_before(&self, route: usize, mount: &Mount) -> bool {
        mount.cmp_route(&self.routes[route].path) == Ordering::Greater
    }

    /// Routes unknown paths to `handler`, instead of answering 404.
    #[must_use]
    pub fn fallback(mut self, handler: impl Handler) -> Router {
        self.fallback = Some(Box::new(handler));
        self
    }
}

impl Route {
    fn handler(&self, request: &Request<'_>) -> Option<&dyn Handler> {
        let known = |method: Method| self.known.get(method as usize)?.as_deref();
        match request.method() {
            Method::Other => {
                let mut others = self.others.iter();
                others.find(|(name, _)| **name == *request.method_name()).map(|(_, handler)| &**handler)
            }
            Method::Head => known(Method::Head).or_else(|| known(Method::Get)),
            method => known(method),
        }
    }

    fn answer(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        match self.handler(&request) {
            Some(handler) => handler.handle(reactor, request, responder),
            None if request.method() == Method::Options => responder.respond(reactor, allowing(204, &self.allow)),
            None => {
                let refusal = Response::plain_status(405).header("Allow", &self.allow.0);
                responder.respond(reactor, refusal);
            }
        }
    }
}

fn allowing(status: u16, allow: &Allow) -> Response {
    Response::new(status).header("Allow", &allow.0)
}

impl Router {
    /// Answers a request whose path, as sent, is not an exact route.
    fn handle_inexact(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        let path = normal(request.path());
        if let Some(number) = matches!(path, Cow::Owned(_)).then(|| self.find_exact(&path)).flatten() {
            return self.routes[number].answer(reactor, request, responder);
        }
        let by_pattern = self.patterns.at(&path).ok();
        let by_mount = self.mounts.iter().find(|mount| mount.has(&path));
        match (by_pattern, by_mount) {
            (Some(matched), mount) if mount.is_none_or(|mount| self.is_before(*matched.value, mount)) => {
                let found = request.found_by_route(&matched.params);
                self.routes[*matched.value].answer(reactor, request.with_parameters(&found), responder);
            }
            (_, Some(mount)) => {
                // The rest stays as sent. Normalizing does not change the segments.
                let prefix = mount.prefix_of(request.path()).len();
                let found = request.found_by_mount(mount, &path);
                mount.handler.handle(reactor, request.below(prefix).with_parameters(&found), responder);
            }
            _ => match &self.fallback {
                Some(fallback) => fallback.handle(reactor, request, responder),
                None => responder.respond(reactor, Response::plain_status(404)),
            },
        }
    }
}

impl Handler for Router {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        match request.form() {
            // The router does not know which methods mounted handlers allow.
            Form::Asterisk if !self.mounts.is_empty() => return responder.respond(reactor, Response::new(204)),
            Form::Asterisk => return responder.respond(reactor, allowing(204, &self.allow)),
            Form::Authority => return responder.respond(reactor, Response::plain_status(501)),
            Form::Origin | Form::Absolute => {}
        }
        // Fast path: routes are normalized, so an equal path is, too.
        match self.find_exact(request.path()) {
            Some(number) => self.routes[number].answer(reactor, request, responder),
            None => self.handle_inexact(reactor, request, responder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain;

    #[test]
    fn errors_name_the_route() {
        let mut router = Router::new().get("/{a}", plain(|_| ""));
        let mut error = |path: &str| router.try_route("GET", path, plain(|_| "")).unwrap_err().to_string();
        assert!(error("/{b}").contains("\"/{b}\""));
        assert!(error("a").contains("must begin with a slash"));
        assert!(error("/{").contains("\"/{\""));
    }

    #[test]
    fn exact_paths_are_found() {
        let paths = ["/b", "/a", "/", "/ab", "/{c}", "/ba", "/a", "/{c}/d", "/{{e}}"];
        let router = paths.iter().fold(Router::new(), |router, path| router.get(path, plain(|_| "")));
        assert_eq!(router.routes.len(), 8, "one path was added twice");
        for (path, number) in [("/b", 0), ("/a", 1), ("/", 2), ("/ab", 3), ("/ba", 5)] {
            assert_eq!(router.find_exact(path), Some(number), "{path}");
        }
        for other in ["", "/c", "/{c}", "/{{e}}", "/{e}", "/a/", "/aa", "/far longer than any that is there"] {
            assert_eq!(router.find_exact(other), None, "{other}");
        }
        assert_eq!(router.patterns.at("/{e}").map(|found| *found.value), Ok(7));
        assert_eq!(router.patterns.at("/c/d").map(|found| *found.value), Ok(6));
    }

    #[test]
    fn allowed_methods_are_listed_once() {
        let router = Router::new().get("/", plain(|_| "")).post("/", plain(|_| "")).get("/a", plain(|_| ""));
        assert_eq!(router.routes[0].allow.0, "GET, HEAD, OPTIONS, POST");
        assert_eq!(router.allow.0, "GET, HEAD, OPTIONS, POST");
    }
}
