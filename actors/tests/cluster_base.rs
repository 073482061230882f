//! How a cluster begins, ends and begins anew on a real JetStream server, and which store may follow its log.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "support/nats_server.rs"]
mod nats_server;
#[path = "support/tables.rs"]
mod tables;

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use actix::{Actor as _, Addr};
use async_nats::jetstream::{self, stream::Config};
use clawmux_actors::cluster::beginning::{Begun, Settled, Step, init, look_at_loss, rebuild, settle};
use clawmux_actors::cluster::engine::{CHUNK_BYTES, Engine, EngineSettings, Site};
use clawmux_actors::cluster::{Cluster, ClusterSettings, Leave};
use clawmux_actors::runtime::lane::Lanes;
use clawmux_actors::runtime::observe::Observe;
use clawmux_actors::store::membership::{self, held};
use clawmux_actors::store::{
    Append, ReadEvents, ReadPosition, ReadTokens, Stop, Store, WriteJobs, WriteTokens,
};
use clawmux_core::access::token::{Change, Kind, Token};
use clawmux_core::cluster::base::{Held, Way};
use clawmux_core::cluster::node::NodeName;
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::provider::usage::Usage;
use clawmux_core::schedule::job::{Job, JobWrite, Task};
use clawmux_core::schedule::{Misfire, Plan, Schedule};
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::time::Timestamp;
use futures::StreamExt as _;
use nats_server::NatsServer;
use serde_json::Value as Json;
use tables::assert_same;
use tempfile::TempDir;

/// How long something may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(server: &NatsServer, name: &str) -> EngineSettings {
    EngineSettings {
        name: name.to_owned(),
        servers: vec![server.url()],
        replicas: 1,
        monitor: vec![server.monitor()],
        ..EngineSettings::default()
    }
}

async fn site(server: &NatsServer) -> Site {
    Site::connect(&settings(server, "test")).await.unwrap()
}

/// A home, as far as its store goes.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// One in which there was a daemon alone: sessions, one of them with a run that goes on, a token, a job.
    async fn with_a_past() -> Self {
        let home = Self::new();
        let store = Store::start(home.path()).await.unwrap();
        for name in ["a", "b"] {
            for events in chat(name, 1, &"x".repeat(900_000)) {
                append(&store, name, events).await.unwrap();
            }
        }
        append(&store, "open", vec![prompt(1, "open", "hi")]).await.unwrap();
        append(&store, "open", vec![logged(2, "open", Event::Started)]).await.unwrap();
        let said = vec![text(3, "open", "so"), text(4, "open", " far")];
        let reserve = Some(Seq(100));
        store.send(Append { reserve, durable: false, ..appended("open", said) }).await.unwrap().unwrap();
        let token = Token {
            id: "cmx_1".into(),
            name: "ci".into(),
            kind: Kind::ApiKey,
            sha256: Some([1; 32]),
            scopes: Scopes::of(&[Scope::Write]),
            created: Timestamp::from_millis(1),
            since: Timestamp::from_millis(1),
            expires: None,
            revoked: None,
            used: Some(Timestamp::from_millis(2)),
            origin: Some(IpAddr::from([127, 0, 0, 1])),
        };
        let changes = vec![Change::Put(token)];
        store.send(WriteTokens { changes, durable: true }).await.unwrap().unwrap();
        let at = Timestamp::from_millis(1000);
        let job = Job {
            id: "daily".into(),
            name: "daily".into(),
            description: None,
            owner: Owner::Admins,
            is_enabled: true,
            schedule: Schedule::new(&Plan::At(at), at, "UTC").unwrap(),
            task: Task {
                session: key("a"),
                prompt: "news?".into(),
                run_options: RunOptions::default(),
                result_to: None,
            },
            misfire: Misfire::Once,
            is_deleted_after: false,
            note: None,
            created: at,
            updated: at,
            settled: at,
        };
        store.send(WriteJobs(vec![JobWrite::Put(Box::new(job))])).await.unwrap().unwrap();
        store.send(Stop).await.unwrap().unwrap();
        home
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("clawmux.db")
    }

    async fn init(&self, site: &Site) -> Result<Begun, Error> {
        init(site, &self.path(), &mut |_| Ok(())).await
    }

    /// Goes as far as this step.
    async fn init_until(&self, site: &Site, step: &Step) -> Error {
        init(site, &self.path(), &mut |done| stop_at(step, &done)).await.unwrap_err()
    }

    async fn settle(&self, engine: &Engine) -> Result<Settled, Error> {
        settle(engine, &self.path()).await
    }

    async fn is_refused(&self, site: &Site, words: &str) {
        let engine = site.open().await.unwrap();
        let before = held(&self.path()).unwrap();
        let error = self.settle(&engine).await.unwrap_err();
        assert!(error.message.contains(words), "{words}: {error}");
        assert_eq!(held(&self.path()).unwrap(), before);
        assert!(!self.names().iter().any(|name| name.contains("joining")), "{:?}", self.names());
    }

    fn names(&self) -> BTreeSet<String> {
        let files = std::fs::read_dir(self.0.path()).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }

    async fn daemon(self, site: &Site, node: &str, way: Way) -> Daemon {
        let engine = site.open().await.unwrap();
        assert_eq!(self.settle(&engine).await.unwrap().way, way);
        let (store, submissions) = Store::open_in_cluster(self.path()).await.unwrap();
        let store = store.start();
        let settings = ClusterSettings { node: NodeName::new(node), lease_ms: 1000, lanes: Lanes::of_log() };
        let cluster = Cluster::start(settings, engine, store.clone(), submissions);
        Daemon { home: self, store, cluster }
    }
}

