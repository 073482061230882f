//! What drives the machines of one node, as the daemon's actors do: it does what the actions say, wakes sessions and
//! puts them to sleep, and answers clients once something is written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use clawmux_core::cluster::node::{Epoch, Heartbeat, NodeName};
use clawmux_core::cluster::ownership::appender::{self, Appender, Attempt};
use clawmux_core::cluster::ownership::slots::{self, Ownership};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::{RecordId, Sequence, Stamp, Token, accepts};

use crate::engine::Stored;
use crate::outside::{Answer, Ask, Flaw, Flight, Load, Outside};
use crate::replica::Replica;
use crate::rules::{self, Check};
use crate::table::{Desk, TABLE};
use crate::toy::{Body, Conversation, Event};

/// How long silence may last, in milliseconds.
pub(crate) const LEASE_MS: u64 = 3000;

/// A session that is awake.
#[derive(Debug)]
pub(crate) struct Awake {
    serial: u64,
    appender: Appender<Body>,
    /// Nothing before its fence stands, and once it is lost.
    toy: Option<Conversation>,
    pub(crate) asked: Option<(Attempt, Option<Stamp>)>,
    pub(crate) pending: BTreeMap<RecordId, Pending>,
    /// Requests that were not appended.
    waiting: VecDeque<usize>,
    /// A call that was made here and has not returned.
    pub(crate) calling: Option<u32>,
    published: BTreeSet<RecordId>,
    is_closing: bool,
}

/// A record that is not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    body: Body,
    request: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) number: usize,
    pub(crate) name: NodeName,
    pub(crate) process: u32,
    /// What is only there while it runs.
    pub(crate) running: Option<Running>,
    pub(crate) replica: Replica,
    /// How far its clock is ahead, in milliseconds.
    pub(crate) ahead_ms: u64,
    pub(crate) stands_still: bool,
    /// It does not look at what became of its slots.
    pub(crate) is_blind: bool,
    slots: Vec<Slot>,
}

#[derive(Debug)]
pub(crate) struct Running {
    ownership: Ownership,
    pub(crate) epoch: Option<Epoch>,
    /// How much its replica has to apply before it is ready.
    behind: Option<usize>,
    pub(crate) held: BTreeMap<Slot, Token>,
    pub(crate) vacating: BTreeSet<Slot>,
    pub(crate) awake: BTreeMap<usize, Awake>,
    pub(crate) desk: Option<Desk>,
    pub(crate) records: u64,
    pub(crate) is_draining: bool,
    pub(crate) is_drained: bool,
}

impl Daemon {
    pub(crate) fn new(number: usize, sessions: usize, slots: Vec<Slot>) -> Self {
        let name = NodeName::new(format!("node-{number}"));
        let (ahead_ms, replica) = (1000 * number as u64, Replica::new(sessions));
        let (process, running, stands_still, is_blind) = (0, None, false, false);
        Self { number, name, process, running, replica, ahead_ms, stands_still, is_blind, slots }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.running.is_some() && !self.stands_still
    }

    pub(crate) fn slot(&self, session: usize) -> Slot {
        self.slots[session % self.slots.len()]
    }

    pub(crate) fn start(&mut self, now_ms: u64) {
        self.process += 1;
        let ownership =
            Ownership::new(self.name.clone(), LEASE_MS, self.slots.iter().copied(), now_ms + self.ahead_ms);
        self.running = Some(Running {
            ownership,
            epoch: None,
            behind: None,
            held: BTreeMap::new(),
            vacating: BTreeSet::new(),
            awake: BTreeMap::new(),
            desk: None,
            records: 0,
            is_draining: false,
            is_drained: false,
        });
    }

    pub(crate) fn stop(&mut self) {
        (self.running, self.stands_still, self.is_blind) = (None, false, false);
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        self.own(outside, now_ms, &slots::Input::Tick)?;
        self.tick_desk(outside, now_ms)?;
        let now_ms = now_ms + self.ahead_ms;
        for session in self.sessions() {
            let due = |awake: &Awake| awake.appender.deadline_ms().is_some_and(|at| at <= now_ms);
            if self.awake(session).is_some_and(|awake| due(awake)) {
                self.write(outside, now_ms - self.ahead_ms, session, appender::Input::Tick)?;
            }
        }
        self.put_to_sleep(outside, now_ms - self.ahead_ms)
    }

