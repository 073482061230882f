//! Records of a cluster's log, applied in the order of that log, and what only this daemon has of it meanwhile.
//!
//! With the changes of a record the store writes down, in the same transaction, that it has it: its place in the log
//! and the chain over all records up to it. So a store that was cut off goes on behind the last one, and none is applied
//! twice or left out. A record that is refused is refused by every daemon alike, and has its place all the same. So is
//! one that the database or the program fails over: none after it could be applied otherwise. Guards of keys are not
//! among them: the log forgets those after a day, and they say nothing for a store.
//!
//! Of each session the highest token is known that a record of it had. One with a lower token was written by a daemon
//! that was no longer the owner, which the log itself should have refused: nothing of it is applied. What is kept beside
//! sessions has no owner, and tokens have no order there.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use actix::{Handler, Message, ResponseFuture};
use bytes::Bytes;
use clawmux_core::cluster::stamp::{Token, accepts};
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::conversation::lane::LaneChange;
use clawmux_core::conversation::log::segment::Segment;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Seq, SessionKey};
use clawmux_core::replica::digest::{Digest, chained};
use clawmux_core::replica::{Appended, Record, Subject, Write};
use rusqlite::{OptionalExtension as _, params};

use super::change::{Change, MadeBy};
use super::columns::{Columns as _, integer};
use super::failure::Failure;
use super::live::Live;
use super::log_writer::Deletion;
use super::memories::{Kept, KeptTogether};
use super::query::Query;
use super::reader::Reader;
use super::usage;
use super::writer::Writer;
use super::{
    AgreeToTools, BeginCall, Forget, ForgetAll, KeepVectors, RecordCall, RecordUsage, SpendOnLearning, Store,
    WriteAgents, WriteChannel, WriteDevices, WriteFile, WriteJobs, WritePluginValue, WriteTokens,
};

/// Applies the next record of the log; answered once it will survive the end of the process, with how its change
/// went. Nothing is done where the store has it already.
///
/// Errors: `Conflict` where it is not the next one, `Unavailable` where a later clawmux wrote it or the store can't be
/// written, or where it is an envelope without its record; it is not applied then, nor can any later one be.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Replayed, Error>")]
pub struct Replay {
    /// Its number in the log.
    pub position: u64,
    /// The number of the record before it; 0 = it is the first.
    pub after: u64,
    /// What it is about, in the words of the log.
    pub subject: String,
    /// It as it is in the log: as [`Record::to_bytes`] made it, or its envelope.
    pub record: Bytes,
    /// The record of the envelope, where that is what is in the log.
    pub whole: Option<Bytes>,
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Replayed {
    /// Its change was made; of that of a session it is said what it was.
    Made(Option<SessionChanged>),
    /// Its change was refused, as by every other daemon.
    Refused(Error),
    /// The store had it already.
    Known,
}

/// What a record did to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionChanged {
    /// The session.
    pub session: SessionKey,
    /// The last number that it has now; none where it was deleted.
    pub head: Option<Seq>,
    /// Whether a call of it waits for approval from here on.
    pub is_asked: bool,
    /// What became of its runs in their lanes.
    pub lanes: Vec<LaneChange>,
}

impl SessionChanged {
    fn by(write: &Write) -> Option<Self> {
        match write {
            Write::Append(Appended { session, settled, events, .. }) => {
                let said = settled.iter().flat_map(|(_, segments)| segments).map(Segment::seq);
                let head = events.iter().map(|logged| logged.seq).chain(said).max()?;
                let is_asked = events.iter().any(|logged| matches!(logged.event, Event::ApprovalAsked(_)));
                let lanes = events.iter().filter_map(lane_change).collect();
                Some(Self { session: session.clone(), head: Some(head), is_asked, lanes })
            }
            Write::Delete { session, .. } => {
                Some(Self { session: session.clone(), head: None, is_asked: false, lanes: Vec::new() })
            }
            _ => None,
        }
    }
}

fn lane_change(logged: &Logged) -> Option<LaneChange> {
    let run = logged.run.as_ref()?;
    match &logged.event {
        Event::Prompted { run_options, .. } => {
            Some(LaneChange::Entered(run.clone(), run_options.lane.clone()?))
        }
        Event::Ended { .. } => Some(LaneChange::Left(run.clone())),
        _ => None,
    }
}

/// Asks how far the store is in the log of its cluster.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Position, Error>")]
pub struct ReadPosition;

/// How far a store is in the log of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the last record that was applied; 0 = none was.
    pub applied: u64,
    /// The chain over all records up to it.
    pub digest: Digest,
}

/// Asks where a subject of the log ends, as far as the store has it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<SubjectEnd, Error>")]
pub struct ReadSubject(pub String);

