//! The benchmark: `cargo bench`; with `-- wundr` that of [`wundr`], with `-- openclaw` the comparison of
//! [`openclaw`].
//!
//! Everything is a ratio against a limit program in the same run: a relay that moves the same bytes
//! without looking at them ([`limit::relay`]), and a bare WebSocket echo ([`limit::echo`]). This
//! process plays the model provider and the clients; the daemon and the limit programs are processes
//! of their own, whose CPU time is read from `/proc`. Nothing is asserted: figures are for reading.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a program that prints its findings, in several files"
)]

#[allow(dead_code, reason = "tests use the rest of it")]
#[path = "../clients/npm.rs"]
mod npm;
#[allow(unused, reason = "the crate `it` uses all of it")]
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "tests use the rest of it")]
#[path = "../clients/theirs.rs"]
mod theirs;

mod limit;
mod load;
mod openclaw;
mod process;
mod wundr;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use load::Figures;
use process::Process;

/// What the model provider does.
struct Shape {
    name: &'static str,
    /// Streams at once.
    streams: usize,
    /// Tokens of each.
    tokens: usize,
    /// Between two tokens of one stream.
    pace: Duration,
}

/// One token at a time, as people see them; and as fast as the wire takes them.
const SHAPES: [Shape; 2] = [
    Shape { name: "paced token", streams: 16, tokens: 400, pace: Duration::from_millis(10) },
    Shape { name: "burst token", streams: 16, tokens: 40_000, pace: Duration::ZERO },
];
const PINGS: usize = 20_000;
const CHATS: usize = 2_000;
const CHATS_AT_ONCE: usize = 50;
/// Sessions that are made to see what one costs, so many at a time.
const SESSIONS: usize = 2_000;
const SESSIONS_AT_ONCE: usize = 50;
/// They go to sleep within this time, or something is wrong.
const SLEEPY: Duration = Duration::from_secs(180);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("limit-relay") => return limit::relay(&args[1]),
        Some("limit-echo") => return limit::echo(),
        Some("limit-fan") => return limit::fan(&args[1]),
        Some("wundr") => return wundr::measure(),
        // Asked for by name only: it installs other people's gateways.
        Some("openclaw") => return openclaw::compare(),
        _ => {}
    }
    println!("{} cores", cores());
    start_and_idle();
    pings();
    chats();
    for shape in SHAPES {
        tokens(&shape);
    }
    sessions();
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn start_and_idle() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut times: Vec<Duration> = (0..6)
        .map(|_| {
            let begin = Instant::now();
            let daemon = Process::daemon(home.path(), "");
            let ready = begin.elapsed();
            daemon.stop();
            ready
        })
        .collect();
    let first = times.remove(0);
    times.sort();
    println!("start to ready: {first:.1?} on an empty home, then {:.1?} (median of 5)", times[2]);
    // The first daemon of a home compiles the plugins, the next ones find them compiled.
    for which in ["after compiling the plugins", "with compiled plugins"] {
        let daemon = Process::daemon(home.path(), "");
        std::thread::sleep(Duration::from_secs(4));
        println!("idle memory {which}: {:.1} MB resident", daemon.resident_bytes() as f64 / 1e6);
        daemon.stop();
    }
}

fn pings() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = Process::daemon(home.path(), "");
    let echo = Process::limit(&["limit-echo"]);
    let ours = load::pings(&daemon, PINGS, true);
    let limit = load::pings(&echo, PINGS, false);
    report("ping", &ours, &limit);
}

/// A daemon whose model is at `upstream`.
fn daemon_on(upstream: SocketAddr, home: &Path) -> Process {
    let config = format!(
        "[providers.bench]\nkind = \"openai\"\nbase_url = \"http://{upstream}/v1\"\n\
         [agents.main]\nprovider = \"bench\"\nmodel = \"bench\"\ntools = []\n\
         [limits]\nrequests_burst = 0\n"
    );
    Process::daemon(home, &config)
}

