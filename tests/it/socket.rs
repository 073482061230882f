//! The Unix socket as a transport, and the operator's protocol on it and on `/admin`.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::lines::Lines;
use crate::support::process::peak_bytes;
use crate::support::{TIMEOUT, eventually};

const ADA: &str = "main:websocket:ada:main";

/// The most connections on the Unix socket.
const CONNECTIONS_MAX: usize = 128;

fn socket(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.home().join(".xeno/gateway.sock")).expect("it accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a deadline is set");
    stream
}

/// All that comes until the daemon closes.
fn rest(stream: &mut UnixStream) -> Vec<Value> {
    let mut text = String::new();
    // What it did not read makes the close a reset; what it said comes first.
    let _ = stream.read_to_string(&mut text);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn status(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"admin.status"}}"#)
}

#[test]
fn who_closes_his_half_gets_his_answers_and_an_unfinished_line_is_none() {
    let daemon = Daemon::start();
    let mut stream = socket(&daemon);
    let said = format!(" \t{}\r\n\n \r\n{}\n\u{0}\n{}\n{}", status(1), status(2), status(3), status(4));
    // Whatever pieces it comes in.
    for piece in said.as_bytes().chunks(7) {
        stream.write_all(piece).expect("it takes bytes");
    }
    stream.write_all(b"\n\xff\xfe\n{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"admin.drain\"}").expect("more");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let answers = rest(&mut stream);
    let results: Vec<u64> =
        answers.iter().filter(|a| a["result"]["pid"].is_u64()).filter_map(|a| a["id"].as_u64()).collect();
    assert_eq!(results, [1, 2, 3, 4], "{answers:?}");
    let broken = answers.iter().any(|answer| answer["error"]["code"] == -32700 && answer["id"].is_null());
    assert!(broken, "what is not UTF-8 is told so: {answers:?}");
    assert_eq!(Lines::connect(daemon.home()).call("admin.status", json!({}))["draining"], false);
}

#[test]
fn a_line_may_be_long_and_no_longer_and_memory_stays_bounded() {
    let daemon = Daemon::with("[xeno]\nmax_line_bytes = 1048576\n");
    let mut lines = Lines::connect(daemon.home());
    let line = |length: usize| {
        let head = r#"{"jsonrpc":"2.0","id":1,"method":"admin.status","params":{"x":""#;
        format!("{head}{}\"}}}}", "y".repeat(length - head.len() - 3))
    };
    assert_eq!(line(1000).len(), 1000);
    lines.send_line(&line(1 << 20));
    let error = lines.answer(&json!(1)).expect_err("no such parameter");
    assert_eq!(error["code"], -32602, "all of it was read: {error}");
    lines.send_bytes(line((1 << 20) + 1).as_bytes());
    lines.send_bytes(b"\n");
    let end = lines.until_closed();
    assert_eq!((&end[0]["error"]["code"], &end[0]["id"]), (&json!(-32600), &Value::Null), "{end:?}");
    assert_eq!(end[1]["method"], "admin.closing", "{end:?}");
    assert_eq!(end.len(), 2, "{end:?}");

    // Lines without an end, from several at once.
    let before = peak_bytes(daemon.pid());
    let chunk = vec![b'x'; 1 << 16];
    let mut streams: Vec<UnixStream> = (0..8).map(|_| socket(&daemon)).collect();
    for stream in &mut streams {
        // What comes behind the limit is dropped until the daemon closes.
        let _ = (0..512).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    }
    for mut stream in streams {
        assert_eq!(rest(&mut stream)[0]["error"]["code"], -32600);
    }
    let grown = peak_bytes(daemon.pid()) - before;
    assert!(grown < 64 << 20, "8 times 1 MiB were let in, and it took {grown} bytes");
}

