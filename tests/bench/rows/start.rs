//! How long a daemon takes from its start to its first answer, and what it holds then; and how long one that was
//! killed takes until a client hears more of its answer.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Extent, NO_LIMITS, Row, home, on_model};
use crate::figures::{Contender, Figure, rounds};
use crate::load::dialect::Dialect;
use crate::load::fresh_name;
use crate::load::model::Model;
use crate::process::Process;
use crate::sessions::{fill, log};

const ROUNDS: usize = 7;
/// What a start may take, in milliseconds, and hold, in megabytes.
const READY_MS: f64 = 8.0;
const RESIDENT_MB: f64 = 12.0;
/// What may pass from the start after a kill to the first frame that goes on, in milliseconds.
const RESUMED_MS: f64 = 300.0;

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    let kill = |name: &str, sessions| Row::new(name, move |name, extent| killed(name, extent, sessions));
    vec![
        Row::new("start empty", |name, extent| start(name, extent, || None)),
        Row::new("start used", |name, extent| start(name, extent, || Some(used()))),
        Row::new("start 100k sessions", |name, extent| start(name, extent, || Some(many(100_000)))),
        Row::new("start 1M sessions", |name, extent| start(name, extent, || Some(many(1_000_000)))).long(),
        kill("kill 10k sessions", 10_000),
        kill("kill 250k sessions", 250_000).long(),
    ]
}

/// A home where a daemon has been.
fn used() -> tempfile::TempDir {
    let home = home();
    let daemon = Process::daemon(home.path(), NO_LIMITS);
    answer_ping(&daemon, Dialect::Exoclaw);
    daemon.stop();
    home
}

/// A home with so many sessions of four events each, where a daemon has been.
fn many(sessions: u64) -> tempfile::TempDir {
    let home = home();
    fill(&log(home.path()), sessions);
    Process::daemon(home.path(), NO_LIMITS).stop();
    home
}

fn answer_ping(process: &Process, dialect: Dialect) {
    let mut wire = dialect.connect(process);
    wire.send(dialect.ping());
    wire.next();
}

/// Of a home that stays the same, or of a new one each time.
fn start(name: &str, extent: Extent, kept: impl Fn() -> Option<tempfile::TempDir>) -> Vec<Figure> {
    let kept = kept();
    let started = |begin: Instant, process: Process, dialect| {
        answer_ping(&process, dialect);
        let found = vec![begin.elapsed().as_secs_f64() * 1e3, process.resident_bytes() / 1e6];
        process.stop();
        found
    };
    let ours = Box::new(|| {
        let new = kept.is_none().then(home);
        let home: &Path = new.as_ref().or(kept.as_ref()).expect("a home").path();
        let begin = Instant::now();
        started(begin, Process::daemon(home, NO_LIMITS), Dialect::Exoclaw)
    }) as Contender<'_>;
    let actix = Box::new(|| {
        let begin = Instant::now();
        started(begin, Process::limit(&["limit-actix-echo"]), Dialect::Bare)
    });
    let found = rounds(extent.rounds(ROUNDS), vec![ours, actix]);
    let [ours, actix]: [Vec<Vec<f64>>; 2] = super::columns(found);
    let figures = ours.into_iter().zip(actix).zip([("time", "ms", READY_MS), ("memory", "MB", RESIDENT_MB)]);
    figures
        .map(|((ours, actix), (kind, unit, goal))| {
            Figure::new(name, kind, unit, ours).at_most(goal).beside("actix echo", actix, None)
        })
        .collect()
}

/// From the start after a kill in the middle of an answer to the first frame that the client did not have.
fn killed(name: &str, extent: Extent, sessions: u64) -> Vec<Figure> {
    let home = many(sessions);
    let model = Model::new(5_000, Duration::from_millis(10));
    let mut times = Vec::new();
    for _ in 0..extent.rounds(5) {
        let daemon = Process::daemon(home.path(), &on_model(&model));
        let mut wire = Dialect::Exoclaw.connect(&daemon);
        let session = format!("main:bench:{}:main", fresh_name());
        let request = |id: &str, method: &str, more: (&str, Value)| {
            let mut params = json!({"session": session});
            params[more.0] = more.1;
            json!({"id": id, "method": method, "params": params}).to_string()
        };
        wire.send(&request("a", "session.attach", ("turns", json!(0))));
        wire.find("\"result\"");
        wire.send(&request("p", "chat.send", ("content", json!("go"))));
        // What it is told under its own request has no numbers: somebody else hears those.
        let mut other = Dialect::Exoclaw.connect(&daemon);
        other.send(&request("o", "session.attach", ("turns", json!(1))));
        let mut last = Value::Null;
        for _ in 0..5 {
            last = serde_json::from_str(&other.find("\"event\":\"text\"")).expect("JSON");
        }
        daemon.kill();
        let begin = Instant::now();
        let daemon = Process::daemon(home.path(), &on_model(&model));
        let mut wire = Dialect::Exoclaw.connect(&daemon);
        wire.send(&request("b", "session.attach", ("after_seq", last["seq"].clone())));
        wire.find("\"event\"");
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        wire.send(&request("c", "session.delete", ("peer", Value::Null)));
        wire.find("\"id\":\"c\"");
        daemon.stop();
    }
    vec![Figure::new(name, "resumed", "ms", times).at_most(RESUMED_MS)]
}
