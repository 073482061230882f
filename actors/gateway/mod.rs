//! `Gateway`: the supervision tree.
//!
//! ```text
//!   Gateway ─┬─ Store                the log
//!            ├─ Cluster              whose log it follows, where there is one
//!            ├─ SandboxSupervisor ── Plugin ...
//!            ├─ McpSupervisor ────── McpServer ...
//!            ├─ ProviderSupervisor   budgets, upstream calls
//!            ├─ Nodes                clients that offer commands
//!            ├─ Hub                  who is connected
//!            ├─ Devices, Tokens      who is let in
//!            ├─ Configuration        the configuration files
//!            ├─ Files                what clients upload
//!            ├─ Scheduler            what is done at set times
//!            ├─ ChannelSupervisor ── Channel ..., Bus
//!            ├─ SessionSupervisor ── Session ...
//!            ├─ Admin                what operators ask
//!            └─ Listener ─────────── Connection ...
//! ```
//!
//! Starts them in this order and stops them in reverse; knows no protocol. Sessions and plugins are
//! started anew by their supervisors. These know each other's addresses, so that one that is
//! gone can't be replaced alone: the gateway says so ([`Running::failed`]), whoever asked it has been
//! told, what was acknowledged is in the log, and who runs the daemon starts all of it anew.

#[cfg(test)]
mod tests;

mod model_lists;
mod opening;
mod reload;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::access::authority::Authority;
use clawmux_core::cluster::ownership::appender::STALL_MS;
use clawmux_core::config::Config;
use clawmux_core::config::catalog::Catalog;
use clawmux_core::daemon::operator::DaemonInfo;
use clawmux_core::dialect;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::provider::meter::{day_start, month_start};
use clawmux_core::swappable::Swappable;
use futures::future::join_all;
use serde_json::json;
use tokio::sync::oneshot;

use crate::agent_supervisor::{self, AgentSupervisor, ParentSessions};
use crate::bus;
use crate::channel;
use crate::channel_supervisor::{ChannelSupervisor, LandAll};
use crate::configuration::{AdoptBy, Configuration, Layers, Reload, Reloaded};
use crate::connection::rates::Rates;
use crate::connection::{Services, Terms};
use crate::daemon::{self, Daemon, LookAtHealth, StatusNow};
use crate::devices::Devices;
use crate::embedder::{Embedder, EmbedderSettings};
use crate::files::{self, Files};
use crate::host::activation::Passed;
use crate::host::bound::Bound;
use crate::host::group::Group;
use crate::host::machine;
use crate::http::PROTOCOLS;
use crate::http::control_ui::ControlUi;
use crate::http::metrics::{self, Metrics};
use crate::hub::changes::Changes;
use crate::hub::overview::Overviews;
use crate::hub::{self, Broadcast, Hub, Notice, Whose};
use crate::in_cluster::{InCluster, Opened};
use crate::learner::Learner;
use crate::listener::{self, Listener, ListenerSetup};
use crate::mcp_server;
use crate::mcp_supervisor::{EndAll, McpSupervisor, McpTools};
use crate::mirror::remote::Attend;
use crate::nodes::Nodes;
use crate::operator::{self, Admin, Drain, GetInfo};
use crate::outbound::fetch::Fetcher;
use crate::outbound::resolver::Resolver;
use crate::outbound::tls::client_config;
use crate::plugin::HostServices;
use crate::provider_supervisor::default_model::{DefaultModels, TellOfDefaults};
use crate::provider_supervisor::shared_budget::SharedBudgets;
use crate::provider_supervisor::{CallLog, ProviderSupervisor};
use crate::runtime::arbiters::Arbiters;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::daemon_log::DaemonLog;
use crate::runtime::dispatch::Routes;
use crate::runtime::lane::Lanes;
use crate::runtime::lead::Lead;
use crate::runtime::line::Begin;
use crate::runtime::log_filter::LogFilter;
use crate::runtime::meters::Meters;
use crate::runtime::observe::{Observe, Observed, TIMEOUT, TIMEOUT_WITH_CHILDREN, observe};
use crate::sandbox::compiler::Compiler;
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::scheduler::{self, Scheduler, TakeFirings};
use crate::session::{AgentConfigs, Approvals, Queued, SessionDeps, Watchers};
use crate::session_supervisor::{DrainSessions, Recover, SessionSupervisor, SessionsSetup, TakePrompts};
use crate::store::{self, ReadSpent, Store, UsageSince, WatchSpending};
use crate::tokens::Tokens;

