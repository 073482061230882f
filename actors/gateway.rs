//! `Gateway`: the supervision tree.
//!
//! ```text
//!   Gateway ─┬─ Store                the log
//!            ├─ SandboxSupervisor ── Plugin ...
//!            ├─ ProviderSupervisor   budgets, upstream calls
//!            ├─ Nodes                clients that offer commands
//!            ├─ Hub                  who is connected
//!            ├─ Devices, Tokens      who is let in
//!            ├─ Configuration        the configuration files
//!            ├─ Files                what clients upload
//!            ├─ Scheduler            what is done at set times
//!            ├─ SessionSupervisor ── Session ...
//!            ├─ Admin                what operators ask
//!            └─ Listener ─────────── Connection ...
//! ```
//!
//! Starts them in this order and stops them in reverse; knows no protocol. Sessions and plugins are
//! started anew by their supervisors. These know each other's addresses, so that one that is
//! gone can't be replaced alone: the gateway says so ([`Running::failed`]), whoever asked it has been
//! told, what was acknowledged is in the log, and who runs the daemon starts all of it anew.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::auth::authority::Authority;
use clawmux_core::catalog::Catalog;
use clawmux_core::config::{Approval, Config};
use clawmux_core::dialect;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, PluginName};
use clawmux_core::meter::{day_start, month_start};
use clawmux_core::router::Router;
use clawmux_core::session::Limits;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::admin::{self, Admin, AdminDrain, AdminStatus, Bound, Group};
use crate::arbiters::Arbiters;
use crate::ask::ask;
use crate::clock;
use crate::configuration::{Configuration, Layers};
use crate::connection::Services;
use crate::control_ui::ControlUi;
use crate::crew::{self, Crew, Kin};
use crate::daemon_log::DaemonLog;
use crate::devices::Devices;
use crate::files::{self, Files};
use crate::http::PROTOCOLS;
use crate::hub::changes::Changes;
use crate::hub::overview::Overviews;
use crate::hub::{self, Broadcast, Hub, Notice, Whose};
use crate::lane::Lanes;
use crate::listener::{self, Listener, ListenerSetup};
use crate::meters::Meters;
use crate::metrics::{self, Metrics};
use crate::nodes::Nodes;
use crate::observe::{Observe, Observed};
use crate::provider::purse::Purses;
use crate::provider_supervisor::ProviderSupervisor;
use crate::rates::Rates;
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::scheduler::{self, Scheduler, TakeFirings};
use crate::session::{Approvals, Colleagues, Profile, Watchers};
use crate::session_supervisor::{
    DrainSessions, GetStatus, Recover, SessionSupervisor, Setup as SessionSetup, TakePrompts,
};
use crate::store::{self, Store, UsageSince};
use crate::tokens::Tokens;

/// How often the children are looked after.
const WATCH: Duration = Duration::from_secs(1);

/// How long after the drain the sockets and the log may take to close.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What a daemon starts with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration, validated.
    pub config: Arc<Config>,
    /// The home; made already.
    pub home: PathBuf,
    /// Where the operator's socket goes; none means into the home.
    pub socket: Option<PathBuf>,
    /// What the configuration was made of.
    pub layers: Layers,
    /// The daemon's own log.
    pub log: Arc<DaemonLog>,
    /// Version of clawmux.
    pub version: &'static str,
}

/// A daemon that takes work.
#[derive(Debug)]
pub struct Running {
    /// Its root.
    pub gateway: Addr<Gateway>,
    /// Where it listens, as bound.
    pub addresses: Vec<SocketAddr>,
    /// The operator's socket.
    pub socket: PathBuf,
    /// Says why, when it can't go on.
    pub failed: oneshot::Receiver<Error>,
}

/// The supervision tree.
pub struct Gateway {
    setup: Setup,
    addresses: Vec<SocketAddr>,
    store: Addr<Store>,
    sandbox: Addr<SandboxSupervisor>,
    providers: Addr<ProviderSupervisor>,
    nodes: Addr<Nodes>,
    hub: Addr<Hub>,
    configuration: Addr<Configuration>,
    devices: Addr<Devices>,
    crew: Addr<Crew>,
    scheduler: Addr<Scheduler>,
    files: Addr<Files>,
    tokens: Addr<Tokens>,
    sessions: Addr<SessionSupervisor>,
    listener: Addr<Listener>,
    admin: Addr<Admin>,
    /// The claim on the home, let go when the log is closed.
    claim: Option<Bound>,
    failed: Option<oneshot::Sender<Error>>,
    draining: bool,
    stopping: bool,
}

