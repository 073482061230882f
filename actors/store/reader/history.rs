//! What was said in a session: for people, not for the model.
//!
//! A conversation is told run by run, in the order of their prompts: the prompt, what tools answered,
//! and, once the run is over, the text of all its steps; but not what a restart made void. The number
//! of messages a run has is known without reading it, so that a place is told for each however far
//! back it is.

use std::collections::{HashMap, VecDeque};

use clawmux_core::conversation::answer::Answer;
use clawmux_core::conversation::approval::ApprovalRequest;
use clawmux_core::conversation::command::Before;
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::conversation::log::record;
use clawmux_core::conversation::log::segment::Segment;
use clawmux_core::conversation::order::Cut;
use clawmux_core::conversation::reply::{Preview, UnderWay};
use clawmux_core::conversation::transcript::{Entry, History, Message, Role, Said, Transcript};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{CallId, Owner, PluginName, RunId, Seq, SessionKey};
use clawmux_core::provider::model::ModelRef;
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::{Reader, Span, Text, events_of, logged, session_row, sessions, span};
use crate::store::columns::{Columns, integer};
use crate::store::failure::Failure;
use crate::store::query::Query;

/// Asks for the newest messages since the conversation was last cleared, oldest first: each run's
/// prompt and then its answer, which is what clients saw of it. A run that goes on has no answer
/// yet.
#[derive(Clone, Debug, actix::Message)]
#[rtype(result = "Result<History, Error>")]
pub struct ReadHistory {
    /// The session.
    pub session: SessionKey,
    /// At most so many.
    pub limit: usize,
    /// Only those before this one.
    pub before: Option<Before>,
    /// At most so many bytes as JSON: the newest message is given all the same, as far as it fits.
    pub max_bytes: usize,
}

/// Asks for the newest messages of a conversation in full, with the run under way. None where there is
/// no such session; what its next run will ask is not filled in.
#[derive(Clone, Debug, actix::Message)]
#[rtype(result = "Result<Option<Transcript>, Error>")]
pub struct ReadTranscript {
    /// The session.
    pub session: SessionKey,
    /// At most so many messages.
    pub limit: usize,
    /// At most so many bytes of them as JSON: the newest message is given all the same, as far as it fits.
    pub bytes_max: usize,
    /// As of which number the run under way is told; none = now.
    pub at: Option<Seq>,
}

/// Asks for the last messages of some sessions, in short.
#[derive(Clone, Debug, actix::Message)]
#[rtype(result = "Result<Vec<Preview>, Error>")]
pub struct ReadPreviews {
    /// The sessions.
    pub sessions: Vec<SessionKey>,
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// At most so many messages of each.
    pub limit: usize,
    /// At most so many characters of each message.
    pub chars_max: usize,
}

/// Asks after which number one has to begin to be told of the last turns that are not forgotten, and of
/// all that runs or waits: so that the prompt of each of these is told. None where nothing has to be told.
#[derive(Clone, Debug, actix::Message)]
#[rtype(result = "Result<Option<Seq>, Error>")]
pub struct FindTurn {
    /// The session.
    pub session: SessionKey,
    /// How many turns.
    pub turns: usize,
}

/// Asks up to where a conversation is to be forgotten so that this many messages are kept, or a few
/// more: what belongs to one run is kept together. None where nothing is to be forgotten.
#[derive(Clone, Debug, actix::Message)]
#[rtype(result = "Result<Option<Cut>, Error>")]
pub struct FindCut {
    /// The session.
    pub session: SessionKey,
    /// How many.
    pub keep: usize,
}

/// Runs that are remembered, newest first, from the one prompted with a number on; the columns are
/// those that [`run_summary`] reads.
const REMEMBERED: &str = "SELECT r.id, r.run, r.prompted, r.ended, r.messages, r.provider, r.model
    FROM sessions s JOIN runs r ON r.session = s.id
    WHERE s.id = ?1 AND r.prompted BETWEEN s.kept_from AND ?2 AND (r.ended IS NULL OR r.ended > s.cleared)
    ORDER BY r.prompted DESC";

/// A run, and what is known of it without reading it.
struct RunSummary {
    span: Span,
    messages: u64,
    model: Option<ModelRef>,
}

