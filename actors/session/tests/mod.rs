//! Sessions with everything they work with, driven by a connection that is only a mailbox.

mod changes;
mod following;
mod lanes;
mod owners;
mod provided;
mod runs;
mod waking;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::access::About;
use clawmux_core::config::Config;
use clawmux_core::config::catalog::Catalog;
use clawmux_core::conversation::command::{
    Abort, Attach, Clear, CreateSession, Detach, GetBudgets, ReadHistory, Reset, SessionCommand, Stop,
    Submit, Unwatch, Watch,
};
use clawmux_core::conversation::event::{Cause, Event, Logged, Outcome};
use clawmux_core::conversation::reply::{
    Aborted, Accepted, Attached, Detached, SessionReply, Stopped, Unwatched, Watching,
};
use clawmux_core::conversation::router::Router;
use clawmux_core::conversation::session::{Limits, Recovery};
use clawmux_core::conversation::transcript::Role;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, ConnectionId, Owner, RunId, Seq, SessionKey, Ticket};
use clawmux_core::limits::quota::Quota;
use clawmux_core::principal::Principal;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::request::command::Command;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::skill::AgentSkills;
use clawmux_core::swappable::Swappable;
use clawmux_core::target::{Route, Target};
use clawmux_core::tools::node::{Invocation, NodeTool};
use tokio::sync::mpsc;

use super::{AgentConfigs, Approvals, Learning, Profile, Queued, Session, SessionDeps, Soul, Watchers};
use crate::agent_supervisor::{self, AgentSupervisor, ParentSessions};
use crate::embedder::{Embedder, EmbedderSettings};
use crate::files::{self, Files};
use crate::hub::Hub;
use crate::hub::changes::Changes;
use crate::learner::Learner;
use crate::mcp_supervisor::McpTools;
use crate::nodes::{NodeJoins, NodeLeaves, Nodes, Resulted};
use crate::provider_supervisor::shared_budget::SharedBudgets;
use crate::provider_supervisor::{CallLog, ProviderSupervisor};
use crate::runtime::arbiters::Arbiters;
use crate::runtime::clock;
use crate::runtime::deliver::{Asker, Client, Deliver, More, WINDOW_BYTES, cost};
use crate::runtime::dispatch::Request;
use crate::runtime::lane::Lanes;
use crate::runtime::meters::Meters;
use crate::runtime::observe::Observe;
use crate::runtime::say::{OutboxGrew, Say};
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::scheduler::{Scheduler, SchedulerSetup};
use crate::session_supervisor::{SessionSupervisor, SessionsSetup, Visit};
use crate::store::Store;

#[allow(dead_code, unreachable_pub, reason = "tests of the daemon use the rest of it")]
#[path = "../../../tests/support/upstream.rs"]
mod upstream;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a session panic.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Sabotage;

impl Handler<Sabotage> for Session {
    type Result = ();

    fn handle(&mut self, _: Sabotage, _: &mut Self::Context) {
        panic!("sabotaged");
    }
}

fn user(name: &str) -> Principal {
    Principal::new(name, Scopes::of(&[Scope::Read, Scope::Write]))
}

/// A connection that hands on what it gets.
struct Mailbox(mpsc::UnboundedSender<Deliver>);

impl Actor for Mailbox {
    type Context = Context<Self>;
}

impl Handler<More> for Mailbox {
    type Result = ();

    fn handle(&mut self, _: More, _: &mut Self::Context) {}
}

impl Handler<Deliver> for Mailbox {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, _: &mut Self::Context) {
        let _ = self.0.send(deliver);
    }
}

/// Channels that say nothing.
struct Mute;

impl Actor for Mute {
    type Context = Context<Self>;
}

impl Handler<OutboxGrew> for Mute {
    type Result = ();

    fn handle(&mut self, _: OutboxGrew, _: &mut Self::Context) {}
}

impl Handler<Say> for Mute {
    type Result = Result<Owner, Error>;

    fn handle(&mut self, _: Say, _: &mut Self::Context) -> Self::Result {
        Err(ErrorCode::NotFound.error("there are no channels"))
    }
}