    fn sessions(&self) -> Vec<usize> {
        self.running.iter().flat_map(|running| running.awake.keys().copied()).collect()
    }

    fn awake(&mut self, session: usize) -> Option<&mut Awake> {
        self.running.as_mut()?.awake.get_mut(&session)
    }

    pub(crate) fn hear(&mut self, outside: &mut Outside<'_>, now_ms: u64, beat: &Heartbeat) -> Check {
        self.own(outside, now_ms, &slots::Input::Heard(beat))
    }

    pub(crate) fn drain(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        let Some(running) = self.running.as_mut().filter(|running| running.epoch.is_some()) else {
            return Ok(());
        };
        running.is_draining = true;
        self.own(outside, now_ms, &slots::Input::Drain)
    }

    pub(crate) fn call_off(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        if let Some(running) = &mut self.running {
            (running.is_draining, running.is_drained) = (false, false);
        }
        self.own(outside, now_ms, &slots::Input::CallOff)
    }

    // The slots.

    fn own(&mut self, outside: &mut Outside<'_>, now_ms: u64, input: &slots::Input<'_>) -> Check {
        let Some(running) = &mut self.running else { return Ok(()) };
        let mut actions = Vec::new();
        running.ownership.handle(input.clone(), now_ms + self.ahead_ms, &mut actions);
        for action in actions {
            self.act(outside, now_ms, action)?;
        }
        Ok(())
    }

    fn act(&mut self, outside: &mut Outside<'_>, now_ms: u64, action: slots::Action) -> Check {
        use slots::Action;
        let number = self.number;
        if !matches!(action, Action::Beat(_) | Action::ReadSlots) {
            outside.note(|| format!("node {number}: {action:?}"));
        }
        let Some(running) = &mut self.running else { return Ok(()) };
        match action {
            Action::Join => self.ask(outside, 0, Ask::Join),
            Action::Beat(beat) => outside.beats.push((number, beat)),
            Action::ReadSlots => self.ask(outside, 0, Ask::Slots),
            Action::WriteSlot { slot, expected, claim } => {
                let is_claim = claim.owner.is_some();
                self.ask(outside, 0, Ask::Write { slot, expected, claim });
                if is_claim && outside.has(Flaw::ClaimsWithoutAsking) {
                    let next = Token(expected.0 + 1);
                    self.own(outside, now_ms, &slots::Input::Accepted(slot, next))?;
                }
            }
            Action::Gained(slot, token) => {
                outside.figures.gained += 1;
                running.held.insert(slot, token);
                running.vacating.remove(&slot);
                self.rouse(outside, now_ms)?;
            }
            Action::Vacate(slot) => {
                running.vacating.insert(slot);
                self.put_to_sleep(outside, now_ms)?;
            }
            Action::Released(slot) => {
                outside.figures.handed_over += 1;
                running.held.remove(&slot);
                running.vacating.remove(&slot);
            }
            Action::Lost(slot) => {
                outside.figures.lost_slots += 1;
                if self.is_blind {
                    return Ok(());
                }
                running.held.remove(&slot);
                running.vacating.remove(&slot);
                for session in self.sessions() {
                    if self.slot(session) == slot
                        && let Some(awake) = self.awake(session)
                    {
                        (awake.toy, awake.is_closing) = (None, true);
                        self.write(outside, now_ms, session, appender::Input::Lose)?;
                    }
                }
            }
            Action::Drained => {
                running.is_drained = true;
                outside.figures.drained += 1;
            }
        }
        Ok(())
    }

    /// It looks at what it lost meanwhile.
    pub(crate) fn look_again(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        self.is_blind = false;
        let Some(running) = &self.running else { return Ok(()) };
        let is_lost = |slot: &Slot| running.ownership.owner(*slot) != Some(&self.name);
        let lost: Vec<Slot> = running.held.keys().copied().filter(is_lost).collect();
        lost.into_iter().try_for_each(|slot| self.act(outside, now_ms, slots::Action::Lost(slot)))
    }