/// Stops: what runs may finish its step, clients are told, everything is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Starts a daemon in this actix system; it takes work when this returns.
///
/// # Errors
/// What keeps it from starting: another daemon on this home, a log that can't be opened, an address
/// that can't be bound, a listener off loopback without credentials.
pub async fn start(setup: Setup) -> Result<Running, Error> {
    let config = setup.config.clone();
    let authority = Arc::new(Authority::new(&config.auth));
    // First of all, so that a second daemon on this home touches nothing.
    let group = config.gateway.socket_group.as_deref().map(Group::named).transpose()?;
    let mut claim = Bound::new(&setup.home, setup.socket.as_deref(), group.as_ref())?;
    let sockets = listener::bind(&config.gateway.listen)
        .map_err(|error| ErrorCode::Unavailable.error(format!("can't listen on {error}")))?;

    let meters = Meters::default();
    meters.watch_arbiter("main");
    let store = Store::open(config.store.path.clone()).await?;
    let (pen, store) = (store.pen(), store.start());
    let log = pen.health();
    let now = clock::now();
    let since = UsageSince { day_start: day_start(now), month_start: month_start(now) };
    let totals = ask(&store, since).await??;
    let sandbox = SandboxSupervisor::new(config.plugins.clone(), setup.home.clone()).start();
    let purses = Purses::default();
    let providers = ProviderSupervisor::new(config.clone(), Some(store.clone().recipient()), totals)?
        .with_purses(purses.clone())
        .with_meters(meters.clone())
        .start();
    let nodes = Nodes::default().start();
    let (changes, overviews) = (Changes::default(), Overviews::default());
    let hub = Hub::new(hub::Setup {
        own: Some(hub::own(setup.version, &host())),
        started: clock::now(),
        store: Some(store.clone()),
        log: log.clone(),
        nodes: Some(nodes.clone()),
        changes: changes.clone(),
        overviews: overviews.clone(),
    })
    .start();
    let configuration = Configuration::new(setup.layers.clone()).start();
    // Nobody is let in before it is known which credentials there are.
    let tokens = Tokens::open(authority.clone(), store.clone(), hub.clone()).await?.start();
    authority.may_listen(&config.gateway.listen)?;
    let devices = Devices::open(authority.clone(), store.clone(), hub.clone()).await?.start();
    let kin = Kin::default();
    let crew = Crew::open(crew::Setup {
        rules: clawmux_core::crew::Setup {
            running_max: config.limits.agents,
            depth_max: config.limits.agent_depth,
            agents: config.agents.keys().cloned().collect(),
            default: config.default_agent.clone(),
        },
        store: store.clone(),
        hub: hub.clone(),
        log: log.clone(),
        purses,
        kin: kin.clone(),
    })
    .await?
    .start();
    let files = Files::open(files::Setup {
        folder: setup.home.join("files"),
        store: store.clone(),
        quota_bytes: config.limits.file_quota_bytes,
        upload_life: files::UPLOAD_LIFE,
        attachment_roots: config.files.attachment_roots.clone(),
    })
    .await?
    .start();
    let scheduler = Scheduler::open(scheduler::Setup {
        config: config.scheduler.clone(),
        home: setup.home.clone(),
        zone: clock::zone(),
        store: store.clone(),
        hub: hub.clone(),
        log: log.clone(),
    })
    .await?
    .start();
    let admin = Admin::default().start();
    let arbiters = Arbiters::new(meters.clone());
    let approvals = Approvals::new(hub.clone().recipient());
    let catalog = Arc::new(Catalog::new(&config));
    let sessions = SessionSupervisor::new(SessionSetup {
        router: Router::new(config.bindings.clone(), config.default_agent.clone()),
        agents: profiles(&config)?,
        limits: Limits {
            queue: config.limits.queue,
            episodic_turns: config.memory.episodic_turns,
            context_tokens: config.memory.context_tokens,
        },
        recovery: config.store.recovery,
        arbiters: arbiters.clone(),
        lag_bytes_max: config.gateway.max_buffered_bytes,
        colleagues: Colleagues {
            store: store.clone(),
            pen: pen.clone(),
            providers: providers.clone(),
            sandbox: sandbox.clone(),
            nodes: nodes.clone(),
            files: files.clone(),
            lanes: Lanes::default(),
            watchers: Watchers::default(),
            approvals: approvals.clone(),
            changes,
            catalog: catalog.clone(),
            meters: meters.clone(),
        },
        hub: hub.clone(),
        configuration: configuration.clone(),
        log: setup.log.clone(),
        devices: devices.clone().recipient(),
        crew: crew.clone(),
        kin,
        files: files.clone(),
        scheduler: scheduler.clone().recipient(),
        tokens: tokens.clone().recipient(),
        admin: admin.clone().recipient(),
        version: setup.version,
    })
    .start();

    let services = Services {
        setup: dialect::Setup {
            version: setup.version.into(),
            subscriptions: config.limits.subscriptions,
            max_buffered_bytes: config.gateway.max_buffered_bytes,
            tick_interval: config.openclaw.tick_interval,
            heartbeat_interval: config.gateway.heartbeat_interval,
            heartbeat_timeout: config.gateway.heartbeat_timeout,
            catalog,
            started: clock::now(),
            ..dialect::Setup::default()
        },
        gateway: config.gateway.clone(),
        openclaw: config.openclaw.clone(),
        xeno: config.xeno.clone(),
        authority: authority.clone(),
        rates: Rates::new(&config.limits),
        dispatch: sessions.clone().recipient(),
        gone: sessions.clone().recipient(),
        devices: devices.clone().recipient(),
        join: hub.clone().recipient(),
        leave: hub.clone().recipient(),
        renew: hub.clone().recipient(),
        used: tokens.clone().recipient(),
        overviews,
    };
    let metrics = Metrics::new(metrics::Sources {
        meters,
        pen,
        approvals,
        actors: vec![
            ("provider_supervisor", providers.clone().recipient()),
            ("sandbox_supervisor", sandbox.clone().recipient()),
            ("hub", hub.clone().recipient()),
            ("nodes", nodes.clone().recipient()),
            ("devices", devices.clone().recipient()),
            ("tokens", tokens.clone().recipient()),
            ("crew", crew.clone().recipient()),
            ("files", files.clone().recipient()),
            ("scheduler", scheduler.clone().recipient()),
            ("admin", admin.clone().recipient()),
            ("store", store.clone().recipient()),
        ],
        version: setup.version,
        started: clock::wall(),
        scrapes: AtomicUsize::new(0),
    });
    let (listener, addresses) = Listener::open(ListenerSetup {
        sockets,
        unix: claim.take_listener().into_iter().collect(),
        services: Arc::new(services),
        protocols: PROTOCOLS.to_vec(),
        control_ui: config
            .openclaw
            .control_ui
            .clone()
            .map(|folder| ControlUi::new(folder, config.default_agent.clone(), setup.version.into())),
        unauthenticated: config.limits.unauthenticated,
        workers: 0,
        arbiters,
        log,
        metrics: Some(metrics),
    })
    .map_err(|error| ErrorCode::Unavailable.error(format!("can't serve: {error}")))?;

    let unfinished = ask(&sessions, Recover).await??;
    if unfinished > 0 {
        tracing::info!(sessions = unfinished, "going on with the runs that the last stop cut off");
    }
    let (dispatch, gone) = (sessions.clone().recipient(), sessions.clone().recipient());
    ask(&crew, crew::Begin { dispatch, gone }).await?;
    let (dispatch, gone) = (sessions.clone().recipient(), sessions.clone().recipient());
    ask(&scheduler, scheduler::Begin { dispatch, gone }).await?;
    let (fail, failed) = oneshot::channel();
    let path = claim.path().to_owned();
    let gateway = Gateway {
        setup,
        addresses: addresses.clone(),
        store,
        sandbox,
        providers,
        nodes,
        hub,
        configuration,
        devices,
        crew,
        scheduler,
        files,
        tokens,
        sessions,
        listener: listener.clone(),
        admin,
        claim: Some(claim),
        failed: Some(fail),
        draining: false,
        stopping: false,
    }
    .start();
    ask(&gateway, Serve).await??;
    ask(&listener, listener::Ready(true)).await?;
    Ok(Running { gateway, addresses, socket: path, failed })
}