/// Where a subject ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubjectEnd {
    /// The number of its last record; 0 = it has none.
    pub last: u64,
    /// The highest token of one; of what is kept beside sessions, that of the last.
    pub token: Token,
}

/// Shows text of steps that are under way, which no record has yet; what this daemon has of it goes with the daemon.
/// Answered when it is shown.
///
/// Errors: `Internal` where a run is not open.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct ShowText {
    /// The session.
    pub session: SessionKey,
    /// The text, piece by piece.
    pub events: Vec<Logged>,
}

/// Forgets the text of a session that was shown and that no record will have: whoever goes on with the session says it
/// anew, under numbers that the log has next. Answered when it is gone.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct HideText(pub SessionKey);

/// A record on its way to the writer.
#[derive(Debug)]
struct Replaying {
    record: Replay,
    /// Set anew each time it is applied.
    outcome: Arc<Mutex<Replayed>>,
    /// Whether it is being applied, or failed at that.
    failed: AtomicBool,
    /// Whether it was tried once more, to be refused.
    given_up: AtomicBool,
}

impl Handler<Replay> for Store {
    type Result = ResponseFuture<Result<Replayed, Error>>;

    fn handle(&mut self, record: Replay, _: &mut Self::Context) -> Self::Result {
        let outcome = Arc::new(Mutex::new(Replayed::Known));
        let replaying = Replaying {
            record,
            outcome: Arc::clone(&outcome),
            failed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        };
        let written = self.writer.write(replaying);
        Box::pin(async move {
            written.await?;
            Ok(outcome.lock().unwrap_or_else(PoisonError::into_inner).clone())
        })
    }
}

impl Query for ReadPosition {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let position = tx.query_row("SELECT applied, digest FROM meta", [], |row| {
                Ok(Position { applied: row.number(0)?, digest: row.value(1)? })
            })?;
            Ok(position)
        })
    }
}

impl Query for ReadSubject {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let end = tx
                .prepare_cached("SELECT last, token FROM positions WHERE subject = ?")?
                .query_row([self.0], |row| {
                    Ok(SubjectEnd { last: row.number(0)?, token: Token(row.number(1)?) })
                })
                .optional()?;
            Ok(end.unwrap_or_default())
        })
    }
}

impl Handler<ShowText> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, text: ShowText, _: &mut Self::Context) -> Self::Result {
        self.writer.write(text)
    }
}

impl Change for ShowText {
    fn bytes(&self) -> usize {
        self.events.iter().map(|logged| logged.event.bytes()).sum()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::ThisDaemon
    }

    fn is_durable(&self, _: &Writer) -> bool {
        false
    }

    fn apply(&self, writer: &mut Writer, live: &mut Live) -> Result<(), Failure> {
        writer.show(live, &self.session, &self.events)
    }
}

impl Handler<HideText> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, text: HideText, _: &mut Self::Context) -> Self::Result {
        self.writer.write(text)
    }
}

impl Change for HideText {
    fn bytes(&self) -> usize {
        0
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::ThisDaemon
    }

    fn is_durable(&self, _: &Writer) -> bool {
        false
    }

    fn apply(&self, _: &mut Writer, live: &mut Live) -> Result<(), Failure> {
        live.forget(&self.0);
        Ok(())
    }
}

impl Change for Replaying {
    fn bytes(&self) -> usize {
        let Replay { record, whole, subject, .. } = &self.record;
        record.len() + whole.as_ref().map_or(0, Bytes::len) + subject.len()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::ThisDaemon
    }

    /// The log has it: what a power cut takes is applied again.
    fn is_durable(&self, _: &Writer) -> bool {
        false
    }

    fn is_tried_again(&self) -> bool {
        self.failed.load(Relaxed) && !self.given_up.swap(true, Relaxed)
    }

    fn apply(&self, writer: &mut Writer, live: &mut Live) -> Result<(), Failure> {
        let fails = self.failed.swap(true, Relaxed);
        let outcome = writer.replay(live, &self.record, fails)?;
        self.failed.store(false, Relaxed);
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        Ok(())
    }
}

