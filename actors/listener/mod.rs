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
//! | a message is not complete after `message_timeout` | `Incomplete`, then a reset |
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
use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, MessageResult,
    ResponseFuture, SpawnHandle,
};
use actix_web::dev::ServerHandle;
use clawmux_core::access::gate::Gate;
use clawmux_core::config::Gateway;
use clawmux_core::daemon::health::Condition;
use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use crate::channel_supervisor::Webhooks;
use crate::connection::link::{Link, Peer};
use crate::connection::registry::{EXCESS, LEAVING_MAX, Registry};
use crate::connection::{CLOSE_GRACE, ConnectionControl, Protocol, Services};
use crate::host::bound::UnixSocket;
use crate::host::heap::Peak;
use crate::host::open_files;
use crate::host::socket_owner::{self, Means, own_user};
use crate::http::control_ui::ControlUi;
use crate::http::metrics::Metrics;
use crate::http::{Front, Stage};
use crate::runtime::arbiters::Arbiters;
use crate::runtime::clock;
use crate::runtime::observe::{Observe, Observed};
use crate::store::Health;

mod server;
mod unix;
mod upgraded;

use unix::UnixSockets;

/// How long a connection that is being closed may keep its socket.
const RESET_GRACE: Duration = CLOSE_GRACE.saturating_mul(2);

/// How long after a pause a connection may still come.
const PAUSE_GRACE: Duration = Duration::from_millis(50);

/// How long somebody who was taken just before the daemon stops has to ask for something.
const FRESH_GRACE: Duration = Duration::from_secs(1);

/// How long an answer over plain HTTP may be under way then.
const ANSWER_GRACE: Duration = Duration::from_millis(100);

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
    /// The most connections of one principal.
    pub connections: usize,
    /// Threads that serve connections; 0 = one per core.
    pub workers: usize,
    /// Where they enter themselves.
    pub arbiters: Arbiters,
    /// Whether the log can be written, which `/readyz` tells.
    pub log: Health,
    /// How the daemon is as a whole.
    pub condition: Arc<Swappable<Option<Condition>>>,
    /// Whether the sockets go on when this daemon stops: whoever passed them has them too.
    pub outlived: bool,
    /// What `/metrics` tells; none = nothing.
    pub metrics: Option<Metrics>,
    /// The channels that take webhook requests; none = there are none.
    pub webhooks: Option<Webhooks>,
}

/// The actor.
pub struct Listener {
    front: Arc<Front>,
    unix: UnixSockets,
    server: ServerHandle,
    outlived: bool,
    /// Of connections whose output waits: what the peer had acknowledged, and since when.
    waiting: HashMap<ConnectionId, (u64, Timestamp)>,
    peak: Peak,
    /// What looks after connections.
    timer: Option<SpawnHandle>,
}

/// From now on connections are taken, or no longer: who comes then is refused or, where the sockets
/// outlive this daemon, waits in the kernel for the next one.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Ready(pub bool);

/// Whether `/readyz` says that no new work is taken, though connections are.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Draining(pub bool);

/// Closes one connection, in its protocol's words for a daemon that goes away: the client may come back.
/// Answers with its other end; none where there is no such connection.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<Peer>")]
pub struct CloseConnection(pub ConnectionId);