/// From here on operators are served.
#[derive(Message)]
#[rtype(result = "Result<(), Error>")]
struct Serve;

/// Reads the agents' souls. A soul file that is not there is an empty soul.
fn profiles(config: &Config) -> Result<HashMap<AgentId, Arc<Profile>>, Error> {
    let is_gated = |tool: &PluginName| {
        config.plugins.iter().any(|plugin| plugin.name == *tool && plugin.approval == Approval::Ask)
    };
    let profile = |(id, agent): (&AgentId, &clawmux_core::config::Agent)| {
        Ok((
            id.clone(),
            Arc::new(Profile {
                id: id.clone(),
                soul: soul(&agent.soul)?.into(),
                max_tokens: agent.max_tokens,
                tools: agent.tools.clone(),
                gated: agent.tools.iter().filter(|tool| is_gated(tool)).cloned().collect(),
                approval_timeout: config.approvals.timeout,
                node_tools: agent.node_tools.clone(),
                context_tokens: config.memory.context_tokens,
            }),
        ))
    };
    config.agents.iter().map(profile).collect()
}

/// The name of this machine, for operators who see several.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("localhost").to_owned()
}

fn soul(path: &Path) -> Result<String, Error> {
    match std::fs::read_to_string(path) {
        Ok(soul) => Ok(soul.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            Err(ErrorCode::Unavailable.error(format!("the soul {} can't be read: {error}", path.display())))
        }
    }
}

