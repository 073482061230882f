//! A cluster of three daemons on three servers, which sync what they acknowledge, beside bare publishes to the same
//! servers. All of them share this machine: what is said of the network is said by loopback. Where there is no
//! nats-server the rows are left out.

mod lag;
mod records;
mod streams;
mod waking;

use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use async_nats::{HeaderMap, HeaderValue, Request, header};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::ids::SessionKey;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::bus::with_server;
use super::prompts::acknowledge;
use super::{Extent, Row, columns, home, on_model};
use crate::figures::{Contender, Figure, percentile, rounds};
use crate::load::dialect::Dialect;
use crate::load::fresh_name;
use crate::load::model::Model;
use crate::load::poll::Poll;
use crate::load::wire::Wire;
use crate::nats::{Adapter, Server};
use crate::process::{Cpu, Process};
use crate::support::daemon;

const ROUNDS: usize = 5;

/// Prompts of one session, one after the other.
const EACH: usize = 8;

/// Bytes of a bare message: as many as the record of a short prompt has.
const BYTES: usize = 400;

/// How soon a prompt of another daemon's session shall be acknowledged, with 64 at once, in milliseconds.
const P50_MS: f64 = 4.0;
const P99_MS: f64 = 25.0;

/// How many times as long as a bare publish a record may take.
const PUBLISH: f64 = 2.0;

/// How much later who follows at another daemon shall have the first text, in milliseconds.
const LATER_MS: f64 = 1.0;

/// How soon a session of a daemon that was killed shall take a prompt, in milliseconds.
const TAKEOVER_MS: f64 = 6_000.0;

/// What a daemon may take that nobody asks anything: of a core, in percent, and of memory, more than one alone has, in
/// megabytes.
const IDLE_PERCENT: f64 = 1.0;
const IDLE_MB: f64 = 10.0;

/// How long it may take to give sessions away that sleep, in milliseconds.
const DRAIN_MS: f64 = 2_000.0;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("cluster prompts 1", |name, extent| with_server(|| elsewhere(name, extent, 1))),
        Row::new("cluster prompts 64", |name, extent| with_server(|| paced(name, extent, 64))),
        Row::new("cluster prompts 64 flat out", |name, extent| with_server(|| elsewhere(name, extent, 64))),
        Row::new("cluster prompts 256", |name, extent| with_server(|| prompts(name, extent, 256))),
        Row::new("cluster first token", |name, extent| with_server(|| first_token(name, extent))),
        Row::new("cluster records 256", |name, extent| with_server(|| records::records(name, extent, 256))),
        Row::new("cluster streams 96", |name, extent| with_server(|| streams::streams(name, extent, 96))),
        Row::new("cluster streams 480", |name, extent| with_server(|| streams::streams(name, extent, 480)))
            .long(),
        Row::new("cluster lag", |name, extent| with_server(|| lag::lag(name, extent))),
        Row::new("cluster waking 200", |name, extent| with_server(|| waking::waking(name, extent))),
        Row::new("cluster idle", |name, _| with_server(|| idle(name))),
        Row::new("cluster drain 1000", |name, extent| with_server(|| drain(name, extent))).long(),
        Row::new("cluster takeover", |name, extent| with_server(|| takeover(name, extent))).long(),
    ]
}

/// Three daemons and their servers.
struct Cluster {
    daemons: Vec<Process>,
    homes: Vec<TempDir>,
    configs: Vec<String>,
    servers: [Server; 3],
}

