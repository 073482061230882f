//! `Session`: one conversation.
//!
//! The rules are in the core ([`clawmux_core::session`]): this actor takes what the rules say is to
//! be written, has it written, and only then lets it be seen and acted upon. At most one unit is
//! being written at a time; what comes meanwhile goes into the next one, so order needs no other
//! care and a burst costs one commit.
//!
//! Work is what follows from the state: asking the model or calling tools. It runs as futures in
//! this actor's context, on the arbiter of the connection that woke the session, and is ended by
//! dropping them; so an abort is heard at once, whatever is under way. Calls that wait for approval are
//! begun when that is in the log, each by itself; a timer decides about those that nobody decides about. An answer is read at most
//! one piece ahead of what is being written, which bounds what a fast provider can pile up.
//!
//! What a prompt says that waits is let go once it is in the log, where its owner has too much of that in
//! memory ([`Queued`]), and is read from there when its turn comes.
//!
//! When the log can't be written or a handler panics, the actor ends, and its followers go to the
//! supervisor ([`Fallen`]), which starts the session anew from the log.

mod approvals;
mod errand;
mod queued;
mod road;
mod roster;
#[cfg(test)]
mod tests;
mod watchers;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use actix::prelude::*;
use clawmux_core::announcement::{ChangeReason, SessionChange};
use clawmux_core::approval::{ApprovalReply, Pending, Toolbox, Verdict};
use clawmux_core::auth::{Owner, Principal};
use clawmux_core::config::ModelRef;
use clawmux_core::context::fit_soul;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::event::{Cause, Event, Logged, Outcome, Published, ToolCall, ToolResult, Usage};
use clawmux_core::exchanged::Exchanged;
use clawmux_core::follow::Wanted;
use clawmux_core::ids::{
    AgentId, ApprovalId, CallId, ConnectionId, PluginName, RunId, Seq, SessionKey, Ticket,
};
use clawmux_core::lane;
use clawmux_core::messenger;
use clawmux_core::node::NodeTool;
use clawmux_core::provider::{ChatRequest, Delta};
use clawmux_core::quota::{Kept, ROW_BYTES};
use clawmux_core::reply::Reply;
use clawmux_core::session::{Batch, Session as Conversation, Submission, Submitted, prompt_bytes};
use clawmux_core::session_reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Deleted, Detached, Injected, SessionReply, Stopped,
};
use clawmux_core::settings::Patch;
use clawmux_core::thinking::Thinking;
use clawmux_core::time::Timestamp;
use clawmux_core::turn::Work;
use futures::future::LocalBoxFuture;
use futures::stream::LocalBoxStream;
use futures::{FutureExt, StreamExt};
use serde_json::json;

use crate::ask::{ask, gone};
use crate::clock;
use crate::deliver::{Asker, More, WINDOW_BYTES};
use crate::files::Files;
use crate::hub::changes::Changes;
use crate::lane::{Lanes, Spot};
use crate::meters::{Awake, CallEnd, Meters, OTHER};
use crate::nodes::{CallNode, Nodes, Offer};
use crate::observe::{Observe, Observed};
use crate::provider::account::Account;
use crate::provider_supervisor::{Acquire, ProviderSupervisor};
use crate::sandbox_supervisor::{CallTool, Cancel, SandboxSupervisor, Tools};
use crate::session_supervisor::{Fallen, Held, Idle, SessionSupervisor};
use crate::store::{
    Append, AskedBy, Coming, Cut, Pen, ReadDispensable, ReadEvents, ReadPrompt, ReadRow, Store,
};

use errand::Errand;
use queued::Room;

pub use approvals::{Approvals, Found};
pub use queued::Queued;
pub use road::{Feeds, Road};
pub use roster::{Roster, SOUL_BYTES_MAX};
pub use watchers::{Watcher, Watchers};

/// The most of the log that one read of a cursor brings into memory, in bytes: a window full.
const CATCH_UP_BYTES: usize = WINDOW_BYTES;

/// Messages that may wait: as many requests as may wait for a session to wake, and as many more.
const MAILBOX: usize = 512;

/// How often a session looks whether it is needed.
const IDLE_CHECK: Duration = Duration::from_secs(60);

/// When a log that could not be read is tried again.
const RETRY: Duration = Duration::from_millis(250);

type Answer = LocalBoxStream<'static, Result<Vec<Delta>, Error>>;

/// Where an answer is while it is read: taken out, it ends at once, and its cost is known.
type Slot = Rc<RefCell<Option<Answer>>>;

/// An agent, as its sessions use it.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name.
    pub id: AgentId,
    /// Its soul.
    pub soul: Arc<str>,
    /// The models that answer for it, in the order they are asked in.
    pub models: Vec<ModelRef>,
    /// The most tokens of one answer.
    pub max_tokens: u32,
    /// The plugins it is offered as tools.
    pub tools: Vec<PluginName>,
    /// Of these, the ones whose calls wait for approval.
    pub gated: Vec<PluginName>,
    /// For how long they do.
    pub approval_timeout: Duration,
    /// The commands of nodes it is offered as tools, while their node is connected.
    pub node_tools: Vec<NodeTool>,
    /// Estimated tokens that soul and past turns may take together.
    pub context_tokens: usize,
}

impl Profile {
    /// All tools it may call, with those that are built in where they are offered.
    fn toolbox(&self, has_built_in: bool) -> Toolbox {
        let built_in = has_built_in.then(messenger::name);
        let nodes = self.node_tools.iter().map(|tool| tool.name.clone());
        let offered = self.plugins().chain(nodes).chain(built_in).collect();
        let is_plugin = |tool: &&PluginName| tool.as_str() != messenger::NAME;
        let gated = self.gated.iter().filter(is_plugin).cloned().collect();
        Toolbox { offered, gated, timeout: self.approval_timeout }
    }

    /// The plugins it may call: none takes the name of a tool that is built in.
    fn plugins(&self) -> impl Iterator<Item = PluginName> + '_ {
        self.tools.iter().filter(|tool| tool.as_str() != messenger::NAME).cloned()
    }
}