fn stop_at(step: &Step, done: &Step) -> Result<(), Error> {
    match discriminant(step) == discriminant(done) {
        true => Err(ErrorCode::Internal.error("stopped here")),
        false => Ok(()),
    }
}

/// A daemon, as far as its store goes.
struct Daemon {
    home: Home,
    store: Addr<Store>,
    cluster: Addr<Cluster>,
}

impl Daemon {
    async fn until(&self, what: &str, holds: impl Fn(&Json) -> bool) {
        let begin = Instant::now();
        loop {
            let says = self.cluster.send(Observe).await.unwrap().state;
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

    async fn applied(&self) -> u64 {
        self.store.send(ReadPosition).await.unwrap().unwrap().applied
    }

    async fn reaches(&self, other: &Self) {
        let last = other.applied().await;
        self.until("the log", |says| says["applied"].as_u64() >= Some(last)).await;
    }

    async fn chats(&self, name: &str) {
        self.has_all_slots().await;
        for events in chat(name, 1, "hi") {
            append(&self.store, name, events).await.unwrap();
        }
    }

    async fn end(self) -> Home {
        self.cluster.send(Leave).await.unwrap();
        self.store.send(Stop).await.unwrap().unwrap();
        self.home
    }
}

fn key(name: &str) -> SessionKey {
    SessionKey::new("main", "test", name, "main").unwrap()
}

fn logged(seq: u64, run: &str, event: Event) -> Logged {
    let at = Timestamp::from_millis(1000 + seq);
    Logged { first_seq: Seq(seq), seq: Seq(seq), run: Some(RunId::from(run)), at, event }
}

fn prompt(seq: u64, run: &str, words: &str) -> Logged {
    logged(seq, run, Event::prompted(words, Owner::Admins, Some(format!("key of {run}"))))
}

fn text(seq: u64, run: &str, piece: &str) -> Logged {
    logged(seq, run, Event::Text(piece.into()))
}

fn ended(seq: u64, run: &str) -> Logged {
    logged(seq, run, Event::Ended { outcome: Outcome::Completed, usage: Usage::new(1, 2) })
}

fn chat(run: &str, from: u64, words: &str) -> Vec<Vec<Logged>> {
    vec![
        vec![prompt(from, run, words)],
        vec![logged(from + 1, run, Event::Started)],
        vec![
            text(from + 2, run, "hello"),
            logged(from + 3, run, Event::StepEnded { usage: Usage::new(1, 2) }),
        ],
        vec![ended(from + 4, run)],
    ]
}

fn appended(session: &str, events: Vec<Logged>) -> Append {
    Append { session: key(session), events: events.into(), durable: true, reserve: None, to_say: Vec::new() }
}

async fn append(store: &Addr<Store>, session: &str, events: Vec<Logged>) -> Result<(), Error> {
    store.send(appended(session, events)).await.unwrap()
}

async fn events(store: &Addr<Store>, session: &str) -> Vec<Logged> {
    let read = ReadEvents { session: key(session), after: Seq(0), run: None, max_bytes: usize::MAX };
    store.send(read).await.unwrap().unwrap()
}

/// What one does with the streams of the server itself.
async fn jetstream(server: &NatsServer) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.unwrap())
}

