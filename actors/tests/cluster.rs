//! Daemons' stores on one log of a real JetStream server: what is acknowledged is there once, whoever is killed.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "support/joined.rs"]
mod joined;
#[path = "cluster/large.rs"]
mod large;
#[path = "support/nats_server.rs"]
mod nats_server;
#[path = "support/tables.rs"]
mod tables;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use actix::Addr;
use clawmux_actors::cluster::engine::{Durability, EngineSettings};
use clawmux_actors::cluster::{Cluster, ClusterSettings, Leave};
use clawmux_actors::runtime::lane::Lanes;
use clawmux_actors::runtime::observe::Observe;
use clawmux_actors::store::{
    Append, BeginCall, FindRun, Load, ReadEvents, ReadPosition, RecordUsage, Stop, Store,
};
use clawmux_core::cluster::node::NodeName;
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::provider::usage::Usage;
use clawmux_core::replica::blob::BLOB_BYTES_MAX;
use clawmux_core::time::Timestamp;
use futures::future::join_all;
use joined::joined;
use nats_server::NatsServer;
use serde_json::Value as Json;
use tables::assert_same;
use tempfile::TempDir;

/// How long something may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The silence after which a daemon is dead, in milliseconds.
const LEASE_MS: u64 = 1000;

/// A daemon, as far as its store goes.
struct Daemon {
    store: Addr<Store>,
    cluster: Addr<Cluster>,
    home: TempDir,
}

fn settings(server: &NatsServer) -> EngineSettings {
    EngineSettings {
        name: "test".to_owned(),
        servers: vec![server.url()],
        replicas: 1,
        monitor: vec![server.monitor()],
        durability: Durability::Required,
        ..EngineSettings::default()
    }
}

impl Daemon {
    async fn start(server: &NatsServer, node: &str) -> Self {
        Self::start_in(server, node, tempfile::tempdir().unwrap()).await
    }

    async fn start_in(server: &NatsServer, node: &str, home: TempDir) -> Self {
        let path = home.path().join("clawmux.db");
        let engine = joined(&settings(server), &path).await;
        let (store, submissions) = Store::open_in_cluster(path).await.unwrap();
        let store = actix::Actor::start(store);
        let settings =
            ClusterSettings { node: NodeName::new(node), lease_ms: LEASE_MS, lanes: Lanes::of_log() };
        let cluster = Cluster::start(settings, engine, store.clone(), submissions);
        Self { store, cluster, home }
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("clawmux.db")
    }

    async fn says(&self) -> Json {
        self.cluster.send(Observe).await.unwrap().state
    }

    async fn until(&self, what: &str, holds: impl Fn(&Json) -> bool) {
        let begin = Instant::now();
        loop {
            let says = self.says().await;
            if holds(&says) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what} does not come: {says}");
            actix::clock::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn has_all_slots(&self) {
        self.until("every slot", |says| says["slots"] == 256).await;
    }

    async fn append(&self, session: &SessionKey, events: Vec<Logged>) -> Result<(), Error> {
        self.store.send(append(session, events)).await.unwrap()
    }

    /// Ends without a word to the others.
    async fn end(self) -> TempDir {
        self.cluster.send(Leave).await.unwrap();
        self.store.send(Stop).await.unwrap().unwrap();
        self.home
    }

    async fn applied(&self) -> u64 {
        self.store.send(ReadPosition).await.unwrap().unwrap().applied
    }

    async fn events(&self, session: &SessionKey) -> Vec<Logged> {
        let read = ReadEvents { session: session.clone(), after: Seq(0), run: None, max_bytes: usize::MAX };
        self.store.send(read).await.unwrap().unwrap()
    }
}

fn key(name: &str) -> SessionKey {
    SessionKey::new("main", "test", name, "main").unwrap()
}

fn logged(seq: u64, run: &str, event: Event) -> Logged {
    let at = Timestamp::from_millis(1000 + seq);
    Logged { first_seq: Seq(seq), seq: Seq(seq), run: Some(RunId::from(run)), at, event }
}

fn append(session: &SessionKey, events: Vec<Logged>) -> Append {
    Append {
        session: session.clone(),
        events: events.into(),
        durable: true,
        reserve: None,
        to_say: Vec::new(),
    }
}

fn prompt(seq: u64, run: &str) -> Logged {
    logged(seq, run, Event::prompted("hi", Owner::Admins, Some(format!("key of {run}"))))
}

fn text(seq: u64, run: &str, piece: &str) -> Logged {
    logged(seq, run, Event::Text(piece.into()))
}

fn ended(seq: u64, run: &str) -> Logged {
    logged(seq, run, Event::Ended { outcome: Outcome::Completed, usage: Usage::new(1, 2) })
}

/// A whole chat, as a session writes it.
fn chat(run: &str, from: u64) -> Vec<Vec<Logged>> {
    vec![
        vec![prompt(from, run)],
        vec![logged(from + 1, run, Event::Started)],
        vec![text(from + 2, run, "he"), text(from + 3, run, "llo")],
        vec![text(from + 4, run, "!"), logged(from + 5, run, Event::StepEnded { usage: Usage::new(1, 2) })],
        vec![ended(from + 6, run)],
    ]
}

#[actix::test]
async fn one_daemon_has_the_store_that_it_would_have_alone() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("alone.db");
    let single = Store::start(&alone).await.unwrap();
    let usage = |call| {
        let reserved = UsageRecord {
            session: key("x"),
            run: "r1".into(),
            agent: "main".into(),
            provider: "up".into(),
            model: "m".into(),
            usage: Usage::new(3, 4),
            cost: None,
            changed: None,
            at: Timestamp::from_millis(7),
        };
        (BeginCall { call, reserved: reserved.clone() }, RecordUsage { call, records: vec![reserved] })
    };
    for store in [&daemon.store, &single] {
        for events in chat("r1", 1) {
            store.send(append(&key("x"), events)).await.unwrap().unwrap();
        }
        let (begin, record) = usage(1);
        store.send(begin).await.unwrap().unwrap();
        store.send(record).await.unwrap().unwrap();
        for events in chat("r2", 8) {
            store.send(append(&key("x"), events)).await.unwrap().unwrap();
        }
        let again = store.send(append(&key("y"), vec![prompt(1, "r1")])).await.unwrap().unwrap_err();
        assert_eq!(again.code, ErrorCode::Conflict, "{again}");
        let found = FindRun { owner: Owner::Admins, idempotency_key: "key of r2".into(), or_id: false };
        assert_eq!(store.send(found).await.unwrap().unwrap().unwrap().1.as_str(), "r2");
    }
    let whole: String = daemon
        .events(&key("x"))
        .await
        .iter()
        .filter_map(|logged| logged.event.streamed())
        .map(|(_, text)| text.to_owned())
        .collect();
    assert_eq!(whole, "hello!hello!");
    single.send(Stop).await.unwrap().unwrap();
    let home = daemon.end().await;
    let (ours, theirs) = (tables::all(&home.path().join("clawmux.db")), tables::all(&alone));
    for (name, rows) in &theirs {
        // Where the store is in the log, and under which token it was written: one alone has neither.
        if !["meta", "positions", "sessions"].contains(&name.as_str()) {
            assert_eq!(&ours[name], rows, "{name}");
        }
    }
}

