//! How connections are made: to an address that was looked at, TCP without delay, by way of a proxy where there
//! is one, TLS where the server has it, and above all [`Beginning`] and [`CloseDelimited`].
//!
//! The TLS is made here since awc's own would be above whatever a connector gives it, and the heads of
//! responses can only be seen below awc and above TLS. So awc is told `http` for every server, and
//! which of them are reached by TLS is decided by the client alone: one that has a TLS configuration
//! never makes a connection without.
//!
//! A name is resolved once, and a connection is made to the addresses of that answer: what a name means a
//! moment later plays no part.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use actix_tls::connect::{ConnectError, ConnectInfo, Connection};
use actix_web::dev::Service;
use actix_web::rt::net::{ActixStream, Ready};
use awc::http::Uri;
use awc::http::uri::{Authority, Scheme};
use clawmux_core::provider::proxy::Proxy;
use clawmux_core::tools::plugin::{Denied, HttpGrant};
use futures::future::LocalBoxFuture;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::beginning::Beginning;
use super::close_delimited::CloseDelimited;
use super::proxy::{self, ProxyFault};
use super::resolver::Resolver;

/// What awc is given for a server reached by TLS: the same URL by the scheme `http`, its port named.
/// What is no such URL stays as it is, for awc to refuse.
pub(crate) fn below_tls(url: &str) -> String {
    let rewritten = || {
        let mut parts = url.parse::<Uri>().ok()?.into_parts();
        let authority = parts.authority?;
        parts.authority = Some(match authority.port_u16() {
            Some(_) => authority,
            None => format!("{}:443", authority.as_str().trim_end_matches(':')).parse::<Authority>().ok()?,
        });
        parts.scheme = Some(Scheme::HTTP);
        Uri::from_parts(parts).ok()
    };
    rewritten().map_or_else(|| url.to_owned(), |uri| uri.to_string())
}

/// What awc is given for a server reached through a proxy without TLS: a URL whose path is all of it, since that
/// is how a proxy is asked (RFC 9112, 3.2.2). None for what is no URL.
pub(crate) fn through_proxy(url: &str) -> Option<Uri> {
    let mut parts = url.parse::<Uri>().ok()?.into_parts();
    let (scheme, authority) = (parts.scheme.as_ref()?, parts.authority.as_ref()?);
    let path = parts.path_and_query.as_ref().map_or("/", |path| path.as_str());
    parts.path_and_query = Some(format!("{scheme}://{authority}{path}").parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Connects, each time to the first address of the host that answers.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    /// Connections are made with TLS where it is there.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Connections are made by way of it where it is there.
    pub(crate) proxy: Option<Proxy>,
    /// For the resolution and the connection together, and again for a proxy's connection and the TLS handshake
    /// together.
    pub(crate) deadline: Duration,
    /// Who knows the addresses of a name.
    pub(crate) resolver: Resolver,
    /// Which addresses may be connected to; none = all.
    pub(crate) within: Option<HttpGrant>,
    /// Whether a body that is cut off is an error.
    pub(crate) refuses_cut: bool,
}

/// A connection as awc has it.
pub(crate) type Stream = CloseDelimited<Beginning<Transport>>;

impl Service<ConnectInfo<Uri>> for Dial {
    type Response = Connection<Uri, Stream>;
    type Error = ConnectError;
    type Future = LocalBoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&self, info: ConnectInfo<Uri>) -> Self::Future {
        let Self { tls, proxy, deadline, resolver, within, refuses_cut } = self.clone();
        Box::pin(async move {
            let (uri, port) = (info.request().clone(), info.port());
            let host = uri.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let late =
                |what: &str| io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {deadline:?}"));
            let tcp = async {
                let (host, port) = proxy.as_ref().map_or((&*host, port), |proxy| (&*proxy.host, proxy.port));
                let found = resolver.lookup(host, port).await;
                connect(reachable(found.map_err(|why| ConnectError::Resolver(why.into()))?, within)?).await
            };
            let tcp =
                timeout(deadline, tcp).await.unwrap_or_else(|_| Err(ConnectError::Io(late("not connected"))));
            let tcp = match &proxy {
                Some(proxy) => {
                    tcp.map_err(|why| ConnectError::Io(ProxyFault::Unreached(in_io(why)).of(proxy)))?
                }
                None => tcp?,
            };
            let transport = match tls {
                None => Transport::Plain(tcp),
                Some(config) => {
                    let secured = timeout(deadline, secured(tcp, proxy.as_ref(), config, host, port)).await;
                    let secured = secured.unwrap_or_else(|_| Err(late("tls: no handshake")));
                    Transport::Tls(Box::new(secured.map_err(ConnectError::Io)?))
                }
            };
            let stream = CloseDelimited::new(Beginning::new(transport));
            Ok(Connection::new(uri, if refuses_cut { stream.refusing_cut_bodies() } else { stream }))
        })
    }
}

