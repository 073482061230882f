//! The operator's Unix socket: `admin.*` methods, JSON-RPC 2.0 over lines.
//!
//! [`AdminSocket`] serves the socket of a claimed home ([`Bound`]) to the daemon's own user and root,
//! told by the kernel's peer credentials; a file mode alone would trust whoever can reach the folder.
//!
//! | file | what it is |
//! |---|---|
//! | `bound` | the claim on a home and its socket |
//! | `connection` | one connection: lines in, answers and notifications out |
//! | `client` | what the rest of the daemon knows of a connection |
//! | `methods` | the table of methods, and which are not there yet |
//! | `params` | parameters, read and refused in words |
//! | `status`, `sessions`, `session`, `connections`, `actors`, `plugins`, `usage`, `devices`, `approvals`, `tokens`, `memory`, `drain`, `backup` | the methods, a group a file |
//! | `activity` | what runs |
//! | `event` | an event of a session, as JSON |
//!
//! What needs a session goes to it the way every client's requests do, under the principal `socket`,
//! which is an admin. Absent: the methods of features that are not there yet, which are refused by
//! name; batches.

mod activity;
mod actors;
mod approvals;
mod backup;
mod bound;
mod client;
mod connection;
mod connections;
mod devices;
mod drain;
mod event;
mod line;
mod memory;
mod methods;
mod params;
mod plugins;
mod session;
mod sessions;
mod status;
mod tokens;
mod usage;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::jsonrpc;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::listener::CloseConnection;
use crate::observe::{Observe, Observed};
use crate::provider_supervisor::BudgetStatus;
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::session_supervisor::{Dispatch, Follows, Gone};
use crate::store::Store;

pub use bound::{Bound, socket_path};

/// The longest line, in bytes; a client that sends more is told so and closed.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// The most connections at once.
pub const CONNECTIONS_MAX: usize = 64;
/// The pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long connections have to take leave when the daemon stops.
const FAREWELL: Duration = Duration::from_secs(1);

/// Asks whoever runs the daemon how it is. The answer is an object with `version`, `pid`, `home`,
/// `store` (the log's file), `listen` (a list of `ADDR:PORT`, as bound), `draining`, `started_ms`, `uptime_ms`, `sessions`,
/// `connections` and `plugins` (counts); more keys may follow.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Value, Error>")]
pub struct AdminStatus;

/// Has the daemon take no new prompts while `on`, or take them again. What it accepted goes on in
/// any case.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct AdminDrain {
    /// Whether it drains.
    pub on: bool,
}

/// Tells every connection that the daemon stops, ends the actor and takes the socket away.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Those the methods reach.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// How the daemon is.
    pub status: Recipient<AdminStatus>,
    /// Whether it takes work.
    pub drain: Recipient<AdminDrain>,
    /// Where requests about sessions go.
    pub dispatch: Recipient<Dispatch>,
    /// Who is told that a connection is gone.
    pub gone: Recipient<Gone>,
    /// What runs.
    pub sessions: Recipient<Observe>,
    /// All actors.
    pub actors: Recipient<Observe>,
    /// Who is connected.
    pub connections: Recipient<Observe>,
    /// What each of them follows.
    pub follows: Recipient<Follows>,
    /// Who closes one of them.
    pub close: Recipient<CloseConnection>,
    /// What the budgets leave.
    pub budgets: Recipient<BudgetStatus>,
    /// The plugins.
    pub sandbox: Addr<SandboxSupervisor>,
    /// The log.
    pub store: Addr<Store>,
}

/// Serves the operator's socket.
pub struct AdminSocket {
    bound: Bound,
    daemon: Arc<Daemon>,
    own_user: u32,
    connections: usize,
    accepted_total: u64,
    refused_total: u64,
    requests_total: u64,
    stopping: watch::Sender<bool>,
}

