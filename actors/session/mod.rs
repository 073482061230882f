//! `Session`: one conversation.
//!
//! The rules are in the core ([`clawmux_core::conversation::session`]): this actor takes what the rules say is to
//! be written, has it written, and only then lets it be seen and acted upon. At most one unit is
//! being written at a time; what comes meanwhile goes into the next one, so order needs no other
//! care and a burst costs one commit. Text of a step under way is shown at once and written in pages: a token
//! does not meet the store's thread.
//!
//! Work is what follows from the state: asking the model or calling tools. It runs as futures in
//! this actor's context, on the arbiter of the connection that woke the session, and is ended by
//! dropping them; so an abort is heard at once, whatever is under way. Calls that wait for approval are
//! begun when that is in the log, each by itself; a timer decides about those that nobody decides about. An answer is read little
//! further than what is being written, and a page, which bounds what a fast provider can pile up.
//!
//! What a prompt says that waits is let go once it is in the log, where its owner has too much of that in
//! memory ([`Queued`]), and is read from there when its turn comes.
//!
//! When the log can't be written or a handler panics, the actor ends, and its followers go to the
//! supervisor ([`Report`]), which starts the session anew from the log.

mod agent_configs;
mod approvals;
mod audience;
mod built_in;
mod learning;
mod order;
mod preparing;
mod queued;
mod report;
mod sink;
mod soul;
#[cfg(test)]
mod tests;
mod watchers;
mod work;
mod writing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::follow::Wanted;
use clawmux_core::conversation::session::Session as Conversation;
use clawmux_core::ids::{ConnectionId, RunId, Seq};
use clawmux_core::principal::Principal;
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::schedule::job::JobCommand;
use clawmux_core::swappable::Swappable;
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use crate::embedder::Embedder;
use crate::files::Files;
use crate::hub::changes::Changes;
use crate::learner::Learner;
use crate::mcp_supervisor::McpTools;
use crate::nodes::{Connected, Nodes};
use crate::provider_supervisor::ProviderSupervisor;
use crate::provider_supervisor::account::Account;
use crate::runtime::clock;
use crate::runtime::deliver::{Asker, More};
use crate::runtime::dispatch::Request;
use crate::runtime::lane::{LaneGuard, Lanes};
use crate::runtime::meters::{Awake, Meters};
use crate::runtime::observe::{Observe, Observed};
use crate::runtime::say::{OutboxGrew, Say};
use crate::sandbox_supervisor::{SandboxSupervisor, Tools};
use crate::store::{Coming, LogWriter, Store};

pub(crate) use audience::{Audience, Serves, serve};
use queued::Room;
use work::Doing;
use writing::Writing;

pub use agent_configs::{AgentConfigs, Learning, Profile};
pub use approvals::{Approvals, Found};
pub use order::Routed;
pub use queued::Queued;
pub use report::{Down, Ending, HeldKey, KeyTaken, Report, Supervisor};
pub use sink::{ConnectionSink, Subscribers};
pub use soul::{SOUL_BYTES_MAX, Soul};
pub use watchers::{Watcher, Watchers};
pub(crate) use writing::read_row;

/// Messages that may wait: as many requests as may wait for a session to wake, and as many more.
const MAILBOX: usize = 512;

/// How often a session looks whether it is needed.
const IDLE_CHECK: Duration = Duration::from_secs(60);

/// When a log that could not be read is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// Those a session works with; all sessions share them.
#[derive(Debug)]
pub struct SessionDeps {
    /// Reads the log.
    pub store: Addr<Store>,
    /// Writes the log.
    pub log_writer: LogWriter,
    /// Asks models.
    pub providers: Addr<ProviderSupervisor>,
    /// Calls tools.
    pub sandbox: Addr<SandboxSupervisor>,
    /// The tools that plugins are.
    pub tools: Tools,
    /// Calls commands of nodes.
    pub nodes: Addr<Nodes>,
    /// The nodes there are.
    pub connected: Connected,
    /// The MCP servers there are, and their tools.
    pub mcp: McpTools,
    /// Takes what is asked about jobs.
    pub jobs: Recipient<Request<JobCommand>>,
    /// Says something to people over channels.
    pub channels: Recipient<Say>,
    /// Is told which channels have something to send.
    pub outboxes: Recipient<OutboxGrew>,
    /// Looks at files that are sent.
    pub files: Addr<Files>,
    /// Whose turn it is among the runs of several sessions.
    pub lanes: Lanes,
    /// Who watches all sessions.
    pub watchers: Watchers,
    /// Which calls wait for approval.
    pub approvals: Approvals,
    /// How much of prompts that wait is in memory.
    pub queued: Queued,
    /// Where it is noted what changed in lists.
    pub changes: Changes,
    /// The agents there are, and what else is configured of sessions.
    pub agent_configs: Arc<Swappable<AgentConfigs>>,
    /// Where it is counted what is done.
    pub meters: Meters,
    /// Learns from what was said.
    pub learner: Addr<Learner>,
    /// Looks for what is remembered.
    pub embedder: Addr<Embedder>,
}

