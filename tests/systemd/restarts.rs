//! Restarts while clients connect: whoever passes the sockets keeps them, so nobody is refused, and
//! nothing that was acknowledged is lost.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::parent::Parent;
use crate::support::TIMEOUT;
use crate::support::client::Client;
use crate::support::lines::Lines;
use crate::support::openclaw;
use crate::support::process::percentile;
use crate::support::wundr::Wundr;

/// Those that connect over and over while the daemon is started anew.
const VISITORS: usize = 6;

/// How many there are that stay connected: an exoclaw client each, but for so many of each other kind.
const CLIENTS: usize = 500;
const OTHERS: usize = 20;

/// What became of one visit.
enum Visit {
    /// It was answered.
    Served,
    /// It was let in, and told that the daemon stops.
    Dismissed,
}

/// Connects, upgrades, asks, and takes the answer.
fn visit(address: SocketAddr) -> Result<Visit, String> {
    let say = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let stream = TcpStream::connect(address).map_err(|e| say("connect", &e))?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(|e| say("socket", &e))?;
    let (mut socket, _) =
        tungstenite::client(format!("ws://{address}/ws"), stream).map_err(|e| say("upgrade", &e))?;
    // What can't be sent was closed, which is told by what can be read.
    let _ = socket.send(Message::text(r#"{"id":"v","method":"ping"}"#));
    loop {
        match socket.read().map_err(|e| say("answer", &e))? {
            Message::Text(text) if text.contains("\"v\"") && text.contains("pong") => {
                return Ok(Visit::Served);
            }
            Message::Close(Some(close)) if u16::from(close.code) == 1001 => return Ok(Visit::Dismissed),
            Message::Close(close) => return Err(format!("closed: {close:?}")),
            _ => {}
        }
    }
}

/// The same over the Unix socket.
fn visit_unix(parent: &Parent) -> Result<Visit, String> {
    match parent.ask("admin.status") {
        Ok(answer) if answer.contains("\"version\"") => Ok(Visit::Served),
        Ok(answer) if answer.contains("stopping") || answer.contains("admin.closing") => Ok(Visit::Dismissed),
        other => Err(format!("unix: {other:?}")),
    }
}

#[test]
fn restarts_refuse_nobody() {
    let restarts =
        std::env::var("CLAWMUX_TEST_RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let parent = Parent::new("");
    let mut service = parent.start();
    parent.hears("READY=1");
    let stop = AtomicBool::new(false);
    let (mut down, mut served, mut dismissed, mut refused) = (Vec::new(), 0, 0, Vec::new());
    let mut waited = Vec::new();
    std::thread::scope(|scope| {
        let (parent, stop) = (&parent, &stop);
        let visitors: Vec<_> = (0..VISITORS)
            .map(|visitor| {
                scope.spawn(move || {
                    let mut visits = Vec::new();
                    while !stop.load(Relaxed) {
                        let begun = Instant::now();
                        let visited = match visitor {
                            0 => visit_unix(parent),
                            _ => visit(parent.address()),
                        };
                        visits.push((visited, begun.elapsed()));
                    }
                    visits
                })
            })
            .collect();
        for _ in 0..restarts {
            let begun = Instant::now();
            service.signal("TERM");
            let status = service.ended();
            assert!(status.success(), "a clean stop exits 0: {status}");
            service = parent.start();
            parent.hears("READY=1");
            down.push(begun.elapsed());
        }
        stop.store(true, Relaxed);
        for visit in visitors.into_iter().flat_map(|visitor| visitor.join().unwrap()) {
            waited.push(visit.1);
            match visit.0 {
                Ok(Visit::Served) => served += 1,
                Ok(Visit::Dismissed) => dismissed += 1,
                Err(why) => refused.push(why),
            }
        }
    });
    println!(
        "{restarts} restarts, {} visits: {served} served, {dismissed} told to come back, {} refused; \
         from SIGTERM to ready {:?} (median), {:?} at most; a visit took {:?} at most",
        waited.len(),
        refused.len(),
        percentile(&down, 0.5),
        percentile(&down, 1.0),
        percentile(&waited, 1.0),
    );
    assert!(refused.is_empty(), "{refused:#?}\n{}", parent.log());
    // They did come while it was away.
    assert!(served > restarts, "{served}");
    let slow = waited.iter().filter(|time| **time > Duration::from_millis(20)).count();
    assert!(slow > 0, "nobody had to wait");
    assert!(parent.passed_path().exists(), "the file of the socket is not the daemon's");
}

fn prompt(account: &str) -> Value {
    json!({ "channel": "websocket", "account": account, "content": "/slow 8", "idempotency_key": account })
}

#[test]
fn a_restart_under_many_clients_loses_nothing() {
    let parent = Parent::new("[gateway]\ndrain_timeout_ms = 200\n[limits]\nrequests_burst = 0\n");
    let address = parent.address();
    let mut service = parent.start();
    parent.hears("READY=1");
    let accounts: Vec<String> = (0..CLIENTS - 3 * OTHERS).map(|number| format!("user-{number}")).collect();
    let mut talking: Vec<(Client, String)> = accounts
        .iter()
        .map(|account| {
            let mut client = Client::connect(address);
            let id = client.request("chat.send", prompt(account));
            (client, id)
        })
        .collect();
    let mut wundr: Vec<Wundr> = (0..OTHERS).map(|_| Wundr::connect(address)).collect();
    let mut claws: Vec<Client> = (0..OTHERS).map(|_| openclaw::connect(address, 4)).collect();
    let mut lines: Vec<Lines> = (0..OTHERS).map(|_| Lines::connect_to(&parent.unix_path())).collect();
    for line in &mut lines {
        line.call("admin.status", Value::Null);
    }
    for (client, id) in &mut talking {
        while client.reply(id)["event"] != "accepted" {}
    }

    let begun = Instant::now();
    service.signal("TERM");
    let (stopped, ready) = std::thread::scope(|scope| {
        let restarted = scope.spawn(|| {
            assert!(service.ended().success());
            let stopped = begun.elapsed();
            service = parent.start();
            parent.hears("READY=1");
            (stopped, begun.elapsed())
        });
        // Those that see all that everybody says read while the others are looked at: who does not read is cut off.
        let watched: Vec<_> = claws
            .iter_mut()
            .map(|client| {
                scope.spawn(|| {
                    let said = std::iter::from_fn(|| Some(client.receive()))
                        .find(|frame| frame["event"] == "shutdown");
                    assert!(said.is_some());
                    let end = std::iter::repeat_with(|| client.receive_or_close()).find_map(Result::err);
                    assert_eq!(end.as_deref(), Some("1012"));
                })
            })
            .collect();
        // Each is told in its own words, and comes back at once, before the daemon does.
        for line in &mut lines {
            let said = line.until_closed();
            assert!(said.iter().any(|said| said["method"] == "admin.closing"), "{said:?}");
        }
        watched.into_iter().for_each(|watched| watched.join().unwrap());
        for client in &mut wundr {
            assert!(client.closed().contains("1001"));
        }
        for ((client, id), account) in talking.iter_mut().zip(&accounts) {
            let mut last = Value::Null;
            let end = loop {
                match client.receive_or_close() {
                    Ok(frame) => last = frame,
                    Err(end) => break end,
                }
            };
            assert_eq!((end.as_str(), &last["error"]), ("1001", &json!("draining")), "{last}");
            *client = Client::connect(address);
            *id = client.request("chat.send", prompt(account));
        }
        restarted.join().unwrap()
    });

    let mut restarted = 0;
    for ((client, id), account) in talking.iter_mut().zip(&accounts) {
        let told = client.stream(id);
        assert_eq!((told.events().last(), told.error()), (Some(&"done"), ""), "{told:?}");
        restarted += usize::from(told.events().contains(&"restart"));
        let history = client.call("chat.history", json!({ "channel": "websocket", "account": account }));
        let messages = history["result"]["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 2, "one prompt, one answer: {history}");
        let answer = messages[1]["content"].as_str().unwrap();
        assert!(told.text().ends_with(answer) && !answer.is_empty(), "{told:?} {history}");
    }
    println!(
        "{CLIENTS} clients: stopped after {stopped:?}, ready again after {ready:?}; \
         {restarted} of {} runs were cut off and went on",
        accounts.len()
    );
    // How many depends on how long a machine takes to let all of them in.
    assert!(restarted > 0, "no run was cut off");
}
