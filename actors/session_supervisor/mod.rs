//! `SessionSupervisor`: from a request to the session it is about.
//!
//! Finds the session (by the router, or by its key), wakes it from the log when it is first named,
//! and forwards the request; answers what is about all sessions or the daemon. A session that ends
//! because of a panic or a log it could not write is started anew with its followers, a few times;
//! one that nobody needs is put to sleep. While the log can't be written, prompts are refused with
//! the reason, and sessions that fell over it are parked: it is no fault of theirs, so it counts as
//! no fall, and they go on by themselves once the log can be written, a few at a time.
//!
//! Holds no conversation and is not on the path of a token.

mod approvals;
mod elsewhere;
mod locate;
mod memories;
mod order;
mod reading;
mod requests;
mod retention;
mod waking;

use std::collections::{HashMap, HashSet, VecDeque, hash_map};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::agents::subagent::SubAgentCommand;
use clawmux_core::conversation::command::SessionCommand;
use clawmux_core::error::Error;
use clawmux_core::ids::{ConnectionId, Owner, SessionKey};
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use crate::agent_supervisor::{AgentSupervisor, ParentSessions};
use crate::files::Files;
use crate::host::heap::Peak;
use crate::mirror::Mirror;
use crate::mirror::remote::Remote;
use crate::runtime::arbiters::Arbiters;
use crate::runtime::ask::ask;
use crate::runtime::awaited::{Awaited, Awaits};
use crate::runtime::clock;
use crate::runtime::dispatch::{Gone, Request};
use crate::runtime::observe::{Observe, Observed, TIMEOUT, observe_passing};
use crate::session::{
    AgentConfigs, Down, Drain, Ending, Forget, Report, Routed, Session, SessionDeps, Sleep, Subscribers,
};
use crate::store::Unfinished;
use order::{Lookup, closed};
pub(crate) use reading::missing;
use waking::{UNPARK_DELAY_MIN, refuse_all};

/// How often is looked whether many sessions have gone to sleep, so that what they held is given
/// back to the system.
const PEAK_CHECK: Duration = Duration::from_secs(5);

/// What the supervisor is made with.
pub struct SessionsSetup {
    /// Where sessions live that no connection woke.
    pub arbiters: Arbiters,
    /// Whom sessions work with.
    pub deps: Arc<SessionDeps>,
    /// Who answers what is about agents that work for sessions, and their teams.
    pub agents: Addr<AgentSupervisor>,
    /// The sessions whose end it is to be told of.
    pub parent_sessions: ParentSessions,
    /// Who answers what is about files.
    pub files: Addr<Files>,
    /// The other daemons of the cluster; none where this one is alone.
    pub remote: Option<Arc<dyn Remote>>,
}

/// From a request to the session it is about.
pub struct SessionSupervisor {
    setup: SessionsSetup,
    sessions: HashMap<SessionKey, Entry>,
    keys: HashMap<(Owner, String), Lookup>,
    /// What requests wait for, and sessions that are read.
    awaited: Awaited<Self>,
    /// How many requests wait for their turn, because they or one before them wait for the log.
    waiting: usize,
    /// Ends with the turn of the last of them.
    last_turn: Option<oneshot::Receiver<()>>,
    /// Which sessions a connection may follow, so that its end concerns no other.
    followed: HashMap<ConnectionId, HashSet<SessionKey>>,
    recovering: VecDeque<SessionKey>,
    /// Whether it is waited for that the log can be written, for those that are parked.
    parking: bool,
    unpark_delay: Duration,
    unparked: Option<Timestamp>,
    /// Whether new prompts are refused, while what was accepted runs on.
    closed: bool,
    draining: bool,
    drained: Option<oneshot::Sender<()>>,
    peak: Peak,
    /// How often a session was started anew because it had panicked.
    restarts: u64,
    retention: retention::Retention,
    slots: elsewhere::Slots,
}

/// A session that is awake or about to be.
#[derive(Default)]
struct Entry {
    state: State,
    /// When it fell, lately.
    falls: VecDeque<Timestamp>,
    /// Whether a run of it may wait to be gone on with, though nobody names it.
    owed: bool,
    arbiter: Option<ArbiterHandle>,
}

