//! What becomes of slots, told to this daemon's sessions, and where each session is written.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use actix::{AsyncContext as _, Context, Handler, MessageResult, Recipient, ResponseFuture, WeakRecipient};
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::ownership::appender::Input as News;
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::Stamp;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::Subject;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::peers::Peers;
use super::rates::RateSharing;
use super::remote::{GetRemote, Locate, ToOthers};
use super::writing::{Answer, Stage, Waiting, What, Writing};
use super::{Cluster, SLOT_WAIT_MS, away, now_ms};
use crate::mirror::remote::{Attend, Place, SlotNews};
use crate::runtime::lead::Lead;
use crate::store::{HideText, Replayed};

/// How long the sessions of a slot that is to be given away have until the end of their step.
const VACATE_MAX: Duration = Duration::from_secs(10);

/// The slot whose owner leads.
const LEADS: u8 = 0;

/// How long it may take until a session of a slot that is held can be written.
const OPEN_MAX: Duration = Duration::from_secs(10);

/// Who is told, and who waits.
#[derive(Default)]
pub(super) struct Sessions {
    told: Option<Recipient<SlotNews>>,
    leader: Option<WeakRecipient<Lead>>,
    /// Whether records were applied and nobody was told of them.
    has_missed: bool,
    /// Slots whose sessions were told to end.
    vacating: HashSet<Slot>,
    /// The other daemons' slots, as they were told last.
    owners: HashMap<Slot, NodeName>,
    /// Those who wait until somebody owns a session, and since when; who does not wait is not among them.
    waiting: Vec<(SessionKey, Option<u64>, Located)>,
}

type Located = oneshot::Sender<Result<Place, Error>>;

impl Sessions {
    pub(super) fn gained(&mut self, slot: Slot) {
        self.owners.remove(&slot);
        self.lead(slot, true);
        self.tell(SlotNews::Gained(slot));
    }

    pub(super) fn lost(&mut self, slot: Slot) {
        self.vacating.remove(&slot);
        self.lead(slot, false);
        self.tell(SlotNews::Lost(slot));
    }

    #[expect(clippy::disallowed_methods, reason = "lost, two daemons would lead, or none")]
    fn lead(&self, slot: Slot, leads: bool) {
        if slot.number() == LEADS
            && let Some(leader) = self.leader.as_ref().and_then(WeakRecipient::upgrade)
        {
            leader.do_send(Lead(leads));
        }
    }

    /// The store may have applied records of which nobody is told one by one.
    pub(super) fn has_missed(&mut self) {
        self.has_missed = true;
    }

    /// Says so, once for all of them.
    pub(super) fn tell_of_missed(&mut self) {
        if std::mem::take(&mut self.has_missed) {
            self.tell(SlotNews::Missed);
        }
    }

    /// Whether sessions of this slot may still be awake, though they were told to end.
    pub(super) fn is_awake(&self, slot: Slot) -> bool {
        self.vacating.contains(&slot)
    }

    #[expect(clippy::disallowed_methods, reason = "lost, a session would have two owners here, or none")]
    fn tell(&self, news: SlotNews) {
        if let Some(told) = &self.told {
            told.do_send(news);
        }
    }
}

impl Cluster {
    fn to_others(&self, ctx: &Context<Self>) -> ToOthers {
        let (cluster, applied) = (ctx.address(), self.progress.subscribe());
        ToOthers { cluster, engine: (*self.engine).clone(), applied }
    }

    /// Has the sessions of a slot end, then what is written under it.
    pub(super) fn vacate(&mut self, slot: Slot, ctx: &mut Context<Self>) {
        if self.sessions.told.is_none() {
            return self.close(slot, ctx);
        }
        let (vacated, ends) = oneshot::channel();
        self.sessions.vacating.insert(slot);
        self.sessions.tell(SlotNews::Vacate(slot, vacated));
        let leader = self.sessions.leader.as_ref().filter(|_| slot.number() == LEADS);
        let resigned = leader.and_then(WeakRecipient::upgrade);
        let ends = async move {
            if let Some(leader) = resigned {
                let _ = leader.send(Lead(false)).await;
            }
            let _ = ends.await;
        };
        self.awaited.add(timeout(VACATE_MAX, ends), move |cluster, ended, ctx| {
            if !cluster.sessions.vacating.remove(&slot) {
                return;
            }
            if ended.is_err() {
                cluster.sessions.tell(SlotNews::Lost(slot));
            }
            cluster.close(slot, ctx);
        });
    }

    fn close(&mut self, slot: Slot, ctx: &mut Context<Self>) {
        for subject in self.subjects_of(slot) {
            self.tell(&subject, News::Close, ctx);
        }
        self.look_whether_vacated(slot, ctx);
    }

    /// Tells which slots have another owner than before.
    pub(super) fn tell_of_owners(&mut self) {
        for slot in Slot::all() {
            let owner = self.ownership.owner(slot).filter(|owner| **owner != self.settings.node);
            if let Some(owner) = owner
                && self.sessions.owners.get(&slot) != Some(owner)
            {
                self.sessions.owners.insert(slot, owner.clone());
                self.sessions.tell(SlotNews::Moved(slot, owner.clone()));
            }
        }
    }

    /// Tells what another daemon did in a session; what was there when this one joined is no news.
    pub(super) fn tell_of_change(&self, stamp: Option<Stamp>, outcome: &Replayed) {
        let Replayed::Made(Some(changed)) = outcome else { return };
        let is_ours = stamp.is_some_and(|stamp| self.own.contains(&stamp.token));
        if !is_ours && self.catches_up_to.is_none() {
            self.sessions.tell(SlotNews::Changed(changed.clone()));
        }
    }

