//! Strangers by the thousand: half-sent upgrades, silent sockets, frames that announce a gigabyte.
//! All of them are closed in time and with an answer where they can read one; what they cost is
//! bounded and comes back; and whoever is welcome is let in all the while.
//!
//! How many of each kind there are at once is scaled to the limit on open files;
//! `CLAWMUX_FLOOD` asks for another number. The figures are printed.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::process::{open_files, open_files_max, percentile, resident_bytes};
use crate::support::raw::{header, upgrade_request};
use crate::support::{TIMEOUT, eventually};

const TOKEN: &str = "a-token-of-24-characters";

/// How many of each kind, where neither the limits nor the environment say less or more.
const EACH: usize = 250;

/// What a stranger does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Connects and says nothing.
    Silent,
    /// Sends half a request line.
    HalfLine,
    /// Sends one more byte of a header now and then.
    Dripping,
    /// Asks a plain question and keeps the connection.
    KeptAlive,
    /// Upgrades and shows no token.
    NoToken,
    /// Upgrades and sends half a frame header.
    HalfHeader,
    /// Announces a frame of 1 GiB.
    Gigabyte,
    /// Sends one byte more than may come before the handshake.
    OneTooMany,
    /// Sends a message in fragments without end.
    Fragments,
    /// The same, of no bytes each.
    EmptyFragments,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Silent,
        Self::HalfLine,
        Self::Dripping,
        Self::KeptAlive,
        Self::NoToken,
        Self::HalfHeader,
        Self::Gigabyte,
        Self::OneTooMany,
        Self::Fragments,
        Self::EmptyFragments,
    ];

    /// What it reads before it is closed: one of these.
    fn answers(self) -> &'static [&'static str] {
        const LATE: &str = r#"{"error":"auth_failed","code":4001}"#;
        const TOO_LARGE: &str = r#"{"error":"frame_too_large","code":1009}"#;
        match self {
            Self::Silent | Self::HalfLine | Self::Dripping => &["HTTP/1.1 408 "],
            Self::KeptAlive => &["HTTP/1.1 200 "],
            Self::NoToken | Self::HalfHeader | Self::EmptyFragments => &[LATE],
            Self::Gigabyte | Self::OneTooMany => &[TOO_LARGE],
            // On a slow machine it does not come as far as the limit.
            Self::Fragments => &[TOO_LARGE, LATE],
        }
    }

    /// What it sends at once.
    fn opening(self) -> Vec<u8> {
        let upgrade = || upgrade_request("/ws").into_bytes();
        match self {
            Self::Silent => Vec::new(),
            Self::HalfLine => b"GET /ws HT".to_vec(),
            Self::Dripping => b"GET /ws HTTP/1.1\r\nHost: localhost\r\nX-Drip: ".to_vec(),
            Self::KeptAlive => b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            Self::NoToken => upgrade(),
            Self::HalfHeader => [upgrade(), vec![0x81, 0xff, 0, 0]].concat(),
            Self::Gigabyte => [upgrade(), header(0x81, 1 << 30)].concat(),
            Self::OneTooMany => [upgrade(), header(0x81, 65_537), vec![b' '; 65_537]].concat(),
            Self::Fragments => [upgrade(), header(0x01, 0)].concat(),
            Self::EmptyFragments => [upgrade(), header(0x01, 0)].concat(),
        }
    }

    /// What it goes on sending, and how often.
    fn more(self) -> Option<(Duration, Vec<u8>)> {
        match self {
            Self::Dripping => Some((Duration::from_millis(100), vec![b'x'])),
            Self::Fragments => {
                Some((Duration::from_millis(20), [header(0, 4096), vec![b' '; 4096]].concat()))
            }
            Self::EmptyFragments => Some((Duration::from_millis(50), header(0, 0).repeat(10))),
            _ => None,
        }
    }

    /// Connects, does it, and reads until it is closed.
    async fn play(self, address: SocketAddr) -> Vec<u8> {
        let mut answer = Vec::new();
        let Ok(socket) = TcpStream::connect(address).await else { return answer };
        let (mut reading, mut writing) = socket.into_split();
        let writes = async {
            let mut sent = writing.write_all(&self.opening()).await;
            if let Some((pause, bytes)) = self.more() {
                while sent.is_ok() {
                    tokio::time::sleep(pause).await;
                    sent = writing.write_all(&bytes).await;
                }
            }
            // Its half stays open: only the daemon ends it.
            std::future::pending::<()>().await;
        };
        let reads = async {
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = reading.read(&mut buffer).await {
                answer.extend_from_slice(&buffer[..read]);
            }
        };
        tokio::select! {
            () = writes => {}
            () = reads => {}
        }
        answer
    }
}