#[actix::test]
async fn a_record_that_no_cluster_takes_is_refused_and_holds_nothing_up() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let huge = Event::prompted("x".repeat(BLOB_BYTES_MAX), Owner::Admins, None);
    let refused = daemon.append(&key("x"), vec![logged(1, "r", huge)]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge, "{refused}");
    daemon.append(&key("x"), vec![prompt(1, "r")]).await.unwrap();
    daemon.end().await;
}

#[actix::test]
async fn text_is_shown_before_any_record_has_it() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let session = key("x");
    daemon.append(&session, vec![prompt(1, "r")]).await.unwrap();
    let before = daemon.applied().await;
    daemon.append(&session, vec![text(2, "r", "so"), text(3, "r", " far")]).await.unwrap();
    let said = daemon.events(&session).await;
    assert_eq!(said.last().map(|logged| logged.event.clone()), Some(Event::Text("so far".into())));
    assert_eq!(daemon.applied().await, before, "it is in no record");
    let home = daemon.end().await;

    // What was said is lost with the daemon, and its run goes on.
    let daemon = Daemon::start_in(&server, "a", home).await;
    daemon.has_all_slots().await;
    assert_eq!(daemon.events(&session).await.len(), 1);
    let restarted = Logged { first_seq: Seq(2), ..logged(9, "r", Event::Restarted) };
    daemon.append(&session, vec![restarted, text(10, "r", "anew"), ended(11, "r")]).await.unwrap();
    let loaded = daemon.store.send(Load { session, runs: 5 }).await.unwrap().unwrap().unwrap();
    assert_eq!(loaded.head.0, 11);
    daemon.end().await;
}

