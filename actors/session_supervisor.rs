//! `SessionSupervisor`: from a request to the session it is about.
//!
//! Finds the session (by the router, or by its key), wakes it from the log when it is first named,
//! and forwards the request; answers what is about all sessions or the daemon. A session that ends
//! because of a panic or a log it could not write is started anew with its followers, a few times;
//! one that nobody needs is put to sleep. While the log can't be written, prompts are refused with
//! the reason, and sessions that fell over it are parked: it is no fault of theirs, so it counts as
//! no fall, and they go on by themselves once the log can be written, a few at a time. Holds no conversation and is not on the path of a token.
//!
//! Two prompts with one idempotency key must become one run even where they name different
//! sessions, so a key is looked up here, before a session sees it, and is remembered until the
//! session has written it. What comes in meanwhile does not overtake it: prompts, aborts and clears
//! are done in the order they came.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::auth::{Owner, Principal, Scope};
use clawmux_core::command::{Command, Submit, Target};
use clawmux_core::config::Recovery;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::{Event, Logged, Outcome, Usage};
use clawmux_core::ids::{AgentId, ConnectionId, PluginName, RunId, Seq, SessionKey, Ticket};
use clawmux_core::reply::{History, Reply, Status};
use clawmux_core::router::Router;
use clawmux_core::session::{Limits, Session as Conversation, Submission};
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::oneshot;

use crate::arbiters::Arbiters;
use crate::ask::ask;
use crate::clock;
use crate::deliver::{Asker, Client};
use crate::hub::{Connected, Hub};
use crate::observe::{Observe, Observed};
use crate::provider_supervisor::BudgetStatus;
use crate::sandbox_supervisor::{CountPlugins, IsIdempotent, ListPlugins, LoadPlugin, UnloadPlugin};
use crate::session::{Colleagues, Drain, Feeds, Forget, Order, Profile, Routed, Session, Sleep};
use crate::store::{
    Describe, Described, FindRun, ListSessions, Load, Loaded, ReadHistory, Store, Unfinished,
};

/// How often a session may fall within [`RESTART_WINDOW`] before its run is ended.
const RESTARTS_MAX: usize = 3;

/// The span over which falls are counted.
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// How long after a fall a session is read from the log again, times the number of falls.
const RESTART_DELAY: Duration = Duration::from_millis(250);

/// How long after the log can be written again parked sessions are woken, doubled each time it
/// happens again within [`CALM`].
const UNPARK_DELAY_MIN: Duration = Duration::from_millis(100);

/// The longest that takes.
const UNPARK_DELAY_MAX: Duration = Duration::from_secs(10);

/// After so long without an outage the next one begins with the shortest delay.
const CALM: Duration = Duration::from_secs(60);

/// Requests that may wait for one session to wake.
const WAITING_MAX: usize = 256;

/// Sessions read from the log at once after a start.
const RECOVERING_AT_ONCE: usize = 16;

/// How many bytes a history has at most as JSON, so that a client that does not read it costs no
/// more than it may; of the newest message there is as much in it as fits.
const HISTORY_BYTES_MAX: usize = 256 * 1024;

/// From so many on, sessions that sleep are dropped from what a connection is said to follow.
const FOLLOWED_MAX: usize = 1024;

/// Sessions in one list, and how many bytes they take at most: so much each besides its key.
const LIST_MAX: usize = 1000;
const LIST_BYTES_MAX: usize = 256 * 1024;
const SUMMARY_BYTES: usize = 128;

/// What the supervisor is made with.
pub struct Setup {
    /// Who answers whom.
    pub router: Router,
    /// The agents, by name.
    pub agents: HashMap<AgentId, Arc<Profile>>,
    /// The bounds of a session.
    pub limits: Limits,
    /// What becomes of a run the daemon's end cut off.
    pub recovery: Recovery,
    /// Where sessions live that no connection woke.
    pub arbiters: Arbiters,
    /// How far behind the log a client may fall, in bytes of it.
    pub lag_bytes_max: usize,
    /// Whom sessions work with.
    pub colleagues: Colleagues,
    /// Who is connected.
    pub hub: Addr<Hub>,
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
    /// Fell because the log can't be written: it goes on once it can.
    Parked { feeds: Feeds },
    /// There; `sent` counts what it was sent.
    Awake { session: Addr<Session>, sent: u64 },
}

