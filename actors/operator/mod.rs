//! `Admin`: what only operators ask for, gathered from the actors that know or do it.
//!
//! Requests are answered side by side, each with its deadline: nothing here keeps anybody waiting. What operators
//! ask of sessions, devices, credentials, jobs and tool calls goes there as every client's requests do.

mod memories;
mod plugins;
mod sessions;
mod unattended;

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::config::Config;
use clawmux_core::config::catalog::AgentEntry;
use clawmux_core::daemon::operator::{
    self, AgentModels, BackupReport, CacheReport, Closed, Connections, DaemonInfo, DaemonStatus, Drained,
    McpApproved, McpRestarted, OperatorCommand, OperatorReply, Paired, Progress, ReadUsage, SessionPage,
    Settled, UsageReport,
};
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::principal::Principal;
use clawmux_core::provider::meter::{day_start, month_start};
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::tally::Spent;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::Scope;
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::plugin::UnloadPlugin;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::bus::{self, AskDeadLetters};
use crate::channel::Unsent;
use crate::channel_supervisor::{ChannelSupervisor, PairPeer, SettleUnsent, UnpairPeer};
use crate::configuration::{Change, Configuration, Reload};
use crate::embedder::Embedder;
use crate::in_cluster::{self, InCluster};
use crate::listener::CloseConnection;
use crate::mcp_supervisor::{AgreeToServer, McpSupervisor, McpTools, RestartServer};
use crate::provider_supervisor::BudgetStatus;
use crate::runtime::ask::{Typed, ask};
use crate::runtime::clock;
use crate::runtime::deliver::{Asker, Deliver};
use crate::runtime::dispatch::Request;
use crate::runtime::log_filter::LogFilter;
use crate::runtime::observe::{Observe, Observed};
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::session::AgentConfigs;
use crate::session_supervisor::Follows;
use crate::store::{Backup, ReadCaches, ReadMemoryTotals, ReadSizes, Store, UsageBy, UsageSince, exported};

pub use unattended::{read_without_daemon, skills_without_daemon, tokens_without_daemon};

/// Requests under way at once.
const RUNNING_MAX: usize = 64;
/// Requests that may wait.
const MAILBOX: usize = 1024;
/// How long a request may take that asks the daemon and its store.
const PROMPT: Duration = Duration::from_secs(10);
/// How long one may take that loads or calls a plugin: these have deadlines of their own.
const PLUGIN: Duration = Duration::from_secs(600);
/// How long a change of the configuration may take: plugins are loaded before anything is changed, and others may
/// come first.
const CONFIGURATION: Duration = Duration::from_secs(150);
/// How long a copy of the store may take; the store itself gives up a little earlier.
const BACKUP: Duration = Duration::from_secs(16 * 60);
/// How often it is told how far a copy is.
const PROGRESS: Duration = Duration::from_millis(500);
/// Of so many days it is looked how the store grew.
const GROWTH_DAYS: usize = 8;
/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// Who has a change of the configuration done, for the log.
const BY: &str = "the operator";

/// Asks whoever runs the daemon what it knows of itself.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<DaemonInfo, Error>")]
pub struct GetInfo;

/// Has the daemon take no new prompts while `on`, or take them again. What it accepted goes on in any case. In a cluster
/// where others are there it gives its sessions away instead, and passes prompts on to them; answers how many slots it
/// has left then.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Option<usize>, Error>")]
pub struct Drain {
    /// Whether it drains.
    pub on: bool,
}

/// Those who are asked; nothing is answered before.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Begin(pub Sources);