async fn streams(server: &NatsServer) -> BTreeSet<String> {
    jetstream(server).await.stream_names().map(Result::unwrap).collect().await
}

/// The names of what one generation has.
fn streams_of(generation: &str) -> BTreeSet<String> {
    let names = [
        "test_BASE".to_owned(),
        format!("test{generation}_LOG"),
        format!("test{generation}_BLOBS"),
        format!("KV_test{generation}_nodes"),
        format!("KV_test{generation}_slots"),
    ];
    names.into()
}

#[actix::test]
async fn a_cluster_begins_with_the_store_of_one_home_and_others_take_it() {
    let Some(server) = NatsServer::start() else { return };
    let (site, home) = (site(&server).await, Home::with_a_past().await);
    let begun = home.init(&site).await.unwrap();
    assert_eq!((begun.base.generation, begun.base.position, begun.report.sessions), (1, 0, 3));
    assert!(begun.base.chunks() > 2 && begun.base.bytes > 2 * CHUNK_BYTES, "{:?}", begun.base);
    assert_eq!(streams(&server).await, streams_of(""));
    // Alone nobody writes to it any more.
    let alone = Store::start(home.path()).await.unwrap_err();
    assert!(alone.message.contains("clawmux cluster leave"), "{alone}");

    let a = home.daemon(&site, "a", Way::Follow).await;
    a.has_all_slots().await;
    let b = Home::new().daemon(&site, "b", Way::Take).await;
    let tokens = b.store.send(ReadTokens).await.unwrap().unwrap().list();
    assert_eq!(tokens.len(), 1);
    assert_eq!(events(&b.store, "a").await.len(), 5);
    // The text of a step that was not over is said anew; no number is used twice.
    assert_eq!(events(&b.store, "open").await.len(), 2);
    let b = b.end().await;
    a.has_all_slots().await;
    let restarted = Logged { first_seq: Seq(3), ..logged(101, "open", Event::Restarted) };
    append(&a.store, "open", vec![restarted]).await.unwrap();
    append(&a.store, "open", vec![text(102, "open", "anew"), ended(103, "open")]).await.unwrap();
    a.chats("new").await;
    let b = b.daemon(&site, "b", Way::Follow).await;
    b.reaches(&a).await;
    let c = Home::new().daemon(&site, "c", Way::Take).await;
    c.reaches(&a).await;
    for store in [&a.store, &b.store, &c.store] {
        assert_eq!(events(store, "open").await.last().unwrap().seq, Seq(103));
    }
    let homes = [a.end().await, b.end().await, c.end().await];
    assert_same(&homes[0].path(), &homes[1].path(), "b took the base and came back");
    assert_eq!(secret(&homes[0]), secret(&homes[1]));
    assert_same(&homes[0].path(), &homes[2].path(), "c took the base later");
}

/// The tokens of devices are made of it.
fn secret(home: &Home) -> Vec<u8> {
    let db = rusqlite::Connection::open(home.path()).unwrap();
    db.query_row("SELECT device_secret FROM meta", [], |row| row.get(0)).unwrap()
}