/// Close every connection in its protocol's words, then everything else.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Looks anew at the terms of connections: which origins may come, and how long what may take.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure {
    /// The most connections before their handshake.
    pub unauthenticated: usize,
    /// The most connections of one principal.
    pub connections: usize,
}

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
        let gateway = setup.services.terms.get().gateway.clone();
        let max = match gateway.max_connections {
            0 => room_for_connections(),
            max => max,
        };
        let registry = Registry::new(max, setup.unauthenticated);
        registry.set_principal_max(setup.connections);
        registry.partials().set_bytes_max(gateway.max_unfinished_bytes);
        let addresses = setup.sockets.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let front = Arc::new(Front {
            services: setup.services.clone(),
            gate: Swappable::new(Gate::new(&addresses, &gateway.allowed_origins)),
            addresses: addresses.clone(),
            neighbours: neighbours(&addresses)?,
            protocols: setup.protocols,
            registry: registry.clone(),
            control_ui: setup.control_ui,
            stage: watch::Sender::new(Stage::Starting),
            log: setup.log,
            condition: setup.condition,
            metrics: setup.metrics,
            webhooks: setup.webhooks,
            draining: AtomicBool::new(false),
        });
        let arbiters = setup.arbiters;
        let unix = UnixSockets::new(setup.unix, &registry, setup.services.clone(), arbiters.clone())?;
        let workers = match setup.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        // Each; the registry keeps fewer, but can count only what a worker has looked at.
        let connections_max = max.saturating_add(EXCESS + LEAVING_MAX).div_ceil(workers);
        let server = server::run(setup.sockets, &front, &arbiters, workers, connections_max)?;
        let handle = server.handle();
        // Until it is ready: who comes earlier waits in the kernel.
        drop(handle.pause());
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
            let (outlived, peak) = (setup.outlived, Peak::new(clock::now()));
            Self { front, unix, server: handle, outlived, waiting, peak, timer: None }
        });
        Ok((listener, addresses))
    }

    /// How often connections are looked at: often enough for the shortest of their deadlines.
    fn interval(&self) -> Duration {
        let terms = self.front.services.terms.get();
        let gateway = &terms.gateway;
        let deadlines = [
            gateway.heartbeat_interval,
            gateway.heartbeat_timeout,
            gateway.slow_consumer_timeout,
            gateway.handshake_timeout,
            gateway.message_timeout,
        ];
        let shortest = deadlines.into_iter().min().unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn look_often(&mut self, context: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            context.cancel_future(timer);
        }
        self.timer = Some(context.run_interval(self.interval(), |listener, _| listener.look()));
    }

    fn look(&mut self) {
        let now = clock::now();
        let links = links(&self.front.registry, &self.unix.registry);
        let terms = self.front.services.terms.get();
        for link in &links {
            self.look_at(link, &terms.gateway, now);
        }
        self.front.services.strangers.tell_due();
        self.waiting.retain(|id, _| links.binary_search_by_key(id, |link| link.id()).is_ok());
        self.peak.now(links.len(), now);
    }

    fn look_at(&mut self, link: &Link, gateway: &Gateway, now: Timestamp) {
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
        if link.message_takes(now) >= gateway.message_timeout {
            link.close(Fault::Incomplete, now);
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
            link.control(ConnectionControl::Ping);
        }
    }
}

/// Whether it was taken so lately, or has asked so lately, that it may be about to upgrade: who came
/// to a daemon that is about to stop is told so in the words of the protocol, and not reset.
fn is_fresh(link: &Link, now: Timestamp) -> bool {
    let (silence, asked) = link.since_request(now);
    link.dialect().is_none() && silence < if asked { ANSWER_GRACE } else { FRESH_GRACE }
}

/// What tells who comes over loopback; none where nothing does, or nobody comes there.
fn neighbours(addresses: &[SocketAddr]) -> io::Result<Option<(Means, u32)>> {
    if !addresses.iter().any(|address| address.ip().is_loopback()) {
        return Ok(None);
    }
    let means = socket_owner::means();
    if means.is_none() {
        tracing::warn!(
            "nothing tells whose programs connect over loopback (neither sock_diag nor /proc/net/tcp): while no \
             credential is configured those of every user of this host are let in; clawmux token create closes that"
        );
    }
    means.map(|means| Ok((means, own_user()?))).transpose()
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
        self.look_often(context);
    }
}

impl Handler<Ready> for Listener {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Ready(ready): Ready, context: &mut Self::Context) -> Self::Result {
        if ready {
            self.front.stage.send_replace(Stage::Ready);
            self.unix.serve(context);
            return Box::pin(self.server.resume());
        }
        self.unix.rest(context);
        if self.outlived {
            // Who was taken already is served, be it with a farewell.
            return Box::pin(self.server.pause());
        }
        self.front.stage.send_replace(Stage::Stopping);
        Box::pin(std::future::ready(()))
    }
}

