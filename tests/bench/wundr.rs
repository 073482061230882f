//! Wundr's protocol: `cargo bench --bench bench -- wundr`.
//!
//! What a `health.ping` costs, alone and 64 deep; and what it costs to tell one session's tokens to
//! many subscribers, beside a program that writes the same bytes to as many sockets.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::load::{self, Figures};
use super::process::Process;
use super::{daemon_on, report};

const PINGS: usize = 50_000;
/// How many pings are under way at once.
const DEPTHS: [usize; 2] = [1, 64];
/// How many subscribe to one session.
const SUBSCRIBERS: [usize; 3] = [1, 100, 1000];
const TOKENS: usize = 100;
const PACE: Duration = Duration::from_millis(20);

/// Measures all.
pub fn measure() {
    pings();
    for subscribers in SUBSCRIBERS {
        fan_out(subscribers);
    }
}

struct Client(WebSocket<TcpStream>);

impl Client {
    /// One that was let in.
    fn connect(address: SocketAddr) -> Self {
        let mut client = Self(upgrade(address, "/v2"));
        client.call(
            "auth.connect",
            &json!({
                "minProtocol": 2, "maxProtocol": 2, "auth": {"type": "api-key", "token": "none"},
                "client": {"id": "bench", "version": "1", "platform": "linux"},
            }),
        );
        client
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let frame = json!({"type": "req", "id": method, "method": method, "params": params});
        self.0.send(Message::text(frame.to_string())).expect("it takes frames");
        loop {
            let frame: Value = serde_json::from_str(&text(&mut self.0)).expect("JSON");
            if frame["type"] == "res" {
                assert_eq!(frame["ok"], true, "{frame}");
                return frame["payload"].clone();
            }
        }
    }
}

fn upgrade(address: SocketAddr, path: &str) -> WebSocket<TcpStream> {
    let request = format!("ws://{address}{path}").into_client_request().expect("a request");
    let stream = TcpStream::connect(address).expect("it accepts");
    stream.set_nodelay(true).expect("no delay");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a deadline");
    tungstenite::client(request, stream).expect("it upgrades").0
}

fn text(socket: &mut WebSocket<TcpStream>) -> String {
    loop {
        if let Message::Text(text) = socket.read().expect("it answers") {
            return text.to_string();
        }
    }
}

fn pings() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = Process::daemon(home.path(), "");
    let echo = Process::limit(&["limit-echo"]);
    for depth in DEPTHS {
        let (ours, rate) = ping(&daemon, depth, || Client::connect(daemon.address).0);
        let (limit, limit_rate) = ping(&echo, depth, || upgrade(echo.address, "/"));
        let what = format!("health.ping, {depth} deep");
        println!("{what}: {rate:.0}/s, limit program {limit_rate:.0}/s");
        report(&what, &ours, &limit);
    }
}

/// Pings of which so many are always under way; gives the figures of one, and how many there are a second.
fn ping(process: &Process, depth: usize, open: impl FnOnce() -> WebSocket<TcpStream>) -> (Figures, f64) {
    const PING: &str = r#"{"type":"req","id":"1","method":"health.ping","params":{"clientTimestamp":1}}"#;
    let mut socket = open();
    let (mut sent, mut latencies) = (VecDeque::new(), Vec::with_capacity(PINGS));
    let (before, begin) = (process.cpu_us(), Instant::now());
    for n in 0..PINGS + depth {
        if n < PINGS {
            sent.push_back(Instant::now());
            socket.write(Message::text(PING)).expect("it takes frames");
        }
        if n + 1 >= depth
            && let Some(at) = sent.pop_front()
        {
            socket.flush().expect("it takes frames");
            text(&mut socket);
            latencies.push(at.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    let rate = PINGS as f64 / begin.elapsed().as_secs_f64();
    (load::figures(PINGS, PINGS, process.cpu_us() - before, latencies), rate)
}

/// One session's tokens to so many.
fn fan_out(subscribers: usize) {
    let upstream = load::upstream(TOKENS, PACE);
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = daemon_on(upstream, home.path());
    let mut speaker = Client::connect(daemon.address);
    let task = json!({"type": "general", "description": "bench"});
    let session = speaker.call(
        "session.create",
        &json!({"orchestratorId": "main", "sessionType": "claude-code", "task": task, "subscribe": false}),
    );
    let id = session["id"].as_str().expect("an id").to_owned();
    let listen = {
        let (id, address) = (id.clone(), daemon.address);
        move || {
            let mut client = Client::connect(address);
            client.call("subscribe", &json!({"events": ["stream.*"], "filter": {"sessionId": id}}));
            client.0
        }
    };
    let resident = daemon.resident_bytes();
    let ours = told(&daemon, subscribers, listen, "stream.end", || {
        speaker.call("prompt.submit", &json!({"sessionId": id, "prompt": "go"}));
    });
    let each = (daemon.resident_bytes().saturating_sub(resident)) as f64 / subscribers as f64 / 1e3;
    let fan = Process::limit(&["limit-fan", &upstream.to_string()]);
    let address = fan.address;
    let limit = told(
        &fan,
        subscribers,
        move || upgrade(address, "/"),
        "[DONE]",
        || {
            let mut socket = upgrade(address, "/");
            socket.send(Message::text("go")).expect("it takes frames");
        },
    );
    let what = format!("a token to one of {subscribers} subscribers");
    report(&what, &ours, &limit);
    println!("{what}: {each:.1} kB resident for each subscriber");
}

/// What `go` has told to so many listeners, up to a frame with `last` in it.
fn told(
    process: &Process,
    listeners: usize,
    listen: impl Fn() -> WebSocket<TcpStream>,
    last: &'static str,
    go: impl FnOnce(),
) -> Figures {
    let ready = Arc::new(Barrier::new(listeners + 1));
    let listening: Vec<_> = (0..listeners)
        .map(|_| {
            // One after the other: so many strangers at once are not all let wait.
            let (mut socket, ready) = (listen(), ready.clone());
            let thread = std::thread::Builder::new().stack_size(256 * 1024);
            let listener = thread.spawn(move || {
                ready.wait();
                let (mut latencies, mut frames) = (Vec::new(), 0);
                loop {
                    let text = text(&mut socket);
                    frames += 1;
                    load::note_tokens(&text, &mut latencies);
                    if text.contains(last) {
                        return (latencies, frames);
                    }
                }
            });
            listener.expect("a thread")
        })
        .collect();
    ready.wait();
    let before = process.cpu_us();
    go();
    let (mut latencies, mut frames) = (Vec::new(), 0);
    for listener in listening {
        let (taken, came) = listener.join().expect("a listener");
        latencies.extend(taken);
        frames += came;
    }
    load::figures(latencies.len(), frames, process.cpu_us() - before, latencies)
}