#[actix::test]
async fn a_server_that_is_killed_meanwhile_holds_it_up_and_no_more() {
    let Some(mut server) = NatsServer::start() else { return };
    let (site, home) = (site(&server).await, Home::with_a_past().await);
    let mut was_killed = false;
    let killed = &mut |step| {
        if matches!(step, Step::Published(..)) && !std::mem::replace(&mut was_killed, true) {
            server.kill();
            server.run();
        }
        Ok(())
    };
    let begun = init(&site, &home.path(), killed).await.unwrap();
    assert_eq!((begun.base.generation, was_killed), (1, true));
    let engine = site.open().await.unwrap();
    assert_eq!(Home::new().settle(&engine).await.unwrap().way, Way::Take);
    // While it is away a home waits for it, or is told so.
    let later = Home::new();
    server.kill();
    let error = later.settle(&engine).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
    assert_eq!(held(&later.path()).unwrap(), Held::Nothing);
}

#[actix::test]
async fn an_init_that_was_stopped_can_be_done_again() {
    let Some(server) = NatsServer::start() else { return };
    for (nth, step) in [Step::Planned(0), Step::Copied(0), Step::Made, Step::Published(0, 0), Step::Committed]
        .iter()
        .enumerate()
    {
        let name = format!("test{nth}");
        let site = Site::connect(&settings(&server, &name)).await.unwrap();
        let home = Home::with_a_past().await;
        assert!(home.init_until(&site, step).await.message.contains("stopped here"));
        if *step == Step::Committed {
            let error = home.init(&site).await.unwrap_err();
            assert!(error.message.contains("start the daemon"), "{error}");
        } else {
            let refused = site.open().await.unwrap_err();
            assert!(refused.why.contains("there is no cluster"), "{refused:?}");
            let is_its = *step != Step::Planned(0);
            assert_eq!(matches!(held(&home.path()).unwrap(), Held::Replica(_)), is_its, "{step:?}");
            let begun = home.init(&site).await.unwrap();
            assert_eq!(begun.base.generation, 2, "{step:?}");
        }
        assert!(home.names().iter().all(|name| !name.contains(".base")), "{:?}", home.names());
        let of_it = streams(&server).await;
        let of_it = of_it.iter().filter(|stream| stream.contains(&name));
        assert_eq!(of_it.count(), 5, "{step:?}");
        let a = home.daemon(&site, "a", Way::Follow).await;
        a.chats("new").await;
        let b = Home::new().daemon(&site, "b", Way::Take).await;
        b.reaches(&a).await;
        let homes = [a.end().await, b.end().await];
        assert_same(&homes[0].path(), &homes[1].path(), "after an init that was stopped");
    }
}

#[actix::test]
async fn of_two_that_begin_a_cluster_at_once_one_does() {
    let Some(server) = NatsServer::start() else { return };
    let sites = [site(&server).await, site(&server).await];
    let homes = [Home::with_a_past().await, Home::with_a_past().await];
    let both = futures::join!(homes[0].init(&sites[0]), homes[1].init(&sites[1]));
    let (won, lost) = match &both {
        (Ok(_), Err(refused)) => (0, refused),
        (Err(refused), Ok(_)) => (1, refused),
        both => panic!("{both:?}"),
    };
    assert!(lost.message.contains("another node") || lost.message.contains("already"), "{lost}");
    homes[1 - won].is_refused(&sites[0], "the store of this home is of").await;
    assert_eq!(homes[won].settle(&sites[0].open().await.unwrap()).await.unwrap().way, Way::Follow);
}