/// Whole chats with an answer of one token: each a prompt in a session of its own, a run, a call of the model.
fn chats() {
    let upstream = load::upstream(1, Duration::ZERO);
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = daemon_on(upstream, home.path());
    let relay = Process::limit(&["limit-relay", &upstream.to_string()]);
    let figures = |process: &Process, hello: bool| {
        load::streams(process, CHATS_AT_ONCE, 1, hello);
        let begin = Instant::now();
        let mut cpu_us: Vec<f64> = (0..CHATS / CHATS_AT_ONCE)
            .map(|_| load::streams(process, CHATS_AT_ONCE, 1, hello).cpu_us)
            .collect();
        let each_second = (CHATS / CHATS_AT_ONCE * CHATS_AT_ONCE) as f64 / begin.elapsed().as_secs_f64();
        cpu_us.sort_by(f64::total_cmp);
        (cpu_us[cpu_us.len() / 2], each_second)
    };
    let (ours, limit) = (figures(&daemon, true), figures(&relay, false));
    println!(
        "one-token chat, {CHATS_AT_ONCE} at once: CPU {:.0} µs, limit program {:.0} µs, ratio {:.1}; {:.0} a second, \
         limit program {:.0}",
        ours.0,
        limit.0,
        ours.0 / limit.0,
        ours.1,
        limit.1
    );
}

/// What a session costs that is awake and idle, and one that sleeps.
fn sessions() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = daemon_on(load::upstream(20, Duration::ZERO), home.path());
    load::streams(&daemon, SESSIONS_AT_ONCE, 20, true);
    let (before, begun) = (daemon.resident_bytes() as f64, load::sessions(&daemon));
    for _ in 0..SESSIONS / SESSIONS_AT_ONCE {
        load::streams(&daemon, SESSIONS_AT_ONCE, 20, true);
    }
    let count = (load::sessions(&daemon) - begun) as f64;
    let awake = daemon.resident_bytes() as f64;
    let (begin, mut left) = (Instant::now(), usize::MAX);
    while left > 0 && begin.elapsed() < SLEEPY {
        std::thread::sleep(Duration::from_secs(1));
        left = load::sessions(&daemon);
    }
    // What they held is given back some seconds later.
    std::thread::sleep(Duration::from_secs(12));
    let asleep = daemon.resident_bytes() as f64;
    let each = |now: f64| (now - before) / count / 1e3;
    println!(
        "idle session: {:.1} kB awake, {:.1} kB asleep (of {count}, {left} still awake)",
        each(awake),
        each(asleep)
    );
}

fn tokens(shape: &Shape) {
    let Shape { name, streams, tokens, pace } = *shape;
    println!("{name}: {streams} streams of {tokens} tokens, one per {pace:?}");
    let upstream = load::upstream(tokens, pace);
    let home = tempfile::tempdir().expect("a temporary folder");
    let daemon = daemon_on(upstream, home.path());
    let relay = Process::limit(&["limit-relay", &upstream.to_string()]);
    // Once to warm up: connections, caches, the allocator.
    load::streams(&daemon, 2, tokens, true);
    let ours = load::streams(&daemon, streams, tokens, true);
    let limit = load::streams(&relay, streams, tokens, false);
    report(name, &ours, &limit);
}

fn report(what: &str, ours: &Figures, limit: &Figures) {
    let line = |name: &str, ours: f64, limit: f64| {
        println!("{what}: {name}: {ours:.2} µs, limit program {limit:.2} µs, ratio {:.2}", ours / limit);
    };
    line("CPU", ours.cpu_us, limit.cpu_us);
    line("latency p50", ours.p50_us, limit.p50_us);
    line("latency p99", ours.p99_us, limit.p99_us);
    println!("{what}: frames: {} for {} units, limit program {}", ours.frames, ours.units, limit.frames);
}
