//! Sessions that are read from the log: when they are first named, when they fell, when the daemon's
//! end cut them off, and when the store can be written again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::conversation::approval::Decided;
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::conversation::order::Order;
use clawmux_core::conversation::session::{Recovery, Session as Conversation};
use clawmux_core::conversation::turn::Work;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{AgentId, Owner, PluginName, Seq, SessionKey};
use clawmux_core::provider::usage::Usage;
use clawmux_core::request::reply::Reply;
use clawmux_core::tools::audit::CallRecord;
use clawmux_core::tools::built_in::is_built_in;

use super::order::busy;
use super::reading::missing;
use super::{Entry, SessionSupervisor, State, drain};
use crate::provider_supervisor::account::Account;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::sandbox_supervisor::IsIdempotent;
use crate::session::{Routed, Session, Subscribers};
use crate::store::{Load, Loaded, LogWriter};

/// How often a session may fall within [`RESTART_WINDOW`] before its run is ended.
const RESTARTS_MAX: usize = 3;

/// The span over which falls are counted.
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// How long after a fall a session is read from the log again, times the number of falls.
const RESTART_DELAY: Duration = Duration::from_millis(250);

/// How long after the store can be written again parked sessions are woken, doubled each time it
/// happens again within [`CALM`].
pub(super) const UNPARK_DELAY_MIN: Duration = Duration::from_millis(100);

/// The longest that takes.
const UNPARK_DELAY_MAX: Duration = Duration::from_secs(10);

/// After so long without an outage the next one begins with the shortest delay.
const CALM: Duration = Duration::from_secs(60);

/// Sessions read from the log at once after a start.
pub(super) const RECOVERING_AT_ONCE: usize = 16;

impl SessionSupervisor {
    /// Has a session go on: here from the log, or, where another daemon has it, by what stands in for it.
    pub(super) fn wake(&mut self, key: SessionKey) {
        match self.setup.remote.clone() {
            None => self.read(key),
            Some(remote) => self.find_place(&remote, key),
        }
    }

    /// Reads a session from the log.
    pub(super) fn read(&mut self, key: SessionKey) {
        let load = Load { session: key.clone(), runs: self.agent_configs().limits.turns() };
        let deps = self.setup.deps.clone();
        // What the one that fell had sent may not be written yet.
        let fell = self.sessions.get(&key).is_some_and(|entry| !entry.falls.is_empty());
        let read = async move {
            if fell {
                deps.log_writer.settled(&load.session).await;
            }
            let loaded = ask(&deps.store, load).await??;
            let mut idempotent = HashSet::new();
            for tool in loaded.iter().flat_map(open_calls) {
                // Said again, a message is there once.
                if is_built_in(tool.as_str()) || ask(&deps.sandbox, IsIdempotent(tool.clone())).await? {
                    idempotent.insert(tool);
                }
            }
            Ok((loaded, idempotent))
        };
        self.awaited.add(read, move |supervisor, read, ctx| supervisor.woken(key, read, ctx));
    }

