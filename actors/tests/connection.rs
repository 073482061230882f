//! Connections over real sockets, with a scripted stand-in for everything behind them.

#![expect(clippy::unwrap_used, reason = "a test says why it failed by failing")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Context, Handler, Recipient, ResponseFuture};
use actix_web::rt::net::TcpStream;
use clawmux_actors::connection::rates::Rates;
use clawmux_actors::connection::{Protocol, Services, Terms};
use clawmux_actors::devices::Admit;
use clawmux_actors::http::PROTOCOLS;
use clawmux_actors::hub::overview::Overviews;
use clawmux_actors::hub::{Join, Leave, Renew};
use clawmux_actors::listener::{Listener, ListenerSetup, Ready, Stop, bind};
use clawmux_actors::runtime::arbiters::Arbiters;
use clawmux_actors::runtime::clock;
use clawmux_actors::runtime::deliver::{Client, Deliver, More, cost};
use clawmux_actors::runtime::dispatch::{Gone, Request, Routes};
use clawmux_actors::runtime::observe::{Observe, Observed};
use clawmux_actors::tokens::Used;
use clawmux_core::access::auth::{ApiKey, Auth, LoopbackPolicy};
use clawmux_core::access::authority::{Authority, digest};
use clawmux_core::access::{Admitted, Claim, Credentials, DeviceClaim, Secret};
use clawmux_core::config::{Config, Gateway, Limits, OpenClaw};
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::conversation::event::{Event, Logged, Outcome, Published};
use clawmux_core::conversation::reply::{Aborted, Accepted, SessionReply};
use clawmux_core::daemon::command::{DaemonCommand, DaemonReply, GetStatus, Status};
use clawmux_core::dialect::DialectSetup;
use clawmux_core::dialect::{Dialect, Fault, Input, Turn};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, RunId, Seq, SessionKey, Ticket};
use clawmux_core::principal::{Grounds, Principal};
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::command::Command;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::{Role, Scope, Scopes};
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Nothing here takes this long unless it is stuck.
const STUCK: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<TcpStream>;

/// One that comes from a device, and who waits for what becomes of it.
type Arrived = (Admit, oneshot::Sender<Result<Admitted, Error>>);

/// What the stand-in has seen.
#[derive(Default)]
struct Seen {
    sent: AtomicUsize,
    refused: AtomicUsize,
    gone: Mutex<Vec<ConnectionId>>,
    joined: Mutex<Vec<Join>>,
    left: Mutex<Vec<ConnectionId>>,
    /// Devices nobody has decided about, each with where it comes from.
    arrived: Mutex<Vec<Arrived>>,
}

/// Stands for sessions: the prompt `stream N SIZE` is answered with N pieces of text of SIZE bytes;
/// `hold` with nothing, ever.
struct Sessions {
    seen: Arc<Seen>,
    streams: HashMap<ConnectionId, Vec<Telling>>,
    own: Option<Recipient<More>>,
    /// How large the answer to `status` is.
    status_reply_bytes: usize,
}

struct Telling {
    client: Client,
    ticket: Ticket,
    run: RunId,
    next: u64,
    total: u64,
    size: usize,
}

fn key() -> SessionKey {
    SessionKey::new("main", "websocket", "u", "main").unwrap()
}

impl Actor for Sessions {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        use actix::AsyncContext;
        self.own = Some(context.address().recipient());
    }
}

impl Sessions {
    fn deliver(&self, client: &Client, delivery: Deliver) {
        if client.to.try_send(delivery).is_err() {
            self.seen.refused.fetch_add(1, SeqCst);
        }
    }

    fn tell(&mut self, connection: ConnectionId) {
        let mut streams = self.streams.remove(&connection).unwrap_or_default();
        for telling in &mut streams {
            while telling.next <= telling.total {
                let event = if telling.next == telling.total {
                    Event::Ended { outcome: Outcome::Completed, usage: Usage::default() }
                } else {
                    Event::Text(format!("{:0size$}", telling.next, size = telling.size))
                };
                let seq = Seq(telling.next + 2);
                let logged = Logged {
                    first_seq: seq,
                    seq,
                    run: Some(telling.run.clone()),
                    at: Timestamp::default(),
                    event,
                };
                let event = Published::new(key(), logged);
                if !telling.client.window.take(cost(&event), self.own.as_ref().unwrap()) {
                    break;
                }
                self.deliver(&telling.client, Deliver::Event { ticket: telling.ticket, first: seq, event });
                self.seen.sent.fetch_add(1, SeqCst);
                telling.next += 1;
            }
        }
        streams.retain(|telling| telling.next <= telling.total);
        self.streams.insert(connection, streams);
    }
}

impl<C: Send> Handler<Request<C>> for Sessions
where
    Command: From<C>,
{
    type Result = ();

    fn handle(&mut self, request: Request<C>, _: &mut Self::Context) {
        let Request { command, asker, .. } = request;
        let (ticket, client) = (asker.ticket().unwrap(), asker.client().clone());
        let reply = match command.into() {
            Command::Daemon(DaemonCommand::GetStatus(GetStatus)) => {
                Reply::Daemon(DaemonReply::Status(Status {
                    version: "x".repeat(self.status_reply_bytes),
                    plugins: 2,
                    sessions: 5,
                    connections: 1,
                    started: Timestamp::default(),
                    condition: None,
                }))
            }
            Command::Session(SessionCommand::Submit(submit)) => {
                let words: Vec<&str> = submit.content.split(' ').collect();
                let (total, size) = match words[..] {
                    ["stream", total, size] => (total.parse().unwrap(), size.parse().unwrap()),
                    _ => (0, 0),
                };
                let run = submit.run.clone();
                let accepted = Accepted {
                    session: key(),
                    run: run.clone(),
                    seq: Seq(1),
                    repeated: false,
                    is_over: false,
                    ahead: 0,
                };
                asker.reply(Ok(Reply::Session(SessionReply::Accepted(accepted))));
                if total > 0 {
                    let connection = client.connection;
                    let telling = Telling { client, ticket, run, next: 0, total, size };
                    self.streams.entry(connection).or_default().push(telling);
                    self.tell(connection);
                }
                return;
            }
            _ => Reply::Session(SessionReply::Aborted(Aborted { run: None })),
        };
        asker.reply(Ok(reply));
    }
}

fn routes(to: &Addr<Sessions>) -> Routes {
    Routes {
        sessions: to.clone().recipient(),
        approvals: to.clone().recipient(),
        memory: to.clone().recipient(),
        sub_agents: to.clone().recipient(),
        teams: to.clone().recipient(),
        files: to.clone().recipient(),
        jobs: to.clone().recipient(),
        devices: to.clone().recipient(),
        tokens: to.clone().recipient(),
        nodes: to.clone().recipient(),
        plugins: to.clone().recipient(),
        config: to.clone().recipient(),
        daemon: to.clone().recipient(),
        operator: to.clone().recipient(),
    }
}

impl Handler<More> for Sessions {
    type Result = ();

    fn handle(&mut self, more: More, _: &mut Self::Context) {
        self.tell(more.connection);
    }
}

impl Handler<Gone> for Sessions {
    type Result = ();

    fn handle(&mut self, gone: Gone, _: &mut Self::Context) {
        self.streams.remove(&gone.connection);
        self.seen.gone.lock().unwrap().push(gone.connection);
    }
}

impl Handler<Join> for Sessions {
    type Result = ();

