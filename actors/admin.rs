//! The operator's Unix socket: `admin.*` methods, JSON-RPC 2.0 over lines.
//!
//! [`Bound`] is the claim on a home: a lock file that a second daemon can't take, and the socket,
//! which goes away with it. [`AdminSocket`] serves it to the daemon's own user and root, told by the
//! kernel's peer credentials; a file mode alone would trust whoever can reach the folder. One
//! request of a connection is answered before its next is read, so a flood waits in the client.
//!
//! Absent: live streams and every method but `admin.status`; methods of features that are not there
//! yet are refused by name. What they need of others comes as recipients with [`AdminSocket::start`].

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::jsonrpc;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::observe::{Observe, Observed};

/// The longest line, in bytes; a client that sends more is told so and closed.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// The most connections at once.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a client may take over one line.
const IDLE: Duration = Duration::from_secs(300);
/// How long a client may take to read one answer.
const WRITE: Duration = Duration::from_secs(10);
/// How long a method may take.
const METHOD: Duration = Duration::from_secs(10);
/// The pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Methods of the interface whose feature is not there yet.
const LATER: [&str; 14] = [
    "admin.sessions",
    "admin.connections",
    "admin.actors",
    "admin.plugins",
    "admin.usage",
    "admin.memory",
    "admin.approvals",
    "admin.devices",
    "admin.tokens",
    "admin.drain",
    "admin.backup",
    "admin.log",
    "admin.events",
    "admin.auth",
];
/// Families of such methods.
const LATER_FAMILIES: [&str; 7] = [
    "admin.session.",
    "admin.approval.",
    "admin.plugin.",
    "admin.token.",
    "admin.device.",
    "admin.config.",
    "gateway.",
];

/// Asks whoever runs the daemon how it is. The answer is an object with `version`, `pid`, `home`,
/// `listen` (a list of `ADDR:PORT`, as bound), `started_ms`, `uptime_ms`, `sessions`, `connections`
/// and `plugins` (counts); more keys may follow.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Value, Error>")]
pub struct AdminStatus;

/// Ends the actor and takes the socket away.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// A claimed home: its lock, and the bound socket. Both are let go when it is dropped.
#[derive(Debug)]
pub struct Bound {
    listener: Option<StdListener>,
    path: PathBuf,
    /// Where a link to the path is, if it is not in the home.
    link: Option<PathBuf>,
    /// Held for its lock.
    _lock: File,
}

/// Where the operator's socket of a home is.
pub fn socket_path(home: &Path) -> PathBuf {
    home.join(".xeno").join("gateway.sock")
}

impl Bound {
    /// Claims `home` and binds its socket, or `elsewhere`. Blocks: call it before the daemon runs.
    ///
    /// # Errors
    /// `Conflict` where another daemon has the home or the socket; `Unavailable` where the folder,
    /// the lock or the socket can't be made.
    pub fn new(home: &Path, elsewhere: Option<&Path>) -> Result<Self, Error> {
        let folder = home.join(".xeno");
        private_folder(&folder).map_err(|error| cannot("make the folder", &folder, &error))?;
        let lock_path = folder.join("gateway.lock");
        let lock = lock(&lock_path, home)?;
        let usual = socket_path(home);
        if fs::symlink_metadata(&usual).is_ok_and(|there| there.is_symlink()) {
            // Left by a daemon that served elsewhere and died: we have its lock now.
            fs::remove_file(&usual).map_err(|error| cannot("remove the stale link", &usual, &error))?;
        }
        let path = match elsewhere {
            Some(path) => std::path::absolute(path).map_err(|error| cannot("find", path, &error))?,
            None => usual.clone(),
        };
        clear_stale(&path)?;
        let listener = StdListener::bind(&path)
            .and_then(|listener| {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .map_err(|error| cannot("bind the socket", &path, &error))?;
        let mut bound = Self { listener: Some(listener), path, link: None, _lock: lock };
        if bound.path != usual {
            // So that the commands find it by its home, wherever it is.
            clear_stale(&usual)?;
            symlink(&bound.path, &usual).map_err(|error| cannot("link", &usual, &error))?;
            bound.link = Some(usual);
        }
        Ok(bound)
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // While the lock is held nobody else can have bound this path.
        for path in self.link.iter().chain([&self.path]) {
            let _ = fs::remove_file(path);
        }
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    let advice = match error.kind() {
        // The kernel takes about a hundred bytes for the path of a socket.
        io::ErrorKind::InvalidInput => "; take a shorter one with --socket or --home",
        _ => "",
    };
    ErrorCode::Unavailable.error(format!("cannot {what} {}: {error}{advice}", path.display()))
}

/// A folder of our own that nobody else looks into.
fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is not a folder"));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn lock(path: &Path, home: &Path) -> Result<File, Error> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| cannot("open the lock", path, &error))?;
    match file.try_lock() {
        Ok(()) => {
            // Who has it is for the message below only: that it can't be written is no reason to stop.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = (&mut file).take(20).read_to_string(&mut pid);
            let pid: String = pid.chars().filter(char::is_ascii_digit).collect();
            Err(ErrorCode::Conflict.error(format!(
                "a clawmux daemon{} runs on {} already: stop it, or give this one another --home",
                if pid.is_empty() { String::new() } else { format!(" (pid {pid})") },
                home.display()
            )))
        }
        Err(fs::TryLockError::Error(error)) => Err(cannot("lock", path, &error)),
    }
}

/// Removes a socket that nobody serves any more, and nothing else.
fn clear_stale(path: &Path) -> Result<(), Error> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(
            ErrorCode::Conflict.error(format!("{} is there and no socket: move it away", path.display()))
        );
    }
    if StdStream::connect(path).is_ok() {
        return Err(ErrorCode::Conflict.error(format!("somebody else serves the socket {}", path.display())));
    }
    fs::remove_file(path).map_err(|error| cannot("remove the stale socket", path, &error))
}

