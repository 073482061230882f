//! What a session's state is folded from.

use std::collections::{HashMap, HashSet};

use actix::Message;
use clawmux_core::conversation::context::Showing;
use clawmux_core::conversation::event::{Event, Logged};
use clawmux_core::conversation::log::record;
use clawmux_core::conversation::window::Window;
use clawmux_core::error::Error;
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::prompt::attachment::{Attachment, Kind};
use clawmux_core::prompt::settings::Settings;
use clawmux_core::provider::price::Money;
use clawmux_core::provider::usage::Usage;
use rusqlite::{OptionalExtension, Transaction, params};

use super::events::attached;
use super::{Reader, Span, Text, logged, span};
use crate::store::columns::{Columns, integer, number};
use crate::store::failure::Failure;
use crate::store::query::Query;
use crate::store::schema::Progress;

/// How many bytes of ended runs wake a session: far more than a model is sent.
pub const LOAD_BYTES_MAX: u64 = 8 << 20;
/// A prompt that waits and has more bytes is read without what it says.
pub const WAITING_BYTES_MAX: usize = 64 << 10;

/// Asks for a session: everything its state is folded from. None where there is no such session.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Loaded>, Error>")]
pub struct Load {
    /// The session.
    pub session: SessionKey,
    /// So many of the runs that its window shows and in which something
    /// was said, the newest, and as many of those that were begun and in which nothing was; none
    /// beyond the one with which either have [`LOAD_BYTES_MAX`].
    pub runs: usize,
}

/// A session, as the log has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The last number in its log.
    pub head: Seq,
    /// Numbers up to here may have been seen by clients before the daemon was last started: the
    /// first event written after that has a number above both `head` and this.
    pub reserved: Seq,
    /// The tokens of all its calls.
    pub spent: Usage,
    /// What they cost.
    pub cost: Money,
    /// What it is set to.
    pub settings: Settings,
    /// What of its past the model sees.
    pub window: Window,
    /// In order: the events of the runs asked for and of every run that has not ended. Text is in
    /// one piece wherever its numbers follow each other, up to [`SEGMENT_BYTES_MAX`](crate::store::SEGMENT_BYTES_MAX).
    pub events: Vec<Logged>,
    /// Of these, the prompts that wait and are large, which are without what they say, and how many
    /// bytes that has: [`ReadPrompt`](crate::store::ReadPrompt) gives it.
    pub aside: Vec<(RunId, usize)>,
}

impl Query for Load {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let text = Text::all_of(&self.session);
        reader.view(Some(text), |tx, streaming| {
            let found = tx
                .prepare_cached(
                    "SELECT id, head, reserved, cleared, settings,
                         input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost,
                         window_seq, window_from, window_named, summary
                     FROM sessions WHERE key = ?",
                )?
                .query_row([self.session.as_str()], |row| {
                    let loaded = Loaded {
                        head: row.seq(1)?,
                        reserved: row.seq(2)?,
                        spent: row.cached_usage(5)?,
                        cost: Money::from_nanos(row.number(9)?),
                        settings: Settings::default(),
                        window: row.window(10)?,
                        events: Vec::new(),
                        aside: Vec::new(),
                    };
                    Ok((row.get::<_, i64>(0)?, loaded, row.get::<_, i64>(3)?, row.get::<_, Vec<u8>>(4)?))
                })
                .optional()?;
            let Some((session, mut loaded, cleared, settings)) = found else { return Ok(None) };
            // A store of an older clawmux has no window yet.
            loaded.window.from = loaded.window.from.max(Seq(number(cleared)));
            let from = integer(loaded.window.from.0);
            loaded.settings = record::read_settings(&settings)?;
            loaded.head = loaded.head.max(streaming.head);
            loaded.events = streaming.events;
            let mut spans = ended_runs(tx, session, from, (Progress::Answered, self.runs))?;
            let answered: Vec<RunId> = spans.iter().map(|span| span.run.clone()).collect();
            for progress in [Progress::Begun, Progress::Injected] {
                spans.extend(ended_runs(tx, session, from, (progress, self.runs))?);
            }
            let unfinished: Vec<Span> = tx
                .prepare_cached(
                    "SELECT id, run, prompted, ended FROM runs INDEXED BY runs_unfinished
                     WHERE session = ? AND ended IS NULL",
                )?
                .query_map([session], span)?
                .collect::<Result<_, _>>()?;
            let waiting: HashSet<RunId> = tx
                .prepare_cached(
                    "SELECT run FROM runs INDEXED BY runs_unfinished
                     WHERE session = ? AND ended IS NULL AND started IS NULL",
                )?
                .query_map([session], |row| row.id(0))?
                .collect::<Result<_, _>>()?;
            let mut open: HashSet<RunId> = unfinished.iter().map(|span| span.run.clone()).collect();
            spans.extend(unfinished);
            events_of_runs(tx, session, spans, |mut logged| {
                if let (Event::Prompted { content, attachments, .. }, Some(run)) =
                    (&mut logged.event, &logged.run)
                    && waiting.contains(run)
                {
                    let shown = attachments.iter().filter(|attachment| attachment.kind() != Kind::Named);
                    let bytes = content.len() + shown.map(Attachment::bytes).sum::<usize>();
                    if bytes > WAITING_BYTES_MAX {
                        *content = String::new();
                        open.remove(run);
                        loaded.aside.push((run.clone(), bytes));
                    }
                }
                loaded.events.push(logged);
            })?;
            attach(tx, session, &mut loaded.events, &open, &answered)?;
            loaded.events.sort_unstable_by_key(|logged| logged.seq);
            Ok(Some(loaded))
        })
    }
}