/// So many of each kind at once; how many of each were closed, and how many of these had read what
/// they should.
fn flood(address: SocketAddr, each: usize) -> BTreeMap<Kind, (usize, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Mixed: one of each kind, then the next of each.
        let players: Vec<_> = (0..each * Kind::ALL.len())
            .map(|at| {
                let kind = Kind::ALL[at % Kind::ALL.len()];
                (kind, tokio::spawn(tokio::time::timeout(TIMEOUT, kind.play(address))))
            })
            .collect();
        let mut closed: BTreeMap<Kind, (usize, usize)> = BTreeMap::new();
        for (kind, player) in players {
            let count = closed.entry(kind).or_default();
            if let Ok(answer) = player.await.expect("no player panics") {
                count.0 += 1;
                let answer = String::from_utf8_lossy(&answer);
                count.1 += usize::from(kind.answers().iter().any(|expected| answer.contains(expected)));
            }
        }
        closed
    })
}

/// What somebody sees who is welcome.
struct Welcome {
    /// How long each took to connect and have a ping answered.
    waits: Vec<Duration>,
    chats: usize,
    /// How often one had to make room before it had shown its token, and came again.
    again: usize,
}

impl Welcome {
    /// Comes in and asks, again and again; every time it must work.
    fn while_it(address: SocketAddr, mut goes_on: impl FnMut(usize) -> bool) -> Self {
        let mut welcome = Self { waits: Vec::new(), chats: 0, again: 0 };
        while goes_on(welcome.waits.len()) {
            let begun = Instant::now();
            let mut client = loop {
                match enter(address) {
                    Ok(client) => break client,
                    Err(_) if begun.elapsed() < TIMEOUT => welcome.again += 1,
                    Err(why) => panic!("not let in: {why}"),
                }
            };
            assert_eq!(client.call("ping", Value::Null)["result"], "pong");
            welcome.waits.push(begun.elapsed());
            if welcome.waits.len() % 20 == 1 {
                let answer = client.chat(&format!("good{}", welcome.waits.len()), "hello");
                assert_eq!((answer.error(), answer.events().last()), ("", Some(&"done")), "{answer:?}");
                welcome.chats += 1;
            }
        }
        welcome
    }

    fn print(&self, when: &str) {
        println!(
            "{when}: {} came in, {} had to come again, {} chatted; connect and ping p50 {:?}, p99 {:?}",
            self.waits.len(),
            self.again,
            self.chats,
            percentile(&self.waits, 0.5),
            percentile(&self.waits, 0.99),
        );
    }
}

/// Connects and shows the token.
fn enter(address: SocketAddr) -> Result<Client, String> {
    let request = format!("ws://{address}/ws").into_client_request().expect("a request");
    let mut client = Client::upgrade(address, request)?;
    client.send_text(&json!({ "token": TOKEN }).to_string());
    match client.receive_or_close()? {
        hello if hello["ok"] == true => Ok(client),
        refusal => Err(refusal.to_string()),
    }
}

/// How many of each kind there is room for.
fn each(kinds: usize) -> usize {
    let asked = std::env::var("CLAWMUX_FLOOD").ok().and_then(|each| each.parse().ok()).unwrap_or(EACH);
    // Here a descriptor each, and in the daemon two.
    let room = open_files_max().saturating_sub(400) / 2;
    asked.min(room / kinds).max(1)
}