enum State {
    /// Being read from the log; these wait for it.
    Waking { waiting: Vec<Routed>, subscribers: Subscribers },
    /// Fell because the store can't be written: it goes on once it can.
    Parked { subscribers: Subscribers },
    /// There; `sent` counts what it was sent.
    Awake { session: Addr<Session>, sent: u64 },
    /// Told to end, for another daemon goes on; these wait for that.
    Leaving { session: Addr<Session>, waiting: Vec<Routed> },
    /// Another daemon has it, and this stands in for it here.
    Elsewhere { mirror: Addr<Mirror>, sent: u64 },
}

impl Entry {
    /// Whether it is about to be awake: what it was woken for may come to nothing meanwhile, or come twice.
    fn is_waking(&self) -> bool {
        matches!(self.state, State::Waking { .. })
    }
}

impl State {
    /// The session, where it is here.
    fn session(&self) -> Option<&Addr<Session>> {
        match self {
            Self::Awake { session, .. } | Self::Leaving { session, .. } => Some(session),
            Self::Waking { .. } | Self::Elsewhere { .. } | Self::Parked { .. } => None,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::Waking { waiting: Vec::new(), subscribers: Subscribers::default() }
    }
}

/// How many sessions each connection follows, or has sent prompts to.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "HashMap<ConnectionId, usize>")]
pub struct Follows;

/// Wakes every session whose run the daemon's end cut off.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<usize, Error>")]
pub struct Recover;

/// Takes new prompts, or refuses them from here on; what was accepted runs to its end.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct TakePrompts(pub bool);

/// Begins nothing new; answered when every session has come to rest.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct DrainSessions;

/// How many sessions there are, and whether they take prompts.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Sessions")]
pub struct CountSessions;

/// The answer to [`CountSessions`].
#[derive(Clone, Copy, Debug)]
pub struct Sessions {
    /// Those that are awake, or about to be.
    pub awake: usize,
    /// Whether new prompts are taken.
    pub take_prompts: bool,
}

impl SessionSupervisor {
    /// Ready to take requests.
    pub fn new(setup: SessionsSetup) -> Self {
        Self {
            setup,
            sessions: HashMap::new(),
            keys: HashMap::new(),
            awaited: Awaited::default(),
            waiting: 0,
            last_turn: None,
            followed: HashMap::new(),
            recovering: VecDeque::new(),
            parking: false,
            unpark_delay: UNPARK_DELAY_MIN,
            unparked: None,
            closed: false,
            draining: false,
            drained: None,
            peak: Peak::new(clock::now()),
            restarts: 0,
            retention: retention::Retention::default(),
            slots: elsewhere::Slots::default(),
        }
    }

    /// The agents there are now, and what else is configured of sessions.
    fn agent_configs(&self) -> Arc<AgentConfigs> {
        self.setup.deps.agent_configs.get()
    }

    /// Why nothing can be written; none where it can.
    fn fault(&self) -> Option<Error> {
        self.setup.deps.log_writer.health().fault()
    }

    fn forget(&mut self, key: &SessionKey) {
        self.sessions.remove(key);
        self.check_drained();
    }

    fn check_drained(&mut self) {
        if self.draining
            && self.sessions.is_empty()
            && let Some(drained) = self.drained.take()
        {
            let _ = drained.send(());
        }
    }

    /// A session ended: it starts anew where it was not told to, or where requests wait for it.
    fn session_down(&mut self, down: Down, ctx: &mut Context<Self>) {
        let Down { key, subscribers, panicked, ending } = down;
        let is_ours = !self.is_lost(&key);
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        let waiting = match std::mem::take(&mut entry.state) {
            State::Waking { waiting, .. } | State::Leaving { waiting, .. } => waiting,
            State::Awake { .. } | State::Elsewhere { .. } | State::Parked { .. } => Vec::new(),
        };
        if panicked {
            self.restarts += 1;
            tracing::error!(session = %key, "the session panicked: it starts again from the store");
        }
        let is_needed = match ending {
            Ending::Fell | Ending::Outdone => true,
            Ending::Done => !waiting.is_empty(),
            Ending::Moved => {
                // Whoever may decide about a call of it is told how that goes on.
                let is_followed = !subscribers.is_empty() || self.setup.deps.approvals.wait_in(&key);
                // What is unfinished in it goes on here, where its slot came back meanwhile.
                !self.draining && (is_followed || !waiting.is_empty() || is_ours)
            }
        };
        if !is_needed {
            refuse_all(waiting, &closed());
            self.forget(&key);
            return self.look_whether_vacated();
        }
        entry.state = State::Waking { waiting, subscribers };
        entry.owed = matches!(ending, Ending::Fell | Ending::Outdone);
        if ending == Ending::Fell {
            self.rest(key, ctx)
        } else {
            self.wake(key)
        }
        self.look_whether_vacated();
    }