/// How often the children are looked after.
const WATCH: Duration = Duration::from_secs(1);

/// How long after the drain the sockets and the log may take to close.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What a daemon starts with.
#[derive(Clone, Debug)]
pub struct GatewaySetup {
    /// The configuration, validated.
    pub config: Arc<Config>,
    /// The home; made already.
    pub home: PathBuf,
    /// Where the operator's socket goes; none means into the home.
    pub socket: Option<PathBuf>,
    /// Sockets that were bound before; they win over the configured ones.
    pub passed: Arc<Passed>,
    /// The home where xeno's clients look by themselves, where `xeno.home` names none.
    pub xeno_home: Option<PathBuf>,
    /// What the configuration was made of.
    pub layers: Layers,
    /// The daemon's own log.
    pub log: Arc<DaemonLog>,
    /// What is written to it; none where that is nobody's to change.
    pub log_filter: Option<Arc<dyn LogFilter>>,
    /// What compiles plugins.
    pub compiler: Compiler,
    /// The program that keeps those of MCP servers: one that knows `keep`.
    pub keeper: PathBuf,
    /// Whether its credentials are its own, and no configuration's.
    pub has_own_credentials: bool,
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
    /// What it runs on now: after a reload something else than it was started with.
    pub config: Arc<Swappable<Config>>,
    /// The threads that serve connections and sessions.
    pub arbiters: Arbiters,
    /// Says why, when it can't go on.
    pub failed: oneshot::Receiver<Error>,
}

/// The supervision tree.
pub struct Gateway {
    setup: GatewaySetup,
    /// What it runs on now.
    config: Arc<Swappable<Config>>,
    addresses: Vec<SocketAddr>,
    agent_configs: Arc<Swappable<AgentConfigs>>,
    services: Arc<Services>,
    store: Addr<Store>,
    cluster: Option<InCluster>,
    sandbox: Addr<SandboxSupervisor>,
    mcp: Addr<McpSupervisor>,
    mcp_tools: McpTools,
    providers: Addr<ProviderSupervisor>,
    nodes: Addr<Nodes>,
    hub: Addr<Hub>,
    configuration: Addr<Configuration>,
    devices: Addr<Devices>,
    agents: Addr<AgentSupervisor>,
    scheduler: Addr<Scheduler>,
    channels: Addr<ChannelSupervisor>,
    files: Addr<Files>,
    learner: Addr<Learner>,
    embedder: Addr<Embedder>,
    tokens: Addr<Tokens>,
    sessions: Addr<SessionSupervisor>,
    daemon: Addr<Daemon>,
    listener: Addr<Listener>,
    arbiters: Arbiters,
    admin: Addr<Admin>,
    /// The claims on the home and that of xeno's clients, let go when the log is closed.
    claims: Vec<Bound>,
    /// The models of agents that name none, as far as they are known.
    default_models: DefaultModels,
    failed: Option<oneshot::Sender<Error>>,
    /// Whether it does what one daemon of a cluster does for all.
    leads: bool,
    draining: bool,
    stopping: bool,
}

/// Stops: what runs may finish its step, clients are told, everything is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Asks whether the daemon is alive: whether everything that can be blocked comes to something new
/// within `within`. While it stops, which has a deadline of its own, it counts as alive.
///
/// Errors: `Timeout`, with what does not answer.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Pulse {
    /// How long an answer may take.
    pub within: Duration,
}

/// Asks how busy the daemon is. `Unavailable` once it stops.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Load, Error>")]
pub struct GetLoad;

/// How busy the daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Sessions awake.
    pub sessions: usize,
    /// Connections open.
    pub connections: usize,
    /// Runs under way.
    pub running: usize,
    /// Whether new prompts are refused.
    pub draining: bool,
}

/// How long [`Stop`] takes at most.
pub fn stops_within(config: &Config) -> Duration {
    config.gateway.drain_timeout + STOP_GRACE
}