impl Default for State {
    fn default() -> Self {
        Self::Waking { waiting: Vec::new(), feeds: Feeds::default() }
    }
}

/// A request and the session it is for.
struct Waiting {
    session: SessionKey,
    routed: Routed,
    arbiter: ArbiterHandle,
}

/// A [`Dispatch`] whose asker is sure of an answer.
struct Asked {
    asker: Asker,
    principal: Principal,
    command: Command,
    arbiter: ArbiterHandle,
}

/// What is known of an idempotency key.
enum Lookup {
    /// Being looked up in the log; these prompts wait.
    Searching(Vec<Waiting>),
    /// Sent to this session, which has not written it yet.
    Sent(SessionKey),
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

/// An idempotency key is in the log.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Kept {
    pub(crate) owner: Owner,
    pub(crate) key: String,
}

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
        }
    }

    fn dispatch(&mut self, request: Asked, ctx: &mut Context<Self>) {
        let Asked { asker, principal, command, arbiter } = request;
        let target = match &command {
            Command::Submit(Submit { target, .. })
            | Command::Abort { target, .. }
            | Command::Attach { target, .. }
            | Command::Detach { target, .. }
            | Command::Stop { target }
            | Command::Clear { target }
            | Command::History { target, .. }
            | Command::Budget { target: Some(target) } => Some(target),
            _ => None,
        };
        let session = match target.map(|target| self.resolve(target)).transpose() {
            Ok(session) => session,
            Err(error) => return asker.reply(Err(error)),
        };
        match (command, session) {
            // One with an idempotency key may be a repetition, which is told of its run.
            (Command::Submit(submit), _) if self.closed && submit.idempotency_key.is_none() => {
                asker.reply(Err(closed()));
            }
            (Command::Submit(submit), Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                let order = Order::Submit(Submission {
                    run: submit.run,
                    content: submit.content,
                    owner: principal.owner.clone(),
                    idempotency_key: submit.idempotency_key.clone(),
                });
                let owner = principal.owner.clone();
                let prompt = Waiting { session, routed: Routed { asker, principal, order }, arbiter };
                match submit.idempotency_key {
                    Some(key) => self.submit_once((owner, key), prompt, ctx),
                    None => match self.fault() {
                        // It would only make the session fall.
                        Some(fault) => prompt.routed.asker.reply(Err(fault)),
                        None => self.route_in_turn(prompt, ctx),
                    },
                }
            }
            (Command::Abort { run, .. }, Some(session)) => {
                self.order(Order::Abort { run }, session, (asker, principal), arbiter, ctx);
            }
            (Command::Clear { .. }, Some(session)) => {
                self.order(Order::Clear, session, (asker, principal), arbiter, ctx);
            }
            (Command::Attach { after, .. }, Some(session)) => {
                self.followed.entry(asker.client().connection).or_default();
                self.order(Order::Attach { after }, session, (asker, principal), arbiter, ctx);
            }
            (Command::Detach { follow, .. }, Some(session)) => {
                self.order(Order::Detach { follow }, session, (asker, principal), arbiter, ctx);
            }
            (Command::Stop { .. }, Some(session)) => {
                self.order(Order::Stop, session, (asker, principal), arbiter, ctx);
            }
            (Command::History { limit, before, .. }, Some(session)) => {
                let store = self.setup.colleagues.store.clone();
                answer(ctx, asker, async move {
                    let max_bytes = HISTORY_BYTES_MAX;
                    let history = match described(&store, &session, &principal).await? {
                        Some(_) => ask(&store, ReadHistory { session, limit, before, max_bytes }).await??,
                        None => History { session, messages: Vec::new(), more: false },
                    };
                    Ok(Reply::History(history))
                });
            }
            (Command::Sessions, _) => {
                let store = self.setup.colleagues.store.clone();
                let owner = (!principal.scopes.allows(Scope::Admin)).then(|| principal.owner.clone());
                answer(ctx, asker, async move {
                    let sessions =
                        ask(&store, ListSessions { limit: LIST_MAX, owner, before: None }).await??;
                    let mut left = LIST_BYTES_MAX;
                    let fitting = sessions.into_iter().map_while(|listed| {
                        left = left.checked_sub(listed.summary.session.as_str().len() + SUMMARY_BYTES)?;
                        Some(listed.summary)
                    });
                    Ok(Reply::Sessions(fitting.collect()))
                });
            }
            (Command::Budget { .. }, session) => {
                let Colleagues { store, providers, .. } = self.setup.colleagues.clone();
                answer(ctx, asker, async move {
                    let session_spent = match session {
                        None => None,
                        Some(session) => {
                            let described = described(&store, &session, &principal).await?;
                            Some(described.map_or(0, |described| described.spent.total()))
                        }
                    };
                    Ok(Reply::Budget(ask(&providers, BudgetStatus { session_spent }).await?))
                });
            }
            (Command::Status, _) => {
                let status = self.status();
                answer(ctx, asker, async move { status.await.map(Reply::Status) });
            }
            (Command::Plugins, _) => {
                let sandbox = self.setup.colleagues.sandbox.clone();
                answer(ctx, asker, async move { Ok(Reply::Plugins(ask(&sandbox, ListPlugins).await?)) });
            }
            (Command::LoadPlugin { name, path }, _) => {
                let sandbox = self.setup.colleagues.sandbox.clone();
                answer(ctx, asker, async move {
                    Ok(Reply::PluginLoaded(ask(&sandbox, LoadPlugin { name, path }).await??))
                });
            }
            (Command::UnloadPlugin { name }, _) => {
                let sandbox = self.setup.colleagues.sandbox.clone();
                answer(ctx, asker, async move {
                    ask(&sandbox, UnloadPlugin { name: name.clone() }).await??;
                    Ok(Reply::PluginUnloaded { name })
                });
            }
            (
                Command::Submit(_)
                | Command::Abort { .. }
                | Command::Attach { .. }
                | Command::Detach { .. }
                | Command::Stop { .. }
                | Command::Clear { .. }
                | Command::History { .. },
                None,
            ) => {
                unreachable!("a command with a target was resolved")
            }
        }
    }

    /// The session a target names.
    fn resolve(&self, target: &Target) -> Result<SessionKey, Error> {
        match target {
            Target::Route(route) => self.setup.router.session_key(route),
            Target::Session(key) => {
                if self.setup.agents.contains_key(&AgentId::from(&*key.agent())) {
                    Ok(key.clone())
                } else {
                    Err(ErrorCode::NotFound.error(format!("session {key}: no agent named {}", key.agent())))
                }
            }
        }
    }

    /// A prompt with an idempotency key: to the session that has it, else to the one it names.
    fn submit_once(&mut self, key: (Owner, String), mut prompt: Waiting, ctx: &mut Context<Self>) {
        match self.keys.get_mut(&key) {
            Some(Lookup::Searching(waiting)) if waiting.len() >= WAITING_MAX => {
                let busy = ErrorCode::Unavailable.error("too many prompts wait with one idempotency key");
                prompt.routed.asker.reply(Err(busy));
            }
            Some(Lookup::Searching(waiting)) => waiting.push(prompt),
            Some(Lookup::Sent(session)) => {
                prompt.session = session.clone();
                self.route(prompt, ctx);
            }
            None => {
                let find = FindRun { owner: key.0.clone(), idempotency_key: key.1.clone() };
                self.keys.insert(key.clone(), Lookup::Searching(vec![prompt]));
                let store = self.setup.colleagues.store.clone();
                let found = async move { ask(&store, find).await.flatten() };
                self.in_turn(found, move |supervisor, found, ctx| supervisor.found(key, found, ctx), ctx);
            }
        }
    }

    /// Sends a request to its session, behind all that came before it.
    fn route_in_turn(&mut self, request: Waiting, ctx: &mut Context<Self>) {
        if self.waiting == 0 {
            return self.route(request, ctx);
        }
        self.in_turn(std::future::ready(()), |supervisor, (), ctx| supervisor.route(request, ctx), ctx);
    }

    /// Does what follows from `look` when everything before it is done.
    fn in_turn<T: 'static>(
        &mut self,
        look: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
        ctx: &mut Context<Self>,
    ) {
        let (done, turn) = oneshot::channel::<()>();
        let before = self.last_turn.replace(turn);
        self.waiting += 1;
        let looked = async move {
            let looked = look.await;
            if let Some(before) = before {
                // Never sent, only dropped.
                let _ = before.await;
            }
            looked
        };
        ctx.spawn(looked.into_actor(self).map(move |looked, supervisor, ctx| {
            supervisor.waiting -= 1;
            then(supervisor, looked, ctx);
            drop(done);
        }));
    }

    /// What the log says of a key that prompts wait for.
    fn found(
        &mut self,
        key: (Owner, String),
        found: Result<Option<(SessionKey, RunId, Seq)>, Error>,
        ctx: &mut Context<Self>,
    ) {
        let Some(Lookup::Searching(waiting)) = self.keys.remove(&key) else { return };
        for mut prompt in waiting {
            match &found {
                Ok(Some((session, run, seq))) => {
                    prompt.session = session.clone();
                    prompt.routed.order = Order::Follow { run: run.clone(), seq: *seq };
                    self.route(prompt, ctx);
                }
                Ok(None) if let Some(fault) = self.fault() => prompt.routed.asker.reply(Err(fault)),
                Ok(None) if self.closed => prompt.routed.asker.reply(Err(closed())),
                Ok(None) => {
                    // The first names the session, the others follow it there.
                    let sent = Lookup::Sent(prompt.session.clone());
                    if let Lookup::Sent(session) = self.keys.entry(key.clone()).or_insert(sent) {
                        prompt.session = session.clone();
                    }
                    self.route(prompt, ctx);
                }
                Err(error) => prompt.routed.asker.reply(Err(error.clone())),
            }
        }
    }

    fn order(
        &mut self,
        order: Order,
        session: SessionKey,
        (asker, principal): (Asker, Principal),
        arbiter: ArbiterHandle,
        ctx: &mut Context<Self>,
    ) {
        self.route_in_turn(Waiting { session, routed: Routed { asker, principal, order }, arbiter }, ctx);
    }

    /// Why nothing can be written; none where it can.
    fn fault(&self) -> Option<Error> {
        self.setup.colleagues.pen.health().fault()
    }

    /// Sends a request to its session, waking it where it sleeps and is needed.
    fn route(&mut self, waiting: Waiting, ctx: &mut Context<Self>) {
        let Waiting { session: key, routed, arbiter } = waiting;
        // The connection may be gone by now: then there is no entry, and none is made.
        if let Order::Submit(_) | Order::Follow { .. } | Order::Attach { .. } = routed.order
            && let Some(followed) = self.followed.get_mut(&routed.asker.client().connection)
        {
            if followed.len() >= FOLLOWED_MAX {
                followed.retain(|key| self.sessions.contains_key(key));
            }
            followed.insert(key.clone());
        }
        let fault = self.fault();
        let Some(entry) = self.sessions.get_mut(&key) else {
            // One that is about to be recovered has something under way.
            let routed = match routed.order {
                _ if self.recovering.contains(&key) => routed,
                Order::Abort { .. } => return routed.asker.reply(Ok(Reply::Aborted { run: None })),
                Order::Detach { .. } => return routed.asker.reply(Ok(Reply::Detached { found: false })),
                Order::Stop => {
                    let (store, principal) = (self.setup.colleagues.store.clone(), routed.principal);
                    return answer(ctx, routed.asker, async move {
                        described(&store, &key, &principal).await?.ok_or_else(|| no_such(&key))?;
                        Ok(Reply::Stopped { session: key, runs: Vec::new() })
                    });
                }
                _ => routed,
            };
            let state = State::Waking { waiting: vec![routed], feeds: Feeds::default() };
            let entry = Entry { state, arbiter: Some(arbiter), ..Entry::default() };
            self.sessions.insert(key.clone(), entry);
            return self.wake(key, ctx);
        };
        let routed = match &mut entry.state {
            State::Awake { session, sent } => match session.try_send(routed) {
                Ok(()) => {
                    *sent += 1;
                    return;
                }
                Err(SendError::Full(routed)) => return routed.asker.reply(Err(busy(&key))),
                Err(SendError::Closed(routed)) => {
                    // It fell, and its drop guard's message is on its way: that wakes it.
                    entry.state = State::default();
                    routed
                }
            },
            State::Parked { feeds } => {
                if let Some(fault) = fault {
                    return routed.asker.reply(Err(fault));
                }
                let feeds = std::mem::take(feeds);
                entry.state = State::Waking { waiting: vec![routed], feeds };
                return self.wake(key, ctx);
            }
            State::Waking { .. } => routed,
        };
        if let State::Waking { waiting, .. } = &mut entry.state {
            if waiting.len() < WAITING_MAX {
                waiting.push(routed);
            } else {
                routed.asker.reply(Err(busy(&key)));
            }
        }
    }

    /// Reads a session from the log.
    fn wake(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
        let load = Load { session: key.clone(), runs: self.setup.limits.episodic_turns };
        let Colleagues { store, pen, sandbox, .. } = self.setup.colleagues.clone();
        // What the one that fell had sent may not be written yet.
        let fell = self.sessions.get(&key).is_some_and(|entry| !entry.falls.is_empty());
        let read = async move {
            if fell {
                pen.settled(&load.session).await;
            }
            let loaded = ask(&store, load).await??;
            let mut idempotent = HashSet::new();
            for tool in loaded.iter().flat_map(open_calls) {
                if ask(&sandbox, IsIdempotent(tool.clone())).await? {
                    idempotent.insert(tool);
                }
            }
            Ok((loaded, idempotent))
        };
        ctx.spawn(read.into_actor(self).map(move |read, supervisor, ctx| supervisor.woken(key, read, ctx)));
    }

    /// What the log has of a session, and which of its tools may be called again.
    fn woken(
        &mut self,
        key: SessionKey,
        read: Result<(Option<Loaded>, HashSet<PluginName>), Error>,
        ctx: &mut Context<Self>,
    ) {
        self.recover_next(ctx);
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        let State::Waking { waiting, feeds } = std::mem::take(&mut entry.state) else { return };
        let (loaded, idempotent) = match read {
            Ok(read) => read,
            Err(error) => {
                refuse_all(waiting, &error);
                if feeds.is_empty() && !entry.owed {
                    return self.forget(&key);
                }
                entry.state = State::Waking { waiting: Vec::new(), feeds };
                return self.rest(key, ctx);
            }
        };
        let profile = self.setup.agents.get(&AgentId::from(&*key.agent())).cloned();
        let limits = self.setup.limits.clone();
        let owner = waiting.iter().find_map(|routed| match &routed.order {
            Order::Submit(_) | Order::Attach { .. } => Some(routed.principal.owner.clone()),
            _ => None,
        });
        let (mut conversation, spent) = match (loaded, owner) {
            (Some(Loaded { owner, head, reserved, spent, events }), _) => {
                (Conversation::restore(key.clone(), owner, limits, head, reserved, events), spent)
            }
            (None, Some(owner)) => (Conversation::new(key.clone(), owner, limits), Usage::default()),
            (None, None) => {
                refuse_all(waiting, &no_such(&key));
                return self.forget(&key);
            }
        };
        let Some(profile) = profile else {
            let why = format!("session {key}: no agent named {}", key.agent());
            refuse_all(waiting, &ErrorCode::NotFound.error(why));
            return self.forget(&key);
        };
        // One that keeps falling has its run ended rather than begun again.
        let falling = entry.falls.len() > RESTARTS_MAX;
        let recovery = if falling { Recovery::Interrupt } else { self.setup.recovery };
        if self.draining {
            // The actor hears of it after these requests; its conversation begins none of them.
            conversation.drain();
        }
        conversation.recover(clock::now(), recovery, |tool| idempotent.contains(tool));

        let (colleagues, supervisor) = (self.setup.colleagues.clone(), ctx.address());
        let lag_bytes_max = self.setup.lag_bytes_max;
        let arbiter = entry.arbiter.get_or_insert_with(|| self.setup.arbiters.next()).clone();
        let session = Session::start_on(&arbiter, move || {
            Session::new(conversation, spent, lag_bytes_max, profile, colleagues, supervisor, feeds)
        });
        entry.state = State::Awake { session: session.clone(), sent: 0 };
        for routed in waiting {
            self.route(Waiting { session: key.clone(), routed, arbiter: arbiter.clone() }, ctx);
        }
        if self.draining {
            drain(&session);
        }
    }

    /// Reads a fallen session from the log again, after a rest.
    fn rest(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
        if self.fault().is_some() {
            return self.park(key, ctx);
        }
        let now = clock::now();
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        entry.falls.push_back(now);
        while entry.falls.front().is_some_and(|fall| now.since(*fall) > RESTART_WINDOW) {
            entry.falls.pop_front();
        }
        let falls = entry.falls.len();
        if falls > 2 * RESTARTS_MAX {
            let why = format!("session {key} can't be brought back: see the daemon's log");
            tracing::error!(session = %key, falls, "giving the session up until it is named again");
            if let State::Waking { waiting, mut feeds } = std::mem::take(&mut entry.state) {
                let error = ErrorCode::Unavailable.error(why);
                refuse_all(waiting, &error);
                let end = |run| Logged {
                    first_seq: Seq(u64::MAX),
                    seq: Seq(u64::MAX),
                    run: Some(run),
                    at: now,
                    event: Event::Ended { outcome: Outcome::Failed(error.clone()), usage: Usage::default() },
                };
                feeds.end_runs(&key, end);
                if !feeds.is_empty() {
                    // Who follows it for good is told what comes, once it is back.
                    entry.state = State::Waking { waiting: Vec::new(), feeds };
                    ctx.run_later(RESTART_WINDOW, move |supervisor, ctx| supervisor.wake(key, ctx));
                    return;
                }
            }
            return self.forget(&key);
        }
        let delay = RESTART_DELAY * u32::try_from(falls).unwrap_or(u32::MAX);
        ctx.run_later(delay, move |supervisor, ctx| supervisor.wake(key, ctx));
    }

    /// Leaves a session asleep, its followers with it, until the log can be written.
    fn park(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
        if self.draining {
            // It goes on at the next start.
            return self.forget(&key);
        }
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        if let State::Waking { waiting, feeds } = std::mem::take(&mut entry.state) {
            entry.state = State::Parked { feeds };
            let error = self.fault().unwrap_or_else(|| busy(&key));
            refuse_all(waiting, &error);
        }
        if std::mem::replace(&mut self.parking, true) {
            return;
        }
        let restored = self.setup.colleagues.pen.health().restored();
        ctx.spawn(restored.into_actor(self).map(|(), supervisor, ctx| {
            let now = clock::now();
            let calm = supervisor.unparked.is_none_or(|last| now.since(last) > CALM);
            let delay = if calm { UNPARK_DELAY_MIN } else { supervisor.unpark_delay * 2 };
            supervisor.unpark_delay = delay.min(UNPARK_DELAY_MAX);
            ctx.run_later(supervisor.unpark_delay, Self::unpark);
        }));
    }

    fn parked(&self) -> Vec<SessionKey> {
        let is_parked = |entry: &Entry| matches!(entry.state, State::Parked { .. });
        self.sessions.iter().filter(|(_, entry)| is_parked(entry)).map(|(key, _)| key.clone()).collect()
    }

    fn unpark(&mut self, ctx: &mut Context<Self>) {
        self.parking = false;
        self.unparked = Some(clock::now());
        let parked = self.parked();
        if !parked.is_empty() {
            tracing::info!(sessions = parked.len(), "going on with what the outage cut off");
        }
        self.recovering.extend(parked);
        for _ in 0..RECOVERING_AT_ONCE {
            self.recover_next(ctx);
        }
    }

    fn forget(&mut self, key: &SessionKey) {
        self.sessions.remove(key);
        self.keys.retain(|_, lookup| !matches!(lookup, Lookup::Sent(session) if session == key));
        self.check_drained();
    }

    fn recover_next(&mut self, ctx: &mut Context<Self>) {
        while let Some(key) = self.recovering.pop_front() {
            let entry = self.sessions.entry(key.clone()).or_insert_with(|| Entry {
                state: State::Parked { feeds: Feeds::default() },
                owed: true,
                ..Entry::default()
            });
            // One that was named meanwhile is on its way.
            if let State::Parked { feeds } = &mut entry.state {
                let feeds = std::mem::take(feeds);
                entry.state = State::Waking { waiting: Vec::new(), feeds };
                return self.wake(key, ctx);
            }
        }
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

/// The tools of calls that may or may not have been made: those without a result.
fn open_calls(loaded: &Loaded) -> HashSet<PluginName> {
    let mut open = HashMap::new();
    for logged in &loaded.events {
        match &logged.event {
            Event::ToolCalled(call) => {
                open.insert(&call.id, &call.name);
            }
            Event::ToolReturned(result) => {
                open.remove(&result.call);
            }
            _ => {}
        }
    }
    open.into_values().cloned().collect()
}

fn no_such(session: &SessionKey) -> Error {
    ErrorCode::NotFound.error(format!("no such session: {session}"))
}

/// What the log says of a session that may not have been written yet.
async fn described(
    store: &Addr<Store>,
    session: &SessionKey,
    principal: &Principal,
) -> Result<Option<Described>, Error> {
    match ask(store, Describe { session: session.clone() }).await?? {
        Some(described) if !principal.sees(&described.owner) => Err(no_such(session)),
        described => Ok(described),
    }
}

fn busy(session: &SessionKey) -> Error {
    ErrorCode::Unavailable.error(format!("session {session} is busy: try again"))
}

/// Why a new prompt is refused while the daemon drains.
fn closed() -> Error {
    ErrorCode::Unavailable.error("the daemon is draining and takes no new prompts: try again when it is back")
}

#[expect(clippy::disallowed_methods, reason = "a lifecycle message to a child must not be lost")]
fn drain(session: &Addr<Session>) {
    session.do_send(Drain);
}

fn refuse_all(waiting: Vec<Routed>, error: &Error) {
    for routed in waiting {
        routed.asker.reply(Err(error.clone()));
    }
}

/// Answers a request when others have answered.
fn answer(
    ctx: &mut Context<SessionSupervisor>,
    asker: Asker,
    reply: impl Future<Output = Result<Reply, Error>> + 'static,
) {
    ctx.spawn(actix::fut::wrap_future(async move {
        asker.reply(reply.await);
    }));
}

impl Actor for SessionSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
    }
}

