//! Strangers at every door: whose programs come in without a credential, how fast one can be guessed,
//! how much is written down of them, and that they keep nobody out.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::lines::Lines;
use crate::support::openclaw;
use crate::support::tools::needs;
use crate::support::wundr::Wundr;
use crate::support::{TIMEOUT, eventually};

const TOKEN: &str = "a-token-of-24-characters";
const NOBODY: &str = "65534";

/// Sends a request and prints the first line of what comes.
const ASK: &str = r#"
use IO::Socket::IP;
my ($address, $port, $request) = @ARGV;
my $s = IO::Socket::IP->new(PeerHost => $address, PeerPort => $port, Type => SOCK_STREAM) or die "connect: $@";
syswrite($s, $request);
my $all = '';
while ($all !~ /^HTTP.1.1 101.*\r\n\r\n|\r\n\r\n./s && sysread($s, my $piece, 65536)) { $all .= $piece }
print $all;
"#;

fn upgrade(path: &str) -> String {
    crate::support::raw::upgrade_request(path)
}

fn scrape() -> String {
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".into()
}

/// What this user is answered: the status, and the rest.
fn asked_by(user: &str, address: SocketAddr, request: &str) -> (u16, String) {
    let output = Command::new("setpriv")
        .args(["--reuid", user, "--regid", user, "--clear-groups", "perl", "-e", ASK])
        .args([&address.ip().to_string(), &address.port().to_string(), request])
        .output()
        .expect("setpriv runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))), text)
}

#[test]
fn open_loopback_is_for_the_daemons_own_user() {
    needs!("root", "setpriv", "perl");
    let daemon = Daemon::start();
    for path in ["/ws", "/v2", "/", "/admin"] {
        let (status, said) = asked_by(NOBODY, daemon.address, &upgrade(path));
        assert_eq!(status, 403, "{path}: {said}");
        assert!(said.contains("user 65534 is not") && said.contains("clawmux token create"), "{said}");
        assert_eq!(asked_by("0", daemon.address, &upgrade(path)).0, 101, "{path}: root may");
    }
    assert_eq!(asked_by(NOBODY, daemon.address, &scrape()).0, 403);
    assert_eq!(asked_by("0", daemon.address, &scrape()).0, 200);
    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(asked_by(NOBODY, daemon.address, health).0, 200, "whether it is alive is no secret");
    assert!(
        daemon.log().contains("request refused") && daemon.log().contains("user 65534"),
        "{}",
        daemon.log()
    );

    // Who closes at once is nobody, and not root; what it sent is not done.
    let quick = "use IO::Socket::IP; my ($a, $p, $r) = @ARGV;\
        my $s = IO::Socket::IP->new(PeerHost => $a, PeerPort => $p) or die; syswrite($s, pack('H*', $r));";
    let prompt = json!({"id": "1", "method": "chat.send", "params":
        {"channel": "websocket", "account": "mallory", "content": "hi"}});
    let mut request = upgrade("/ws").into_bytes();
    request.extend(crate::support::raw::text(&prompt.to_string()));
    let request: String = request.iter().map(|byte| format!("{byte:02x}")).collect();
    for _ in 0..5 {
        let (ip, port) = (daemon.address.ip().to_string(), daemon.address.port().to_string());
        let ended = Command::new("setpriv")
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "perl", "-e", quick])
            .args([&ip, &port, &request])
            .status()
            .expect("setpriv runs");
        assert!(ended.success());
    }
    let mut own = Client::connect(daemon.address);
    assert_eq!(own.call("session.list", json!({}))["result"], json!([]));

    let skips = Daemon::with("[auth]\nloopback = \"skip\"\n");
    assert_eq!(asked_by(NOBODY, skips.address, &upgrade("/ws")).0, 101, "as it says");
    assert_eq!(asked_by(NOBODY, skips.address, &upgrade("/v2")).0, 403);
    let guarded = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    assert_eq!(asked_by(NOBODY, guarded.address, &upgrade("/ws")).0, 101, "the credential decides");
}

#[test]
fn a_request_for_a_websocket_has_no_body_and_names_nothing_else() {
    let daemon = Daemon::start();
    for (named, status, body) in [
        ("Upgrade: websocket\r\nTransfer-Encoding: chunked", "400", "0\r\n\r\n"),
        ("Upgrade: websocket\r\nTransfer-Encoding: chunked", "400", ""),
        ("Upgrade: websocket\r\nContent-Length: 10", "400", "0123456789"),
        ("Upgrade: websocket\r\nContent-Length: 0", "101", ""),
        ("Upgrade: WebSocket", "101", ""),
        ("Upgrade: websocket, h2c", "426", ""),
        ("Upgrade: h2c, websocket", "426", ""),
        ("Upgrade: h2c", "426", ""),
    ] {
        let mut socket = TcpStream::connect(daemon.address).expect("it accepts");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
        let request = upgrade("/ws").replace("Upgrade: websocket", named) + body;
        socket.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).unwrap_or_else(|error| panic!("{named}: {error}"));
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{named}");
    }
}

