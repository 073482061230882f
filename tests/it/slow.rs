//! Clients that read slowly or never: what they cost is bounded, nobody else is held up, who never
//! reads is closed with a reason, and who is only slow misses nothing.
//!
//! `CLAWMUX_STUCK` asks for another number of readers that never read. The figures are printed.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::pace::{self, Pacer};
use crate::support::process::{
    connections_to, open_files, open_files_max, percentile, resident_bytes, send_queues,
};
use crate::support::{TIMEOUT, eventually, raw};

/// How many never read, where the environment does not say.
const STUCK: usize = 1000;

/// How many stream at once that read all the time, how many tokens each, and how often one comes.
const OTHERS: usize = 64;
const TOKENS: usize = 60;
const PACE: Duration = Duration::from_millis(40);

/// Sessions that have said much and go on.
const SOURCES: usize = 8;

/// What one that never reads may cost, the kernel's send queue included.
const COST_MAX: usize = 512 * 1024;

fn place(account: &str) -> Value {
    json!({"channel": "websocket", "account": account})
}

fn with(mut place: Value, key: &str, value: impl Into<Value>) -> Value {
    place[key] = value.into();
    place
}

fn daemon(pacer: &Pacer, more: &str) -> Daemon {
    Daemon::with(&format!(
        "[providers.up]\nretries = 0\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nprovider = \"up\"\nmodel = \"m\"\ntools = []\n{more}",
        pacer.base_url()
    ))
}

/// Streams at once that are read all the time; gives how old each token was when it arrived.
fn others(address: SocketAddr, times: usize) -> Vec<Duration> {
    let readers: Vec<_> = (0..OTHERS)
        .map(|n| {
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                let account = format!("other{times}-{n}");
                let id = client.prompt(&account, &pace::ask(TOKENS, PACE, 8));
                let (mut ages, mut text) = (Vec::new(), String::new());
                loop {
                    let frame = client.reply(&id);
                    match frame["event"].as_str() {
                        Some("text") => {
                            let piece = frame["data"].as_str().expect("text");
                            ages.extend(pace::ages(piece));
                            text.push_str(piece);
                        }
                        Some("done") => break,
                        Some("usage") => {}
                        _ => panic!("{account}: {frame}"),
                    }
                }
                assert_eq!(pace::tokens(&text), TOKENS, "{account} got all of it: {text}");
                ages
            })
        })
        .collect();
    readers.into_iter().flat_map(|reader| reader.join().expect("everybody gets all")).collect()
}

/// Connects, asks for more than it will ever take, and never reads.
fn stuck(address: SocketAddr, n: usize) -> std::net::TcpStream {
    let mut socket = raw::connect_with_small_buffer(address);
    let source = place(&format!("source{}", n % SOURCES));
    let mut frames = raw::upgrade_request("/ws").into_bytes();
    let mut ask = |id: &str, method: &str, params: Value| {
        frames.extend(raw::text(&json!({"id": id, "method": method, "params": params}).to_string()));
    };
    ask("a", "session.attach", with(source.clone(), "after_seq", 0));
    ask("p", "chat.send", with(place(&format!("stuck{n}")), "content", pace::ask(3, Duration::ZERO, 8)));
    // What can come in any size, and is work for the daemon: not for all of them.
    for at in 0..if n.is_multiple_of(4) { 20 } else { 0 } {
        ask(&format!("h{at}"), "chat.history", with(source.clone(), "limit", 1000));
    }
    socket.write_all(&frames).expect("it takes them");
    socket
}

/// One that follows a session from its beginning and takes note of what it is given.
struct Follower {
    socket: std::net::TcpStream,
    received: raw::Received,
    /// The last number when it attached, and the last that it has got.
    head: u64,
    last: u64,
    text: String,
    /// What it was told besides: the word and the code of a farewell, and the code of the Close.
    farewell: Option<(Value, Option<u16>)>,
}

impl Follower {
    fn new(address: SocketAddr, account: &str, after: Option<u64>) -> Self {
        let mut socket = raw::connect_with_small_buffer(address);
        socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
        let mut params = place(account);
        if let Some(after) = after {
            params = with(params, "after_seq", after);
        }
        let attach = json!({"id": "a", "method": "session.attach", "params": params});
        let frames = [raw::upgrade_request("/ws").into_bytes(), raw::text(&attach.to_string())];
        socket.write_all(&frames.concat()).expect("it takes them");
        let (received, text) = (raw::Received::default(), String::new());
        let mut follower = Self { socket, received, head: 0, last: 0, text, farewell: None };
        while follower.head == 0 {
            follower.read(256);
        }
        if after.is_none() {
            follower.last = follower.head;
        }
        follower
    }