impl Handler<Dispatch> for SessionSupervisor {
    type Result = ();

    /// A panic in here ends one request (its asker is told by being dropped), not the supervisor
    /// of all sessions.
    fn handle(&mut self, dispatch: Dispatch, ctx: &mut Self::Context) {
        let Dispatch { ticket, principal, command, client, arbiter } = dispatch;
        let request = Asked { asker: Asker::new(client, ticket), principal, command, arbiter };
        if catch_unwind(AssertUnwindSafe(|| self.dispatch(request, ctx))).is_err() {
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
            tracing::error!(session = %key, "the session panicked: it starts anew from its log");
        }
        if done && waiting.is_empty() {
            return self.forget(&key);
        }
        entry.state = State::Waking { waiting, feeds };
        entry.owed = !done;
        // What it had not written is not in the log: its keys may be used again.
        self.keys.retain(|_, lookup| !matches!(lookup, Lookup::Sent(session) if *session == key));
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
        self.keys.remove(&(owner, key));
    }
}

impl Handler<Gone> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, Gone { connection }: Gone, _: &mut Self::Context) {
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
        let awake: Vec<Addr<Session>> = self
            .sessions
            .values()
            .filter_map(|entry| match &entry.state {
                State::Awake { session, .. } => Some(session.clone()),
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
            "takes_prompts": !(self.closed || self.draining),
            "draining": self.draining,
        });
        Box::pin(async move {
            let children = futures::future::join_all(awake.iter().map(|session| session.send(Observe))).await;
            Observed {
                actor: "session_supervisor".into(),
                state,
                children: children.into_iter().flatten().collect(),
            }
        })
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