    fn handle(&mut self, join: Join, _: &mut Self::Context) {
        self.seen.joined.lock().unwrap().push(join);
    }
}

impl Handler<Renew> for Sessions {
    type Result = ();

    fn handle(&mut self, _: Renew, _: &mut Self::Context) {}
}

impl Handler<Used> for Sessions {
    type Result = ();

    fn handle(&mut self, _: Used, _: &mut Self::Context) {}
}

impl Handler<Leave> for Sessions {
    type Result = ();

    fn handle(&mut self, leave: Leave, _: &mut Self::Context) {
        self.seen.left.lock().unwrap().push(leave.connection);
    }
}

impl Handler<Admit> for Sessions {
    type Result = ResponseFuture<Result<Admitted, Error>>;

    fn handle(&mut self, admit: Admit, _: &mut Self::Context) -> Self::Result {
        let (decide, decision) = oneshot::channel();
        self.seen.arrived.lock().unwrap().push((admit, decide));
        Box::pin(async move { decision.await.unwrap() })
    }
}

/// How a listener is to be.
struct Options {
    gateway: Gateway,
    limits: Limits,
    credentials_required: bool,
    protocols: Vec<Protocol>,
    status_reply_bytes: usize,
    workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        let gateway = Gateway {
            listen: Vec::new(),
            allowed_origins: Vec::new(),
            handshake_timeout: STUCK,
            heartbeat_interval: STUCK,
            heartbeat_timeout: STUCK,
            max_payload_bytes: 1 << 20,
            max_buffered_bytes: 1 << 24,
            max_connections: 1000,
            slow_consumer_timeout: STUCK,
            drain_timeout: STUCK,
            ..Config::default().gateway
        };
        let limits = Limits {
            requests_burst: 100,
            requests_per_second: 1,
            queue: 64,
            subscriptions: 256,
            connections: 256,
            unauthenticated: 256,
            agents: 1,
            agent_depth: 1,
            file_quota_bytes: 1 << 30,
            ..Config::default().limits
        };
        Self {
            gateway,
            limits,
            credentials_required: false,
            protocols: PROTOCOLS.to_vec(),
            status_reply_bytes: 5,
            workers: 1,
        }
    }
}

struct Edge {
    listener: Addr<Listener>,
    address: SocketAddr,
    seen: Arc<Seen>,
    arbiters: Arbiters,
}

impl Edge {
    async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::default();
        change(&mut options);
        Self::start(options).await
    }

    /// One that lets nobody in without a credential.
    async fn guarded(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options { credentials_required: true, ..Options::default() };
        change(&mut options);
        Self::start(options).await
    }

    async fn start(options: Options) -> Self {
        let seen = Arc::new(Seen::default());
        let sessions = Sessions {
            seen: seen.clone(),
            streams: HashMap::new(),
            own: None,
            status_reply_bytes: options.status_reply_bytes,
        }
        .start();
        let reader = ApiKey {
            name: "reader".into(),
            sha256: digest("reader"),
            chars: None,
            scopes: Scopes::of(&[Scope::Read]),
        };
        let auth = Auth {
            token: options.credentials_required.then(|| Secret::new("right")),
            jwt: None,
            loopback: LoopbackPolicy::Auto,
            api_keys: if options.credentials_required { vec![reader] } else { Vec::new() },
        };
        let services = Services {
            terms: Swappable::new(Terms {
                setup: DialectSetup {
                    subscriptions: options.limits.subscriptions,
                    version: "9.9.9".into(),
                    ..DialectSetup::default()
                },
                gateway: options.gateway,
                openclaw: OpenClaw { max_payload_bytes: 1 << 21, ..Config::default().openclaw },
                xeno: Config::default().xeno,
                rates: Arc::new(Rates::new(&options.limits, false)),
            }),
            authority: Arc::new(Authority::new(&auth)),
            routes: routes(&sessions),
            gone: sessions.clone().recipient(),
            devices: sessions.clone().recipient(),
            join: sessions.clone().recipient(),
            leave: sessions.clone().recipient(),
            renew: sessions.clone().recipient(),
            used: sessions.recipient(),
            overviews: Overviews::default(),
            strangers: Arc::default(),
        };
        let arbiters = Arbiters::default();
        let (listener, addresses) = Listener::open(ListenerSetup {
            log: Default::default(),
            condition: Default::default(),
            metrics: None,
            webhooks: None,
            sockets: bind(&["127.0.0.1:0".parse().unwrap()]).unwrap(),
            unix: Vec::new(),
            services: Arc::new(services),
            protocols: options.protocols,
            control_ui: None,
            unauthenticated: options.limits.unauthenticated,
            connections: options.limits.connections,
            workers: options.workers,
            arbiters: arbiters.clone(),
            outlived: false,
        })
        .unwrap();
        listener.send(Ready(true)).await.unwrap();
        Self { listener, address: addresses[0], seen, arbiters }
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn upgraded(&self, path: &str) -> Result<Socket, WsError> {
        let request = format!("ws://{}{path}", self.address).into_client_request().unwrap();
        let config = WebSocketConfig::default().max_frame_size(None).max_message_size(None);
        client_async_with_config(request, self.tcp().await, Some(config)).await.map(|(socket, _)| socket)
    }

    async fn ws(&self) -> Socket {
        self.upgraded("/ws").await.unwrap()
    }

    /// Let in, with the hello read.
    async fn client(&self) -> Socket {
        let mut socket = self.ws().await;
        assert_eq!(next(&mut socket).await, json!({ "ok": true, "version": "9.9.9" }));
        socket
    }

    /// Let in by its token, with the hello read.
    async fn member(&self, token: &str) -> Socket {
        let mut socket = self.ws().await;
        say(&mut socket, json!({ "token": token })).await;
        assert_eq!(next(&mut socket).await["ok"], true);
        socket
    }

    /// A bare socket on which an upgrade was asked for.
    async fn asked(&self) -> TcpStream {
        self.asked_and_sent(&[]).await
    }

    /// The same, with more bytes right behind the request, in one write.
    async fn asked_and_sent(&self, more: &[u8]) -> TcpStream {
        let mut socket = self.tcp().await;
        socket.write_all(&[upgrade_request("/ws", "").as_bytes(), more].concat()).await.unwrap();
        socket
    }

    async fn observe(&self) -> Observed {
        self.listener.send(Observe).await.unwrap()
    }

    /// Waits until the listener's figures are so.
    async fn until(&self, what: &str, mut holds: impl FnMut(&Observed) -> bool) -> Observed {
        let started = Instant::now();
        loop {
            let observed = self.observe().await;
            if holds(&observed) {
                return observed;
            }
            assert!(started.elapsed() < STUCK, "never {what}: {observed:?}");
            actix::clock::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the stand-in has seen, when it has.
    async fn soon<T>(&self, what: &str, look: impl Fn(&Seen) -> Option<T>) -> T {
        let seen = async {
            loop {
                if let Some(found) = look(&self.seen) {
                    return found;
                }
                actix::clock::sleep(Duration::from_millis(2)).await;
            }
        };
        within(what, seen).await
    }

    /// Who has joined, when there is one.
    async fn joined(&self) -> Join {
        self.soon("somebody joins", |seen| seen.joined.lock().unwrap().pop()).await
    }

    /// The device that waits for a decision, when there is one.
    async fn arrival(&self) -> Arrived {
        self.soon("a device arrives", |seen| seen.arrived.lock().unwrap().pop()).await
    }
}

/// A ping has its answer.
async fn is_answered(socket: &mut Socket) {
    say(socket, json!({ "id": "1", "method": "ping" })).await;
    assert_eq!(next(socket).await["result"], "pong");
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    actix::clock::timeout(STUCK, future).await.unwrap_or_else(|_| panic!("stuck: {what}"))
}

async fn message(socket: &mut Socket) -> Option<Result<Message, WsError>> {
    loop {
        match within("reading a message", socket.next()).await {
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => return other,
        }
    }
}

async fn next(socket: &mut Socket) -> Value {
    match message(socket).await {
        Some(Ok(Message::Text(text))) => serde_json::from_str(&text).unwrap(),
        other => panic!("expected text, got {other:?}"),
    }
}

async fn closed(socket: &mut Socket) -> u16 {
    match message(socket).await {
        Some(Ok(Message::Close(Some(frame)))) => frame.code.into(),
        other => panic!("expected a close, got {other:?}"),
    }
}

async fn say(socket: &mut Socket, value: Value) {
    socket.send(Message::Text(value.to_string().into())).await.unwrap();
}

fn prompt(id: &str, content: &str) -> Value {
    json!({ "id": id, "method": "chat.send", "params": { "channel": "websocket", "account": "u", "content": content } })
}

/// The header of a masked frame.
fn header(first: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![first, 0xff];
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0, 0]);
    bytes
}

