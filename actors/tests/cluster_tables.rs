//! What is kept beside sessions, written by all daemons of a cluster at once, over one log of a real JetStream server.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "support/joined.rs"]
mod joined;
#[path = "support/nats_server.rs"]
mod nats_server;
#[path = "support/tables.rs"]
mod tables;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use actix::prelude::*;
use clawmux_actors::agent_supervisor::{AgentSupervisor, AgentsSetup, ParentSessions};
use clawmux_actors::cluster::engine::{Durability, EngineSettings};
use clawmux_actors::cluster::{Cluster, ClusterSettings, Leave};
use clawmux_actors::devices::{Admit, Devices};
use clawmux_actors::hub::{ClientInfo, Hub, Join};
use clawmux_actors::provider_supervisor::shared_budget::SharedBudgets;
use clawmux_actors::runtime::deliver::{Asker, Client, Closable, Closer, Deliver};
use clawmux_actors::runtime::dispatch::{Located, Request};
use clawmux_actors::runtime::lane::Lanes;
use clawmux_actors::runtime::observe::Observe;
use clawmux_actors::runtime::say::Say;
use clawmux_actors::scheduler::{Scheduler, SchedulerSetup};
use clawmux_actors::store::{
    Health, JobWrite, ListMemories, ReadJobs, ReadPosition, ReadTokens, RecordUsage, Remember,
    SpentElsewhere, Stop, Store, WatchSpending, WriteJobs, WriteTokens,
};
use clawmux_actors::tokens::Tokens;
use clawmux_core::access::auth::{Auth, LoopbackPolicy};
use clawmux_core::access::authority::Authority;
use clawmux_core::access::pairing::{Arrival, DeviceCommand, RevokeDevice};
use clawmux_core::access::token::{
    Change, CreateToken, CreatedToken, Kind, RevokeToken, Token, TokenCommand, TokenReply, Use,
};
use clawmux_core::access::{Claim, Credentials, DeviceClaim, Secret};
use clawmux_core::agents::registry::RegistrySettings;
use clawmux_core::agents::subagent::{self, Priority, Spawn, SubAgentCommand, SubAgentReply, Task};
use clawmux_core::cluster::node::NodeName;
use clawmux_core::config;
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::dialect::Fault;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, JobId, Owner, SessionKey, Ticket};
use clawmux_core::memory::{self, MemoryRecord, NewMemory, Source, Tier};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::{
    Job, JobCommand, JobPatch, JobReply, ListJobs, NewJob, Order, Place, RemoveJob, UpdateJob,
};
use clawmux_core::schedule::{Misfire, Plan};
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::time::Timestamp;
use futures::future::join_all;
use joined::joined;
use nats_server::NatsServer;
use serde_json::Value as Json;
use tables::assert_same;
use tempfile::TempDir;
use tokio::sync::mpsc;

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

impl Daemon {
    async fn start(server: &NatsServer, node: &str) -> Self {
        let settings = EngineSettings {
            name: "test".to_owned(),
            servers: vec![server.url()],
            replicas: 1,
            monitor: vec![server.monitor()],
            durability: Durability::Required,
            ..EngineSettings::default()
        };
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("clawmux.db");
        let engine = joined(&settings, &path).await;
        let (store, submissions) = Store::open_in_cluster(path).await.unwrap();
        let store = Actor::start(store);
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

    async fn applied(&self) -> u64 {
        self.store.send(ReadPosition).await.unwrap().unwrap().applied
    }

    async fn has(&self, position: u64) {
        until("the whole log", async || self.applied().await >= position).await;
    }

    async fn write_token(&self, token: Token) -> Result<(), Error> {
        self.store.send(WriteTokens { changes: vec![Change::Put(token)], durable: true }).await.unwrap()
    }

    async fn end(self) -> TempDir {
        self.cluster.send(Leave).await.unwrap();
        self.store.send(Stop).await.unwrap().unwrap();
        self.home
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < PATIENCE, "{what} does not come");
        actix::clock::sleep(Duration::from_millis(20)).await;
    }
}