fn run_summary(row: &Row<'_>) -> rusqlite::Result<RunSummary> {
    let model = match (row.get(5)?, row.get(6)?) {
        (Some(provider), Some(model)) => Some(ModelRef { provider, model }),
        _ => None,
    };
    Ok(RunSummary { span: span(row)?, messages: row.number(4)?, model })
}

impl Query for ReadHistory {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let history = |messages: VecDeque<Message>, more| History {
            session: self.session.clone(),
            messages: messages.into(),
            more,
        };
        reader.view(None, |tx, _| {
            let Some(session) = session_row(tx, &self.session)? else {
                return Ok(history(VecDeque::new(), false));
            };
            let mut last = i64::MAX;
            if let Some(before) = &self.before {
                last = tx
                    .prepare_cached("SELECT prompted FROM runs WHERE session = ? AND run = ?")?
                    .query_row(params![session, before.run.as_str()], |row| row.get(0))
                    .optional()?
                    .ok_or_else(|| no_such_run(&self.session, &before.run))?;
            }
            let mut statement = tx.prepare_cached(REMEMBERED)?;
            let mut runs = statement.query(params![session, last])?;
            // Newest first, until there are enough.
            let (mut messages, mut left) = (VecDeque::new(), self.max_bytes);
            while let Some(row) = runs.next()? {
                let told = run_summary(row)?;
                let is_asked = |role| match &self.before {
                    Some(Before { run, role: before }) if *run == told.span.run => {
                        *before == Role::Assistant && role == Role::User
                    }
                    _ => true,
                };
                let entries = entries(tx, session, &told)?;
                let said = entries.into_iter().rev().filter_map(|entry| message(entry, &told.span.run));
                for mut message in said.filter(|message| is_asked(message.role)) {
                    if messages.is_empty() {
                        message.clip(self.max_bytes);
                    }
                    // At a glance first: a message may have megabytes.
                    let fits = || message.content.len() <= left && message.json_bytes() <= left;
                    if messages.len() == self.limit || !(messages.is_empty() || fits()) {
                        return Ok(history(messages, true));
                    }
                    left = left.saturating_sub(message.json_bytes());
                    messages.push_front(message);
                }
            }
            Ok(history(messages, false))
        })
    }
}

impl Query for ReadTranscript {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let text = Text { up_to: self.at.unwrap_or(Seq(u64::MAX)), ..Text::all_of(&self.session) };
        reader.view(Some(text), |tx, streaming| {
            let Some(session) = session_row(tx, &self.session)? else { return Ok(None) };
            let row = sessions::one(tx, session, true)?;
            let total = tx
                .prepare_cached("SELECT messages FROM sessions WHERE id = ?")?
                .query_row([session], |row| row.number(0))?;
            let head = row.head.max(streaming.head);
            let entries = newest(tx, session, total, &self)?;
            let under_way = under_way(tx, session, self.at, head, streaming.events)?;
            let queued = queued(tx, session, self.at.unwrap_or(head).min(head), under_way.as_ref())?;
            Ok(Some(Transcript { row: Some(row), entries: entries.into(), total, head, under_way, queued }))
        })
    }
}

impl Query for ReadPreviews {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let preview = |key: &SessionKey| -> Result<Preview, Failure> {
                let found = tx
                    .prepare_cached("SELECT id, owner FROM sessions WHERE key = ?")?
                    .query_row([key.as_str()], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
                    .optional()?;
                let mine = |owner: &str| self.owner.as_ref().is_none_or(|asked| asked.as_str() == owner);
                let Some((session, _)) = found.filter(|(_, owner)| mine(owner)) else {
                    return Ok(Preview { messages: None });
                };
                let mut statement = tx.prepare_cached(REMEMBERED)?;
                let mut runs = statement.query(params![session, i64::MAX])?;
                let mut messages = VecDeque::new();
                while messages.len() < self.limit
                    && let Some(row) = runs.next()?
                {
                    let told = run_summary(row)?;
                    let entries = entries(tx, session, &told)?;
                    let said = entries.into_iter().rev().filter_map(|entry| message(entry, &told.span.run));
                    for Message { role, mut content, .. } in said.take(self.limit - messages.len()) {
                        if let Some((end, _)) = content.char_indices().nth(self.chars_max) {
                            content.truncate(end);
                        }
                        content.shrink_to_fit();
                        messages.push_front((role, content));
                    }
                }
                Ok(Preview { messages: Some(messages.into()) })
            };
            self.sessions.iter().map(preview).collect()
        })
    }
}