/// Starts a daemon in this actix system; it takes work when this returns.
///
/// # Errors
/// What keeps it from starting: another daemon on this home, a log that can't be opened, an address
/// that can't be bound, a listener off loopback without credentials.
pub async fn start(setup: GatewaySetup) -> Result<Running, Error> {
    let config = setup.config.clone();
    let authority = Arc::new(Authority::new(&config.auth));
    // First of all, so that a second daemon on this home touches nothing.
    let unusable = |error| ErrorCode::Unavailable.error(format!("the sockets that were passed: {error}"));
    let passed = setup.passed.unix().map_err(unusable)?;
    let group = config.gateway.socket_group.as_deref().map(Group::named).transpose()?;
    let own = Bound::new(&setup.home, setup.socket.as_deref(), group.as_ref(), passed)?;
    let path = own.path().to_owned();
    let mut claims = vec![own];
    let config = model_lists::with_prices(config).await;
    claims.extend(claim_for_xeno(&setup, group.as_ref())?);
    let (sockets, listen) = if setup.passed.has_tcp() {
        setup.passed.tcp().map_err(unusable)?
    } else {
        let sockets = listener::bind(&config.gateway.listen)
            .map_err(|error| ErrorCode::Unavailable.error(format!("can't listen on {error}")))?;
        (sockets, config.gateway.listen.clone())
    };

    let meters = Meters::default();
    meters.watch_arbiter("main");
    let Opened { store, log_writer, cluster } = opening::open(&config).await?;
    let log = log_writer.health();
    let now = clock::now();
    let since = UsageSince { day_start: day_start(now), month_start: month_start(now) };
    let spent = ask(&store, ReadSpent(since)).await??;
    let fetcher = Fetcher::new(Resolver::default(), client_config(None)?);
    let mcp = McpSupervisor::new(
        config.mcp.clone(),
        mcp_server::Surroundings {
            home: setup.home.clone(),
            keeper: setup.keeper.clone(),
            fetcher: fetcher.clone(),
            store: store.clone(),
            version: setup.version,
        },
        meters.clone(),
    );
    let (mcp_tools, known_mcp_tools, mcp) = (mcp.tools(), mcp.tools(), mcp.start());
    let shared_budgets = SharedBudgets::default();
    let providers = ProviderSupervisor::new(config.clone(), Some(CallLog::of(&store)), spent)?
        .with_purses(shared_budgets.clone())
        .with_meters(meters.clone())
        .start();
    ask(&store, WatchSpending(providers.clone().recipient())).await?;
    let embedder = Embedder::new(EmbedderSettings::of(&config), store.clone(), providers.clone()).start();
    let sandbox = SandboxSupervisor::new(config.plugins.clone(), setup.home.clone())
        .with_services(HostServices {
            fetcher: Some(fetcher.clone()),
            store: Some(store.clone()),
            embedder: Some(embedder.clone()),
        })
        .trusting(config.sandbox.trusted_keys.clone())
        .with_compiler(setup.compiler.clone());
    let tools = sandbox.tools();
    let sandbox = sandbox.start();
    let nodes = Nodes::default();
    let (connected, nodes) = (nodes.connected(), nodes.start());
    let (changes, overviews) = (Changes::default(), Overviews::default());
    let hub = Hub::new(hub::HubSetup {
        own: Some(hub::own(setup.version, &machine::host())),
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
    let grace = config.cluster.as_ref().map_or(Duration::MAX, |cluster| cluster.partition_grace);
    // It is known to be cut off after the first part of it.
    let patience = grace.saturating_sub(Duration::from_millis(STALL_MS));
    let tokens =
        Tokens::open(authority.clone(), store.clone(), hub.clone(), (log.clone(), patience)).await?.start();
    authority.may_listen(&listen)?;
    authority.secrets_suit(&listen)?;
    let devices = Devices::open(authority.clone(), store.clone(), hub.clone()).await?.start();
    let parent_sessions = ParentSessions::default();
    let agents = AgentSupervisor::open(agent_supervisor::AgentsSetup {
        rules: agent_rules(&config),
        store: store.clone(),
        hub: hub.clone(),
        log: log.clone(),
        shared_budgets,
        parent_sessions: parent_sessions.clone(),
        leads: cluster.is_none(),
    })
    .await?
    .start();
    let files = Files::open(files::FilesSetup {
        folder: setup.home.join("files"),
        store: store.clone(),
        quota_bytes: config.limits.file_quota_bytes,
        upload_life: files::UPLOAD_LIFE,
        attachment_roots: config.files.attachment_roots.clone(),
        elsewhere: cluster.as_ref().map(|cluster| cluster.files.clone()),
    })
    .await?
    .start();
    let agent_configs = AgentConfigs::read(&config)?;
    let catalog = agent_configs.catalog.clone();
    let agent_configs = Arc::new(Swappable::new(agent_configs));
    let arbiters = Arbiters::new(meters.clone());
    let channels = ChannelSupervisor::new(
        config.channels.clone(),
        channel::Surroundings {
            store: store.clone(),
            sandbox: sandbox.clone(),
            tools: tools.clone(),
            fetcher,
            agent_configs: agent_configs.clone(),
        },
        config.bus.clone(),
        bus::Surroundings {
            store: store.clone(),
            agent_configs: agent_configs.clone(),
            home: setup.home.clone(),
            arbiters: arbiters.clone(),
            payload_bytes_max: config.gateway.max_payload_bytes,
        },
        config.cluster.is_none(),
    );
    let (webhooks, channels) = (channels.webhooks(), channels.start());
    let scheduler = Scheduler::open(scheduler::SchedulerSetup {
        config: config.scheduler.clone(),
        home: setup.home.clone(),
        zone: clock::zone,
        store: store.clone(),
        hub: hub.clone(),
        channels: channels.clone().recipient(),
        log: log.clone(),
    })
    .await?
    .start();
    let admin = Admin::default().start();
    let approvals = Approvals::new(hub.clone().recipient());
    let lanes = cluster.as_ref().map_or_else(Lanes::default, |cluster| cluster.lanes.clone());
    let learner = Learner::new(store.clone(), providers.clone(), embedder.clone()).start();
    let sessions = SessionSupervisor::new(SessionsSetup {
        remote: cluster.as_ref().map(|cluster| cluster.remote.clone()),
        arbiters: arbiters.clone(),
        deps: Arc::new(SessionDeps {
            store: store.clone(),
            log_writer: log_writer.clone(),
            providers: providers.clone(),
            sandbox: sandbox.clone(),
            tools,
            nodes: nodes.clone(),
            connected,
            mcp: mcp_tools,
            jobs: scheduler.clone().recipient(),
            channels: channels.clone().recipient(),
            outboxes: channels.clone().recipient(),
            files: files.clone(),
            lanes: lanes.clone(),
            watchers: Watchers::default(),
            approvals: approvals.clone(),
            queued: Queued::default(),
            changes,
            agent_configs: agent_configs.clone(),
            meters: meters.clone(),
            learner: learner.clone(),
            embedder: embedder.clone(),
        }),
        agents: agents.clone(),
        parent_sessions,
        files: files.clone(),
    })
    .start();
    let condition = Arc::new(Swappable::new(None));
    let daemon = Daemon::new(daemon::DaemonSetup {
        hub: hub.clone(),
        store: store.clone(),
        sandbox: sandbox.clone(),
        providers: providers.clone(),
        embedder: embedder.clone(),
        sessions: sessions.clone(),
        lanes,
        agent_configs: agent_configs.clone(),
        log: setup.log.clone(),
        version: setup.version,
        condition: condition.clone(),
    })
    .start();
    let routes = Routes {
        sessions: sessions.clone().recipient(),
        approvals: sessions.clone().recipient(),
        memory: sessions.clone().recipient(),
        sub_agents: sessions.clone().recipient(),
        teams: agents.clone().recipient(),
        files: files.clone().recipient(),
        jobs: scheduler.clone().recipient(),
        devices: devices.clone().recipient(),
        tokens: tokens.clone().recipient(),
        nodes: nodes.clone().recipient(),
        plugins: sandbox.clone().recipient(),
        config: configuration.clone().recipient(),
        daemon: daemon.clone().recipient(),
        operator: admin.clone().recipient(),
    };

    let services = Services {
        terms: Swappable::new(terms(&config, catalog, setup.version, None)),
        authority: authority.clone(),
        routes,
        gone: sessions.clone().recipient(),
        devices: devices.clone().recipient(),
        join: hub.clone().recipient(),
        leave: hub.clone().recipient(),
        renew: hub.clone().recipient(),
        used: tokens.clone().recipient(),
        overviews,
        strangers: Arc::default(),
    };
    let services = Arc::new(services);
    let metrics = Metrics::new(metrics::Sources {
        meters,
        log_writer,
        approvals,
        actors: [
            ("provider_supervisor", providers.clone().recipient()),
            ("sandbox_supervisor", sandbox.clone().recipient()),
            ("mcp_supervisor", mcp.clone().recipient()),
            ("hub", hub.clone().recipient()),
            ("nodes", nodes.clone().recipient()),
            ("devices", devices.clone().recipient()),
            ("tokens", tokens.clone().recipient()),
            ("crew", agents.clone().recipient()),
            ("files", files.clone().recipient()),
            ("scheduler", scheduler.clone().recipient()),
            ("learner", learner.clone().recipient()),
            ("embedder", embedder.clone().recipient()),
            ("channel_supervisor", channels.clone().recipient()),
            ("admin", admin.clone().recipient()),
            ("store", store.clone().recipient()),
        ]
        .into_iter()
        .chain(cluster.as_ref().map(|cluster| ("cluster", cluster.observe.clone())))
        .collect(),
        version: setup.version,
        started: clock::wall(),
        scrapes: AtomicUsize::new(0),
    });
    let (listener, addresses) = Listener::open(ListenerSetup {
        sockets,
        unix: claims.iter_mut().filter_map(Bound::take_listener).collect(),
        services: services.clone(),
        protocols: PROTOCOLS.to_vec(),
        control_ui: config
            .openclaw
            .control_ui
            .clone()
            .map(|folder| ControlUi::new(folder, config.default_agent.clone(), setup.version.into())),
        unauthenticated: config.limits.unauthenticated,
        connections: config.limits.connections,
        workers: 0,
        arbiters: arbiters.clone(),
        log,
        condition,
        outlived: setup.passed.has_tcp(),
        metrics: Some(metrics),
        webhooks: Some(webhooks),
    })
    .map_err(|error| ErrorCode::Unavailable.error(format!("can't serve: {error}")))?;

    let unfinished = ask(&sessions, Recover).await??;
    if unfinished > 0 {
        tracing::info!(sessions = unfinished, "resuming the runs that the last stop interrupted");
    }
    let leads = cluster.is_none();
    ask(&scheduler, TakeFirings(leads)).await?;
    let begin = Begin { dispatch: sessions.clone().recipient(), gone: sessions.clone().recipient() };
    ask(&agents, begin.clone()).await?;
    ask(&scheduler, begin.clone()).await?;
    ask(&channels, begin).await?;
    let (fail, failed) = oneshot::channel();
    let running = Arc::new(Swappable::new(config.clone()));
    let (changed_by, chosen_by) = (configuration.clone(), providers.clone());
    let taking_part =
        cluster.clone().map(|cluster| (cluster, sessions.clone(), files.clone(), services.clone()));
    let gateway = Gateway {
        setup,
        config: running.clone(),
        addresses: addresses.clone(),
        agent_configs,
        services,
        store,
        cluster,
        sandbox,
        mcp,
        mcp_tools: known_mcp_tools,
        providers,
        nodes,
        hub,
        configuration,
        devices,
        agents,
        scheduler,
        channels,
        files,
        learner,
        embedder,
        tokens,
        sessions,
        daemon,
        listener: listener.clone(),
        arbiters: arbiters.clone(),
        admin,
        claims,
        default_models: DefaultModels::default(),
        failed: Some(fail),
        leads,
        draining: false,
        stopping: false,
    }
    .start();
    if let Some((cluster, sessions, files, spending)) = taking_part {
        let leader = gateway.downgrade().recipient();
        cluster
            .attend(Attend {
                sessions: sessions.clone().recipient(),
                orders: sessions.recipient(),
                files: files.recipient(),
                spending,
                leader,
            })
            .await;
    }
    // Not held by it, or neither would ever end.
    ask(&changed_by, AdoptBy(gateway.downgrade().recipient())).await?;
    ask(&chosen_by, TellOfDefaults(gateway.downgrade().recipient())).await?;
    ask(&gateway, Serve).await??;
    ask(&listener, listener::Ready(true)).await?;
    Ok(Running { gateway, addresses, socket: path, config: running, arbiters, failed })
}

/// Claims the home where xeno's clients look, which is theirs and not the daemon's. One that was not asked
/// for is no reason not to start.
fn claim_for_xeno(setup: &GatewaySetup, group: Option<&Group>) -> Result<Option<Bound>, Error> {
    if let Some(home) = &setup.config.xeno.home {
        return Bound::besides(&setup.home, home, group)
            .map_err(|error| Error { message: format!("xeno.home: {}", error.message), ..error });
    }
    let Some(home) = &setup.xeno_home else { return Ok(None) };
    Ok(Bound::besides(&setup.home, home, group).unwrap_or_else(|error| {
        let home = home.display();
        tracing::warn!(%error, "xeno's clients that look in their default_home {home} do not find this daemon");
        None
    }))
}

/// From here on operators are served.
#[derive(Message)]
#[rtype(result = "Result<(), Error>")]
struct Serve;

/// What a configuration says of connections. Rates that are as they were go on counting.
fn terms(config: &Config, catalog: Arc<Catalog>, version: &str, before: Option<&Terms>) -> Terms {
    let rates = before.map(|before| &before.rates).filter(|rates| rates.are_of(&config.limits));
    Terms {
        setup: dialect::DialectSetup {
            version: version.into(),
            subscriptions: config.limits.subscriptions,
            max_buffered_bytes: config.gateway.max_buffered_bytes,
            tick_interval: config.openclaw.tick_interval,
            heartbeat_interval: config.gateway.heartbeat_interval,
            heartbeat_timeout: config.gateway.heartbeat_timeout,
            catalog,
            started: before.map_or_else(clock::now, |before| before.setup.started),
            ..dialect::DialectSetup::default()
        },
        gateway: config.gateway.clone(),
        openclaw: config.openclaw.clone(),
        xeno: config.xeno.clone(),
        rates: rates
            .cloned()
            .unwrap_or_else(|| Arc::new(Rates::new(&config.limits, config.cluster.is_some()))),
    }
}

/// What a configuration says of agents that work for sessions.
fn agent_rules(config: &Config) -> clawmux_core::agents::registry::RegistrySettings {
    clawmux_core::agents::registry::RegistrySettings {
        running_max: config.limits.agents,
        depth_max: config.limits.agent_depth,
        agents: config.agents.keys().cloned().collect(),
        default: config.default_agent.clone(),
    }
}

impl Gateway {
    /// All children, as they are called.
    fn children(&self) -> Vec<(&'static str, Recipient<Observe>)> {
        let cluster = self.cluster.as_ref().map(|cluster| ("cluster", cluster.observe.clone()));
        let all = [
            ("store", self.store.clone().recipient()),
            ("sandbox supervisor", self.sandbox.clone().recipient()),
            ("mcp supervisor", self.mcp.clone().recipient()),
            ("provider supervisor", self.providers.clone().recipient()),
            ("nodes", self.nodes.clone().recipient()),
            ("hub", self.hub.clone().recipient()),
            ("configuration", self.configuration.clone().recipient()),
            ("devices", self.devices.clone().recipient()),
            ("crew", self.agents.clone().recipient()),
            ("scheduler", self.scheduler.clone().recipient()),
            ("channel supervisor", self.channels.clone().recipient()),
            ("files", self.files.clone().recipient()),
            ("learner", self.learner.clone().recipient()),
            ("embedder", self.embedder.clone().recipient()),
            ("tokens", self.tokens.clone().recipient()),
            ("session supervisor", self.sessions.clone().recipient()),
            ("daemon", self.daemon.clone().recipient()),
            ("admin", self.admin.clone().recipient()),
            ("listener", self.listener.clone().recipient()),
        ];
        all.into_iter().chain(cluster).collect()
    }

    /// Whether every child is there; a daemon that misses one can't go on.
    fn watch(&mut self) {
        if self.stopping {
            return;
        }
        for (child, _) in self.children().into_iter().filter(|(_, child)| !child.connected()) {
            let child = match child {
                "cluster" | "nodes" | "files" | "daemon" | "admin" => format!("{child} actor"),
                child => child.to_owned(),
            };
            if let Some(failed) = self.failed.take() {
                let _ = failed.send(
                    ErrorCode::Internal.error(format!("the {child} stopped unexpectedly: see the log")),
                );
            }
        }
    }
}

impl Actor for Gateway {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(WATCH, |gateway, _| gateway.watch());
        ctx.run_interval(model_lists::ASK_AGAIN, |gateway, ctx| gateway.list_models(ctx));
        ctx.run_later(model_lists::ASK_FIRST, |gateway, ctx| gateway.list_models(ctx));
    }
}

impl Handler<Serve> for Gateway {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, _: Serve, ctx: &mut Self::Context) -> Self::Result {
        let sources = operator::Sources {
            info: ctx.address().recipient(),
            drain: ctx.address().recipient(),
            actors: ctx.address().recipient(),
            sessions: self.sessions.clone().recipient(),
            connections: self.listener.clone().recipient(),
            follows: self.sessions.clone().recipient(),
            close: self.listener.clone().recipient(),
            budgets: self.providers.clone().recipient(),
            configuration: self.configuration.clone(),
            config: self.config.clone(),
            agent_configs: self.agent_configs.clone(),
            log_filter: self.setup.log_filter.clone(),
            sandbox: self.sandbox.clone(),
            mcp: self.mcp.clone(),
            mcp_tools: self.mcp_tools.clone(),
            channels: self.channels.clone(),
            cluster: self.cluster.clone(),
            store: self.store.clone(),
            embedder: self.embedder.clone(),
        };
        let admin = self.admin.clone();
        Box::pin(async move { ask(&admin, operator::Begin(sources)).await })
    }
}

