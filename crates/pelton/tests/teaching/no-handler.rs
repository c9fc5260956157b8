//~ error[E0277]: `String` does not handle requests
//~ a closure that handles requests takes `(&mut Reactor, Request<'_>, Responder)`, with these types written out
//~ a function from a request to a response becomes a handler by `plain(|request| ...)`
//~ for answers that come later there are `spawned`, `promised`, `deferred` and `pooled`

fn main() {
    let _server = pelton_http::Server::new(String::new());
}
