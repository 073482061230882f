//! What is held for those who do nothing: connections, sessions awake; and how long one that sleeps takes to wake.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Extent, NO_LIMITS, Row, home, on_model};
use crate::figures::{Figure, percentile};
use crate::load::dialect::Dialect;
use crate::load::model::Model;
use crate::load::streams::Streams;
use crate::load::wire::Wire;
use crate::process::Process;
use crate::sessions::{fill, log};
use crate::support::process::open_files_max;

/// What is held for one, in kilobytes.
const CONNECTION_KB: f64 = 12.0;
const SESSION_KB: f64 = 4.0;
/// What waking one may take, 99 times of 100, in milliseconds.
const WAKE_MS: f64 = 1.0;

const CONNECTIONS: usize = 10_000;
const SESSIONS: usize = 10_000;
const AT_ONCE: usize = 100;
const WAKES: usize = 1_000;

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("idle connection", idle_connection),
        Row::new("session awake", session_awake),
        Row::new("wake 100k asleep", |name, extent| wake(name, extent, 100_000)),
        Row::new("wake 1M asleep", |name, extent| wake(name, extent, 1_000_000)).long(),
    ]
}

/// Of as many as the limit on open files allows: the daemon has two for each, and some besides.
fn idle_connection(name: &str, extent: Extent) -> Vec<Figure> {
    let room = (open_files_max() / 2).saturating_sub(600);
    let (home, count) = (home(), extent.units(CONNECTIONS).min(room));
    let each = |process: &Process, dialect: Dialect| {
        // Some to warm up.
        let mut wires: Vec<Wire> = (0..100).map(|_| dialect.connect(process)).collect();
        let before = process.resident_bytes();
        wires.extend((0..count).map(|_| dialect.connect(process)));
        std::thread::sleep(Duration::from_millis(200));
        vec![(process.resident_bytes() - before) / count as f64 / 1e3]
    };
    let ours = each(&Process::daemon(home.path(), NO_LIMITS), Dialect::Exoclaw);
    let actix = each(&Process::limit(&["limit-actix-echo"]), Dialect::Bare);
    let epoll = each(&Process::limit(&["limit-echo"]), Dialect::Bare);
    let figure = Figure::new(name, "memory", "kB", ours).at_most(CONNECTION_KB);
    vec![figure.beside("actix echo", actix, None).beside("epoll echo", epoll, None)]
}

/// Sessions that have had a prompt and an answer of a token.
fn session_awake(name: &str, extent: Extent) -> Vec<Figure> {
    let (model, home) = (Model::new(1, Duration::ZERO), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let chats = |count: usize| {
        for _ in 0..count / AT_ONCE {
            Streams::connect(&daemon, [Dialect::Exoclaw; AT_ONCE]).run(AT_ONCE);
        }
        daemon.resident_bytes()
    };
    let (before, count) = (chats(1_000), extent.units(SESSIONS) / AT_ONCE * AT_ONCE);
    let each = (chats(count) - before) / count as f64 / 1e3;
    vec![Figure::new(name, "memory", "kB", vec![each]).at_most(SESSION_KB)]
}

/// From a request that concerns a session to the first frame of its answer, with its last turn.
fn wake(name: &str, extent: Extent, sessions: u64) -> Vec<Figure> {
    // No connection follows more than so many.
    const FOLLOWED: usize = 200;
    let home = home();
    fill(&log(home.path()), sessions);
    let daemon = Process::daemon(home.path(), NO_LIMITS);
    let mut took = Vec::new();
    let numbers: Vec<u64> = (0..extent.units(WAKES) as u64).map(|n| 1 + n * 7919 % sessions).collect();
    for some in numbers.chunks(FOLLOWED) {
        let mut wire = Dialect::Exoclaw.connect(&daemon);
        for number in some {
            let id = format!("w{number}");
            let session = format!("main:websocket:user-{number}:main");
            let request =
                json!({"id": id, "method": "session.attach", "params": {"session": session, "turns": 1}});
            let begin = Instant::now();
            wire.send(&request.to_string());
            wire.find(&format!("\"id\":\"{id}\""));
            took.push(begin.elapsed().as_secs_f64() * 1e3);
            wire.find("\"event\":\"done\"");
        }
    }
    vec![
        Figure::new(name, "p50", "ms", vec![percentile(&took, 0.5)]),
        Figure::new(name, "p99", "ms", vec![percentile(&took, 0.99)]).at_most(WAKE_MS),
    ]
}