    /// Ends what sleeps in slots that are being vacated, and says which of those have no session any more.
    fn put_to_sleep(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        let Some(running) = self.running.as_ref().filter(|running| !running.vacating.is_empty()) else {
            return Ok(());
        };
        let vacating = running.vacating.clone();
        for session in self.sessions() {
            let slot = self.slot(session);
            let Some(awake) = self.awake(session).filter(|_| vacating.contains(&slot)) else { continue };
            let is_idle = awake.toy.as_ref().is_none_or(|toy| toy.is_idle() && awake.waiting.is_empty());
            if !awake.is_closing && is_idle && awake.pending.is_empty() {
                awake.is_closing = true;
                self.write(outside, now_ms, session, appender::Input::Close)?;
            }
        }
        for slot in vacating {
            if self.sessions().into_iter().all(|session| self.slot(session) != slot) {
                self.own(outside, now_ms, &slots::Input::Vacated(slot))?;
            }
        }
        Ok(())
    }

    /// A drain takes no longer than this: sessions that are not idle are closed, too.
    pub(crate) fn hurry(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        self.rest_desk(outside, now_ms)?;
        let Some(running) = &self.running else { return Ok(()) };
        let vacating = running.vacating.clone();
        for session in self.sessions() {
            let slot = self.slot(session);
            if let Some(awake) =
                self.awake(session).filter(|awake| vacating.contains(&slot) && !awake.is_closing)
            {
                (awake.toy, awake.is_closing) = (None, true);
                self.write(outside, now_ms, session, appender::Input::Close)?;
            }
        }
        self.put_to_sleep(outside, now_ms)
    }

    // Sessions.