async fn http(edge: &Edge, request: &str) -> String {
    let mut socket = edge.tcp().await;
    socket.write_all(request.as_bytes()).await.unwrap();
    String::from_utf8(to_the_end(&mut socket, "an answer over http").await).unwrap()
}

/// All that comes up to the end. A refused connection may end in a reset.
async fn to_the_end(socket: &mut TcpStream, what: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = within(what, socket.read_to_end(&mut answer)).await;
    answer
}

async fn whole(socket: &mut TcpStream) -> String {
    String::from_utf8_lossy(&to_the_end(socket, "an answer").await).into_owned()
}

async fn get(edge: &Edge, path: &str) -> String {
    http(edge, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await
}

fn upgrade_request(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}

#[actix::test]
async fn a_client_is_greeted_and_answered() {
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.client().await;
    say(&mut socket, json!({ "token": "whatever" })).await;
    assert_eq!(next(&mut socket).await["ok"], true);
    say(&mut socket, json!({ "id": 1, "method": "ping" })).await;
    assert_eq!(next(&mut socket).await, json!({ "id": 1, "result": "pong" }));
    say(&mut socket, json!({ "id": "2", "method": "status" })).await;
    let expected = json!({ "id": "2", "result": { "version": "xxxxx", "plugins": 2, "sessions": 5 } });
    assert_eq!(next(&mut socket).await, expected);
    socket.send(Message::Binary(vec![0xff].into())).await.unwrap();
    assert_eq!(next(&mut socket).await["id"], "0");
    socket.close(None).await.unwrap();
    edge.until("empty", |observed| observed.children.is_empty()).await;
    edge.soon("departure", |seen| seen.gone.lock().unwrap().pop()).await;
    edge.soon("departure from the hub", |seen| seen.left.lock().unwrap().pop()).await;
}

#[actix::test]
async fn every_worker_enters_its_arbiter() {
    let edge = Edge::start(Options { workers: 3, ..Options::default() }).await;
    edge.client().await;
    edge.until("three arbiters", |_| edge.arbiters.len() == 3).await;
    let mut threads = std::collections::HashSet::new();
    for _ in 0..6 {
        let (tell, told) = tokio::sync::oneshot::channel();
        assert!(edge.arbiters.next().spawn_fn(|| tell.send(std::thread::current().id()).unwrap()));
        threads.insert(within("a thread", told).await.unwrap());
    }
    assert_eq!(threads.len(), 3, "they come in turn");
}

#[actix::test]
async fn a_credential_opens_and_a_wrong_one_closes() {
    let edge = Edge::guarded(|_| {}).await;
    let mut socket = edge.ws().await;
    say(&mut socket, json!({ "token": "right" })).await;
    // Frames right behind a handshake wait for it.
    say(&mut socket, json!({ "id": "1", "method": "ping" })).await;
    assert_eq!(next(&mut socket).await["ok"], true);
    assert_eq!(next(&mut socket).await["result"], "pong");
    let observed = edge.until("known", |observed| !observed.children.is_empty()).await;
    assert_eq!(observed.children[0].state["principal"], "token");
    assert_eq!(observed.state["unauthenticated"], 0);
    for first in [json!({ "token": "wrong" }), json!({ "id": "1", "method": "ping" })] {
        let mut socket = edge.ws().await;
        say(&mut socket, first).await;
        assert_eq!(next(&mut socket).await, json!({ "error": "auth_failed", "code": 4001 }));
        assert_eq!(closed(&mut socket).await, 4001);
    }
}

#[actix::test]
async fn a_handshake_has_a_deadline() {
    let edge = Edge::guarded(|options| options.gateway.handshake_timeout = Duration::from_millis(50)).await;
    let mut socket = edge.ws().await;
    assert_eq!(next(&mut socket).await["error"], "auth_failed");
    assert_eq!(closed(&mut socket).await, 4001);
    // One that never even asks for an upgrade is closed as well.
    let mut silent = edge.tcp().await;
    to_the_end(&mut silent, "a silent socket is closed").await;
    edge.until("empty", |observed| observed.children.is_empty()).await;
}

#[actix::test]
async fn scope_and_rate_are_checked_before_parameters() {
    let edge = Edge::guarded(|options| options.limits.requests_burst = 6).await;
    let mut reader = edge.member("reader").await;
    say(&mut reader, json!({ "id": "1", "method": "chat.send", "params": {} })).await;
    assert_eq!(next(&mut reader).await, json!({ "id": "1", "error": "forbidden: needs write" }));
    say(&mut reader, json!({ "id": "2", "method": "plugin.load", "params": { "name": "x" } })).await;
    assert_eq!(next(&mut reader).await, json!({ "id": "2", "error": "forbidden: needs admin" }));

    // Two connections of one principal share its rate.
    let (mut first, mut second) = (edge.member("right").await, edge.member("right").await);
    say(&mut first, prompt("1", "stream 1 1")).await;
    assert_eq!(next(&mut first).await["event"], "text");
    say(&mut second, json!({ "id": "1", "method": "chat.send", "params": {} })).await;
    let refusal = next(&mut second).await;
    assert!(refusal["error"].as_str().unwrap().starts_with("rate limited: try again in "), "{refusal}");
    say(&mut second, json!({ "id": "2", "method": "ping" })).await;
    assert_eq!(next(&mut second).await["result"], "pong", "pings are free");
}

#[actix::test]
async fn an_announced_gigabyte_is_refused_before_it_comes() {
    for (credentials_required, length) in [(false, 1 << 30), (true, 65_537)] {
        let mut options = Options { credentials_required, ..Options::default() };
        options.limits.requests_burst = 0;
        let edge = Edge::start(options).await;
        let mut socket = edge.asked().await;
        // Not one byte of its payload.
        socket.write_all(&header(0x81, length)).await.unwrap();
        let answer = whole(&mut socket).await;
        assert!(answer.contains(r#"{"error":"frame_too_large","code":1009}"#), "{answer}");
    }
}

#[actix::test]
async fn what_still_comes_after_a_refusal_is_thrown_away() {
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.asked().await;
    socket.write_all(&header(0x81, 1 << 30)).await.unwrap();
    let (mut reading, mut writing) = socket.into_split();
    let flood = actix::spawn(async move {
        let chunk = vec![0; 1 << 16];
        let mut written = 0usize;
        while written < 1 << 26 && writing.write_all(&chunk).await.is_ok() {
            written += chunk.len();
        }
    });
    let is_told = |read: &[u8]| String::from_utf8_lossy(read).contains("frame_too_large");
    until_read(&mut reading, "frame_too_large", is_told).await;
    flood.abort();
    drop(reading);
    edge.until("empty", |observed| observed.children.is_empty()).await;
}

#[actix::test]
async fn the_sum_of_fragments_is_limited_and_large_messages_pass() {
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.client().await;
    let large = prompt("1", &"İ".repeat(400_000));
    say(&mut socket, large).await;
    say(&mut socket, json!({ "id": "2", "method": "ping" })).await;
    assert_eq!(next(&mut socket).await, json!({ "id": "2", "result": "pong" }));

    let mut raw = edge.asked().await;
    // A request in two fragments, with a ping between them.
    let text = br#"{"id":"3","method":"ping"}"#;
    let (left, right) = text.split_at(10);
    for (first, payload) in [(0x01, left), (0x89, &b"x"[..]), (0x80, right)] {
        raw.write_all(&frame(first, payload)).await.unwrap();
    }
    // More than a megabyte, in pieces that each are small.
    for piece in 0..18 {
        let opcode = if piece == 0 { 0x01 } else { 0x00 };
        raw.write_all(&frame(opcode, &[b' '; 60_000])).await.unwrap();
    }
    let answer = whole(&mut raw).await;
    assert!(answer.contains(r#"{"id":"3","result":"pong"}"#), "{answer}");
    assert!(answer.contains("frame_too_large"), "{answer}");
}

#[actix::test]
async fn broken_frames_close_with_the_code_of_the_rfc() {
    let edge = Edge::start(Options::default()).await;
    let cases: [(Vec<u8>, u16); 6] = [
        (vec![0x81, 0x01, b'x'], 1002),
        (frame(0x81, &[0xc3, 0x28]), 1007),
        (header(0xf1, 0), 1002),
        (vec![0x83, 0x80], 1002),
        (vec![0x09, 0x80, 0, 0, 0, 0], 1002),
        (header(0x80, 0), 1002),
    ];
    let edge = &edge;
    futures::future::join_all(cases.map(|(frame, code)| async move {
        let mut socket = edge.asked().await;
        socket.write_all(&frame).await.unwrap();
        let answer = to_the_end(&mut socket, "an answer").await;
        let close = answer.windows(4).any(|window| window[0] == 0x88 && window[2..] == code.to_be_bytes());
        assert!(close, "{frame:02x?}: no close {code} in {:?}", String::from_utf8_lossy(&answer));
    }))
    .await;
}

#[actix::test]
async fn frames_may_come_byte_by_byte() {
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.tcp().await;
    socket.set_nodelay(true).unwrap();
    socket.write_all(upgrade_request("/ws", "").as_bytes()).await.unwrap();
    let frame = frame(0x81, br#"{"id":"1","method":"ping"}"#);
    for byte in frame.repeat(3).chunks(1) {
        socket.write_all(byte).await.unwrap();
        actix::clock::sleep(Duration::from_micros(200)).await;
    }
    let pong = r#"{"id":"1","result":"pong"}"#;
    let are_three = |read: &[u8]| String::from_utf8_lossy(read).matches(pong).count() >= 3;
    until_read(&mut socket, "pongs", are_three).await;
}

/// However broken, the peer is closed and nobody else notices.
#[actix::test]
async fn garbage_hurts_nobody_else() {
    let edge = Edge::start(Options::default()).await;
    let mut steady = edge.client().await;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..50 {
        let mut garbage = Vec::new();
        for _ in 0..64 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            garbage.extend(state.to_be_bytes());
        }
        let mut socket = edge.asked().await;
        let _ = socket.write_all(&garbage).await;
        is_answered(&mut steady).await;
    }
    edge.until("alone", |observed| observed.children.len() == 1).await;
}

#[actix::test]
async fn a_ping_is_answered_within_a_stream() {
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.client().await;
    say(&mut socket, prompt("1", "stream 100000 20")).await;
    for _ in 0..10 {
        assert_eq!(next(&mut socket).await["event"], "text");
    }
    say(&mut socket, json!({ "id": "2", "method": "ping" })).await;
    let mut before = 0;
    while next(&mut socket).await["id"] == "1" {
        before += 1;
    }
    assert!(before < 99_000, "the pong came after {before} events");
}

#[actix::test]
async fn a_slow_reader_is_waited_for_and_gets_everything() {
    const EVENTS: usize = 20_000;
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.client().await;
    say(&mut socket, prompt("1", &format!("stream {EVENTS} 1000"))).await;
    // It does not read: what is under way stops growing, far below what there is to send.
    let observed = edge
        .until("blocked", |observed| {
            observed.children.first().is_some_and(|link| link.state["blocked"] == true)
        })
        .await;
    let mut sent = edge.seen.sent.load(SeqCst);
    let mut still = 0;
    while still < 20 {
        actix::clock::sleep(Duration::from_millis(5)).await;
        let now = edge.seen.sent.load(SeqCst);
        still = if now == sent { still + 1 } else { 0 };
        sent = now;
    }
    assert!(sent < EVENTS / 2, "{sent} events of 1 kB were sent to a peer that does not read");
    assert!(observed.children[0].state["buffered_bytes"].as_u64().unwrap() < 512 * 1024, "{observed:?}");
    for at in 0..EVENTS {
        let frame = next(&mut socket).await;
        assert_eq!(frame["event"], "text");
        assert_eq!(frame["data"].as_str().unwrap().trim_start_matches('0').parse().unwrap_or(0), at);
    }
    assert_eq!(next(&mut socket).await["event"], "usage");
    assert_eq!(next(&mut socket).await["event"], "done");
    assert_eq!(edge.seen.refused.load(SeqCst), 0);
}

#[actix::test]
async fn answers_to_a_peer_that_does_not_read_are_bounded() {
    let edge = Edge::start(Options { status_reply_bytes: 100_000, ..Options::default() }).await;
    let mut socket = edge.client().await;
    for id in 0..2000 {
        say(&mut socket, json!({ "id": id, "method": "status" })).await;
    }
    let blocked = |observed: &Observed| observed.children[0].state["blocked"] == true;
    let observed = edge.until("blocked", blocked).await;
    // 200 MB were asked for.
    let buffered = observed.children[0].state["buffered_bytes"].as_u64().unwrap();
    assert!(buffered < 8_000_000, "{buffered} bytes wait");
    // Some were refused, as there was no room behind the connection either; each has one answer.
    let mut answered = std::collections::BTreeSet::new();
    for _ in 0..2000 {
        let frame = next(&mut socket).await;
        assert!(answered.insert(frame["id"].as_u64().unwrap()), "answered twice: {}", frame["id"]);
        assert!(
            frame.get("result").is_some() || frame["error"].as_str().unwrap().starts_with("unavailable: ")
        );
    }
}

#[actix::test]
async fn a_reader_that_takes_nothing_is_ended() {
    let edge = Edge::with(|options| options.gateway.slow_consumer_timeout = Duration::from_millis(100)).await;
    let mut slow = edge.client().await;
    let mut other = edge.client().await;
    say(&mut slow, prompt("1", "stream 100000 1000")).await;
    let observed = edge.until("only one left", |observed| observed.children.len() == 1).await;
    assert_eq!(observed.state["closed"], json!({ "slow": 1 }));
    is_answered(&mut other).await;
    let mut end = None;
    while let Some(Ok(message)) = within("the rest", slow.next()).await {
        end = Some(message);
    }
    assert!(!matches!(end, Some(Message::Text(text)) if text.contains("done")));
    edge.soon("departure", |seen| seen.gone.lock().unwrap().pop()).await;
}

#[actix::test]
async fn one_whose_actor_hears_nothing_is_ended_when_its_credential_is_revoked() {
    let edge = Edge::with(|options| options.gateway.slow_consumer_timeout = 100 * STUCK).await;
    let mut deaf = edge.client().await;
    say(&mut deaf, prompt("1", "stream 100000 1000")).await;
    edge.until("blocked", |observed| observed.children[0].state["blocked"] == true).await;
    let link = edge.seen.joined.lock().unwrap().pop().unwrap().link;
    link.upgrade().unwrap().close(Fault::Revoked, clock::now());
    let observed = edge.until("ended", |observed| observed.children.is_empty()).await;
    assert_eq!(observed.state["closed"], json!({ "revoked": 1 }));
    assert!(link.upgrade().is_none(), "nothing holds it");
    drop(deaf);
}

/// What the kernel holds for this peer, in bytes.
fn send_queue(edge: &Edge, peer: SocketAddr) -> usize {
    let (local, remote) = (format!(":{:04X}", edge.address.port()), format!(":{:04X}", peer.port()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let of_peer = |fields: &Vec<String>| fields[1].ends_with(&local) && fields[2].ends_with(&remote);
    let fields = table.lines().skip(1).map(fields).find(of_peer).unwrap();
    usize::from_str_radix(fields[4].split(':').next().unwrap(), 16).unwrap()
}

#[actix::test]
async fn a_peer_that_says_goodbye_and_reads_nothing_leaves_no_socket_behind() {
    let mut options = Options { status_reply_bytes: 1000, ..Options::default() };
    options.gateway.slow_consumer_timeout = 100 * STUCK;
    options.gateway.heartbeat_interval = 100 * STUCK;
    options.gateway.heartbeat_timeout = 100 * STUCK;
    let edge = Edge::start(options).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(edge.address).await.unwrap();
    let peer = socket.local_addr().unwrap();
    socket.write_all(upgrade_request("/ws", "").as_bytes()).await.unwrap();
    let ask = frame(0x81, br#"{"id":"1","method":"status"}"#);
    // Until the kernel holds what we do not read, and the daemon hears us still.
    while send_queue(&edge, peer) < 4000 {
        socket.write_all(&ask).await.unwrap();
        actix::clock::sleep(Duration::from_millis(5)).await;
    }
    let observed = edge.observe().await;
    assert_eq!(observed.children[0].state["blocked"], false, "it is heard still: {observed:?}");
    socket.write_all(&header(0x88, 0)).await.unwrap();
    edge.until("gone", |observed| observed.children.is_empty()).await;
    drop(socket);
}

#[actix::test]
async fn a_silent_peer_is_closed_and_one_that_answers_pings_is_not() {
    let mut options = Options::default();
    options.gateway.heartbeat_interval = Duration::from_millis(100);
    options.gateway.heartbeat_timeout = Duration::from_millis(1000);
    let edge = Edge::start(options).await;
    let mut silent = edge.client().await;
    let mut lively = edge.client().await;
    let lively = actix::spawn(async move {
        let mut pings = 0;
        while let Some(Ok(message)) = lively.next().await {
            pings += usize::from(message.is_ping());
            if pings == 15 {
                return;
            }
        }
        panic!("a peer that answers pings was closed after {pings} of them");
    });
    edge.until("one left", |observed| observed.children.len() < 2).await;
    assert_eq!(next(&mut silent).await, json!({ "error": "idle_timeout", "code": 4008 }));
    assert_eq!(closed(&mut silent).await, 4008);
    within("pings", lively).await.unwrap();
}

#[actix::test]
async fn a_flood_before_the_handshake_costs_the_oldest() {
    let edge = Edge::guarded(|options| options.limits.unauthenticated = 4).await;
    let mut member = edge.member("right").await;
    let mut oldest = edge.ws().await;
    let mut flood = Vec::new();
    for _ in 0..20 {
        flood.push(edge.tcp().await);
    }
    assert_eq!(next(&mut oldest).await, json!({ "error": "overloaded", "code": 1013 }));
    assert_eq!(closed(&mut oldest).await, 1013);
    let _newest = edge.member("right").await;
    is_answered(&mut member).await;
    let observed = edge.until("few", |observed| observed.children.len() <= 7).await;
    assert!(observed.state["unauthenticated"].as_u64().unwrap() <= 4, "{observed:?}");
}

#[actix::test]
async fn one_connection_too_many_is_told() {
    let edge = Edge::with(|options| options.gateway.max_connections = 2).await;
    let (mut first, _second) = (edge.client().await, edge.client().await);
    let answer = http(&edge, &upgrade_request("/ws", "")).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains(r#"{"error":"too many connections (max_connections = 2)"}"#), "{answer}");
    is_answered(&mut first).await;
    assert!(get(&edge, "/healthz").await.starts_with("HTTP/1.1 200"));
    drop(first);
    edge.until("room", |observed| observed.children.len() == 1).await;
    edge.client().await;
}

#[actix::test]
async fn a_place_is_for_those_who_show_who_they_are() {
    let edge = Edge::guarded(|options| options.gateway.max_connections = 1).await;
    // Nobody has it when these upgrade.
    let (mut first, mut second) = (edge.ws().await, edge.ws().await);
    say(&mut first, json!({ "token": "right" })).await;
    assert_eq!(next(&mut first).await["ok"], true);
    say(&mut second, json!({ "token": "right" })).await;
    assert_eq!(next(&mut second).await, json!({ "error": "overloaded", "code": 1013 }));
    assert_eq!(closed(&mut second).await, 1013);
    let answer = http(&edge, &upgrade_request("/ws", "")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 5"), "{answer}");
    is_answered(&mut first).await;
}

/// A protocol of this path, to be spoken by a dialect of a test.
fn protocol(path: &'static str) -> Protocol {
    Protocol {
        path,
        name: &path[1..],
        may_skip: true,
        is_announced_to: false,
        max_payload_bytes: |terms| terms.gateway.max_payload_bytes,
        dialect: |_| unreachable!("each test has a dialect of its own"),
    }
}

/// A dialect that panics when it is told to.
struct Fragile;

impl Dialect for Fragile {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match input {
            Input::Opened => turn.authenticate(Credentials::None),
            Input::Frame(_) => panic!("as told"),
            _ => turn.send("fine"),
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        None
    }
}

#[actix::test]
async fn a_panic_ends_its_own_connection_only() {
    let mut options = Options::default();
    options.protocols.push(Protocol { dialect: |_| Box::new(Fragile), ..protocol("/fragile") });
    let edge = Edge::start(options).await;
    let mut steady = edge.client().await;
    for _ in 0..3 {
        let mut fragile = edge.upgraded("/fragile").await.unwrap();
        assert_eq!(message(&mut fragile).await.unwrap().unwrap(), Message::text("fine"));
        fragile.send(Message::text("x")).await.unwrap();
        assert_eq!(closed(&mut fragile).await, 1011);
    }
    is_answered(&mut steady).await;
    edge.until("one left", |observed| observed.children.len() == 1).await;
}

/// Says how many bytes it was told.
struct Measures;

impl Dialect for Measures {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match input {
            Input::Opened => turn.authenticate(Credentials::None),
            Input::Frame(frame) => turn.send(frame.len().to_string()),
            Input::Fault(Fault::Oversize { limit }) => turn.send(format!("at most {limit}")),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        None
    }
}

#[actix::test]
async fn each_protocol_has_a_largest_frame_of_its_own() {
    let mut options = Options::default();
    options.protocols.push(Protocol {
        max_payload_bytes: |terms| terms.openclaw.max_payload_bytes,
        dialect: |_| Box::new(Measures),
        ..protocol("/roomy")
    });
    let edge = Edge::start(options).await;
    let mut roomy = edge.upgraded("/roomy").await.unwrap();
    for bytes in [3 << 19, 1 << 21] {
        roomy.send(Message::text("x".repeat(bytes))).await.unwrap();
        assert_eq!(message(&mut roomy).await.unwrap().unwrap(), Message::text(bytes.to_string()));
    }
    roomy.send(Message::text("x".repeat((1 << 21) + 1))).await.unwrap();
    assert_eq!(message(&mut roomy).await.unwrap().unwrap(), Message::text("at most 2097152"));
    assert_eq!(closed(&mut roomy).await, 1009);
    let mut other = edge.client().await;
    other.send(Message::text("x".repeat(3 << 19))).await.unwrap();
    assert_eq!(next(&mut other).await, json!({ "error": "frame_too_large", "code": 1009 }));
    assert_eq!(closed(&mut other).await, 1009);
}

#[actix::test]
async fn a_client_that_leaves_within_a_stream_is_forgotten() {
    let edge = Edge::start(Options::default()).await;
    let mut leaving = edge.client().await;
    say(&mut leaving, prompt("1", "stream 1000000 100")).await;
    next(&mut leaving).await;
    drop(leaving);
    edge.until("empty", |observed| observed.children.is_empty()).await;
    edge.soon("departure", |seen| seen.gone.lock().unwrap().pop()).await;
}

#[actix::test]
async fn notices_of_the_hub_close_in_the_protocols_words() {
    let edge = Edge::start(Options::default()).await;
    let mut socket = edge.client().await;
    let joined = edge.joined().await;
    assert_eq!(&*joined.principal.name, "local");
    joined.link.upgrade().unwrap().close(Fault::Revoked, clock::now());
    assert_eq!(next(&mut socket).await, json!({ "error": "credential_revoked", "code": 4001 }));
    assert_eq!(closed(&mut socket).await, 4001);
}

#[actix::test]
async fn a_stop_says_goodbye_and_does_not_wait_for_the_deaf() {
    let edge = Edge::start(Options::default()).await;
    let mut polite = edge.client().await;
    let mut deaf = edge.client().await;
    say(&mut deaf, prompt("1", "stream 100000 1000")).await;
    edge.until("blocked", |observed| observed.children.iter().any(|link| link.state["blocked"] == true))
        .await;
    let listener = edge.listener.clone();
    let stop = actix::spawn(async move { listener.send(Stop).await.unwrap() });
    assert_eq!(next(&mut polite).await, json!({ "error": "draining", "code": 1001 }));
    assert_eq!(closed(&mut polite).await, 1001);
    within("the stop", stop).await.unwrap();
    assert!(TcpStream::connect(edge.address).await.is_err(), "its socket is closed");
    drop(deaf);
}

#[actix::test]
async fn pages_are_answered_and_upgrades_are_checked_first() {
    let edge = Edge::start(Options::default()).await;
    for (path, status, text) in [
        ("/healthz", 200, r#"{"ok":true}"#),
        ("/health", 200, "\r\n\r\nok"),
        ("/readyz", 200, r#"{"ready":true}"#),
        ("/", 200, "clawmux 9.9.9"),
        ("/ws", 426, "exoclaw is spoken over a websocket"),
        ("/v2", 426, "wundr is spoken over a websocket"),
        ("/admin", 426, "upgrade"),
        ("/metrics", 404, "no such page"),
        ("/webhook/telegram", 405, "a webhook takes POST"),
        ("/nothing", 404, "no such page"),
        ("/v2x", 404, "no such page"),
    ] {
        let answer = get(&edge, path).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(text),
            "{path}: {answer}"
        );
    }
    for (path, more, status) in [
        ("/", "Origin: http://evil.example\r\n", 403),
        ("/metrics", "", 404),
        ("/admin", "Origin: http://evil.example\r\n", 403),
        ("/admin", "X-Forwarded-For: 1.2.3.4\r\n", 403),
        ("/nothing", "", 404),
        ("/ws", "Origin: http://evil.example\r\n", 403),
        ("/ws", "X-Forwarded-For: 1.2.3.4\r\n", 403),
        ("/ws", "Forwarded: for=1.2.3.4\r\n", 403),
        ("/ws", "Origin: http://localhost:1\r\n", 403),
    ] {
        let request =
            upgrade_request(path, more).replace("Connection: Upgrade", "Connection: Upgrade, close");
        let mut socket = edge.tcp().await;
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        within("an answer", socket.read_exact(&mut start)).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&start), format!("HTTP/1.1 {status}"), "{path} {more}");
    }
    let foreign = upgrade_request("/ws", "").replace("Host: localhost", "Host: evil.example");
    assert!(http(&edge, &foreign).await.starts_with("HTTP/1.1 403"));
    let proxied = upgrade_request("/ws", "").replace("GET /ws", "GET http://evil.example/ws");
    assert!(http(&edge, &proxied).await.starts_with("HTTP/1.1 403"), "the target names another host");
    edge.listener.send(Ready(false)).await.unwrap();
    assert!(get(&edge, "/readyz").await.starts_with("HTTP/1.1 503"));
    assert!(http(&edge, &upgrade_request("/ws", "")).await.starts_with("HTTP/1.1 503"));
    assert!(get(&edge, "/healthz").await.starts_with("HTTP/1.1 200"));
}

/// A dialect whose first frame is a device's claim; what comes then it repeats.
struct Bound {
    deadline: Option<Timestamp>,
    known: bool,
}

impl Dialect for Bound {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        match input {
            Input::Frame(clawmux_core::dialect::Frame::Text(text)) if !self.known => {
                self.known = true;
                let device = DeviceClaim { id: (&*text).into(), public_key: [0; 32], token: None };
                turn.authenticate(Claim { device: Some(device), role: Role::Node, ..Claim::default() });
            }
            Input::Frame(clawmux_core::dialect::Frame::Text(text)) => turn.send(text),
            Input::Authenticated(Ok(admitted)) => {
                self.deadline = None;
                turn.send(format!("in as {}", admitted.principal.name));
            }
            Input::Authenticated(Err(error)) => turn.close(1008, error.message),
            Input::Tick => turn.close(1000, "too late"),
            Input::Fault(Fault::Revoked) => turn.close(4001, "revoked"),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }
}

async fn bound(required: bool, handshake_timeout: Duration) -> Edge {
    let mut options = Options { credentials_required: required, ..Options::default() };
    options.gateway.handshake_timeout = handshake_timeout;
    options.protocols.push(Protocol {
        may_skip: false,
        dialect: |setup| Box::new(Bound { deadline: Some(setup.handshake_deadline), known: false }),
        ..protocol("/bound")
    });
    Edge::start(options).await
}

fn ada() -> Admitted {
    // By the first credential of the configuration.
    Principal { grounds: Grounds::Configured(1), ..Principal::new("ada", Scopes::USER) }.into()
}

async fn text(socket: &mut Socket) -> String {
    match message(socket).await.unwrap().unwrap() {
        Message::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    }
}

#[actix::test]
async fn what_comes_behind_a_device_waits_until_it_is_decided_about() {
    let edge = bound(true, STUCK).await;
    let mut socket = edge.upgraded("/bound").await.unwrap();
    for frame in ["dev-1", "first", "second"] {
        socket.feed(Message::text(frame)).await.unwrap();
    }
    // More than is let in before a handshake; it is looked at when it is over.
    socket.feed(Message::text("x".repeat(100_000))).await.unwrap();
    socket.flush().await.unwrap();
    let (Admit { arrival, .. }, decide) = edge.arrival().await;
    assert_eq!((&*arrival.device.id, arrival.claim.role, arrival.is_loopback), ("dev-1", Role::Node, true));
    assert!(edge.seen.joined.lock().unwrap().is_empty(), "nobody is in yet");
    decide.send(Ok(ada())).unwrap();
    assert_eq!(text(&mut socket).await, "in as ada");
    assert_eq!(text(&mut socket).await, "first");
    assert_eq!(text(&mut socket).await, "second");
    assert_eq!(text(&mut socket).await.len(), 100_000);
    let joined = edge.joined().await;
    let client_info = &joined.client_info;
    assert_eq!(
        (client_info.device.as_deref(), client_info.role, client_info.is_paired),
        (Some("dev-1"), Role::Node, true)
    );
    joined.link.upgrade().unwrap().close(Fault::Revoked, clock::now());
    assert_eq!(closed(&mut socket).await, 4001);
}

#[actix::test]
async fn who_is_not_let_in_hears_why_and_what_came_behind_is_dropped() {
    let edge = bound(true, STUCK).await;
    let mut socket = edge.upgraded("/bound").await.unwrap();
    socket.feed(Message::text("dev-1")).await.unwrap();
    socket.feed(Message::text("first")).await.unwrap();
    socket.flush().await.unwrap();
    let (_, decide) = edge.arrival().await;
    decide.send(Err(ErrorCode::Forbidden.error("not you"))).unwrap();
    assert_eq!(closed(&mut socket).await, 1008);
    assert!(edge.seen.joined.lock().unwrap().is_empty());
}

#[actix::test]
async fn the_deadline_of_the_handshake_holds_while_somebody_decides() {
    let edge = bound(true, Duration::from_millis(50)).await;
    let mut socket = edge.upgraded("/bound").await.unwrap();
    socket.send(Message::text("dev-1")).await.unwrap();
    let (_, decide) = edge.arrival().await;
    assert_eq!(closed(&mut socket).await, 1000);
    // The answer comes too late and lets nobody in.
    let _ = decide.send(Ok(ada()));
    drop(socket);
    edge.soon("departure", |seen| seen.gone.lock().unwrap().pop()).await;
    assert!(edge.seen.joined.lock().unwrap().is_empty());
}

#[actix::test]
async fn where_no_credential_is_required_no_device_is_looked_at() {
    let edge = bound(false, STUCK).await;
    let mut socket = edge.upgraded("/bound").await.unwrap();
    socket.send(Message::text("dev-1")).await.unwrap();
    assert_eq!(text(&mut socket).await, "in as local");
    assert!(edge.seen.arrived.lock().unwrap().is_empty());
    assert!(!edge.joined().await.client_info.is_paired);
}

#[actix::test]
async fn a_device_behind_a_proxy_is_not_of_this_host() {
    let edge = bound(true, STUCK).await;
    let mut request = format!("ws://{}/bound", edge.address).into_client_request().unwrap();
    request.headers_mut().insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
    let (mut socket, _) = client_async_with_config(request, edge.tcp().await, None).await.unwrap();
    socket.send(Message::text("dev-1")).await.unwrap();
    let (Admit { arrival, .. }, _decide) = edge.arrival().await;
    assert!(!arrival.is_loopback);
}

/// A frame with a payload, masked with zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    [header(first, payload.len() as u64), payload.to_vec()].concat()
}

/// Reads up to the end of a Close frame with this code; what came before it.
async fn read_to_close(socket: &mut TcpStream, code: u16) -> Vec<u8> {
    let [high, low] = code.to_be_bytes();
    let end = |read: &[u8]| {
        let end = read.windows(4).position(|bytes| bytes[0] == 0x88 && bytes[2..] == [high, low]);
        end.filter(|end| read.len() >= end + 2 + usize::from(read[end + 1]))
    };
    let mut read = until_read(socket, &format!("close {code}"), |read| end(read).is_some()).await;
    read.truncate(end(&read).unwrap());
    read
}

/// How long it takes until the other half is closed; nothing comes before.
async fn until_the_end(socket: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let mut rest = Vec::new();
    within("the end", socket.read_to_end(&mut rest)).await.expect("an end, and no reset");
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    begun.elapsed()
}

#[actix::test]
async fn the_last_close_is_followed_by_the_end_of_the_connection_at_once() {
    let options = || Options { credentials_required: true, ..Options::default() };
    let edge = Edge::start(options()).await;
    let goodbye = frame(0x88, &1000_u16.to_be_bytes());
    // The shortest of a few: this machine may be busy.
    let mut shortest = [Duration::MAX; 4];
    for _ in 0..5 {
        // The peer says goodbye first.
        let mut socket = edge.asked_and_sent(&frame(0x81, br#"{"token":"right"}"#)).await;
        socket.write_all(&goodbye).await.unwrap();
        let said = read_to_close(&mut socket, 1000).await;
        assert!(String::from_utf8_lossy(&said).contains(r#"{"ok":true"#), "what came before it is there");
        shortest[0] = shortest[0].min(until_the_end(&mut socket).await);

        // The daemon does, and the peer answers.
        let mut socket = edge.asked_and_sent(&frame(0x81, br#"{"token":"wrong"}"#)).await;
        let said = read_to_close(&mut socket, 4001).await;
        assert!(String::from_utf8_lossy(&said).contains("auth_failed"));
        socket.write_all(&goodbye).await.unwrap();
        shortest[1] = shortest[1].min(until_the_end(&mut socket).await);

        // The peer can't be understood: nothing it says from then on counts.
        let mut socket = edge.asked_and_sent(&[0x83, 0x80]).await;
        read_to_close(&mut socket, 1002).await;
        shortest[2] = shortest[2].min(until_the_end(&mut socket).await);

        // It may not even upgrade.
        let mut socket = edge.tcp().await;
        let refused = upgrade_request("/ws", "Origin: https://elsewhere.example\r\n");
        socket.write_all(refused.as_bytes()).await.unwrap();
        let refusal = until_read(&mut socket, "a refusal", |read| read.ends_with(b"}")).await;
        assert!(refusal.starts_with(b"HTTP/1.1 403 "));
        shortest[3] = shortest[3].min(until_the_end(&mut socket).await);
    }
    println!("from the last close to the end of the connection: {shortest:?}");
    assert!(shortest.iter().all(|time| *time < Duration::from_millis(400)), "{shortest:?}");
}

#[actix::test]
async fn what_was_said_before_a_close_is_delivered() {
    const BYTES: usize = 300_000;
    let edge = Edge::start(Options { status_reply_bytes: BYTES, ..Options::default() }).await;
    let mut socket = edge.asked_and_sent(&frame(0x81, br#"{"id":"1","method":"status"}"#)).await;
    // Some of the answer is there, the rest waits for a peer that is slow to read and goes on sending.
    let begins = |read: &[u8]| read.windows(4).any(|bytes| bytes == b"xxxx");
    let mut read = until_read(&mut socket, "the answer", begins).await;
    socket.write_all(&frame(0x88, &1000_u16.to_be_bytes())).await.unwrap();
    socket.write_all(&frame(0x81, &[b'y'; 10_000])).await.unwrap();
    actix::clock::sleep(Duration::from_millis(100)).await;
    read.extend(read_to_close(&mut socket, 1000).await);
    assert!(read.iter().filter(|byte| **byte == b'x').count() >= BYTES);
    until_the_end(&mut socket).await;
}

/// Upgraded and let in, with the hello read.
async fn raw(edge: &Edge, path: &str) -> TcpStream {
    let mut socket = edge.tcp().await;
    socket.write_all(upgrade_request(path, "").as_bytes()).await.unwrap();
    until_said(&mut socket, r#"{"ok":true"#).await;
    socket
}

/// Reads until this was said.
async fn until_said(socket: &mut TcpStream, what: &str) {
    until_read(socket, what, |read| String::from_utf8_lossy(read).contains(what)).await;
}

/// Reads until what was read is so.
async fn until_read(
    socket: &mut (impl AsyncReadExt + Unpin),
    what: &str,
    is_enough: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    while !is_enough(&read) {
        let bytes = within(what, socket.read(&mut piece)).await.unwrap();
        assert!(bytes > 0, "no {what} in {:?}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..bytes]);
    }
    read
}

#[actix::test]
async fn unfinished_messages_have_room_together_and_the_largest_gives_way() {
    const ROOM: usize = 4 << 20;
    let edge = Edge::with(|options| options.gateway.max_unfinished_bytes = ROOM).await;
    let held = async || edge.observe().await.state["unfinished_bytes"].as_u64().unwrap() as usize;
    // A small one stays whatever the large ones do.
    let ping = br#"{"id":"1","method":"ping"}"#;
    let mut small = raw(&edge, "/ws").await;
    small.write_all(&header(0x01, 10)).await.unwrap();
    small.write_all(&ping[..10]).await.unwrap();
    edge.until("counted", |observed| observed.state["unfinished_bytes"] == 4096).await;

    let mut large = Vec::new();
    for number in 0..12 {
        let mut socket = raw(&edge, "/ws").await;
        // All but one byte of a frame, or of fragments.
        let bytes = 600_000 + number * 1000;
        if number % 2 == 0 {
            socket.write_all(&header(0x81, bytes + 1)).await.unwrap();
            socket.write_all(&vec![b' '; bytes as usize]).await.unwrap();
        } else {
            let half = vec![b' '; bytes as usize / 2];
            socket.write_all(&[frame(0x01, &half), frame(0x00, &half)].concat()).await.unwrap();
        }
        large.push(socket);
        assert!(held().await <= ROOM);
    }
    let told =
        edge.until("some gave way", |observed| observed.state["closed"]["crowded"].as_u64() >= Some(5)).await;
    assert!(held().await <= ROOM, "{told:?}");
    let mut kept = 0;
    for mut socket in large {
        let mut answer = [0; 512];
        match actix::clock::timeout(Duration::from_millis(20), socket.read(&mut answer)).await {
            Err(_) => kept += 1,
            Ok(read) => {
                let said = String::from_utf8_lossy(&answer[..read.unwrap()]).into_owned();
                assert!(said.contains(r#"{"error":"message_crowded_out","code":1013}"#), "{said}");
            }
        }
    }
    assert!((5..=6).contains(&kept), "as many as there is room for: {kept}");
    small.write_all(&frame(0x80, &ping[10..])).await.unwrap();
    until_said(&mut small, "pong").await;
    edge.until("let go", |observed| observed.state["unfinished_bytes"] == 0).await;
}

#[actix::test]
async fn a_message_has_to_be_complete_in_time() {
    let edge = Edge::with(|options| options.gateway.message_timeout = Duration::from_millis(300)).await;
    let ping = br#"{"id":"1","method":"ping"}"#;
    // Silent between messages for longer than one may take.
    let mut patient = raw(&edge, "/ws").await;
    let begun = Instant::now();
    let drips: [&[u8]; 3] = [
        // One byte after the other of a header, of a payload, and fragment after fragment.
        &[0x81, 0xff, 0, 0, 0, 0, 0, 0, 0, 9],
        &frame(0x81, &[b' '; 60])[..],
        &frame(0x00, b" ").repeat(20)[..],
    ];
    for (number, drip) in drips.into_iter().enumerate() {
        let mut socket = raw(&edge, "/ws").await;
        if number == 2 {
            socket.write_all(&frame(0x01, b"{")).await.unwrap();
        }
        let (mut reading, mut writing) = socket.into_split();
        let drip = drip.to_vec();
        let dripping = actix::spawn(async move {
            for byte in drip.chunks(if number == 2 { 15 } else { 1 }) {
                if writing.write_all(byte).await.is_err() {
                    break;
                }
                actix::clock::sleep(Duration::from_millis(50)).await;
            }
            std::future::pending::<()>().await;
        });
        let (mut read, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(bytes @ 1..) = within("the end", reading.read(&mut piece)).await {
            read.extend_from_slice(&piece[..bytes]);
        }
        let said = String::from_utf8_lossy(&read);
        assert!(said.contains(r#"{"error":"message_timeout","code":4008}"#), "{number}: {said}");
        dripping.abort();
    }
    assert!(begun.elapsed() > Duration::from_millis(600));
    patient.write_all(&frame(0x81, ping)).await.unwrap();
    until_said(&mut patient, "pong").await;
    let closed = edge.observe().await.state["closed"]["incomplete"].clone();
    assert_eq!(closed, 3);
}

#[actix::test]
async fn only_who_may_write_may_send_much() {
    let edge = Edge::guarded(|options| options.gateway.max_payload_bytes = 32 << 20).await;
    for (token, is_refused) in [("reader", true), ("right", false)] {
        let shown = frame(0x81, json!({ "token": token }).to_string().as_bytes());
        let mut socket = edge.asked_and_sent(&shown).await;
        until_said(&mut socket, r#"{"ok":true"#).await;
        // A megabyte passes, and what is no more than announced is refused beyond it.
        socket.write_all(&frame(0x81, &vec![b' '; 1 << 20])).await.unwrap();
        until_said(&mut socket, "error").await;
        socket.write_all(&header(0x81, 24 << 20)).await.unwrap();
        if is_refused {
            until_said(&mut socket, r#"{"error":"frame_too_large","code":1009}"#).await;
            assert_eq!(edge.observe().await.state["unfinished_bytes"], 0);
        } else {
            socket.write_all(&vec![b' '; 2 << 20]).await.unwrap();
            let much = |observed: &Observed| observed.state["unfinished_bytes"].as_u64() >= Some(2 << 20);
            edge.until("taken", much).await;
        }
    }
}
