//! What is known of one connection outside its actor.
//!
//! It belongs to the connection, not to the actor: while a peer does not read, its actor is not
//! polled at all, and after a Close it is gone while the socket may live on. One timer in
//! [`Listener`](crate::listener::Listener) reads these figures for all connections and can end one
//! from outside, by the socket.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use actix::Recipient;
use clawmux_core::dialect::{Fault, Introduction};
use clawmux_core::ids::ConnectionId;
use clawmux_core::principal::Principal;
use clawmux_core::time::Timestamp;
use socket2::SockRef;

use super::partial::{Partial, Partials};
use super::registry::{NoPlace, Registry};
use super::{ConnectionControl, OUTPUT_MARK_BYTES, UNANSWERED_MARK};
use crate::host::kept;
use crate::host::socket_owner::{self, Means};
use crate::runtime::clock;
use crate::runtime::deliver::{Closable, Window};

/// The largest message before the handshake is complete, in bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;

/// How many bytes the kernel may hold for a peer before it says that it is full.
const UNSENT_BYTES_MAX: u32 = 16 * 1024;

/// What a peer is told that has to make room before it has upgraded.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    content-length: 59\r\nretry-after: 5\r\nconnection: close\r\n\r\n\
    {\"error\":\"too many connections without a handshake: retry\"}";

impl Closable for Link {
    fn close(&self, fault: Fault, now: Timestamp) {
        self.close(fault, now);
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Somebody who came over TCP.
    Tcp {
        /// From where.
        from: SocketAddr,
        /// To which of our addresses.
        to: SocketAddr,
    },
    /// A process on this host, which the kernel tells about.
    Unix {
        /// Its user.
        uid: u32,
        /// Which process, where that is known.
        pid: Option<i32>,
    },
}

impl Peer {
    /// Its address; that of this host for a process on it.
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Tcp { from, .. } => from.ip().to_canonical(),
            Self::Unix { .. } => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Whether it came to a Unix socket.
    pub fn is_unix(self) -> bool {
        matches!(self, Self::Unix { .. })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { from, .. } => from.fmt(f),
            Self::Unix { uid, pid: Some(pid) } => write!(f, "user {uid}, process {pid}"),
            Self::Unix { uid, pid: None } => write!(f, "user {uid}"),
        }
    }
}

/// The link to one peer.
#[derive(Debug)]
pub struct Link {
    id: ConnectionId,
    peer: Peer,
    opened: Timestamp,
    socket: OwnedFd,
    registry: Arc<Registry>,
    heard: AtomicU64,
    pinged: AtomicU64,
    frame_limit: AtomicUsize,
    partial: Partial,
    message_began: AtomicU64,
    has_said_goodbye: AtomicBool,
    polls: AtomicU64,
    unsent: AtomicUsize,
    blocked: AtomicBool,
    taken: AtomicU64,
    received: AtomicU64,
    closing: AtomicU64,
    unanswered: AtomicUsize,
    awaits: AtomicBool,
    requested: AtomicU64,
    dialect: OnceLock<&'static str>,
    principal: OnceLock<Arc<str>>,
    /// The user of this host who has the other end; or why it is not known.
    user: OnceLock<Result<u32, String>>,
    /// Whether the peer ever said something.
    spoke: AtomicBool,
    introduction: Mutex<Introduction>,
    actor: OnceLock<Recipient<ConnectionControl>>,
    window: Arc<Window>,
}

impl Link {
    /// For a socket that was just accepted.
    ///
    /// # Errors
    /// Where the operating system has no descriptor left for the second hold on the socket.
    pub fn new(
        id: ConnectionId,
        socket: &(impl AsFd + std::fmt::Debug),
        peer: Peer,
        registry: Arc<Registry>,
    ) -> std::io::Result<Self> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        if !peer.is_unix() {
            let options = SockRef::from(&socket);
            options.set_tcp_nodelay(true)?;
            options.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
        }
        let opened = clock::now();
        Ok(Self {
            id,
            peer,
            opened,
            socket,
            registry,
            heard: AtomicU64::new(opened.as_millis()),
            pinged: AtomicU64::new(0),
            frame_limit: AtomicUsize::new(HANDSHAKE_BYTES_MAX),
            partial: Partial::default(),
            message_began: AtomicU64::new(0),
            has_said_goodbye: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            unsent: AtomicUsize::new(0),
            blocked: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            received: AtomicU64::new(0),
            closing: AtomicU64::new(0),
            unanswered: AtomicUsize::new(0),
            awaits: AtomicBool::new(false),
            requested: AtomicU64::new(0),
            dialect: OnceLock::new(),
            principal: OnceLock::new(),
            user: OnceLock::new(),
            spoke: AtomicBool::new(false),
            introduction: Mutex::default(),
            actor: OnceLock::new(),
            window: Arc::default(),
        })
    }

    /// Which connection.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// When it was accepted.
    pub fn opened(&self) -> Timestamp {
        self.opened
    }

    /// The protocol spoken; none before the upgrade.
    pub fn dialect(&self) -> Option<&'static str> {
        self.dialect.get().copied()
    }

    /// Who it is; none before the handshake.
    pub fn principal(&self) -> Option<&Arc<str>> {
        self.principal.get()
    }

    /// What it says of itself.
    pub fn introduction(&self) -> Introduction {
        self.introduction.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It says this of itself.
    pub(super) fn introduced(&self, introduction: Introduction) {
        *self.introduction.lock().unwrap_or_else(PoisonError::into_inner) = introduction;
    }

    /// What bounds the events under way to it.
    pub(crate) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Bytes written that the socket has not asked for yet.
    pub fn buffered_bytes(&self) -> usize {
        self.unsent.load(Relaxed)
    }

    /// Bytes handed to the socket so far.
    pub fn taken_bytes(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Bytes that came since it speaks its protocol.
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// So many bytes came.
    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
        self.heard();
    }

    /// An actor speaks on it now.
    pub(super) fn upgraded(&self, dialect: &'static str, actor: Recipient<ConnectionControl>) {
        let _ = self.dialect.set(dialect);
        let _ = self.actor.set(actor);
    }

    /// The handshake is complete: where there is a place for it, larger messages are let in, and it
    /// is no longer one of those that make room.
    pub(super) fn admit(&self, principal: &Principal, frame_limit: usize) -> Result<(), NoPlace> {
        self.registry.admit(self.id, principal)?;
        let _ = self.principal.set(principal.name.clone());
        self.frame_limit.store(frame_limit, Relaxed);
        Ok(())
    }

    /// The user of this host who has the other end of a connection within it. Looked up once.
    ///
    /// # Errors
    /// Why that is not known, or does not count: a program that the daemon keeps is nobody.
    pub(crate) async fn user(&self, means: Means) -> Result<u32, &str> {
        let Peer::Tcp { from, to } = self.peer else { return Err("it is no TCP connection") };
        if self.user.get().is_none() {
            let found = match means {
                Means::SockDiag => socket_owner::owner(means, from, to),
                // It is as long as there are sockets.
                Means::Tables => {
                    let looked = tokio::task::spawn_blocking(move || socket_owner::owner(means, from, to));
                    looked.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
                }
            };
            let found = found.map_err(|error| error.to_string());
            let _ = self.user.set(match found {
                Ok(owner) if kept::are_there() => {
                    let looked = tokio::task::spawn_blocking(move || kept::has_socket(owner.inode)).await;
                    match looked {
                        Ok(false) => Ok(owner.user),
                        Ok(true) => Err("it is a program that the daemon keeps".to_owned()),
                        Err(error) => Err(error.to_string()),
                    }
                }
                found => found.map(|owner| owner.user),
            });
        }
        match self.user.get() {
            Some(Ok(user)) => Ok(*user),
            Some(Err(why)) => Err(why),
            None => Err("it was not looked for"),
        }
    }

    /// The peer said something.
    pub(super) fn speaks(&self) {
        self.spoke.store(true, Relaxed);
    }

    /// Whether the peer ever said something.
    pub(crate) fn has_spoken(&self) -> bool {
        self.spoke.load(Relaxed)
    }

    /// The peer was heard of.
    pub(crate) fn heard(&self) {
        self.heard.store(clock::now().as_millis(), Relaxed);
    }

    /// For how long it was not heard of.
    pub(crate) fn silence(&self, now: Timestamp) -> Duration {
        now.since(Timestamp::from_millis(self.heard.load(Relaxed)))
    }

    pub(super) fn frame_limit(&self) -> usize {
        self.frame_limit.load(Relaxed)
    }

    /// Its messages may have so many bytes from now on.
    pub(super) fn set_frame_limit(&self, bytes: usize) {
        self.frame_limit.store(bytes, Relaxed);
    }

    /// What has come of a message that is not complete.
    pub(super) fn partial(&self) -> &Partial {
        &self.partial
    }

    /// What all connections hold of such messages.
    pub(super) fn partials(&self) -> &Partials {
        self.registry.partials()
    }

    /// A message has begun and is not complete.
    pub(super) fn message_goes_on(&self) {
        if self.message_began.load(Relaxed) == 0 {
            self.message_began.store(clock::now().as_millis().max(1), Relaxed);
        }
    }

    /// No message is under way any more.
    pub(super) fn message_ended(&self) {
        self.message_began.store(0, Relaxed);
    }

    /// For how long a message is under way. While nothing is read from its peer it is not its fault, and
    /// the time begins anew.
    pub(crate) fn message_takes(&self, now: Timestamp) -> Duration {
        match self.message_began.load(Relaxed) {
            0 => Duration::ZERO,
            began if self.may_read() => now.since(Timestamp::from_millis(began)),
            began => {
                let restarted = now.as_millis().max(1);
                let _ = self.message_began.compare_exchange(began, restarted, Relaxed, Relaxed);
                Duration::ZERO
            }
        }
    }

    /// The last words are written: nothing but the peer's own is of interest from now on.
    pub(super) fn says_goodbye(&self) {
        self.has_said_goodbye.store(true, Relaxed);
        self.partial.give_up(self);
        self.message_ended();
    }

    pub(super) fn has_said_goodbye(&self) -> bool {
        self.has_said_goodbye.load(Relaxed)
    }

    /// Closes our half: everything before it is with the kernel, which delivers it.
    pub(super) fn finish(&self) {
        // It may be gone already, which is what is wanted.
        let _ = SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
    }

    /// `bytes` were written and wait to be taken.
    pub(super) fn wrote(&self, bytes: usize) {
        self.unsent.fetch_add(bytes, Relaxed);
    }

    /// The socket has room and asks for more: what was given before is on its way.
    pub(super) fn asked(&self) {
        self.polls.fetch_add(1, Relaxed);
        self.blocked.store(false, Relaxed);
    }

    /// The socket took so many bytes.
    pub(super) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Relaxed);
        self.unsent.store(0, Relaxed);
        self.blocked.store(true, Relaxed);
    }

    /// The socket took so many bytes of those that wait; there is room for more, or for none.
    pub(super) fn took_some(&self, bytes: usize, has_room: bool) {
        self.taken.fetch_add(bytes as u64, Relaxed);
        self.unsent.fetch_sub(bytes, Relaxed);
        self.blocked.store(!has_room, Relaxed);
    }

    /// How often the socket has asked.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Relaxed)
    }

    /// Whether there is room for what the next frame may bring about.
    pub(super) fn may_read(&self) -> bool {
        self.has_room() && self.unanswered.load(Relaxed) < UNANSWERED_MARK && !self.awaits.load(Relaxed)
    }

    /// Nothing more is read from it until it is known who it is.
    pub(super) fn awaits_answer(&self, awaits: bool) {
        self.awaits.store(awaits, Relaxed);
    }

    /// Whether less is unsent than should be at most.
    pub(super) fn has_room(&self) -> bool {
        self.unsent.load(Relaxed) < OUTPUT_MARK_BYTES
    }

    /// A request of this weight was handed on.
    pub(super) fn request_began(&self, weight: usize) {
        self.unanswered.fetch_add(weight, Relaxed);
    }

    /// A request of this weight was answered.
    pub(super) fn request_ended(&self, weight: usize) {
        self.unanswered.fetch_sub(weight, Relaxed);
    }

    /// A plain request came over it.
    pub(crate) fn requested(&self) {
        self.requested.store(clock::now().as_millis(), Relaxed);
    }

    /// How long nobody has asked anything in plain HTTP, and whether anybody ever did.
    pub(crate) fn since_request(&self, now: Timestamp) -> (Duration, bool) {
        match self.requested.load(Relaxed) {
            0 => (now.since(self.opened), false),
            at => (now.since(Timestamp::from_millis(at)), true),
        }
    }

    /// Whether what was written waits for the peer to read.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Relaxed)
    }

    /// Bytes the peer has acknowledged; moves even for a very slow reader.
    pub(crate) fn acknowledged_bytes(&self) -> Option<u64> {
        if self.peer.is_unix() {
            // What a Unix socket took is with the peer, who made the room for it.
            return Some(self.taken_bytes());
        }
        // SAFETY: all-zero bytes are a valid `tcp_info`, which is plain numbers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
        // SAFETY: the descriptor is open as long as `self`, and the kernel writes at most `length`
        // bytes into `info`, which has that many.
        let answer = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        let known = std::mem::offset_of!(libc::tcp_info, tcpi_bytes_acked) + size_of::<u64>();
        (answer == 0 && length as usize >= known).then_some(info.tcpi_bytes_acked)
    }

    /// Tells the actor, where there is one that can take it.
    pub(crate) fn control(&self, control: ConnectionControl) -> bool {
        self.actor.get().is_some_and(|actor| actor.try_send(control).is_ok())
    }

    /// Whether a ping is due that has not been answered or sent since `interval`.
    pub(crate) fn ping_is_due(&self, now: Timestamp, interval: Duration) -> bool {
        let due = self.silence(now) >= interval
            && now.since(Timestamp::from_millis(self.pinged.load(Relaxed))) >= interval;
        if due {
            self.pinged.store(now.as_millis(), Relaxed);
        }
        due
    }

    /// Closes it, once: its actor says why, and without one the peer is told in plain HTTP. What
    /// does not end by that is reset by the listener, whatever its actor does.
    pub fn close(&self, fault: Fault, now: Timestamp) {
        self.close_for(fault, cause(fault), now);
    }

    /// The same, counted under another cause than the fault's own.
    pub(crate) fn close_for(&self, fault: Fault, cause: &'static str, now: Timestamp) {
        if !self.closes(cause, now) {
            return;
        }
        tracing::debug!(connection = self.id.0, peer = %self.peer, ?fault, "closing");
        if self.dialect().is_none() {
            self.turn_away();
        } else if !self.control(ConnectionControl::Fault(fault)) {
            self.reset();
        }
    }

    /// Ends it because something was not done in time, where nobody is there to say so.
    pub(crate) fn give_up(&self, cause: &'static str, now: Timestamp) {
        if self.closes(cause, now) {
            tracing::debug!(connection = self.id.0, peer = %self.peer, cause, "closing");
        }
        self.reset();
    }

    /// The daemon closes it from `now` on and counts it under `cause`; whether nobody did before.
    pub(super) fn closes(&self, cause: &'static str, now: Timestamp) -> bool {
        let first = self.close_begins(now);
        if first {
            self.registry.closes(cause);
        }
        first
    }

    /// Tells a peer that has not upgraded that there is no room for it. A peer without a request
    /// under way has an empty send queue, so this fits or is of no use.
    fn turn_away(&self) {
        let socket = SockRef::from(&self.socket);
        if !self.peer.is_unix() {
            let _ = socket.send(OVERLOADED);
        }
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }

    /// It is being closed from `now` on; whether it was not before.
    pub(crate) fn close_begins(&self, now: Timestamp) -> bool {
        let is_first = self.closing.compare_exchange(0, now.as_millis(), Relaxed, Relaxed).is_ok();
        if is_first && self.principal.get().is_some() {
            self.registry.leaves(self.id);
        }
        is_first
    }

    /// Since when it is being closed.
    pub(crate) fn closing_since(&self) -> Option<Timestamp> {
        match self.closing.load(Relaxed) {
            0 => None,
            since => Some(Timestamp::from_millis(since)),
        }
    }

    /// Ends it at once, whatever its actor does: the peer gets a reset and the kernel frees what it held.
    pub fn reset(&self) {
        let socket = SockRef::from(&self.socket);
        // It may be gone already, which is what is wanted.
        let _ = socket.set_linger(Some(Duration::ZERO));
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

/// The cause that a connection closed for this fault is counted under.
fn cause(fault: Fault) -> &'static str {
    match fault {
        Fault::Oversize { .. } => "oversize",
        Fault::Crowded => "crowded",
        Fault::Incomplete => "incomplete",
        Fault::Slow => "slow",
        Fault::Idle => "idle",
        Fault::Revoked => "revoked",
        Fault::Expired => "expired",
        Fault::CutOff => "cut off",
        Fault::Overloaded => "overloaded",
        Fault::Draining => "draining",
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.registry.partials().forget(self.id);
        self.registry.gone(self.id);
    }
}