/// Those a session works with.
#[derive(Clone, Debug)]
pub struct Colleagues {
    /// Reads the log.
    pub store: Addr<Store>,
    /// Writes the log.
    pub pen: Pen,
    /// Asks models.
    pub providers: Addr<ProviderSupervisor>,
    /// Calls tools.
    pub sandbox: Addr<SandboxSupervisor>,
    /// Calls commands of nodes.
    pub nodes: Addr<Nodes>,
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
    pub roster: Arc<Exchanged<Roster>>,
    /// Where it is counted what is done.
    pub meters: Meters,
}

/// One conversation.
pub struct Session {
    conversation: Conversation,
    account: Account,
    /// What was configured when it was last looked.
    roster: Arc<Roster>,
    /// The agent as it was when the run under way began.
    profile: Arc<Profile>,
    /// The run that it was taken for.
    profiled: Option<RunId>,
    /// All tools it may call; and with those that are built in.
    tools: Toolbox,
    built_in_tools: Toolbox,
    /// The spots of its runs in their lanes.
    spots: HashMap<RunId, Spot>,
    colleagues: Colleagues,
    remains: Remains,
    /// It in the sums of all sessions.
    awake: Awake,
    /// What is told when the unit after the one being written is written.
    next: Vec<Answered>,
    /// Whether a unit is being written.
    writing: bool,
    /// The room of prompts that wait in memory.
    rooms: HashMap<RunId, Room>,
    /// The prompt that is being read whose turn has come.
    fetching: Option<RunId>,
    doing: Doing,
    /// The last number that may be seen.
    published: Seq,
    /// Which comings and goings of those who watch were seen.
    watchers_seen: u64,
    /// Messages taken from the supervisor.
    received: u64,
    draining: bool,
    /// Told to stop: sleeps as soon as it may.
    is_stopped: bool,
    /// Those who have it deleted once nothing of it is under way.
    deleting: Vec<Asker>,
    /// Nothing else is done any more.
    is_being_deleted: bool,
    retrying: bool,
    /// What decides about calls that nobody decides about and ends runs that take too long, and when.
    timer: Option<(Timestamp, SpawnHandle)>,
}

/// Something to tell once what was decided with it is in the log.
struct Answered {
    asker: Asker,
    reply: Answering,
    /// What the client follows from here on, after which number.
    follow: Option<(Wanted, Seq)>,
    /// A prompt's idempotency key, which the supervisor need no longer remember then.
    held: Option<Held>,
    /// What it adds to what the owner holds.
    coming: Option<Coming>,
}

/// What a request is answered with.
enum Answering {
    With(Reply),
    /// The session as lists show it, once what was decided is in the log.
    Row,
}

/// The work under way.
enum Doing {
    Nothing,
    /// Asking the model; nothing is being read while the last piece is written.
    Asking {
        run: RunId,
        step: usize,
        future: Option<SpawnHandle>,
        answer: Slot,
        /// What the session had spent before.
        before: Usage,
    },
    /// Calling tools.
    Acting {
        run: RunId,
        step: usize,
        calls: Vec<Making>,
    },
}

impl Doing {
    /// Whether something is under way that a session which stops waits for: not for approvals.
    fn is_busy(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Asking { .. } => true,
            Self::Acting { calls, .. } => calls.iter().any(|making| !making.is_over),
        }
    }
}

/// A call that was begun: it is not begun again.
struct Making {
    call: CallId,
    tool: PluginName,
    begun: Instant,
    future: SpawnHandle,
    cancel: Cancel,
    is_over: bool,
}

/// What is left of a session when it ends, however it ends: dropped last, it tells the supervisor.
struct Remains {
    key: SessionKey,
    feeds: Feeds,
    supervisor: Addr<SessionSupervisor>,
    /// Ended because it was told to: nothing is left to do.
    done: bool,
}

impl Drop for Remains {
    #[expect(clippy::disallowed_methods, reason = "a lifecycle message to the parent must not be lost")]
    fn drop(&mut self) {
        self.supervisor.do_send(Fallen {
            key: self.key.clone(),
            feeds: std::mem::take(&mut self.feeds),
            panicked: std::thread::panicking(),
            done: self.done,
        });
    }
}

/// A request that was found to be about this session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Routed {
    /// Who waits for the answer.
    pub asker: Asker,
    /// On whose behalf.
    pub principal: Principal,
    /// What is asked.
    pub order: Order,
    /// The idempotency key of a prompt, remembered until this is gone.
    pub held: Option<Held>,
}

/// What can be asked of one session.
#[derive(Debug)]
pub enum Order {
    /// Take a prompt.
    Submit {
        /// The prompt.
        submission: Submission,
        /// Whether its run is followed.
        follow: bool,
        /// Its spot, where it is in a lane.
        spot: Option<Spot>,
    },
    /// Answer with a run that is in the log already, and follow it from its prompt on.
    Follow {
        /// The run.
        run: RunId,
        /// The number of its prompt.
        seq: Seq,
        /// Whether it is followed.
        follow: bool,
    },
    /// Follow the whole session.
    Attach {
        /// After this number; none = from now on.
        after: Option<Seq>,
    },
    /// Follow it no longer.
    Detach {
        /// The ticket of the `Attach`.
        follow: Ticket,
    },
    /// End everything that is under way or waits, for this cause.
    Stop(Cause),
    /// The same, and take no more prompts until there is a new conversation.
    Close {
        /// Why.
        reason: String,
    },
    /// End a run.
    Abort {
        /// Which; none means the one under way.
        run: Option<RunId>,
    },
    /// Forget the conversation.
    Clear,
    /// Make the session with these settings, if it is not there.
    Create(Patch),
    /// Change its settings.
    Configure(Patch),
    /// Begin a new conversation.
    Reset,
    /// The same, without ending what is under way or waits.
    Renew,
    /// Forget the beginning of the conversation.
    Compact(Cut),
    /// Say something in the model's name.
    Inject {
        /// What.
        content: String,
        /// Under which id, which was not used before; none = a fresh one.
        id: Option<RunId>,
    },
    /// Decide about a call that waits for approval.
    Decide {
        /// Which.
        id: ApprovalId,
        /// What.
        verdict: Verdict,
    },
    /// Remove the session.
    Delete,
}

