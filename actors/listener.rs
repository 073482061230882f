//! The sockets, and the life of what is connected to them.
//!
//! One timer looks after all connections. A connection whose peer does not read is not polled and
//! its own timers stand still, and one that was closed may linger in the kernel for ever: so what
//! ends a connection is a reading of its [`Link`] from here, and a reset of its socket.
//!
//! | seen | done |
//! |---|---|
//! | silent for `heartbeat_interval` | a WebSocket ping |
//! | silent for `heartbeat_timeout` | `Idle`, then a reset |
//! | further behind the log than `max_buffered_bytes` | `Slow`, then a reset |
//! | output waits and the peer acknowledged nothing for `slow_consumer_timeout` | `Slow`, then a reset |
//! | no request in time over plain HTTP | a reset, should the HTTP server's 408 have failed |
//! | upgraded and no handshake in time | a reset, should its own deadline have failed |
//! | closing for longer than the grace | a reset |
//!
//! When many are gone, the memory they held is given back to the system.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseFuture};
use actix_web::dev::ServerHandle;
use actix_web::rt::net::TcpStream;
use actix_web::{App, HttpServer, web};
use clawmux_core::auth::gate::Gate;
use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use crate::arbiters::Arbiters;
use crate::clock;
use crate::connection::link::{Link, Peer};
use crate::connection::registry::{EXCESS, LEAVING_MAX, Registry};
use crate::connection::{CLOSE_GRACE, Nudge, Protocol, Services};
use crate::control_ui::ControlUi;
use crate::http::{Front, serve};
use crate::memory::Peak;
use crate::metrics::Metrics;
use crate::observe::{Observe, Observed};
use crate::store::Health;

mod unix;

pub use unix::UnixSocket;

use unix::UnixSockets;

/// How long a connection that is being closed may keep its socket.
const RESET_GRACE: Duration = CLOSE_GRACE.saturating_mul(2);

/// How long a connection may be idle between two plain HTTP requests, at most: no longer than it
/// may take for the first.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(15);

/// File descriptors kept for everything that is not a connection that may stay.
const DESCRIPTORS_KEPT: u64 = 256 + 2 * (EXCESS + LEAVING_MAX + unix::CONNECTIONS_MAX) as u64;

/// What a listener starts with.
pub struct ListenerSetup {
    /// Bound sockets, of [`bind`] or passed in.
    pub sockets: Vec<TcpListener>,
    /// Bound Unix sockets.
    pub unix: Vec<UnixSocket>,
    /// What connections are given.
    pub services: Arc<Services>,
    /// The protocols served; see [`PROTOCOLS`](crate::http::PROTOCOLS).
    pub protocols: Vec<Protocol>,
    /// The page that is served at `/`; none = a short text.
    pub control_ui: Option<ControlUi>,
    /// The most connections before their handshake.
    pub unauthenticated: usize,
    /// Threads that serve connections; 0 = one per core.
    pub workers: usize,
    /// Where they enter themselves.
    pub arbiters: Arbiters,
    /// Whether the log can be written, which `/readyz` tells.
    pub log: Health,
    /// What `/metrics` tells; none = nothing.
    pub metrics: Option<Metrics>,
}

/// The actor.
pub struct Listener {
    front: Arc<Front>,
    unix: UnixSockets,
    server: ServerHandle,
    /// Of connections whose output waits: what the peer had acknowledged, and since when.
    waiting: HashMap<ConnectionId, (u64, Timestamp)>,
    peak: Peak,
}

/// From now on connections are taken, or no longer.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Ready(pub bool);

/// Whether `/readyz` says that no new work is taken, though connections are.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Draining(pub bool);

/// Close every connection in its protocol's words, then everything else.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Binds these addresses.
///
/// # Errors
/// Where one can't be bound; the error names it.
pub fn bind(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let bind_one = |address: &SocketAddr| {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(*address),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&(*address).into())?;
        // The kernel takes no more than it is configured to (net.core.somaxconn).
        socket.listen(4096)?;
        Ok(TcpListener::from(socket))
    };
    addresses
        .iter()
        .map(|address| {
            bind_one(address)
                .map_err(|error: io::Error| io::Error::new(error.kind(), cannot_bind(*address, &error)))
        })
        .collect()
}

/// Why, and what to do.
fn cannot_bind(address: SocketAddr, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            ": another program listens there; stop it, or give another address with --listen or gateway.listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            ": no interface of this host has it; see --listen and gateway.listen"
        }
        io::ErrorKind::PermissionDenied => {
            ": ports under 1024 need a privilege; see --listen and gateway.listen"
        }
        _ => "",
    };
    format!("{address}: {error}{advice}")
}

