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
mod health;
mod memories;
mod order;
pub(crate) mod requests;
mod retention;
mod waking;

use std::collections::{HashMap, HashSet, VecDeque, hash_map};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::auth::{Owner, Principal};
use clawmux_core::command::Command;
use clawmux_core::daemon::Status;
use clawmux_core::error::Error;
use clawmux_core::ids::{ConnectionId, SessionKey, Ticket};
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use crate::arbiters::Arbiters;
use crate::ask::ask;
use crate::clock;
use crate::configuration::Configuration;
use crate::crew::{Crew, Kin};
use crate::daemon_log::DaemonLog;
use crate::deliver::{Asker, Client};
use crate::devices::Manage;
use crate::files::Files;
use crate::hub::{Connected, Hub};
use crate::memory::Peak;
use crate::observe::{Observe, Observed, PATIENCE, observe_passing};
use crate::operator;
use crate::sandbox_supervisor::CountPlugins;
use crate::scheduler;
use crate::session::{Colleagues, Drain, Feeds, Forget, Roster, Routed, Session, Sleep};
use crate::store::Unfinished;
use crate::tokens;
pub use order::Held;
use order::Lookup;
use waking::{RECOVERING_AT_ONCE, UNPARK_DELAY_MIN};

/// How often is looked whether many sessions have gone to sleep, so that what they held is given
/// back to the system.
const PEAK_CHECK: Duration = Duration::from_secs(5);

/// What the supervisor is made with.
pub struct Setup {
    /// Where sessions live that no connection woke.
    pub arbiters: Arbiters,
    /// Whom sessions work with.
    pub colleagues: Colleagues,
    /// Who is connected.
    pub hub: Addr<Hub>,
    /// The configuration files.
    pub configuration: Addr<Configuration>,
    /// The daemon's own log.
    pub log: Arc<DaemonLog>,
    /// Who answers what is about devices.
    pub devices: Recipient<Manage>,
    /// Who answers what is about agents that work for sessions, and their teams.
    pub crew: Addr<Crew>,
    /// The sessions whose end it is to be told of.
    pub kin: Kin,
    /// Who answers what is about files.
    pub files: Addr<Files>,
    /// Who answers what is about jobs.
    pub scheduler: Recipient<scheduler::Direct>,
    /// Who answers what is about credentials of the store.
    pub tokens: Recipient<tokens::Manage>,
    /// Who answers what only operators ask.
    pub admin: Recipient<operator::Operate>,
    /// Version of clawmux.
    pub version: &'static str,
}

/// From a request to the session it is about.
pub struct SessionSupervisor {
    setup: Setup,
    sessions: HashMap<SessionKey, Entry>,
    keys: HashMap<(Owner, String), Lookup>,
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
    started: Timestamp,
    /// Whether new prompts are refused, while what was accepted runs on.
    closed: bool,
    draining: bool,
    drained: Option<oneshot::Sender<()>>,
    peak: Peak,
    /// How often a session was started anew because it had panicked.
    restarts: u64,
    health: health::Health,
    retention: retention::Retention,
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
    Waking { waiting: Vec<Routed>, feeds: Feeds },
    /// Fell because the store can't be written: it goes on once it can.
    Parked { feeds: Feeds },
    /// There; `sent` counts what it was sent.
    Awake { session: Addr<Session>, sent: u64 },
}

impl Default for State {
    fn default() -> Self {
        Self::Waking { waiting: Vec::new(), feeds: Feeds::default() }
    }
}

/// A [`Dispatch`] whose asker is sure of an answer.
struct Asked {
    asker: Asker,
    principal: Principal,
    command: Command,
    arbiter: ArbiterHandle,
}

/// A request of a connection, scope and rate checked.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Dispatch {
    /// Under which the answer is expected.
    pub ticket: Ticket,
    /// Who asks.
    pub principal: Principal,
    /// What is asked.
    pub command: Command,
    /// Where the answer goes.
    pub client: Client,
    /// The connection's arbiter: a session it wakes lives there too.
    pub arbiter: ArbiterHandle,
}