impl Order {
    /// Whether a session that is not there begins with it.
    pub fn begins(&self) -> bool {
        matches!(self, Self::Submit { .. } | Self::Create(_) | Self::Configure(_) | Self::Reset)
    }

    /// How many bytes it adds to the log, about; none where it ends something, or only looks.
    fn adds(&self) -> Option<usize> {
        match self {
            Self::Submit { submission, .. } => {
                Some(prompt_bytes(&submission.content, &submission.attachments))
            }
            Self::Inject { content, id: None } => Some(content.len()),
            Self::Create(_)
            | Self::Configure(_)
            | Self::Reset
            | Self::Renew
            | Self::Clear
            | Self::Compact(_) => Some(0),
            // What is put into a conversation under an id is a part of what was begun before.
            Self::Inject { .. }
            | Self::Follow { .. }
            | Self::Attach { .. }
            | Self::Detach { .. }
            | Self::Stop(_)
            | Self::Close { .. }
            | Self::Abort { .. }
            | Self::Decide { .. }
            | Self::Delete => None,
        }
    }

    /// Whether it is about what is in the session, so that there must be something.
    fn needs_something(&self) -> bool {
        matches!(
            self,
            Self::Clear
                | Self::Renew
                | Self::Stop(_)
                | Self::Close { .. }
                | Self::Compact(_)
                | Self::Inject { .. }
                | Self::Decide { .. }
                | Self::Delete
        )
    }