    /// Has a session sleep where nothing is on its way to it: all that was sent has been taken.
    fn let_sleep(&mut self, key: SessionKey, received: u64) {
        let is_told = match self.sessions.get(&key).map(|entry| &entry.state) {
            Some(State::Awake { session, sent }) if *sent == received => session.try_send(Sleep).is_ok(),
            Some(State::Elsewhere { mirror, sent }) if *sent == received => mirror.try_send(Sleep).is_ok(),
            _ => false,
        };
        if is_told {
            // What comes from here on waits for its end and wakes it anew.
            self.sessions.insert(key, Entry::default());
        }
    }

    /// One prompt less is on its way with this idempotency key.
    fn release_key(&mut self, owner: Owner, key: String) {
        if let hash_map::Entry::Occupied(mut lookup) = self.keys.entry((owner, key))
            && let Lookup::Sent { held, .. } = lookup.get_mut()
        {
            *held -= 1;
            if *held == 0 {
                lookup.remove();
            }
        }
    }
}

fn drain<A: Actor<Context = Context<A>> + Handler<Drain>>(child: &Addr<A>) {
    tell(child, Drain);
}

#[expect(clippy::disallowed_methods, reason = "a lifecycle message to a child must not be lost")]
fn tell<A, M>(child: &Addr<A>, news: M)
where
    A: Actor<Context = Context<A>> + Handler<M>,
    M: Message<Result = ()> + Send + 'static,
{
    child.do_send(news);
}

impl Actor for SessionSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
        Self::begin_to_wait(ctx);
        ctx.run_interval(PEAK_CHECK, |supervisor, _| {
            supervisor.peak.now(supervisor.sessions.len(), clock::now());
        });
        ctx.run_interval(retention::INTERVAL, Self::delete_unused);
    }
}

impl Awaits for SessionSupervisor {
    fn awaited(&mut self) -> &mut Awaited<Self> {
        &mut self.awaited
    }
}

/// Does something for a request. A panic in there ends that request (its asker is told by being dropped),
/// not the supervisor of all sessions.
fn caught(handle: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handle)).is_err() {
        tracing::error!("a request panicked");
    }
}

impl Handler<Request<SessionCommand>> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, mut request: Request<SessionCommand>, ctx: &mut Self::Context) {
        caught(|| {
            if let Err(error) = request.command.settle(&request.principal) {
                return request.asker.reply(Err(error));
            }
            let target = request.command.target_mut().cloned();
            self.locate(target, request, Self::dispatch, ctx);
        });
    }
}

impl Handler<Request<SubAgentCommand>> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, mut request: Request<SubAgentCommand>, ctx: &mut Self::Context) {
        caught(|| {
            let target = request.command.target_mut().cloned();
            // Where the agent supervisor is too busy, the request says so by being dropped.
            let hand_on = |supervisor: &mut Self, located, _: &mut _| {
                drop(supervisor.setup.agents.try_send(located));
            };
            self.locate(target, request, hand_on, ctx);
        });
    }
}

impl Handler<Report> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, report: Report, ctx: &mut Self::Context) {
        match report {
            Report::Down(down) => self.session_down(down, ctx),
            Report::Idle { key, received } => self.let_sleep(key, received),
            Report::KeySettled { owner, key } => self.release_key(owner, key),
            Report::KeyTaken(taken) => self.key_taken(taken),
        }
    }
}

impl Handler<Gone> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, Gone { connection }: Gone, _: &mut Self::Context) {
        self.setup.deps.watchers.remove(connection, None);
        for key in self.followed.remove(&connection).unwrap_or_default() {
            match self.sessions.get_mut(&key).map(|entry| &mut entry.state) {
                Some(State::Awake { session, .. } | State::Leaving { session, .. }) => {
                    // Lost where the session is busy: it finds the connection closed by itself.
                    let _ = session.try_send(Forget(connection));
                }
                Some(State::Elsewhere { mirror, .. }) => {
                    let _ = mirror.try_send(Forget(connection));
                }
                Some(State::Waking { subscribers, .. } | State::Parked { subscribers }) => {
                    subscribers.forget(connection)
                }
                None => {}
            }
        }
    }
}