/// The newest runs that ended, so many and not more once they have [`LOAD_BYTES_MAX`]; newest first.
/// The newest runs that ended after `from` and came so far.
fn ended_runs(
    tx: &Transaction<'_>,
    session: i64,
    from: i64,
    (progress, limit): (Progress, usize),
) -> Result<Vec<Span>, Failure> {
    let limit = integer(limit);
    let mut statement = tx.prepare_cached(
        "SELECT id, run, prompted, ended FROM runs INDEXED BY runs_past
         WHERE session = ? AND progress = ? AND ended > ? ORDER BY ended DESC LIMIT ?",
    )?;
    // The length of a large body is known without reading it.
    let mut size = tx.prepare_cached(
        "SELECT coalesce(sum(length(body)), 0) FROM events
         WHERE session = ? AND seq BETWEEN ? AND ? AND run = ?",
    )?;
    let mut rows = statement.query(params![session, progress as i64, from, limit])?;
    let (mut spans, mut bytes) = (Vec::new(), 0);
    while bytes < LOAD_BYTES_MAX
        && let Some(row) = rows.next()?
    {
        let span = span(row)?;
        let ended = span.ended.map_or(i64::MAX, integer);
        let within = params![session, integer(span.prompted), ended, span.row];
        bytes += size.query_row(within, |row| row.number(0))?;
        spans.push(span);
    }
    Ok(spans)
}

/// The same of many runs, each stretch of the log read once: a run that waited in the queue spans
/// those it waited for.
fn events_of_runs(
    tx: &Transaction<'_>,
    session: i64,
    mut spans: Vec<Span>,
    mut take: impl FnMut(Logged),
) -> Result<(), Failure> {
    let mut statement = tx.prepare_cached(
        "SELECT seq, first, at, kind, body, run FROM events
         WHERE session = ? AND seq BETWEEN ? AND ? AND run IS NOT NULL ORDER BY seq",
    )?;
    spans.sort_unstable_by_key(|span| span.prompted);
    let end = |span: &Span| span.ended.map_or(i64::MAX, integer);
    let mut from = 0;
    while let Some(first) = spans.get(from) {
        let (begin, mut to, mut last) = (first.prompted, from, end(first));
        while let Some(span) = spans.get(to).filter(|span| integer(span.prompted) <= last) {
            (to, last) = (to + 1, last.max(end(span)));
        }
        let runs: HashMap<i64, &RunId> = spans[from..to].iter().map(|span| (span.row, &span.run)).collect();
        let mut rows = statement.query(params![session, integer(begin), last])?;
        while let Some(row) = rows.next()? {
            let Some(run) = runs.get(&row.get(5)?) else { continue };
            if let Some(logged) = logged(row, Some((*run).clone()), Seq(0))? {
                take(logged);
            }
        }
        from = to;
    }
    Ok(())
}

/// Gives prompts the bytes of what they brought along: all of those that have not ended, and of those
/// that were answered, the newest first, what the model may still be shown.
fn attach(
    tx: &Transaction<'_>,
    session: i64,
    events: &mut [Logged],
    open: &HashSet<RunId>,
    answered: &[RunId],
) -> Result<(), Failure> {
    let read = |seq, place, attachment: &mut Attachment| attached(tx, (session, seq, place), attachment);
    let mut past: HashMap<RunId, (Seq, &mut Vec<Attachment>)> = HashMap::new();
    for Logged { seq, run, event, .. } in events {
        let (Event::Prompted { attachments, .. }, Some(run)) = (event, run) else { continue };
        if open.contains(run) {
            for (place, attachment) in (0..).zip(attachments) {
                read(*seq, place, attachment)?;
            }
        } else if !attachments.is_empty() {
            past.insert(run.clone(), (*seq, attachments));
        }
    }
    let mut showing = Showing::new(usize::try_from(LOAD_BYTES_MAX).unwrap_or(usize::MAX));
    for run in answered {
        let Some((seq, attachments)) = past.remove(run) else { continue };
        for (place, attachment) in (0..).zip(attachments) {
            if showing.shows(attachment) {
                read(seq, place, attachment)?;
            }
        }
    }
    Ok(())
}