fn token(id: &str, name: &str) -> Token {
    Token {
        id: id.into(),
        name: name.into(),
        kind: Kind::ApiKey,
        sha256: Some([7; 32]),
        scopes: Scopes::of(&[Scope::Write]),
        created: Timestamp::from_millis(5),
        since: Timestamp::from_millis(5),
        expires: None,
        revoked: None,
        used: None,
        origin: None,
    }
}

fn job(id: &str) -> Job {
    let new = NewJob {
        name: "water".into(),
        description: None,
        is_enabled: true,
        plan: Plan::Every { every: Duration::from_secs(3600), anchor: None },
        order: Order {
            place: Place::Own("main".into()),
            prompt: "water the herons".into(),
            run_options: RunOptions::default(),
            result_to: None,
        },
        misfire: Misfire::Once,
        is_deleted_after: false,
        note: None,
    };
    Job::new(new, id.into(), Owner::Credential("ada".into()), Timestamp::from_millis(5), "UTC").unwrap()
}

fn memory(id: &str) -> MemoryRecord {
    let new = NewMemory {
        id: id.into(),
        tier: Tier::Semantic,
        kind: memory::Kind::Knowledge,
        content: format!("{id} is here"),
        metadata: None,
        session: None,
        embedding: None,
        fact: None,
        source: Source::default(),
    };
    MemoryRecord::new(new, Owner::Credential("ada".into()), None, Timestamp::from_millis(5))
}

#[actix::test]
async fn three_daemons_write_tables_at_once_though_the_server_is_killed() {
    let Some(mut server) = NatsServer::start() else { return };
    let daemons = [
        Daemon::start(&server, "a").await,
        Daemon::start(&server, "b").await,
        Daemon::start(&server, "c").await,
    ];
    let rounds = 25;
    let writes = daemons.iter().zip(["a", "b", "c"]).map(|(daemon, node)| async move {
        let mut given = Vec::new();
        for round in 0..rounds {
            let id = format!("{node}{round}");
            let jobs = WriteJobs(vec![JobWrite::Put(Box::new(job(&id)))]);
            let remember = Remember { memory: Box::new(memory(&id)), by_operator: true };
            let (own, taken, jobs, remembered) = futures::join!(
                daemon.write_token(token(&format!("cmx_{id}"), &id)),
                daemon.write_token(token(&format!("cmx_shared_{id}"), &format!("shared{round}"))),
                daemon.store.send(jobs),
                daemon.store.send(remember),
            );
            own.unwrap();
            jobs.unwrap().unwrap();
            remembered.unwrap().unwrap();
            match taken {
                Ok(()) => given.push(round),
                Err(error) => assert_eq!(error.code, ErrorCode::Conflict, "{error}"),
            }
        }
        given
    });
    let kills = async {
        for nth in 1..=2_u64 {
            let written = async || daemons[0].says().await["written"].as_u64() >= Some(nth * 25);
            until("some records", written).await;
            server.kill();
            actix::clock::sleep(Duration::from_millis(300)).await;
            server.run();
        }
    };
    let (given, ()) = futures::join!(join_all(writes), kills);
    // Every name that all wanted is one daemon's.
    let mut names: Vec<u64> = given.into_iter().flatten().collect();
    names.sort_unstable();
    assert_eq!(names, (0..rounds).collect::<Vec<_>>());
    let last = daemons.iter().map(Daemon::applied);
    let last = join_all(last).await.into_iter().max().unwrap();
    for daemon in &daemons {
        daemon.has(last).await;
        let ledger = daemon.store.send(ReadTokens).await.unwrap().unwrap();
        let mut ids: Vec<_> = ledger.list().into_iter().map(|token| token.name).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ledger.list().len(), ids.len()), (100, 100), "each is there once");
        assert_eq!(daemon.store.send(ReadJobs).await.unwrap().unwrap().jobs.len(), 75);
        let list = ListMemories { owner: Owner::Credential("ada".into()), limit: 1000, with_history: true };
        assert_eq!(daemon.store.send(list).await.unwrap().unwrap().len(), 75);
        assert_eq!(daemon.says().await["stalled"], 0);
    }
    let paths: Vec<PathBuf> = daemons.iter().map(Daemon::path).collect();
    let homes = join_all(daemons.into_iter().map(Daemon::end)).await;
    assert_same(&paths[0], &paths[1], "a and b");
    assert_same(&paths[0], &paths[2], "a and c");
    drop(homes);
}

