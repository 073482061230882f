//! The bus beside the server alone: what a message takes in and out, how soon it is durable and answered, and what the
//! bus holds. Where there is no nats-server the rows are left out.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream;
use async_nats::{ConnectOptions, Subscriber};
use futures::StreamExt as _;

use super::{Extent, NO_LIMITS, Row, columns, home, on_model};
use crate::figures::{Contender, Figure, percentile, rounds};
use crate::load::model::Model;
use crate::nats::{Adapter, Server};
use crate::process::Process;
use crate::support::tools::{nats_server, skip};

/// Messages of a round, and of how many peers.
const MESSAGES: usize = 3_000;
const PEERS: usize = 300;
const ROUNDS: usize = 5;

/// Messages whose way is timed, one after the other.
const TIMED: usize = 300;

/// Peers that are remembered, or not.
const MANY_PEERS: usize = 100_000;

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("bus", |name, extent| with_server(|| throughput(name, extent))),
        Row::new("bus latency", |name, extent| with_server(|| latency(name, extent))),
        Row::new("bus at rest", |name, extent| with_server(|| at_rest(name, extent))),
        Row::new("bus 100k peers", |name, extent| with_server(|| many_peers(name, extent))).long(),
    ]
}

pub(super) fn with_server(measure: impl FnOnce() -> Vec<Figure>) -> Vec<Figure> {
    if nats_server().is_none() {
        skip("needs nats-server 2.12 or newer in target/nats/bin or on the path");
        return Vec::new();
    }
    measure()
}

fn on_bus(server: &Server, config: &str) -> String {
    format!("{config}\n[bus]\nservers = [{:?}]\n", server.url())
}

/// Publishes so many messages of these peers, pipelined, and waits until all are in the stream.
async fn publish(adapter: &Adapter, subject: &str, count: usize, peers: usize) {
    let mut acks = Vec::with_capacity(count);
    for n in 0..count {
        let subject = subject.replace("PEER", &format!("p{}", n % peers));
        acks.push(adapter.js.publish(subject, "go".into()).await.expect("it is sent"));
    }
    for ack in acks {
        ack.await.expect("it is acknowledged");
    }
}

