//! What is asked of the log. One thread with a connection of its own, so that the writer never
//! waits for a question longer than it takes to open a view of the database. Owners have it in turn: who
//! asks for much keeps nobody else waiting for longer than one question.
//!
//! Every answer comes from one view: what was committed at one moment, from the tables and, for
//! steps that still stream, from memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use clawmux_core::attachment::{Attachment, Kind};
use clawmux_core::auth::Owner;
use clawmux_core::config::ModelRef;
use clawmux_core::context::Showing;
use clawmux_core::daemon::DayUsage;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::{Event, Logged, Usage};
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::log::record;
use clawmux_core::log::segment::Segment;
use clawmux_core::log::usage::UsageTotals;
use clawmux_core::session_reply::SessionSummary;
use clawmux_core::settings::Settings;
use clawmux_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

mod history;
pub(super) mod questions;
mod room;
mod rows;
mod usage;

use super::files::Files;
use super::live::Shared;
use super::schema::{self, FORMAT, Progress};
use super::{
    Among, DAY_MS, Describe, Described, FindRun, FindSession, LOAD_BYTES_MAX, ListSessions, Listed, Load,
    Loaded, Place, ReadEvents, UsageSince, WAITING_BYTES_MAX, failure,
};

/// How many days and models one list of what was spent has.
const USAGE_ROWS_MAX: u64 = 5000;

/// So many sessions that have the same key in other spaces are named.
const NAMESAKES_MAX: i64 = 3;

pub(super) struct Reader {
    db: Connection,
    shared: Arc<Shared>,
    /// Keeps the database claimed as long as this connection is open.
    _files: Arc<Files>,
}

/// A run's place in the log.
struct Span {
    row: i64,
    run: RunId,
    prompted: u64,
    ended: Option<u64>,
}

impl Reader {
    pub(in crate::store) fn open(files: Arc<Files>, shared: Arc<Shared>) -> Result<Self, Error> {
        Ok(Self { db: files.reader()?, shared, _files: files })
    }

    /// Of a store that somebody else may have open.
    ///
    /// # Errors
    /// `NotFound` where there is none; `Conflict` where it is not of the present format.
    pub(in crate::store) fn beside(path: &Path) -> Result<Self, Error> {
        if !path.is_file() {
            return Err(ErrorCode::NotFound.error(format!("there is no store at {}", path.display())));
        }
        let reader = Self::open(Arc::new(Files::unclaimed(path)), Arc::default())?;
        let format = schema::kind(&reader.db).map_err(|e| failure::sql(&e))?.format()?;
        if format < FORMAT {
            return Err(ErrorCode::Conflict.error(format!(
                "the store {} has format {format}, of an older clawmux, and is not read before it has format {FORMAT}: \
                 the next `clawmux serve` brings it there, for good (`clawmux backup` keeps a copy of it as it is)",
                path.display()
            )));
        }
        Ok(reader)
    }