#[actix::test]
async fn what_two_daemons_decide_of_one_credential_at_once_both_holds() {
    let Some(server) = NatsServer::start() else { return };
    let (a, b) = (Daemon::start(&server, "a").await, Daemon::start(&server, "b").await);
    let at = Timestamp::from_millis;
    a.write_token(token("cmx_1", "ci")).await.unwrap();
    // One revokes it, the other notes its use and has it end, and knows nothing of that.
    let used = Change::Seen("cmx_1".into(), Use { at: at(9), origin: [10, 0, 0, 1].into() });
    let revoked = a.write_token(Token { revoked: Some(at(20)), ..token("cmx_1", "ci") });
    let ends = b.write_token(Token { expires: Some(at(30)), ..token("cmx_1", "ci") });
    let used = b.store.send(WriteTokens { changes: vec![used], durable: false });
    let (revoked, ends, used) = futures::join!(revoked, ends, used);
    revoked.and(ends).and(used.unwrap()).unwrap();
    let last = a.applied().await.max(b.applied().await);
    for daemon in [&a, &b] {
        daemon.has(last).await;
        let token = daemon.store.send(ReadTokens).await.unwrap().unwrap().list().pop().unwrap();
        assert_eq!((token.revoked, token.expires, token.used), (Some(at(20)), Some(at(30)), Some(at(9))));
    }
    drop((a.end().await, b.end().await));
}

/// Who asks the daemon for something.
struct Caller(mpsc::UnboundedSender<Result<Reply, Error>>);

impl Actor for Caller {
    type Context = Context<Self>;
}

impl Handler<Deliver> for Caller {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, _: &mut Self::Context) {
        if let Deliver::Reply(_, reply) = deliver {
            let _ = self.0.send(reply);
        }
    }
}

/// A connection that only notes that it is to be closed.
#[derive(Debug, Default)]
struct Line(AtomicBool);

impl Closable for Line {
    fn close(&self, _: Fault, _: Timestamp) {
        self.0.store(true, Relaxed);
    }
}

/// A daemon with its credentials.
struct Gate {
    daemon: Daemon,
    authority: Arc<Authority>,
    hub: Addr<Hub>,
    tokens: Addr<Tokens>,
}

impl Gate {
    async fn open(server: &NatsServer, node: &str) -> Self {
        let daemon = Daemon::start(server, node).await;
        let auth = Auth { token: None, jwt: None, loopback: LoopbackPolicy::Auto, api_keys: Vec::new() };
        let (authority, hub) = (Arc::new(Authority::new(&auth)), Hub::default().start());
        let tokens =
            Tokens::open(authority.clone(), daemon.store.clone(), hub.clone(), (Health::default(), PATIENCE))
                .await
                .unwrap();
        Self { daemon, authority, hub, tokens: tokens.start() }
    }