/// One conversation.
pub struct Session {
    conversation: Conversation,
    account: Account,
    /// What was configured when it was last looked.
    agent_configs: Arc<AgentConfigs>,
    /// The agent as it was when the run under way began.
    profile: Arc<Profile>,
    /// Its soul, as it was then.
    soul: Arc<str>,
    /// The run that it was taken for.
    profiled: Option<RunId>,
    /// What the model is told of skills, and in which run; none while it is being looked.
    skills_told: Option<(RunId, Option<Arc<str>>)>,
    /// The run for which it was seen to what the model is shown.
    prepared: Option<RunId>,
    /// The spots of its runs in their lanes.
    spots: HashMap<RunId, LaneGuard>,
    deps: Arc<SessionDeps>,
    drop_guard: DropGuard,
    /// It in the sums of all sessions.
    awake: Awake,
    /// What is told when the unit after the one being written is written.
    next: Vec<Answered>,
    /// What is being written.
    writing: Writing,
    /// Whether the page is to be written though it is not full, and whether a timer runs that says so.
    is_page_due: bool,
    has_page_timer: bool,
    /// Those who wait until the log has what was shown up to a number.
    awaiting_page: Vec<(Seq, oneshot::Sender<()>)>,
    /// The room of prompts that wait in memory.
    rooms: HashMap<RunId, Room>,
    /// The prompt that is being read whose turn has come.
    fetching: Option<RunId>,
    doing: Doing,
    /// Messages taken from the supervisor.
    received: u64,
    draining: bool,
    /// Whether others go on with it once it has come to rest.
    is_moving: bool,
    /// Told to stop: sleeps as soon as it may.
    is_stopped: bool,
    /// Those who have it deleted once nothing of it is under way.
    deleting: Vec<Asker>,
    /// Nothing else is done any more.
    is_being_deleted: bool,
    /// What decides about calls that nobody decides about and ends runs that take too long, and when.
    timer: Option<(Timestamp, SpawnHandle)>,
}

/// Something to tell once what was decided with it is in the log.
struct Answered {
    asker: Asker,
    principal: Principal,
    /// None: the session as lists show it, once what was decided is in the log.
    reply: Option<Reply>,
    /// What the client follows from here on, after which number.
    follow: Option<(Wanted, Seq)>,
    /// A prompt's idempotency key, which the supervisor need no longer remember then.
    held: Option<HeldKey>,
    /// What it adds to what the owner holds.
    coming: Option<Coming>,
}

/// What is left of a session when it ends, however it ends: dropped last, it tells the supervisor.
struct DropGuard {
    audience: Audience,
    supervisor: Supervisor,
    ending: Ending,
}

impl Drop for DropGuard {
    #[expect(clippy::disallowed_methods, reason = "a lifecycle message to the parent must not be lost")]
    fn drop(&mut self) {
        self.supervisor.reports.do_send(Report::Down(Down {
            key: self.audience.key.clone(),
            subscribers: std::mem::take(&mut self.audience.subscribers),
            panicked: std::thread::panicking(),
            ending: self.ending,
        }));
    }
}

/// The connection is gone.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Forget(pub ConnectionId);

/// Begin nothing new, and end when nothing is under way.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Drain;

/// Begin nothing new, and end when nothing is under way: another daemon goes on.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct MoveAway;

/// End at once: another daemon has gone on already.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Lose;

/// Have what is shown written to the log; answered once that has it.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct WritePage;

/// The supervisor agrees that this session is not needed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Sleep;