/// Waits until a stream has so many messages.
async fn until(adapter: &Adapter, stream: &str, is_so: impl Fn(&stream::State) -> bool) {
    let stream = adapter.js.get_stream(stream).await.expect("it is there");
    while !is_so(&stream.get_info().await.expect("it is told").state) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn throughput(name: &str, extent: Extent) -> Vec<Figure> {
    let (model, home, server) = (Model::new(1, Duration::ZERO), home(), Server::start());
    let daemon = Process::daemon(home.path(), &on_bus(&server, &on_model(&model)));
    let adapter = Adapter::new(&[server.url()]);
    adapter.await_streams();
    let count = extent.units(MESSAGES);
    let each = |begin: Instant| begin.elapsed().as_secs_f64() * 1e6 / count as f64;
    // Until all are durable here, with their runs held back; and until all are answered.
    let ours = || {
        let answered = adapter.count("EXOCLAW_OUT");
        model.hold();
        let begin = Instant::now();
        adapter.wait(async {
            publish(&adapter, "exoclaw.bench.main.PEER", count, PEERS).await;
            until(&adapter, "EXOCLAW", |state| state.messages == 0).await;
        });
        let durable = each(begin);
        model.release();
        adapter.wait(until(&adapter, "EXOCLAW_OUT", |state| state.messages >= answered + count as u64));
        vec![durable, each(begin)]
    };
    // The same of the server alone: published, pulled and acknowledged; and as many published again.
    let bare = || {
        let begin = Instant::now();
        adapter.wait(async {
            let stream = adapter.js.get_or_create_stream(work_queue()).await.expect("it is made");
            publish(&adapter, "bare.PEER", count, PEERS).await;
            let config = pull::Config { durable_name: Some("bare".to_owned()), ..pull::Config::default() };
            let consumer = stream.get_or_create_consumer("bare", config).await.expect("it is made");
            let mut messages = consumer.messages().await.expect("it is pulled");
            for _ in 0..count {
                let message = messages.next().await.expect("it comes").expect("it is whole");
                message.ack().await.expect("it is acknowledged");
            }
            until(&adapter, "BARE", |state| state.messages == 0).await;
        });
        let durable = each(begin);
        adapter.wait(publish(&adapter, "exoclaw.bare.main.PEER.answer", count, PEERS));
        vec![durable, each(begin)]
    };
    ours();
    let contenders: Vec<Contender<'_>> = vec![Box::new(ours), Box::new(bare)];
    let [ours, bare] = columns(rounds(extent.rounds(ROUNDS), contenders));
    daemon.stop();
    let figure = |kind, at: usize| {
        Figure::new(name, kind, "µs", ours[at].clone()).beside("NATS alone", bare[at].clone(), None)
    };
    vec![figure("in", 0), figure("in and out", 1)]
}

fn work_queue() -> stream::Config {
    stream::Config {
        name: "BARE".to_owned(),
        subjects: vec!["bare.*".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        ..stream::Config::default()
    }
}

async fn next(subscriber: &mut Subscriber) {
    subscriber.next().await.expect("it comes");
}

/// From before a message is published until its acknowledgement, its first text and its answer are seen.
fn latency(name: &str, extent: Extent) -> Vec<Figure> {
    let (model, home, server) = (Model::new(1, Duration::ZERO), home(), Server::start());
    let daemon = Process::daemon(home.path(), &on_bus(&server, &on_model(&model)));
    let adapter = Adapter::with(&[server.url()], ConnectOptions::new());
    adapter.await_streams();
    let subscribe =
        |subject: &str| adapter.wait(adapter.client.subscribe(subject.to_owned())).expect("it is heard");
    let mut acks = subscribe("$JS.ACK.EXOCLAW.clawmux.>");
    let (mut live, mut answers) = (subscribe("exoclaw.*.*.*.live"), subscribe("exoclaw.*.*.*.answer"));
    let mut took = [Vec::new(), Vec::new(), Vec::new()];
    for n in 0..extent.units(TIMED) + 20 {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Clawmux-Stream", "1");
        adapter.wait(async {
            let begin = Instant::now();
            let sent = adapter.client.publish_with_headers(
                format!("exoclaw.bench.main.l{}", n % 20),
                headers,
                "go".into(),
            );
            sent.await.expect("it is sent");
            let ms = || begin.elapsed().as_secs_f64() * 1e3;
            next(&mut acks).await;
            let durable = ms();
            next(&mut live).await;
            let first = ms();
            next(&mut answers).await;
            // The first of each session make it.
            if n >= 20 {
                [durable, first, ms()].into_iter().zip(&mut took).for_each(|(ms, took)| took.push(ms));
            }
        });
    }
    daemon.stop();
    let kinds = ["durable", "first text", "answer"];
    let figure = |(kind, took): (_, &Vec<f64>)| Figure::new(name, kind, "ms", vec![percentile(took, 0.5)]);
    kinds.into_iter().zip(&took).map(figure).collect()
}

/// What a daemon holds more for having a bus.
fn at_rest(name: &str, _: Extent) -> Vec<Figure> {
    let server = Server::start();
    let resident = |config: &str| {
        let home = home();
        let daemon = Process::daemon(home.path(), config);
        std::thread::sleep(Duration::from_secs(2));
        daemon.resident_bytes()
    };
    let (without, with) = (resident(NO_LIMITS), resident(&on_bus(&server, NO_LIMITS)));
    vec![Figure::new(name, "memory", "kB", vec![(with - without) / 1e3])]
}

/// What a daemon holds once as many peers have been answered: their sessions sleep.
fn many_peers(name: &str, extent: Extent) -> Vec<Figure> {
    let (model, home, server) = (Model::new(1, Duration::ZERO), home(), Server::start());
    let daemon = Process::daemon(home.path(), &on_bus(&server, &on_model(&model)));
    let adapter = Adapter::new(&[server.url()]);
    adapter.await_streams();
    let count = extent.units(MANY_PEERS);
    let before = daemon.resident_bytes();
    for some in 0..count.div_ceil(5_000) {
        adapter.wait(async {
            publish(&adapter, &format!("exoclaw.many.a{some}.PEER"), 5_000, 5_000).await;
            until(&adapter, "EXOCLAW_OUT", |state| state.messages >= (some as u64 + 1) * 5_000).await;
        });
    }
    let each = (daemon.resident_bytes() - before) / count as f64 / 1e3;
    vec![Figure::new(name, "memory a peer", "kB", vec![each])]
}
