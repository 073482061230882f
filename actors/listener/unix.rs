//! The Unix sockets: who may come to them, and the connections that are made of them.
//!
//! The kernel says who is at the other end: a file mode alone would trust whoever can reach the folder.
//! Who may not come, and who comes when there are as many as may be, is told why in a line; but first
//! the oldest that never said anything has to make room. These connections are counted for themselves, so that no flood of TCP locks the operator out, and none
//! of a program on this host the clients.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, SpawnHandle, StreamHandler};
use clawmux_core::dialect::jsonrpc;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

use super::Listener;
use crate::connection::lines::Lines;
use crate::connection::link::Peer;
use crate::connection::registry::Registry;
use crate::connection::{Approach, Connection, Services};
use crate::host::bound::UnixSocket;
use crate::host::group::Group;
use crate::host::kept;
use crate::host::socket_owner::{may_use, own_user};
use crate::http::SOCKET;
use crate::runtime::arbiters::Arbiters;

/// The most connections at once.
pub(super) const CONNECTIONS_MAX: usize = 128;

/// The pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The Unix sockets of a listener.
pub(super) struct UnixSockets {
    /// Those that are not served yet.
    bound: Vec<UnixSocket>,
    paths: Vec<PathBuf>,
    /// Those that are, and whether they go on when this daemon stops.
    served: Vec<(SpawnHandle, bool)>,
    pub(super) registry: Arc<Registry>,
    services: Arc<Services>,
    arbiters: Arbiters,
    /// The user this process runs as, as the kernel calls it at the other end of a socket.
    own_user: u32,
    accepted_total: u64,
    refused_total: u64,
}

impl UnixSockets {
    /// # Errors
    /// Where the kernel does not say who we are.
    pub(super) fn new(
        bound: Vec<UnixSocket>,
        registry: &Registry,
        services: Arc<Services>,
        arbiters: Arbiters,
    ) -> io::Result<Self> {
        let own_user = own_user()?;
        Ok(Self {
            paths: bound.iter().map(|socket| socket.path.clone()).collect(),
            bound,
            served: Vec::new(),
            registry: registry.beside(CONNECTIONS_MAX),
            services,
            arbiters,
            own_user,
            accepted_total: 0,
            refused_total: 0,
        })
    }

    /// Takes connections from now on. What came before waits in the kernel.
    pub(super) fn serve(&mut self, context: &mut Context<Listener>) {
        for UnixSocket { listener, path, group, outlived } in self.bound.drain(..) {
            let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
            let listener = match listener {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(path = %path.display(), "cannot serve the socket: {error}");
                    continue;
                }
            };
            let group = group.map(Arc::new);
            let accepted = futures::stream::unfold((listener, group), |(listener, group)| async move {
                loop {
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            return Some((Accepted(stream, group.clone()), (listener, group)));
                        }
                        Err(error) => {
                            tracing::warn!(%error, "unix socket: accept failed");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                }
            });
            self.served.push((context.add_stream(accepted), outlived));
        }
    }

    /// Takes no more connections where they can wait for the next daemon.
    pub(super) fn rest(&mut self, context: &mut Context<Listener>) {
        for (served, _) in self.served.extract_if(.., |(_, outlived)| *outlived) {
            context.cancel_future(served);
        }
    }

    /// Takes no more connections.
    pub(super) fn stop(&mut self, context: &mut Context<Listener>) {
        for (served, _) in self.served.drain(..) {
            context.cancel_future(served);
        }
        self.bound.clear();
    }

    fn accept(&mut self, stream: UnixStream, group: Option<&Group>) {
        let peer = match self.admit(&stream, group) {
            Ok(peer) => peer,
            Err(why) => {
                self.refused_total += 1;
                tracing::debug!("unix socket: refused: {why}");
                let line = jsonrpc::failure(&Value::Null, jsonrpc::FAILED, &why, None) + "\n";
                // Best effort: the socket's buffer is empty, so the line fits.
                let _ = stream.try_write(line.as_bytes());
                return;
            }
        };
        self.accepted_total += 1;
        let entered = self.registry.accept(&stream, peer).and_then(|link| Ok((link, stream.into_std()?)));
        let (link, stream) = match entered {
            Ok(entered) => entered,
            Err(error) => return tracing::warn!("connection not entered: {error}"),
        };
        let services = self.services.clone();
        self.arbiters.next().spawn_fn(move || match Lines::new(stream) {
            Ok(lines) => drop(Connection::new(lines, link, services, SOCKET, Approach::SOCKET).start()),
            Err(error) => tracing::warn!("connection not entered: {error}"),
        });
    }

    /// Who it is; or why it may not come.
    fn admit(&self, stream: &UnixStream, group: Option<&Group>) -> Result<Peer, String> {
        let Ok(peer) = stream.peer_cred() else { return Err("the peer's credentials are not known".into()) };
        if !may_use(peer.uid(), self.own_user) {
            match group {
                Some(group) if group.has(stream, peer.gid()) => {}
                Some(Group { name, .. }) => {
                    let why = format!("it is for members of the group {name}");
                    return Err(format!("user {} may not use this socket: {why}", peer.uid()));
                }
                None => return Err(format!("user {} may not use this socket", peer.uid())),
            }
        }
        if peer.pid().is_none_or(|pid| kept::is_kept(pid.cast_unsigned())) && kept::are_there() {
            return Err("programs that the daemon keeps may not use this socket".into());
        }
        if !self.registry.make_room() {
            return Err(format!("there are {CONNECTIONS_MAX} connections already: try again later"));
        }
        Ok(Peer::Unix { uid: peer.uid(), pid: peer.pid() })
    }

    /// For who observes.
    pub(super) fn figures(&self) -> Value {
        json!({
            "paths": self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "connections": self.registry.len(),
            "connections_max": self.registry.max(),
            "accepted_total": self.accepted_total,
            "refused_total": self.refused_total,
            "closed": self.registry.closed(),
        })
    }
}

/// Somebody connected.
struct Accepted(UnixStream, Option<Arc<Group>>);

impl StreamHandler<Accepted> for Listener {
    fn handle(&mut self, Accepted(stream, group): Accepted, _: &mut Self::Context) {
        self.unix.accept(stream, group.as_deref());
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_are_kept_out() {
        assert!(may_use(1000, 1000) && may_use(0, 1000) && may_use(0, 0));
        assert!(!may_use(1001, 1000) && !may_use(1000, 0));
    }
}