impl Query for FindTurn {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let turns = integer(self.turns);
        reader.view(None, |tx, _| {
            let Some(session) = session_row(tx, &self.session)? else { return Ok(None) };
            let first: Option<i64> = tx
                .prepare_cached(
                    "SELECT min(prompted) FROM (
                         SELECT prompted FROM (
                             SELECT r.prompted FROM sessions s JOIN runs r ON r.session = s.id
                             WHERE s.id = ?1 AND r.prompted >= s.kept_from
                                 AND (r.ended IS NULL OR r.ended > s.cleared)
                             ORDER BY r.prompted DESC LIMIT ?2)
                         UNION ALL
                         SELECT min(prompted) FROM runs INDEXED BY runs_unfinished
                         WHERE session = ?1 AND ended IS NULL)",
                )?
                .query_row(params![session, turns], |row| row.get(0))?;
            Ok(first.map(|first| Seq(u64::try_from(first).unwrap_or(1).saturating_sub(1))))
        })
    }
}

impl Query for FindCut {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let Some(session) = session_row(tx, &self.session)? else { return Ok(None) };
            let mut statement = tx.prepare_cached(
                "SELECT r.ended, r.messages FROM sessions s JOIN runs r ON r.session = s.id
                 WHERE s.id = ? AND r.prompted >= s.kept_from AND (r.ended IS NULL OR r.ended > s.cleared)
                 ORDER BY r.ended IS NULL DESC, r.ended DESC",
            )?;
            let mut runs = statement.query([session])?;
            let (mut kept, mut forgotten, mut up_to) = (0, 0, None);
            while let Some(row) = runs.next()? {
                let (ended, messages) = (row.get::<_, Option<i64>>(0)?, row.number(1)?);
                let messages = usize::try_from(messages).unwrap_or(usize::MAX);
                match ended {
                    Some(_) if kept >= self.keep => {
                        // The first of them is the last that ended.
                        up_to = up_to.or(Some(row.seq(0)?));
                        forgotten += messages;
                    }
                    _ => kept += messages,
                }
            }
            Ok(up_to.map(|up_to| Cut { up_to, kept, forgotten }))
        })
    }
}

/// The newest messages of a session that has so many, as many as are asked for.
fn newest(
    tx: &Transaction<'_>,
    session: i64,
    total: u64,
    asked: &ReadTranscript,
) -> Result<VecDeque<Entry>, Failure> {
    let mut statement = tx.prepare_cached(REMEMBERED)?;
    let mut runs = statement.query(params![session, i64::MAX])?;
    let (mut newest, mut left, mut last) = (VecDeque::new(), asked.bytes_max, total);
    while let Some(row) = runs.next()? {
        let told = run_summary(row)?;
        let mut place = last;
        last = last.saturating_sub(told.messages);
        for mut entry in entries(tx, session, &told)?.into_iter().rev() {
            entry.place = place.max(1);
            place = place.saturating_sub(1);
            if newest.is_empty() {
                entry.clip(asked.bytes_max);
            }
            let fits = || entry.said.text().len() <= left && entry.json_bytes() <= left;
            if newest.len() == asked.limit || !(newest.is_empty() || fits()) {
                return Ok(newest);
            }
            left = left.saturating_sub(entry.json_bytes());
            newest.push_front(entry);
        }
    }
    Ok(newest)
}