impl Handler<Draining> for Listener {
    type Result = ();

    fn handle(&mut self, Draining(draining): Draining, _: &mut Self::Context) {
        self.front.draining.store(draining, Relaxed);
    }
}

impl Handler<Reconfigure> for Listener {
    type Result = ();

    fn handle(
        &mut self,
        Reconfigure { unauthenticated, connections }: Reconfigure,
        context: &mut Self::Context,
    ) {
        let terms = self.front.services.terms.get();
        self.front.gate.set(Gate::new(&self.front.addresses, &terms.gateway.allowed_origins));
        self.front.registry.set_unauthenticated_max(unauthenticated);
        self.front.registry.set_principal_max(connections);
        self.front.registry.partials().set_bytes_max(terms.gateway.max_unfinished_bytes);
        if let Some(page) = &self.front.control_ui {
            page.set_agent(terms.setup.catalog.default_agent.clone());
        }
        self.look_often(context);
    }
}

impl Handler<CloseConnection> for Listener {
    type Result = MessageResult<CloseConnection>;

    fn handle(&mut self, CloseConnection(id): CloseConnection, _: &mut Self::Context) -> Self::Result {
        let link = self.front.registry.link(id).or_else(|| self.unix.registry.link(id));
        MessageResult(link.map(|link| {
            tracing::info!(connection = id.0, peer = %link.peer(), "closed by the operator");
            link.close_for(Fault::Draining, "operator", clock::now());
            link.peer()
        }))
    }
}

impl Handler<Stop> for Listener {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Stop, context: &mut Self::Context) -> Self::Result {
        if !self.outlived {
            self.front.stage.send_replace(Stage::Stopping);
        }
        self.unix.stop(context);
        let (tcp, unix) = (self.front.registry.clone(), self.unix.registry.clone());
        let (server, outlived) = (self.server.clone(), self.outlived);
        Box::pin(async move {
            server.pause().await;
            if outlived {
                // What is on its way from the thread that accepts arrives.
                actix::clock::sleep(PAUSE_GRACE).await;
            }
            loop {
                let (links, now) = (links(&tcp, &unix), clock::now());
                let speaking: Vec<_> = links.iter().filter(|link| link.dialect().is_some()).collect();
                for link in speaking.iter().filter(|link| link.closing_since().is_none()) {
                    link.close(Fault::Draining, now);
                }
                let leaves =
                    |link: &Link| link.closing_since().is_some_and(|since| now.since(since) < CLOSE_GRACE);
                let comes = |link: &Link| (outlived || link.peer().is_unix()) && is_fresh(link, now);
                if !(speaking.iter().any(|link| leaves(link)) || links.iter().any(|link| comes(link))) {
                    break;
                }
                actix::clock::sleep(Duration::from_millis(10)).await;
            }
            for link in links(&tcp, &unix) {
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
        let (guessing, held) = self.front.services.strangers.guessing();
        let links = links(registry, &self.unix.registry);
        let connections = links
            .iter()
            .map(|link| Observed::leaf(format!("connection {}", link.id().0), link.figures()))
            .collect();
        Observed::leaf(
            "listener",
            json!({
                "addresses": self.front.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "ready": self.front.is_ready(),
                "draining": self.front.draining.load(Relaxed),
                "connections": registry.len(),
                "unix": self.unix.figures(),
                "connections_max": registry.max(),
                "unauthenticated": registry.unauthenticated(),
                "guessing": guessing,
                "held": held,
                "closed": registry.closed(),
                "unfinished_bytes": registry.partials().bytes(),
                "waiting": self.waiting.len(),
            }),
        )
        .with_children(connections)
    }
}

/// How many connections the limit on open files leaves room for: each takes two descriptors.
fn room_for_connections() -> usize {
    let room = open_files::max().saturating_sub(DESCRIPTORS_KEPT) / 2;
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
