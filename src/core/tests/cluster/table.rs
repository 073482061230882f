//! What is kept beside sessions, as small as can be: names, each of which is taken once. Every node writes it, all at
//! once, and whether a name was free is decided where a record is applied.

use std::collections::{BTreeMap, BTreeSet};

use clawmux_core::cluster::ownership::appender::{Action, Appender, Attempt, Input};
use clawmux_core::cluster::stamp::{RecordId, Sequence, Stamp, Token};

use crate::daemon::Daemon;
use crate::engine::Stored;
use crate::outside::{Answer, Ask, Flaw, Outside};
use crate::rules::{self, Check};

/// Its number among the subjects, behind those of the sessions.
pub(crate) const TABLE: usize = 4;

/// A record: somebody wants a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: u32,
    /// By which wish.
    pub(crate) by: usize,
}

/// The fold of its records: who has a name.
pub(crate) type Names = BTreeMap<u32, usize>;

/// Takes in a record. Who came first has the name.
pub(crate) fn take(names: &mut Names, Wanted { name, by }: Wanted) {
    names.entry(name).or_insert(by);
}

/// A node's writer of the table.
#[derive(Debug)]
pub(crate) struct Desk {
    serial: u64,
    appender: Appender<Wanted>,
    pub(crate) asked: Option<(Attempt, Option<Stamp>)>,
    /// What was appended and is not settled.
    pending: BTreeMap<RecordId, Wanted>,
    /// What is in the stream, and is not applied here.
    written: BTreeMap<RecordId, Wanted>,
    published: BTreeSet<(RecordId, Sequence)>,
}

impl Desk {
    /// Whether nobody waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.written.is_empty()
    }

    fn holds(&self, wish: usize) -> bool {
        self.pending.values().chain(self.written.values()).any(|wanted| wanted.by == wish)
    }
}

impl Daemon {
    fn desk(&mut self) -> Option<&mut Desk> {
        self.running.as_mut()?.desk.as_mut()
    }

    /// A client wants a name.
    pub(crate) fn want(&mut self, outside: &mut Outside<'_>, now_ms: u64, wish: usize) -> Check {
        let Some(epoch) = self.running.as_ref().and_then(|running| running.epoch) else { return Ok(()) };
        if self.desk().is_none() {
            let token = if outside.has(Flaw::StampsAlike) { Token(1) } else { Token(epoch.0) };
            outside.serials += 1;
            let mut actions = Vec::new();
            let appender = Appender::shared(token, self.replica.table, &mut actions);
            let (asked, pending, written, published) = Default::default();
            let desk = Desk { serial: outside.serials, appender, asked, pending, written, published };
            if let Some(running) = &mut self.running {
                running.desk = Some(desk);
            }
            self.carry_out(outside, actions)?;
        }
        let Some(running) = &mut self.running else { return Ok(()) };
        let Some(desk) = running.desk.as_mut().filter(|desk| !desk.holds(wish)) else { return Ok(()) };
        running.records += 1;
        let (id, record) = (RecordId(running.records), Wanted { name: outside.wishes[wish].name, by: wish });
        desk.pending.insert(id, record);
        self.write_down(outside, now_ms, Input::Append { id, record, has_guard: false })
    }

    pub(crate) fn write_down(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        input: Input<'_, Wanted>,
    ) -> Check {
        let local_ms = now_ms + self.ahead_ms;
        let Some(desk) = self.desk() else { return Ok(()) };
        let mut actions = Vec::new();
        desk.appender.handle(input, local_ms, &mut actions);
        self.carry_out(outside, actions)
    }

