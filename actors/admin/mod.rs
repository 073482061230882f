//! What operators ask of the daemon: the methods `admin.*` behind [`Command::Operate`].
//!
//! How they are spoken is the dialect's ([`clawmux_core::dialect::admin`]), and they mean the same on the
//! Unix socket and on `/admin`. [`Admin`] executes them side by side, each with its deadline.
//!
//! | file | what it is |
//! |---|---|
//! | `bound`, `group` | the claim on a home and its socket, and who may use it |
//! | `methods` | the table of methods |
//! | `params` | parameters, read and refused in words |
//! | `asked` | requests of methods to sessions |
//! | `status`, `sessions`, `session`, `connections`, `actors`, `plugins`, `usage`, `devices`, `approvals`, `tokens`, `jobs`, `memory`, `drain`, `backup`, `config`, `log` | the methods, a group a file |
//! | `activity` | what runs |
//! | `unattended` | those that only read, where no daemon runs |
//!
//! What needs a session goes to it the way every client's requests do, under the principal that asks,
//! who is an admin.

mod activity;
mod actors;
mod approvals;
mod asked;
mod backup;
mod bound;
mod config;
mod connections;
mod devices;
mod drain;
mod group;
mod jobs;
mod log;
mod memory;
mod methods;
mod params;
mod plugins;
mod session;
mod sessions;
mod status;
mod tokens;
mod unattended;
mod usage;

use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::auth::{Principal, Scope};
use clawmux_core::config::Config;
use clawmux_core::dialect::admin::event;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::exchanged::Exchanged;
use clawmux_core::operate::{Operate, Progress};
use clawmux_core::reply::Reply;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::asked::Asked;
use self::methods::{Call, Method};
use crate::configuration::Configuration;
use crate::deliver::{Asker, Deliver};
use crate::dispatch::{Request, Routes};
use crate::listener::CloseConnection;
use crate::log_filter::LogFilter;
use crate::observe::{Observe, Observed};
use crate::provider_supervisor::BudgetStatus;
use crate::sandbox_supervisor::SandboxSupervisor;
use crate::session_supervisor::{Follows, Gone};
use crate::store::Store;

pub use bound::{Bound, socket_path};
pub use group::Group;
pub use methods::reference;
pub use status::LOCKED_OUT;
pub use tokens::without_daemon as tokens_without_daemon;
pub use unattended::read_without_daemon;

/// Methods under way at once.
const RUNNING_MAX: usize = 64;
/// Deliveries that may wait: a few for each method under way.
const MAILBOX: usize = 1024;
/// Progress of a method that may wait; more is left out.
const PROGRESS_MAX: usize = 4;

/// Asks whoever runs the daemon how it is. The answer is an object with `version`, `pid`, `home`,
/// `store` (the log's file), `listen` (a list of `ADDR:PORT`, as bound), `draining`, `started_ms`, `uptime_ms`, `sessions`,
/// `connections`, `plugins`, `credentials_expiring` and `devices_waiting` (counts); more keys may follow.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Value, Error>")]
pub struct AdminStatus;

/// Has the daemon take no new prompts while `on`, or take them again. What it accepted goes on in
/// any case.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct AdminDrain {
    /// Whether it drains.
    pub on: bool,
}

/// Those the methods reach; nothing is executed before.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Begin(pub Daemon);

/// Those the methods reach.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// How the daemon is.
    pub status: Recipient<AdminStatus>,
    /// Whether it takes work.
    pub drain: Recipient<AdminDrain>,
    /// Where requests go.
    pub routes: Routes,
    /// Who is told that a connection is gone.
    pub gone: Recipient<Gone>,
    /// What runs.
    pub sessions: Recipient<Observe>,
    /// The configuration files.
    pub configuration: Addr<Configuration>,
    /// What the daemon runs on.
    pub config: Arc<Exchanged<Config>>,
    /// What is written to the daemon's log; none where that is nobody's to change.
    pub log_filter: Option<Arc<dyn LogFilter>>,
    /// All actors.
    pub actors: Recipient<Observe>,
    /// Who is connected.
    pub connections: Recipient<Observe>,
    /// What each of them follows.
    pub follows: Recipient<Follows>,
    /// Who closes one of them.
    pub close: Recipient<CloseConnection>,
    /// What the budgets leave.
    pub budgets: Recipient<BudgetStatus>,
    /// The plugins.
    pub sandbox: Addr<SandboxSupervisor>,
    /// The log.
    pub store: Addr<Store>,
}

/// The actor.
#[derive(Debug, Default)]
pub struct Admin {
    daemon: Option<Arc<Daemon>>,
    asked: Asked,
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

    fn handle(&mut self, Begin(daemon): Begin, _: &mut Self::Context) {
        self.daemon = Some(Arc::new(daemon));
    }
}

impl Handler<Request<Operate>> for Admin {
    type Result = ();

    fn handle(
        &mut self,
        Request { command: operate, principal, asker }: Request<Operate>,
        ctx: &mut Self::Context,
    ) {
        self.requests_total += 1;
        match self.call(operate, principal, &asker, ctx) {
            Ok((method, call)) => {
                self.running += 1;
                let answered = async move {
                    let outcome = run(method, call).await;
                    let failed = outcome.is_err();
                    asker.reply(outcome.map(Reply::Operated));
                    failed
                };
                ctx.spawn(answered.into_actor(self).map(|failed, admin, _| {
                    admin.running -= 1;
                    admin.failed_total += u64::from(failed);
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
    fn call(
        &self,
        operate: Operate,
        principal: Principal,
        asker: &Asker,
        ctx: &mut Context<Self>,
    ) -> Result<(&'static Method, Call), Error> {
        if !principal.scopes.allows(Scope::Admin) {
            return Err(ErrorCode::Forbidden
                .error("forbidden: needs admin")
                .with(Detail::MissingScope(Scope::Admin)));
        }
        let method = methods::find(&operate.method)?;
        let daemon =
            self.daemon.clone().ok_or_else(|| ErrorCode::Unavailable.error("the daemon is starting"))?;
        if self.running >= RUNNING_MAX {
            return Err(
                ErrorCode::Unavailable.error(format!("{RUNNING_MAX} requests are under way: try again"))
            );
        }
        let call = Call {
            daemon,
            admin: ctx.address(),
            principal,
            params: operate.params,
            progress: progress_of(asker, ctx),
        };
        Ok((method, call))
    }
}

/// Where a method tells how far it is, for as long as it goes on; what does not fit on the way is lost,
/// and the next says more.
fn progress_of(asker: &Asker, ctx: &mut Context<Admin>) -> mpsc::Sender<(&'static str, Value)> {
    let (progress, mut told) = mpsc::channel(PROGRESS_MAX);
    if let Some(ticket) = asker.ticket() {
        let to = asker.client().to.clone();
        ctx.spawn(actix::fut::wrap_future(async move {
            while let Some((name, params)) = told.recv().await {
                let _ = to.try_send(Deliver::Progress(ticket, Progress { name, params }));
            }
        }));
    }
    progress
}

/// A method, for as long as it may take.
async fn run(method: &Method, call: Call) -> Result<Value, Error> {
    match timeout(method.deadline, (method.run)(call)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let (name, deadline) = (method.name, method.deadline);
            Err(ErrorCode::Timeout.error(format!("{name} took longer than {deadline:?}: is the disk stuck?")))
        }
    }
}

impl Handler<Observe> for Admin {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "admin",
            json!({
                "running": self.running,
                "waiting": self.asked.waiting(),
                "requests_total": self.requests_total,
                "failed_total": self.failed_total,
            }),
        )
    }
}