/// Those who are asked.
#[derive(Clone, Debug)]
pub struct Sources {
    /// What the daemon knows of itself.
    pub info: Recipient<GetInfo>,
    /// Whether it takes work.
    pub drain: Recipient<Drain>,
    /// All actors.
    pub actors: Recipient<Observe>,
    /// The sessions that are awake.
    pub sessions: Recipient<Observe>,
    /// Who is connected.
    pub connections: Recipient<Observe>,
    /// What each of them follows.
    pub follows: Recipient<Follows>,
    /// Who closes one of them.
    pub close: Recipient<CloseConnection>,
    /// What the budgets leave.
    pub budgets: Recipient<BudgetStatus>,
    /// The configuration files.
    pub configuration: Addr<Configuration>,
    /// What the daemon runs on.
    pub config: Arc<Swappable<Config>>,
    /// The agents, with the models that servers chose for those that name none.
    pub agent_configs: Arc<Swappable<AgentConfigs>>,
    /// What is written to the daemon's log; none where that is nobody's to change.
    pub log_filter: Option<Arc<dyn LogFilter>>,
    /// The plugins.
    pub sandbox: Addr<SandboxSupervisor>,
    /// The MCP servers.
    pub mcp: Addr<McpSupervisor>,
    /// Their tools.
    pub mcp_tools: McpTools,
    /// The channels.
    pub channels: Addr<ChannelSupervisor>,
    /// The cluster, where there is one.
    pub cluster: Option<InCluster>,
    /// The store.
    pub store: Addr<Store>,
    /// Looks for what is remembered.
    pub embedder: Addr<Embedder>,
}

/// Answers operators, from what its sources know.
#[derive(Debug, Default)]
pub struct Admin {
    sources: Option<Sources>,
    running: usize,
    requests_total: u64,
    failed_total: u64,
}

impl Actor for Admin {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Begin> for Admin {
    type Result = ();

    fn handle(&mut self, Begin(sources): Begin, _: &mut Self::Context) {
        self.sources = Some(sources);
    }
}

impl Handler<Request<OperatorCommand>> for Admin {
    type Result = ();

    fn handle(&mut self, request: Request<OperatorCommand>, ctx: &mut Self::Context) {
        let Request { command, principal, asker } = request;
        self.requests_total += 1;
        match self.admit(&principal) {
            Ok(sources) => {
                self.running += 1;
                let answered = async move {
                    let outcome = sources.answer_in_time(command, &principal, &asker).await;
                    let has_failed = outcome.is_err();
                    asker.reply(outcome.map(Reply::Operator));
                    has_failed
                };
                ctx.spawn(answered.into_actor(self).map(|has_failed, admin, _| {
                    admin.running -= 1;
                    admin.failed_total += u64::from(has_failed);
                }));
            }
            Err(error) => {
                self.failed_total += 1;
                asker.reply(Err(error));
            }
        }
    }
}

impl Admin {
    fn admit(&self, principal: &Principal) -> Result<Sources, Error> {
        if !principal.scopes.allows(Scope::Admin) {
            return Err(ErrorCode::Forbidden
                .error("forbidden: needs admin")
                .with(Detail::MissingScope(Scope::Admin)));
        }
        if self.running >= RUNNING_MAX {
            return Err(
                ErrorCode::Unavailable.error(format!("{RUNNING_MAX} requests are under way: try again"))
            );
        }
        self.sources.clone().ok_or_else(|| ErrorCode::Unavailable.error("the daemon is starting"))
    }
}

impl Handler<Observe> for Admin {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "admin",
            json!({
                "running": self.running,
                "requests_total": self.requests_total,
                "failed_total": self.failed_total,
            }),
        )
    }
}

impl Sources {
    /// The answer, for as long as it may take.
    async fn answer_in_time(
        &self,
        command: OperatorCommand,
        principal: &Principal,
        asker: &Asker,
    ) -> Result<OperatorReply, Error> {
        let name = command.name();
        let deadline = match command {
            OperatorCommand::LoadPlugin(_)
            | OperatorCommand::ReloadPlugin(_)
            | OperatorCommand::CallPlugin(_)
            | OperatorCommand::CallMcp(_) => PLUGIN,
            OperatorCommand::Change(_) | OperatorCommand::Reload(_) => CONFIGURATION,
            OperatorCommand::Backup(_) => BACKUP,
            _ => PROMPT,
        };
        let late =
            |_| ErrorCode::Timeout.error(format!("{name} took longer than {deadline:?}: is the disk stuck?"));
        timeout(deadline, self.answer(command, principal, asker)).await.map_err(late)?
    }