/// The messages of one run, in order; their places are yet to be told.
fn entries(tx: &Transaction<'_>, session: i64, told: &RunSummary) -> Result<Vec<Entry>, Failure> {
    let run = &told.span.run;
    let (mut entries, mut answer) = (Vec::new(), Answer::default());
    let mut tools: HashMap<CallId, PluginName> = HashMap::new();
    let mut say = |id: String, logged: &Logged, run: Option<&RunId>, said| {
        entries.push(Entry { id, place: 0, at: logged.at, run: run.cloned(), said, clipped: false });
    };
    events_of(tx, session, &told.span, |mut logged| match &mut logged.event {
        Event::Prompted { content, idempotency_key, attachments, .. } => {
            let said = Said::User {
                text: std::mem::take(content),
                idempotency_key: idempotency_key.take(),
                attachments: std::mem::take(attachments),
            };
            say(Entry::prompt_id(run), &logged, Some(run), said);
        }
        Event::ToolCalled(call) | Event::ApprovalAsked(ApprovalRequest { call, .. }) => {
            tools.insert(call.id.clone(), call.name.clone());
        }
        Event::ToolReturned(result) => {
            let said = Said::Tool {
                call: result.call.clone(),
                name: tools.get(&result.call).cloned().unwrap_or_else(|| PluginName::from("")),
                text: std::mem::take(&mut result.content),
                is_error: result.is_error,
            };
            say(format!("tool-{}", logged.seq), &logged, Some(run), said);
        }
        Event::Injected { content } => {
            let said = Said::Assistant {
                text: std::mem::take(content),
                model: None,
                usage: Default::default(),
                is_aborted: false,
                error: None,
            };
            say(run.to_string(), &logged, None, said);
        }
        Event::Ended { outcome, usage } => {
            let text = std::mem::take(&mut answer).into_text();
            let error = match outcome {
                Outcome::Failed(error) => Some(error.message.clone()),
                Outcome::Completed | Outcome::Incomplete(_) | Outcome::Aborted(_) => None,
            };
            if !text.is_empty() || error.is_some() {
                let is_aborted = matches!(outcome, Outcome::Aborted(_));
                let (model, usage) = (told.model.clone(), *usage);
                let said = Said::Assistant { text, model, usage, is_aborted, error };
                say(Entry::answer_id(run), &logged, Some(run), said);
            }
        }
        event => answer.apply(event),
    })?;
    Ok(entries)
}

/// What of a message those are told who know only of prompts and answers.
fn message(entry: Entry, run: &RunId) -> Option<Message> {
    let (role, content, attachments) = match entry.said {
        Said::User { text, attachments, .. } => (Role::User, text, attachments),
        Said::Assistant { text, .. } if !text.is_empty() => (Role::Assistant, text, Vec::new()),
        Said::Assistant { .. } | Said::Tool { .. } => return None,
    };
    Some(Message { role, content, at: entry.at, run: run.clone(), clipped: false, attachments })
}

/// The run under way at a number, or now, and its answer up to there. `streaming` is the text of steps
/// that stream, up to there.
fn under_way(
    tx: &Transaction<'_>,
    session: i64,
    at: Option<Seq>,
    head: Seq,
    streaming: Vec<Logged>,
) -> Result<Option<UnderWay>, Failure> {
    let at = at.unwrap_or(head).min(head);
    let Some((row, run, started, prompted)) = running_at(tx, session, integer(at.0))? else {
        return Ok(None);
    };
    let mut events = Vec::new();
    let mut statement = tx.prepare_cached(
        "SELECT seq, first, at, kind, body FROM events
         WHERE session = ? AND seq >= ? AND first <= ? AND run = ? ORDER BY seq",
    )?;
    let mut rows = statement.query(params![session, started, integer(at.0), row])?;
    while let Some(row) = rows.next()? {
        let kind = row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?;
        if let Some(of) = record::streamed(kind) {
            let body = row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?;
            events.extend(Segment::read(of, row.seq(1)?, row.at(2)?, body)?.between(&run, Seq(0), at));
        } else if let Some(logged) = logged(row, Some(run.clone()), Seq(0))?.filter(|logged| logged.seq <= at)
        {
            events.push(logged);
        }
    }
    let is_of_it = |logged: &Logged| logged.run.as_ref() == Some(&run) && integer(logged.seq.0) >= started;
    events.extend(streaming.into_iter().filter(is_of_it));
    events.sort_unstable_by_key(|logged| logged.seq);
    let mut answer = Answer::default();
    let (mut began, mut is_anew) = (None, false);
    for logged in &events {
        match logged.event {
            Event::Started => began = Some(logged.at),
            Event::Restarted => is_anew = true,
            Event::StepEnded { .. } => is_anew = false,
            _ => {}
        }
        answer.apply(&logged.event);
    }
    let idempotency_key = idempotency_key(tx, session, prompted)?;
    let step_at = answer.step_at();
    let (text, started) = (answer.into_text(), began.unwrap_or_default());
    let calls = Vec::new();
    Ok(Some(UnderWay { run, idempotency_key, text, step_at, seq: at, started, is_anew, calls }))
}