#[actix::test]
async fn what_is_acknowledged_is_there_once_though_the_server_is_killed_again_and_again() {
    let Some(mut server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    daemon.has_all_slots().await;
    let sessions: Vec<SessionKey> = (0..8).map(|n| key(&n.to_string())).collect();
    let rounds = 40;
    let daemon_of = &daemon;
    let clients = join_all(sessions.iter().map(|session| async move {
        let mut acknowledged = Vec::new();
        for round in 0..rounds {
            let run = format!("{}-{round}", session.account());
            for events in chat(&run, 1 + 7 * round) {
                // After a timeout nobody knows: whoever writes finds out from the store.
                let head = events.last().unwrap().seq;
                let outcome = daemon_of.append(session, events).await;
                let Err(error) = outcome else { continue };
                panic!("{head} of {session}: {error}");
            }
            acknowledged.push(run);
        }
        acknowledged
    }));
    // The daemon goes on while the server is down, and writes again and again.
    let kills = async {
        for nth in 1..=3_u64 {
            daemon_of.until("some records", |says| says["written"].as_u64() >= Some(nth * 300)).await;
            server.kill();
            actix::clock::sleep(Duration::from_millis(300)).await;
            server.run();
        }
    };
    let (acknowledged, ()) = futures::join!(clients, kills);
    for (session, runs) in sessions.iter().zip(&acknowledged) {
        let events = daemon.events(session).await;
        let begun: Vec<String> = events
            .iter()
            .filter(|logged| matches!(logged.event, Event::Prompted { .. }))
            .map(|logged| logged.run.as_ref().unwrap().as_str().to_owned())
            .collect();
        assert_eq!(&begun, runs);
        let mut next = Seq(1);
        for logged in &events {
            assert_eq!(logged.first_seq, next, "numbers have no gap");
            next = logged.seq.next();
        }
    }
    let says = daemon.says().await;
    assert!(says["unknown"].as_u64() > Some(0), "the kills were noticed: {says}");
    // Whoever comes later has the same.
    let other = Daemon::start(&server, "b").await;
    let last = daemon.applied().await;
    other.until("the whole log", |says| says["applied"].as_u64() >= Some(last)).await;
    let (ours, theirs) = (daemon.path(), other.path());
    let (ours_home, theirs_home) = (daemon.end().await, other.end().await);
    assert_same(&ours, &theirs, "a daemon that came later");
    drop((ours_home, theirs_home));
}

#[actix::test]
async fn two_daemons_share_the_sessions_and_one_takes_over_what_the_other_leaves() {
    let Some(server) = NatsServer::start() else { return };
    let (a, b) = (Daemon::start(&server, "a").await, Daemon::start(&server, "b").await);
    let has_some = |says: &Json| says["slots"].as_u64().is_some_and(|slots| (1..256).contains(&slots));
    a.until("some slots", has_some).await;
    b.until("some slots", has_some).await;
    // Each takes what is its own, and names the other for the rest.
    let sessions: Vec<SessionKey> = (0..12).map(|n| key(&n.to_string())).collect();
    let mut of_b = Vec::new();
    for session in &sessions {
        let begin = Instant::now();
        loop {
            match a.append(session, vec![prompt(1, session.account().as_ref())]).await {
                Ok(()) => break,
                Err(error) if error.message.contains("owned by b") => {
                    assert_eq!(error.detail, Some(Detail::NotOwner));
                    if b.append(session, vec![prompt(1, session.account().as_ref())]).await.is_ok() {
                        of_b.push(session.clone());
                        break;
                    }
                }
                Err(error) => assert_eq!(error.code, ErrorCode::Unavailable, "{error}"),
            }
            assert!(begin.elapsed() < PATIENCE, "{session} has no owner");
        }
    }
    assert!(!of_b.is_empty() && of_b.len() < sessions.len(), "both have some: {of_b:?}");
    // One key in two sessions of two daemons at once is one run.
    let of_a = sessions.iter().find(|session| !of_b.contains(session)).unwrap();
    for round in 0..20 {
        let keyed = |run: &str| {
            let prompt = Event::prompted("hi", Owner::Admins, Some(format!("shared {round}")));
            vec![logged(2 + 2 * round, run, prompt)]
        };
        let (ours, theirs) = (format!("a{round}"), format!("b{round}"));
        let both = futures::join!(a.append(of_a, keyed(&ours)), b.append(&of_b[0], keyed(&theirs)));
        let (won, lost, run, session, refused) = match &both {
            (Ok(()), Err(refused)) => (&a, &b, &ours, of_a, refused),
            (Err(refused), Ok(())) => (&b, &a, &theirs, &of_b[0], refused),
            both => panic!("{both:?}"),
        };
        assert_eq!(refused.code, ErrorCode::Conflict, "{refused}");
        for daemon in [won, lost] {
            let find =
                FindRun { owner: Owner::Admins, idempotency_key: format!("shared {round}"), or_id: false };
            let found = daemon.store.send(find).await.unwrap().unwrap().unwrap();
            assert_eq!((found.0, found.1.as_str()), (session.clone(), run.as_str()));
        }
        // The number of the one that was refused is given again.
        won.append(session, vec![ended(3 + 2 * round, run)]).await.unwrap();
        let other = if session == of_a { &of_b[0] } else { of_a };
        lost.append(other, vec![prompt(2 + 2 * round, &format!("other {round}"))]).await.unwrap();
        lost.append(other, vec![ended(3 + 2 * round, &format!("other {round}"))]).await.unwrap();
    }
    let home = b.end().await;
    a.has_all_slots().await;
    for session in &sessions {
        let events = a.events(session).await;
        let is_shared = session == of_a || *session == of_b[0];
        assert_eq!(events.len(), if is_shared { 41 } else { 1 }, "nothing of {session} is lost or doubled");
        let end = ended(events.last().unwrap().seq.0 + 1, session.account().as_ref());
        a.append(session, vec![end]).await.unwrap();
    }
    // It comes back and has all that was done meanwhile.
    let last = a.applied().await;
    let b = Daemon::start_in(&server, "b", home).await;
    b.until("the whole log", |says| says["applied"].as_u64() >= Some(last)).await;
    let (ours, theirs) = (a.path(), b.path());
    let homes = (a.end().await, b.end().await);
    assert_same(&ours, &theirs, "after a takeover");
    drop(homes);
}