impl Cluster {
    fn start(model: &Model) -> Self {
        let (servers, monitors) = Server::syncing_cluster();
        let homes: Vec<TempDir> = (0..3).map(|_| home()).collect();
        let configs: Vec<String> = (0..3)
            .map(|place| {
                let mut urls: Vec<String> = servers.iter().map(Server::url).collect();
                urls.rotate_left(place);
                let node = name_of(place);
                format!(
                    "{}\n[cluster]\nnode = {node:?}\nservers = {urls:?}\nmonitor = {monitors:?}\n",
                    on_model(model)
                )
            })
            .collect();
        std::fs::write(homes[0].path().join("gateway.toml"), &configs[0]).expect("it is written");
        // The servers have to find each other first.
        let begin = Instant::now();
        loop {
            let mut init = daemon::command(homes[0].path());
            let (code, said, why) = daemon::output(init.args(["cluster", "init"]));
            if code == 0 {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{said}{why}");
        }
        let start = |(home, config): (&TempDir, &String)| Process::daemon(home.path(), config);
        let cluster =
            Self { daemons: homes.iter().zip(&configs).map(start).collect(), homes, configs, servers };
        cluster.settle();
        cluster
    }

    /// Waits until each owns its share.
    fn settle(&self) {
        let begin = Instant::now();
        loop {
            let owners = self.owners();
            let share = |place: usize| owners.iter().filter(|owner| **owner == name_of(place)).count();
            if (0..3).all(|place| share(place) > 48) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not settle: {owners:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Who owns each slot, as the first daemon sees it.
    fn owners(&self) -> Vec<String> {
        self.owners_seen_by(0)
    }

    /// The same, as another one does.
    fn owners_seen_by(&self, place: usize) -> Vec<String> {
        let mut command = daemon::command(self.homes[place].path());
        let (_, said, why) = daemon::output(command.args(["cluster", "slots", "--json"]));
        let rows: Vec<Value> = said
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no row: {line}{why}")))
            .flat_map(|row: Value| row.as_array().cloned().unwrap_or_else(|| vec![row]))
            .collect();
        rows.iter().map(|row| row["owner"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// An account whose session this daemon owns, or does not.
    fn account(&self, owners: &[String], place: usize, is_its: bool) -> String {
        let wanted = |account: &String| self.owns(owners, place, account) == is_its;
        std::iter::repeat_with(fresh_name).find(wanted).expect("without an end")
    }

    /// Whether this daemon owns the session of an account.
    fn owns(&self, owners: &[String], place: usize, account: &str) -> bool {
        let key = SessionKey::new("main", "bench", account, "main").expect("a key");
        owners[usize::from(Slot::of(&key).number())] == name_of(place)
    }
}

fn name_of(place: usize) -> &'static str {
    ["a", "b", "c"][place]
}

fn prompt(account: &str, id: &str) -> String {
    json!({"id": id, "method": "chat.send", "params":
        {"channel": "bench", "account": account, "content": "go", "idempotency_key": id}})
    .to_string()
}

fn until_end(wire: &mut Wire) {
    while !Dialect::Exoclaw.is_end(wire.next().as_bytes()) {}
}

fn has(message: &[u8], part: &[u8]) -> bool {
    message.windows(part.len()).any(|window| window == part)
}

/// Prompts of sessions that other daemons own, so many at once, one after the other: from sending one until it is
/// acknowledged. Answers are over at once, so that with more than a few there is more to do than can be done.
fn elsewhere(name: &str, extent: Extent, sessions: usize) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let owners = cluster.owners();
    let adapter = bare(&cluster);
    let ours = || {
        let accounts: Vec<String> = (0..sessions).map(|_| cluster.account(&owners, 0, false)).collect();
        let took = times(&cluster.daemons[0], &accounts);
        vec![percentile(&took, 0.5), percentile(&took, 0.99)]
    };
    let alone = || {
        let took = adapter.wait(published(&adapter, sessions));
        vec![percentile(&took, 0.5), percentile(&took, 0.99)]
    };
    let guarded = || {
        let took = adapter.wait(batches(&adapter, sessions));
        vec![percentile(&took, 0.5), percentile(&took, 0.99)]
    };
    ours();
    let contenders: Vec<Contender<'_>> = vec![Box::new(ours), Box::new(alone), Box::new(guarded)];
    let [ours, alone, guarded] = columns(rounds(extent.rounds(ROUNDS), contenders));
    let figure = |kind, at: usize, goal| {
        let figure = Figure::new(name, kind, "ms", ours[at].clone()).at_most(goal);
        figure.beside("publish", alone[at].clone(), None).beside("batch", guarded[at].clone(), None)
    };
    vec![figure("p50", 0, P50_MS), figure("p99", 1, P99_MS)]
}

/// The same of sessions whose answers take a second, each session at its own times.
fn paced(name: &str, extent: Extent, sessions: usize) -> Vec<Figure> {
    const ANSWER: Duration = Duration::from_secs(1);
    let model = Model::new(1, ANSWER);
    let cluster = Cluster::start(&model);
    let owners = cluster.owners();
    let ours = || {
        let accounts: Vec<String> = (0..sessions).map(|_| cluster.account(&owners, 0, false)).collect();
        let took = times_of(&cluster.daemons[0], &accounts, EACH, ANSWER / sessions as u32);
        vec![percentile(&took, 0.5), percentile(&took, 0.99)]
    };
    ours();
    let contenders: Vec<Contender<'_>> = vec![Box::new(ours)];
    let [ours] = columns(rounds(extent.rounds(ROUNDS), contenders));
    let figure = |kind, at: usize, goal| Figure::new(name, kind, "ms", ours[at].clone()).at_most(goal);
    vec![figure("p50", 0, P50_MS), figure("p99", 1, P99_MS)]
}

/// How long each took, in milliseconds.
fn times(process: &Process, accounts: &[String]) -> Vec<f64> {
    times_of(process, accounts, EACH, Duration::ZERO)
}

/// The same, with so many prompts of each; the first one of each so long after that of the one before.
fn times_of(process: &Process, accounts: &[String], each: usize, apart: Duration) -> Vec<f64> {
    let mut wires: Vec<Wire> = accounts.iter().map(|_| Dialect::Exoclaw.connect(process)).collect();
    let (mut poll, mut took) = (Poll::of(&wires), Vec::new());
    let mut begun = vec![Instant::now(); wires.len()];
    let mut sent = vec![0; wires.len()];
    let mut ended = 0;
    let mut send = |wire: &mut Wire, place: usize, begun: &mut [Instant]| {
        sent[place] += 1;
        begun[place] = Instant::now();
        wire.send(&prompt(&accounts[place], &format!("{}-{}", accounts[place], sent[place])));
        sent[place]
    };
    let (begin, mut started) = (Instant::now(), 0);
    let mut turns = vec![1; wires.len()];
    while ended < wires.len() {
        while started < wires.len() && begin.elapsed() >= apart * started as u32 {
            send(&mut wires[started], started, &mut begun);
            started += 1;
        }
        let next = (apart * started as u32).saturating_sub(begin.elapsed());
        for place in poll.ready(if started < wires.len() { next } else { PATIENCE }) {
            let wire = &mut wires[place];
            wire.receive();
            let mut is_over = false;
            while let Some(message) = wire.take() {
                if has(message, b"\"accepted\"") {
                    took.push(begun[place].elapsed().as_secs_f64() * 1e3);
                } else if Dialect::Exoclaw.is_end(message) {
                    is_over = true;
                }
            }
            if is_over && turns[place] < each {
                turns[place] = send(wire, place, &mut begun);
            } else if is_over {
                ended += 1;
            }
        }
    }
    assert_eq!(took.len(), accounts.len() * each, "each is acknowledged");
    took
}

/// An adapter with a stream as the log is: on three servers, in files.
fn bare(cluster: &Cluster) -> Adapter {
    let adapter = Adapter::new(&[cluster.servers[0].url()]);
    let config = stream::Config {
        name: "BARE".to_owned(),
        subjects: vec!["bare.*".to_owned()],
        num_replicas: 3,
        allow_atomic_publish: true,
        ..stream::Config::default()
    };
    adapter.wait(adapter.js.create_stream(config)).expect("it is made");
    adapter
}

/// So many who publish at once, each one message after the other: how long each took, in milliseconds.
async fn published(adapter: &Adapter, at_once: usize) -> Vec<f64> {
    let one = async |place: usize| {
        let mut took = Vec::new();
        for _ in 0..EACH {
            let begin = Instant::now();
            let sent = adapter.js.publish(format!("bare.{place}"), vec![b'x'; BYTES].into()).await;
            sent.expect("it is sent").await.expect("it is acknowledged");
            took.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        took
    };
    futures::future::join_all((0..at_once).map(one)).await.concat()
}

/// The same in pairs that are there both or none, as a prompt is with the guard of its key.
async fn batches(adapter: &Adapter, at_once: usize) -> Vec<f64> {
    let one = async |place: usize| {
        let mut took = Vec::new();
        for _ in 0..EACH {
            let begin = Instant::now();
            let id = fresh_name();
            let of_batch = |nth: &str| {
                let mut headers = HeaderMap::new();
                headers.insert(header::NATS_BATCH_ID, id.as_str());
                headers.insert(header::NATS_BATCH_SEQUENCE, nth);
                headers
            };
            let mut first = of_batch("1");
            first.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(0_u64));
            let client = &adapter.client;
            client.publish_with_headers(format!("bare.{id}"), first, "k".into()).await.expect("it is sent");
            let mut last = of_batch("2");
            last.insert(header::NATS_BATCH_COMMIT, header::NATS_BATCH_COMMIT_FINAL);
            let request = Request::new().headers(last).payload(vec![b'x'; BYTES].into());
            let answer = client.send_request(format!("bare.{place}"), request).await.expect("it is answered");
            assert!(!has(&answer.payload, b"error"), "{:?}", answer.payload);
            took.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        took
    };
    futures::future::join_all((0..at_once).map(one)).await.concat()
}

/// Prompts of so many sessions, wherever they are, in microseconds for each.
fn prompts(name: &str, extent: Extent, sessions: usize) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let each = || acknowledge(&cluster.daemons[0], Dialect::Exoclaw, &model, sessions, EACH);
    beside_publishes(name, extent, &cluster, sessions, each)
}

/// What each takes, in microseconds, beside bare publishes, so many at once.
fn beside_publishes(
    name: &str,
    extent: Extent,
    cluster: &Cluster,
    at_once: usize,
    each: impl Fn() -> f64,
) -> Vec<Figure> {
    let adapter = bare(cluster);
    let alone = || {
        let begin = Instant::now();
        let all = adapter.wait(published(&adapter, at_once)).len();
        vec![begin.elapsed().as_secs_f64() * 1e6 / all as f64]
    };
    each();
    let contenders: Vec<Contender<'_>> = vec![Box::new(|| vec![each()]), Box::new(alone)];
    let [ours, alone] =
        columns(rounds(extent.rounds(ROUNDS), contenders)).map(|mut figures| figures.remove(0));
    vec![Figure::new(name, "each", "µs", ours).beside("publish", alone, PUBLISH)]
}

/// How much later the first text of an answer is there for who follows at another daemon than for who follows at the
/// session's own.
fn first_token(name: &str, extent: Extent) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let account = cluster.account(&cluster.owners(), 0, true);
    let mut speaker = Dialect::Exoclaw.connect(&cluster.daemons[0]);
    speaker.send(&prompt(&account, "first"));
    until_end(&mut speaker);
    let attach = json!({"id": "f", "method": "session.attach", "params":
        {"session": format!("main:bench:{account}:main")}});
    let mut followers = [0, 1].map(|place| {
        let mut wire = Dialect::Exoclaw.connect(&cluster.daemons[place]);
        wire.send(&attach.to_string());
        // What is said before it is attached it is not told.
        let reply = wire.next();
        assert!(has(reply.as_bytes(), b"\"result\""), "{reply}");
        wire
    });
    let mut poll = Poll::of(&followers);
    let mut later = Vec::new();
    for number in 0..extent.units(150) {
        speaker.send(&prompt(&account, &format!("n{number}")));
        let mut came: [Option<Instant>; 2] = [None, None];
        let mut ends = [false, false];
        while ends != [true, true] {
            for place in poll.ready(PATIENCE) {
                followers[place].receive();
                let now = Instant::now();
                while let Some(message) = followers[place].take() {
                    if has(message, b"\"event\":\"text\"") && came[place].is_none() {
                        came[place] = Some(now);
                    }
                    ends[place] |= Dialect::Exoclaw.is_end(message);
                }
            }
        }
        until_end(&mut speaker);
        // The first few wake what is there from then on.
        if let [Some(here), Some(there)] = came
            && number >= 5
        {
            later.push((there.saturating_duration_since(here)).as_secs_f64() * 1e3);
        }
    }
    vec![Figure::new(name, "later", "ms", vec![percentile(&later, 0.5)]).at_most(LATER_MS)]
}

/// From the end of a daemon by SIGKILL until a prompt to one of its sessions is acknowledged at another.
fn takeover(name: &str, extent: Extent) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let mut cluster = Cluster::start(&model);
    let mut took = Vec::new();
    for _ in 0..extent.rounds(ROUNDS) {
        let account = cluster.account(&cluster.owners(), 2, true);
        let mut wire = Dialect::Exoclaw.connect(&cluster.daemons[0]);
        wire.send(&prompt(&account, "before"));
        until_end(&mut wire);
        let begin = Instant::now();
        cluster.daemons.remove(2).kill();
        wire.send(&prompt(&account, "after"));
        while !has(wire.next().as_bytes(), b"\"accepted\"") {}
        took.push(begin.elapsed().as_secs_f64() * 1e3);
        let again = Process::daemon(cluster.homes[2].path(), &cluster.configs[2]);
        cluster.daemons.push(again);
        cluster.settle();
    }
    vec![Figure::new(name, "acknowledged", "ms", took).at_most(TAKEOVER_MS)]
}

/// What a daemon takes that nobody asks anything, beside one that is in no cluster.
fn idle(name: &str) -> Vec<Figure> {
    const FOR: Duration = Duration::from_secs(10);
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let alone_home = home();
    let alone = Process::daemon(alone_home.path(), &on_model(&model));
    // What was begun at the start is over, and plugins are compiled.
    std::thread::sleep(FOR);
    let percent = |process: &Process| {
        let cpu = Cpu::of(process.pid());
        std::thread::sleep(FOR);
        vec![cpu.spent_us() / FOR.as_secs_f64() / 1e4]
    };
    let of_core = percent(&cluster.daemons[0]);
    let alone_of_core = percent(&alone);
    let more = (cluster.daemons[0].resident_bytes() - alone.resident_bytes()) / 1e6;
    let figure = Figure::new(name, "of a core", "%", of_core).at_most(IDLE_PERCENT);
    vec![
        figure.beside("alone", alone_of_core, None),
        Figure::new(name, "memory, more than alone", "MB", vec![more]).at_most(IDLE_MB),
    ]
}

/// A daemon gives all its slots away, with so many sessions that have been used.
fn drain(name: &str, extent: Extent) -> Vec<Figure> {
    const SESSIONS: usize = 1_000;
    const AT_ONCE: usize = 100;
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let owners = cluster.owners();
    let drain = |args: &[&str]| {
        let mut command = daemon::command(cluster.homes[0].path());
        let (code, said, why) = daemon::output(command.arg("drain").args(args));
        assert_eq!(code, 0, "{said}{why}");
    };
    let mut took = Vec::new();
    for _ in 0..extent.rounds(3) {
        for _ in 0..SESSIONS / AT_ONCE {
            let accounts: Vec<String> = (0..AT_ONCE).map(|_| cluster.account(&owners, 0, true)).collect();
            times(&cluster.daemons[0], &accounts);
        }
        let begin = Instant::now();
        drain(&[]);
        took.push(begin.elapsed().as_secs_f64() * 1e3);
        drain(&["--off"]);
        cluster.settle();
    }
    vec![Figure::new(name, "until all is given away", "ms", took).at_most(DRAIN_MS)]
}