impl Listener {
    /// Serves the sockets; must be called within an actix system. Not ready until [`Ready`] says
    /// so. Returns the listener and its addresses.
    ///
    /// # Errors
    /// Where a socket can't be used.
    pub fn open(setup: ListenerSetup) -> io::Result<(actix::Addr<Self>, Vec<SocketAddr>)> {
        let gateway = &setup.services.gateway;
        let max = match gateway.max_connections {
            0 => room_for_connections(),
            max => max,
        };
        let registry = Registry::new(max, setup.unauthenticated);
        let addresses = setup.sockets.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let front = Arc::new(Front {
            services: setup.services.clone(),
            gate: Gate::new(&addresses, &gateway.allowed_origins),
            addresses: addresses.clone(),
            protocols: setup.protocols,
            registry: registry.clone(),
            control_ui: setup.control_ui,
            ready: AtomicBool::new(false),
            log: setup.log,
            metrics: setup.metrics,
            draining: AtomicBool::new(false),
        });
        let data = web::Data::from(front.clone());
        let arbiters = setup.arbiters;
        let unix = UnixSockets::new(setup.unix, &registry, setup.services.clone(), arbiters.clone())?;
        let workers = match setup.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        let mut server = HttpServer::new(move || {
            arbiters.enter();
            App::new().app_data(data.clone()).default_service(web::to(serve))
        })
        .workers(workers)
        .worker_max_blocking_threads(1)
        // Each; the registry keeps fewer, but can count only what a worker has looked at.
        .max_connections(max.saturating_add(EXCESS + LEAVING_MAX).div_ceil(workers))
        .keep_alive(keep_alive(gateway.handshake_timeout))
        .client_request_timeout(gateway.handshake_timeout)
        .client_disconnect_timeout(CLOSE_GRACE)
        .shutdown_timeout(RESET_GRACE.as_secs())
        .disable_signals()
        .on_connect(move |io, extensions| {
            let Some(io) = io.downcast_ref::<TcpStream>() else { return };
            let accepted = io.peer_addr().and_then(|from| {
                let to = io.local_addr()?;
                registry.accept(io, Peer::Tcp { from, to })
            });
            match accepted {
                Ok(link) => {
                    extensions.insert(link);
                }
                // It left before it was looked at.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    tracing::debug!("connection not entered: {error}");
                }
                Err(error) => tracing::warn!("connection not entered: {error}"),
            }
        });
        for socket in setup.sockets {
            server = server.listen(socket)?;
        }
        let server = server.run();
        let handle = server.handle();
        let (fail, failed) = oneshot::channel();
        actix::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!("http server ended: {error}");
                let _ = fail.send(());
            }
        });
        let listener = Self::create(|ctx| {
            // A listener that hears nothing is no listener: without it the daemon does not go on.
            ctx.spawn(wrap_future::<_, Self>(failed).map(|failed, _, ctx| {
                if failed.is_ok() {
                    ctx.stop();
                }
            }));
            let waiting = HashMap::new();
            Self { front, unix, server: handle, waiting, peak: Peak::new(clock::now()) }
        });
        Ok((listener, addresses))
    }

    /// How often connections are looked at: often enough for the shortest of their deadlines.
    fn interval(&self) -> Duration {
        let gateway = &self.front.services.gateway;
        let deadlines = [
            gateway.heartbeat_interval,
            gateway.heartbeat_timeout,
            gateway.slow_consumer_timeout,
            gateway.handshake_timeout,
        ];
        let shortest = deadlines.into_iter().min().unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn look(&mut self) {
        let now = clock::now();
        let links = links(&self.front.registry, &self.unix.registry);
        for link in &links {
            self.look_at(link, now);
        }
        self.waiting.retain(|id, _| links.binary_search_by_key(id, |link| link.id()).is_ok());
        self.peak.now(links.len(), now);
    }

    fn look_at(&mut self, link: &Link, now: Timestamp) {
        let gateway = &self.front.services.gateway;
        if let Some(since) = link.closing_since() {
            if now.since(since) >= RESET_GRACE {
                link.reset();
            }
            return;
        }
        if link.peer().is_unix() && link.principal().is_none() {
            // It is let in as soon as its arbiter has a moment.
            return;
        }
        if link.dialect().is_none() {
            // Requests are answered at once, so a connection without one under way is idle.
            let (silence, asked) = link.since_request(now);
            let idle = if asked { keep_alive(gateway.handshake_timeout) } else { Duration::ZERO };
            if silence >= gateway.handshake_timeout + idle + RESET_GRACE {
                link.give_up("late", now);
            }
            return;
        }
        if link.principal().is_none() {
            if now.since(link.opened()) >= gateway.handshake_timeout + RESET_GRACE {
                link.give_up("late", now);
            }
            return;
        }
        if link.window().is_lagging() {
            tracing::info!(connection = link.id().0, peer = %link.peer(), "too far behind: closed as slow");
            link.close(Fault::Slow, now);
            return;
        }
        if link.is_blocked() {
            let acknowledged = link.acknowledged_bytes().unwrap_or_else(|| link.taken_bytes());
            let (seen, since) = self.waiting.entry(link.id()).or_insert((acknowledged, now));
            if *seen != acknowledged {
                // What it says itself waits unread as long as it does not take what is there.
                link.heard();
                (*seen, *since) = (acknowledged, now);
            } else if now.since(*since) >= gateway.slow_consumer_timeout {
                tracing::info!(connection = link.id().0, peer = %link.peer(), "takes nothing: closed as slow");
                link.close(Fault::Slow, now);
            }
            return;
        }
        self.waiting.remove(&link.id());
        if link.peer().is_unix() {
            // Consoles are silent for hours, and the kernel tells of a peer that is gone.
            return;
        }
        if link.silence(now) >= gateway.heartbeat_timeout {
            link.close(Fault::Idle, now);
        } else if link.ping_is_due(now, gateway.heartbeat_interval) {
            link.nudge(Nudge::Ping);
        }
    }
}

