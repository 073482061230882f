//! Sessions in a cluster: those of slots that this daemon owns are woken here, for others a [`Mirror`] stands in.
//!
//! A slot that is gained brings its unfinished runs along, and mirrors of its sessions give way to the sessions
//! themselves. One that is to be given away has its sessions end at their next step, those of one that is lost end at
//! once; who follows them goes on with a mirror.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::slot::Slot;
use clawmux_core::conversation::order::Order;
use clawmux_core::ids::SessionKey;
use tokio::sync::oneshot;

use super::order::closed;
use super::waking::refuse_all;
use super::{Entry, SessionSupervisor, State, caught, tell};
use crate::mirror::remote::{Place, Remote, SlotNews};
use crate::mirror::{Changed, LookAgain, Mirror, MirrorSupervisor, OwnedBy, OwnedHere, PassedOn};
use crate::runtime::ask::ask;
use crate::session::{Lose, MoveAway, Routed, Session};
use crate::store::{SessionChanged, Unfinished};

/// How long after a slot was gained it is looked for what is unfinished: slots come in numbers.
const RECOVERY_DELAY: Duration = Duration::from_millis(50);

/// When it is looked again after the store could not answer.
const RECOVERY_RETRY: Duration = Duration::from_secs(1);

/// The slots of this daemon.
#[derive(Default)]
pub(super) struct Slots {
    owned: HashSet<Slot>,
    /// Those that are to be given away, each until none of its sessions is awake.
    vacating: HashMap<Slot, oneshot::Sender<()>>,
    is_recovery_due: bool,
    /// Whether it is known which calls of others' sessions wait for approval: news come of those that are asked for.
    knows_what_waits: bool,
}

impl SessionSupervisor {
    /// Finds out where a session is written, and has it go on there.
    pub(super) fn find_place(&mut self, remote: &Arc<dyn Remote>, key: SessionKey) {
        let place = remote.locate(key.clone());
        self.awaited.add(place, move |supervisor, place, ctx| match place {
            Ok(Place::Here) => supervisor.read(key),
            Ok(Place::There(node)) => supervisor.mirror(key, node, ctx),
            Err(error) => {
                supervisor.recover_next();
                supervisor.not_woken(key, &error, ctx);
            }
        });
    }

    /// Has a mirror stand in for a session of another daemon.
    fn mirror(&mut self, key: SessionKey, node: NodeName, ctx: &mut Context<Self>) {
        self.recover_next();
        if !self.is_lost(&key) {
            // Its slot came while it was being found out whose it is.
            ctx.run_later(RECOVERY_DELAY, |supervisor, _| supervisor.wake(key));
            return;
        }
        let Some(remote) = self.setup.remote.clone() else { return };
        let Some(entry) = self.sessions.get_mut(&key).filter(|entry| entry.is_waking()) else { return };
        let State::Waking { waiting, subscribers } = std::mem::take(&mut entry.state) else { return };
        if self.draining {
            refuse_all(waiting, &closed());
            return self.forget(&key);
        }
        entry.owed = false;
        let arbiter = entry.arbiter.get_or_insert_with(|| self.setup.arbiters.next());
        let supervisor =
            MirrorSupervisor { reports: ctx.address().recipient(), back: ctx.address().recipient() };
        let whom = (remote, Arc::clone(&self.setup.deps));
        let mirror = Mirror::start_on(arbiter, (key, node), subscribers, whom, supervisor);
        entry.state = State::Elsewhere { mirror, sent: 0 };
        for routed in waiting {
            self.route(routed);
        }
    }

    /// Whether a session is another daemon's by now.
    pub(super) fn is_lost(&self, key: &SessionKey) -> bool {
        self.setup.remote.is_some() && !self.slots.owned.contains(&Slot::of(key))
    }

    /// Says of slots that are to be given away that none of their sessions is awake, where that is so.
    pub(super) fn look_whether_vacated(&mut self) {
        if self.slots.vacating.is_empty() {
            return;
        }
        let is_awake = |entry: &Entry| entry.state.session().is_some();
        let awake = self.sessions.iter().filter(|(_, entry)| is_awake(entry));
        let awake: HashSet<Slot> = awake.map(|(key, _)| Slot::of(key)).collect();
        self.slots.vacating.retain(|slot, _| awake.contains(slot));
    }

    fn of(&self, slot: Slot) -> Vec<SessionKey> {
        self.sessions.keys().filter(|key| Slot::of(key) == slot).cloned().collect()
    }

    fn gained(&mut self, slot: Slot, ctx: &mut Context<Self>) {
        self.slots.owned.insert(slot);
        for key in self.of(slot) {
            self.leave_mirror(&key);
        }
        self.recover_soon(RECOVERY_DELAY, ctx);
    }

    /// The session itself follows its mirror, once that has settled what it was asked.
    fn leave_mirror(&mut self, key: &SessionKey) {
        let Some(entry) = self.sessions.get_mut(key) else { return };
        if let State::Elsewhere { mirror, .. } = &entry.state {
            tell(mirror, OwnedHere);
            // What comes from here on waits for its end.
            entry.state = State::default();
        }
    }

    fn vacate(&mut self, slot: Slot, vacated: oneshot::Sender<()>) {
        self.slots.owned.remove(&slot);
        for key in self.of(slot) {
            self.leave(&key, MoveAway);
        }
        self.slots.vacating.insert(slot, vacated);
        self.look_whether_vacated();
    }

    fn lost(&mut self, slot: Slot) {
        self.slots.owned.remove(&slot);
        for key in self.of(slot) {
            self.leave(&key, Lose);
        }
    }