impl Gateway {
    /// Whether every child is there; a daemon that misses one can't go on.
    fn watch(&mut self) {
        if self.stopping {
            return;
        }
        let children = [
            ("store", self.store.connected()),
            ("sandbox supervisor", self.sandbox.connected()),
            ("provider supervisor", self.providers.connected()),
            ("nodes actor", self.nodes.connected()),
            ("hub", self.hub.connected()),
            ("configuration", self.configuration.connected()),
            ("devices", self.devices.connected()),
            ("crew", self.crew.connected()),
            ("scheduler", self.scheduler.connected()),
            ("files actor", self.files.connected()),
            ("tokens", self.tokens.connected()),
            ("session supervisor", self.sessions.connected()),
            ("listener", self.listener.connected()),
            ("admin actor", self.admin.connected()),
        ];
        for (child, _) in children.into_iter().filter(|(_, there)| !there) {
            if let Some(failed) = self.failed.take() {
                let _ = failed.send(ErrorCode::Internal.error(format!("the {child} is gone: see the log")));
            }
        }
    }
}

impl Actor for Gateway {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(WATCH, |gateway, _| gateway.watch());
    }
}

impl Handler<Serve> for Gateway {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, _: Serve, ctx: &mut Self::Context) -> Self::Result {
        let daemon = admin::Daemon {
            status: ctx.address().recipient(),
            drain: ctx.address().recipient(),
            dispatch: self.sessions.clone().recipient(),
            gone: self.sessions.clone().recipient(),
            sessions: self.sessions.clone().recipient(),
            store: self.store.clone(),
        };
        let admin = self.admin.clone();
        Box::pin(async move { ask(&admin, admin::Begin(daemon)).await })
    }
}

impl Handler<AdminStatus> for Gateway {
    type Result = ResponseFuture<Result<Value, Error>>;

    fn handle(&mut self, _: AdminStatus, _: &mut Self::Context) -> Self::Result {
        let listen: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let home = self.setup.home.display().to_string();
        let store = self.setup.config.store.path.display().to_string();
        let (sessions, draining) = (self.sessions.clone(), self.draining);
        let (tokens, devices) = (self.tokens.clone(), self.devices.clone());
        Box::pin(async move {
            let status = ask(&sessions, GetStatus).await??;
            let credentials = ask(&tokens, Observe).await?.state;
            let devices = ask(&devices, Observe).await?.state;
            Ok(json!({
                "version": status.version,
                "pid": std::process::id(),
                "home": home,
                "store": store,
                "listen": listen,
                "draining": draining,
                "started_ms": status.started.as_millis(),
                "uptime_ms": clock::now().millis_since(status.started),
                "sessions": status.sessions,
                "connections": status.connections,
                "plugins": status.plugins,
                "credentials_expiring": credentials["expiring"],
                "devices_waiting": devices["pending"],
            }))
        })
    }
}

impl Handler<AdminDrain> for Gateway {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, AdminDrain { on }: AdminDrain, _: &mut Self::Context) -> Self::Result {
        if std::mem::replace(&mut self.draining, on) != on {
            tracing::info!(draining = on, "by the operator: new prompts are refused while draining");
        }
        let (listener, sessions) = (self.listener.clone(), self.sessions.clone());
        let scheduler = self.scheduler.clone();
        Box::pin(async move {
            ask(&scheduler, TakeFirings(!on)).await?;
            // Said first, so that nobody is sent here to be refused.
            ask(&listener, listener::Draining(on)).await?;
            ask(&sessions, TakePrompts(!on)).await
        })
    }
}