impl Handler<GetInfo> for Gateway {
    type Result = ResponseFuture<Result<DaemonInfo, Error>>;

    fn handle(&mut self, _: GetInfo, _: &mut Self::Context) -> Self::Result {
        let listen: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let (home, store) = (self.setup.home.clone(), self.config.get().store.path.clone());
        let (daemon, is_draining) = (self.daemon.clone(), self.draining);
        Box::pin(async move {
            let status = ask(&daemon, StatusNow).await??;
            let uptime_ms = clock::now().millis_since(status.started);
            Ok(DaemonInfo { status, pid: std::process::id(), home, store, listen, is_draining, uptime_ms })
        })
    }
}

impl Handler<Drain> for Gateway {
    type Result = ResponseFuture<Result<Option<usize>, Error>>;

    fn handle(&mut self, Drain { on }: Drain, _: &mut Self::Context) -> Self::Result {
        if std::mem::replace(&mut self.draining, on) != on {
            tracing::info!("an operator asked to {}", if on { "drain" } else { "take work again" });
        }
        let takes_firings = self.leads && !on;
        let (listener, sessions) = (self.listener.clone(), self.sessions.clone());
        let (scheduler, daemon, cluster) =
            (self.scheduler.clone(), self.daemon.clone(), self.cluster.clone());
        Box::pin(async move {
            ask(&scheduler, TakeFirings(takes_firings)).await?;
            // Said first, so that nobody is sent here to be refused.
            ask(&listener, listener::Draining(on)).await?;
            let slots = match cluster {
                Some(cluster) => cluster.give_away(on).await,
                None => None,
            };
            // Whoever has the sessions takes them.
            ask(&sessions, TakePrompts(!on || slots.is_some())).await?;
            ask(&daemon, LookAtHealth).await?;
            Ok(slots)
        })
    }
}