    /// Whether this principal may have it carried out in a session of this owner. Who may decide about a
    /// call is said by the call.
    fn is_for(&self, principal: &Principal, owner: &Owner) -> bool {
        matches!(self, Self::Decide { .. }) || principal.sees(owner)
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

/// The supervisor agrees that this session is not needed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Sleep;

impl Session {
    /// `conversation` is new or was read back and recovered, and has spent this; `spots` are those of its
    /// runs in lanes; `feeds` are the followers of the session's last incarnation.
    pub fn new(
        (conversation, spent): (Conversation, Usage),
        spots: Vec<(RunId, Spot)>,
        profile: Arc<Profile>,
        colleagues: Colleagues,
        supervisor: Addr<SessionSupervisor>,
        mut feeds: Feeds,
    ) -> Self {
        feeds.fall_behind();
        let key = conversation.key().clone();
        Self {
            published: conversation.head(),
            conversation,
            account: Account::new(spent),
            roster: colleagues.roster.get(),
            tools: profile.toolbox(false),
            built_in_tools: profile.toolbox(true),
            spots: spots.into_iter().collect(),
            profile,
            profiled: None,
            awake: colleagues.meters.awake(),
            colleagues,
            remains: Remains { key, feeds, supervisor, done: false },
            next: Vec::new(),
            writing: false,
            rooms: HashMap::new(),
            fetching: None,
            doing: Doing::Nothing,
            watchers_seen: 0,
            received: 0,
            draining: false,
            is_stopped: false,
            deleting: Vec::new(),
            is_being_deleted: false,
            retrying: false,
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
        if !self.writing {
            match self.conversation.take() {
                Some(batch) => self.write(batch, ctx),
                None => {
                    let answered = std::mem::take(&mut self.next);
                    self.tell(answered, ctx);
                }
            }
        }
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
            self.remains.done = true;
            return ctx.stop();
        }
        if std::mem::take(&mut self.is_stopped) {
            self.is_stopped = !self.may_sleep();
        }
        self.catch_up(ctx);
    }

    /// Goes over to what is configured now.
    fn look_at_roster(&mut self) {
        let now = self.colleagues.roster.get();
        if !Arc::ptr_eq(&now, &self.roster) {
            self.conversation.set_limits(now.limits.clone());
            self.roster = now;
        }
    }

    /// Takes the agent as it is now for a run that begins; none where there is no such agent any more.
    fn take_profile(&mut self, run: &RunId) -> Option<()> {
        if self.profiled.as_ref() != Some(run) {
            self.profile = self.roster.agents.get(&self.profile.id)?.clone();
            self.tools = self.profile.toolbox(false);
            self.built_in_tools = self.profile.toolbox(true);
            self.profiled = Some(run.clone());
        }
        Some(())
    }

    /// Tells the supervisor that it is not needed, where it is not. Says whether that is so.
    fn may_sleep(&mut self) -> bool {
        if !self.conversation.is_idle() || !self.is_written() {
            return false;
        }
        self.remains.feeds.forget_closed();
        if self.remains.feeds.is_unneeded() {
            let key = self.conversation.key().clone();
            // Lost where the supervisor is busy: it is said again later.
            let _ = self.remains.supervisor.try_send(Idle { key, received: self.received });
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
        !self.writing && self.conversation.is_taken()
    }

    fn write(&mut self, batch: Batch, ctx: &mut Context<Self>) {
        self.writing = true;
        let answered = std::mem::take(&mut self.next);
        let append = self.colleagues.pen.append(Append {
            session: self.conversation.key().clone(),
            events: batch.events.clone(),
            durable: batch.durable,
            reserve: batch.reserve,
        });
        let written = append.into_actor(self).map(move |result, session, ctx| {
            session.writing = false;
            match result {
                Ok(()) => session.written(batch.events, answered, ctx),
                Err(error) => session.fall(&error, answered, ctx),
            }
        });
        ctx.spawn(written);
    }

    /// In the log: may be seen.
    fn written(&mut self, events: Vec<Logged>, answered: Vec<Answered>, ctx: &mut Context<Self>) {
        self.tell(answered, ctx);
        let prompts = events.iter().filter(|logged| matches!(logged.event, Event::Prompted { .. }));
        prompts.filter_map(|logged| logged.run.as_ref()).for_each(|run| self.keep_waiting(run));
        // Before anybody can be told, so that who begins to watch and then looks misses none.
        events.iter().for_each(|logged| self.note_approval(logged));
        if let Some(first) = events.first() {
            self.let_watch(Seq(first.first_seq.0 - 1), ctx);
        }
        if let Some(reason) = events.iter().rev().find_map(ChangeReason::of) {
            let (session, owner) = (self.conversation.key().clone(), self.conversation.owner().clone());
            self.colleagues.changes.note(SessionChange { session, owner, reason });
        }
        for logged in events {
            self.published = logged.seq;
            self.remains.feeds.publish(self.conversation.key(), logged, self.roster.lag_bytes_max);
        }
        self.proceed(ctx);
    }

    /// A prompt is in the log that may have to wait: in memory, where there is room.
    fn keep_waiting(&mut self, run: &RunId) {
        let Some(bytes) = self.conversation.held_bytes(run) else { return };
        let (owner, each) = (self.conversation.owner(), self.roster.queued_bytes);
        match self.colleagues.queued.room(owner, bytes as u64, each) {
            Some(room) => drop(self.rooms.insert(run.clone(), room)),
            None => self.conversation.set_aside(run),
        }
    }

    /// Reads what the prompt says whose turn has come, where it waited in the store.
    fn fetch(&mut self, ctx: &mut Context<Self>) {
        let Some((run, seq)) = self.conversation.wanted() else { return };
        if self.fetching.as_ref() == Some(run) {
            return;
        }
        let (run, store) = (run.clone(), self.colleagues.store.clone());
        let read = ReadPrompt { session: self.conversation.key().clone(), seq };
        self.fetching = Some(run.clone());
        let read = async move { ask(&store, read).await.flatten() };
        ctx.spawn(read.into_actor(self).map(move |read, session, ctx| {
            let said = match read {
                Err(error) if error.is_retryable() => {
                    ctx.run_later(RETRY, |session, ctx| {
                        session.fetching = None;
                        session.proceed(ctx);
                    });
                    return;
                }
                Err(error) => Err(error),
                Ok(None) => Err(ErrorCode::Internal.error("the prompt is no longer in the store")),
                Ok(Some(said)) => Ok(said),
            };
            session.fetching = None;
            session.conversation.give_back(clock::now(), &run, said);
            session.proceed(ctx);
        }));
    }

    /// Sets aside what this adds to what the session's owner holds.
    fn admit(&self, order: &Order, is_first: bool) -> Result<Option<Coming>, Error> {
        let Some(bytes) = order.adds() else { return Ok(None) };
        if let Order::Submit { submission, .. } = order
            && self.conversation.has(submission)
        {
            return Ok(None);
        }
        let more = Kept { sessions: u64::from(is_first), bytes: bytes as u64 + ROW_BYTES };
        let holdings = self.colleagues.pen.holdings();
        holdings.admit(self.conversation.owner(), self.roster.quota, more).map(Some)
    }

    /// Tells that a quota is met, and which sessions could be deleted.
    fn refuse_over_quota(&self, asker: Asker, mut error: Error, ctx: &mut Context<Self>) {
        let (store, owner) = (self.colleagues.store.clone(), self.conversation.owner().clone());
        let is_about_bytes = matches!(error.detail, Some(Detail::Limit { name: "limits.store_bytes", .. }));
        let told = async move {
            let named = ask(&store, ReadDispensable { owner, is_about_bytes }).await.flatten();
            let named: Vec<String> = named
                .unwrap_or_default()
                .iter()
                .map(|one| match is_about_bytes {
                    true => format!("{} ({} bytes)", one.session, one.bytes),
                    false => one.session.to_string(),
                })
                .collect();
            if !named.is_empty() {
                let which = if is_about_bytes { "the largest are" } else { "unused for longest are" };
                error.message += &format!("; {which} {}", named.join(", "));
            }
            asker.reply(Err(error));
        };
        ctx.spawn(told.into_actor(self).map(|(), session, _| session.sleep_if_nothing_was()));
    }

    /// Enters where it is looked for what the log says about calls that wait for approval.
    fn note_approval(&self, logged: &Logged) {
        let Some(run) = &logged.run else { return };
        match &logged.event {
            Event::ApprovalAsked(asked) => self.colleagues.approvals.asked(Pending {
                id: ApprovalId::of(run, &asked.call.id),
                session: self.conversation.key().clone(),
                owner: self.conversation.owner().clone(),
                run: run.clone(),
                prompted_by: self.conversation.prompted_by(run).clone(),
                asked: asked.clone(),
            }),
            Event::ApprovalDecided(decided) => {
                let id = ApprovalId::of(run, &decided.call);
                self.colleagues.approvals.decided(&id, decided, logged.at);
            }
            _ => {}
        }
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

    /// Those who began to watch are told what comes after this number; those who ended it nothing.
    fn let_watch(&mut self, after: Seq, ctx: &mut Context<Self>) {
        let owner = self.conversation.owner();
        let Some(all) = self.colleagues.watchers.since(&mut self.watchers_seen, owner) else { return };
        let feeds = &mut self.remains.feeds;
        feeds.keep_watching(|connection, ticket| {
            all.iter().any(|watcher| (watcher.client.connection, watcher.ticket) == (connection, ticket))
        });
        for Watcher { client, ticket, is_for_calls, .. } in all {
            let wanted = if is_for_calls { Wanted::Calls } else { Wanted::Watch };
            if !feeds.has(client.connection, ticket) {
                let who = (client.connection, ticket);
                let road = || Road::new(client, ctx.address().recipient());
                feeds.follow(who, (wanted, after), self.published, road);
            }
        }
    }

    /// The log can't be written: the session in memory is ahead of it, so it goes back to it.
    fn fall(&mut self, error: &Error, answered: Vec<Answered>, ctx: &mut Context<Self>) {
        let session = self.conversation.key();
        if error.is_retryable() || error.code == ErrorCode::Conflict {
            // Everybody's trouble, which the log tells once; or a name that nobody may have.
            tracing::debug!(%session, %error, "the session starts again from the store");
        } else {
            tracing::warn!(%session, %error, "the session starts again from the store");
        }
        for answered in answered.into_iter().chain(std::mem::take(&mut self.next)) {
            answered.asker.reply(Err(error.clone()));
        }
        ctx.terminate();
    }

    fn tell(&mut self, answered: Vec<Answered>, ctx: &mut Context<Self>) {
        for Answered { asker, reply, follow, held, coming } in answered {
            let (client, ticket) = (asker.client().clone(), asker.ticket());
            match reply {
                Answering::With(reply) => asker.reply(Ok(reply)),
                Answering::Row => self.tell_row(asker, ctx),
            }
            if let (Some(wanted), Some(ticket)) = (follow, ticket) {
                let who = (client.connection, ticket);
                let road = || Road::new(client, ctx.address().recipient());
                self.remains.feeds.follow(who, wanted, self.published, road);
            }
            drop((held, coming));
        }
    }

    /// Answers with the session as lists show it.
    fn tell_row(&self, asker: Asker, ctx: &mut Context<Self>) {
        let (store, catalog) = (self.colleagues.store.clone(), self.roster.catalog.clone());
        let key = self.conversation.key().clone();
        ctx.spawn(actix::fut::wrap_future(async move {
            let row = ask(&store, ReadRow(key.clone())).await.flatten().and_then(|row| {
                let gone = || ErrorCode::NotFound.error(format!("no such session: {key}"));
                let mut row = row.ok_or_else(gone)?;
                row.model = catalog.answers(&key.agent(), &row.settings);
                Ok(Reply::Session(SessionReply::Settled(Box::new(row))))
            });
            asker.reply(row);
        }));
    }

    /// Removes the session from the log, now that nothing of it is under way.
    fn delete(&mut self, ctx: &mut Context<Self>) {
        let askers = std::mem::take(&mut self.deleting);
        // Nobody else may write meanwhile.
        self.writing = true;
        let deleted = self.colleagues.pen.delete(self.conversation.key().clone());
        ctx.spawn(deleted.into_actor(self).map(move |deleted, session, ctx| match deleted {
            Ok(()) => session.gone(askers, ctx),
            Err(error) => {
                for asker in askers {
                    asker.reply(Err(error.clone()));
                }
                session.fall(&error, Vec::new(), ctx);
            }
        }));
    }

    /// It is deleted: who follows it is told, and it ends.
    fn gone(&mut self, askers: Vec<Asker>, ctx: &mut Context<Self>) {
        let (now, key) = (clock::now(), self.conversation.key().clone());
        let mut feeds = std::mem::take(&mut self.remains.feeds);
        // Those who were not told yet how their run ended can't read it any more.
        feeds.end_runs(&key, |run| Logged {
            first_seq: Seq(u64::MAX),
            seq: Seq(u64::MAX),
            run: Some(run),
            at: now,
            event: Event::Ended { outcome: Outcome::Aborted(Cause::Asked), usage: Usage::default() },
        });
        let seq = self.conversation.head().next();
        let last = Logged { first_seq: seq, seq, run: None, at: now, event: Event::Deleted };
        if let Some(reason) = ChangeReason::of(&last) {
            let (session, owner) = (key.clone(), self.conversation.owner().clone());
            self.colleagues.changes.note(SessionChange { session, owner, reason });
        }
        feeds.end_all(&Published::new(key, last));
        for asker in askers {
            asker.reply(Ok(Reply::Session(SessionReply::Deleted(Deleted { found: true }))));
        }
        self.remains.done = true;
        ctx.stop();
    }

    /// Serves followers that fell behind from the log.
    fn catch_up(&mut self, ctx: &mut Context<Self>) {
        // What recovery decided is yet to be published, and in a new session there is nothing to watch.
        if !self.writing && !self.conversation.is_new() {
            self.let_watch(self.published, ctx);
        }
        for missing in self.remains.feeds.missing() {
            let as_of = self.published;
            let question = ReadEvents {
                session: self.conversation.key().clone(),
                after: missing.after,
                run: missing.run.clone(),
                max_bytes: CATCH_UP_BYTES,
            };
            let owner = self.conversation.owner().clone();
            let read = self.colleagues.store.send(AskedBy { owner, question });
            let caught = read.into_actor(self).map(move |result, session, ctx| {
                let events = result.unwrap_or_else(|_| Err(gone::<Store>()));
                let failed = events.is_err();
                let events = events.unwrap_or_default();
                let was_last = events.last().is_none_or(|logged| logged.seq >= as_of);
                let is_all = !failed && was_last && as_of == session.published;
                session.remains.feeds.caught(session.conversation.key(), &missing, events, is_all);
                if failed {
                    session.retry_later(ctx);
                } else {
                    session.catch_up(ctx);
                }
            });
            ctx.spawn(caught);
        }
    }

    fn retry_later(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.retrying, true) {
            ctx.run_later(RETRY, |session, ctx| {
                session.retrying = false;
                session.catch_up(ctx);
            });
        }
    }

    /// Ends work that no longer follows from the state: the run was aborted or has ended.
    fn end_stale_work(&mut self, ctx: &mut Context<Self>) {
        let wanted = match (&self.doing, self.conversation.work()) {
            (Doing::Nothing, _) => true,
            (Doing::Asking { run, step, .. }, Some((now, Work::Ask { step: at }))) => {
                run == now && *step == at
            }
            (Doing::Acting { run, step, .. }, Some((now, Work::Act { step: at, .. }))) => {
                run == now && *step == at
            }
            _ => false,
        };
        if !wanted {
            self.end_work(ctx);
        }
    }

    /// Ends what is under way. Gives what an answer that is cut off by it has cost.
    fn end_work(&mut self, ctx: &mut Context<Self>) -> Usage {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => Usage::default(),
            Doing::Asking { future, answer, before, .. } => {
                future.map(|future| ctx.cancel_future(future));
                drop(answer.take());
                self.account.spent_since(before)
            }
            Doing::Acting { calls, .. } => {
                let cut_off = calls.into_iter().filter(|making| !making.is_over);
                for Making { future, cancel, tool, begun, .. } in cut_off {
                    self.colleagues.meters.called(tool.as_str(), CallEnd::Cancelled, begun.elapsed());
                    cancel.cancel();
                    ctx.cancel_future(future);
                }
                Usage::default()
            }
        }
    }

    /// Does what the state says is to be done, where it is not under way.
    ///
    /// Asking the model need not wait until the prompt is written: it has no effect that could be
    /// done twice, and nothing that is heard gets ahead of the prompt in the log. Calling tools
    /// does wait: their intent, and the approval of those that need one, must be in the log before. The answer is read on while its last
    /// piece is being written, but no further.
    fn work(&mut self, ctx: &mut Context<Self>) {
        if let Doing::Asking { future: future @ None, answer, run, step, .. } = &mut self.doing {
            if self.conversation.is_taken() {
                *future = Some(listen(answer.clone(), run.clone(), *step, ctx));
            }
            return;
        }
        if self.draining {
            return;
        }
        match self.conversation.work() {
            Some((run, Work::Ask { step })) if matches!(self.doing, Doing::Nothing) => {
                let run = run.clone();
                match self.take_profile(&run) {
                    Some(()) => self.ask(run, step, ctx),
                    None => {
                        let why = format!("there is no agent named {} any more", self.profile.id);
                        self.unheard(&run, step, ErrorCode::NotFound.error(why), ctx);
                    }
                }
            }
            Some((run, Work::Act { step, calls })) if self.is_written() => {
                let run = run.clone();
                self.act(run, step, calls, ctx);
            }
            _ => {}
        }
    }

    /// Asks the model.
    fn ask(&mut self, run: RunId, step: usize, ctx: &mut Context<Self>) {
        let soul = fit_soul(&self.profile.soul, self.profile.context_tokens);
        let request = ChatRequest {
            model: String::new(),
            system: soul.to_owned(),
            messages: self.conversation.conversation(soul.len()),
            tools: Vec::new(),
            max_tokens: self.max_tokens(),
            thinking: self.conversation.thinking().unwrap_or(Thinking::Off),
        };
        let names: Vec<PluginName> = self.profile.plugins().collect();
        let granted = self.profile.node_tools.clone();
        let built_in = self.has_built_in_tools().then(messenger::spec);
        let Colleagues { providers, sandbox, nodes, .. } = self.colleagues.clone();
        let acquire = Acquire {
            session: self.conversation.key().clone(),
            run: run.clone(),
            agent: self.profile.id.clone(),
            models: self.profile.models.clone(),
            model: self.model(),
            request,
            account: self.account.clone(),
        };
        let open = async move {
            let mut acquire = acquire;
            if !names.is_empty() {
                acquire.request.tools = ask(&sandbox, Tools { names }).await?;
            }
            if !granted.is_empty() {
                acquire.request.tools.extend(ask(&nodes, Offer(granted)).await?);
            }
            acquire.request.tools.extend(built_in);
            let permit = providers.send(acquire).await.map_err(|_| gone::<ProviderSupervisor>())??;
            Ok(permit.open().boxed_local())
        };
        let answer = Slot::default();
        let (asked, slot) = (run.clone(), answer.clone());
        let opened =
            open.into_actor(self).map(move |opened: Result<Answer, Error>, session, ctx| match opened {
                Ok(answer) => {
                    slot.replace(Some(answer));
                    let listening = listen(slot, asked, step, ctx);
                    if let Doing::Asking { future, .. } = &mut session.doing {
                        *future = Some(listening);
                    }
                }
                Err(error) => session.unheard(&asked, step, error, ctx),
            });
        let (future, before) = (Some(ctx.spawn(opened)), self.account.spent());
        self.doing = Doing::Asking { run, step, future, answer, before };
    }

    /// The most tokens of one answer: as many as the prompt wants, and the agent may give.
    fn max_tokens(&self) -> u32 {
        let most = self.profile.max_tokens;
        self.conversation.max_tokens().map_or(most, |wanted| wanted.min(most))
    }

    /// The model that was chosen for the prompt or for the session.
    fn model(&self) -> Option<ModelRef> {
        let set = self.conversation.model()?;
        self.roster.catalog.find(self.profile.id.as_str(), set).ok()
    }

    /// A piece of the answer, or its end.
    fn heard(
        &mut self,
        run: &RunId,
        step: usize,
        piece: Option<Result<Vec<Delta>, Error>>,
        ctx: &mut Context<Self>,
    ) {
        match piece {
            Some(Ok(deltas)) => {
                if let Doing::Asking { future, .. } = &mut self.doing {
                    *future = None;
                }
                let tools = if self.has_built_in_tools() { &self.built_in_tools } else { &self.tools };
                self.conversation.said(clock::now(), run, step, deltas, tools);
                self.proceed(ctx);
            }
            Some(Err(error)) => self.unheard(run, step, error, ctx),
            None => self.unheard(run, step, ErrorCode::Provider.error("the answer was cut off"), ctx),
        }
    }

    /// The model can't be heard, or no more. The client is told too, but it is the operator who can
    /// do something about most causes.
    fn unheard(&mut self, run: &RunId, step: usize, error: Error, ctx: &mut Context<Self>) {
        // Quoted: it may repeat what a provider said.
        tracing::warn!(session = %self.conversation.key(), %run, error = ?error.message, "the run failed");
        let partial = self.end_work(ctx);
        self.conversation.failed(clock::now(), run, step, error, partial);
        self.proceed(ctx);
    }

    /// Calls tools: all of these that were not begun yet, at once.
    fn act(&mut self, run: RunId, step: usize, calls: Vec<ToolCall>, ctx: &mut Context<Self>) {
        let mut begun = match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Acting { calls, .. } => calls,
            Doing::Nothing | Doing::Asking { .. } => Vec::new(),
        };
        for call in calls {
            if begun.iter().any(|making| making.call == call.id) {
                continue;
            }
            let (id, cancel) = (call.id.clone(), Cancel::new());
            let (tool, at) = (self.offered(&call.name), Instant::now());
            let result = self.call(run.clone(), call, cancel.clone());
            let (of, returning) = (run.clone(), id.clone());
            let returned = result.into_actor(self).map(move |result, session, ctx| {
                if let Doing::Acting { calls, .. } = &mut session.doing {
                    for making in calls.iter_mut().filter(|making| making.call == returning) {
                        making.is_over = true;
                        let end = if result.is_error { CallEnd::Error } else { CallEnd::Ok };
                        session.colleagues.meters.called(making.tool.as_str(), end, making.begun.elapsed());
                    }
                }
                session.conversation.returned(clock::now(), &of, result);
                session.proceed(ctx);
            });
            let future = ctx.spawn(returned);
            begun.push(Making { call: id, tool, begun: at, future, cancel, is_over: false });
        }
        self.doing = Doing::Acting { run, step, calls: begun };
    }
}

impl Session {
    /// The name of a tool as it is counted: a model may call what it was never offered.
    fn offered(&self, tool: &PluginName) -> PluginName {
        let is_offered = self.tools.offered.contains(tool);
        if is_offered { tool.clone() } else { PluginName::from(OTHER) }
    }