#[test]
fn a_flood_of_refusals_is_a_few_lines_of_the_log() {
    const ROUNDS: usize = 300;
    let daemon = Daemon::start();
    let before = daemon.log().len();
    let origin = format!("https://{}", "x".repeat(60_000));
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        let mut socket = TcpStream::connect(daemon.address).expect("it accepts");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
        let request = upgrade("/ws").replace("\r\n\r\n", &format!("\r\nOrigin: {origin}\r\n\r\n"));
        socket.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).expect("it answers");
        assert_eq!(&answer, b"HTTP/1.1 403");
    }
    let log = daemon.log();
    let written = log.len() - before;
    eprintln!("{ROUNDS} refusals in {:?}: {written} bytes of log", begin.elapsed());
    assert!(log.contains("request refused") && log.contains("60008 bytes"), "{log}");
    // One a minute, and it may take one to get here.
    assert!(log.matches("request refused").count() <= 3 && written < 4096, "{written}: {log}");
}

/// Shows a token over exoclaw, as a guesser does: what it is told, or none where it is cut off.
fn guess(address: SocketAddr, token: &str) -> Option<Value> {
    let mut client = Client::open(address, "/ws");
    client.send_text(&json!({ "token": token }).to_string());
    client.receive_or_close().ok()
}

/// Who has to wait for the guesses of others waits at least 4 seconds each time; a slow machine does not.
fn assert_no_wait(mut connect: impl FnMut()) {
    let is_swift = |_| {
        let begin = Instant::now();
        connect();
        begin.elapsed() < Duration::from_secs(3)
    };
    assert!((0..5).any(is_swift), "it waits");
}

#[test]
fn guesses_are_few_and_who_comes_from_elsewhere_does_not_wait() {
    const WORKERS: usize = 16;
    const TIME: Duration = Duration::from_secs(8);
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    let address = daemon.address;
    let mut inside = Client::connect_with(address, TOKEN);
    let (looked_at, refused, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (looked_at, refused, over) = (&looked_at, &refused, &over);
            scope.spawn(move || {
                for n in 0.. {
                    if over.load(Relaxed) {
                        return;
                    }
                    match guess(address, &format!("guess-{worker}-{n}")) {
                        Some(told) if told["error"] == "auth_failed" => looked_at.fetch_add(1, Relaxed),
                        Some(told) if told["error"] == "rate_limited" => refused.fetch_add(1, Relaxed),
                        other => panic!("{other:?}"),
                    };
                }
            });
        }
        std::thread::sleep(TIME);
        // Another source: it waits for nobody.
        let request = upgrade("/ws").replace("\r\n\r\n", "\r\nX-Forwarded-For: 10.1.2.3\r\n\r\n");
        let shown = crate::support::raw::text(&json!({ "token": TOKEN }).to_string());
        assert_no_wait(|| {
            let mut socket = TcpStream::connect(address).expect("it accepts");
            socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
            socket.write_all(&[request.as_bytes(), &shown].concat()).expect("it is sent");
            let mut received = crate::support::raw::Received::default();
            let hello = eventually("hello", || {
                let mut bytes = [0; 4096];
                let read = socket.read(&mut bytes).expect("it answers");
                received.push(&bytes[..read]);
                received.next_frame()
            });
            assert!(String::from_utf8_lossy(&hello.1).contains("\"ok\":true"), "{hello:?}");
        });
        assert_eq!(inside.call("ping", Value::Null)["result"], "pong", "who is in stays in");
        over.store(true, Relaxed);
    });
    let (looked_at, refused) = (looked_at.into_inner(), refused.into_inner());
    eprintln!("{looked_at} guesses looked at and {refused} refused in about {TIME:?}");
    assert!((5..80).contains(&looked_at), "{looked_at} looked at, {refused} refused");
    let log = daemon.log();
    assert!((1..=2).contains(&log.matches("not let in").count()), "told in sum: {log}");
    assert!(!log.contains("guess-"), "{log}");

    // Whoever waits is let in with the right one, after a while.
    let told = eventually("a place", || guess(address, TOKEN).filter(|told| told["error"] != "rate_limited"));
    assert_eq!(told["ok"], true, "{told}");
}

#[test]
fn the_same_wrong_token_again_and_again_keeps_nobody_waiting() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    for _ in 0..30 {
        assert_eq!(guess(daemon.address, "an-old-token").expect("it is told")["error"], "auth_failed");
    }
    assert_no_wait(|| drop(Client::connect_with(daemon.address, TOKEN)));
}

