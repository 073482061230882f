//! Beside the gateways that the OpenClaw clients were made for: with `-- --peers`.
//!
//! Each gateway in turn, alone on the machine but for its clients and its model, which are this
//! process. What is asked is the same frames for all: those of a device-less client with a token.

use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::load::clock_us;
use crate::load::model::Model;
use crate::npm::Generation;
use crate::process::{Cpu, Process, resident_bytes};
use crate::rows::on_model;
use crate::theirs::Theirs;

const TOKEN: &str = "a-token-of-the-benchmark-4f0c";
/// How long `health` is asked for.
const ASKING: Duration = Duration::from_secs(4);
/// Prompts whose first delta is waited for; the first is not counted.
const PROMPTS: usize = 12;
/// Streams whose deltas are counted: so many at once, of so many tokens, one per so long.
const STREAMS: usize = 4;
const TOKENS: usize = 400;
const PACE: Duration = Duration::from_millis(10);

/// A gateway under measurement.
trait Gateway {
    fn address(&self) -> SocketAddr;
    fn pid(&self) -> u32;
}

impl Gateway for Process {
    fn address(&self) -> SocketAddr {
        self.address
    }
    fn pid(&self) -> u32 {
        self.pid()
    }
}

impl Gateway for Theirs {
    fn address(&self) -> SocketAddr {
        self.address
    }
    fn pid(&self) -> u32 {
        self.pid()
    }
}

/// Measures all, and prints a table.
pub fn compare() {
    // Installed before anything is measured.
    let theirs: Vec<Generation> = Generation::ALL.into_iter().inspect(|each| drop(each.node())).collect();
    println!(
        "{:<22} {:>10} {:>12} {:>13} {:>14} {:>14} {:>10}",
        "gateway", "ready ms", "health/s x1", "health/s x64", "first delta ms", "CPU us/delta", "RSS MB"
    );
    for protocol in [3, 4] {
        let home = tempfile::tempdir().expect("a temporary folder");
        let model = Model::new(TOKENS, PACE);
        let start = || Process::daemon(home.path(), &on_model(&model));
        // Twice, so that its plugins are compiled, as they are from the second start on.
        start().stop();
        row(&format!("clawmux, protocol {protocol}"), protocol, start);
    }
    for generation in theirs {
        let model = Model::new(TOKENS, PACE);
        let base = format!("http://{}/v1", model.address);
        let protocol = if generation == Generation::Clawdbot { 3 } else { 4 };
        row(generation.name(), protocol, || Theirs::start(generation, &base, TOKEN));
    }
}

fn row<G: Gateway>(name: &str, protocol: u64, start: impl FnOnce() -> G) {
    let begin = Instant::now();
    let gateway = start();
    let ready = begin.elapsed().as_secs_f64() * 1e3;
    let (one, many) = (health(&gateway, protocol, 1), health(&gateway, protocol, 64));
    let first = first_delta_ms(&gateway, protocol);
    let cpu = cpu_us_per_delta(&gateway, protocol);
    let resident = resident_bytes(gateway.pid()) / 1e6;
    println!("{name:<22} {ready:>10.0} {one:>12.0} {many:>13.0} {first:>14.1} {cpu:>14.1} {resident:>10.0}");
}

struct Client(WebSocket<TcpStream>);

impl Client {
    fn connect(address: SocketAddr, protocol: u64) -> Self {
        let request = format!("ws://{address}/").into_client_request().expect("a request");
        let stream = TcpStream::connect(address).expect("it accepts");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a deadline");
        let mut client = Self(tungstenite::client(request, stream).expect("it upgrades").0);
        let params = json!({
            "minProtocol": protocol, "maxProtocol": protocol, "role": "operator", "caps": [],
            "scopes": ["operator.admin"], "auth": {"token": TOKEN},
            "client": {"id": "gateway-client", "version": "1", "platform": "linux", "mode": "backend"},
        });
        let hello = client.call("connect", &params);
        assert_eq!(hello["ok"], true, "{hello}");
        client
    }

    fn send(&mut self, method: &str, params: &Value) {
        let frame = json!({"type": "req", "id": method, "method": method, "params": params});
        self.0.send(Message::text(frame.to_string())).expect("it takes frames");
    }

    fn next(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.0.read().expect("it answers") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.send(method, params);
        loop {
            let frame = self.next();
            if frame["type"] == "res" {
                return frame;
            }
        }
    }

    /// Sends a prompt; gives when its first delta came, after its end.
    fn prompt(&mut self, session: &str) -> Duration {
        let key = format!("bench-{session}-{}", clock_us());
        let begin = Instant::now();
        self.send(
            "chat.send",
            &json!({"sessionKey": format!("agent:main:{session}"), "message": "go", "idempotencyKey": key}),
        );
        let mut first = None;
        loop {
            let frame = self.next();
            if frame["type"] == "res" {
                assert_eq!(frame["ok"], true, "{frame}");
            }
            if frame["event"] != "chat" || frame["payload"]["runId"] != key.as_str() {
                continue;
            }
            match frame["payload"]["state"].as_str() {
                Some("delta") => first = first.or(Some(begin.elapsed())),
                Some("final") => return first.unwrap_or_else(|| panic!("a final without a delta: {frame}")),
                Some("error" | "aborted") => panic!("{frame}"),
                _ => {}
            }
        }
    }
}

/// Calls of `health` a second, over so many connections, each asking when it was answered.
fn health(gateway: &impl Gateway, protocol: u64, connections: usize) -> f64 {
    let ready = Barrier::new(connections);
    let address = gateway.address();
    let calls: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..connections)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(address, protocol);
                    ready.wait();
                    let (begin, mut calls) = (Instant::now(), 0);
                    while begin.elapsed() < ASKING {
                        let answer = client.call("health", &json!({}));
                        assert_eq!(answer["ok"], true, "{answer}");
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    calls as f64 / ASKING.as_secs_f64()
}

/// The median over sessions that are new: in one that goes on, a gateway may have the model sum it up first.
fn first_delta_ms(gateway: &impl Gateway, protocol: u64) -> f64 {
    let mut client = Client::connect(gateway.address(), protocol);
    let mut times: Vec<f64> =
        (0..PROMPTS).map(|n| client.prompt(&format!("first-{n}")).as_secs_f64() * 1e3).skip(1).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// CPU time of the gateway for each token that its model streamed.
fn cpu_us_per_delta(gateway: &impl Gateway, protocol: u64) -> f64 {
    let address = gateway.address();
    let cpu = Cpu::of(gateway.pid());
    std::thread::scope(|scope| {
        for n in 0..STREAMS {
            scope.spawn(move || Client::connect(address, protocol).prompt(&format!("stream-{n}")));
        }
    });
    cpu.spent_us() / (STREAMS * TOKENS) as f64
}