    /// What the log has of a session, and which of its tools may be called again.
    fn woken(
        &mut self,
        key: SessionKey,
        read: Result<(Option<Loaded>, HashSet<PluginName>), Error>,
        ctx: &mut Context<Self>,
    ) {
        self.recover_next();
        if self.is_lost(&key) {
            return self.wake(key);
        }
        let agent_configs = self.agent_configs();
        let Some(entry) = self.sessions.get_mut(&key).filter(|entry| entry.is_waking()) else { return };
        let State::Waking { waiting, subscribers } = std::mem::take(&mut entry.state) else { return };
        let (loaded, idempotent) = match read {
            Ok(read) => read,
            Err(error) => {
                entry.state = State::Waking { waiting, subscribers };
                return self.not_woken(key, &error, ctx);
            }
        };
        let profile = agent_configs.agents.get(&AgentId::from(&*key.agent())).cloned();
        let limits = agent_configs.limits.clone();
        let (mut conversation, account) = match loaded {
            Some(Loaded { head, reserved, spent, cost, settings, window, events, aside }) => {
                let mut conversation =
                    Conversation::restore(key.clone(), limits, head, reserved, settings, window, events);
                for (run, bytes) in aside {
                    conversation.is_aside(&run, bytes);
                }
                (conversation, Account::new(spent, cost))
            }
            None if may_begin(&key, &subscribers, &waiting) => {
                (Conversation::new(key.clone(), limits), Account::default())
            }
            None => {
                for Routed { asker, principal, .. } in waiting {
                    let (store, key) = (self.setup.deps.store.clone(), key.clone());
                    self.answer(
                        asker,
                        async move { Err::<Reply, _>(missing(&store, &key, &principal).await) },
                    );
                }
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
        let recovery = if falling { Recovery::Interrupt } else { agent_configs.recovery };
        if self.draining {
            // The actor hears of it after these requests; its conversation begins none of them.
            conversation.drain();
        }
        let is_made_again = |tool: &PluginName| recovery == Recovery::Resume && idempotent.contains(tool);
        record_cut_off(&self.setup.deps.log_writer, &key, &conversation, is_made_again);
        conversation.recover(clock::now(), recovery, |tool| idempotent.contains(tool));

        let (deps, supervisor) = (self.setup.deps.clone(), ctx.address().into());
        // Before anything that is new to it is ready.
        let in_lanes = conversation.in_lanes().map(|(run, lane, at)| (run.clone(), lane.clone(), at));
        let spots = deps.lanes.enter_again(&key, in_lanes);
        let arbiter = entry.arbiter.get_or_insert_with(|| self.setup.arbiters.next()).clone();
        let session = Session::start_on(&arbiter, move || {
            let conversation = (conversation, account);
            Session::new(conversation, spots, profile, deps, supervisor, subscribers)
        });
        entry.state = State::Awake { session: session.clone(), sent: 0 };
        for routed in waiting {
            self.route(routed);
        }
        if self.draining {
            drain(&session);
        }
    }

    /// A session can't go on now: who waits is refused, and who follows it is told when it does.
    pub(super) fn not_woken(&mut self, key: SessionKey, error: &Error, ctx: &mut Context<Self>) {
        let Some(entry) = self.sessions.get_mut(&key).filter(|entry| entry.is_waking()) else { return };
        let State::Waking { waiting, subscribers } = std::mem::take(&mut entry.state) else { return };
        refuse_all(waiting, error);
        if subscribers.is_empty() && !entry.owed {
            return self.forget(&key);
        }
        entry.state = State::Waking { waiting: Vec::new(), subscribers };
        self.rest(key, ctx);
    }

    /// Has these go on that something cut off, a few at a time; says how many they are.
    pub(super) fn recover(&mut self, unfinished: Vec<SessionKey>) -> usize {
        let count = unfinished.len();
        self.recovering.extend(unfinished);
        for _ in 0..RECOVERING_AT_ONCE {
            self.recover_next();
        }
        count
    }

    /// Reads a fallen session from the log again, after a rest.
    pub(super) fn rest(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
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
            let why = format!("session {key} can't be restored: see the daemon's log");
            tracing::error!(session = %key, falls, "the session stays down until somebody opens it again");
            if let State::Waking { waiting, mut subscribers } = std::mem::take(&mut entry.state) {
                let error = ErrorCode::Unavailable.error(why);
                refuse_all(waiting, &error);
                let end = |run| Logged {
                    first_seq: Seq(u64::MAX),
                    seq: Seq(u64::MAX),
                    run: Some(run),
                    at: now,
                    event: Event::Ended { outcome: Outcome::Failed(error.clone()), usage: Usage::default() },
                };
                subscribers.end_runs(&key, end);
                if !subscribers.is_empty() {
                    // Who follows it for good is told what comes, once it is back.
                    entry.state = State::Waking { waiting: Vec::new(), subscribers };
                    ctx.run_later(RESTART_WINDOW, move |supervisor, _| supervisor.wake(key));
                    return;
                }
            }
            return self.forget(&key);
        }
        let delay = RESTART_DELAY * u32::try_from(falls).unwrap_or(u32::MAX);
        ctx.run_later(delay, move |supervisor, _| supervisor.wake(key));
    }

    /// Leaves a session asleep, its followers with it, until the log can be written.
    pub(super) fn park(&mut self, key: SessionKey, ctx: &mut Context<Self>) {
        if self.draining {
            // It goes on at the next start.
            return self.forget(&key);
        }
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        if let State::Waking { waiting, subscribers } = std::mem::take(&mut entry.state) {
            entry.state = State::Parked { subscribers };
            let error = self.fault().unwrap_or_else(|| busy(&key));
            refuse_all(waiting, &error);
        }
        if std::mem::replace(&mut self.parking, true) {
            return;
        }
        let restored = self.setup.deps.log_writer.health().restored();
        ctx.spawn(restored.into_actor(self).map(|(), supervisor, ctx| {
            let now = clock::now();
            let calm = supervisor.unparked.is_none_or(|last| now.since(last) > CALM);
            let delay = if calm { UNPARK_DELAY_MIN } else { supervisor.unpark_delay * 2 };
            supervisor.unpark_delay = delay.min(UNPARK_DELAY_MAX);
            ctx.run_later(supervisor.unpark_delay, Self::unpark);
        }));
    }

    pub(super) fn parked(&self) -> Vec<SessionKey> {
        let is_parked = |entry: &Entry| matches!(entry.state, State::Parked { .. });
        self.sessions.iter().filter(|(_, entry)| is_parked(entry)).map(|(key, _)| key.clone()).collect()
    }

    fn unpark(&mut self, _: &mut Context<Self>) {
        self.parking = false;
        self.unparked = Some(clock::now());
        let parked = self.parked();
        if !parked.is_empty() {
            tracing::info!(sessions = parked.len(), "resuming what the outage interrupted");
        }
        self.recover(parked);
    }

    pub(super) fn recover_next(&mut self) {
        while let Some(key) = self.recovering.pop_front() {
            let entry = self.sessions.entry(key.clone()).or_insert_with(|| Entry {
                state: State::Parked { subscribers: Subscribers::default() },
                owed: true,
                ..Entry::default()
            });
            // One that was named meanwhile is on its way.
            if let State::Parked { subscribers } = &mut entry.state {
                let subscribers = std::mem::take(subscribers);
                entry.state = State::Waking { waiting: Vec::new(), subscribers };
                return self.wake(key);
            }
        }
    }
}

/// Whether a session that is not in the log is to be there for those who wait for it. Nobody begins one in
/// somebody else's space: an operator may have mistyped its name. A UUID that is given
/// out for a session names no other: but for operators, one is made under it where it was asked for that
/// alone. So nobody has a session under the UUID of one of an operator's that is gone.
fn may_begin(key: &SessionKey, subscribers: &Subscribers, waiting: &[Routed]) -> bool {
    let begins = |routed: &Routed| match routed.order {
        _ if !key.is_of(&routed.principal.owner) => false,
        Order::Create(_) => true,
        _ if key.has_own_uuid() && !key.is_of(&Owner::Admins) => false,
        Order::Attach { .. } => true,
        _ => routed.order.begins(),
    };
    !subscribers.is_empty() || waiting.iter().any(begins)
}

/// The tools of calls that may or may not have been made: those without a result.
fn open_calls(loaded: &Loaded) -> HashSet<PluginName> {
    let mut open = HashMap::new();
    for logged in &loaded.events {
        match &logged.event {
            Event::ToolCalled(call) => {
                open.insert(&call.id, &call.name);
            }
            // Before it was approved it was not made.
            Event::ApprovalDecided(Decided { call, tool, .. }) => {
                open.insert(call, tool);
            }
            Event::ToolReturned(result) => {
                open.remove(&result.call);
            }
            _ => {}
        }
    }
    open.into_values().cloned().collect()
}

pub(super) fn refuse_all(waiting: Vec<Routed>, error: &Error) {
    for routed in waiting {
        routed.asker.reply(Err(error.clone()));
    }
}

/// Keeps on record the calls that were under way when the daemon or the session ended and are not made
/// again: nobody knows what came of them. One that had just ended may be on record with its outcome too.
fn record_cut_off(
    log_writer: &LogWriter,
    key: &SessionKey,
    conversation: &Conversation,
    is_made_again: impl Fn(&PluginName) -> bool,
) {
    let Some((run, Work::Act { calls, .. })) = conversation.work() else { return };
    for call in calls.into_iter().filter(|call| !is_made_again(&call.name)) {
        log_writer.record_call(CallRecord::cut_off(clock::now(), key, run, call));
    }
}