#[test]
fn a_credential_shown_anew_can_be_guessed_no_faster() {
    let daemon = Daemon::with_env("", &[("CLAWMUX_TOKEN", TOKEN)]);
    let begin = Instant::now();
    let mut refused = 0;
    for connection in 0..3 {
        let mut wundr = Wundr::connect_with(daemon.address, TOKEN);
        for n in 0..4 {
            let error = wundr.refused("auth.refresh", json!({ "token": format!("guess-{connection}-{n}") }));
            assert_eq!(error["code"], "UNAUTHORIZED", "{error}");
            refused += 1;
        }
    }
    // Six of them, and two of the connections, waited: 0.25, 0.5, 1, 2 and 4 seconds.
    assert!(begin.elapsed() > Duration::from_secs(7), "{refused} in {:?}", begin.elapsed());
}

#[test]
fn silent_connections_do_not_lock_the_operator_out() {
    let daemon = Daemon::start();
    let path = daemon.home().join(".xeno/gateway.sock");
    let mut speaking = Lines::connect(daemon.home());
    assert!(speaking.call("admin.status", json!({}))["pid"].is_u64());
    let connect = |_| UnixStream::connect(&path).expect("it accepts");
    let silent: Vec<UnixStream> = (0..127).map(connect).collect();
    eventually("all of them", || {
        let there = speaking.call("admin.connections", json!({}));
        there["connections"].as_array().expect("a list").len() == 128
    });
    let mut operator = Lines::connect(daemon.home());
    assert!(operator.call("admin.status", json!({}))["pid"].is_u64());
    let mut first = silent.into_iter().next().expect("there are many");
    first.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
    let mut told = String::new();
    first.read_to_string(&mut told).expect("it is closed");
    assert!(told.contains("too many connections"), "{told}");
    // However many come, and however fast.
    let more: Vec<UnixStream> = (0..500).map(connect).collect();
    let mut another = Lines::connect(daemon.home());
    for operator in [&mut speaking, &mut operator, &mut another] {
        assert!(operator.call("admin.status", json!({}))["pid"].is_u64(), "who has spoken stays");
    }
    drop(more);
}

#[test]
fn a_principal_has_so_many_connections_and_is_told_so() {
    let config =
        "[limits]\nconnections = 2\n[[auth.api_keys]]\nname = \"ci\"\nkey_env = \"CI\"\nrole = \"user\"\n";
    let key = "key-of-ci-0123456789";
    let daemon = Daemon::with_env(config, &[("CLAWMUX_TOKEN", TOKEN), ("CI", key)]);
    let address = daemon.address;
    let held = [Client::connect_with(address, key), Client::connect_with(address, key)];

    let mut exoclaw = Client::open(address, "/ws");
    exoclaw.send_text(&json!({ "token": key }).to_string());
    assert_eq!(exoclaw.receive()["error"], "too_many_connections");
    assert_eq!(exoclaw.receive_or_close().expect_err("it closes"), "1013");

    let auth = json!({ "type": "api-key", "token": key });
    let Err((error, close)) = Wundr::try_connect(address, "/v2", auth, json!({})) else { panic!("let in") };
    assert_eq!((&error["code"], close.as_str()), (&json!("RATE_LIMITED"), "1013"), "{error}");
    assert_eq!((&error["details"]["limit"], &error["details"]["max"]), (&json!("connections"), &json!(2)));

    let (_openclaw, refused) = openclaw::try_connect(address, json!({ "auth": { "token": key } }));
    assert_eq!(
        (&refused["ok"], &refused["error"]["code"]),
        (&json!(false), &json!("UNAVAILABLE")),
        "{refused}"
    );
    assert!(refused["error"]["message"].as_str().expect("it says why").contains("limits.connections"));

    // Of others, and of the operator, it is no matter.
    let tokens = [Client::connect_with(address, TOKEN), Client::connect_with(address, TOKEN)];
    let mut admin = Client::open(address, "/admin");
    let shows = json!({"jsonrpc": "2.0", "id": 1, "method": "admin.auth", "params": { "token": TOKEN }});
    admin.send_text(&shows.to_string());
    let told = admin.receive();
    assert!(
        told["error"]["message"].as_str().is_some_and(|why| why.contains("limits.connections")),
        "{told}"
    );
    let mut operators: Vec<Lines> = (0..5).map(|_| Lines::connect(daemon.home())).collect();
    for operator in &mut operators {
        assert!(operator.call("admin.status", json!({}))["pid"].is_u64());
    }
    drop((held, tokens));
    eventually("a place", || {
        let told = guess(address, key)?;
        (told["ok"] == true).then_some(())
    });
}
