//! Who knows the addresses of a host.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;

/// Looks a host up. A parameter wherever connections are made, so that tests can answer for names.
pub trait Lookup: Send + Sync {
    /// The addresses of this name at this port, the first the one to try first.
    ///
    /// # Errors
    /// Why there are none.
    fn lookup(&self, name: &str, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;
}

/// A shared [`Lookup`].
#[derive(Clone)]
pub struct Resolver(Arc<dyn Lookup>);

impl Resolver {
    /// Answers as `lookup` does.
    pub fn new(lookup: impl Lookup + 'static) -> Self {
        Self(Arc::new(lookup))
    }

    /// The addresses of a host; one told by its number is itself.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host.parse::<IpAddr>() {
            Ok(address) => Ok(vec![SocketAddr::new(address, port)]),
            Err(_) => self.0.lookup(host, port).await,
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Default for Resolver {
    /// The operating system's.
    fn default() -> Self {
        Self::new(System)
    }
}

struct System;

impl Lookup for System {
    fn lookup(&self, name: &str, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let host = name.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}