    async fn answer(
        &self,
        command: OperatorCommand,
        principal: &Principal,
        asker: &Asker,
    ) -> Result<OperatorReply, Error> {
        Ok(match command {
            OperatorCommand::Status(_) => OperatorReply::Status(Box::new(self.status().await?)),
            OperatorCommand::Connections(_) => {
                let listener = self.connections.send(Observe).await.map_err(gone)?.into();
                let follows = self.follows.send(Follows).await.map_err(gone)?;
                OperatorReply::Connections(Connections { listener, follows, now: clock::now() })
            }
            OperatorCommand::CloseConnection(asked) => {
                let peer = self.close.send(CloseConnection(asked.connection)).await.map_err(gone)?;
                OperatorReply::Closed(Closed { peer: peer.map(|peer| peer.to_string()) })
            }
            OperatorCommand::Actors(_) => {
                OperatorReply::Observed(self.actors.send(Observe).await.map_err(gone)?.into())
            }
            OperatorCommand::Plugins(_) => OperatorReply::Observed(ask(&self.sandbox, Observe).await?.into()),
            OperatorCommand::LoadPlugin(asked) => OperatorReply::Loaded(self.load_plugin(asked).await?),
            OperatorCommand::UnloadPlugin(operator::UnloadPlugin { name }) => {
                OperatorReply::Unloaded(ask(&self.sandbox, Typed(UnloadPlugin { name })).await??)
            }
            OperatorCommand::ReloadPlugin(reload) => {
                OperatorReply::Reloaded(self.sandbox.send(Typed(reload)).await.map_err(gone)??)
            }
            OperatorCommand::CallPlugin(asked) => OperatorReply::Called(self.call_plugin(asked).await?),
            OperatorCommand::Mcp(_) => OperatorReply::Observed(ask(&self.mcp, Observe).await?.into()),
            OperatorCommand::CallMcp(asked) => OperatorReply::Called(self.call_mcp_tool(asked).await?),
            OperatorCommand::RestartMcp(operator::RestartMcp { server }) => {
                ask(&self.mcp, RestartServer(server)).await??;
                OperatorReply::McpRestarted(McpRestarted)
            }
            OperatorCommand::ApproveMcp(operator::ApproveMcp { server, digest }) => {
                let tools = ask(&self.mcp, AgreeToServer { server, digest }).await??;
                OperatorReply::McpApproved(McpApproved { tools })
            }
            OperatorCommand::Channels(_) => {
                OperatorReply::Observed(ask(&self.channels, Observe).await?.into())
            }
            OperatorCommand::Bus(_) => {
                let observed = ask(&self.channels, Observe).await?;
                let found = observed.children.into_iter().find(|child| child.state.get("bus").is_some());
                OperatorReply::Observed(found.ok_or_else(bus::none)?.into())
            }
            OperatorCommand::DeadLetters(asked) => {
                OperatorReply::DeadLetters(ask(&self.channels, AskDeadLetters(asked)).await??)
            }
            OperatorCommand::Cluster(asked) => {
                let status = self.cluster()?.status.send(Typed(asked)).await.map_err(gone)??;
                OperatorReply::Cluster(status)
            }
            OperatorCommand::Slots(asked) => {
                OperatorReply::Slots(self.cluster()?.slots.send(Typed(asked)).await.map_err(gone)??)
            }
            OperatorCommand::HandOver(asked) => {
                let handed = self.cluster()?.hand_over.send(Typed(asked)).await.map_err(gone)??;
                OperatorReply::HandedOver(handed)
            }
            OperatorCommand::PairPeer(operator::PairPeer { channel, code }) => {
                let name = ask(&self.channels, PairPeer { channel, code }).await??;
                OperatorReply::Paired(Paired { name })
            }
            OperatorCommand::UnpairPeer(operator::UnpairPeer { channel, name }) => {
                ask(&self.channels, UnpairPeer { channel, name }).await??;
                OperatorReply::Settled(Settled)
            }
            OperatorCommand::SettleUnsent(operator::SettleUnsent { channel, answer, is_resent }) => {
                let unsent = if is_resent { Unsent::Resend(answer) } else { Unsent::Drop(answer) };
                ask(&self.channels, SettleUnsent { channel, unsent }).await??;
                OperatorReply::Settled(Settled)
            }
            OperatorCommand::Usage(asked) => {
                // With a session that has spent nothing, so that its limit is told as well.
                let budgets = self.budgets.send(BudgetStatus { session_spent: Some(Spent::default()) });
                let report = spent(&self.store, asked).await?;
                let (budgets, config) = (budgets.await.map_err(gone)?, self.config.get());
                let budgets_of_each = config.budgets.words_of_each();
                OperatorReply::Usage(UsageReport { budgets, budgets_of_each, ..report })
            }
            OperatorCommand::Caches(asked) => OperatorReply::Caches(caches(&self.store, asked).await?),
            OperatorCommand::Sessions(asked) => {
                let page = sessions::list(&self.store, asked).await?;
                let awake = Some(self.sessions.send(Observe).await.map_err(gone)?.into());
                OperatorReply::Sessions(SessionPage { awake, ..page })
            }
            OperatorCommand::FindSession(asked) => {
                OperatorReply::Found(sessions::find(&self.store, principal, &asked.key).await?)
            }
            OperatorCommand::Events(asked) => {
                OperatorReply::Events(sessions::events(&self.store, asked).await?)
            }
            OperatorCommand::Export(operator::ExportEvents { session, after }) => {
                OperatorReply::Events(exported(&self.store, &session, after).await?)
            }
            OperatorCommand::MemoryTotals(_) => {
                OperatorReply::MemoryTotals(ask(&self.store, ReadMemoryTotals).await??)
            }
            OperatorCommand::Memories(asked) => {
                OperatorReply::Memories(memories::list(&self.store, asked).await?)
            }
            OperatorCommand::SearchMemories(asked) => {
                OperatorReply::MemoriesFound(memories::search(&self.embedder, asked).await?)
            }
            OperatorCommand::ShowMemory(asked) => {
                OperatorReply::MemoryShown(memories::show(&self.store, asked).await?)
            }
            OperatorCommand::ForgetMemories(which) => {
                OperatorReply::MemoriesForgotten(memories::forget(&self.store, which).await?)
            }
            OperatorCommand::ExportMemories(asked) => {
                OperatorReply::MemoriesExported(memories::export(&self.store, asked).await?)
            }
            OperatorCommand::ImportMemories(asked) => {
                OperatorReply::MemoriesImported(memories::import((&self.store, &self.embedder), asked).await?)
            }
            OperatorCommand::Drain(operator::Drain { on }) => {
                let slots = self.drain.send(Drain { on }).await.map_err(gone)??;
                let sessions = self.sessions.send(Observe).await.map_err(gone)?.into();
                OperatorReply::Drained(Drained { sessions, slots })
            }
            OperatorCommand::Backup(asked) => {
                OperatorReply::Copied(self.back_up(Backup { to: asked.file }, asker).await?)
            }
            OperatorCommand::Explain(explain) => {
                OperatorReply::Explained(self.configuration.send(Typed(explain)).await.map_err(gone)??)
            }
            OperatorCommand::Change(operator::ChangeConfig { path, value }) => {
                let change = Change { path, value, by: BY.into() };
                OperatorReply::Changed(self.configuration.send(change).await.map_err(gone)??)
            }
            OperatorCommand::Reload(_) => {
                let reload = Reload { by: BY.into() };
                OperatorReply::Configured(self.configuration.send(reload).await.map_err(gone)??)
            }
            OperatorCommand::Log(asked) => OperatorReply::Log(self.set_log_filter(asked.filter)?),
        })
    }