#[actix::test]
async fn a_store_that_is_not_of_the_cluster_is_refused() {
    let Some(server) = NatsServer::start() else { return };
    let site = site(&server).await;
    let (first, own) = (Home::with_a_past().await, Home::with_a_past().await);
    first.init(&site).await.unwrap();
    own.is_refused(&site, "is of no cluster, and is not empty (sessions: 3").await;
    let error = own.init(&site).await.unwrap_err();
    assert!(error.message.contains("already") && error.message.contains("another cluster.name"), "{error}");
    assert!(first.init(&site).await.unwrap_err().message.contains("start the daemon"));

    let elsewhere = Site::connect(&settings(&server, "other")).await.unwrap();
    let of_another = Home::with_a_past().await;
    of_another.init(&elsewhere).await.unwrap();
    of_another.is_refused(&site, "and the servers have cluster").await;
    let error = look_at_loss(&site, &of_another.path()).await.unwrap_err();
    assert!(error.message.contains("and the servers have"), "{error}");
    assert!(look_at_loss(&site, &own.path()).await.unwrap_err().message.contains("is of no cluster"));

    // A store that a daemon has made and nobody has used is none; what was killed beside it is nothing.
    let unused = Home::new();
    for left in ["clawmux.db.base", "clawmux.db.base.lock", ".clawmux.db.base.part", "clawmux.db.joining-wal"]
    {
        std::fs::write(unused.0.path().join(left), "half").unwrap();
    }
    Store::start(unused.path()).await.unwrap().send(Stop).await.unwrap().unwrap();
    assert_eq!(held(&unused.path()).unwrap(), Held::Nothing);
    assert_eq!(
        unused.settle(&site.open().await.unwrap()).await.unwrap(),
        Settled { way: Way::Take, kept: None }
    );
    let left = unused.names().into_iter().filter(|name| name.contains("base") || name.contains("joining"));
    assert_eq!(left.count(), 0, "{:?}", unused.names());
    // What is open is nobody else's.
    let store = Store::open_in_cluster(unused.path()).await.unwrap();
    assert!(membership::leave(&unused.path()).unwrap_err().message.contains("another clawmux"));
    drop(store);
}

#[actix::test]
async fn a_base_that_is_damaged_is_not_taken() {
    let Some(server) = NatsServer::start() else { return };
    let site = site(&server).await;
    Home::with_a_past().await.init(&site).await.unwrap();
    let (context, home) = (jetstream(&server).await, Home::new());
    let base = context.get_stream("test_BASE").await.unwrap();
    let last = async |subject: &str| base.get_last_raw_message_by_subject(subject).await.unwrap().payload;
    let (chunk, manifest) = ("test.base.c.1.1", "test.base.manifest");
    let (part, told) = (last(chunk).await, last(manifest).await);
    let put = async |subject: &'static str, payload: Vec<u8>| {
        context.publish(subject, payload.into()).await.unwrap().await.unwrap();
    };
    put(chunk, part[1..].to_vec()).await;
    home.is_refused(&site, "part 1 has 524287 bytes, not 524288").await;
    let mut flipped = part.to_vec();
    flipped[1000] ^= 1;
    put(chunk, flipped).await;
    home.is_refused(&site, "its digest is not that of what was published").await;
    base.purge().filter(chunk).await.unwrap();
    home.is_refused(&site, "part 1 of").await;
    put(chunk, part.to_vec()).await;
    // A whole one of which the manifest says something else.
    let said = String::from_utf8(told.to_vec()).unwrap();
    put(manifest, said.replace("\"position\":0", "\"position\":7").into_bytes()).await;
    home.is_refused(&site, "the log ends at record 0, and its base stands for 7").await;
    let digest = "\"digest\":\"";
    let at = said.find(digest).unwrap() + digest.len();
    let other = if said[at..].starts_with('0') { "1" } else { "0" };
    put(manifest, format!("{}{other}{}", &said[..at], &said[at + 1..]).into_bytes()).await;
    home.is_refused(&site, "is not the base of the cluster").await;
    put(manifest, b"{".to_vec()).await;
    let refused = site.open().await.unwrap_err();
    assert!(
        refused.is_refused && refused.why.contains("the manifest of the base can't be read"),
        "{refused:?}"
    );
    put(manifest, told.to_vec()).await;
    assert_eq!(home.settle(&site.open().await.unwrap()).await.unwrap().way, Way::Take);
}