    pub(in crate::store) fn load(&mut self, asked: &Load) -> Result<Option<Loaded>, Error> {
        let text = Text::all_of(&asked.session);
        self.view(Some(text), |tx, streaming| {
            let found = tx
                .prepare_cached(
                    "SELECT id, head, reserved, input_tokens, output_tokens, cleared, settings
                     FROM sessions WHERE key = ?",
                )?
                .query_row([asked.session.as_str()], |row| {
                    let loaded = Loaded {
                        head: seq(row, 1)?,
                        reserved: seq(row, 2)?,
                        spent: Usage { input_tokens: number(row, 3)?, output_tokens: number(row, 4)? },
                        settings: Settings::default(),
                        events: Vec::new(),
                        aside: Vec::new(),
                    };
                    Ok((row.get::<_, i64>(0)?, loaded, row.get::<_, i64>(5)?, row.get::<_, Vec<u8>>(6)?))
                })
                .optional()?;
            let Some((session, mut loaded, cleared, settings)) = found else { return Ok(None) };
            loaded.settings = record::read_settings(&settings)?;
            loaded.head = loaded.head.max(streaming.head);
            loaded.events = streaming.events;
            let mut spans = ended_runs(tx, session, cleared, (Progress::Answered, asked.runs))?;
            let answered: Vec<RunId> = spans.iter().map(|span| span.run.clone()).collect();
            for progress in [Progress::Begun, Progress::Injected] {
                spans.extend(ended_runs(tx, session, cleared, (progress, asked.runs))?);
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
                .query_map([session], |row| row.get::<_, String>(0).map(RunId::new))?
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

    pub(in crate::store) fn describe(&mut self, asked: &Describe) -> Result<Option<Described>, Error> {
        self.view(None, |tx, _| {
            let found = tx
                .prepare_cached("SELECT owner, input_tokens, output_tokens FROM sessions WHERE key = ?")?
                .query_row([asked.session.as_str()], |row| {
                    Ok(Described {
                        owner: Owner::from_name(&row.get::<_, String>(0)?),
                        spent: Usage { input_tokens: number(row, 1)?, output_tokens: number(row, 2)? },
                    })
                })
                .optional()?;
            Ok(found)
        })
    }

    pub(in crate::store) fn find_session(
        &mut self,
        asked: &FindSession,
    ) -> Result<Option<SessionKey>, Error> {
        const OLDEST: &str = "created, id LIMIT 1";
        const BY_UUID: &str = "SELECT key FROM sessions WHERE (uuid = ?1 OR uuid_before = ?1)";
        let sql = match asked.among {
            Among::All => format!("{BY_UUID} ORDER BY owner <> ?2, {OLDEST}"),
            Among::Own => format!("{BY_UUID} AND owner = ?2 ORDER BY {OLDEST}"),
            Among::OwnConversations => {
                format!("SELECT key FROM sessions WHERE conversation = ?1 AND owner = ?2 ORDER BY {OLDEST}")
            }
        };
        self.view(None, |tx, _| {
            let found = tx
                .prepare_cached(&sql)?
                .query_row([asked.id.as_str(), asked.owner.as_str()], |row| row.get::<_, String>(0))
                .optional()?;
            found.map(|key| Ok(SessionKey::parse(&key)?)).transpose()
        })
    }

    pub(in crate::store) fn namesakes(&mut self, session: &SessionKey) -> Result<Vec<SessionKey>, Error> {
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT key FROM sessions WHERE agent = ?1 AND owner <> '' AND owner <> ?2
                     AND substr(key, instr(key, '/') + 1) = ?3
                 ORDER BY updated DESC, id DESC LIMIT ?4",
            )?;
            let owner = session.owner();
            let asked = params![session.agent(), owner.as_str(), session.local(), NAMESAKES_MAX];
            let keys = statement.query_map(asked, |row| row.get::<_, String>(0))?;
            keys.map(|key| Ok(SessionKey::parse(&key?)?)).collect()
        })
    }

    pub(in crate::store) fn find_run(
        &mut self,
        asked: &FindRun,
    ) -> Result<Option<(SessionKey, RunId, Seq)>, Error> {
        let place = |row: &Row<'_>| {
            Ok((row.get::<_, String>(0)?, RunId::new(row.get::<_, String>(1)?), seq(row, 2)?))
        };
        self.view(None, |tx, _| {
            let found = tx
                .prepare_cached(
                    "SELECT s.key, r.run, r.prompted FROM idempotency i
                     JOIN runs r ON r.id = i.run JOIN sessions s ON s.id = r.session
                     WHERE i.owner = ? AND i.key = ?",
                )?
                .query_row([asked.owner.as_str(), &asked.idempotency_key], place)
                .optional()?;
            let found = match found {
                None if asked.or_id => tx
                    .prepare_cached(
                        "SELECT s.key, r.run, r.prompted FROM runs r
                         JOIN sessions s ON s.id = r.session WHERE r.run = ?",
                    )?
                    .query_row([&asked.idempotency_key], place)
                    .optional()?,
                found => found,
            };
            found.map(|(key, run, seq)| Ok((SessionKey::parse(&key)?, run, seq))).transpose()
        })
    }

