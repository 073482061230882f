//! The events of a session, as they follow each other in its log.

use std::collections::VecDeque;

use actix::{Addr, Message};
use bytes::Bytes;
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::error::Error;
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::prompt::attachment::Attachment;
use rusqlite::{OptionalExtension, Transaction, params};

use super::{Reader, Text, logged, session_row};
use crate::runtime::ask::ask;
use crate::store::Store;
use crate::store::columns::integer;
use crate::store::failure::Failure;
use crate::store::query::Query;

/// How much of a log is read at once to be given away.
const EXPORT_BYTES: usize = 256 << 10;

/// Asks for the events of a session after a number, in order; text in one piece wherever its
/// numbers follow each other, up to [`SEGMENT_BYTES_MAX`](crate::store::SEGMENT_BYTES_MAX). Ask again after the last number to go on;
/// an empty answer is the end.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Logged>, Error>")]
pub struct ReadEvents {
    /// The session.
    pub session: SessionKey,
    /// Only what comes after this.
    pub after: Seq,
    /// Only what belongs to this run.
    pub run: Option<RunId>,
    /// Not more once there are so many bytes; but at least one event.
    pub max_bytes: usize,
}

/// Asks what a prompt says and brings along. None where there is no such prompt.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<(String, Vec<Attachment>)>, Error>")]
pub struct ReadPrompt {
    /// Its session.
    pub session: SessionKey,
    /// Its number.
    pub seq: Seq,
}

impl Query for ReadEvents {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let text = Text {
            session: &self.session,
            run: self.run.as_ref(),
            after: self.after,
            up_to: Seq(u64::MAX),
            bytes_max: self.max_bytes.max(1),
        };
        reader.view(Some(text), |tx, streaming| {
            let Some(session) = session_row(tx, &self.session)? else { return Ok(Vec::new()) };
            let mut span = None;
            if let Some(run) = &self.run {
                span = tx
                    .prepare_cached(
                        "SELECT id, run, prompted, ended FROM runs WHERE run = ? AND session = ?",
                    )?
                    .query_row(params![run.as_str(), session], super::span)
                    .optional()?;
                if span.is_none() {
                    return Ok(Vec::new());
                }
            }
            let mut streaming = VecDeque::from(streaming.events);

            let from = integer(self.after.0).max(span.as_ref().map_or(0, |s| integer(s.prompted) - 1));
            let to = span.as_ref().and_then(|s| s.ended).map_or(i64::MAX, integer);
            let mut statement = tx.prepare_cached(
                "SELECT e.seq, e.first, e.at, e.kind, e.body, e.run, r.run
                 FROM events e LEFT JOIN runs r ON r.id = e.run
                 WHERE e.session = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq",
            )?;
            let mut rows = statement.query(params![session, from, to])?;
            let mut answer = Answer { events: Vec::new(), bytes: 0, bytes_max: self.max_bytes };
            while let Some(row) = rows.next()? {
                if span
                    .as_ref()
                    .is_some_and(|span| row.get::<_, Option<i64>>(5).ok().flatten() != Some(span.row))
                {
                    continue;
                }
                let run = row.get::<_, Option<String>>(6)?.map(RunId::new);
                let Some(logged) = logged(row, run, self.after)? else { continue };
                while let Some(earlier) = streaming.pop_front_if(|text| text.seq < logged.seq) {
                    if !answer.take(earlier) {
                        return Ok(answer.events);
                    }
                }
                if !answer.take(logged) {
                    return Ok(answer.events);
                }
            }
            while let Some(text) = streaming.pop_front() {
                if !answer.take(text) {
                    break;
                }
            }
            Ok(answer.events)
        })
    }
}

impl Query for ReadPrompt {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let Some(session) = session_row(tx, &self.session)? else { return Ok(None) };
            let mut statement = tx.prepare_cached(
                "SELECT seq, first, at, kind, body FROM events WHERE session = ? AND seq = ?",
            )?;
            let mut rows = statement.query(params![session, integer(self.seq.0)])?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let Some(Event::Prompted { content, mut attachments, .. }) =
                logged(row, None, Seq(0))?.map(|logged| logged.event)
            else {
                return Ok(None);
            };
            for (place, attachment) in (0..).zip(&mut attachments) {
                attached(tx, (session, self.seq, place), attachment)?;
            }
            Ok(Some((content, attachments)))
        })
    }
}

/// Events up to a number of bytes, but at least one.
struct Answer {
    events: Vec<Logged>,
    bytes: usize,
    bytes_max: usize,
}

impl Answer {
    /// Takes one; says whether there is room for more.
    fn take(&mut self, logged: Logged) -> bool {
        self.bytes += logged.event.bytes();
        self.events.push(logged);
        self.bytes < self.bytes_max
    }
}

/// Gives an attachment its bytes, which are kept under its session, the number of its prompt and its
/// place there.
pub(super) fn attached(
    tx: &Transaction<'_>,
    (session, seq, place): (i64, Seq, i64),
    attachment: &mut Attachment,
) -> Result<(), Failure> {
    let data = tx
        .prepare_cached("SELECT data FROM attachments WHERE session = ? AND seq = ? AND place = ?")?
        .query_row(params![session, integer(seq.0), place], |row| row.get(0))
        .optional()?;
    attachment.restore(data.map_or_else(Bytes::new, |data: Vec<u8>| data.into()));
    Ok(())
}

/// The next part of the whole log of a session after a number, with what prompts brought along: 256 KiB of
/// it, or a single event that has more. Empty at the end.
///
/// # Errors
/// As those of any question.
pub async fn exported(store: &Addr<Store>, session: &SessionKey, after: Seq) -> Result<Vec<Logged>, Error> {
    let read = ReadEvents { session: session.clone(), after, run: None, max_bytes: EXPORT_BYTES };
    let mut events = ask(store, read).await??;
    let mut bytes = 0;
    for at in 0..events.len() {
        let Logged { seq, event, .. } = &mut events[at];
        bytes += event.bytes();
        if let Event::Prompted { attachments, .. } = event
            && !attachments.is_empty()
        {
            let brought: usize = attachments.iter().map(Attachment::bytes).sum();
            if at > 0 && bytes + brought > EXPORT_BYTES {
                events.truncate(at);
                break;
            }
            bytes += brought;
            let read = ReadPrompt { session: session.clone(), seq: *seq };
            if let Some((_, whole)) = ask(store, read).await?? {
                *attachments = whole;
            }
        }
    }
    Ok(events)
}
