//! `Daemon`: what is asked about the daemon as a whole.
//!
//! It owns nothing but the last report of how the parts are: it asks whoever knows, and puts the answers
//! together.

mod health;

use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::daemon::command::{DaemonCommand, DaemonReply, ListUsage, ReadLog, Status};
use clawmux_core::daemon::health::Condition;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::request::reply::Reply;
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use serde_json::json;

use crate::embedder::Embedder;
use crate::host::machine;
use crate::hub::{Connected, GetOverview, Hub, Tell};
use crate::provider_supervisor::ProviderSupervisor;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::daemon_log::DaemonLog;
use crate::runtime::deliver::Asker;
use crate::runtime::dispatch::Request;
use crate::runtime::lane::Lanes;
use crate::runtime::observe::{Observe, Observed};
use crate::sandbox_supervisor::{CountPlugins, SandboxSupervisor};
use crate::session::AgentConfigs;
use crate::session_supervisor::{CountSessions, SessionSupervisor};
use crate::skills;
use crate::store::{Store, UsageDays};

/// Requests that may wait, and what others tell.
const MAILBOX: usize = 4096;

/// What it is made with: those who know how the parts are.
pub struct DaemonSetup {
    /// Who is connected.
    pub hub: Addr<Hub>,
    /// The log of all sessions.
    pub store: Addr<Store>,
    /// The plugins.
    pub sandbox: Addr<SandboxSupervisor>,
    /// The providers of models.
    pub providers: Addr<ProviderSupervisor>,
    /// Who has vectors made of what is remembered.
    pub embedder: Addr<Embedder>,
    /// The sessions.
    pub sessions: Addr<SessionSupervisor>,
    /// The lanes in which runs are.
    pub lanes: Lanes,
    /// The agents and models there are.
    pub agent_configs: Arc<Swappable<AgentConfigs>>,
    /// The daemon's own log.
    pub log: Arc<DaemonLog>,
    /// Version of clawmux.
    pub version: &'static str,
    /// Where it is told how the daemon is, for those who must not wait for it.
    pub condition: Arc<Swappable<Option<Condition>>>,
}

/// What is asked about the daemon.
pub struct Daemon {
    setup: DaemonSetup,
    started: Timestamp,
    health: health::Health,
}

/// How the daemon is, in short.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Status, Error>")]
pub struct StatusNow;

/// Something changed about how the daemon is: looks at once, for those who are told of it.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct LookAtHealth;

impl Daemon {
    /// Ready to take requests.
    pub fn new(setup: DaemonSetup) -> Self {
        Self { setup, started: clock::now(), health: health::Health::default() }
    }

    fn status(&self) -> impl Future<Output = Result<Status, Error>> + 'static {
        let DaemonSetup { hub, sandbox, sessions, .. } = &self.setup;
        let (hub, sandbox, sessions) = (hub.clone(), sandbox.clone(), sessions.clone());
        let (version, started) = (self.setup.version.to_owned(), self.started);
        let condition = *self.setup.condition.get();
        async move {
            let plugins = ask(&sandbox, CountPlugins).await?;
            let connections = ask(&hub, Connected).await?;
            let sessions = ask(&sessions, CountSessions).await?.awake;
            Ok(Status { version, plugins, sessions, connections, started, condition })
        }
    }
}

/// Answers a request when others have answered.
fn answer(
    ctx: &mut Context<Daemon>,
    asker: Asker,
    reply: impl Future<Output = Result<DaemonReply, Error>> + 'static,
) {
    ctx.spawn(actix::fut::wrap_future(async move {
        asker.reply(reply.await.map(Reply::Daemon));
    }));
}

impl Actor for Daemon {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.look_at_health(ctx);
        ctx.run_interval(health::INTERVAL, Self::look_at_health);
    }
}

impl Handler<Request<DaemonCommand>> for Daemon {
    type Result = ();

    fn handle(&mut self, request: Request<DaemonCommand>, ctx: &mut Self::Context) {
        let Request { command, principal, asker } = request;
        match command {
            DaemonCommand::GetStatus(_) => {
                let status = self.status();
                answer(ctx, asker, async move { status.await.map(DaemonReply::Status) });
            }
            DaemonCommand::GetMachine(_) => answer(ctx, asker, async move {
                let lost = |_| ErrorCode::Internal.error("the machine could not be looked at");
                let machine = tokio::task::spawn_blocking(machine::look).await.map_err(lost)?;
                Ok(DaemonReply::Machine(Box::new(machine)))
            }),
            DaemonCommand::GetHealth(_) => self.tell_health(asker, ctx),
            // Where the hub is too busy, what it was sent says so by being dropped.
            DaemonCommand::GetOverview(_) => drop(self.setup.hub.try_send(GetOverview { asker, principal })),
            DaemonCommand::Tell(told) => drop(self.setup.hub.try_send(Tell { asker, told: *told })),
            DaemonCommand::GetCatalog(_) => {
                let catalog = self.setup.agent_configs.get().catalog.clone();
                asker.reply(Ok(Reply::Daemon(DaemonReply::Catalog(catalog))));
            }
            DaemonCommand::ListSkills(_) => {
                let agents = self.setup.agent_configs.get().skills();
                answer(ctx, asker, async move {
                    let list = skills::off_the_arbiter(move || skills::list(&agents)).await?;
                    let list = if principal.is_operator() { list } else { list.for_anybody() };
                    Ok(DaemonReply::Skills(Box::new(list)))
                });
            }
            DaemonCommand::ListLanes(_) => {
                asker.reply(Ok(Reply::Daemon(DaemonReply::Lanes(self.setup.lanes.rows()))));
            }
            DaemonCommand::ReadLog(ReadLog { cursor, lines_max, bytes_max }) => {
                let tail = self.setup.log.tail(cursor, lines_max, bytes_max);
                asker.reply(Ok(Reply::Daemon(DaemonReply::LogTail(tail))));
            }
            DaemonCommand::ListUsage(ListUsage { since }) => {
                let store = self.setup.store.clone();
                answer(ctx, asker, async move {
                    ask(&store, UsageDays { since }).await?.map(DaemonReply::UsageDays)
                });
            }
        }
    }
}

impl Handler<StatusNow> for Daemon {
    type Result = ResponseFuture<Result<Status, Error>>;

    fn handle(&mut self, _: StatusNow, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.status())
    }
}

impl Handler<LookAtHealth> for Daemon {
    type Result = ();

    fn handle(&mut self, _: LookAtHealth, ctx: &mut Self::Context) {
        self.look_at_health(ctx);
    }
}

impl Handler<Observe> for Daemon {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf("daemon", json!({ "asked_for_health": self.health.waiting() }))
    }
}
