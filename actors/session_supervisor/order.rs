//! Requests on their way to their sessions, in their order.
//!
//! Two prompts with one idempotency key must become one run even where they name different
//! sessions, so a key is looked up here, before a session sees it, and is remembered until all
//! prompts with it are written or refused. What comes in meanwhile does not overtake it: prompts, aborts and clears
//! are done in the order they came.

use actix::dev::SendError;
use actix::prelude::*;
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::reply::{Aborted, Detached, Injected, SessionReply};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::prompt::attachment::Attachment;
use tokio::sync::oneshot;

use super::requests::Who;
use super::{Entry, SessionSupervisor, State};
use crate::runtime::ask::ask;
use crate::session::{HeldKey, KeyTaken, Routed, Subscribers};
use crate::store::FindRun;

/// Requests that may wait for one session to wake.
const WAITING_MAX: usize = 256;

/// From so many on, sessions that sleep are dropped from what a connection is said to follow.
const FOLLOWED_MAX: usize = 1024;

/// What is known of an idempotency key.
pub(super) enum Lookup {
    /// Being looked up in the log; these prompts wait.
    Searching(Vec<Routed>),
    /// Sent to this session; so many prompts with it are neither written nor refused.
    Sent { session: SessionKey, held: usize },
}

/// A run, its session and the number of its prompt; none where there is no such run.
type FoundRun = Result<Option<(SessionKey, RunId, Seq)>, Error>;

/// The turn of a request; what came behind it waits until this is dropped.
pub(super) type Turn = oneshot::Sender<()>;

impl SessionSupervisor {
    /// A prompt with an idempotency key: to the session that has it, else to the one it names; in its
    /// turn, where it has that already.
    pub(super) fn submit_once(
        &mut self,
        key: (Owner, String),
        prompt: Routed,
        turn: Option<Turn>,
        ctx: &mut Context<Self>,
    ) {
        match self.keys.get_mut(&key) {
            Some(Lookup::Searching(waiting)) if waiting.len() >= WAITING_MAX => {
                let busy = ErrorCode::Unavailable.error("too many prompts wait with one idempotency key");
                prompt.asker.reply(Err(busy));
            }
            Some(Lookup::Searching(waiting)) => waiting.push(prompt),
            Some(Lookup::Sent { .. }) => self.send_held(key, prompt, ctx),
            None => {
                let found = self.find_run(key.0.clone(), key.1.clone(), false);
                self.keys.insert(key.clone(), Lookup::Searching(vec![prompt]));
                let Some(turn) = turn else {
                    let then = move |supervisor: &mut Self, found, ctx: &mut Context<Self>| {
                        supervisor.found(key, found, ctx);
                    };
                    return self.in_turn(found, then);
                };
                self.waiting += 1;
                self.awaited.add(found, move |supervisor, found, ctx| {
                    supervisor.waiting -= 1;
                    supervisor.found(key, found, ctx);
                    drop(turn);
                });
            }
        }
    }

    /// What the log says of a key that prompts wait for.
    fn found(&mut self, key: (Owner, String), found: FoundRun, ctx: &mut Context<Self>) {
        let Some(Lookup::Searching(waiting)) = self.keys.remove(&key) else { return };
        for mut prompt in waiting {
            match &found {
                Ok(Some((session, run, seq))) => {
                    prompt.session = session.clone();
                    let follow = !matches!(prompt.order, Order::Submit { follow: false, .. });
                    prompt.order = Order::Follow { run: run.clone(), seq: *seq, follow };
                    self.route(prompt);
                }
                Ok(None) if let Some(fault) = self.fault() => prompt.asker.reply(Err(fault)),
                Ok(None) if self.closed => prompt.asker.reply(Err(closed())),
                Ok(None) => self.send_held(key.clone(), prompt, ctx),
                Err(error) => prompt.asker.reply(Err(error.clone())),
            }
        }
    }