    fn cluster(&self) -> Result<&InCluster, Error> {
        self.cluster.as_ref().ok_or_else(in_cluster::none)
    }

    async fn status(&self) -> Result<DaemonStatus, Error> {
        let actors = self.actors.send(Observe);
        // With a session that has spent nothing, so that its limit is told as well.
        let budgets = self.budgets.send(BudgetStatus { session_spent: Some(Spent::default()) });
        let info = self.info.send(GetInfo).await.map_err(gone)??;
        let actors = actors.await.map_err(gone)?.into();
        let budgets = budgets.await.map_err(gone)?;
        let sizes = ask(&self.store, ReadSizes { days: GROWTH_DAYS }).await.flatten().unwrap_or_default();
        let config = self.config.get();
        let models = |models: &[ModelRef]| models.iter().map(ToString::to_string).collect();
        let agent = |agent: &AgentEntry| AgentModels {
            agent: agent.id.clone(),
            provider: agent.model.provider.clone(),
            model: agent.model.to_string(),
            fallback: models(&agent.fallback),
            is_default: config.default_agent.as_ref() == Some(&agent.id),
        };
        let agents = self.agent_configs.get().catalog.agents.iter().map(agent).collect();
        let (store_bytes_max, sessions_max) = (config.limits.store_bytes, config.limits.sessions);
        let budgets_of_each = config.budgets.words_of_each();
        Ok(DaemonStatus {
            info,
            actors,
            budgets,
            budgets_of_each,
            agents,
            sizes,
            store_bytes_max,
            sessions_max,
        })
    }