impl Session {
    /// `conversation` is new or was read back and recovered, and has spent this; `spots` are those of its
    /// runs in lanes; `subscribers` are the followers of the session's last incarnation.
    pub fn new(
        (conversation, account): (Conversation, Account),
        spots: Vec<(RunId, LaneGuard)>,
        profile: Arc<Profile>,
        deps: Arc<SessionDeps>,
        supervisor: Supervisor,
        subscribers: Subscribers,
    ) -> Self {
        // What recovery decided is neither in the log yet nor published.
        let audience = Audience::new(conversation.key().clone(), subscribers, conversation.taken());
        Self {
            conversation,
            account,
            agent_configs: deps.agent_configs.get(),
            spots: spots.into_iter().collect(),
            soul: profile.soul.text(),
            profile,
            profiled: None,
            skills_told: None,
            prepared: None,
            awake: deps.meters.awake(),
            deps,
            drop_guard: DropGuard { audience, supervisor, ending: Ending::Fell },
            next: Vec::new(),
            writing: Writing::Nothing,
            is_page_due: false,
            has_page_timer: false,
            awaiting_page: Vec::new(),
            rooms: HashMap::new(),
            fetching: None,
            doing: Doing::Nothing,
            received: 0,
            draining: false,
            is_moving: false,
            is_stopped: false,
            deleting: Vec::new(),
            is_being_deleted: false,
            timer: None,
        }
    }

    /// Starts the session that `make` gives on an arbiter, with room for all that waited for it:
    /// a context would get its room only when it first runs, there, some time later.
    pub(crate) fn start_on(
        arbiter: &ArbiterHandle,
        make: impl FnOnce() -> Self + Send + 'static,
    ) -> Addr<Self> {
        let (sender, receiver) = actix::dev::channel::channel(MAILBOX);
        arbiter.spawn_fn(move || {
            Context::with_receiver(receiver).run(make());
        });
        Addr::new(sender)
    }

    /// Has what was decided written, and goes to work.
    fn proceed(&mut self, ctx: &mut Context<Self>) {
        self.look_at_roster();
        self.awake.set(self.conversation.running().is_some(), self.conversation.queued());
        self.end_stale_work(ctx);
        self.spots.retain(|run, _| self.conversation.is_open(run));
        self.rooms.retain(|run, _| self.conversation.held_bytes(run).is_some());
        self.let_see(ctx);
        if !self.deleting.is_empty() {
            if self.is_written() {
                self.delete(ctx);
            }
            return;
        }
        self.fetch(ctx);
        self.work(ctx);
        self.set_timer(ctx);
        if self.draining && self.is_written() && !self.doing.is_busy() {
            self.drop_guard.ending = if self.is_moving { Ending::Moved } else { Ending::Done };
            return ctx.stop();
        }
        if std::mem::take(&mut self.is_stopped) {
            self.is_stopped = !self.may_sleep();
        }
        self.catch_up(ctx);
    }

    /// Those who began to watch are told what comes after this number.
    fn let_watch(&mut self, after: Seq, ctx: &Context<Self>) {
        self.drop_guard.audience.let_watch(&self.deps, after, || ctx.address().recipient());
    }

    /// Goes over to what is configured now.
    fn look_at_roster(&mut self) {
        let now = self.deps.agent_configs.get();
        if !Arc::ptr_eq(&now, &self.agent_configs) {
            self.conversation.set_limits(now.limits.clone());
            self.agent_configs = now;
        }
    }

    /// Tells the supervisor that it is not needed, where it is not. Says whether that is so.
    fn may_sleep(&mut self) -> bool {
        if !self.conversation.is_idle() || !self.is_written() {
            return false;
        }
        self.drop_guard.audience.subscribers.forget_closed();
        if self.drop_guard.audience.subscribers.is_unneeded() {
            let key = self.conversation.key().clone();
            // Lost where the supervisor is busy: it is said again later.
            let idle = Report::Idle { key, received: self.received };
            let _ = self.drop_guard.supervisor.reports.try_send(idle);
        }
        true
    }

    /// A session in which nothing happened is kept for those who wait for it, and no longer.
    fn sleep_if_nothing_was(&mut self) {
        if self.conversation.is_new() {
            self.may_sleep();
        }
    }

    /// Whether all that was decided is in the log.
    fn is_written(&self) -> bool {
        self.writing == Writing::Nothing && self.conversation.is_taken()
    }

