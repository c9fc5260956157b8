//! may_minihttp: a coroutine per connection, on one worker thread.

use std::io;
use std::net::Ipv4Addr;

use anyhow::{Result, anyhow};
use may_minihttp::{HttpService, HttpServiceFactory, Request, Response};

use super::{HELLO, announce, free_port};

struct Hello;

impl HttpService for Hello {
    fn call(&mut self, request: Request, response: &mut Response) -> io::Result<()> {
        if request.path() == "/hello" {
            response.header("Content-Type: text/plain; charset=utf-8");
            response.body(HELLO);
        } else {
            response.status_code(404, "Not Found");
        }
        Ok(())
    }
}

struct Hellos;

impl HttpServiceFactory for Hellos {
    type Service = Hello;

    fn new_service(&self, _: usize) -> Hello {
        Hello
    }
}

pub fn serve() -> Result<()> {
    may::config().set_workers(1);
    let port = free_port()?;
    let server = Hellos.start((Ipv4Addr::LOCALHOST, port))?;
    announce(port)?;
    server.join().map_err(|_| anyhow!("the server has panicked"))
}