/// How many of the last prompts are looked at for runs that wait.
const QUEUED_MAX: i64 = 128;

/// The runs that waited at a number, in order: those prompted up to it and ended after it or not yet,
/// but the one under way. Runs take turns, so they are among the last that were prompted.
fn queued(
    tx: &Transaction<'_>,
    session: i64,
    at: Seq,
    under_way: Option<&UnderWay>,
) -> Result<Vec<(RunId, Option<String>)>, Failure> {
    let mut statement = tx.prepare_cached(
        "SELECT run, prompted FROM (
             SELECT run, prompted, ended FROM runs WHERE session = ?1 AND prompted <= ?2 ORDER BY prompted DESC LIMIT ?3
         ) WHERE ended IS NULL OR ended > ?2 ORDER BY prompted",
    )?;
    let rows = statement.query_map(params![session, integer(at.0), QUEUED_MAX], |row| {
        Ok((row.id(0)?, row.get::<_, i64>(1)?))
    })?;
    let mut queued = Vec::new();
    for row in rows {
        let (run, prompted) = row?;
        if under_way.is_none_or(|under_way| under_way.run != run) {
            let key = idempotency_key(tx, session, prompted)?;
            queued.push((run, key));
        }
    }
    Ok(queued)
}

/// The idempotency key in the prompt with this number.
fn idempotency_key(tx: &Transaction<'_>, session: i64, prompted: i64) -> Result<Option<String>, Failure> {
    let event = tx
        .prepare_cached("SELECT kind, body FROM events WHERE session = ? AND seq = ?")?
        .query_row([session, prompted], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))
        .optional()?
        .map(|(kind, body)| record::read(&kind, &body))
        .transpose()?;
    Ok(event.and_then(|event| match event {
        Event::Prompted { idempotency_key, .. } => idempotency_key,
        _ => None,
    }))
}

/// The run that was under way at a number: its row, itself, the numbers of its beginning and its
/// prompt. Runs take turns, so it is the first to end after that number, or has not ended.
fn running_at(
    tx: &Transaction<'_>,
    session: i64,
    at: i64,
) -> rusqlite::Result<Option<(i64, RunId, i64, i64)>> {
    type Found = (i64, String, Option<i64>, i64, Option<i64>);
    let found = |row: &Row<'_>| -> rusqlite::Result<Found> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    };
    let mut ended: Option<Found> = None;
    for progress in [1, 2] {
        let first = tx
            .prepare_cached(
                "SELECT id, run, started, prompted, ended FROM runs INDEXED BY runs_past
                 WHERE session = ? AND progress = ? AND ended > ? AND started IS NOT NULL ORDER BY ended LIMIT 1",
            )?
            .query_row(params![session, progress, at], found)
            .optional()?;
        if first.as_ref().is_some_and(|first| ended.as_ref().is_none_or(|other| first.4 < other.4)) {
            ended = first;
        }
    }
    let is_begun = |run: &Found| run.2.is_some_and(|started| started <= at);
    let run = match ended.filter(is_begun) {
        Some(run) => Some(run),
        None => tx
            .prepare_cached(
                "SELECT id, run, started, prompted, ended FROM runs INDEXED BY runs_unfinished
                 WHERE session = ? AND ended IS NULL AND started <= ? LIMIT 1",
            )?
            .query_row(params![session, at], found)
            .optional()?,
    };
    Ok(run.and_then(|(row, run, started, prompted, _)| Some((row, RunId::new(run), started?, prompted))))
}

fn no_such_run(session: &SessionKey, run: &RunId) -> Error {
    ErrorCode::NotFound.error(format!("no such run in session {session}: {run}"))
}