    /// Sees to it that time decides about calls that nobody decides about, and ends runs that take too
    /// long.
    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        let due = self.conversation.deadline().filter(|_| !self.draining);
        if self.timer.as_ref().map(|(at, _)| *at) == due {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.timer = due.map(|at| {
            let timer = ctx.run_later(at.since(clock::now()), |session, ctx| {
                session.timer = None;
                let now = clock::now();
                let is_overdue = session.conversation.is_overdue(now);
                let partial = if is_overdue { session.end_work(ctx) } else { Usage::default() };
                session.conversation.time_out(now, partial);
                session.conversation.expire(now);
                session.proceed(ctx);
            });
            (at, timer)
        });
    }
}

impl Serves for Session {
    fn audience(&mut self) -> (&mut Audience, &Arc<SessionDeps>) {
        (&mut self.drop_guard.audience, &self.deps)
    }

    fn catch_up(&mut self, ctx: &mut Context<Self>) {
        // What recovery decided is yet to be published, and in a new session there is nothing to watch.
        if self.writing == Writing::Nothing && !self.conversation.is_new() {
            self.let_watch(self.drop_guard.audience.published, ctx);
        }
        let Audience { subscribers, written, published, .. } = &mut self.drop_guard.audience;
        if subscribers.want(*written, *published) {
            self.want_page(ctx);
        }
        serve(self, ctx);
    }
}

impl Actor for Session {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(IDLE_CHECK, |session, _| {
            session.may_sleep();
        });
        let from = ctx.address().recipient();
        self.drop_guard.audience.subscribers.roads().for_each(|sink| sink.starts_at(from.clone()));
        for (run, lane_guard) in std::mem::take(&mut self.spots) {
            self.await_turn(run, lane_guard, ctx);
        }
        self.deps.approvals.woke(self.conversation.key(), self.conversation.pending());
        let waiting: Vec<RunId> = self.conversation.waiting().map(|(run, _)| run).collect();
        waiting.iter().for_each(|run| self.keep_waiting(run));
        // What recovery decided is written before anything else.
        self.proceed(ctx);
    }
}

impl Handler<More> for Session {
    type Result = ();

    fn handle(&mut self, more: More, ctx: &mut Self::Context) {
        self.drop_guard.audience.subscribers.room(more.connection);
        self.catch_up(ctx);
    }
}

impl Handler<Forget> for Session {
    type Result = ();

    fn handle(&mut self, Forget(connection): Forget, _: &mut Self::Context) {
        self.drop_guard.audience.subscribers.forget(connection);
        self.sleep_if_nothing_was();
    }
}

impl Handler<Drain> for Session {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        self.draining = true;
        self.conversation.drain();
        self.proceed(ctx);
    }
}

impl Handler<MoveAway> for Session {
    type Result = ();

    fn handle(&mut self, _: MoveAway, ctx: &mut Self::Context) {
        self.draining = true;
        self.is_moving = true;
        self.conversation.drain();
        self.proceed(ctx);
    }
}

impl Handler<Lose> for Session {
    type Result = ();

    fn handle(&mut self, _: Lose, ctx: &mut Self::Context) {
        self.drop_guard.ending = Ending::Moved;
        ctx.terminate();
    }
}

impl Handler<Sleep> for Session {
    type Result = ();

    fn handle(&mut self, _: Sleep, ctx: &mut Self::Context) {
        self.drop_guard.ending = Ending::Done;
        ctx.stop();
    }
}

impl Handler<WritePage> for Session {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: WritePage, ctx: &mut Self::Context) -> Self::Result {
        self.want_page(ctx);
        let audience = &self.drop_guard.audience;
        if audience.written >= audience.published {
            return Box::pin(std::future::ready(()));
        }
        let (written, wait) = oneshot::channel();
        self.awaiting_page.push((audience.published, written));
        Box::pin(async move {
            // The session falls: what it has shown is void.
            let _ = wait.await;
        })
    }
}

impl Handler<Observe> for Session {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let doing = match &self.doing {
            Doing::Nothing => "nothing",
            Doing::Preparing { .. } => "preparing what the model is shown",
            Doing::Asking { .. } => "asking the model",
            Doing::Acting { .. } if self.doing.is_busy() => "calling tools",
            Doing::Acting { .. } => "waiting for approval",
        };
        Observed::leaf(
            format!("session {}", self.conversation.key()),
            json!({
                "doing": doing,
                "run": self.conversation.running().map(RunId::as_str),
                "queued": self.conversation.queued(),
                "seq": self.conversation.head().0,
                "followers": self.drop_guard.audience.subscribers.len(),
                "spent_tokens": self.account.spent().tokens,
                "writing": self.writing != Writing::Nothing,
            }),
        )
    }
}
