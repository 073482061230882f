//! What a token costs on its way from the model to a client, and how long it takes.

use std::time::Duration;

use super::{Extent, Row, columns, home, on_model};
use crate::figures::{Contender, Figure, percentile, rounds};
use crate::load::dialect::Dialect;
use crate::load::model::Model;
use crate::load::streams::{Seen, Streams};
use crate::process::Process;

/// How many times what the relay takes.
const FLAT_OUT: f64 = 1.6;
const PACED: f64 = 1.4;
const AGE_P50: f64 = 1.3;
const AGE_P99: f64 = 1.5;

const ROUNDS: usize = 5;
/// Of all streams together, in one round.
const TOKENS_FLAT_OUT: usize = 320_000;
/// For how long paced answers stream, in seconds.
const SECONDS: f64 = 2.0;

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = vec![
        Row::new("token flat 1", |name, extent| flat_out(name, extent, 1, false)),
        Row::new("token flat 16", |name, extent| flat_out(name, extent, 16, false)),
        Row::new("token flat 16 one core", |name, extent| flat_out(name, extent, 16, true)),
        Row::new("token paced 64@100", |name, extent| paced(name, extent, 64, 100, &[Dialect::Exoclaw])),
    ];
    for streams in [1, 16, 256, 1000] {
        for rate in [20, 50, 100] {
            let name = format!("token mixed {streams}@{rate}");
            let row = Row::new(name, move |name, extent| paced(name, extent, streams, rate, &Dialect::WEB));
            // One small, one middling, one large.
            let is_short = matches!((streams, rate), (16, 50) | (256, 20));
            rows.push(if is_short { row } else { row.long() });
        }
    }
    rows.push(Row::new("one-token chat", one_token));
    rows
}

fn flat_out(name: &str, extent: Extent, streams: usize, is_one_core: bool) -> Vec<Figure> {
    let each = extent.units(TOKENS_FLAT_OUT) / streams;
    let (model, home) = (Model::new(each, Duration::ZERO), home());
    let limit = if is_one_core { Process::limit_on_one_core } else { Process::limit };
    let daemon = if is_one_core { Process::daemon_on_one_core } else { Process::daemon };
    let daemon = daemon(home.path(), &on_model(&model));
    let upstream = model.address.to_string();
    let (relay, actix) = (limit(&["limit-relay", &upstream]), limit(&["limit-actix-relay", &upstream]));
    let contender = |process, dialect| {
        let go = move || {
            let seen = Streams::connect(process, vec![dialect; streams]).run(each * streams);
            assert_eq!(seen.tokens, each * streams, "every token arrives once");
            vec![seen.cpu_us]
        };
        go();
        Box::new(go) as Contender<'_>
    };
    let contenders = vec![
        contender(&daemon, Dialect::Exoclaw),
        contender(&relay, Dialect::Bare),
        contender(&actix, Dialect::Bare),
    ];
    let [ours, relay, actix] = columns(rounds(extent.rounds(ROUNDS), contenders));
    let [ours, relay, actix] = [ours, relay, actix].map(|mut figures| figures.remove(0));
    vec![Figure::new(name, "CPU", "µs", ours).beside("relay", relay, FLAT_OUT).beside(
        "awc relay",
        actix,
        None,
    )]
}

fn paced(name: &str, extent: Extent, streams: usize, rate: u32, dialects: &[Dialect]) -> Vec<Figure> {
    let each = (SECONDS * f64::from(rate)) as usize;
    let (model, home) = (Model::new(each, Duration::from_secs(1) / rate), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let upstream = model.address.to_string();
    let relay = Process::limit(&["limit-relay", &upstream]);
    let actix = Process::limit(&["limit-actix-relay", &upstream]);
    let model = &model;
    let contender = |process, dialects: Vec<Dialect>| {
        Box::new(move || {
            let mix = dialects.iter().copied().cycle().take(streams);
            let Seen { cpu_us, ages_us, .. } =
                Streams::connect(process, mix).run_steady(model, each * streams);
            vec![cpu_us, percentile(&ages_us, 0.5), percentile(&ages_us, 0.99)]
        }) as Contender<'_>
    };
    let contenders = vec![
        contender(&daemon, dialects.to_vec()),
        contender(&relay, vec![Dialect::Bare]),
        contender(&actix, vec![Dialect::Bare]),
    ];
    let [ours, relay, actix] = columns(rounds(extent.rounds(ROUNDS), contenders));
    let kinds = [("CPU", PACED), ("age p50", AGE_P50), ("age p99", AGE_P99)];
    let figures = ours.into_iter().zip(relay).zip(actix).zip(kinds);
    figures
        .map(|(((ours, relay), actix), (kind, goal))| {
            Figure::new(name, kind, "µs", ours).beside("relay", relay, goal).beside("awc relay", actix, None)
        })
        .collect()
}

/// Whole chats with an answer of one token: each a prompt in a session of its own, a run, a call of the model.
fn one_token(name: &str, extent: Extent) -> Vec<Figure> {
    const AT_ONCE: usize = 50;
    let chats = extent.units(600) / AT_ONCE;
    let (model, home) = (Model::new(1, Duration::ZERO), home());
    let daemon = Process::daemon(home.path(), &on_model(&model));
    let relay = Process::limit(&["limit-relay", &model.address.to_string()]);
    let contender = |process, dialect| {
        Box::new(move || {
            let cpu = (0..chats).map(|_| Streams::connect(process, [dialect; AT_ONCE]).run(AT_ONCE).cpu_us);
            vec![cpu.sum::<f64>() / chats as f64]
        }) as Contender<'_>
    };
    let contenders = vec![contender(&daemon, Dialect::Exoclaw), contender(&relay, Dialect::Bare)];
    let [ours, relay] = columns(rounds(extent.rounds(ROUNDS), contenders));
    let [ours, relay] = [ours, relay].map(|mut figures| figures.remove(0));
    vec![Figure::new(name, "CPU", "µs", ours).beside("relay", relay, None)]
}