    /// Sends a prompt with an idempotency key on: the first one names the session, the others follow it there. But
    /// what is for a session of this daemon goes to no other: two daemons would send both to each other for ever. Where
    /// both write theirs, the log has one.
    fn send_held(&mut self, key: (Owner, String), mut prompt: Routed, ctx: &Context<Self>) {
        let sent = Lookup::Sent { session: prompt.session.clone(), held: 0 };
        if let Lookup::Sent { session, held } = self.keys.entry(key.clone()).or_insert(sent) {
            *held += 1;
            let first = session.clone();
            if self.is_lost(&prompt.session) || !self.is_lost(&first) {
                prompt.session = first;
            }
        }
        prompt.held = Some(HeldKey { key, reports: ctx.address().recipient() });
        self.route(prompt);
    }

    /// A key stands for a run of another session: whoever asked follows that.
    pub(super) fn key_taken(&mut self, KeyTaken { asker, principal, key, follow }: KeyTaken) {
        let found = self.find_run(key.0, key.1, false);
        self.in_turn(found, move |supervisor, found, _| match found {
            Ok(Some((session, run, seq))) => {
                let order = Order::Follow { run, seq, follow };
                supervisor.route(Routed::new(session, order, (asker, principal)));
            }
            // It came with one whose key was taken.
            Ok(None) => asker.reply(Err(ErrorCode::Unavailable.error("the prompt was not taken: try again"))),
            Err(error) => asker.reply(Err(error)),
        });
    }

    /// Follows a run, by its id or its idempotency key, wherever it is.
    pub(super) fn follow_run(&mut self, run: &RunId, (asker, principal): Who) {
        let found = self.find_run(principal.owner.clone(), run.to_string(), true);
        let unknown = ErrorCode::NotFound.error(format!("no such run: {run}"));
        self.in_turn(found, move |supervisor, found, _| match found {
            Ok(Some((session, run, seq))) if principal.sees(&session.owner()) => {
                let order = Order::Follow { run, seq, follow: true };
                supervisor.route(Routed::new(session, order, (asker, principal)));
            }
            Ok(_) => asker.reply(Err(unknown)),
            Err(error) => asker.reply(Err(error)),
        });
    }

    /// Sends an order to its session, behind all that came before it.
    pub(super) fn order(&mut self, order: Order, session: SessionKey, who: Who) {
        self.route_in_turn(Routed::new(session, order, who));
    }

    /// Sends a request to its session, behind all that came before it.
    pub(super) fn route_in_turn(&mut self, request: Routed) {
        if self.waiting == 0 {
            return self.route(request);
        }
        self.in_turn(std::future::ready(()), |supervisor, (), _| supervisor.route(request));
    }

    /// Looks for a run by its idempotency key; `or_id`: or by its id.
    pub(super) fn find_run(
        &self,
        owner: Owner,
        idempotency_key: String,
        or_id: bool,
    ) -> impl Future<Output = FoundRun> + use<> {
        let (store, find) = (self.setup.deps.store.clone(), FindRun { owner, idempotency_key, or_id });
        async move { ask(&store, find).await.flatten() }
    }

    /// Puts something into a conversation, unless something of this id is there already.
    pub(super) fn inject_once(&mut self, id: &RunId, inject: Routed) {
        let found = self.find_run(inject.principal.owner.clone(), id.to_string(), true);
        self.in_turn(found, |supervisor, found, _| match found {
            Ok(None) => supervisor.route(inject),
            Ok(Some((_, run, seq))) => {
                let injected = Injected { message: run.to_string(), seq };
                inject.asker.reply(Ok(SessionReply::Injected(injected).into()));
            }
            Err(error) => inject.asker.reply(Err(error)),
        });
    }