    /// Whether the run under way is offered the tools that are built in.
    fn has_built_in_tools(&self) -> bool {
        self.conversation.lane().is_some_and(|of| of.as_str() == lane::XENO)
    }

    /// Begins a run that has a spot in a lane when its turn comes there.
    fn await_turn(&mut self, run: RunId, mut spot: Spot, ctx: &mut Context<Self>) {
        if spot.has_turn() {
            self.conversation.admit(clock::now(), &run);
        } else {
            let admitted = run.clone();
            let turn = spot.turn().into_actor(self);
            ctx.spawn(turn.map(move |turn, session, ctx| {
                if turn.is_ok() {
                    session.conversation.admit(clock::now(), &admitted);
                    session.proceed(ctx);
                }
            }));
        }
        self.spots.insert(run, spot);
    }

    /// Calls one tool: one that is built in, a granted command of a node, or a plugin.
    fn call(&self, run: RunId, call: ToolCall, cancel: Cancel) -> LocalBoxFuture<'static, ToolResult> {
        let (session, id) = (self.conversation.key().clone(), call.id.clone());
        let lost = |error: Error| ToolResult { call: id, content: error.message, is_error: true };
        if call.name.as_str() == messenger::NAME {
            let owner = self.conversation.owner().clone();
            let (files, supervisor) = (self.colleagues.files.clone(), self.remains.supervisor.clone());
            return Errand { run, call, owner, files, supervisor }.make().boxed_local();
        }
        match self.profile.node_tools.iter().find(|tool| tool.name == call.name).cloned() {
            Some(tool) => {
                let sent = self.colleagues.nodes.send(CallNode { session, run, tool, call });
                async move { sent.await.unwrap_or_else(|_| lost(gone::<Nodes>())) }.boxed_local()
            }
            None => {
                let sent = self.colleagues.sandbox.send(CallTool { session, run, call, cancel });
                async move { sent.await.unwrap_or_else(|_| lost(gone::<SandboxSupervisor>())) }.boxed_local()
            }
        }
    }
}