/// Serves the operator's socket.
pub struct AdminSocket {
    bound: Bound,
    status: Recipient<AdminStatus>,
    own_user: u32,
    connections: usize,
    accepted_total: u64,
    refused_total: u64,
    requests_total: u64,
}

impl AdminSocket {
    /// Starts it on the current arbiter.
    ///
    /// # Errors
    /// `Unavailable` where the runtime can't take the socket.
    pub fn start(mut bound: Bound, status: Recipient<AdminStatus>) -> Result<Addr<Self>, Error> {
        let path = bound.path.clone();
        let unable = |error: io::Error| cannot("serve the socket", &path, &error);
        let listener =
            bound.listener.take().ok_or_else(|| ErrorCode::Internal.error("socket served twice"))?;
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
                status,
                own_user,
                connections: 0,
                accepted_total: 0,
                refused_total: 0,
                requests_total: 0,
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
        let served = serve(stream, self.status.clone(), ctx.address());
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
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl Handler<Observe> for AdminSocket {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "AdminSocket",
            json!({
                "path": self.bound.path.display().to_string(),
                "connections": self.connections,
                "accepted_total": self.accepted_total,
                "refused_total": self.refused_total,
                "requests_total": self.requests_total,
            }),
        )
    }
}

/// One connection, from its first line to its end.
async fn serve(stream: UnixStream, status: Recipient<AdminStatus>, actor: Addr<AdminSocket>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        let answer = match timeout(IDLE, read_line(&mut read, &mut line)).await {
            Ok(Ok(Line::Complete)) => {
                // Counting must not hold a request up: a full mailbox only loses a count.
                let _ = actor.try_send(Asked);
                respond(&line, &status).await
            }
            Ok(Ok(Line::TooLong)) => {
                let why = format!("invalid request: a line is longer than {LINE_BYTES_MAX} bytes");
                let answer = jsonrpc::failure(&Value::Null, jsonrpc::INVALID_REQUEST, &why, None) + "\n";
                let _ = timeout(WRITE, write.write_all(answer.as_bytes())).await;
                return;
            }
            Ok(Ok(Line::Ended) | Err(_)) | Err(_) => return,
        };
        if let Some(mut answer) = answer {
            answer.push('\n');
            match timeout(WRITE, write.write_all(answer.as_bytes())).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }
}

enum Line {
    Complete,
    TooLong,
    /// The peer closed; a half line without its end is no request.
    Ended,
}

/// Reads up to a line end, which is not kept.
async fn read_line(read: &mut (impl AsyncBufReadExt + Unpin), line: &mut Vec<u8>) -> io::Result<Line> {
    loop {
        let chunk = read.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(Line::Ended);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(chunk.len());
        if line.len() + taken > LINE_BYTES_MAX {
            return Ok(Line::TooLong);
        }
        line.extend_from_slice(&chunk[..taken]);
        read.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Line::Complete);
        }
    }
}

/// The answer to one line; none to an empty line and to a request without an id.
async fn respond(line: &[u8], status: &Recipient<AdminStatus>) -> Option<String> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let request = match jsonrpc::parse(line) {
        Ok(request) => request,
        Err(refusal) => return Some(refusal),
    };
    let outcome = match timeout(METHOD, call(&request.method, status)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ErrorCode::Timeout.error(format!("{} took longer than {METHOD:?}", request.method))),
    };
    request.id.map(|id| jsonrpc::answer(&id, outcome))
}

