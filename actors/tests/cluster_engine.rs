//! What a cluster asks of JetStream, asked of real servers: one, and three that are killed.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "cluster_engine/blobs.rs"]
mod blobs;
#[path = "cluster_engine/faults.rs"]
mod faults;
#[path = "cluster_engine/refusals.rs"]
mod refusals;
#[path = "cluster_engine/servers.rs"]
mod servers;

use std::time::Instant;

use bytes::Bytes;
use clawmux_actors::cluster::engine::{
    Beat, Engine, EngineSettings, LogRecord, Published, RECORD_BYTES_MAX, Site, Unusable,
};
use clawmux_core::cluster::base::{ClusterId, Manifest};
use clawmux_core::cluster::node::{Heartbeat, Incarnation, NodeName, NodeState};
use clawmux_core::cluster::ownership::slots::{Claim, Entry};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::{Sequence, Token};
use clawmux_core::ids::SessionKey;
use futures::StreamExt as _;
use futures::future::{join, join_all};
use servers::{LOOK, PATIENCE, SYNCS, Server, settings};
use tokio::time::{sleep, timeout};

/// Runs a test, which may take no longer than twice [`PATIENCE`].
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE * 2, test).await }).expect("it comes to an end");
}

/// Begins a cluster, with something as its base.
async fn begin(settings: &EngineSettings) -> Result<(), Unusable> {
    let site = Site::connect(settings).await?;
    let (planned, cluster) = (site.plan(0).await?, ClusterId::from_random([7; 16]));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a base").unwrap();
    let made = async {
        site.make_streams(&planned, &cluster).await?;
        let chunked = site.publish_chunks(&planned, file.path(), |_, _| Ok(())).await?;
        let base = Manifest {
            cluster: cluster.clone(),
            generation: planned.generation(),
            position: 0,
            digest: [0; 32],
            bytes: chunked.bytes,
            sha256: chunked.sha256,
            chunk_bytes: chunked.chunk_bytes,
            store_format: 1,
            version: String::new(),
            left: Vec::new(),
        };
        site.commit(&planned, &base).await
    };
    let made = made.await;
    if made.is_err() {
        site.give_up(&planned).await?;
    }
    made
}

/// Opens it, and begins it where it is not there; servers that were just started may have no leader yet.
async fn open(settings: &EngineSettings) -> Engine {
    let at = Instant::now();
    loop {
        let Unusable { why, is_refused } = match Engine::open(settings).await {
            Ok(engine) => return engine,
            Err(Unusable { why, .. }) if why.contains("there is no cluster") => match begin(settings).await {
                Ok(()) => continue,
                Err(unusable) => unusable,
            },
            Err(unusable) => unusable,
        };
        let is_over = at.elapsed() > PATIENCE;
        let passes = ["replicas", "JetStream", "another node"].iter().any(|word| why.contains(word));
        assert!(!is_over && (!is_refused || passes), "{why}");
        sleep(LOOK).await;
    }
}

/// The stream of its log.
fn log_of(engine: &Engine) -> String {
    match engine.base().generation {
        1 => "test_LOG".to_owned(),
        generation => format!("test--{generation}_LOG"),
    }
}

/// Asks until there is an answer.
async fn answered<T>(mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begin = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(why) => assert!(begin.elapsed() < PATIENCE, "{why}"),
        }
        sleep(LOOK).await;
    }
}

fn session(engine: &Engine, name: &str) -> String {
    let key = SessionKey::parse(&format!("main:websocket:{name}:main")).unwrap();
    let slot = Slot::of(&key);
    engine.session(&key, slot)
}

fn text(text: &str) -> Bytes {
    text.to_owned().into_bytes().into()
}

/// The last sequence of an empty subject.
const NONE: Sequence = Sequence(0);

