//! Begins TLS: on a new connection, or in the middle of a stream.

use std::io;

use pelton::net::Stream;
use pelton::{Address, Connection, ConnectionId, Endpoint, Error, Io, Layered, ListenerId, Reactor};

use crate::{Client, ConnectError, Server, Tls};

/// Listens on `address`, with TLS on every connection. Handlers are opened when the handshake is complete.
///
/// This is [`Reactor::listen`] with [`Server::wrap`], which works with every other way to listen as well.
#[track_caller]
pub fn listen<C: Connection>(
    reactor: &mut Reactor,
    address: impl TryInto<Address, Error: Into<Error>>,
    tls: &Server,
    mut serve: impl FnMut(&mut Reactor) -> C + 'static,
) -> Result<ListenerId, Error> {
    let tls = tls.clone();
    reactor.listen(address, move |reactor| tls.wrap(serve(reactor)))
}

/// Connects to a name or address, such as `example.org:443`, with TLS. The handler is opened when the handshake is
/// complete. The server's certificate has to be valid for the name.
///
/// This is [`Reactor::connect_to`] with [`Client::wrap`], which works with every other way to connect as well.
#[track_caller]
pub fn connect(
    reactor: &mut Reactor,
    target: impl TryInto<Endpoint, Error: Into<Error>>,
    tls: &Client,
    handler: impl Connection,
) -> Result<ConnectionId, ConnectError> {
    let target = target.try_into().map_err(Into::into)?;
    let layer = tls.layer_to(&target)?;
    Ok(reactor.connect_to(target, Layered::new(handler, move |io| io.push_layer(layer)))?)
}

/// Connects an asynchronous stream to a name or address, such as `example.org:443`, with TLS. The server's certificate has
/// to be valid for the name.
///
/// ```no_run
/// use futures::{AsyncReadExt, AsyncWriteExt};
/// use pelton::Reactor;
/// use pelton_tls::Client;
///
/// let tls = Client::new()?;
/// let mut reactor = Reactor::new()?;
/// let answer = reactor.block_on(async {
///     let mut stream = pelton_tls::connect_stream("example.org:443", &tls).await?;
///     stream.write_all(b"GET / HTTP/1.0\r\nHost: example.org\r\n\r\n").await?;
///     let mut answer = String::new();
///     stream.read_to_string(&mut answer).await?;
///     Ok::<_, std::io::Error>(answer)
/// })??;
/// println!("{answer}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn connect_stream<E>(target: E, tls: &Client) -> io::Result<Stream>
where
    E: TryInto<Endpoint, Error: Into<Error>>,
{
    let target = target.try_into().map_err(Into::into)?;
    let layer = tls.layer_to(&target).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let stream = Stream::connect_to(target).await?;
    stream.push_layer(layer).await?;
    Ok(stream)
}

/// Begins TLS in the middle of a stream (STARTTLS), on either side.
///
/// ```
/// use pelton::{Chunk, Connection, Io};
/// use pelton_tls::{Server, StartTls};
///
/// struct Mail {
///     tls: Server,
/// }
///
/// impl Connection for Mail {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         if &*chunk == b"STARTTLS\r\n" {
///             io.send(b"220 go ahead\r\n").ok();
///             io.start_tls(self.tls.layer());
///         }
///     }
///
///     fn layer_ready(&mut self, io: &mut Io<'_>) {
///         // From here on, everything is encrypted.
///         io.send(b"250 welcome\r\n").ok();
///     }
/// }
/// ```
pub trait StartTls {
    /// Begins TLS with a layer that [`Server::layer`] or [`Client::layer`] has made. Bytes sent before go out as they are,
    /// those sent later are encrypted. [`layer_ready`](Connection::layer_ready) is called when the handshake is complete.
    ///
    /// A handler that has received bytes of the handshake already uses
    /// [`push_layer_with_unread`](Io::push_layer_with_unread).
    ///
    /// A command that the peer has sent in the clear together with its first bytes must not be executed as if it were
    /// encrypted: drop what was received but not handled, or pass it as unread.
    fn start_tls(&mut self, tls: Tls);
}

impl StartTls for Io<'_> {
    fn start_tls(&mut self, tls: Tls) {
        self.push_layer(tls);
    }
}

/// Begins TLS on an asynchronous stream, on either side.
pub trait StartTlsStream {
    /// Begins TLS with a layer that [`Server::layer`] or [`Client::layer`] has made. The future completes with the
    /// handshake.
    fn start_tls(&self, tls: Tls) -> impl Future<Output = io::Result<()>>;
}

impl StartTlsStream for Stream {
    fn start_tls(&self, tls: Tls) -> impl Future<Output = io::Result<()>> {
        self.push_layer(tls)
    }
}