impl Handler<Lead> for Gateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Lead(leads): Lead, _: &mut Self::Context) -> Self::Result {
        if std::mem::replace(&mut self.leads, leads) != leads {
            tracing::info!(
                leads,
                "cluster: agents, jobs, channels and the bus are done by one daemon for all"
            );
        }
        let (scheduler, channels, agents) =
            (self.scheduler.clone(), self.channels.clone(), self.agents.clone());
        let takes_firings = leads && !self.draining && !self.stopping;
        Box::pin(async move {
            // One that is gone has the daemon end.
            let _ = ask(&scheduler, TakeFirings(takes_firings)).await;
            let _ = channels.send(Lead(leads)).await;
            let _ = agents.send(Lead(leads)).await;
        })
    }
}

impl Handler<Pulse> for Gateway {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Pulse { within }: Pulse, _: &mut Self::Context) -> Self::Result {
        if self.stopping {
            return Box::pin(async { Ok(()) });
        }
        let (arbiters, store) = (self.arbiters.clone(), self.store.clone());
        Box::pin(async move {
            let log = tokio::time::timeout(within, store.send(store::Probe));
            let (blocked, log) = futures::join!(arbiters.blocked(within), log);
            let silent = |what: String| Err(ErrorCode::Timeout.error(what));
            match log {
                _ if blocked > 0 => silent(format!("{blocked} of {} arbiters are blocked", arbiters.len())),
                Err(_) => silent(format!("the store did not answer in {} ms", within.as_millis())),
                // A log that is gone is the daemon's failure, which is told otherwise.
                Ok(answer) => answer.unwrap_or(Ok(())),
            }
        })
    }
}