    /// Reads so much at most, and checks that nothing is missing. False where it was closed.
    fn read(&mut self, bytes_max: usize) -> bool {
        let mut buffer = vec![0; bytes_max];
        let Ok(read @ 1..) = self.socket.read(&mut buffer) else { return false };
        self.received.push(&buffer[..read]);
        while let Some((opcode, payload)) = self.received.next_frame() {
            match opcode {
                1 => self.take(&serde_json::from_slice(&payload).expect("frames are JSON")),
                8 => {
                    let code = u16::from_be_bytes([payload[0], payload[1]]);
                    self.farewell.as_mut().expect("it says why first").1 = Some(code);
                }
                9 => self.socket.write_all(&raw::header(0x8a, 0)).expect("it takes pongs"),
                _ => panic!("opcode {opcode}"),
            }
        }
        true
    }

    fn take(&mut self, frame: &Value) {
        if let Some(head) = frame["result"]["seq"].as_u64() {
            self.head = head;
        } else if let Some(seq) = frame["seq"].as_u64() {
            let first = frame["first_seq"].as_u64().unwrap_or(seq);
            assert_eq!(first, self.last + 1, "every number once and in order: {frame}");
            self.last = seq;
            if frame["event"] == "text" {
                self.text.push_str(frame["data"].as_str().expect("text"));
            }
        } else if frame.get("error").is_some() {
            self.farewell = Some((frame.clone(), None));
        }
    }

    /// Reads on as fast as it can until it has this number.
    fn read_to(&mut self, seq: u64) {
        while self.last < seq {
            assert!(self.read(1 << 16), "closed at {} of {seq}: {:?}", self.last, self.farewell);
        }
    }
}

#[test]
fn who_is_only_slow_is_waited_for_and_misses_nothing() {
    let pacer = Pacer::start();
    let (daemon, mut feeder) =
        daemon(&pacer, "[gateway]\nslow_consumer_timeout_ms = 6000\n").and(Client::connect);
    assert_eq!(feeder.chat("tale", &pace::ask(100, Duration::ZERO, 1000)).error(), "");
    feeder.prompt("tale", &pace::ask(100_000, Duration::from_millis(50), 200));
    let follow = |after| Follower::new(daemon.address, "tale", after);
    let [mut swift, mut crawling, mut pausing] = [0, 0, 0].map(|after| follow(Some(after)));
    let mut live = follow(None);
    // By then all that was said before they came has long been told.
    let goal = swift.head + 150;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // 2 KB a second, for longer than one may take nothing.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(8) {
                assert!(crawling.read(200), "a slow reader is closed: {:?}", crawling.farewell);
                std::thread::sleep(Duration::from_millis(100));
            }
            println!("one that takes 2 KB a second was at {} of {goal} after 8 s", crawling.last);
            crawling.read_to(goal);
        });
        scope.spawn(|| {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(2500));
                let next = pausing.last + 20;
                pausing.read_to(next);
            }
            pausing.read_to(goal);
        });
        scope.spawn(|| live.read_to(goal));
        swift.read_to(goal);
    });
    let whole = &swift.text;
    for (who, text) in [("crawling", &crawling.text), ("pausing", &pausing.text)] {
        assert!(
            text.starts_with(&**whole) || whole.starts_with(&**text),
            "{who} reads what the swift one does"
        );
    }
    assert!(live.text.contains('<') && whole.contains(&live.text[..200]), "the live one reads the end of it");
    assert!(!daemon.log().contains("closed as slow"), "{}", daemon.log());
}

#[test]
fn who_falls_too_far_behind_the_log_is_closed_and_told_so_and_may_come_back() {
    let pacer = Pacer::start();
    let config = "[gateway]\nmax_buffered_bytes = 300000\nslow_consumer_timeout_ms = 600000\n";
    let (daemon, mut feeder) = daemon(&pacer, config).and(Client::connect);
    assert_eq!(feeder.chat("tale", &pace::ask(3, Duration::ZERO, 10)).error(), "");
    let mut behind = Follower::new(daemon.address, "tale", Some(0));
    let told = feeder.chat("tale", &pace::ask(500, Duration::from_millis(4), 2000));
    assert_eq!((told.error(), told.text().len()), ("", 1_000_000), "the one that reads gets all of it");
    eventually("it to be given up", || daemon.log().contains("too far behind: closed as slow"));
    // What was on its way already comes first, whole.
    while behind.read(1 << 16) {}
    let (said, code) = behind.farewell.take().expect("it is told why");
    assert_eq!((said, code), (json!({"error": "slow_consumer", "code": 1008}), Some(1008)));

    let mut again = Follower::new(daemon.address, "tale", Some(behind.last));
    again.last = behind.last;
    let head = again.head;
    again.read_to(head);
    let text = behind.text + &again.text;
    assert!(text.ends_with(&told.text()), "what it had and what it gets now are the whole");
}