    /// Copies the store; the copy goes on by itself, whoever asked for it may leave.
    async fn back_up(&self, backup: Backup, asker: &Asker) -> Result<BackupReport, Error> {
        let copy = self.store.send(backup);
        tokio::pin!(copy);
        let mut tick = interval(PROGRESS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                report = &mut copy => return report.map_err(gone)?,
                _ = tick.tick() => {
                    let observed = ask(&self.store, Observe).await?;
                    let pages_left = observed.state["backup_pages_left"].as_u64().unwrap_or(0);
                    if let Some(ticket) = asker.ticket() {
                        // Lost where nobody reads it as fast: the next one says more.
                        let progress = Deliver::Progress(ticket, Progress::Backup { pages_left });
                        let _ = asker.client().to.try_send(progress);
                    }
                }
            }
        }
    }

    fn set_log_filter(&self, filter: Option<String>) -> Result<operator::LogFilter, Error> {
        let Some(log) = &self.log_filter else {
            return Err(ErrorCode::Unavailable.error("the log of this daemon is not its own"));
        };
        if let Some(filter) = filter {
            log.set(&filter).map_err(|why| ErrorCode::InvalidRequest.error(why))?;
            tracing::info!(%filter, "by the operator: the log's filter, until a reload or restart");
        }
        let configured = self.config.get().log.filter.clone();
        Ok(operator::LogFilter { filter: log.directives(), configured })
    }
}

/// When the first of so many days began, today among them.
fn days_ago(days: u64) -> Timestamp {
    let before = days.saturating_sub(1).saturating_mul(DAY_MS);
    Timestamp::from_millis(day_start(clock::now()).as_millis().saturating_sub(before))
}

/// How caches were used.
async fn caches(store: &Addr<Store>, asked: operator::ReadCaches) -> Result<CacheReport, Error> {
    let operator::ReadCaches { days, limit } = asked;
    let since = days_ago(days);
    let mut shares = ask(store, ReadCaches { since, limit: limit + 1 }).await??;
    let has_more = shares.len() > limit;
    shares.truncate(limit);
    Ok(CacheReport { since, shares, has_more })
}

/// What was spent, without the budgets.
async fn spent(store: &Addr<Store>, asked: ReadUsage) -> Result<UsageReport, Error> {
    let ReadUsage { by, days, limit } = asked;
    let now = clock::now();
    let (today, since) = (day_start(now), days_ago(days));
    let totals = ask(store, UsageSince { day_start: today, month_start: month_start(now) });
    let shares = ask(store, UsageBy { since, group: by, limit: limit + 1 });
    let (totals, mut shares) = (totals.await??, shares.await??);
    let has_more = shares.len() > limit;
    shares.truncate(limit);
    Ok(UsageReport { totals, budgets: Vec::new(), budgets_of_each: Vec::new(), since, shares, has_more })
}

/// That who would answer is gone.
fn gone(_: MailboxError) -> Error {
    ErrorCode::Unavailable.error("the daemon is stopping")
}