impl Handler<GetLoad> for Gateway {
    type Result = ResponseFuture<Result<Load, Error>>;

    fn handle(&mut self, _: GetLoad, _: &mut Self::Context) -> Self::Result {
        let (sessions, daemon) = (self.sessions.clone(), self.daemon.clone());
        let (draining, stopping) = (self.draining, self.stopping);
        Box::pin(async move {
            if stopping {
                return Err(ErrorCode::Unavailable.error("the daemon is stopping"));
            }
            let status = ask(&daemon, StatusNow).await??;
            let awake = ask(&sessions, Observe).await?.children;
            let running = awake.iter().filter(|session| session.state["run"].is_string()).count();
            Ok(Load { sessions: status.sessions, connections: status.connections, running, draining })
        })
    }
}

impl Handler<Observe> for Gateway {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let state =
            json!({ "version": self.setup.version, "draining": self.draining, "stopping": self.stopping });
        let observed = Observed::leaf("gateway", state);
        // All at once: one that is stuck takes no longer than its own patience.
        let asked = self.children().into_iter().map(|(name, child)| {
            let has_children = matches!(name, "sandbox supervisor" | "session supervisor");
            observe(name, child, if has_children { TIMEOUT_WITH_CHILDREN } else { TIMEOUT })
        });
        Box::pin(async move { observed.with_children(join_all(asked).await) })
    }
}