    async fn ask(&self, command: TokenCommand) -> Result<TokenReply, Error> {
        match asked(&self.tokens, command).await? {
            Reply::Token(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    fn lets_in(&self, secret: &Secret) -> Option<Principal> {
        self.authority.authenticate(&Credentials::ApiKey(secret.clone()), Timestamp::from_millis(9)).ok()
    }
}

/// What an operator asks, and who hears the answer.
fn request<C>(command: C) -> (Request<C>, mpsc::UnboundedReceiver<Result<Reply, Error>>) {
    let (client, got) = client(1);
    (Request { command, principal: Principal::socket(), asker: Asker::new(client, Ticket(1)) }, got)
}

async fn asked<A, C>(to: &Addr<A>, command: C) -> Result<Reply, Error>
where
    A: Actor<Context = Context<A>> + Handler<Request<C>>,
    C: Send + 'static,
    Request<C>: Message<Result = ()>,
{
    let (request, mut got) = request(command);
    to.send(request).await.unwrap();
    got.recv().await.unwrap()
}

fn client(number: u64) -> (Client, mpsc::UnboundedReceiver<Result<Reply, Error>>) {
    let (sender, got) = mpsc::unbounded_channel();
    let client = Client {
        connection: ConnectionId(number),
        to: Caller(sender).start().recipient(),
        window: Arc::default(),
        arbiter: Arbiter::current(),
    };
    (client, got)
}

fn create(name: &str) -> TokenCommand {
    TokenCommand::Create(CreateToken {
        name: name.into(),
        kind: Kind::ApiKey,
        scopes: Scopes::of(&[Scope::Write]),
        life: None,
        inherit: false,
    })
}

#[actix::test]
async fn a_credential_is_valid_and_revoked_on_every_daemon_at_once() {
    let Some(server) = NatsServer::start() else { return };
    let (a, b) = (Gate::open(&server, "a").await, Gate::open(&server, "b").await);
    let Ok(TokenReply::Created(created)) = a.ask(create("ci")).await else { panic!("it is given out") };
    let CreatedToken { token, secret, .. } = *created;
    until("b lets it in", async || b.lets_in(&secret).is_some()).await;
    let taken = b.ask(create("ci")).await.unwrap_err();
    assert_eq!(taken.code, ErrorCode::Conflict, "{taken}");

    // It is used at a, and revoked at b.
    let line = Arc::new(Line::default());
    let weak: Weak<Line> = Arc::downgrade(&line);
    let link: Closer = weak;
    let (client, _got) = client(2);
    let join = Join {
        client,
        principal: a.lets_in(&secret).unwrap(),
        link,
        ip: [127, 0, 0, 1].into(),
        client_info: ClientInfo::default(),
        inbox: None,
    };
    a.hub.send(join).await.unwrap();
    b.ask(TokenCommand::Revoke(RevokeToken { id: token.id.to_string() })).await.unwrap();
    assert!(b.lets_in(&secret).is_none());
    until("a refuses it", async || a.lets_in(&secret).is_none()).await;
    until("its connection at a is closed", async || line.0.load(Relaxed)).await;

    // One name at once on both: one of them has it.
    for round in 0..10 {
        let name = format!("both{round}");
        let both = futures::join!(a.ask(create(&name)), b.ask(create(&name)));
        let refused = match both {
            (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
            both => panic!("{both:?}"),
        };
        assert_eq!(refused.code, ErrorCode::Conflict, "{refused}");
    }
    let (Gate { daemon: a, .. }, Gate { daemon: b, .. }) = (a, b);
    drop((a.end().await, b.end().await));
}

/// Counts what others spent.
struct Spending(mpsc::UnboundedSender<u64>);

impl Actor for Spending {
    type Context = Context<Self>;
}

impl Handler<SpentElsewhere> for Spending {
    type Result = ();

    fn handle(&mut self, SpentElsewhere(records): SpentElsewhere, _: &mut Self::Context) {
        let _ = self.0.send(records.iter().map(|record| record.usage.total()).sum());
    }
}

#[actix::test]
async fn what_the_calls_of_others_cost_is_told_and_what_ones_own_cost_is_not() {
    let Some(server) = NatsServer::start() else { return };
    let a = Daemon::start(&server, "a").await;
    until("every slot", async || a.says().await["slots"] == 256).await;
    let b = Daemon::start(&server, "b").await;
    let watch = |daemon: &Daemon| {
        let (sender, told) = mpsc::unbounded_channel();
        let watcher = Spending(sender).start();
        (daemon.store.send(WatchSpending(watcher.clone().recipient())), watcher, told)
    };
    let (of_a, _here, mut told_a) = watch(&a);
    let (of_b, _there, mut told_b) = watch(&b);
    of_a.await.unwrap();
    of_b.await.unwrap();
    // Whichever of them owns the session: one is told, and not the one that wrote it.
    let record = UsageRecord {
        session: SessionKey::new("main", "test", "x", "main").unwrap(),
        run: "r".into(),
        agent: "main".into(),
        provider: "up".into(),
        model: "m".into(),
        usage: Usage::new(3, 4),
        cost: None,
        changed: None,
        at: Timestamp::from_millis(7),
    };
    let spent = RecordUsage { call: 1, records: vec![record] };
    let by_a = loop {
        if a.store.send(spent.clone()).await.unwrap().is_ok() {
            break true;
        }
        if b.store.send(spent.clone()).await.unwrap().is_ok() {
            break false;
        }
    };
    let (told, other) = if by_a { (&mut told_b, &mut told_a) } else { (&mut told_a, &mut told_b) };
    assert_eq!(told.recv().await, Some(7));
    assert!(other.try_recv().is_err());
    drop((a.end().await, b.end().await));
}

/// The names of the jobs that a daemon lists.
async fn jobs(scheduler: &Addr<Scheduler>) -> Vec<(JobId, String)> {
    match asked(scheduler, JobCommand::List(ListJobs)).await.unwrap() {
        Reply::Job(JobReply::Jobs(views)) => {
            views.into_iter().map(|view| (view.job.id, view.job.name)).collect()
        }
        other => panic!("{other:?}"),
    }
}

struct Silent;

impl Actor for Silent {
    type Context = Context<Self>;
}

impl Handler<Say> for Silent {
    type Result = Result<Owner, Error>;

    fn handle(&mut self, _: Say, _: &mut Self::Context) -> Self::Result {
        Err(ErrorCode::NotFound.error("there are no channels"))
    }
}

async fn scheduler(daemon: &Daemon) -> Addr<Scheduler> {
    let config = config::Scheduler {
        heartbeat: None,
        heartbeat_tokens: 0,
        heartbeat_result_to: None,
        new_session_cron: None,
    };
    let setup = SchedulerSetup {
        config,
        home: daemon.home.path().to_owned(),
        zone: || "UTC".to_owned(),
        store: daemon.store.clone(),
        hub: Hub::default().start(),
        channels: Silent.start().recipient(),
        log: Health::default(),
    };
    Scheduler::open(setup).await.unwrap().start()
}

#[actix::test]
async fn jobs_are_listed_changed_and_removed_on_every_daemon() {
    let Some(server) = NatsServer::start() else { return };
    let (a, b) = (Daemon::start(&server, "a").await, Daemon::start(&server, "b").await);
    let (at_a, at_b) = (scheduler(&a).await, scheduler(&b).await);
    let new = |name: &str| NewJob {
        name: name.into(),
        description: None,
        is_enabled: true,
        plan: Plan::Every { every: Duration::from_secs(3600), anchor: None },
        order: Order {
            place: Place::Own("main".into()),
            prompt: "water the herons".into(),
            run_options: RunOptions::default(),
            result_to: None,
        },
        misfire: Misfire::Once,
        is_deleted_after: false,
        note: None,
    };
    // Both at once, many: none is lost by what comes from the other meanwhile.
    let adds = (0..20).map(|nth| {
        let to = if nth % 2 == 0 { &at_a } else { &at_b };
        asked(to, JobCommand::Add(Box::new(new(&format!("job {nth}")))))
    });
    join_all(adds).await.into_iter().for_each(|added| drop(added.unwrap()));
    for scheduler in [&at_a, &at_b] {
        until("all jobs", async || jobs(scheduler).await.len() == 20).await;
    }
    let (id, _) = jobs(&at_a).await.remove(3);
    let patch = JobPatch { name: Some("renamed".into()), ..JobPatch::default() };
    let update = UpdateJob { job: id.as_str().to_owned(), patch: Box::new(patch) };
    asked(&at_a, JobCommand::Update(update)).await.unwrap();
    until("its name", async || jobs(&at_b).await.contains(&(id.clone(), "renamed".to_owned()))).await;
    asked(&at_b, JobCommand::Remove(RemoveJob { job: id.as_str().to_owned() })).await.unwrap();
    until("its end", async || jobs(&at_a).await.len() == 19).await;
    drop((a.end().await, b.end().await));
}

fn crew(daemon: &Daemon) -> AgentsSetup {
    AgentsSetup {
        rules: RegistrySettings {
            running_max: 4,
            depth_max: 2,
            agents: ["main".into()].into(),
            default: Some("main".into()),
        },
        store: daemon.store.clone(),
        hub: Hub::default().start(),
        log: Health::default(),
        shared_budgets: SharedBudgets::default(),
        parent_sessions: ParentSessions::default(),
        leads: false,
    }
}

async fn of_crew(to: &Addr<AgentSupervisor>, command: SubAgentCommand) -> SubAgentReply {
    let (request, mut got) = request(command);
    to.send(Located { request, session: None }).await.unwrap();
    match got.recv().await.unwrap().unwrap() {
        Reply::SubAgent(reply) => reply,
        other => panic!("{other:?}"),
    }
}

#[actix::test]
async fn agents_of_another_daemon_are_listed_and_their_end_is_heard_of() {
    let Some(server) = NatsServer::start() else { return };
    let (a, b) = (Daemon::start(&server, "a").await, Daemon::start(&server, "b").await);
    let at_a = AgentSupervisor::open(crew(&a)).await.unwrap().start();
    let at_b = AgentSupervisor::open(crew(&b)).await.unwrap().start();
    let spawn = Spawn {
        parent: None,
        kind: "main".into(),
        task: Task { description: "count the herons".into(), priority: Priority::Medium },
        tokens_max: None,
        model: None,
        call: None,
    };
    let SubAgentReply::Status(status) = of_crew(&at_a, SubAgentCommand::Spawn(Box::new(spawn))).await else {
        panic!("it works")
    };
    let agent = status.agent;
    until("it is listed", async || {
        matches!(of_crew(&at_b, SubAgentCommand::List(subagent::List)).await,
            SubAgentReply::List(list) if list.len() == 1)
    })
    .await;
    let stop = subagent::Stop { agent: agent.clone(), reason: None, force: true };
    let (ended, _) = futures::join!(
        of_crew(&at_b, SubAgentCommand::Await(subagent::Await { agent })),
        of_crew(&at_a, SubAgentCommand::Stop(stop)),
    );
    assert!(matches!(ended, SubAgentReply::Status(status) if status.state.is_over()));
    drop((a.end().await, b.end().await));
}

#[actix::test]
async fn a_device_that_is_revoked_on_one_daemon_is_closed_on_the_other() {
    let Some(server) = NatsServer::start() else { return };
    let (a, b) = (Daemon::start(&server, "a").await, Daemon::start(&server, "b").await);
    let open = async |daemon: &Daemon| {
        let token = Some(Secret::new("right"));
        let auth = Auth { token, jwt: None, loopback: LoopbackPolicy::Auto, api_keys: Vec::new() };
        let authority = Arc::new(Authority::new(&auth));
        Devices::open(authority, daemon.store.clone(), Hub::default().start()).await.unwrap().start()
    };
    let (at_a, at_b) = (open(&a).await, open(&b).await);
    let device = DeviceClaim { id: "tv".into(), public_key: [7; 32], token: None };
    let claim = Claim {
        credentials: Credentials::Token(Secret::new("right")),
        device: Some(device.clone()),
        ..Claim::default()
    };
    let line = Arc::new(Line::default());
    let weak: Weak<Line> = Arc::downgrade(&line);
    let arrival = Arrival { claim, device, peer: [127, 0, 0, 1].into(), is_loopback: true };
    at_a.send(Admit { arrival, link: weak }).await.unwrap().unwrap();
    let revoke = || DeviceCommand::Revoke(RevokeDevice { device: "tv".into(), role: None });
    // It is known there once it was replicated.
    until("it is revoked", async || asked(&at_b, revoke()).await.is_ok()).await;
    until("its connection is closed", async || line.0.load(Relaxed)).await;
    drop((a.end().await, b.end().await));
}