/// TLS with a server, by way of a proxy where there is one.
async fn secured(
    mut tcp: TcpStream,
    proxy: Option<&Proxy>,
    config: Arc<ClientConfig>,
    host: String,
    port: u16,
) -> io::Result<TlsStream<TcpStream>> {
    if let Some(proxy) = proxy {
        proxy::connect(&mut tcp, proxy, &host, port).await.map_err(|why| why.of(proxy))?;
    }
    let name = ServerName::try_from(host).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    TlsConnector::from(config).connect(name, tcp).await
}

/// The same as an I/O error.
fn in_io(error: ConnectError) -> io::Error {
    match error {
        ConnectError::Io(why) => why,
        ConnectError::Resolver(why) => io::Error::other(format!("host not found ({why})")),
        why => io::Error::other(why.to_string()),
    }
}

/// Those of a host's addresses that may be connected to.
///
/// # Errors
/// [`Denied`] where there are only others.
fn reachable(found: Vec<SocketAddr>, within: Option<HttpGrant>) -> Result<Vec<SocketAddr>, ConnectError> {
    let Some(grant) = within else { return Ok(found) };
    let denied = found.iter().find(|address| !grant.reaches(address.ip())).copied();
    let reachable: Vec<SocketAddr> =
        found.into_iter().filter(|address| grant.reaches(address.ip())).collect();
    match denied {
        Some(address) if reachable.is_empty() => {
            let why = Denied::Private(address.ip()).to_string();
            Err(ConnectError::Io(io::Error::new(io::ErrorKind::PermissionDenied, why)))
        }
        _ => Ok(reachable),
    }
}

async fn connect(addresses: Vec<SocketAddr>) -> Result<TcpStream, ConnectError> {
    let mut failed = ConnectError::NoRecords;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // A request is not to wait for an acknowledgement.
                stream.set_nodelay(true).map_err(ConnectError::Io)?;
                return Ok(stream);
            }
            Err(why) => failed = ConnectError::Io(io::Error::new(why.kind(), Unconnected { address, why })),
        }
    }
    Err(failed)
}

/// No connection to an address. The inner error of an [`io::Error`], told without the address: it is for those
/// who may know it.
#[derive(Debug)]
pub(crate) struct Unconnected {
    pub(crate) address: SocketAddr,
    why: io::Error,
}

impl Unconnected {
    /// Whether this is what went wrong.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl std::error::Error for Unconnected {}

/// A connection's bytes, as the server sends them.
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Plain(_)) { "Plain" } else { "Tls" })
    }
}

impl Drop for Transport {
    /// Says goodbye where that can be done at once: awc drops what it takes for plain TCP.
    fn drop(&mut self) {
        if let Self::Tls(tls) = self
            && tokio::runtime::Handle::try_current().is_ok()
        {
            let _ = Pin::new(tls).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// Asked only by a TLS above, which there is none of.
impl ActixStream for Stream {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(self.below().below().tcp(), cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(self.below().below().tcp(), cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_https_is_named() {
        for (url, below) in [
            ("https://a.example/v1/messages?x=1", "http://a.example:443/v1/messages?x=1"),
            ("HTTPS://a.example:8443/v1", "http://a.example:8443/v1"),
            ("https://[::1]/v1", "http://[::1]:443/v1"),
            ("https://[::1]:80/v1", "http://[::1]:80/v1"),
            ("https:// no", "https:// no"),
            ("https://", "https://"),
        ] {
            assert_eq!(below_tls(url), below, "{url}");
        }
    }

    #[test]
    fn a_proxy_is_told_the_whole_url() {
        for (url, path) in [
            ("http://a.example/v1/messages?x=1", "http://a.example/v1/messages?x=1"),
            ("http://a.example:8080", "http://a.example:8080/"),
            ("http://[2001:db8::1]:80/v1", "http://[2001:db8::1]:80/v1"),
        ] {
            let uri = through_proxy(url).unwrap();
            assert_eq!(uri.path_and_query().unwrap().as_str(), path, "{url}");
            assert_eq!(
                uri.authority(),
                url.parse::<Uri>().unwrap().authority(),
                "{url}: connections are its own"
            );
        }
        assert_eq!((through_proxy("/v1"), through_proxy("http:// no")), (None, None));
    }
}