#[actix::test]
async fn a_store_that_leaves_goes_on_alone_and_may_begin_another_cluster() {
    let Some(server) = NatsServer::start() else { return };
    let (site, home) = (site(&server).await, Home::with_a_past().await);
    let first = home.init(&site).await.unwrap().base;
    let a = home.daemon(&site, "a", Way::Follow).await;
    a.chats("shared").await;
    let home = a.end().await;
    assert_eq!(membership::leave(&home.path()).unwrap().cluster, first.cluster);
    assert!(membership::leave(&home.path()).unwrap_err().message.contains("is of no cluster"));
    home.is_refused(&site, "is of no cluster, and is not empty").await;
    let store = Store::start(home.path()).await.unwrap();
    for events in chat("alone", 1, "hi") {
        append(&store, "alone", events).await.unwrap();
    }
    for events in chat("again", 6, "hi") {
        append(&store, "shared", events).await.unwrap();
    }
    store.send(Stop).await.unwrap().unwrap();
    let elsewhere = Site::connect(&settings(&server, "other")).await.unwrap();
    let second = home.init(&elsewhere).await.unwrap().base;
    assert!(second.cluster != first.cluster && second.generation == 1 && second.left.is_empty());
    let a = home.daemon(&elsewhere, "a", Way::Follow).await;
    a.chats("new").await;
    let b = Home::new().daemon(&elsewhere, "b", Way::Take).await;
    b.reaches(&a).await;
    assert_eq!(events(&b.store, "shared").await.len(), 10);
    let homes = [a.end().await, b.end().await];
    assert_same(&homes[0].path(), &homes[1].path(), "after a life alone");
}

#[actix::test]
async fn a_log_that_was_cut_is_noticed_and_made_anew_from_a_store() {
    let Some(server) = NatsServer::start() else { return };
    let (site, home) = (site(&server).await, Home::with_a_past().await);
    home.init(&site).await.unwrap();
    let a = home.daemon(&site, "a", Way::Follow).await;
    a.chats("new").await;
    let b = Home::new().daemon(&site, "b", Way::Take).await;
    b.reaches(&a).await;
    let (a, b) = (a.end().await, b.end().await);
    let context = jetstream(&server).await;
    let log: Config = context.get_stream("test_LOG").await.unwrap().cached_info().config.clone();
    let last = context.get_stream("test_LOG").await.unwrap().cached_info().state.last_sequence;

    // Its beginning is gone: whoever has that may go on, and nobody else.
    context.get_stream("test_LOG").await.unwrap().purge().sequence(last).await.unwrap();
    assert_eq!(a.settle(&site.open().await.unwrap()).await.unwrap().way, Way::Follow);
    Home::new().is_refused(&site, "what was between is gone").await;
    // It is another one, with nothing in it.
    context.delete_stream("test_LOG").await.unwrap();
    let refused = site.open().await.unwrap_err();
    assert!(refused.is_refused && refused.why.contains("test_LOG is gone"), "{refused:?}");
    context.create_stream(log).await.unwrap();
    a.is_refused(&site, "the servers have lost records, or the store is damaged").await;

    let loss = look_at_loss(&site, &a.path()).await.unwrap();
    assert_eq!((loss.ours.applied, loss.last, loss.records()), (last, Some(0), Some(0)));
    let begun = rebuild(&site, &a.path(), &loss, &mut |_| Ok(())).await.unwrap();
    assert_eq!(begun.base.generation, 2);
    assert_eq!(begun.base.left.iter().map(|left| left.applied).collect::<Vec<_>>(), [last]);
    assert_eq!(streams(&server).await, streams_of("--2"));
    let a = a.daemon(&site, "a", Way::Follow).await;
    a.chats("newer").await;
    let b = b.daemon(&site, "b", Way::Take).await;
    b.reaches(&a).await;
    let homes = [a.end().await, b.end().await];
    assert_same(&homes[0].path(), &homes[1].path(), "after a rebuild");
    assert!(homes[1].names().contains("clawmux.db.before-generation-2"), "{:?}", homes[1].names());

    // All that the servers had is gone: the next one has another number, whatever they know.
    for stream in streams(&server).await {
        context.delete_stream(stream).await.unwrap();
    }
    let refused = site.open().await.unwrap_err();
    assert!(refused.why.contains("there is no cluster"), "{refused:?}");
    assert!(homes[0].init(&site).await.unwrap_err().message.contains("clawmux cluster rebuild"));
    let loss = look_at_loss(&site, &homes[0].path()).await.unwrap();
    assert_eq!((loss.theirs, loss.records()), (None, None));
    let begun = rebuild(&site, &homes[0].path(), &loss, &mut |_| Ok(())).await.unwrap();
    assert_eq!(begun.base.generation, 3);
    for home in &homes {
        home.settle(&site.open().await.unwrap()).await.unwrap();
    }
    assert_same(&homes[0].path(), &homes[1].path(), "after the servers were lost");
}