impl AdminSocket {
    /// Starts it on the current arbiter.
    ///
    /// # Errors
    /// `Unavailable` where the runtime can't take the socket.
    pub fn start(mut bound: Bound, daemon: Daemon) -> Result<Addr<Self>, Error> {
        let path = bound.path().to_owned();
        let unable = |error: io::Error| {
            ErrorCode::Unavailable.error(format!("cannot serve the socket {}: {error}", path.display()))
        };
        let listener =
            bound.take_listener().ok_or_else(|| ErrorCode::Internal.error("socket served twice"))?;
        let listener = UnixListener::from_std(listener).map_err(unable)?;
        // What the kernel calls us at the other end of a socket.
        let own_user = UnixStream::pair().and_then(|(one, _)| one.peer_cred()).map_err(unable)?.uid();
        Ok(Self::create(|ctx| {
            ctx.add_stream(futures::stream::unfold(listener, |listener| async move {
                loop {
                    match listener.accept().await {
                        Ok((stream, _)) => return Some((Accepted(stream), listener)),
                        Err(error) => {
                            tracing::warn!(%error, "admin socket: accept failed");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                }
            }));
            Self {
                bound,
                daemon: Arc::new(daemon),
                own_user,
                connections: 0,
                accepted_total: 0,
                refused_total: 0,
                requests_total: 0,
                stopping: watch::Sender::new(false),
            }
        }))
    }

    fn refusal(&self, stream: &UnixStream) -> Option<String> {
        if self.connections >= CONNECTIONS_MAX {
            return Some(format!("there are {CONNECTIONS_MAX} connections already: try again later"));
        }
        match stream.peer_cred() {
            Ok(peer) if may_use(peer.uid(), self.own_user) => None,
            Ok(peer) => Some(format!("user {} may not use this socket", peer.uid())),
            Err(_) => Some("the peer's credentials are not known".into()),
        }
    }
}

/// The daemon's own user and root.
fn may_use(peer: u32, own_user: u32) -> bool {
    const ROOT: u32 = 0;
    peer == own_user || peer == ROOT
}

impl Actor for AdminSocket {
    type Context = Context<Self>;
}

struct Accepted(UnixStream);

impl StreamHandler<Accepted> for AdminSocket {
    fn handle(&mut self, Accepted(stream): Accepted, ctx: &mut Self::Context) {
        if let Some(why) = self.refusal(&stream) {
            self.refused_total += 1;
            let line = jsonrpc::failure(&Value::Null, jsonrpc::FAILED, &why, None) + "\n";
            // Best effort: the socket's buffer is empty, so the line fits.
            let _ = stream.try_write(line.as_bytes());
            return;
        }
        self.connections += 1;
        self.accepted_total += 1;
        let served = connection::serve(stream, self.daemon.clone(), ctx.address(), self.stopping.subscribe());
        ctx.spawn(served.into_actor(self).map(|(), actor, _| actor.connections -= 1));
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}

/// Counts a request of a connection.
#[derive(Message)]
#[rtype(result = "()")]
struct Asked;

impl Handler<Asked> for AdminSocket {
    type Result = ();

    fn handle(&mut self, _: Asked, _: &mut Self::Context) {
        self.requests_total += 1;
    }
}

impl Handler<Stop> for AdminSocket {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        self.stopping.send_replace(true);
        let stopping = self.stopping.clone();
        let farewell = async move {
            // Each connection holds a receiver until it has taken leave.
            let _ = tokio::time::timeout(FAREWELL, stopping.closed()).await;
        };
        Box::pin(farewell.into_actor(self).map(|(), _, ctx| ctx.stop()))
    }
}

impl Handler<Observe> for AdminSocket {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "admin socket",
            json!({
                "path": self.bound.path().display().to_string(),
                "connections": self.connections,
                "accepted_total": self.accepted_total,
                "refused_total": self.refused_total,
                "requests_total": self.requests_total,
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::Asker;
    use clawmux_core::error::Detail;
    use std::collections::HashMap;
    use std::fs;
    use std::net::SocketAddr;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

    /// Stands for everything behind the socket.
    struct Behind;

    impl Actor for Behind {
        type Context = Context<Self>;
    }

    impl Handler<AdminStatus> for Behind {
        type Result = Result<Value, Error>;

        fn handle(&mut self, _: AdminStatus, _: &mut Self::Context) -> Self::Result {
            Ok(json!({ "version": "1" }))
        }
    }

    impl Handler<AdminDrain> for Behind {
        type Result = Result<(), Error>;

        fn handle(&mut self, _: AdminDrain, _: &mut Self::Context) -> Self::Result {
            Err(ErrorCode::Unavailable.error("not now").with(Detail::RetryAfter(Duration::from_secs(2))))
        }
    }

    impl Handler<Observe> for Behind {
        type Result = Observed;

        fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
            Observed::leaf("sessions", json!({}))
        }
    }

    impl Handler<Dispatch> for Behind {
        type Result = ();

        fn handle(&mut self, dispatch: Dispatch, _: &mut Self::Context) {
            drop(Asker::new(dispatch.client, dispatch.ticket));
        }
    }

    impl Handler<Follows> for Behind {
        type Result = MessageResult<Follows>;

        fn handle(&mut self, _: Follows, _: &mut Self::Context) -> Self::Result {
            MessageResult(HashMap::default())
        }
    }

    impl Handler<CloseConnection> for Behind {
        type Result = Option<SocketAddr>;

        fn handle(&mut self, _: CloseConnection, _: &mut Self::Context) -> Self::Result {
            None
        }
    }

    impl Handler<BudgetStatus> for Behind {
        type Result = MessageResult<BudgetStatus>;

        fn handle(&mut self, _: BudgetStatus, _: &mut Self::Context) -> Self::Result {
            MessageResult(Vec::new())
        }
    }

    impl Handler<Gone> for Behind {
        type Result = ();

        fn handle(&mut self, _: Gone, _: &mut Self::Context) {}
    }

    async fn start(home: &Path) -> Addr<AdminSocket> {
        let behind = Behind.start();
        let daemon = Daemon {
            status: behind.clone().recipient(),
            drain: behind.clone().recipient(),
            dispatch: behind.clone().recipient(),
            gone: behind.clone().recipient(),
            sessions: behind.clone().recipient(),
            actors: behind.clone().recipient(),
            connections: behind.clone().recipient(),
            follows: behind.clone().recipient(),
            close: behind.clone().recipient(),
            budgets: behind.recipient(),
            sandbox: SandboxSupervisor::new(Vec::new(), home.to_owned()).with_embedded(Vec::new()).start(),
            store: Store::start(home.join("clawmux.db")).await.unwrap(),
        };
        AdminSocket::start(Bound::new(home, None).unwrap(), daemon).unwrap()
    }

    async fn connect(home: &Path) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(socket_path(home)).await.unwrap())
    }

    async fn ask(stream: &mut BufReader<UnixStream>, line: &str) -> Value {
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).await.unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?} to {line}"))
    }

    #[actix::test]
    async fn status_and_refusals() {
        let home = tempfile::tempdir().unwrap();
        let actor = start(home.path()).await;
        let mut stream = connect(home.path()).await;
        let status = ask(&mut stream, r#"{"jsonrpc":"2.0","id":1,"method":"admin.status"}"#).await;
        assert_eq!((&status["id"], &status["result"]["version"]), (&json!(1), &json!("1")), "{status}");
        for (line, code, says) in [
            ("{", -32700, "parse error"),
            ("[]", -32600, "batches"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"admin.nothing"}"#, -32601, "unknown method: admin.nothing"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"admin.config.get"}"#,
                -32601,
                "admin.config.get is not there yet",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"admin.status","params":{"x":1}}"#,
                -32602,
                "unknown field `x`",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"admin.status","params":[1]}"#, -32602, "not a list"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"admin.drain","params":{"on":1}}"#,
                -32602,
                r#"it takes {"on"?}"#,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"İİİİ"}"#, -32601, "İİİİ"),
        ] {
            let answer = ask(&mut stream, line).await;
            assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(says), "{line}: {answer}");
        }
        // Neither an empty line nor a notification is answered; the next answer is the next request's.
        stream.get_mut().write_all(b"\r\n{\"jsonrpc\":\"2.0\",\"method\":\"admin.status\"}\n").await.unwrap();
        let answer = ask(&mut stream, r#"{"jsonrpc":"2.0","id":"x","method":"admin.status"}"#).await;
        assert_eq!(answer["id"], "x");
        let observed = actor.send(Observe).await.unwrap();
        assert_eq!(observed.state["connections"], 1, "{observed:?}");
    }

    #[actix::test]
    async fn the_socket_is_private_and_goes_away() {
        let home = tempfile::tempdir().unwrap();
        let actor = start(home.path()).await;
        let path = socket_path(home.path());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let refused = Bound::new(home.path(), None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains(&format!("(pid {})", std::process::id())), "{}", refused.message);
        assert!(path.exists(), "the refused one took nothing away");
        actor.send(Stop).await.unwrap();
        while actor.connected() {
            tokio::task::yield_now().await;
        }
        assert!(!path.exists());
        Bound::new(home.path(), None).unwrap();
    }

    #[test]
    fn other_users_are_kept_out() {
        assert!(may_use(1000, 1000) && may_use(0, 1000) && may_use(0, 0));
        assert!(!may_use(1001, 1000) && !may_use(1000, 0));
    }

    #[actix::test]
    async fn hostile_clients_harm_nobody() {
        let home = tempfile::tempdir().unwrap();
        let actor = start(home.path()).await;
        // Half a line, then gone.
        connect(home.path()).await.get_mut().write_all(b"{\"jsonrpc\":").await.unwrap();
        // A line without an end.
        let mut endless = connect(home.path()).await;
        let chunk = vec![b'x'; 1 << 16];
        let mut sent = 0;
        while sent <= LINE_BYTES_MAX && endless.get_mut().write_all(&chunk).await.is_ok() {
            sent += chunk.len();
        }
        let mut answer = String::new();
        endless.read_line(&mut answer).await.unwrap();
        assert!(answer.contains("longer than 1048576 bytes"), "{answer}");
        // More connections than there is room for.
        let mut crowd = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            crowd.push(connect(home.path()).await);
        }
        let mut refused = 0;
        for mut stream in crowd.drain(..).rev() {
            stream
                .get_mut()
                .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"admin.status\"}\n")
                .await
                .ok();
            let mut answer = String::new();
            let _ = stream.read_line(&mut answer).await;
            refused += usize::from(answer.contains("connections already"));
        }
        assert!(refused <= 2, "at most the two above were still counted: {refused}");
        let mut stream = connect(home.path()).await;
        let answer = ask(&mut stream, r#"{"jsonrpc":"2.0","id":1,"method":"admin.status"}"#).await;
        assert_eq!(answer["result"]["version"], "1");
        assert!(actor.connected());
    }

    #[actix::test]
    async fn a_crowd_is_refused_in_words() {
        let home = tempfile::tempdir().unwrap();
        let actor = start(home.path()).await;
        let mut crowd = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = connect(home.path()).await;
            ask(&mut stream, r#"{"jsonrpc":"2.0","id":1,"method":"admin.status"}"#).await;
            crowd.push(stream);
        }
        let mut late = String::new();
        connect(home.path()).await.read_to_string(&mut late).await.unwrap();
        assert!(late.contains("64 connections already"), "{late}");
        assert_eq!(actor.send(Observe).await.unwrap().state["refused_total"], 1);
    }
}