#[test]
fn a_record_is_taken_where_nothing_came_between() {
    let Some(server) = Server::start(SYNCS) else { return };
    run(async {
        let engine = open(&server.settings()).await;
        let (ada, bob) = (session(&engine, "ada"), session(&engine, "bob"));
        assert_eq!(engine.read_since(&ada, NONE, 10).await, Ok(Vec::new()));
        assert_eq!(engine.publish(&ada, NONE, text("a1")).await, Published::Acked(Sequence(1)));
        assert_eq!(engine.publish(&ada, NONE, text("a1")).await, Published::Refused);
        assert_eq!(engine.publish(&bob, Sequence(1), text("b1")).await, Published::Refused);
        // Bytes of every kind, and many of them.
        let large: Bytes = (0..256 * 1024).map(|nth: u32| (nth * 7 % 256) as u8).collect();
        let binary = Bytes::from_static(b"\0\r\n\xff\xfe{");
        for (expected, record) in [(0, &large), (2, &binary), (3, &Bytes::new())] {
            let published = engine.publish(&bob, Sequence(expected), record.clone()).await;
            assert!(matches!(published, Published::Acked(_)), "{published:?}");
        }
        let all =
            vec![(Sequence(2), large.clone()), (Sequence(3), binary.clone()), (Sequence(4), Bytes::new())];
        assert_eq!(engine.read_since(&bob, NONE, 10).await, Ok(all.clone()));
        assert_eq!(engine.read_since(&bob, Sequence(2), 1).await, Ok(vec![all[1].clone()]));
        assert_eq!(engine.read_since(&bob, Sequence(4), 1).await, Ok(Vec::new()));
        let followed = engine.follow(Sequence(1)).await.unwrap();
        assert_eq!(followed.pending(), 3);
        let came: Vec<LogRecord> = followed.take(3).map(Result::unwrap).collect().await;
        assert!(came.iter().all(|record| record.subject == bob));
        assert_eq!(came.into_iter().map(|record| (record.sequence, record.record)).collect::<Vec<_>>(), all);
        let too_large = engine.publish(&ada, Sequence(1), vec![7; RECORD_BYTES_MAX + 1].into()).await;
        assert!(matches!(too_large, Published::Unknown(why) if why.contains("are the most")));
        let most = engine.publish(&ada, Sequence(1), vec![7; RECORD_BYTES_MAX].into()).await;
        assert_eq!(most, Published::Acked(Sequence(5)));
        // More than one read may bring: a part of it comes, and is the first.
        for last in 5..15 {
            let published = engine.publish(&ada, Sequence(last), vec![7; RECORD_BYTES_MAX].into()).await;
            assert_eq!(published, Published::Acked(Sequence(last + 1)));
        }
        let part = engine.read_since(&ada, Sequence(1), 100).await.unwrap();
        assert!((5..11).contains(&part.len()), "{}", part.len());
        assert!(part.iter().map(|(sequence, _)| sequence.0).eq((5..).take(part.len())));
        let behind = engine.follow(Sequence(1)).await.unwrap().take(14);
        assert!(
            behind.map(|record| record.unwrap().sequence.0).collect::<Vec<_>>().await.into_iter().eq(2..16)
        );
        let extent = engine.extent().await.unwrap();
        assert_eq!((extent.first, extent.last, extent.records), (Sequence(1), Sequence(15), 15));
        assert!(extent.bytes > 11_000_000);
    });
}