/// The connections of both registries, the oldest first.
fn links(tcp: &Registry, unix: &Registry) -> Vec<Arc<Link>> {
    let mut links = tcp.links();
    links.extend(unix.links());
    links.sort_unstable_by_key(|link| link.id());
    links
}

fn keep_alive(handshake_timeout: Duration) -> Duration {
    handshake_timeout.min(KEEP_ALIVE_MAX)
}

impl Actor for Listener {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(self.interval(), |listener, _| listener.look());
    }
}

impl Handler<Ready> for Listener {
    type Result = ();

    fn handle(&mut self, Ready(ready): Ready, context: &mut Self::Context) {
        self.front.ready.store(ready, Relaxed);
        if ready {
            self.unix.serve(context);
        }
    }
}

impl Handler<Draining> for Listener {
    type Result = ();

    fn handle(&mut self, Draining(draining): Draining, _: &mut Self::Context) {
        self.front.draining.store(draining, Relaxed);
    }
}

impl Handler<Stop> for Listener {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Stop, context: &mut Self::Context) -> Self::Result {
        self.front.ready.store(false, Relaxed);
        self.unix.stop(context);
        let (tcp, unix) = (self.front.registry.clone(), self.unix.registry.clone());
        let server = self.server.clone();
        Box::pin(async move {
            server.pause().await;
            let all = || links(&tcp, &unix);
            let speaking = || all().into_iter().filter(|link| link.dialect().is_some()).collect::<Vec<_>>();
            let begun = clock::now();
            for link in speaking() {
                link.close(Fault::Draining, begun);
            }
            while !speaking().is_empty() && clock::now().since(begun) < CLOSE_GRACE {
                actix::clock::sleep(Duration::from_millis(10)).await;
            }
            for link in all() {
                link.reset();
            }
            server.stop(true).await;
        })
    }
}

impl Handler<Observe> for Listener {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let registry = &self.front.registry;
        let links = links(registry, &self.unix.registry);
        Observed {
            actor: "listener".into(),
            state: json!({
                "addresses": self.front.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "ready": self.front.ready.load(Relaxed),
                "draining": self.front.draining.load(Relaxed),
                "connections": registry.len(),
                "unix": self.unix.figures(),
                "connections_max": registry.max(),
                "unauthenticated": registry.unauthenticated(),
                "closed": registry.closed(),
                "waiting": self.waiting.len(),
            }),
            children: links
                .iter()
                .map(|link| Observed::leaf(format!("connection {}", link.id().0), link.figures()))
                .collect(),
        }
    }
}

/// How many connections the limit on open files leaves room for: each takes two descriptors. The
/// soft limit is raised to the hard one first.
fn room_for_connections() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: both calls only read or write the struct they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                limit = raised;
            }
        }
    }
    let room = limit.rlim_cur.saturating_sub(DESCRIPTORS_KEPT) / 2;
    usize::try_from(room).unwrap_or(usize::MAX).clamp(16, 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_named_with_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = bind(&[address]).unwrap_err().to_string();
        assert!(error.starts_with(&address.to_string()) && error.contains("--listen"), "{error}");
    }
}