impl Writer {
    /// Applies a record, or refuses it because it fails.
    fn replay(&mut self, live: &mut Live, record: &Replay, fails: bool) -> Result<Replayed, Failure> {
        let Replay { position, after, subject, record: bytes, whole } = record;
        let (applied, digest): (u64, Digest) = self
            .cached("SELECT applied, digest FROM meta")?
            .query_row([], |row| Ok((row.number(0)?, row.value(1)?)))?;
        if *position <= applied {
            return Ok(Replayed::Known);
        }
        if *after != applied {
            let why =
                format!("record {position} comes after {after}, and the store has those up to {applied}");
            return Err(ErrorCode::Conflict.error(why).into());
        }
        let highest = self
            .cached("SELECT token FROM positions WHERE subject = ?")?
            .query_row([subject], |row| row.number(0))
            .optional()?;
        let highest = Token(highest.unwrap_or_default());
        let read = Record::from_bytes(whole.as_ref().unwrap_or(bytes));
        let is_owned = |record: &Record| matches!(record.write.subject(), Subject::Session(_));
        let (outcome, token) = match read {
            Ok(record) if is_owned(&record) && !accepts(highest, record.stamp.token) => {
                let Token(token) = record.stamp.token;
                let why = format!("it was written under token {token}, and {subject} has {}", highest.0);
                tracing::error!(
                    position,
                    why,
                    "a record of the cluster was written by a daemon that did not own it"
                );
                (Replayed::Refused(ErrorCode::Conflict.error(why)), highest)
            }
            Ok(record) if fails => {
                tracing::error!(
                    position,
                    subject,
                    "the store fails over a record of the cluster: it is refused"
                );
                let error = ErrorCode::Internal.error("the store fails over this change");
                (Replayed::Refused(error), record.stamp.token)
            }
            Ok(record) => match self.make(live, &record) {
                Ok(()) => (Replayed::Made(SessionChanged::by(&record.write)), record.stamp.token),
                Err(Failure::Refused(error)) => (Replayed::Refused(error), record.stamp.token),
                Err(error) => return Err(error),
            },
            Err(error) if error.code == ErrorCode::Unavailable => return Err(error.into()),
            Err(error) => {
                tracing::error!(position, subject, %error, "a record of the cluster can't be read");
                (Replayed::Refused(error), highest)
            }
        };
        self.cached(
            "INSERT INTO positions (subject, last, token) VALUES (?1, ?2, ?3)
             ON CONFLICT (subject) DO UPDATE SET last = ?2, token = ?3",
        )?
        .execute(params![subject, integer(*position), integer(token.0)])?;
        let digest = chained(&digest, *position, subject, bytes);
        self.cached("UPDATE meta SET applied = ?, digest = ?")?
            .execute(params![integer(*position), digest])?;
        Ok(outcome)
    }

    /// Makes the change of a record.
    fn make(&mut self, live: &mut Live, record: &Record) -> Result<(), Failure> {
        let opened = std::mem::replace(&mut self.opened, integer(record.stamp.token.0));
        self.is_replaying = true;
        let made = self.make_change(live, record.write.clone());
        self.is_replaying = false;
        self.opened = opened;
        made
    }

    fn make_change(&mut self, live: &mut Live, write: Write) -> Result<(), Failure> {
        match write {
            Write::TakeOver(session) => {
                usage::count_interrupted(self.db(), Some(&session))?;
                Ok(())
            }
            Write::Guard(_) => Ok(()),
            Write::Append(appended) => self.append_record(live, &appended),
            Write::Delete { session, unused_since } => Deletion { session, unused_since }.apply(self, live),
            Write::Agents(changes) => WriteAgents(changes).apply(self, live),
            Write::Tokens(changes) => WriteTokens { changes, durable: true }.apply(self, live),
            Write::Devices(changes) => WriteDevices { changes, durable: true }.apply(self, live),
            Write::Jobs(changes) => WriteJobs(changes).apply(self, live),
            Write::File(change) => WriteFile { change, durable: true }.apply(self, live),
            Write::Channel { channel, now, changes } => {
                WriteChannel { channel, now, changes }.apply(self, live)
            }
            Write::PluginValue { namespace, key, value } => {
                WritePluginValue { namespace, key, value }.apply(self, live)
            }
            Write::AgreedTools { server, tools } => AgreeToTools { server, tools }.apply(self, live),
            Write::BeginCall { call, reserved } => BeginCall { call, reserved }.apply(self, live),
            Write::RecordUsage { call, records } => RecordUsage { call, records }.apply(self, live),
            Write::RecordCall(call) => RecordCall(call).apply(self, live),
            Write::Remember { memory, by_operator } => Kept::new(*memory, by_operator).apply(self, live),
            Write::Learn(facts) => KeptTogether::learned(facts).apply(self, live),
            Write::Import(memories) => KeptTogether::imported(memories).apply(self, live),
            Write::Forget { id, owner } => Forget { id, owner }.apply(self, live),
            Write::ForgetAll(owner) => ForgetAll(owner).apply(self, live),
            Write::KeepVectors { model, vectors } => KeepVectors { model, vectors }.apply(self, live),
            Write::SpendOnLearning { at, tokens } => SpendOnLearning { at, tokens }.apply(self, live),
        }
    }
}