    /// Says where a session is written, as soon as that is known.
    fn locate(&mut self, session: SessionKey, since: Option<u64>, located: Located, ctx: &mut Context<Self>) {
        let slot = Slot::of(&session);
        if self.ownership.token(slot).is_some() {
            return self.open(session, since, located, ctx);
        }
        match self.ownership.owner(slot) {
            // Whoever does not wait any more has no use for it.
            Some(owner) if *owner != self.settings.node => {
                let place = Place::There(owner.clone());
                self.located(session, since, place, located);
            }
            _ if has_waited(since) => {
                let _ = located.send(Err(away("no daemon of the cluster owns the session now: try again")));
            }
            _ => self.sessions.waiting.push((session, since, located)),
        }
    }

    /// Says that a session is written here, once nobody else can write it.
    fn open(&mut self, session: SessionKey, since: Option<u64>, located: Located, ctx: &mut Context<Self>) {
        let subject = Subject::Session(session.clone());
        let slot = Slot::of(&session);
        let writing = self
            .writings
            .entry(subject.clone())
            .or_insert_with(|| Writing::new(self.engine.session(&session, slot), Some(slot)));
        // What nobody waits for any more may be on its way: it is waited for before the session is read.
        let is_settled = since.is_none() || (writing.in_flight.is_none() && !self.stalled.contains(&subject));
        if is_settled && matches!(&writing.stage, Stage::Awake(appender) if appender.is_open()) {
            return self.located(session, since, Place::Here, located);
        }
        let (open, opened) = oneshot::channel();
        writing.queue.push_back(Waiting { what: What::Open, answer: Answer::of(open) });
        self.proceed(&subject, ctx);
        let opened = async move {
            match timeout(OPEN_MAX, opened).await {
                Ok(opened) => opened.unwrap_or_else(|_| Err(away("the session can't be opened: try again"))),
                Err(_) => Err(ErrorCode::Timeout.error("the log of the cluster takes too long: try again")),
            }
        };
        self.awaited.add(opened, move |cluster, opened, ctx| match opened {
            Ok(()) => cluster.located(session, since, Place::Here, located),
            // Another daemon may have it by now.
            Err(error) if error.code == ErrorCode::Unavailable && !has_waited(since) => {
                cluster.locate(session, since, located, ctx);
            }
            Err(error) => drop(located.send(Err(error))),
        });
    }

    /// Says where a session is written: to who is to go on with it (he waits) once the store has no text of it that was
    /// said in vain, by a session that fell or before it moved.
    fn located(&mut self, session: SessionKey, since: Option<u64>, place: Place, located: Located) {
        let writing = self.writings.get(&Subject::Session(session.clone()));
        let is_said = place == Place::Here && writing.is_some_and(|writing| !writing.is_silent());
        if is_said || since.is_none() {
            let _ = located.send(Ok(place));
            return;
        }
        let hidden = self.store.send(HideText(session));
        self.awaited.add(hidden, |_, hidden, _| {
            let hidden = hidden.unwrap_or_else(|_| Err(away("the store has stopped")));
            let _ = located.send(hidden.map(|()| place));
        });
    }

    /// Looks again for those who wait until somebody owns a session.
    pub(super) fn locate_again(&mut self, ctx: &mut Context<Self>) {
        for (session, since, located) in std::mem::take(&mut self.sessions.waiting) {
            self.locate(session, since, located, ctx);
        }
    }
}

/// Whether who asked then has waited for long enough; none = does not wait.
fn has_waited(since: Option<u64>) -> bool {
    since.is_none_or(|since| now_ms().saturating_sub(since) >= SLOT_WAIT_MS)
}

impl Handler<Locate> for Cluster {
    type Result = ResponseFuture<Result<Place, Error>>;

    fn handle(&mut self, Locate { session, waits }: Locate, ctx: &mut Self::Context) -> Self::Result {
        if let Some(fault) = self.why_nothing_can_be_written(now_ms()).filter(|_| waits) {
            return Box::pin(std::future::ready(Err(fault)));
        }
        let (located, place) = oneshot::channel();
        let since = waits.then(now_ms);
        self.locate(session, since, located, ctx);
        Box::pin(
            async move { place.await.unwrap_or_else(|_| Err(away("the session was not found: try again"))) },
        )
    }
}

impl Handler<GetRemote> for Cluster {
    type Result = MessageResult<GetRemote>;

    fn handle(&mut self, _: GetRemote, ctx: &mut Self::Context) -> Self::Result {
        MessageResult(self.to_others(ctx))
    }
}

impl Handler<Attend> for Cluster {
    type Result = ();

    fn handle(&mut self, attend: Attend, ctx: &mut Self::Context) {
        let Attend { sessions, orders, files, spending, leader } = attend;
        let me = &self.settings.node;
        self.peers = Some(Peers::start(me.clone(), self.to_others(ctx), orders, files));
        self.rates = Some(RateSharing::start(me.clone(), (*self.engine).clone(), spending));
        (self.sessions.told, self.sessions.leader) = (Some(sessions), Some(leader));
        for slot in Slot::all().filter(|slot| self.ownership.token(*slot).is_some()) {
            self.sessions.gained(slot);
        }
        self.sessions.owners.clear();
        self.tell_of_owners();
    }
}