    fn carry_out(&mut self, outside: &mut Outside<'_>, actions: Vec<Action<Wanted>>) -> Check {
        for action in actions {
            let number = self.number;
            outside.note(|| format!("node {number}: table: {action:?}"));
            let Some(desk) = self.desk() else { return Ok(()) };
            let (token, serial) = (desk.appender.token(), desk.serial);
            match action {
                Action::Publish { attempt, stamp, mut expected, record, .. } => {
                    desk.asked = Some((attempt, Some(stamp)));
                    let before = desk.published.range((stamp.record, Sequence(0))..);
                    let before = before.filter(|(record, _)| *record == stamp.record);
                    let mut is_again = false;
                    for (_, at) in before {
                        is_again = true;
                        outside.figures.overtaken += u64::from(*at < expected);
                    }
                    if is_again && outside.has(Flaw::MovesOnTooEarly) {
                        expected = outside.engine.last(TABLE);
                    }
                    desk.published.insert((stamp.record, expected));
                    if let Some(record) = record {
                        self.ask(outside, serial, Ask::Want { attempt, stamp, expected, record });
                    }
                }
                Action::ReadSince(attempt, after) => {
                    desk.asked = Some((attempt, None));
                    self.ask(outside, serial, Ask::Read { session: TABLE, attempt, after });
                }
                Action::Written(record, sequence) => {
                    let found = match outside.engine.stream.get(sequence.0 as usize - 1) {
                        Some(Stored::Wanted { stamp, .. }) => Some(*stamp),
                        _ => None,
                    };
                    let stamp = Stamp { token, record };
                    rules::what_is_written_is_at_its_place(found, stamp)?;
                    let pending = desk.pending.remove(&record);
                    rules::the_outcome_is_said_once(pending.is_some(), stamp)?;
                    let unknown = outside.unknown.remove(&(TABLE, token.0, record.0));
                    outside.figures.unknown_of_the_table += u64::from(unknown);
                    if let Some(wanted) = pending {
                        desk.written.insert(record, wanted);
                        if outside.has(Flaw::TakesWrittenForMade) {
                            outside.told(wanted.by, true)?;
                        }
                    }
                }
                Action::Lost(record) => {
                    let stamp = Stamp { token, record };
                    let pending = desk.pending.remove(&record);
                    rules::the_outcome_is_said_once(pending.is_some(), stamp)?;
                    outside.given_up.push((TABLE, stamp));
                }
                Action::Stalled => outside.figures.stalled += 1,
                Action::Flows => outside.figures.flowed += 1,
                Action::Ended(_) => {
                    if let Some(running) = &mut self.running {
                        running.desk = None;
                    }
                }
                Action::Opened | Action::Taken(_) | Action::ReadKey(..) => {}
            }
        }
        Ok(())
    }

    /// Puts the writer to sleep that has nothing to write.
    pub(crate) fn rest_desk(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        match self.desk() {
            Some(desk) if desk.is_idle() => self.write_down(outside, now_ms, Input::Close),
            _ => Ok(()),
        }
    }

    pub(crate) fn tick_desk(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        let local_ms = now_ms + self.ahead_ms;
        let is_due =
            |desk: &mut Desk| desk.appender.deadline_ms().is_some_and(|deadline_ms| deadline_ms <= local_ms);
        match self.desk().is_some_and(is_due) {
            true => self.write_down(outside, now_ms, Input::Tick),
            false => Ok(()),
        }
    }

    /// The replica has a record of the table: where it is one of this node's, whoever asked is told how it went.
    pub(crate) fn applied_of_table(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        sequence: Sequence,
        stamp: Stamp,
    ) -> Check {
        self.write_down(outside, now_ms, Input::Applied(sequence, stamp))?;
        let is_ours = |desk: &&mut Desk| desk.appender.token() == stamp.token;
        let wanted = self.desk().filter(is_ours).and_then(|desk| desk.written.remove(&stamp.record));
        let Some(Wanted { name, by }) = wanted else { return Ok(()) };
        outside.told(by, self.replica.names.get(&name) == Some(&by))
    }

    /// An answer of the engine about the table.
    pub(crate) fn answered_of_table(
        &mut self,
        outside: &mut Outside<'_>,
        now_ms: u64,
        serial: u64,
        answer: Answer,
    ) -> Check {
        let Some(desk) = self.desk().filter(|desk| desk.serial == serial) else { return Ok(()) };
        let of = match &answer {
            Answer::Transient { attempt, .. }
            | Answer::Refused { attempt, .. }
            | Answer::Back { attempt, .. } => Some(*attempt),
            _ => None,
        };
        if desk.asked.is_some_and(|(last, _)| Some(last) == of) {
            desk.asked = None;
        }
        let input = match &answer {
            Answer::Acked { record, sequence, .. } => Input::Acked(*record, *sequence),
            Answer::Transient { attempt, .. } => Input::Transient(*attempt),
            Answer::Refused { attempt, .. } => Input::Refused(*attempt),
            Answer::Back { attempt, records, .. } => Input::ReadBack(*attempt, records),
            _ => return Ok(()),
        };
        self.write_down(outside, now_ms, input)
    }

    /// There is no answer to what was asked last about the table.
    pub(crate) fn time_out_of_table(&mut self, outside: &mut Outside<'_>, now_ms: u64) -> Check {
        let Some(desk) = self.desk() else { return Ok(()) };
        let Some((attempt, stamp)) = desk.asked.take() else { return Ok(()) };
        if let Some(stamp) = stamp.filter(|stamp| desk.pending.contains_key(&stamp.record)) {
            outside.figures.unknown += 1;
            outside.unknown.insert((TABLE, stamp.token.0, stamp.record.0));
        }
        self.write_down(outside, now_ms, Input::Unknown(attempt))
    }
}