struct World {
    supervisor: Addr<SessionSupervisor>,
    nodes: Addr<Nodes>,
    deps: Arc<SessionDeps>,
    _home: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = Arc::new(config);
        let store = Store::open(home.path().join("clawmux.db")).await.unwrap();
        let (log_writer, store) = (store.log_writer(), store.start());
        let calls = Some(CallLog::of(&store));
        let providers = ProviderSupervisor::new(config.clone(), calls, Vec::new()).unwrap().start();
        let sandbox = SandboxSupervisor::new(Vec::new(), home.path().to_owned());
        let (tools, sandbox) = (sandbox.tools(), sandbox.start());
        let nodes = Nodes::default();
        let (connected, nodes) = (nodes.connected(), nodes.start());
        let id = AgentId::from("main");
        let catalog = Arc::new(Catalog::new(&config));
        let profile = Profile {
            id: id.clone(),
            soul: Arc::new(Soul::read(&home.path().join("SOUL.md")).unwrap()),
            models: config.agents[&id].models.clone(),
            max_tokens: 1000,
            tools: vec!["echo".into()],
            gated: Vec::new(),
            approval_timeout: Duration::from_secs(60),
            approval_rules: Arc::default(),
            node_tools: vec![NodeTool::parse("node:phone/camera.snap").unwrap().unwrap()],
            mcp_tools: Vec::new(),
            built_in: Vec::new(),
            skills: AgentSkills {
                agent: "main".into(),
                folders: Vec::new(),
                is_granted: false,
                bytes_max: 0,
            },
            context_tokens: 5000,
            finder: None,
            summaries: true,
            recall: None,
            toolboxes: Default::default(),
        };
        let hub = Hub::default().start();
        let parent_sessions = ParentSessions::default();
        let agents = AgentSupervisor::open(agent_supervisor::AgentsSetup {
            rules: clawmux_core::agents::registry::RegistrySettings::default(),
            store: store.clone(),
            hub: hub.clone(),
            log: log_writer.health(),
            shared_budgets: SharedBudgets::default(),
            parent_sessions: parent_sessions.clone(),
            leads: true,
        });
        let agents = agents.await.unwrap().start();
        let files = files::FilesSetup {
            folder: home.path().join("files"),
            store: store.clone(),
            quota_bytes: 1 << 20,
            upload_life: files::UPLOAD_LIFE,
            attachment_roots: vec![home.path().join("attachments")],
            elsewhere: None,
        };
        let files = Files::open(files).await.unwrap().start();
        let scheduler = Scheduler::open(SchedulerSetup {
            config: config.scheduler.clone(),
            home: home.path().to_owned(),
            zone: || "UTC".into(),
            store: store.clone(),
            hub: hub.clone(),
            channels: Mute.start().recipient(),
            log: log_writer.health(),
        });
        let scheduler = scheduler.await.unwrap();
        let agent_configs = Arc::new(Swappable::new(AgentConfigs {
            router: Router::new(Vec::new(), Some(id.clone())),
            agents: HashMap::from([(id, Arc::new(profile))]),
            channels: Default::default(),
            limits: Limits { queue: 4, episodic_turns: 5, context_tokens: 5000 },
            quota: Quota::default(),
            queued_bytes: 1 << 20,
            retention: None,
            store_bytes_max: None,
            recovery: Recovery::Resume,
            lag_bytes_max: 1 << 17,
            catalog,
            learning: Learning::default(),
        }));
        let settings = EmbedderSettings::of(&Config::default());
        let embedder = Embedder::new(settings, store.clone(), providers.clone()).start();
        let learner = Learner::new(store.clone(), providers.clone(), embedder.clone()).start();
        let deps = Arc::new(SessionDeps {
            learner,
            embedder,
            store,
            log_writer,
            providers,
            sandbox,
            tools,
            agent_configs: agent_configs.clone(),
            nodes: nodes.clone(),
            connected,
            mcp: McpTools::default(),
            jobs: scheduler.start().recipient(),
            channels: Mute.start().recipient(),
            outboxes: Mute.start().recipient(),
            files: files.clone(),
            lanes: Lanes::default(),
            watchers: Watchers::default(),
            approvals: Approvals::default(),
            queued: Queued::default(),
            changes: Changes::default(),
            meters: Meters::default(),
        });
        let supervisor = SessionSupervisor::new(SessionsSetup {
            remote: None,
            arbiters: Arbiters::default(),
            deps: deps.clone(),
            agents,
            parent_sessions,
            files,
        })
        .start();
        Self { supervisor, nodes, deps, _home: home }
    }

    fn peer(&self, connection: u64) -> Peer {
        let (sender, inbox) = mpsc::unbounded_channel();
        let to = Mailbox(sender).start().recipient();
        Peer {
            client: Client {
                connection: ConnectionId(connection),
                to,
                window: Arc::default(),
                arbiter: actix::Arbiter::current(),
            },
            inbox,
            supervisor: self.supervisor.clone(),
            tickets: 0,
            generous: true,
        }
    }
}