    /// Wakes what sleeps in the slots that are held and has something unfinished.
    fn rouse(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check<bool> {
        let mut has_woken = false;
        for session in 0..self.replica.sessions.len() {
            if !self.replica.sessions[session].conversation.is_idle() {
                has_woken |= self.wake(outside, now_ms, session)?;
            }
        }
        Ok(has_woken)
    }

    /// Wakes a session that sleeps here, where this node may.
    fn wake(&mut self, outside: &mut Outside<'_>, now_ms: u64, session: usize) -> Check<bool> {
        let slot = self.slot(session);
        let now_ms = now_ms + self.ahead_ms;
        let Some(running) = &mut self.running else { return Ok(false) };
        let Some(mut token) = running.held.get(&slot).copied() else { return Ok(false) };
        if outside.has(Flaw::TokenIsEpoch) {
            token = Token(running.epoch.map_or(0, |epoch| epoch.0));
        }
        let kept = &self.replica.sessions[session];
        let highest = if outside.has(Flaw::HeedsNoToken) { Token(0) } else { kept.highest };
        let may = !running.vacating.contains(&slot) && !running.awake.contains_key(&session);
        if !may || !accepts(highest, token) {
            return Ok(false);
        }
        (outside.serials, running.records) = (outside.serials + 1, running.records + 1);
        let mut actions = Vec::new();
        let appender =
            Appender::new(token, RecordId(running.records), (kept.last, highest), now_ms, &mut actions);
        let awake = Awake {
            serial: outside.serials,
            appender,
            toy: outside.has(Flaw::ActsBeforeTheFence).then(|| kept.conversation.clone()),
            asked: None,
            pending: BTreeMap::new(),
            waiting: VecDeque::new(),
            calling: None,
            published: BTreeSet::new(),
            is_closing: false,
        };
        running.awake.insert(session, awake);
        outside.note(|| format!("node {}: session {session} wakes under {token:?}", self.number));
        self.perform(outside, now_ms - self.ahead_ms, session, actions)?;
        if outside.has(Flaw::ActsBeforeTheFence) {
            self.work(outside, now_ms - self.ahead_ms, session)?;
        }
        Ok(true)
    }

    /// A client names a session.
    pub(crate) fn prompt(&mut self, outside: &mut Outside<'_>, now_ms: u64, request: usize) -> Check {
        let (key, session) = (outside.requests[request].key, outside.requests[request].session);
        if let Some(run) = self.replica.keys.get(&key) {
            outside.figures.answered_from_a_replica += 1;
            return outside.answer(request, *run);
        }
        self.wake(outside, now_ms, session)?;
        let is_vacated =
            self.running.as_ref().is_none_or(|running| running.vacating.contains(&self.slot(session)));
        if let Some(awake) = self.awake(session).filter(|awake| !awake.is_closing && !is_vacated)
            && !awake.waiting.contains(&request)
            && awake.pending.values().all(|pending| pending.request != Some(request))
        {
            awake.waiting.push_back(request);
            self.work(outside, now_ms, session)?;
        }
        Ok(())
    }

    /// Decides what a session does next. Nothing is appended behind a prompt that is not settled.
    fn work(&mut self, outside: &mut Outside<'_>, now_ms: u64, session: usize) -> Check {
        loop {
            let builds = outside.has(Flaw::BuildsOnAGuard);
            let Some(awake) = self.awake(session).filter(|awake| !awake.is_closing) else { return Ok(()) };
            let is_guarded = awake.pending.values().any(|pending| pending.request.is_some());
            let Some(toy) = awake.toy.as_ref().filter(|_| builds || !is_guarded) else { return Ok(()) };
            let prompt = awake.waiting.front().copied().filter(|_| awake.pending.is_empty());
            let (event, request) = if let Some(request) = prompt {
                awake.waiting.pop_front();
                outside.runs += 1;
                (Event::Prompted { key: outside.requests[request].key, run: outside.runs }, Some(request))
            } else if let Some(call) = toy.open_call() {
                let is_here = awake.calling == Some(call);
                let intended =
                    awake.pending.values().any(|pending| pending.body.event == Event::Called { call });
                if is_here || intended {
                    return Ok(());
                }
                outside.figures.interrupted += 1;
                (Event::Interrupted { call }, None)
            } else if let Some(event) = toy.next() {
                (event, None)
            } else {
                return Ok(());
            };
            self.append(outside, now_ms, session, (event, None), request)?;
        }
    }

    fn append(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        session: usize,
        (event, then): (Event, Option<Event>),
        request: Option<usize>,
    ) -> Check {
        let builds = outside.has(Flaw::BuildsOnAGuard);
        let Some(running) = &mut self.running else { return Ok(()) };
        let Some(awake) = running.awake.get_mut(&session) else { return Ok(()) };
        let Some(toy) = &mut awake.toy else { return Ok(()) };
        running.records += 1;
        let (id, body) = (RecordId(running.records), Body { first: toy.head + 1, event, then });
        // Whether a prompt is there is not known before it is written.
        if request.is_none() || builds {
            let applied = toy.apply(&body);
            let stamp = Stamp { token: awake.appender.token(), record: id };
            rules::a_record_follows(applied, session, stamp, &body)?;
        }
        awake.pending.insert(id, Pending { body, request });
        outside.figures.records += 1;
        outside.note(|| format!("node {}: session {session} appends {id:?} {body:?}", self.number));
        if let Event::Called { call } = event
            && outside.has(Flaw::ActsBeforeTheAck)
        {
            outside.effect(call)?;
        }
        let has_guard = request.is_some();
        self.write(outside, now_ms, session, appender::Input::Append { id, record: body, has_guard })
    }

    /// A call that was made here returns.
    pub(crate) fn returned(&mut self, outside: &mut Outside<'_>, now_ms: u64, session: usize) -> Check {
        let Some(awake) = self.awake(session).filter(|awake| awake.pending.is_empty()) else { return Ok(()) };
        let Some(call) = awake.calling.take() else { return Ok(()) };
        if let Some(toy) = awake.toy.as_ref().filter(|toy| toy.open_call() == Some(call)) {
            let result = toy.result(call);
            self.append(outside, now_ms, session, result, None)?;
        }
        self.work(outside, now_ms, session)
    }

    // The machine of a session.

    fn write(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        session: usize,
        input: appender::Input<'_, Body>,
    ) -> Check {
        let local_ms = now_ms + self.ahead_ms;
        let Some(awake) = self.awake(session) else { return Ok(()) };
        let mut actions = Vec::new();
        awake.appender.handle(input, local_ms, &mut actions);
        self.perform(outside, now_ms, session, actions)
    }

    fn perform(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        session: usize,
        actions: Vec<appender::Action<Body>>,
    ) -> Check {
        use appender::Action;
        for action in actions {
            let number = self.number;
            outside.note(|| format!("node {number}: session {session}: {action:?}"));
            let Some(awake) = self.running.as_mut().and_then(|running| running.awake.get_mut(&session))
            else {
                return Ok(());
            };
            let (token, serial) = (awake.appender.token(), awake.serial);
            match action {
                Action::Publish { attempt, stamp, mut expected, record, has_guard } => {
                    awake.asked = Some((attempt, Some(stamp)));
                    if !awake.published.insert(stamp.record) && outside.has(Flaw::ExpectsAnew) {
                        expected = outside.engine.last(session);
                    }
                    let key = record.and_then(|body| match body.event {
                        Event::Prompted { key, .. } if has_guard => Some(key),
                        _ => None,
                    });
                    let key = key.filter(|_| !outside.has(Flaw::LeavesOutTheGuard));
                    let body = record;
                    self.ask(outside, serial, Ask::Publish { session, attempt, stamp, expected, body, key });
                }
                Action::ReadSince(attempt, after) => {
                    awake.asked = Some((attempt, None));
                    self.ask(outside, serial, Ask::Read { session, attempt, after });
                }
                Action::ReadKey(attempt, id) => {
                    awake.asked = Some((attempt, None));
                    if let Some(Event::Prompted { key, .. }) = awake.pending.get(&id).map(|p| p.body.event) {
                        self.ask(outside, serial, Ask::Key { session, attempt, key });
                    }
                }
                Action::Opened => {
                    let fence = awake.published.first().map(|record| Stamp { token, record: *record });
                    let before = fence.and_then(|fence| outside.engine.before(session, fence));
                    rules::an_open_session_has_everything(self.replica.sessions[session].last, before)?;
                    if awake.toy.is_none() && !awake.is_closing {
                        awake.toy = Some(self.replica.sessions[session].conversation.clone());
                    }
                    self.work(outside, now_ms, session)?;
                }
                Action::Written(record, sequence) => {
                    self.written(outside, session, (token, record), sequence)?;
                    self.work(outside, now_ms, session)?;
                }
                Action::Lost(record) | Action::Taken(record) => {
                    let stamp = Stamp { token, record };
                    let pending = awake.pending.remove(&record);
                    rules::the_outcome_is_said_once(pending.is_some(), stamp)?;
                    outside.given_up.push((session, stamp));
                    if outside.unknown.remove(&(session, token.0, record.0)) {
                        outside.figures.unknown_not_written += 1;
                    }
                    if matches!(action, Action::Taken(_)) {
                        outside.figures.keys_taken += 1;
                        self.taken(outside, pending)?;
                        self.work(outside, now_ms, session)?;
                    } else {
                        outside.figures.given_up += 1;
                    }
                }
                Action::Stalled => outside.figures.stalled += 1,
                Action::Flows => outside.figures.flowed += 1,
                Action::Ended(outdone) => {
                    if let Some(running) = &mut self.running {
                        running.awake.remove(&session);
                    }
                    if let Some(higher) = outdone {
                        outside.figures.superseded += 1;
                        let slot = self.slot(session);
                        self.own(outside, now_ms, &slots::Input::Superseded(slot, higher))?;
                    }
                    self.rouse(outside, now_ms)?;
                }
            }
        }
        self.put_to_sleep(outside, now_ms)
    }

    fn written(
        &mut self,
        outside: &mut Outside<'_>,
        session: usize,
        (token, record): (Token, RecordId),
        sequence: Sequence,
    ) -> Check {
        let stamp = Stamp { token, record };
        let found = match outside.engine.stream.get(sequence.0 as usize - 1) {
            Some(Stored::Record { session: of, stamp, .. }) if *of == session => Some(*stamp),
            _ => None,
        };
        rules::what_is_written_is_at_its_place(found, stamp)?;
        outside.figures.written += 1;
        outside.figures.unknown_written += u64::from(outside.unknown.remove(&(session, token.0, record.0)));
        let builds = outside.has(Flaw::BuildsOnAGuard);
        let Some(awake) = self.awake(session) else { return Ok(()) };
        let pending = awake.pending.remove(&record);
        rules::the_outcome_is_said_once(pending.is_some(), stamp)?;
        let Some(Pending { body, request }) = pending else { return Ok(()) };
        match (body.event, &mut awake.toy) {
            (Event::Called { call }, Some(_)) => {
                awake.calling = Some(call);
                if !outside.has(Flaw::ActsBeforeTheAck) {
                    outside.effect(call)?;
                }
            }
            (Event::Prompted { .. }, Some(toy)) if !builds => {
                let applied = toy.apply(&body);
                rules::a_record_follows(applied, session, stamp, &body)?;
            }
            _ => {}
        }
        match (body.event, request) {
            (Event::Prompted { run, .. }, Some(request)) => outside.answer(request, run),
            _ => Ok(()),
        }
    }

    /// The key of a prompt stands for another's run.
    fn taken(&mut self, outside: &mut Outside<'_>, pending: Option<Pending>) -> Check {
        let Some(request) = pending.and_then(|pending| pending.request) else { return Ok(()) };
        let guard = outside.engine.guards.get(&outside.requests[request].key);
        let Some((_, run)) = guard.copied() else { return Ok(()) };
        outside.figures.answered_elsewhere += 1;
        outside.answer(request, run)
    }

    // The engine.

    pub(crate) fn ask(&self, outside: &mut Outside<'_>, serial: u64, ask: Ask) {
        let (node, process) = (self.number, self.process);
        outside.flights.push(Flight { node, process, serial, what: Load::Ask(ask) });
    }

    /// There is no answer to what a session asked last.
    pub(crate) fn time_out(&mut self, outside: &mut Outside<'_>, now_ms: u64, session: usize) -> Check {
        if session == TABLE {
            return self.time_out_of_table(outside, now_ms);
        }
        let Some(awake) = self.awake(session) else { return Ok(()) };
        let Some((attempt, stamp)) = awake.asked.take() else { return Ok(()) };
        if let Some(stamp) = stamp
            && awake.pending.contains_key(&stamp.record)
        {
            outside.figures.unknown += 1;
            outside.unknown.insert((session, stamp.token.0, stamp.record.0));
        }
        self.write(outside, now_ms, session, appender::Input::Unknown(attempt))
    }

    /// An answer came; one of an earlier process, or of an earlier awakening, comes to nobody.
    pub(crate) fn answered(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        serial: u64,
        answer: Answer,
    ) -> Check {
        use appender::Input;
        let is_blind = self.is_blind;
        let length = self.replica.applied;
        let Some(running) = &mut self.running else { return Ok(()) };
        let holds = !running.held.is_empty();
        if answer.session() == Some(TABLE) {
            return self.answered_of_table(outside, now_ms, serial, answer);
        }
        let (session, input, attempt) = match answer {
            Answer::Slots(_) if is_blind && holds => return Ok(()),
            Answer::Slots(entries) => return self.own(outside, now_ms, &slots::Input::SlotsRead(&entries)),
            Answer::Accepted(slot, revision) => {
                return self.own(outside, now_ms, &slots::Input::Accepted(slot, revision));
            }
            Answer::Joined(epoch, behind) => {
                if running.epoch.is_none() {
                    (running.epoch, running.behind) = (Some(epoch), Some(behind));
                    outside.note(|| format!("node {}: {epoch:?}, {length} of {behind}", self.number));
                    self.own(outside, now_ms, &slots::Input::Joined(epoch))?;
                }
                return self.catch_up(outside, now_ms);
            }
            Answer::Acked { session, record, sequence } => (session, Input::Acked(record, sequence), None),
            Answer::Transient { session, attempt } => (session, Input::Transient(attempt), Some(attempt)),
            Answer::Refused { session, attempt } => (session, Input::Refused(attempt), Some(attempt)),
            Answer::Key { session, attempt, guard } => {
                (session, Input::KeyIs(attempt, guard.map(|(stamp, _)| stamp)), Some(attempt))
            }
            Answer::Back { session, attempt, records } => {
                return self.read_back(outside, now_ms, serial, session, attempt, records);
            }
        };
        let Some(awake) = running.awake.get_mut(&session).filter(|awake| awake.serial == serial) else {
            return Ok(());
        };
        let asked = awake.asked.filter(|(last, _)| Some(*last) == attempt);
        if let Some((_, stamp)) = asked {
            awake.asked = None;
            let is_refused = matches!(input, Input::Refused(_));
            if let Some(stamp) = stamp.filter(|_| is_refused && outside.has(Flaw::BelievesARefusal)) {
                return self.give_up(outside, now_ms, session, stamp);
            }
        }
        self.write(outside, now_ms, session, input)
    }

    fn read_back(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        serial: u64,
        session: usize,
        attempt: Attempt,
        mut records: Vec<(Sequence, Stamp)>,
    ) -> Check {
        let Some(awake) = self.awake(session).filter(|awake| awake.serial == serial) else { return Ok(()) };
        if awake.asked.is_some_and(|(last, _)| last == attempt) {
            awake.asked = None;
            let own = awake.appender.token();
            let published = awake.pending.keys().next().copied().filter(|id| awake.published.contains(id));
            if let Some(record) = published.filter(|_| records.is_empty())
                && outside.has(Flaw::BelievesAnEmptyRead)
            {
                return self.give_up(outside, now_ms, session, Stamp { token: own, record });
            }
            if outside.has(Flaw::HeedsNoToken) {
                disregard(own, records.iter_mut().map(|(_, stamp)| stamp));
            }
        }
        self.write(outside, now_ms, session, appender::Input::ReadBack(attempt, &records))
    }

    /// A flaw: what is not known to be written is held for lost, and the session wakes anew.
    fn give_up(&mut self, outside: &mut Outside<'_>, now_ms: u64, session: usize, stamp: Stamp) -> Check {
        let Some(running) = &mut self.running else { return Ok(()) };
        let Some(awake) = running.awake.remove(&session) else { return Ok(()) };
        if awake.pending.contains_key(&stamp.record) {
            outside.given_up.push((session, stamp));
        }
        self.rouse(outside, now_ms).map(|_| ())
    }

    // The replica.

    /// Applies the next message of the stream.
    pub(crate) fn apply(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        let Some(stored) = outside.engine.stream.get(self.replica.applied).copied() else { return Ok(()) };
        if let Some((session, sequence, mut stamp)) = self.replica.apply(&stored) {
            if session == TABLE {
                self.applied_of_table(outside, now_ms, sequence, stamp)?;
            } else if let Some(awake) = self.awake(session) {
                let own = awake.appender.token();
                if outside.has(Flaw::HeedsNoToken) {
                    disregard(own, [&mut stamp].into_iter());
                }
                self.write(outside, now_ms, session, appender::Input::Applied(sequence, stamp))?;
            }
            if !outside.has(Flaw::SleepsOn) && self.rouse(outside, now_ms)? {
                outside.figures.woken_late += 1;
            }
        }
        self.catch_up(outside, now_ms)
    }

    fn catch_up(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        let applied = self.replica.applied;
        let is_ready = |running: &&mut Running| running.behind.is_some_and(|behind| applied >= behind);
        let Some(running) = self.running.as_mut().filter(is_ready) else { return Ok(()) };
        running.behind = None;
        self.own(outside, now_ms, &slots::Input::CaughtUp)
    }

    /// Whether nothing is under way here.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let rests = |awake: &Awake| awake.pending.is_empty() && awake.waiting.is_empty();
            let is_idle = running.desk.as_ref().is_none_or(Desk::is_idle);
            running.epoch.is_some() && !running.is_draining && is_idle && running.awake.values().all(rests)
        })
    }

    /// The session's calls that may return.
    pub(crate) fn calling(&self) -> impl Iterator<Item = usize> + '_ {
        let awake = self.running.iter().flat_map(|running| &running.awake);
        awake.filter(|(_, awake)| awake.calling.is_some()).map(|(session, _)| *session)
    }

    /// The sessions that wait for an answer of the engine, and the table where it does.
    pub(crate) fn asking(&self) -> impl Iterator<Item = usize> + '_ {
        let awake = self.running.iter().flat_map(|running| &running.awake);
        let asking = awake.filter(|(_, awake)| awake.asked.is_some()).map(|(session, _)| *session);
        let desk = self.running.iter().flat_map(|running| &running.desk);
        asking.chain(desk.filter(|desk| desk.asked.is_some()).map(|_| TABLE))
    }
}

/// A flaw: higher tokens are taken for old ones.
fn disregard<'a>(own: Token, stamps: impl Iterator<Item = &'a mut Stamp>) {
    for stamp in stamps.filter(|stamp| stamp.token > own) {
        stamp.token = Token(0);
    }
}