/// The prompt itself is an event that takes all the room there is, and no frame tells it.
#[test]
fn a_long_prompt_is_answered_at_once() {
    let (_daemon, mut client) =
        Daemon::with("[gateway]\nheartbeat_interval_ms = 600000\nheartbeat_timeout_ms = 900000\n")
            .and(Client::connect);
    let told = client.chat("ada", &format!("hello {}", "x".repeat(200_000)));
    assert_eq!((told.error(), told.events().last()), ("", Some(&"done")), "{told:?}");
}

#[test]
fn who_never_reads_costs_little_holds_up_nobody_and_is_closed() {
    let asked = std::env::var("CLAWMUX_STUCK").ok().and_then(|count| count.parse().ok()).unwrap_or(STUCK);
    let count = asked.min(open_files_max().saturating_sub(400) / 2);
    let pacer = Pacer::start();
    // Long enough for the first to be there still when the last is stuck.
    let patience = Duration::from_secs(20) + Duration::from_millis(10) * count as u32;
    let config = format!("[gateway]\nslow_consumer_timeout_ms = {}\n", patience.as_millis());
    let (daemon, mut feeder) = daemon(&pacer, &config).and(Client::connect);
    let sources: Vec<String> = (0..SOURCES).map(|n| format!("source{n}")).collect();
    for source in &sources {
        assert_eq!(feeder.chat(source, &pace::ask(100, Duration::ZERO, 4000)).error(), "");
    }
    let alone = others(daemon.address, 0);
    // They go on for as long as this takes.
    for source in &sources {
        feeder.prompt(source, &pace::ask(100_000, Duration::from_millis(200), 200));
    }
    eventually("the others to be gone", || send_queues(daemon.address.port()).len() == 1);
    // Its connections to the provider are kept a while.
    let files_now = || open_files(daemon.pid()) - connections_to(pacer.address());
    let (files, before) = (files_now(), resident_bytes(daemon.pid()));

    let begun = Instant::now();
    let readers: Vec<_> = (0..count).map(|n| stuck(daemon.address, n)).collect();
    let mut still = (Vec::new(), Instant::now());
    let queues = eventually("all of them to be stuck", || {
        let mut queues = send_queues(daemon.address.port());
        // Not that of the one who feeds them: what is on its way to it comes and goes.
        queues.retain(|queue| *queue >= 4096);
        if still.0 != queues {
            still = (queues.clone(), Instant::now());
        }
        (queues.len() >= count && still.1.elapsed() > Duration::from_millis(500)).then_some(queues)
    });
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    let queued: usize = queues.iter().sum();
    println!(
        "{count} that never read, stuck after {:?}: {} bytes of the daemon each, and {} (at most {}) of the kernel",
        begun.elapsed(),
        grown / count,
        queued / count,
        queues.iter().max().expect("there are some"),
    );
    assert!((grown + queued) / count < COST_MAX, "{} bytes each", (grown + queued) / count);

    let among = others(daemon.address, 1);
    println!(
        "the others' tokens: p50 {:?}, p99 {:?} among them; p50 {:?}, p99 {:?} alone; ratio {:.2}, {:.2}",
        percentile(&among, 0.5),
        percentile(&among, 0.99),
        percentile(&alone, 0.5),
        percentile(&alone, 0.99),
        percentile(&among, 0.5).as_secs_f64() / percentile(&alone, 0.5).as_secs_f64(),
        percentile(&among, 0.99).as_secs_f64() / percentile(&alone, 0.99).as_secs_f64(),
    );

    eventually("all of them to be closed", || {
        daemon.log().matches("takes nothing: closed as slow").count() >= count
    });
    eventually("their descriptors to come back", || files_now() <= files);
    let kept = eventually("their memory to come back", || {
        let kept = resident_bytes(daemon.pid()).saturating_sub(before);
        (kept < 20_000_000 + count * 20_000).then_some(kept)
    });
    println!(
        "all closed after {:?}; {kept} bytes more than before, {} awake sessions more",
        begun.elapsed(),
        count
    );
    drop(readers);
}