/// The connection is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Gone {
    /// Which.
    pub connection: ConnectionId,
}

/// A session ended (from its drop guard).
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Fallen {
    pub(crate) key: SessionKey,
    pub(crate) feeds: Feeds,
    pub(crate) panicked: bool,
    /// It was told to end.
    pub(crate) done: bool,
}

/// A session would sleep, having taken so many messages.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Idle {
    pub(crate) key: SessionKey,
    pub(crate) received: u64,
}

/// A prompt with this idempotency key is in the log, or will not be.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Kept {
    pub(crate) owner: Owner,
    pub(crate) key: String,
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

/// How the daemon is.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Status, Error>")]
pub struct GetStatus;

impl SessionSupervisor {
    /// Ready to take requests.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            sessions: HashMap::new(),
            keys: HashMap::new(),
            waiting: 0,
            last_turn: None,
            followed: HashMap::new(),
            recovering: VecDeque::new(),
            parking: false,
            unpark_delay: UNPARK_DELAY_MIN,
            unparked: None,
            started: clock::now(),
            closed: false,
            draining: false,
            drained: None,
            peak: Peak::new(clock::now()),
            restarts: 0,
            health: health::Health::default(),
            retention: retention::Retention::default(),
        }
    }

    /// The agents there are now, and what else is configured of sessions.
    fn roster(&self) -> Arc<Roster> {
        self.setup.colleagues.roster.get()
    }

    /// Why nothing can be written; none where it can.
    fn fault(&self) -> Option<Error> {
        self.setup.colleagues.pen.health().fault()
    }

    fn forget(&mut self, key: &SessionKey) {
        self.sessions.remove(key);
        self.check_drained();
    }

    fn status(&self) -> impl Future<Output = Result<Status, Error>> + 'static {
        let sessions = self.sessions.len();
        let started = self.started;
        let version = self.setup.version.to_owned();
        let hub = self.setup.hub.clone();
        let sandbox = self.setup.colleagues.sandbox.clone();
        async move {
            let plugins = ask(&sandbox, CountPlugins).await?;
            let connections = ask(&hub, Connected).await?;
            Ok(Status { version, plugins, sessions, connections, started })
        }
    }

    fn check_drained(&mut self) {
        if self.draining
            && self.sessions.is_empty()
            && let Some(drained) = self.drained.take()
        {
            let _ = drained.send(());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a lifecycle message to a child must not be lost")]
fn drain(session: &Addr<Session>) {
    session.do_send(Drain);
}

impl Actor for SessionSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
        ctx.run_interval(PEAK_CHECK, |supervisor, _| {
            supervisor.peak.now(supervisor.sessions.len(), clock::now());
        });
        ctx.run_interval(health::INTERVAL, Self::look_at_health);
        ctx.run_interval(retention::INTERVAL, Self::delete_unused);
    }
}

impl Handler<Dispatch> for SessionSupervisor {
    type Result = ();

    /// A panic in here ends one request (its asker is told by being dropped), not the supervisor
    /// of all sessions.
    fn handle(&mut self, dispatch: Dispatch, ctx: &mut Self::Context) {
        let Dispatch { ticket, principal, command, client, arbiter } = dispatch;
        let mut request = Asked { asker: Asker::new(client, ticket), principal, command, arbiter };
        let handled = catch_unwind(AssertUnwindSafe(|| match request.command.settle(&request.principal) {
            Ok(()) => self.dispatch(request, ctx),
            Err(error) => request.asker.reply(Err(error)),
        }));
        if handled.is_err() {
            tracing::error!("a request panicked");
        }
    }
}

