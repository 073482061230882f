//! How far behind the log the stores are, while a steady load writes records into it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures::StreamExt as _;
use rusqlite::{Connection, OpenFlags};

use super::{Cluster, PATIENCE, fresh_name, has, prompt};
use crate::figures::{Figure, percentile};
use crate::load::dialect::Dialect;
use crate::load::model::Model;
use crate::load::poll::Poll;
use crate::load::wire::Wire;
use crate::nats::Adapter;
use crate::rows::Extent;

/// How far behind a store may be with so many records a second, in milliseconds.
const LAG_P99_MS: f64 = 50.0;
const RECORDS_A_SECOND: u32 = 5_000;

/// Records of a prompt with a key: the guard of its key, what begins it, the call of the model, its end, its usage.
const RECORDS_A_PROMPT: u32 = 5;

const SESSIONS: u32 = 300;

/// How often it is looked how far a store is.
const LOOK: Duration = Duration::from_millis(2);

/// How far a store was, and when, in microseconds since 1970.
type Places = Vec<(u64, u64)>;

pub(super) fn lag(name: &str, extent: Extent) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let is_over = AtomicBool::new(false);
    let (places, seconds) = std::thread::scope(|scope| {
        let looks: Vec<_> = cluster
            .homes
            .iter()
            .map(|home| (home.path().join("clawmux.db"), &is_over))
            .map(|(store, is_over)| scope.spawn(move || looked(store, is_over)))
            .collect();
        let over = Over(&is_over);
        let begin = Instant::now();
        steadily(&cluster, Duration::from_secs(extent.units(9) as u64));
        let seconds = begin.elapsed().as_secs_f64();
        // What is on its way still comes.
        std::thread::sleep(Duration::from_secs(1));
        drop(over);
        (looks.into_iter().map(|look| look.join().expect("it looks")).collect::<Vec<Places>>(), seconds)
    });
    let written = written(&cluster, places[0][0].0);
    let mut lags = Vec::new();
    for places in &places {
        let mut places = places.iter().peekable();
        for (record, at) in &written {
            while places.next_if(|(applied, _)| applied < record).is_some() {}
            let (_, seen) = places.peek().expect("every store has it in the end");
            lags.push(seen.saturating_sub(*at) as f64 / 1e3);
        }
    }
    let rate = written.len() as f64 / seconds;
    vec![
        Figure::new(name, "records a second", "", vec![rate]),
        Figure::new(name, "p50", "ms", vec![percentile(&lags, 0.5)]),
        Figure::new(name, "p99", "ms", vec![percentile(&lags, 0.99)]).at_most(LAG_P99_MS),
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
            let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            places.push((applied, u64::try_from(since_1970.as_micros()).expect("before year 500,000")));
        }
        std::thread::sleep(LOOK);
    }
    places
}

/// Prompts of many sessions, each at its times, at all daemons.
fn steadily(cluster: &Cluster, during: Duration) {
    let every = Duration::from_secs(1) * SESSIONS * RECORDS_A_PROMPT / RECORDS_A_SECOND;
    let begin = Instant::now();
    let mut wires: Vec<Wire> = cluster
        .daemons
        .iter()
        .cycle()
        .take(SESSIONS as usize)
        .map(|at| Dialect::Exoclaw.connect(at))
        .collect();
    let accounts: Vec<String> = wires.iter().map(|_| fresh_name()).collect();
    let mut poll = Poll::of(&wires);
    let mut due: Vec<Duration> = (0..SESSIONS).map(|nth| begin.elapsed() + every * nth / SESSIONS).collect();
    let mut is_answered = vec![true; wires.len()];
    let mut sent = 0;
    while begin.elapsed() < during || is_answered.contains(&false) {
        let now = begin.elapsed();
        for (place, wire) in wires.iter_mut().enumerate() {
            if now < during && is_answered[place] && due[place] <= now {
                sent += 1;
                wire.send(&prompt(&accounts[place], &format!("{sent}")));
                (is_answered[place], due[place]) = (false, due[place] + every);
            }
        }
        for place in poll.ready(Duration::from_millis(1)) {
            wires[place].receive();
            while let Some(message) = wires[place].take() {
                assert!(!has(message, b"\"error\""), "{}", String::from_utf8_lossy(message));
                is_answered[place] |= Dialect::Exoclaw.is_end(message);
            }
        }
        assert!(begin.elapsed() < during + PATIENCE, "some are not answered");
    }
}

/// When the log got each record after this one, in microseconds since 1970.
fn written(cluster: &Cluster, after: u64) -> BTreeMap<u64, u64> {
    let adapter = Adapter::new(&[cluster.servers[0].url()]);
    adapter.wait(async {
        let mut log = adapter.js.get_stream("clawmux_LOG").await.expect("the log");
        let last = log.info().await.expect("it says how far it is").state.last_sequence;
        let consumer = log.create_consumer(pull::Config {
            ack_policy: AckPolicy::None,
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
            headers_only: true,
            ..pull::Config::default()
        });
        let messages = consumer.await.expect("a consumer").messages().await.expect("messages");
        let mut written = BTreeMap::new();
        let mut messages = std::pin::pin!(messages);
        while written.last_key_value().map_or(after, |(last, _)| *last) < last {
            let message = messages.next().await.expect("it goes on").expect("a message");
            let info = message.info().expect("it is of a stream");
            let at = u64::try_from(info.published.unix_timestamp_nanos() / 1_000).expect("after 1970");
            written.insert(info.stream_sequence, at);
        }
        written
    })
}