impl Handler<Observe> for Gateway {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let state =
            json!({ "version": self.setup.version, "draining": self.draining, "stopping": self.stopping });
        let (store, sandbox, providers) = (self.store.clone(), self.sandbox.clone(), self.providers.clone());
        let configuration = self.configuration.clone();
        let (hub, sessions, listener) = (self.hub.clone(), self.sessions.clone(), self.listener.clone());
        let (nodes, devices, admin) = (self.nodes.clone(), self.devices.clone(), self.admin.clone());
        let crew = self.crew.clone();
        let scheduler = self.scheduler.clone();
        let files = self.files.clone();
        let tokens = self.tokens.clone();
        Box::pin(async move {
            let mut children = Vec::new();
            children.extend(ask(&store, Observe).await);
            children.extend(ask(&sandbox, Observe).await);
            children.extend(ask(&providers, Observe).await);
            children.extend(ask(&nodes, Observe).await);
            children.extend(ask(&hub, Observe).await);
            children.extend(ask(&configuration, Observe).await);
            children.extend(ask(&devices, Observe).await);
            children.extend(ask(&crew, Observe).await);
            children.extend(ask(&scheduler, Observe).await);
            children.extend(ask(&files, Observe).await);
            children.extend(ask(&tokens, Observe).await);
            children.extend(ask(&sessions, Observe).await);
            children.extend(ask(&admin, Observe).await);
            children.extend(ask(&listener, Observe).await);
            Observed { actor: "gateway".into(), state, children }
        })
    }
}

impl Handler<Stop> for Gateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        if std::mem::replace(&mut self.stopping, true) {
            return Box::pin(async {});
        }
        let drain = self.setup.config.gateway.drain_timeout;
        let (store, hub) = (self.store.clone(), self.hub.clone());
        let (sessions, listener) = (self.sessions.clone(), self.listener.clone());
        let files = self.files.clone();
        let scheduler = self.scheduler.clone();
        let claim = self.claim.take();
        Box::pin(async move {
            let _ = ask(&scheduler, TakeFirings(false)).await;
            let _ = ask(&listener, listener::Ready(false)).await;
            if tokio::time::timeout(drain, sessions.send(DrainSessions)).await.is_err() {
                tracing::warn!(
                    drain_ms = drain.as_millis(),
                    "some runs did not come to rest: they go on at the next start"
                );
            }
            let _ = ask(&hub, Broadcast { notice: Notice::Draining, whose: Whose::All }).await;
            let close = async {
                let _ = listener.send(listener::Stop).await;
                let _ = files.send(files::Stop).await;
                match store.send(store::Stop).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "the log was not closed cleanly"),
                    Err(_) => tracing::error!("the log was gone before it could be closed"),
                }
            };
            if tokio::time::timeout(STOP_GRACE, close).await.is_err() {
                tracing::warn!("not everything closed in time");
            }
            // Only now may another daemon have the home.
            drop(claim);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Sabotage;

    fn setup(home: &Path) -> Setup {
        let mut config = Config::default();
        config.gateway.listen = vec![([127, 0, 0, 1], 0).into()];
        config.store.path = home.join("clawmux.db");
        Setup {
            config: Arc::new(config),
            home: home.to_owned(),
            socket: None,
            version: "test",
            layers: Layers::default(),
            log: Arc::default(),
        }
    }

    #[actix::test]
    async fn a_child_that_is_gone_is_named_and_the_whole_can_be_started_anew() {
        let home = tempfile::tempdir().unwrap();
        let running = start(setup(home.path())).await.unwrap();
        let second = start(setup(home.path())).await.unwrap_err();
        assert_eq!(second.code, ErrorCode::Conflict, "one daemon per home: {second}");

        running.gateway.send(Sabotage).await.unwrap();
        let why = tokio::time::timeout(Duration::from_secs(60), running.failed).await.unwrap().unwrap();
        assert!(why.message.contains("hub"), "{why}");
        running.gateway.send(Stop).await.unwrap();

        let again = start(setup(home.path())).await.unwrap();
        again.gateway.send(Stop).await.unwrap();
    }

    impl Handler<Sabotage> for Gateway {
        type Result = ();

        fn handle(&mut self, sabotage: Sabotage, _: &mut Self::Context) {
            self.hub.try_send(sabotage).unwrap();
        }
    }
}