    pub(in crate::store) fn events(&mut self, asked: &ReadEvents) -> Result<Vec<Logged>, Error> {
        let text = Text {
            session: &asked.session,
            run: asked.run.as_ref(),
            after: asked.after,
            up_to: Seq(u64::MAX),
            bytes_max: asked.max_bytes.max(1),
        };
        self.view(Some(text), |tx, streaming| {
            let Some(session) = session_row(tx, &asked.session)? else { return Ok(Vec::new()) };
            let mut span = None;
            if let Some(run) = &asked.run {
                span = tx
                    .prepare_cached(
                        "SELECT id, run, prompted, ended FROM runs WHERE run = ? AND session = ?",
                    )?
                    .query_row(params![run.as_str(), session], self::span)
                    .optional()?;
                if span.is_none() {
                    return Ok(Vec::new());
                }
            }
            let mut streaming = VecDeque::from(streaming.events);

            let from = integer(asked.after.0).max(span.as_ref().map_or(0, |s| integer(s.prompted) - 1));
            let to = span.as_ref().and_then(|s| s.ended).map_or(i64::MAX, integer);
            let mut statement = tx.prepare_cached(
                "SELECT e.seq, e.first, e.at, e.kind, e.body, e.run, r.run
                 FROM events e LEFT JOIN runs r ON r.id = e.run
                 WHERE e.session = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq",
            )?;
            let mut rows = statement.query(params![session, from, to])?;
            let mut answer = Answer { events: Vec::new(), bytes: 0, bytes_max: asked.max_bytes };
            while let Some(row) = rows.next()? {
                if span
                    .as_ref()
                    .is_some_and(|span| row.get::<_, Option<i64>>(5).ok().flatten() != Some(span.row))
                {
                    continue;
                }
                let run = row.get::<_, Option<String>>(6)?.map(RunId::new);
                let Some(logged) = logged(row, run, asked.after)? else { continue };
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

    pub(in crate::store) fn sessions(&mut self, asked: &ListSessions) -> Result<Vec<Listed>, Error> {
        const COLUMNS: &str = "SELECT key, owner, created, updated,
            EXISTS (SELECT 1 FROM runs WHERE session = sessions.id AND ended IS NULL),
            head, (SELECT count(*) FROM runs WHERE session = sessions.id AND progress < 3), id, settings
            FROM sessions";
        const ORDER: &str = "(updated, id) < (?, ?) ORDER BY updated DESC, id DESC LIMIT ?";
        let limit = i64::try_from(asked.limit).unwrap_or(i64::MAX);
        let (updated, row) =
            asked.before.map_or((i64::MAX, i64::MAX), |place| (integer(place.updated_ms), place.row));
        self.view(None, |tx, _| {
            let rows: Vec<_> = match (&asked.prefix, &asked.owner) {
                (Some(prefix), _) => tx
                    .prepare_cached(&format!("{COLUMNS} WHERE key >= ? AND key < ? AND {ORDER}"))?
                    .query_map(
                        params![prefix, format!("{prefix}{}", char::MAX), updated, row, limit],
                        listed,
                    )?
                    .collect::<Result<_, _>>()?,
                (None, Some(owner)) => tx
                    .prepare_cached(&format!("{COLUMNS} WHERE owner = ? AND {ORDER}"))?
                    .query_map(params![owner.as_str(), updated, row, limit], listed)?
                    .collect::<Result<_, _>>()?,
                (None, None) => tx
                    .prepare_cached(&format!("{COLUMNS} WHERE {ORDER}"))?
                    .query_map(params![updated, row, limit], listed)?
                    .collect::<Result<_, _>>()?,
            };
            Ok(rows.into_iter().collect::<Result<_, Error>>()?)
        })
    }

    pub(in crate::store) fn unfinished(&mut self) -> Result<Vec<SessionKey>, Error> {
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT DISTINCT s.key FROM runs r INDEXED BY runs_unfinished
                 JOIN sessions s ON s.id = r.session WHERE r.ended IS NULL",
            )?;
            let keys = statement.query_map([], |row| row.get::<_, String>(0))?;
            keys.map(|key| Ok(SessionKey::parse(&key?)?)).collect()
        })
    }

    pub(in crate::store) fn usage(&mut self, asked: &UsageSince) -> Result<UsageTotals, Error> {
        self.view(None, |tx, _| {
            // Whole days from their sums, the rest of the day before them by its calls.
            let sum = |since: Timestamp| {
                let day = since.as_millis().div_ceil(DAY_MS);
                tx.prepare_cached(
                    "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0) FROM (
                        SELECT input_tokens, output_tokens FROM usage_days WHERE day >= ?1
                        UNION ALL
                        SELECT input_tokens, output_tokens FROM usage WHERE at >= ?2 AND at < ?3)",
                )?
                .query_row(
                    params![integer(day), integer(since.as_millis()), integer(day.saturating_mul(DAY_MS))],
                    |row| Ok(Usage { input_tokens: number(row, 0)?, output_tokens: number(row, 1)? }),
                )
            };
            Ok(UsageTotals { day: sum(asked.day_start)?, month: sum(asked.month_start)? })
        })
    }

