//! How far behind the log the stores are, while a steady load writes records into it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures::StreamExt as _;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use super::records::Speaker;
use super::{Cluster, PATIENCE};
use crate::figures::{Figure, percentile};
use crate::load::model::Model;
use crate::nats::Adapter;
use crate::rows::Extent;

/// How far behind a store may be with so many records a second, in milliseconds.
const LAG_P99_MS: f64 = 50.0;
const RECORDS_A_SECOND: u32 = 5_000;

const SESSIONS: u32 = 300;

/// How often it is looked how far a store is.
const LOOK: Duration = Duration::from_millis(2);

/// How far a store was, and when, in microseconds since 1970.
type Places = Vec<(u64, u64)>;

pub(super) fn lag(name: &str, extent: Extent) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let (server, is_over) = (cluster.servers[0].url(), AtomicBool::new(false));
    let (places, written, rate) = std::thread::scope(|scope| {
        let look = |home: &TempDir| {
            let (store, is_over) = (home.path().join("clawmux.db"), &is_over);
            scope.spawn(move || looked(store, is_over))
        };
        let looks: Vec<_> = cluster.homes.iter().map(look).collect();
        let consumer = scope.spawn(|| consumed(&server, &is_over));
        let over = Over(&is_over);
        let rate = steadily(&cluster, Duration::from_secs(extent.units(9) as u64));
        // What is on its way still comes.
        std::thread::sleep(Duration::from_secs(1));
        drop(over);
        let places: Vec<Places> = looks.into_iter().map(|look| look.join().expect("it looks")).collect();
        (places, consumer.join().expect("it consumes"), rate)
    });
    let mut stores = Vec::new();
    for places in &places {
        let mut places = places.iter().peekable();
        for (record, (at, _)) in &written {
            while places.next_if(|(applied, _)| applied < record).is_some() {}
            let (_, seen) = places.peek().expect("every store has it in the end");
            stores.push(seen.saturating_sub(*at) as f64 / 1e3);
        }
    }
    let consumer: Vec<f64> =
        written.values().map(|(at, came)| came.saturating_sub(*at) as f64 / 1e3).collect();
    let figure = |kind, share| {
        let figure = Figure::new(name, kind, "ms", vec![percentile(&stores, share)]);
        figure.beside("consumer", vec![percentile(&consumer, share)], None)
    };
    vec![
        Figure::new(name, "records a second", "", vec![rate]),
        figure("p50", 0.5),
        figure("p99", 0.99).at_most(LAG_P99_MS),
    ]
}

/// Says that it is over when it is dropped, also by a panic: those who look would hold that up.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks how far a store is until it is over.
fn looked(store: PathBuf, is_over: &AtomicBool) -> Places {
    let store = Connection::open_with_flags(store, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("it opens");
    let mut look = store.prepare("SELECT applied FROM meta").expect("a table");
    let mut places = Places::new();
    while !is_over.load(Ordering::Relaxed) {
        let applied: i64 = look.query_row([], |row| row.get(0)).expect("a row");
        let applied = applied.cast_unsigned();
        if places.last().is_none_or(|(last, _)| *last != applied) {
            places.push((applied, now_us()));
        }
        std::thread::sleep(LOOK);
    }
    places
}

/// Messages put into many sessions, each at its times, at all daemons. Gives how many a second there were.
fn steadily(cluster: &Cluster, during: Duration) -> f64 {
    let every = Duration::from_secs(1) * SESSIONS / RECORDS_A_SECOND;
    let mut speaker = Speaker::new(cluster, SESSIONS as usize);
    let mut due: Vec<Duration> = (0..SESSIONS).map(|nth| every * nth / SESSIONS).collect();
    let mut is_answered = vec![true; due.len()];
    let (begin, mut sent) = (Instant::now(), 0);
    while begin.elapsed() < during || is_answered.contains(&false) {
        let now = begin.elapsed();
        for session in 0..due.len() {
            if now < during && is_answered[session] && due[session] <= now {
                speaker.send(session);
                sent += 1;
                (is_answered[session], due[session]) = (false, due[session] + every);
            }
        }
        for session in speaker.answered(Duration::from_millis(1)) {
            is_answered[session] = true;
        }
        assert!(begin.elapsed() < during + PATIENCE, "some are not answered");
    }
    f64::from(sent) / begin.elapsed().as_secs_f64()
}

/// A record: when the log got it, and when a bare consumer did, in microseconds since 1970.
type Written = BTreeMap<u64, (u64, u64)>;

/// Consumes the log until it is over, and does nothing with it.
fn consumed(server: &str, is_over: &AtomicBool) -> Written {
    let adapter = Adapter::new(&[server.to_owned()]);
    adapter.wait(async {
        let log = adapter.js.get_stream("clawmux_LOG").await.expect("the log");
        let consumer = log.create_consumer(pull::Config {
            ack_policy: AckPolicy::None,
            deliver_policy: DeliverPolicy::New,
            ..pull::Config::default()
        });
        let mut messages = consumer.await.expect("a consumer").messages().await.expect("messages");
        let mut written = Written::new();
        while !is_over.load(Ordering::Relaxed) {
            let Ok(message) = tokio::time::timeout(Duration::from_millis(100), messages.next()).await else {
                continue;
            };
            let message = message.expect("it goes on").expect("a message");
            let info = message.info().expect("it is of a stream");
            let at = u64::try_from(info.published.unix_timestamp_nanos() / 1_000).expect("after 1970");
            written.insert(info.stream_sequence, (at, now_us()));
        }
        written
    })
}

fn now_us() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(since_1970.as_micros()).expect("before year 500,000")
}