/// Waits for the next piece of an answer.
fn listen(answer: Slot, run: RunId, step: usize, ctx: &mut Context<Session>) -> SpawnHandle {
    let next = poll_fn(move |task| match &mut *answer.borrow_mut() {
        Some(answer) => answer.poll_next_unpin(task),
        // Taken out: this is being cancelled.
        None => Poll::Pending,
    });
    ctx.spawn(actix::fut::wrap_future(next).map(move |piece, session: &mut Session, ctx| {
        session.heard(&run, step, piece, ctx);
    }))
}

impl Actor for Session {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(IDLE_CHECK, |session, _| {
            session.may_sleep();
        });
        let from = ctx.address().recipient();
        self.remains.feeds.roads().for_each(|road| road.starts_at(from.clone()));
        for (run, spot) in std::mem::take(&mut self.spots) {
            self.await_turn(run, spot, ctx);
        }
        self.colleagues.approvals.woke(self.conversation.key(), self.conversation.pending());
        let waiting: Vec<RunId> = self.conversation.waiting().map(|(run, _)| run).collect();
        waiting.iter().for_each(|run| self.keep_waiting(run));
        // What recovery decided is written before anything else.
        self.proceed(ctx);
    }
}

impl Handler<Routed> for Session {
    type Result = ();