/// The table of methods.
async fn call(method: &str, status: &Recipient<AdminStatus>) -> Result<Value, Error> {
    match method {
        "admin.status" => match status.send(AdminStatus).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ErrorCode::Unavailable.error("the daemon is stopping")),
        },
        later if LATER.contains(&later) || LATER_FAMILIES.iter().any(|family| later.starts_with(family)) => {
            Err(ErrorCode::UnknownMethod.error(format!("{later} is not there yet")))
        }
        unknown => Err(ErrorCode::UnknownMethod.error(format!("unknown method: {unknown}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Daemon;

    impl Actor for Daemon {
        type Context = Context<Self>;
    }

    impl Handler<AdminStatus> for Daemon {
        type Result = Result<Value, Error>;

        fn handle(&mut self, _: AdminStatus, _: &mut Self::Context) -> Self::Result {
            Ok(json!({ "version": "1" }))
        }
    }

    fn start(home: &Path) -> Addr<AdminSocket> {
        AdminSocket::start(Bound::new(home, None).unwrap(), Daemon.start().recipient()).unwrap()
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
        let actor = start(home.path());
        let mut stream = connect(home.path()).await;
        let status = ask(&mut stream, r#"{"jsonrpc":"2.0","id":1,"method":"admin.status"}"#).await;
        assert_eq!(status, json!({"jsonrpc": "2.0", "id": 1, "result": {"version": "1"}}));
        for (line, code, says) in [
            ("{", -32700, "parse error"),
            ("[]", -32600, "batches"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"admin.nothing"}"#, -32601, "unknown method: admin.nothing"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"admin.drain"}"#, -32601, "admin.drain is not there yet"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"admin.session.show"}"#, -32601, "not there yet"),
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
        let actor = start(home.path());
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
    fn only_stale_sockets_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind by a process that died");
        let bound = Bound::new(home.path(), Some(&path)).unwrap();
        let other = tempfile::tempdir().unwrap();
        let refused = Bound::new(other.path(), Some(&path)).unwrap_err();
        assert!(refused.message.contains("somebody else serves"), "{}", refused.message);
        drop(bound);
        fs::write(&path, "precious").unwrap();
        let refused = Bound::new(home.path(), Some(&path)).unwrap_err();
        assert!(refused.message.contains("no socket"), "{}", refused.message);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = home.path().join("x".repeat(200));
        assert_eq!(Bound::new(home.path(), Some(&long)).unwrap_err().code, ErrorCode::Unavailable);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_answered_with_what_to_do() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s".repeat(120));
        let refused = Bound::new(home.path(), Some(&path)).unwrap_err();
        assert!(refused.message.ends_with("with --socket or --home"), "{}", refused.message);
    }

    #[test]
    fn other_users_are_kept_out() {
        assert!(may_use(1000, 1000) && may_use(0, 1000) && may_use(0, 0));
        assert!(!may_use(1001, 1000) && !may_use(1000, 0));
    }

    #[test]
    fn a_socket_elsewhere_is_found_from_the_home() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("elsewhere.sock");
        let bound = Bound::new(home.path(), Some(&path)).unwrap();
        assert_eq!(bound.path(), path);
        StdStream::connect(socket_path(home.path())).unwrap();
        drop(bound);
        assert!(
            fs::symlink_metadata(&path).is_err() && fs::symlink_metadata(socket_path(home.path())).is_err()
        );
        // As after a crash: a link that leads nowhere.
        symlink(&path, socket_path(home.path())).unwrap();
        drop(Bound::new(home.path(), None).unwrap());
    }

    #[actix::test]
    async fn hostile_clients_harm_nobody() {
        let home = tempfile::tempdir().unwrap();
        let actor = start(home.path());
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
        let actor = start(home.path());
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Lines are found whatever pieces they come in.
        #[test]
        fn lines_survive_every_split(lines in proptest::collection::vec("[^\n]{0,40}", 0..6), capacity in 1_usize..16) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut read = BufReader::with_capacity(capacity, text.as_bytes());
            futures::executor::block_on(async {
                for expected in &lines {
                    let mut line = Vec::new();
                    assert!(matches!(read_line(&mut read, &mut line).await.unwrap(), Line::Complete));
                    assert_eq!(&line, expected.as_bytes());
                }
                assert!(matches!(read_line(&mut read, &mut Vec::new()).await.unwrap(), Line::Ended));
            });
        }
    }
}