#[test]
fn a_key_is_one_records() {
    let Some(server) = Server::start(SYNCS) else { return };
    run(async {
        let engine = open(&server.settings()).await;
        let (ada, bob) = (session(&engine, "ada"), session(&engine, "bob"));
        let (key, other) = (engine.guard(&[7; 16]), engine.guard(&[8; 16]));
        let first = engine.publish_guarded((&key, text("of ada")), &ada, NONE, text("a1")).await;
        assert_eq!(first, Published::Acked(Sequence(2)));
        let second = engine.publish_guarded((&key, text("of bob")), &bob, NONE, text("b1")).await;
        assert_eq!(second, Published::Refused);
        let again = engine.publish_guarded((&key, text("of ada")), &ada, Sequence(2), text("a1")).await;
        assert_eq!(again, Published::Refused);
        assert_eq!(engine.read_since(&bob, NONE, 10).await, Ok(Vec::new()));
        assert_eq!(engine.read_guard(&key).await, Ok(Some(text("of ada"))));
        // The key is free, and the session has moved on.
        let late = engine.publish_guarded((&other, text("of ada")), &ada, NONE, text("a2")).await;
        assert_eq!(late, Published::Refused);
        assert_eq!(engine.read_guard(&other).await, Ok(None));
        assert_eq!(engine.read_since(&ada, NONE, 10).await, Ok(vec![(Sequence(2), text("a1"))]));
        assert_eq!(engine.extent().await.unwrap().records, 2);
        let followed = engine.follow(NONE).await.unwrap();
        assert_eq!(followed.pending(), 1, "a guard says nothing for a store");
        let followed = followed.take(1).map(|record| record.unwrap()).collect::<Vec<_>>().await;
        assert_eq!((followed[0].sequence, &followed[0].subject), (Sequence(2), &ada));
        // More at once than a server takes.
        let many = (0..120_u8).map(|nth| {
            let (engine, key) = (engine.clone(), engine.guard(&[9, nth]));
            let subject = session(&engine, &format!("p{nth}"));
            async move { engine.publish_guarded((&key, text("k")), &subject, NONE, text("p")).await }
        });
        for published in join_all(many).await {
            assert!(matches!(published, Published::Acked(_)), "{published:?}");
        }
        assert_eq!(engine.extent().await.unwrap().records, 242);
    });
}

/// Of many that come at once some are refused: the rest is written, each once, and each at the place that it is told.
async fn at_once(engine: &Engine) {
    let subject = |nth: usize| session(engine, &format!("s{nth}"));
    let key = |nth: usize| engine.guard(format!("k{}", if nth == 32 { 31 } else { nth }).as_bytes());
    let is_stale = |nth: usize| nth.is_multiple_of(50);
    let publish = async |nth: usize| {
        let (subject, record) = (subject(nth), text(&nth.to_string()));
        let expected = Sequence(u64::from(is_stale(nth)) * 7);
        match nth % 3 {
            0 => engine.publish(&subject, expected, record).await,
            _ => engine.publish_guarded((&key(nth), text("k")), &subject, expected, record).await,
        }
    };
    let published = join_all((0..300).map(publish)).await;
    let mut taken = 0;
    for (nth, published) in published.into_iter().enumerate() {
        let there = engine.read_since(&subject(nth), NONE, 10).await.unwrap();
        match published {
            Published::Acked(place) => assert_eq!(there, [(place, text(&nth.to_string()))], "{nth}"),
            Published::Refused => {
                assert_eq!(there, [], "{nth}");
                taken += usize::from(!is_stale(nth));
            }
            other => panic!("{nth}: {other:?}"),
        }
    }
    assert_eq!(taken, 1, "of two with one key");
}

#[test]
fn what_is_written_at_the_same_time_is_told_each_for_itself() {
    let (Some(one), Some(three)) = (Server::start(SYNCS), Server::cluster::<3>()) else { return };
    run(async {
        at_once(&open(&one.settings()).await).await;
        at_once(&open(&settings(&three)).await).await;
    });
}

