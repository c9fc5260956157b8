//~ error[E0277]: `String` is not a request handler
//~ a handler closure takes `(&mut Reactor, Request<'_>, Responder)`; write these types out
//~ use `plain(|request| ...)` for a function from a request to a response
//~ use `spawned`, `promised`, `deferred` or `pooled` to answer later

fn main() {
    let _server = pelton_http::Server::new(String::new());
}