impl Handler<Fallen> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, fallen: Fallen, ctx: &mut Self::Context) {
        let Fallen { key, feeds, panicked, done } = fallen;
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        let waiting = match std::mem::take(&mut entry.state) {
            State::Waking { waiting, .. } => waiting,
            State::Awake { .. } | State::Parked { .. } => Vec::new(),
        };
        if panicked {
            self.restarts += 1;
            tracing::error!(session = %key, "the session panicked: it starts again from the store");
        }
        if done && waiting.is_empty() {
            return self.forget(&key);
        }
        entry.state = State::Waking { waiting, feeds };
        entry.owed = !done;
        if done { self.wake(key, ctx) } else { self.rest(key, ctx) }
    }
}

impl Handler<Idle> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, Idle { key, received }: Idle, _: &mut Self::Context) {
        // Nothing is on its way to it: all that was sent has been taken.
        if let Some(Entry { state: State::Awake { session, sent }, .. }) = self.sessions.get(&key)
            && *sent == received
            && session.try_send(Sleep).is_ok()
        {
            // What comes from here on waits for its end and wakes it anew.
            self.sessions.insert(key, Entry::default());
        }
    }
}

impl Handler<Kept> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, Kept { owner, key }: Kept, _: &mut Self::Context) {
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

impl Handler<Gone> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, Gone { connection }: Gone, _: &mut Self::Context) {
        self.setup.colleagues.watchers.remove(connection, None);
        for key in self.followed.remove(&connection).unwrap_or_default() {
            match self.sessions.get_mut(&key).map(|entry| &mut entry.state) {
                Some(State::Awake { session, .. }) => {
                    // Lost where the session is busy: it finds the connection closed by itself.
                    let _ = session.try_send(Forget(connection));
                }
                Some(State::Waking { feeds, .. } | State::Parked { feeds }) => feeds.forget(connection),
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
        let store = self.setup.colleagues.store.clone();
        let unfinished = async move { ask(&store, Unfinished).await.flatten() };
        Box::pin(unfinished.into_actor(self).map(|unfinished, supervisor, ctx| {
            let unfinished = unfinished?;
            let count = unfinished.len();
            supervisor.recovering.extend(unfinished);
            for _ in 0..RECOVERING_AT_ONCE {
                supervisor.recover_next(ctx);
            }
            Ok(count)
        }))
    }
}

impl Handler<TakePrompts> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, TakePrompts(take): TakePrompts, ctx: &mut Self::Context) {
        self.closed = !take;
        self.look_at_health(ctx);
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
            if let State::Awake { session, .. } = &entry.state {
                drain(session);
            }
        }
        self.check_drained();
        Box::pin(async move {
            let _ = done.await;
        })
    }
}

impl Handler<GetStatus> for SessionSupervisor {
    type Result = ResponseFuture<Result<Status, Error>>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.status())
    }
}

impl Handler<Observe> for SessionSupervisor {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let awake: Vec<(SessionKey, Addr<Session>)> = self
            .sessions
            .iter()
            .filter_map(|(key, entry)| match &entry.state {
                State::Awake { session, .. } => Some((key.clone(), session.clone())),
                State::Waking { .. } | State::Parked { .. } => None,
            })
            .collect();
        let parked = self.parked().len();
        let state = json!({
            "awake": awake.len(),
            "waking": self.sessions.len() - awake.len() - parked,
            "idempotency_keys_open": self.keys.len(),
            "requests_waiting": self.waiting,
            "recovering": self.recovering.len(),
            "parked": parked,
            "watchers": self.setup.colleagues.watchers.len(),
            "in_lanes": self.setup.colleagues.lanes.len(),
            "approvals_waiting": self.setup.colleagues.approvals.len(),
            "takes_prompts": !(self.closed || self.draining),
            "draining": self.draining,
            "restarts_total": self.restarts,
        });
        let observed = Observed::leaf("session supervisor", state);
        let asked = awake.into_iter().map(|(key, session)| {
            let name = format!("session {key}");
            observe_passing(name, session, PATIENCE)
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
        match &self.sessions.get(&key)?.state {
            State::Awake { session, .. } => Some(session.clone()),
            State::Waking { .. } | State::Parked { .. } => None,
        }
    }
}