    /// Does what follows from `look` when everything before it is done.
    pub(super) fn in_turn<T: 'static>(
        &mut self,
        look: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, &mut Context<Self>) + 'static,
    ) {
        let then = |supervisor: &mut Self, looked, turn: Turn, ctx: &mut Context<Self>| {
            then(supervisor, looked, ctx);
            drop(turn);
        };
        self.with_turn(look, then);
    }

    /// As [`Self::in_turn`], where `then` may take longer over its turn.
    pub(super) fn with_turn<T: 'static>(
        &mut self,
        look: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, T, Turn, &mut Context<Self>) + 'static,
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
        self.awaited.add(looked, move |supervisor, looked, ctx| {
            supervisor.waiting -= 1;
            then(supervisor, looked, done, ctx);
        });
    }

    /// Sends a request to its session, waking it where it sleeps and is needed.
    pub(super) fn route(&mut self, mut routed: Routed) {
        let key = routed.session.clone();
        if let Err(full) = self.enter_lane(&mut routed) {
            return routed.asker.reply(Err(full));
        }
        self.note_follow(&routed);
        let fault = self.fault();
        let Some(entry) = self.sessions.get_mut(&key) else {
            if let Some(routed) = self.answer_asleep(routed) {
                let arbiter = Some(routed.asker.client().arbiter.clone());
                let state = State::Waking { waiting: vec![routed], subscribers: Subscribers::default() };
                self.sessions.insert(key.clone(), Entry { state, arbiter, ..Entry::default() });
                self.wake(key);
            }
            return;
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
            State::Elsewhere { mirror, sent } => {
                // Its turn is given where it is written.
                routed.lane_guard = None;
                match mirror.try_send(routed) {
                    Ok(()) => {
                        *sent += 1;
                        return;
                    }
                    Err(SendError::Full(routed)) => return routed.asker.reply(Err(busy(&key))),
                    Err(SendError::Closed(routed)) => {
                        entry.state = State::default();
                        routed
                    }
                }
            }
            State::Parked { subscribers } => {
                if let Some(fault) = fault {
                    return routed.asker.reply(Err(fault));
                }
                let subscribers = std::mem::take(subscribers);
                entry.state = State::Waking { waiting: vec![routed], subscribers };
                return self.wake(key);
            }
            State::Waking { .. } | State::Leaving { .. } => routed,
        };
        if let State::Waking { waiting, .. } | State::Leaving { waiting, .. } = &mut entry.state {
            if waiting.len() < WAITING_MAX {
                waiting.push(routed);
            } else {
                routed.asker.reply(Err(busy(&key)));
            }
        }
    }

    /// Gives a prompt its spot in its lane, in the order in which prompts are sent: so no two wait for each
    /// other.
    fn enter_lane(&self, routed: &mut Routed) -> Result<(), Error> {
        if let Order::Submit { submission, .. } = &routed.order
            && routed.lane_guard.is_none()
            && let Some(lane) = &submission.run_options.lane
        {
            let attached: usize = submission.attachments.iter().map(Attachment::bytes).sum();
            let bytes = submission.content.len() + attached;
            routed.lane_guard = self.setup.deps.lanes.enter(lane, &routed.session, &submission.run, bytes)?;
        }
        Ok(())
    }

    /// Notes that the asker's connection may follow the session from here on.
    fn note_follow(&mut self, routed: &Routed) {
        // The connection may be gone by now: then there is no entry, and none is made.
        if let Order::Submit { .. } | Order::Follow { .. } | Order::Attach { .. } = routed.order
            && let Some(followed) = self.followed.get_mut(&routed.asker.client().connection)
        {
            if followed.len() >= FOLLOWED_MAX {
                followed.retain(|key| self.sessions.contains_key(key));
            }
            followed.insert(routed.session.clone());
        }
    }

    /// Answers what a session need not be woken for; gives back what it must.
    fn answer_asleep(&self, routed: Routed) -> Option<Routed> {
        let reply = match routed.order {
            // One that is about to be recovered has something under way.
            _ if self.recovering.contains(&routed.session) => return Some(routed),
            // Another daemon may have it awake.
            _ if self.setup.remote.is_some() => return Some(routed),
            Order::Abort { .. } => SessionReply::Aborted(Aborted { run: None }),
            Order::Detach { .. } => SessionReply::Detached(Detached { found: false }),
            Order::Stop(_) => {
                self.answer(routed.asker, self.reader(routed.principal).stopped(routed.session));
                return None;
            }
            _ => return Some(routed),
        };
        routed.asker.reply(Ok(reply.into()));
        None
    }
}

pub(super) fn busy(session: &SessionKey) -> Error {
    ErrorCode::Unavailable.error(format!("session {session} is busy: try again"))
}

/// Why a new prompt is refused while the daemon drains.
pub(super) fn closed() -> Error {
    ErrorCode::Unavailable
        .error("the daemon is draining and takes no new prompts: try again when the drain is over")
}