    pub(super) fn usage_days(&mut self, since: Timestamp) -> Result<Vec<DayUsage>, Error> {
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT at / ?1 AS day, provider, model, sum(input_tokens), sum(output_tokens), count(*)
                 FROM usage WHERE at >= ?2 GROUP BY day, provider, model ORDER BY day DESC, provider, model LIMIT ?3",
            )?;
            let since = since.as_millis() / DAY_MS * DAY_MS;
            let rows = statement.query_map(
                params![integer(DAY_MS), integer(since), integer(USAGE_ROWS_MAX)],
                |row| {
                    Ok(DayUsage {
                        day: Timestamp::from_millis(number(row, 0)? * DAY_MS),
                        model: ModelRef { provider: row.get(1)?, model: row.get(2)? },
                        usage: Usage { input_tokens: number(row, 3)?, output_tokens: number(row, 4)? },
                        calls: number(row, 5)?,
                    })
                },
            )?;
            let mut days = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            // Should there be too many, the latest are what is wanted.
            days.reverse();
            Ok(days)
        })
    }

    /// Answers from one view of the database; with what is asked of the text that streams, in order.
    pub(super) fn view<T>(
        &mut self,
        streaming: Option<Text<'_>>,
        answer: impl FnOnce(&Transaction<'_>, Streaming) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let live = self.shared.enter();
        if live.broken {
            return Err(ErrorCode::Unavailable.error("the store is out of order for the moment: try again"));
        }
        let tx = self.db.transaction().map_err(|e| failure::sql(&e))?;
        // A view begins with the first read.
        tx.prepare_cached("SELECT opened FROM meta")
            .and_then(|mut statement| statement.query_row([], |_| Ok(())))
            .map_err(|e| failure::sql(&e))?;
        let streaming = streaming.map_or_else(Streaming::default, |text| Streaming {
            head: Seq(live.head(text.session)),
            events: live.between(text.session, text.run, (text.after, text.up_to), text.bytes_max),
        });
        drop(live);
        answer(&tx, streaming).map_err(|failure| match failure {
            Failure::Database(e) => failure::sql(&e),
            Failure::Record(e) => e,
        })
    }
}

/// Text of steps that still stream.
#[derive(Default)]
pub(super) struct Streaming {
    /// What was asked of it, in order.
    events: Vec<Logged>,
    /// The last number of all of it; 0 = there is none.
    head: Seq,
}

/// What of the text of steps that still stream.
pub(super) struct Text<'a> {
    session: &'a SessionKey,
    run: Option<&'a RunId>,
    after: Seq,
    up_to: Seq,
    bytes_max: usize,
}

impl<'a> Text<'a> {
    /// All of it.
    fn all_of(session: &'a SessionKey) -> Self {
        Self { session, run: None, after: Seq(0), up_to: Seq(u64::MAX), bytes_max: usize::MAX }
    }
}