impl Handler<Follows> for SessionSupervisor {
    type Result = MessageResult<Follows>;

    fn handle(&mut self, _: Follows, _: &mut Self::Context) -> Self::Result {
        let count =
            |keys: &HashSet<SessionKey>| keys.iter().filter(|key| self.sessions.contains_key(*key)).count();
        MessageResult(self.followed.iter().map(|(connection, keys)| (*connection, count(keys))).collect())
    }
}

impl Handler<Recover> for SessionSupervisor {
    type Result = ResponseActFuture<Self, Result<usize, Error>>;

    fn handle(&mut self, _: Recover, _: &mut Self::Context) -> Self::Result {
        if self.setup.remote.is_some() {
            // It is done slot by slot, as they are gained.
            return Box::pin(actix::fut::ready(Ok(0)));
        }
        let store = self.setup.deps.store.clone();
        let unfinished = async move { ask(&store, Unfinished).await.flatten() };
        Box::pin(
            unfinished.into_actor(self).map(|unfinished, supervisor, _| Ok(supervisor.recover(unfinished?))),
        )
    }
}

impl Handler<TakePrompts> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, TakePrompts(take): TakePrompts, _: &mut Self::Context) {
        self.closed = !take;
    }
}

impl Handler<DrainSessions> for SessionSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: DrainSessions, _: &mut Self::Context) -> Self::Result {
        self.draining = true;
        self.recovering.clear();
        for key in self.parked() {
            self.forget(&key);
        }
        let (drained, done) = oneshot::channel();
        self.drained = Some(drained);
        for entry in self.sessions.values() {
            match &entry.state {
                State::Awake { session, .. } | State::Leaving { session, .. } => drain(session),
                State::Elsewhere { mirror, .. } => drain(mirror),
                State::Waking { .. } | State::Parked { .. } => {}
            }
        }
        self.check_drained();
        Box::pin(async move {
            let _ = done.await;
        })
    }
}

impl Handler<CountSessions> for SessionSupervisor {
    type Result = MessageResult<CountSessions>;

    fn handle(&mut self, _: CountSessions, _: &mut Self::Context) -> Self::Result {
        let take_prompts = !(self.closed || self.draining);
        MessageResult(Sessions { awake: self.sessions.len(), take_prompts })
    }
}

impl Handler<Observe> for SessionSupervisor {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let awake = self.sessions.values().filter(|entry| entry.state.session().is_some()).count();
        let parked = self.parked().len();
        let state = json!({
            "awake": awake,
            "waking": self.sessions.values().filter(|entry| entry.is_waking()).count(),
            "idempotency_keys_open": self.keys.len(),
            "requests_waiting": self.waiting,
            "recovering": self.recovering.len(),
            "parked": parked,
            "watchers": self.setup.deps.watchers.len(),
            "in_lanes": self.setup.deps.lanes.len(),
            "approvals_waiting": self.setup.deps.approvals.len(),
            "takes_prompts": !(self.closed || self.draining),
            "draining": self.draining,
            "restarts_total": self.restarts,
        });
        let observed = Observed::leaf("session supervisor", state);
        let asked = self.sessions.iter().filter_map(|(key, entry)| {
            let actor: Recipient<Observe> = match &entry.state {
                State::Awake { session, .. } | State::Leaving { session, .. } => session.clone().into(),
                State::Elsewhere { mirror, .. } => mirror.clone().into(),
                State::Waking { .. } | State::Parked { .. } => return None,
            };
            Some(observe_passing(format!("session {key}"), actor, TIMEOUT))
        });
        let asked = futures::future::join_all(asked);
        Box::pin(async move { observed.with_children(asked.await.into_iter().flatten().collect()) })
    }
}

/// The address of a session, for tests that reach into it.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "Option<Addr<Session>>")]
pub(crate) struct Visit {
    pub(crate) key: SessionKey,
}

#[cfg(test)]
impl Handler<Visit> for SessionSupervisor {
    type Result = Option<Addr<Session>>;

    fn handle(&mut self, Visit { key }: Visit, _: &mut Self::Context) -> Self::Result {
        self.sessions.get(&key)?.state.session().cloned()
    }
}