#[test]
fn a_crowd_is_refused_in_words_and_takes_no_place_of_others() {
    let daemon = Daemon::start();
    let mut crowd: Vec<Lines> = (0..CONNECTIONS_MAX).map(|_| Lines::connect(daemon.home())).collect();
    for lines in &mut crowd {
        assert!(lines.call("admin.status", json!({}))["pid"].is_u64());
    }
    let mut late = Lines::connect(daemon.home());
    let end = late.until_closed();
    let why = end[0]["error"]["message"].as_str().expect("why");
    assert!(why.contains("128 connections already"), "{end:?}");
    Client::connect(daemon.address).chat("ada", "hi");
    drop(crowd);
    eventually("places to be free again", || {
        let mut stream = socket(&daemon);
        // A refused one may be closed already.
        let _ = stream.write_all(format!("{}\n", status(1)).as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        rest(&mut stream).iter().any(|answer| answer["result"]["pid"].is_u64())
    });
}

#[test]
fn who_takes_nothing_is_closed_and_harms_nobody() {
    let daemon = Daemon::with("[gateway]\nslow_consumer_timeout_ms = 300\n");
    Client::connect(daemon.address).chat("ada", &"long ".repeat(20_000));
    let mut stuck = socket(&daemon);
    let show = json!({"jsonrpc": "2.0", "id": 1, "method": "admin.session.show", "params": {"session": ADA}});
    let line = format!("{show}\n");
    stuck.set_write_timeout(Some(std::time::Duration::from_millis(200))).expect("a deadline is set");
    let mut asked = 0;
    // Until it reads no further, as it must: what it is owed would have to be kept.
    while asked < 20_000 && stuck.write_all(line.as_bytes()).is_ok() {
        asked += 1;
    }
    assert!(asked < 20_000, "it reads on though nobody takes its answers");
    assert!(Lines::connect(daemon.home()).call("admin.status", json!({}))["pid"].is_u64());
    eventually("it to be given up", || daemon.log().contains("takes nothing: closed as slow"));
}

#[test]
fn silence_is_no_fault() {
    let daemon = Daemon::with("[gateway]\nheartbeat_interval_ms = 20\nheartbeat_timeout_ms = 50\n");
    let (mut silent, mut other) = (Lines::connect(daemon.home()), Lines::connect(daemon.home()));
    let mut uptime = || other.call("admin.status", json!({}))["uptime_ms"].as_u64().expect("a number");
    silent.call("admin.status", json!({}));
    let begun = uptime();
    eventually("ten times the longest silence", || uptime() > begun + 500);
    silent.call("admin.status", json!({}));
    assert_eq!(silent.seen().len(), 2, "nobody asked whether it is there: {:?}", silent.seen());
}

#[test]
fn a_stop_is_told_and_takes_the_socket_away() {
    let mut daemon = Daemon::start();
    Client::connect(daemon.address).chat("ada", "hi");
    let mut follower = Lines::connect(daemon.home());
    follower.call("admin.session.tail", json!({"session": ADA}));
    let mut silent = Lines::connect(daemon.home());
    silent.call("admin.status", json!({}));
    assert!(daemon.terminate().success());
    for lines in [&mut follower, &mut silent] {
        let end = lines.until_closed();
        assert_eq!(end.last().expect("a last line")["params"]["reason"], "the daemon is stopping", "{end:?}");
    }
    assert!(!daemon.home().join(".xeno/gateway.sock").exists());
}

#[test]
fn everything_that_happens_can_be_followed_and_let_go() {
    let daemon = Daemon::start();
    let mut lines = Lines::connect(daemon.home());
    let follow = lines.call("admin.events", json!({}))["follow"].clone();
    let refused = lines.refused("admin.events", json!({}));
    assert!(refused["message"].as_str().expect("why").contains("watches already"), "{refused}");
    Client::connect(daemon.address).chat("ada", "hi");
    let mut names = Vec::new();
    loop {
        let event = lines.notification("admin.event");
        assert_eq!(event["follow"], follow, "{event}");
        let name = event["event"].as_str().expect("a name").to_owned();
        let is_end = name == "end";
        if event["seq"].is_u64() {
            assert_eq!(event["session"], ADA, "{event}");
        }
        names.push(name);
        if is_end {
            break;
        }
    }
    for name in ["prompt", "start", "text", "presence"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    let changed = lines.find("a change of lists", |m| m["params"]["event"] == "session_changed");
    assert_eq!(changed["params"]["session"], ADA);
    assert_eq!(lines.call("admin.unfollow", json!({"follow": follow}))["ended"], true);
    assert_eq!(lines.call("admin.unfollow", json!({"follow": follow}))["ended"], false);
    // The next answer is that of the next request: nothing is told any more.
    Client::connect(daemon.address).chat("ada", "again");
    lines.call("admin.status", json!({}));
    let again = lines.seen().iter().any(|line| line.contains("\"again\""));
    assert!(!again, "{:?}", lines.seen());
}

#[test]
fn the_same_methods_are_spoken_on_admin() {
    let daemon = Daemon::start();
    let mut open = Client::open(daemon.address, "/admin");
    open.send_text(&status(1));
    assert!(open.receive()["result"]["pid"].is_u64(), "on an open loopback nobody asks who it is");

    let (_, secret, _) = daemon.run(&["token", "create", "--yes", "--name", "bot", "--role", "user"]);
    open.send_text(&status(2));
    assert_eq!(open.receive()["method"], "admin.closing", "a credential is required from now on");
    let (_, admin, _) = daemon.run(&["token", "create", "--name", "ops", "--role", "admin"]);
    let auth = |token: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "admin.auth", "params": {"token": token.trim()}})
            .to_string()
    };
    for (first, why) in [
        (status(1), "the first message must be admin.auth"),
        (auth("wrong"), "wrong token"),
        (auth(&secret), "needs admin"),
    ] {
        let mut client = Client::open(daemon.address, "/admin");
        client.send_text(&first);
        let refused = client.receive();
        assert!(refused["error"]["message"].as_str().expect("why").contains(why), "{refused}");
        assert_eq!(client.receive()["method"], "admin.closing");
    }
    let mut client = Client::open(daemon.address, "/admin");
    client.send_text(&auth(&admin));
    let greeting = client.receive();
    assert!(greeting["result"]["principal"].as_str().expect("a name").contains("ops"), "{greeting}");
    client.send_text(&status(2));
    assert!(client.receive()["result"]["pid"].is_u64());
    Lines::connect(daemon.home()).call("admin.status", json!({}));
}