    fn handle(&mut self, routed: Routed, ctx: &mut Self::Context) {
        self.received += 1;
        self.look_at_roster();
        let Routed { asker, principal, order, held } = routed;
        let session = self.conversation.key().clone();
        let is_first = self.conversation.is_new();
        let is_there = !is_first || !order.needs_something();
        let seen = session.seen_by(&principal.owner);
        if !is_there || !order.is_for(&principal, self.conversation.owner()) {
            drop(held);
            return asker.reply(Err(ErrorCode::NotFound.error(format!("no such session: {seen}"))));
        }
        if self.is_being_deleted {
            drop(held);
            let busy = format!("session {seen} is being deleted: try again");
            return asker.reply(Err(ErrorCode::Unavailable.error(busy)));
        }
        let coming = match self.admit(&order, is_first) {
            Ok(coming) => coming,
            Err(error) => {
                drop(held);
                return self.refuse_over_quota(asker, error, ctx);
            }
        };
        let now = clock::now();
        let nothing = Answering::With(Reply::Session(SessionReply::Aborted(Aborted { run: None })));
        let mut answered = Answered { asker, reply: nothing, follow: None, held, coming };
        match order {
            Order::Submit { submission, follow, spot } => {
                match self.conversation.submit(now, submission) {
                    Ok(Submitted { run, seq, repeated }) => {
                        let mut ahead = 0;
                        let is_over = !self.conversation.is_open(&run);
                        if let Some(spot) = spot.filter(|_| !repeated) {
                            spot.ready();
                            ahead = spot.ahead() + self.conversation.ahead(&run);
                            self.await_turn(run.clone(), spot, ctx);
                        }
                        let wanted = (Wanted::Run(run.clone()), Seq(seq.0 - 1));
                        answered.follow = follow.then_some(wanted);
                        answered.reply = Answering::With(Reply::Session(SessionReply::Accepted(Accepted {
                            session,
                            run,
                            seq,
                            repeated,
                            is_over,
                            ahead,
                        })));
                    }
                    Err(error) => {
                        // First of all, so that whoever hears of it may use the key elsewhere.
                        drop(answered.held);
                        return answered.asker.reply(Err(error));
                    }
                }
            }
            Order::Follow { run, seq, follow } => {
                let wanted = (Wanted::Run(run.clone()), Seq(seq.0 - 1));
                answered.follow = follow.then_some(wanted);
                let is_over = !self.conversation.is_open(&run);
                let accepted = Accepted { session, run, seq, repeated: true, is_over, ahead: 0 };
                answered.reply = Answering::With(Reply::Session(SessionReply::Accepted(accepted)));
            }
            Order::Attach { after } => {
                let head = self.conversation.head();
                let (under_way, queued) = match after {
                    None => {
                        let under_way = self.conversation.under_way().map(Box::new);
                        (under_way, self.conversation.waiting().collect())
                    }
                    Some(_) => (None, Vec::new()),
                };
                let after = after.unwrap_or(head);
                if after > head {
                    return answered.asker.reply(Err(ErrorCode::InvalidRequest.error(format!(
                        "session {seen} has no number {after} yet, its last is {head}: attach after 0"
                    ))));
                }
                answered.follow = Some((Wanted::Session, after));
                let model = self.roster.catalog.answers(&session.agent(), self.conversation.settings());
                answered.reply = Answering::With(Reply::Session(SessionReply::Attached(Attached {
                    session,
                    after,
                    head,
                    under_way,
                    queued,
                    model,
                })));
            }
            Order::Detach { follow } => {
                let connection = answered.asker.client().connection;
                answered.reply = Answering::With(Reply::Session(SessionReply::Detached(Detached {
                    found: self.remains.feeds.unfollow(connection, follow),
                })));
            }
            Order::Stop(cause) => {
                let partial = self.end_work(ctx);
                let runs = self.conversation.stop(now, cause, partial);
                answered.reply =
                    Answering::With(Reply::Session(SessionReply::Stopped(Stopped { session, runs })));
                self.is_stopped = true;
            }
            Order::Close { reason } => {
                if let Err(error) = self.conversation.check_reason(&reason) {
                    return answered.asker.reply(Err(error));
                }
                let partial = self.end_work(ctx);
                let runs = self.conversation.close(now, &reason, partial);
                answered.reply =
                    Answering::With(Reply::Session(SessionReply::Stopped(Stopped { session, runs })));
                self.is_stopped = true;
            }
            Order::Abort { run } => {
                let under_way = run.as_ref().is_none_or(|run| self.conversation.is_running(run));
                let partial = if under_way { self.end_work(ctx) } else { Usage::default() };
                answered.reply = Answering::With(Reply::Session(SessionReply::Aborted(Aborted {
                    run: self.conversation.abort(now, run.as_ref(), partial),
                })));
            }
            Order::Clear => {
                self.conversation.clear(now);
                answered.reply = Answering::With(Reply::Session(SessionReply::Cleared(Cleared { session })));
            }
            Order::Renew => {
                self.conversation.renew(now);
                answered.reply = Answering::With(Reply::Session(SessionReply::Cleared(Cleared { session })));
            }
            Order::Create(_) if !is_first => answered.reply = Answering::Row,
            Order::Create(patch) | Order::Configure(patch) => {
                if let Err(error) = self.conversation.configure(now, &patch) {
                    return answered.asker.reply(Err(error));
                }
                answered.reply = Answering::Row;
            }
            Order::Reset => {
                let partial = self.end_work(ctx);
                if is_first {
                    // Nothing was said yet, so that it is enough to be there.
                    self.conversation.create(now);
                } else {
                    self.conversation.reset(now, partial);
                }
                answered.reply = Answering::Row;
            }
            Order::Compact(Cut { up_to, kept, forgotten }) => {
                self.conversation.compact(now, up_to);
                answered.reply =
                    Answering::With(Reply::Session(SessionReply::Compacted(Compacted { kept, forgotten })));
            }
            Order::Inject { content, id } => {
                let fresh = || RunId::new(format!("inject-{}", RunId::from_random(clock::random())));
                let id = id.unwrap_or_else(fresh);
                let seq = self.conversation.inject(now, id.clone(), content);
                answered.reply = Answering::With(Reply::Session(SessionReply::Injected(Injected {
                    message: id.to_string(),
                    seq,
                })));
            }
            Order::Decide { id, verdict } => {
                match self.conversation.decide(now, &id, verdict, &principal) {
                    Ok((run, decided)) => {
                        let reply = ApprovalReply::Decided { id, session, run, decided };
                        answered.reply = Answering::With(Reply::Approval(Box::new(reply)));
                    }
                    Err(error) => {
                        answered.asker.reply(Err(error));
                        // Its time may have come with this.
                        return self.proceed(ctx);
                    }
                }
            }
            Order::Delete => {
                let partial = self.end_work(ctx);
                self.conversation.stop(now, Cause::Asked, partial);
                self.deleting.push(answered.asker);
                self.is_being_deleted = true;
                return self.proceed(ctx);
            }
        }
        self.next.push(answered);
        self.proceed(ctx);
        self.sleep_if_nothing_was();
    }
}

impl Handler<More> for Session {
    type Result = ();

    fn handle(&mut self, more: More, ctx: &mut Self::Context) {
        self.remains.feeds.room(more.connection);
        self.catch_up(ctx);
    }
}

impl Handler<Forget> for Session {
    type Result = ();

    fn handle(&mut self, Forget(connection): Forget, _: &mut Self::Context) {
        self.remains.feeds.forget(connection);
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

impl Handler<Sleep> for Session {
    type Result = ();

    fn handle(&mut self, _: Sleep, ctx: &mut Self::Context) {
        self.remains.done = true;
        ctx.stop();
    }
}

impl Handler<Observe> for Session {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let doing = match &self.doing {
            Doing::Nothing => "nothing",
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
                "followers": self.remains.feeds.len(),
                "spent_tokens": self.account.spent().total(),
                "writing": self.writing,
            }),
        )
    }
}