    /// Tells a session to end, for another daemon goes on; what comes from here on waits until it has.
    fn leave<M>(&mut self, key: &SessionKey, told: M)
    where
        M: Message<Result = ()> + Send + 'static,
        Session: Handler<M>,
    {
        let Some(entry) = self.sessions.get_mut(key) else { return };
        match &entry.state {
            State::Awake { session, .. } => {
                tell(session, told);
                entry.state = State::Leaving { session: session.clone(), waiting: Vec::new() };
            }
            State::Leaving { session, .. } => tell(session, told),
            State::Waking { .. } | State::Elsewhere { .. } | State::Parked { .. } => {}
        }
    }

    fn moved(&mut self, slot: Slot, node: &NodeName) {
        for key in self.of(slot) {
            if let Some(Entry { state: State::Elsewhere { mirror, .. }, .. }) = self.sessions.get(&key) {
                tell(mirror, OwnedBy(node.clone()));
            }
        }
    }

    /// Another daemon wrote something in a session.
    fn changed(&mut self, changed: SessionChanged, ctx: &mut Context<Self>) {
        let is_ours = !self.is_lost(&changed.session);
        match self.sessions.get(&changed.session).map(|entry| &entry.state) {
            Some(State::Elsewhere { mirror, .. }) => {
                tell(mirror, Changed(changed));
            }
            Some(_) => {}
            // It was on its way when the slot moved: nobody else goes on with it.
            None if is_ours => self.recover_soon(RECOVERY_DELAY, ctx),
            None if changed.is_asked || !self.setup.deps.watchers.is_empty() => {
                self.sessions.insert(changed.session.clone(), Entry::default());
                self.wake(changed.session);
            }
            None => {}
        }
    }

    /// Something may have been written of which nothing was said.
    fn missed(&mut self, ctx: &mut Context<Self>) {
        for entry in self.sessions.values() {
            if let State::Elsewhere { mirror, .. } = &entry.state {
                tell(mirror, LookAgain);
            }
        }
        self.slots.knows_what_waits = false;
        self.recover_soon(RECOVERY_DELAY, ctx);
    }

    /// Wakes what is unfinished in the slots of this daemon.
    fn recover_soon(&mut self, delay: Duration, ctx: &mut Context<Self>) {
        if self.draining || std::mem::replace(&mut self.slots.is_recovery_due, true) {
            return;
        }
        ctx.run_later(delay, |supervisor, _| {
            supervisor.slots.is_recovery_due = false;
            let store = supervisor.setup.deps.store.clone();
            let unfinished = async move { ask(&store, Unfinished).await.flatten() };
            supervisor.awaited.add(unfinished, |supervisor, unfinished, ctx| match unfinished {
                Ok(mut unfinished) => {
                    // A mirror finds out what waits for approval, and goes where nothing does.
                    let has_mirrors = !std::mem::replace(&mut supervisor.slots.knows_what_waits, true);
                    unfinished.retain(|key| {
                        (has_mirrors || !supervisor.is_lost(key)) && !supervisor.sessions.contains_key(key)
                    });
                    supervisor.recover(unfinished);
                }
                Err(error) => {
                    tracing::warn!(%error, "what is unfinished can't be read: it is tried again");
                    supervisor.recover_soon(RECOVERY_RETRY, ctx);
                }
            });
        });
    }

    /// An order of another daemon's client, or one that came back from there.
    fn passed_on(&mut self, routed: Routed, is_again: bool, ctx: &mut Context<Self>) {
        // It came before the news that the session is ours.
        self.leave_mirror(&routed.session);
        match &routed.order {
            Order::Submit { submission, .. } if is_again => {
                let run = submission.run.clone();
                let found = self.find_run(submission.owner.clone(), run.to_string(), true);
                self.in_turn(found, |supervisor, found, ctx| match found {
                    Ok(Some((_, run, seq))) => {
                        let order = Order::Follow { run, seq, follow: routed.order.is_followed() };
                        supervisor.route(Routed { order, ..routed });
                    }
                    Ok(None) => supervisor.passed_on(routed, false, ctx),
                    Err(error) => routed.asker.reply(Err(error)),
                });
            }
            Order::Inject { id: Some(id), .. } if is_again => {
                let id = id.clone();
                self.inject_once(&id, routed);
            }
            Order::Submit { submission, .. } => {
                let key = submission.idempotency_key.clone();
                match key {
                    Some(key) => {
                        let owner = submission.owner.clone();
                        self.submit_once((owner, key), routed, None, ctx);
                    }
                    None if self.closed => routed.asker.reply(Err(closed())),
                    None => self.route_in_turn(routed),
                }
            }
            _ => self.route_in_turn(routed),
        }
    }
}

impl Handler<SlotNews> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, news: SlotNews, ctx: &mut Self::Context) {
        match news {
            SlotNews::Gained(slot) => self.gained(slot, ctx),
            SlotNews::Vacate(slot, vacated) => self.vacate(slot, vacated),
            SlotNews::Lost(slot) => self.lost(slot),
            SlotNews::Moved(slot, node) => self.moved(slot, &node),
            SlotNews::Changed(changed) => self.changed(changed, ctx),
            SlotNews::Missed => self.missed(ctx),
        }
    }
}

impl Handler<PassedOn> for SessionSupervisor {
    type Result = ();

    fn handle(&mut self, PassedOn { routed, is_again }: PassedOn, ctx: &mut Self::Context) {
        caught(|| self.passed_on(routed, is_again, ctx));
    }
}