/// Why there is no answer.
pub(super) enum Failure {
    Database(rusqlite::Error),
    Record(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Record(error)
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

/// The newest runs that ended, so many and not more once they have [`LOAD_BYTES_MAX`]; newest first.
/// The newest runs that ended after `cleared` and came so far.
fn ended_runs(
    tx: &Transaction<'_>,
    session: i64,
    cleared: i64,
    (progress, limit): (Progress, usize),
) -> Result<Vec<Span>, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(
        "SELECT id, run, prompted, ended FROM runs INDEXED BY runs_past
         WHERE session = ? AND progress = ? AND ended > ? ORDER BY ended DESC LIMIT ?",
    )?;
    // The length of a large body is known without reading it.
    let mut size = tx.prepare_cached(
        "SELECT coalesce(sum(length(body)), 0) FROM events
         WHERE session = ? AND seq BETWEEN ? AND ? AND run = ?",
    )?;
    let mut rows = statement.query(params![session, progress as i64, cleared, limit])?;
    let (mut spans, mut bytes) = (Vec::new(), 0);
    while bytes < LOAD_BYTES_MAX
        && let Some(row) = rows.next()?
    {
        let span = span(row)?;
        let ended = span.ended.map_or(i64::MAX, integer);
        let within = params![session, integer(span.prompted), ended, span.row];
        bytes += size.query_row(within, |row| number(row, 0))?;
        spans.push(span);
    }
    Ok(spans)
}

/// The events of a run that are in the table, in order.
fn events_of(
    tx: &Transaction<'_>,
    session: i64,
    span: &Span,
    mut take: impl FnMut(Logged),
) -> Result<(), Failure> {
    let mut statement = tx.prepare_cached(
        "SELECT seq, first, at, kind, body FROM events
         WHERE session = ? AND seq BETWEEN ? AND ? AND run = ? ORDER BY seq",
    )?;
    let ended = span.ended.map_or(i64::MAX, integer);
    let mut rows = statement.query(params![session, integer(span.prompted), ended, span.row])?;
    while let Some(row) = rows.next()? {
        if let Some(logged) = logged(row, Some(span.run.clone()), Seq(0))? {
            take(logged);
        }
    }
    Ok(())
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

/// Gives an attachment its bytes, which are kept under its session, the number of its prompt and its
/// place there.
fn attached(
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

fn session_row(tx: &Transaction<'_>, key: &SessionKey) -> rusqlite::Result<Option<i64>> {
    tx.prepare_cached("SELECT id FROM sessions WHERE key = ?")?
        .query_row([key.as_str()], |row| row.get(0))
        .optional()
}

/// The event of a row `seq, first, at, kind, body, ..`, without what is not after `after`.
fn logged(row: &Row<'_>, run: Option<RunId>, after: Seq) -> Result<Option<Logged>, Failure> {
    let (last, first, at) = (seq(row, 0)?, seq(row, 1)?, time(row, 2)?);
    let kind = row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?;
    let body = row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?;
    if let (Some(of), Some(run)) = (record::streamed(kind), &run) {
        return Ok(Segment::read(of, first, at, body)?.rest_after(run, after));
    }
    Ok(Some(Logged { first_seq: first, seq: last, run, at, event: record::read(kind, body)? }))
}

/// The session of a row `key, owner, created, updated, running, head, prompts, id, settings`.
fn listed(row: &Row<'_>) -> rusqlite::Result<Result<Listed, Error>> {
    let key: String = row.get(0)?;
    let (created, updated, running) = (time(row, 2)?, time(row, 3)?, row.get(4)?);
    let owner = Owner::from_name(&row.get::<_, String>(1)?);
    let (head, prompts) = (seq(row, 5)?, number(row, 6)?);
    let place = Place { updated_ms: updated.as_millis(), row: row.get(7)? };
    let settings = record::read_settings(row.get_ref(8)?.as_blob()?);
    Ok(SessionKey::parse(&key).and_then(|session| {
        let summary = SessionSummary { session, created, updated, running };
        Ok(Listed { summary, owner, head, prompts, settings: settings?, place })
    }))
}

fn span(row: &Row<'_>) -> rusqlite::Result<Span> {
    Ok(Span {
        row: row.get(0)?,
        run: RunId::new(row.get::<_, String>(1)?),
        prompted: number(row, 2)?,
        ended: row.get::<_, Option<i64>>(3)?.map(|ended| u64::try_from(ended).unwrap_or(0)),
    })
}

fn number(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(index)?).unwrap_or(0))
}

fn seq(row: &Row<'_>, index: usize) -> rusqlite::Result<Seq> {
    number(row, index).map(Seq)
}

fn time(row: &Row<'_>, index: usize) -> rusqlite::Result<Timestamp> {
    number(row, index).map(Timestamp::from_millis)
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