#[actix::test]
async fn a_rebuild_says_what_it_loses_and_whoever_has_more_is_told() {
    let Some(server) = NatsServer::start() else { return };
    let (site, home) = (site(&server).await, Home::with_a_past().await);
    home.init(&site).await.unwrap();
    let behind = Home::new();
    behind.settle(&site.open().await.unwrap()).await.unwrap();
    let a = home.daemon(&site, "a", Way::Follow).await;
    a.chats("both").await;
    let b = Home::new().daemon(&site, "b", Way::Take).await;
    b.reaches(&a).await;
    let a = a.end().await;
    b.chats("b alone").await;
    let error = look_at_loss(&site, &a.path()).await.unwrap_err();
    assert!(error.message.contains("daemons of the cluster run: b. Stop them all"), "{error}");
    let b = b.end().await;
    let loss = look_at_loss(&site, &a.path()).await.unwrap();
    let more = loss.records().unwrap();
    assert!(more >= 4, "{loss:?}");

    // It is stopped wherever it may be: the store goes on, in the old log or in the new one.
    for step in [Step::Planned(0), Step::Copied(0), Step::Made, Step::Published(0, 0)] {
        let stopped = rebuild(&site, &a.path(), &loss, &mut |done| stop_at(&step, &done)).await.unwrap_err();
        assert!(stopped.message.contains("stopped here"), "{stopped}");
        let engine = site.open().await.unwrap();
        assert_eq!((engine.base().generation, a.settle(&engine).await.unwrap().way), (1, Way::Follow));
    }
    let agreed = clawmux_actors::cluster::beginning::Loss { last: Some(1), ..loss.clone() };
    let error = rebuild(&site, &a.path(), &agreed, &mut |_| Ok(())).await.unwrap_err();
    assert!(error.message.contains("has changed since"), "{error}");
    rebuild(&site, &a.path(), &loss, &mut |done| stop_at(&Step::Committed, &done)).await.unwrap_err();
    let engine = site.open().await.unwrap();
    let settled = a.settle(&engine).await.unwrap();
    assert_eq!(settled.way, Way::Take);
    assert!(settled.kept.unwrap().is_file());

    b.is_refused(&site, "what is beyond is in this store alone").await;
    assert_eq!(behind.settle(&engine).await.unwrap().way, Way::Take);
    let loss = look_at_loss(&site, &a.path()).await.unwrap();
    assert_eq!(loss.records(), Some(0));
    let begun = rebuild(&site, &a.path(), &loss, &mut |_| Ok(())).await.unwrap();
    let generation = begun.base.generation;
    assert_eq!(begun.base.left.len(), 2);
    assert!(begun.kept.unwrap().is_file());
    assert_eq!(streams(&server).await, streams_of(&format!("--{generation}")));
    // That of b counts after all: it has what is in no other.
    let loss = look_at_loss(&site, &b.path()).await.unwrap();
    assert_eq!(loss.records(), Some(0), "nothing was written since");
    rebuild(&site, &b.path(), &loss, &mut |_| Ok(())).await.unwrap();
    let engine = site.open().await.unwrap();
    assert_eq!(engine.base().generation, generation + 1);
    let b = b.daemon(&site, "b", Way::Follow).await;
    b.has_all_slots().await;
    assert_eq!(events(&b.store, "b alone").await.len(), 5);
    // What a is now is no state of the log that b had.
    a.is_refused(&site, "is not known any more").await;
    let c = Home::new().daemon(&site, "c", Way::Take).await;
    c.reaches(&b).await;
    let homes = [b.end().await, c.end().await];
    assert_same(&homes[0].path(), &homes[1].path(), "after several rebuilds");
}