impl Handler<Reload> for Gateway {
    type Result = ResponseFuture<Result<Reloaded, Error>>;

    fn handle(&mut self, reload: Reload, _: &mut Self::Context) -> Self::Result {
        let configuration = self.configuration.clone();
        Box::pin(async move { ask(&configuration, reload).await? })
    }
}

impl Handler<Stop> for Gateway {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Stop, _: &mut Self::Context) -> Self::Result {
        if std::mem::replace(&mut self.stopping, true) {
            return Box::pin(async {});
        }
        let drain = self.config.get().gateway.drain_timeout;
        let (store, hub, cluster) = (self.store.clone(), self.hub.clone(), self.cluster.clone());
        let (sessions, listener) = (self.sessions.clone(), self.listener.clone());
        let files = self.files.clone();
        let (scheduler, mcp) = (self.scheduler.clone(), self.mcp.clone());
        let channels = self.channels.clone();
        let claims = std::mem::take(&mut self.claims);
        Box::pin(async move {
            let _ = ask(&scheduler, TakeFirings(false)).await;
            let _ = ask(&listener, listener::Ready(false)).await;
            if tokio::time::timeout(drain, sessions.send(DrainSessions)).await.is_err() {
                tracing::warn!(
                    drain_ms = drain.as_millis(),
                    "some runs did not finish in time: they continue at the next start"
                );
            }
            let _ = ask(&hub, Broadcast { notice: Notice::Draining, whose: Whose::All }).await;
            let close = async {
                let _ = listener.send(listener::Stop).await;
                let _ = channels.send(LandAll).await;
                let _ = mcp.send(EndAll).await;
                let _ = files.send(files::Stop).await;
                // Whoever writes has ended; what is on its way is written.
                if let Some(cluster) = cluster {
                    cluster.depart().await;
                }
                match store.send(store::Stop).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "the store was not closed cleanly"),
                    Err(_) => tracing::error!("the store was gone before it could be closed"),
                }
            };
            if tokio::time::timeout(STOP_GRACE, close).await.is_err() {
                tracing::warn!("not everything closed in time");
            }
            // Only now may another daemon have the home.
            drop(claims);
        })
    }
}