#[test]
fn nodes_join_are_heard_and_claim_slots() {
    let Some(server) = Server::start(SYNCS) else { return };
    run(async {
        let (one, two) = join(open(&server.settings()), open(&server.settings())).await;
        let (ada, bob) = (NodeName::new("ada.example"), NodeName::new("bob"));
        let first = one.join(&ada, text(r#"{"version":"1"}"#)).await.unwrap();
        let second = two.join(&bob, text("{}")).await.unwrap();
        let third = one.join(&ada, text(r#"{"version":"2"}"#)).await.unwrap();
        assert!(first < second && second < third);
        assert!(one.join(&ada, text("{")).await.unwrap_err().contains("no JSON"));
        let mut nodes = two.nodes().await.unwrap();
        nodes.sort_by_key(|node| node.from.epoch);
        let as_they_joined = [(&bob, second, "{}"), (&ada, third, r#"{"version":"2"}"#)];
        assert!(
            nodes
                .iter()
                .map(|node| (&node.from.node, node.from.epoch, &node.about[..]))
                .eq(as_they_joined.map(|(node, epoch, about)| (node, epoch, about.as_bytes())))
        );

        let client = async_nats::connect(server.url()).await.unwrap();
        let mut heard = two.heartbeats().await.unwrap();
        let beat = |node: &NodeName, epoch, state| Beat {
            heartbeat: Heartbeat {
                from: Incarnation { node: node.clone(), epoch },
                state,
                hears: vec![bob.clone()],
            },
            at: (state != NodeState::Joining).then_some((7, [9; 32])),
            reads: 2,
        };
        client.publish("test.alive.x", "{}".into()).await.unwrap();
        client.flush().await.unwrap();
        two.beat(&beat(&bob, second, NodeState::Live)).await.unwrap();
        for state in [NodeState::Joining, NodeState::Live, NodeState::Draining] {
            let beat = beat(&ada, third, state);
            // The first may come before the server knows that it is heard.
            answered(async || {
                one.beat(&beat).await?;
                match timeout(LOOK, heard.next()).await {
                    Ok(came) => {
                        (came.as_ref() == Some(&beat)).then_some(()).ok_or_else(|| format!("{came:?}"))
                    }
                    Err(_) => Err("nothing is heard".to_owned()),
                }
            })
            .await;
        }

        let mine = Claim { owner: Some(Incarnation { node: ada.clone(), epoch: third }), next: None };
        let given = Claim { owner: None, next: Some(bob.clone()) };
        let slot = Slot::new(7);
        assert_eq!(two.read_slots().await, Ok(Vec::new()));
        let token = one.write_slot(slot, Token(0), &mine).await.unwrap().unwrap();
        assert_eq!(two.write_slot(slot, Token(0), &given).await, Ok(None));
        assert_eq!(two.read_slots().await, Ok(vec![Entry { slot, revision: token, claim: mine.clone() }]));
        let later = two.write_slot(slot, token, &given).await.unwrap().unwrap();
        assert!(later > token);
        assert_eq!(one.write_slot(slot, token, &mine).await, Ok(None));
        assert_eq!(one.read_slots().await, Ok(vec![Entry { slot, revision: later, claim: given }]));
        for slot in Slot::all().filter(|other| *other != slot) {
            assert!(one.write_slot(slot, Token(0), &mine).await.unwrap().is_some());
        }
        // What cannot be read is left out; what an operator has deleted is nobody's.
        // Where both began a log at the same time, it is of a later generation.
        let key = |key: &str| format!("$KV.{}.{key}", log_of(&one).replace("_LOG", "_slots"));
        client.publish(key("9"), "?".into()).await.unwrap();
        client.publish(key("x"), "{}".into()).await.unwrap();
        let mut deleted = async_nats::HeaderMap::new();
        deleted.insert("KV-Operation", "DEL");
        client.publish_with_headers(key("10"), deleted, Bytes::new()).await.unwrap();
        client.flush().await.unwrap();
        let mut entries = answered(async || {
            let entries = one.read_slots().await?;
            let is_deleted = |entry: &Entry| entry.slot == Slot::new(10) && entry.claim == Claim::default();
            match entries.len() == 255 && entries.iter().any(is_deleted) {
                true => Ok(entries),
                false => Err(format!("{} of 255, or none is deleted", entries.len())),
            }
        })
        .await;
        entries.sort_by_key(|entry| entry.slot);
        assert!(entries.iter().all(|entry| entry.slot != Slot::new(9)));
        assert_eq!((entries[9].slot, &entries[9].claim), (Slot::new(10), &Claim::default()));
        let token = entries[9].revision;
        assert!(one.write_slot(Slot::new(10), token, &mine).await.unwrap() > Some(token));
    });
}
