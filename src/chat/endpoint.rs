//! Finding the daemon: the one of the home, the one at `--url`, or one started inside this process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use clawmux_actors::host::bound::socket_path;
use clawmux_core::access::Secret;
use clawmux_core::config::{Cluster, Log, LogFormat};
use clawmux_core::dialect::exoclaw::client as exoclaw;
use tokio::time::timeout;

use super::link::{Endpoint, Link};
use super::link_error::LinkError;
use crate::cli::{Chat, Global};
use crate::daemon::Embedded;
use crate::exit::{FAILED, Failure, USAGE};
use crate::settings::Settings;
use crate::terminal::tell;
use crate::{home, logging, settings};

/// How long to wait for a connection when checking whether a port is in use.
const PROBE: Duration = Duration::from_secs(2);
/// How long to wait for a daemon that is just starting, and how often to try to connect.
const BEGINNING: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);
/// How often it is said that a cluster is still being joined.
const JOINING: Duration = Duration::from_secs(5);

/// A daemon that was found.
pub(super) struct Connected {
    /// Where it is.
    pub(super) endpoint: Endpoint,
    /// The connection to it.
    pub(super) link: Link,
    /// The daemon itself, if this process runs it.
    pub(super) embedded: Option<Embedded>,
}

impl Connected {
    fn at(endpoint: Endpoint, link: Link) -> Self {
        Self { endpoint, link, embedded: None }
    }
}

/// Finds the daemon and connects to it. If none runs on the home, starts one inside this process, even if
/// another program listens on its addresses.
///
/// # Errors
/// Status 69 if the daemon of `--url` is not reachable, 64 if one would have to be started and the
/// configuration is bad, 2 for a `--url` that is none, 1 else.
pub(super) async fn find(global: &Global, options: &Chat) -> Result<Connected, Failure> {
    let token = match &options.token_file {
        Some(path) => Some(token_in(path)?),
        None => std::env::var("CLAWMUX_TOKEN").ok().filter(|token| !token.trim().is_empty()).map(Secret::new),
    };
    if let Some(url) = &options.url {
        if !(url.starts_with("ws://") || url.starts_with("wss://")) {
            let why = format!("--url {url}: expected ws:// or wss://, such as ws://127.0.0.1:18789/ws");
            return Err(Failure::new(USAGE, why));
        }
        let endpoint = Endpoint::Web(url.clone(), token);
        let link = Link::open(&endpoint).await?;
        return Ok(Connected::at(endpoint, link));
    }
    let home = home::resolve(global.home.as_deref(), |name| std::env::var(name).ok())?;
    let socket = socket_path(&home);
    let at_home = Endpoint::Unix(socket.clone());
    match Link::open(&at_home).await {
        Ok(link) => return Ok(Connected::at(at_home, link)),
        Err(LinkError::Refused(failure)) => return Err(failure),
        Err(LinkError::Temporary(_)) => {}
    }
    let settings = settings::read(global, &[])?;
    for warning in &settings.warnings {
        tell(&format!("warning: {warning}"));
    }
    // Nothing shows that it is of this home, so it is named and not used.
    let runs = |address: &&SocketAddr| TcpStream::connect_timeout(&reachable(**address), PROBE).is_ok();
    if let Some(address) = settings.config.gateway.listen.iter().find(runs) {
        tell(&format!(
            "another program listens on {address}; to chat with that one: clawmux chat --url {}",
            url_of(*address)
        ));
    }
    // Whoever chats wants to read the answer, not the daemon's log.
    let quiet = Log { format: LogFormat::Text, filter: "error".into() };
    logging::start(&quiet)?;
    home::create(&settings.home)?;
    embed(&settings, at_home).await
}

/// Starts a daemon in this process, or joins one that has just started.
async fn embed(settings: &Settings, endpoint: Endpoint) -> Result<Connected, Failure> {
    let started = Embedded::start(settings);
    let started = match &settings.config.cluster {
        None => started.await,
        Some(cluster) => joining(cluster, started).await,
    };
    let embedded = match started {
        Ok(embedded) => Some(embedded),
        // Another one holds the home, and has no socket yet.
        Err(_) if home::holder(&settings.home).is_some() => None,
        Err(failure) => return Err(failure),
    };
    let begun = Instant::now();
    loop {
        match Link::open(&endpoint).await {
            Ok(link) => return Ok(Connected { endpoint, link, embedded }),
            Err(LinkError::Temporary(_)) if begun.elapsed() < BEGINNING => tokio::time::sleep(RETRY).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Says that a daemon joins a cluster, and that it still does where that takes long.
async fn joining<T>(cluster: &Cluster, started: impl Future<Output = T>) -> T {
    let (name, node, begun) = (&cluster.name, &cluster.node, Instant::now());
    tell(&format!(
        "no daemon runs on this home: the one of this chat joins the cluster {name:?} as node {node}"
    ));
    let mut started = pin!(started);
    loop {
        match timeout(JOINING, &mut started).await {
            Ok(started) => return started,
            Err(_) => tell(&format!(
                "still joining the cluster {name:?} after {} s, over {}; Ctrl-C leaves",
                begun.elapsed().as_secs(),
                cluster.servers.join(", ")
            )),
        }
    }
}

fn token_in(path: &Path) -> Result<Secret, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(FAILED, format!("cannot read the token in {}: {error}", path.display()))
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(Failure::new(FAILED, format!("{} is empty", path.display())));
    }
    Ok(Secret::new(token))
}

/// The address at which this host reaches a socket bound to `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn url_of(address: SocketAddr) -> String {
    format!("ws://{}{}", reachable(address), exoclaw::PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_reached_where_it_listens() {
        for (bound, url) in [
            ("127.0.0.1:18789", "ws://127.0.0.1:18789/ws"),
            ("0.0.0.0:1", "ws://127.0.0.1:1/ws"),
            ("[::]:2", "ws://[::1]:2/ws"),
            ("10.0.0.1:3", "ws://10.0.0.1:3/ws"),
        ] {
            assert_eq!(url_of(bound.parse().unwrap()), url);
        }
    }
}