struct Peer {
    client: Client,
    inbox: mpsc::UnboundedReceiver<Deliver>,
    supervisor: Addr<SessionSupervisor>,
    tickets: u64,
    /// Whether it gives the room of every event back.
    generous: bool,
}

fn target(account: &str) -> Target {
    Target::Route(Route { channel: "test".into(), account: account.into(), ..Route::default() })
}

fn prompt(account: &str, content: &str, key: Option<&str>) -> Command {
    Command::from(Submit {
        target: target(account),
        run: RunId::from_random(clock::random()),
        content: content.into(),
        idempotency_key: key.map(str::to_owned),
        attachments: Vec::new(),
        files: Vec::new(),
        local_files: Vec::new(),
        run_options: RunOptions::default(),
        follow: true,
    })
}

impl Peer {
    fn ask(&mut self, command: impl Into<Command>) -> Ticket {
        self.ask_as(Principal::local(), command)
    }

    fn ask_as(&mut self, principal: Principal, command: impl Into<Command>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let command = command.into();
        let Command::Session(command) = command else { panic!("{command:?} is not about a session") };
        let asker = Asker::new(self.client.clone(), ticket);
        self.supervisor.try_send(Request { command, principal, asker }).unwrap();
        ticket
    }

    async fn next(&mut self) -> Deliver {
        tokio::time::timeout(TIMEOUT, self.inbox.recv()).await.expect("in time").expect("open")
    }

    async fn reply(&mut self) -> Result<Reply, Error> {
        match self.next().await {
            Deliver::Reply(_, reply) => reply,
            other => panic!("it overtook the reply: {other:?}"),
        }
    }

    async fn accepted(&mut self) -> Accepted {
        match self.reply().await {
            Ok(Reply::Session(SessionReply::Accepted(accepted))) => accepted,
            other => panic!("{other:?}"),
        }
    }

    /// The next event and the request it is told under.
    async fn told(&mut self) -> (Ticket, Logged) {
        loop {
            if let Deliver::Event { ticket, event, .. } = self.next().await {
                if self.generous {
                    self.client.window.give_back(cost(&event), self.client.connection);
                }
                return (ticket, event.logged.clone());
            }
        }
    }

    async fn event(&mut self) -> Logged {
        self.told().await.1
    }

    /// Events up to and with the end of the run.
    async fn rest(&mut self) -> Vec<Logged> {
        let mut events = Vec::new();
        loop {
            let logged = self.event().await;
            let end = matches!(logged.event, Event::Ended { .. });
            events.push(logged);
            if end {
                return events;
            }
        }
    }

    async fn answer(&mut self, account: &str) -> String {
        self.ask(ReadHistory { target: target(account), limit: 10, before: None });
        match self.reply().await {
            Ok(Reply::Session(SessionReply::History(history))) => {
                let last = history.messages.into_iter().rev().find(|m| m.role == Role::Assistant);
                last.map(|message| message.content).unwrap_or_default()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn text(events: &[Logged]) -> String {
    events
        .iter()
        .filter_map(|logged| match &logged.event {
            Event::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn contiguous(events: &[Logged]) {
    for pair in events.windows(2) {
        let due = pair[0].seq.next();
        let follows = match pair[1].event {
            // It makes void what was said, also what did not come to the log.
            Event::Restarted => (pair[1].first_seq..=pair[1].seq).contains(&due),
            _ => pair[1].first_seq == due,
        };
        assert!(follows, "a number is missing or twice: {pair:?}");
    }
}
