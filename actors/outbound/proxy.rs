//! The proxies of the environment, and how one is asked for a connection to a server (RFC 9110, 9.3.6).
//!
//! Only calls of model providers go through them. The requests of plugins, channels and MCP servers are held
//! against grants by the address that is connected to, which by a proxy nobody would know: they are made directly
//! or not at all.

use std::fmt;
use std::io;
use std::sync::LazyLock;

use clawmux_core::provider::proxy::{Proxies, Proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How large the head of a proxy's answer may be, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// How many header fields it may have.
const FIELDS_MAX: usize = 96;

/// What the environment of this process says of proxies.
pub(crate) fn of_environment() -> &'static Proxies {
    static PROXIES: LazyLock<Proxies> =
        LazyLock::new(|| Proxies::of_environment(|name| std::env::var(name).ok()));
    &PROXIES
}

/// Why there is no connection by way of a proxy. The inner error of an [`io::Error`].
#[derive(Debug)]
pub(crate) enum ProxyFault {
    /// It is not reached.
    Unreached(io::Error),
    /// It wants to know who asks, or does not like what it was told.
    WantsUser,
    /// It does not connect to that server: the status and its words.
    Refused(u16, String),
    /// It does not speak as proxies do.
    NoProxy,
}

impl ProxyFault {
    /// Told of this proxy.
    pub(crate) fn of(self, proxy: &Proxy) -> io::Error {
        let kind = match &self {
            Self::Unreached(why) => why.kind(),
            _ => io::ErrorKind::Other,
        };
        let Proxy { variable, host, port, .. } = proxy;
        let proxy = format!("{host}:{port}, which {variable} names");
        io::Error::new(kind, ProxyFailed { proxy, fault: self })
    }
}

/// A [`ProxyFault`], and whose.
#[derive(Debug)]
pub(crate) struct ProxyFailed {
    proxy: String,
    pub(crate) fault: ProxyFault,
}

impl ProxyFailed {
    /// Whether this is what went wrong.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for ProxyFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxy = &self.proxy;
        match &self.fault {
            ProxyFault::Unreached(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
                write!(f, "connection refused by the proxy at {proxy}: does it run?")
            }
            ProxyFault::Unreached(why) => write!(f, "the proxy at {proxy} is not reached: {why}"),
            ProxyFault::WantsUser => {
                write!(
                    f,
                    "the proxy at {proxy}, wants a user and a password, http://USER:PASSWORD@HOST:PORT, or others"
                )
            }
            ProxyFault::Refused(status, words) => {
                write!(f, "the proxy at {proxy}, does not connect to it: {status} {words}")
            }
            ProxyFault::NoProxy => write!(f, "what is at {proxy}, does not answer as a proxy does"),
        }
    }
}

impl std::error::Error for ProxyFailed {}

/// Has a proxy connect to a server. What is read and written afterwards is the server's.
///
/// # Errors
/// Why it does not.
pub(crate) async fn connect(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), ProxyFault> {
    let server = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n");
    if let Some(authorization) = &proxy.authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization.expose());
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    tcp.write_all(request.as_bytes()).await.map_err(ProxyFault::Unreached)?;
    let mut head = Vec::new();
    loop {
        // Nothing but the head is to be read: what follows is the server's, who says nothing before it is asked.
        match tcp.read_buf(&mut head).await.map_err(ProxyFault::Unreached)? {
            0 => return Err(ProxyFault::NoProxy),
            _ if head.len() > HEAD_BYTES_MAX => return Err(ProxyFault::NoProxy),
            _ => {}
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut answer = httparse::Response::new(&mut fields);
        match answer.parse(&head) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(bytes)) => {
                return match answer.code {
                    Some(200..=299) if bytes == head.len() => Ok(()),
                    Some(407) => Err(ProxyFault::WantsUser),
                    Some(status @ 300..) => Err(ProxyFault::Refused(status, shown(answer.reason))),
                    _ => Err(ProxyFault::NoProxy),
                };
            }
            Err(_) => return Err(ProxyFault::NoProxy),
        }
    }
}

/// The words of a status line, bounded.
fn shown(reason: Option<&str>) -> String {
    reason.unwrap_or_default().chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use clawmux_core::access::Secret;
    use tokio::net::TcpListener;

    use super::*;

    /// What a proxy that says this is asked, and what comes of it.
    async fn asked(says: &'static [&'static str], host: &str) -> (String, Result<(), ProxyFault>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = actix::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.set_nodelay(true).unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                socket.read_buf(&mut request).await.unwrap();
            }
            for piece in says {
                socket.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            String::from_utf8(request).unwrap()
        });
        let proxy = Proxy {
            variable: "HTTPS_PROXY",
            host: "127.0.0.1".into(),
            port: address.port(),
            authorization: Some(Secret::new("Basic geheim")),
        };
        let mut tcp = TcpStream::connect(address).await.unwrap();
        let connected = connect(&mut tcp, &proxy, host, 443).await;
        (server.await.unwrap(), connected)
    }

    #[actix::test]
    async fn a_tunnel_is_asked_for_and_begins_after_the_head() {
        let (request, connected) =
            asked(&["HTTP/1.1 200 Connection ", "established\r\nVia: x\r", "\n\r\n"], "a.example").await;
        connected.unwrap();
        assert_eq!(
            request,
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nProxy-Authorization: Basic geheim\r\n\r\n"
        );
        let (request, _) = asked(&["HTTP/1.0 200 OK\r\n\r\n"], "2001:db8::1").await;
        assert!(request.starts_with("CONNECT [2001:db8::1]:443 HTTP/1.1\r\n"), "{request}");
    }

    #[actix::test]
    async fn what_a_proxy_does_not_do_is_told() {
        for (says, told) in [
            (&["HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\n\r\n"][..], "wants a user and a password"),
            (
                &["HTTP/1.1 403 Not here\r\nContent-Length: 2\r\n\r\nno"],
                "does not connect to it: 403 Not here",
            ),
            (&["HTTP/1.1 502 \r\n\r\n"], "does not connect to it: 502"),
            (&["HTTP/1.1 100 Continue\r\n\r\n"], "does not answer as a proxy does"),
            (&["HTTP/1.1 200 OK\r\n\r\nhello"], "does not answer as a proxy does"),
            (&["SSH-2.0-OpenSSH\r\n"], "does not answer as a proxy does"),
            (&["HTTP/1.1 200"], "does not answer as a proxy does"),
            (&[], "does not answer as a proxy does"),
        ] {
            let (_, connected) = asked(says, "a.example").await;
            let proxy = Proxy { variable: "HTTPS_PROXY", host: "p".into(), port: 8, authorization: None };
            let error = connected.unwrap_err().of(&proxy);
            assert!(ProxyFailed::of(&error).is_some());
            let words = error.to_string();
            assert!(
                words.contains("p:8, which HTTPS_PROXY names") && words.contains(told),
                "{says:?}: {words}"
            );
        }
    }
}