#[test]
fn strangers_by_the_thousand_are_closed_in_time_and_harm_nobody() {
    let each = each(Kind::ALL.len());
    let strangers = each * Kind::ALL.len();
    let config =
        "[gateway]\nhandshake_timeout_ms = 4000\n[limits]\nunauthenticated = 100000\nrequests_burst = 0\n";
    let daemon = Daemon::with_env(config, &[("CLAWMUX_TOKEN", TOKEN)]);
    let mut steady = Client::connect_with(daemon.address, TOKEN);
    Welcome::while_it(daemon.address, |times| times < 60).print("before");
    let files = eventually("the first guests to be gone", || {
        let files = open_files(daemon.pid());
        (connections(&daemon) == 1).then_some(files)
    });

    let (before, peak) = (resident_bytes(daemon.pid()), AtomicUsize::new(0));
    for wave in 1..=2 {
        let flooding = AtomicBool::new(true);
        let (closed, took) = std::thread::scope(|scope| {
            let guests = scope.spawn(|| Welcome::while_it(daemon.address, |_| flooding.load(Relaxed)));
            let scale = scope.spawn(|| {
                while flooding.load(Relaxed) {
                    peak.fetch_max(resident_bytes(daemon.pid()), Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let begun = Instant::now();
            let closed = flood(daemon.address, each);
            flooding.store(false, Relaxed);
            scale.join().expect("the memory is looked at");
            let guests = guests.join().expect("every guest is let in");
            guests.print("during");
            assert_eq!(guests.again, 0, "there is room for all of them");
            (closed, begun.elapsed())
        });
        println!(
            "wave {wave}: {each} each of {} kinds, all closed after {took:?}: {closed:?}",
            Kind::ALL.len()
        );
        for (kind, (ended, answered)) in &closed {
            assert_eq!(*ended, each, "{kind:?}: all are closed");
            assert_eq!(*answered, each, "{kind:?}: all are told {:?}", kind.answers());
        }
        eventually("its descriptors to come back", || open_files(daemon.pid()) <= files);
        assert_eq!(connections(&daemon), 1, "nobody is left but the steady one");
    }
    let peak = peak.load(Relaxed).saturating_sub(before);
    println!("memory: {before} bytes before, {peak} more at the most ({} a stranger)", peak / strangers);
    assert!(peak < strangers * 100_000 + 20_000_000, "{peak} bytes for {strangers} strangers");
    // Sessions of guests that chatted are awake still.
    eventually("the memory to come back", || {
        let kept = resident_bytes(daemon.pid()).saturating_sub(before);
        (kept < 40_000_000).then(|| println!("memory: {kept} bytes more in the end"))
    });
    assert_eq!(steady.call("ping", Value::Null)["result"], "pong");
}

/// Sockets that are opened and kept, one like the other, as fast as can be.
fn crowd(address: SocketAddr, opening: &[u8], count: usize) -> Vec<std::net::TcpStream> {
    (0..count)
        .map(|_| {
            let mut socket = std::net::TcpStream::connect(address).expect("it accepts");
            socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
            // It may have had to go already.
            let _ = socket.write_all(opening);
            socket
        })
        .collect()
}

/// All that a socket has to say until it ends.
fn rest(mut socket: &std::net::TcpStream) -> String {
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    String::from_utf8_lossy(&rest).into_owned()
}

#[test]
fn the_oldest_stranger_makes_room_and_nobody_who_was_let_in() {
    const ROOM: usize = 128;
    const PLACES: usize = 500;
    let crowds = each(4).min(500);
    let config = format!(
        "[gateway]\nhandshake_timeout_ms = 60000\nmax_connections = {PLACES}\n[limits]\nunauthenticated = {ROOM}\nrequests_burst = 0\n"
    );
    let daemon = Daemon::with_env(&config, &[("CLAWMUX_TOKEN", TOKEN)]);
    let mut members: Vec<Client> = (0..20).map(|_| Client::connect_with(daemon.address, TOKEN)).collect();
    assert_eq!(members[0].chat("ada", "hello").error(), "");
    let files = open_files(daemon.pid());
    let silent = crowd(daemon.address, b"", 1);
    let half = crowd(daemon.address, b"GET /ws HT", 1);
    let mut upgraded = Client::open(daemon.address, "/ws");

    let (guests_in, flooding) = (AtomicUsize::new(0), AtomicBool::new(true));
    let most_files = AtomicUsize::new(0);
    let (strangers, kept) = std::thread::scope(|scope| {
        let guests = scope.spawn(|| {
            Welcome::while_it(daemon.address, |times| {
                guests_in.store(times, Relaxed);
                flooding.load(Relaxed)
            })
        });
        let scale = scope.spawn(|| {
            while flooding.load(Relaxed) {
                most_files.fetch_max(open_files(daemon.pid()), Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let upgrade = upgrade_request("/ws");
        let openings = [&b""[..], b"GET /ws HT", upgrade.as_bytes(), upgrade.as_bytes()];
        let (mut strangers, mut kept) = (0, VecDeque::new());
        while !guests.is_finished() && (strangers < 4 * crowds || guests_in.load(Relaxed) < 20) {
            for opening in openings {
                kept.push_back(crowd(daemon.address, opening, 25));
                strangers += 25;
                std::thread::sleep(Duration::from_millis(10));
            }
            kept.drain(..kept.len().saturating_sub(4 * crowds / 25));
        }
        flooding.store(false, Relaxed);
        scale.join().expect("the descriptors are counted");
        guests.join().expect("every guest is let in").print("during");
        (strangers, kept)
    });

    for socket in [&silent[0], &half[0]] {
        let told = rest(socket);
        let (head, body) = told.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {told:?}"));
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nretry-after: 5\r\n"), "{told}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{told}");
    }
    assert_eq!(upgraded.receive(), json!({"error": "overloaded", "code": 1013}));
    assert_eq!(upgraded.receive_or_close(), Err("1013".to_owned()));
    for member in &mut members {
        assert_eq!(member.call("ping", Value::Null)["result"], "pong");
    }
    let most = most_files.load(Relaxed).saturating_sub(files);
    println!("{strangers} strangers and room for {ROOM}: {most} descriptors more at the most");
    // Two for each that there may be, and for some that are told so.
    assert!(most < 2 * (PLACES + 128) + 200, "{most} descriptors");
    drop(kept);
    eventually("its descriptors to come back", || open_files(daemon.pid()) <= files);
}

#[test]
fn when_all_places_are_taken_that_is_said_and_the_operator_still_gets_through() {
    let config = "[gateway]\nmax_connections = 8\n";
    let daemon = Daemon::with_env(config, &[("CLAWMUX_TOKEN", TOKEN)]);
    // Strangers take no place from those who know the token.
    let mut strangers: Vec<Client> = (0..8).map(|_| Client::open(daemon.address, "/ws")).collect();
    let more = crowd(daemon.address, b"", 100);
    let mut members: Vec<Client> = (0..8).map(|_| Client::connect_with(daemon.address, TOKEN)).collect();
    assert_eq!(strangers[0].receive(), json!({"error": "overloaded", "code": 1013}));
    let turned_away = crowd(daemon.address, upgrade_request("/ws").as_bytes(), 100);
    for socket in &turned_away {
        let told = rest(socket);
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: 5\r\n"), "{told}");
        assert!(told.contains("too many connections"), "{told}");
    }
    assert_eq!(daemon.get("/healthz").0, 200);
    assert_eq!(connections(&daemon), 8, "over the operator's socket");
    for member in &mut members {
        assert_eq!(member.call("ping", Value::Null)["result"], "pong");
    }
    members.pop();
    eventually("the place to be free", || connections(&daemon) == 7);
    eventually("somebody else to get it", || enter(daemon.address).ok());
    drop(more);
}

/// How many connections the daemon says it has.
fn connections(daemon: &Daemon) -> u64 {
    let status = daemon.json_of(&["status"]);
    status["connections"].as_u64().unwrap_or_else(|| panic!("{status}"))
}
