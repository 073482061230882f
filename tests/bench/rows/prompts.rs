//! What stands between a prompt and its answer: that it is on the disk, and that its first token comes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Extent, Row, columns, home, on_model};
use crate::figures::{Contender, Figure, percentile, rounds};
use crate::load::dialect::Dialect;
use crate::load::fresh_name;
use crate::load::model::Model;
use crate::load::poll::Poll;
use crate::load::streams::Streams;
use crate::load::wire::Wire;
use crate::process::Process;

/// How many times as long as an append and a sync an acknowledgement may take.
const ACKNOWLEDGED: f64 = 2.0;
/// What the first token may take besides the disk's sync, in milliseconds.
const FIRST_MS: f64 = 1.0;
const ROUNDS: usize = 5;

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    let first = |at_once: usize| {
        Row::new(format!("first token {at_once}"), move |name, extent| first_token(name, extent, at_once))
    };
    let prompts = |sessions: usize| {
        Row::new(format!("prompts {sessions}"), move |name, extent| acknowledged(name, extent, sessions))
    };
    vec![first(16), first(128), first(512), prompts(1), prompts(64), prompts(256)]
}

/// Of sessions that begin at once.
fn first_token(name: &str, extent: Extent, at_once: usize) -> Vec<Figure> {
    let (model, home) = (Model::new(1, Duration::ZERO), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let relay = Process::limit(&["limit-relay", &model.address.to_string()]);
    let contender = |process, dialect| {
        let go = move || {
            let seen = Streams::connect(process, vec![dialect; at_once]).run(at_once);
            percentile(&seen.first_ms, 0.5)
        };
        go();
        go
    };
    let (ours, relay) = (contender(&daemon, Dialect::Exoclaw), contender(&relay, Dialect::Bare));
    let contenders =
        vec![Box::new(|| vec![ours() - sync_ms(home.path())]) as Contender<'_>, Box::new(|| vec![relay()])];
    let [ours, relay] =
        columns(rounds(extent.rounds(ROUNDS), contenders)).map(|mut figures| figures.remove(0));
    vec![Figure::new(name, "over the sync", "ms", ours).at_most(FIRST_MS).beside("relay", relay, None)]
}

/// What an append and the disk's sync take in this folder now, in milliseconds: the median of some.
fn sync_ms(folder: &Path) -> f64 {
    let mut file = File::create(folder.join("sync")).expect("a file");
    let mut once = || {
        let begin = Instant::now();
        file.write_all(&[b'x'; 4096]).expect("it is written");
        file.sync_data().expect("it is on the disk");
        begin.elapsed().as_secs_f64() * 1e3
    };
    let times: Vec<f64> = (0..15).map(|_| once()).collect();
    percentile(&times, 0.5)
}

/// What a prompt takes to be acknowledged where so many sessions are each given one after the other. Their runs are
/// answered after that: what a run takes is the row of the one-token chat.
fn acknowledged(name: &str, extent: Extent, sessions: usize) -> Vec<Figure> {
    // A session lets no more wait than 64.
    let each = match sessions {
        1 => 60,
        64 => 20,
        _ => 8,
    };
    let (model, home) = (Model::new(1, Duration::ZERO), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let file = home.path().join("appended");
    let append = Process::limit(&["limit-append", &file.display().to_string()]);
    let contender = |process, dialect| {
        let model = &model;
        Box::new(move || vec![acknowledge(process, dialect, model, sessions, each)]) as Contender<'_>
    };
    let contenders = vec![contender(&daemon, Dialect::Exoclaw), contender(&append, Dialect::Bare)];
    let [ours, append] =
        columns(rounds(extent.rounds(ROUNDS), contenders)).map(|mut figures| figures.remove(0));
    vec![Figure::new(name, "each", "µs", ours).beside("append+sync", append, ACKNOWLEDGED)]
}

/// Microseconds for one, until all are acknowledged; waits until all have been answered, too.
pub(super) fn acknowledge(
    process: &Process,
    dialect: Dialect,
    model: &Model,
    sessions: usize,
    each: usize,
) -> f64 {
    model.hold();
    let mut wires: Vec<Wire> = (0..sessions).map(|_| dialect.connect(process)).collect();
    let accounts: Vec<String> = wires.iter().map(|_| fresh_name()).collect();
    let prompt = |place: usize, number: usize| {
        let account = &accounts[place];
        let key = format!("{account}-{number}");
        json!({"id": key, "method": "chat.send", "params":
            {"channel": "bench", "account": account, "content": "go", "idempotency_key": key}})
        .to_string()
    };
    let (mut poll, mut sent) = (Poll::of(&wires), vec![1; sessions]);
    let (mut accepted, mut done, total) = (0, 0, sessions * each);
    let begin = Instant::now();
    let mut took = Duration::ZERO;
    for (place, wire) in wires.iter_mut().enumerate() {
        wire.send(&prompt(place, 0));
    }
    while accepted < total || (dialect != Dialect::Bare && done < total) {
        for place in poll.ready(Duration::from_secs(60)) {
            let wire = &mut wires[place];
            wire.receive();
            let mut is_next = false;
            while let Some(message) = wire.take() {
                if dialect == Dialect::Bare || message.windows(10).any(|part| part == b"\"accepted\"") {
                    is_next = true;
                    accepted += 1;
                    if accepted == total {
                        took = begin.elapsed();
                        model.release();
                    }
                } else if dialect.is_end(message) {
                    done += 1;
                }
            }
            if is_next && sent[place] < each {
                wire.send(&prompt(place, sent[place]));
                sent[place] += 1;
            }
        }
    }
    took.as_secs_f64() * 1e6 / total as f64
}
