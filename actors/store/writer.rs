//! The single writer: one thread, one connection, one transaction for everything that waits.
//!
//! **How durable an append is.** A group that holds nothing but text is committed under
//! `synchronous=NORMAL`: it survives the end of the process. A group with anything durable in it
//! is committed under `FULL`, which syncs the whole write-ahead log: so what is acknowledged as
//! durable takes everything before it, of every session, with it. What goes past a session's
//! reserve of numbers is made durable too, asked or not, so that a number a client saw is never
//! used twice. Acknowledgements leave after the commit.
//!
//! **When something fails** nothing of the group is applied, everybody in it is told, and what is
//! kept in memory is read anew from the database. A failure that is not the disk's is not shared:
//! each of the group is then tried alone. A panic counts as such a failure.
//!
//! **Text** goes into the log twice, for little: at once on a page for the group (one row for all
//! sessions), and in one piece when its step is over. A page is deleted when no step that still
//! streams has text on it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::{Event, Logged};
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::log::usage::UsageRecord;
use clawmux_core::log::{page, record};
use clawmux_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params, params_from_iter};
use tokio::sync::oneshot;

use super::failure::{is_about_the_disk, refused, sql};
use super::files::Files;
use super::live::{Live, Place, Shared};
use super::{Append, Figures, schema};

/// The most writes of one transaction.
const GROUP_MAX: usize = 1024;
/// The most bytes of one transaction, but for a single write that has more.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// After so long a silence the write-ahead log is moved into the database.
const IDLE: Duration = Duration::from_millis(500);
/// Sessions remembered besides those with a run that goes on.
const SESSIONS_MAX: usize = 16_384;
/// The most tokens one usage row counts, so that no sum overflows.
const TOKENS_MAX: u64 = 1 << 44;

/// Something to write.
#[derive(Debug)]
pub(super) enum Write {
    Append(Append),
    Usage(UsageRecord),
    #[cfg(test)]
    Panic,
}

/// A write and who waits for it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) write: Write,
    pub(super) bytes: usize,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

/// Why a write was not applied.
enum Failure {
    /// It is at fault; the others of its group are not concerned.
    Refused(Error),
    /// The database is; nothing of the group is applied.
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// A session, as far as the writer needs it.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Its number in the database; 0 = it is not there yet.
    row: i64,
    head: u64,
    reserved: u64,
    /// Whether it was written to since the log was opened.
    current: bool,
}

/// A run that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenRun {
    row: i64,
    session: i64,
}

pub(super) struct Writer {
    db: Connection,
    files: Arc<Files>,
    shared: Arc<Shared>,
    figures: Arc<Figures>,
    /// How often the log was opened, this time included.
    opened: i64,
    full: bool,
    /// Whether memory may differ from the database.
    stale: bool,
    sessions: HashMap<SessionKey, State>,
    runs: HashMap<RunId, OpenRun>,
    /// The present group's page and its number.
    page: Vec<u8>,
    page_id: i64,
    /// How many steps that stream have text on a page.
    pages: HashMap<i64, usize>,
    /// Pages nobody needs.
    dead: Vec<i64>,
    body: Vec<u8>,
    commits_since_rest: usize,
}

impl Writer {
    /// Opens the database and reads what goes on in it.
    pub(super) fn open(files: Arc<Files>, shared: Arc<Shared>, figures: Arc<Figures>) -> Result<Self, Error> {
        let mut db = files.writer()?;
        schema::migrate(&mut db)?;
        let opened = db
            .query_row("UPDATE meta SET opened = opened + 1 RETURNING opened", [], |row| row.get(0))
            .map_err(|e| sql(&e))?;
        let mut writer = Self {
            db,
            files,
            shared,
            figures,
            opened,
            full: false,
            stale: true,
            sessions: HashMap::new(),
            runs: HashMap::new(),
            page: Vec::new(),
            page_id: 1,
            pages: HashMap::new(),
            dead: Vec::new(),
            body: Vec::new(),
            commits_since_rest: 0,
        };
        let shared = Arc::clone(&writer.shared);
        writer.reload(&mut shared.enter())?;
        writer.measure();
        Ok(writer)
    }

    /// Writes until nobody can ask any more, then closes the database.
    pub(super) fn run(mut self, waiting: &Receiver<Waiting>) {
        let mut group = Vec::new();
        loop {
            let first = match waiting.recv_timeout(IDLE) {
                Ok(first) => first,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.rest();
                    let Ok(first) = waiting.recv() else { break };
                    first
                }
            };
            let mut bytes = first.bytes;
            group.push(first);
            while group.len() < GROUP_MAX && bytes < GROUP_BYTES_MAX {
                let Ok(next) = waiting.try_recv() else { break };
                bytes += next.bytes;
                group.push(next);
            }
            let results = self.group(&group);
            self.figures.queue.fetch_sub(group.len(), Relaxed);
            self.figures.queue_bytes.fetch_sub(bytes, Relaxed);
            for (waiting, result) in group.drain(..).zip(results) {
                // Whoever does not wait any more has no use for the answer.
                let _ = waiting.done.send(result);
            }
        }
        self.rest();
        if let Err(error) = self.checkpoint("TRUNCATE") {
            tracing::warn!(%error, "the log was not tidied at its end; the next start does it");
        }
    }

    /// Commits a group; one result for each of it.
    fn group(&mut self, group: &[Waiting]) -> Vec<Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        let mut live = shared.enter();
        if self.stale
            && let Err(error) = self.reload(&mut live)
        {
            self.figures.failures.fetch_add(1, Relaxed);
            return vec![Err(error); group.len()];
        }
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.transaction(&mut live, group)));
        let results = match outcome {
            Ok(Ok(results)) => {
                let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.figures.committed(group.len(), self.full, took);
                self.figures.streaming.store(live.len(), Relaxed);
                self.commits_since_rest += 1;
                if self.commits_since_rest.is_multiple_of(256) {
                    self.forget_idle_sessions();
                    self.measure();
                }
                return results;
            }
            Ok(Err(error)) if is_about_the_disk(&error) || group.len() == 1 => {
                vec![Err(sql(&error)); group.len()]
            }
            Err(_) if group.len() == 1 => {
                vec![Err(ErrorCode::Internal.error("the log's writer panicked over this append"))]
            }
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        self.figures.failures.fetch_add(1, Relaxed);
        self.stale = true;
        live.broken = true;
        // Where this fails the next group tries again; until then readers are refused.
        if let Err(error) = self.reload(&mut live) {
            tracing::error!(%error, "the log is out of order");
        }
        drop(live);
        if results.is_empty() {
            return group.chunks(1).flat_map(|one| self.group(one)).collect();
        }
        results
    }

    fn transaction(
        &mut self,
        live: &mut Live,
        group: &[Waiting],
    ) -> Result<Vec<Result<(), Error>>, rusqlite::Error> {
        self.set_durability(group.iter().any(|waiting| self.is_durable(&waiting.write)))?;
        self.cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut results = Vec::with_capacity(group.len());
        for waiting in group {
            let result = match &waiting.write {
                Write::Append(append) => self.append(live, append),
                Write::Usage(usage) => self.record_usage(usage).map_err(Failure::Database),
                #[cfg(test)]
                Write::Panic => panic!("as asked"),
            };
            match result {
                Ok(()) => results.push(Ok(())),
                Err(Failure::Refused(error)) => results.push(Err(error)),
                Err(Failure::Database(error)) => return Err(error),
            }
        }
        if self.pages.contains_key(&self.page_id) {
            let (id, page) = (self.page_id, &self.page);
            self.cached("INSERT INTO deltas (id, page) VALUES (?, ?)")?.execute(params![id, page])?;
            self.page_id += 1;
        }
        self.page.clear();
        self.delete_dead_pages()?;
        self.cached("COMMIT")?.execute([])?;
        Ok(results)
    }

    /// Whether a write has to be on the disk before it is acknowledged.
    fn is_durable(&self, write: &Write) -> bool {
        match write {
            Write::Append(append) => {
                let last = append.events.last().map_or(0, |logged| logged.seq.0);
                append.durable
                    || append.reserve.is_some()
                    || self.sessions.get(&append.session).is_none_or(|state| last > state.reserved)
            }
            Write::Usage(_) => true,
            #[cfg(test)]
            Write::Panic => false,
        }
    }

    /// Checks first and applies then, so that a refused append leaves no trace.
    fn append(&mut self, live: &mut Live, append: &Append) -> Result<(), Failure> {
        let known = self.session(live, &append.session)?;
        let was_current = known.is_some_and(|state| state.current);
        let mut state = known.unwrap_or(State { row: 0, head: 0, reserved: 0, current: true });
        self.check(append, &state)?;
        let Some(last) = append.events.last() else {
            if let Some(reserve) = append.reserve {
                state.reserved = state.reserved.max(reserve.0);
                self.advance(&append.session, state, false)?;
            }
            return Ok(());
        };
        if state.row == 0 {
            state.row = self.insert_session(append)?;
        }
        let mut is_text = true;
        for logged in &append.events {
            match (&logged.event, &logged.run) {
                (Event::Text(text), Some(run)) => self.stream(live, append, run, logged, text)?,
                _ => {
                    is_text = false;
                    self.insert_event(live, &append.session, state.row, logged)?;
                }
            }
        }
        state.head = last.seq.0;
        state.reserved = state.reserved.max(append.reserve.map_or(0, |reserve| reserve.0));
        state.current = true;
        self.advance(&append.session, state, is_text && was_current && append.reserve.is_none())?;
        self.figures.events.fetch_add(append.events.len() as u64, Relaxed);
        Ok(())
    }

    /// Refuses what would break the log.
    fn check(&self, append: &Append, state: &State) -> Result<(), Failure> {
        let refuse = |why: String| Err(Failure::Refused(refused(why)));
        let (head, top) = (state.head, state.head.max(state.reserved));
        let is_number = |seq: Seq| i64::try_from(seq.0).is_ok_and(|seq| seq < i64::MAX);
        if append.reserve.is_some_and(|reserve| !is_number(reserve)) {
            return refuse("the reserve is no number of the log".into());
        }
        let Some(first) = append.events.first() else {
            return if state.row == 0 { refuse("a session begins with an event".into()) } else { Ok(()) };
        };
        let follows = first.first_seq.0 > top || (state.current && first.first_seq.0 == head + 1);
        let is_new = state.row == 0;
        if !follows || (is_new && first.first_seq.0 != 1) {
            return refuse(format!(
                "number {} does not follow in {} (head {head}, reserved up to {})",
                first.first_seq, append.session, state.reserved
            ));
        }
        let mut next = first.first_seq;
        let (mut begun, mut over): (Vec<&RunId>, Vec<&RunId>) = (Vec::new(), Vec::new());
        let mut keys = Vec::new();
        for logged in &append.events {
            if logged.first_seq != next || logged.seq != next || !is_number(next) {
                return refuse(format!(
                    "numbers {} to {} where {next} was due",
                    logged.first_seq, logged.seq
                ));
            }
            next = next.next();
            let is_open = |run: &RunId| {
                let known = self.runs.get(run).is_some_and(|open| open.session == state.row);
                (known || begun.contains(&run)) && !over.contains(&run)
            };
            match (&logged.event, &logged.run) {
                (Event::Cleared, None) => {}
                (Event::Cleared, Some(_)) | (_, None) => {
                    return refuse(format!("event {} has a run, or none, against its kind", logged.seq));
                }
                (Event::Prompted { owner, idempotency_key, .. }, Some(run)) => {
                    if begun.contains(&run)
                        || self.exists("SELECT 1 FROM runs WHERE run = ?", &[run.as_str()])?
                    {
                        return Err(ErrorCode::Conflict.error(format!("run {run} exists already")).into());
                    }
                    if let Some(key) = idempotency_key {
                        let name = (owner.as_str(), key.as_str());
                        let sql = "SELECT 1 FROM idempotency WHERE owner = ? AND key = ?";
                        if keys.contains(&name) || self.exists(sql, &[name.0, name.1])? {
                            let message = "the idempotency key stands for another run already";
                            return Err(ErrorCode::Conflict.error(message).into());
                        }
                        keys.push(name);
                    }
                    begun.push(run);
                }
                (event, Some(run)) => {
                    if !is_open(run) {
                        return refuse(format!("run {run} is not open in {}", append.session));
                    }
                    if matches!(event, Event::Ended { .. }) {
                        over.push(run);
                    }
                }
            }
        }
        Ok(())
    }

    fn stream(
        &mut self,
        live: &mut Live,
        append: &Append,
        run: &RunId,
        logged: &Logged,
        text: &str,
    ) -> Result<(), Failure> {
        let open = self.open_run(run)?;
        let (seq, at) = (logged.seq, logged.at);
        let piece = page::Piece { session: number(open.session), run: number(open.row), seq, at, text };
        page::write(&mut self.page, piece);
        let place = Place { session: &append.session, row: open.row, run, page: self.page_id };
        if live.push(place, seq, at, text) {
            *self.pages.entry(self.page_id).or_default() += 1;
        }
        Ok(())
    }

    fn insert_event(
        &mut self,
        live: &mut Live,
        session: &SessionKey,
        session_row: i64,
        logged: &Logged,
    ) -> Result<(), Failure> {
        let at = time(logged.at);
        let seq = integer(logged.seq.0);
        let mut run_row = None;
        if let Some(run) = &logged.run {
            if let Event::Prompted { owner, idempotency_key, .. } = &logged.event {
                self.cached("INSERT INTO runs (run, session, prompted, settled) VALUES (?, ?, ?, ?)")?
                    .execute(params![run.as_str(), session_row, seq, seq])?;
                let row = self.db.last_insert_rowid();
                self.runs.insert(run.clone(), OpenRun { row, session: session_row });
                if let Some(key) = idempotency_key {
                    self.cached("INSERT INTO idempotency (owner, key, run) VALUES (?, ?, ?)")?
                        .execute(params![owner.as_str(), key, row])?;
                }
            }
            let row = self.open_run(run)?.row;
            run_row = Some(row);
            let is_over = matches!(logged.event, Event::Ended { .. });
            if is_over || matches!(logged.event, Event::StepEnded { .. } | Event::Restarted) {
                let had_text = self.settle(live, session, session_row, row)?;
                if is_over {
                    self.cached("UPDATE runs SET settled = ?1, ended = ?1 WHERE id = ?2")?
                        .execute(params![seq, row])?;
                    self.runs.remove(run);
                } else if had_text {
                    self.cached("UPDATE runs SET settled = ?1 WHERE id = ?2")?.execute(params![seq, row])?;
                }
            }
        }
        self.body.clear();
        let kind = record::write(&logged.event, &mut self.body);
        let body = &self.body;
        self.cached(INSERT_EVENT)?.execute(params![session_row, seq, seq, run_row, at, kind, body])?;
        match &logged.event {
            Event::Cleared => {
                self.cached("UPDATE sessions SET cleared = ?1, updated = max(updated, ?2) WHERE id = ?3")?
                    .execute(params![seq, at, session_row])?;
            }
            Event::Prompted { .. } | Event::Ended { .. } => {
                self.cached("UPDATE sessions SET updated = max(updated, ?1) WHERE id = ?2")?
                    .execute(params![at, session_row])?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes a run's text down once, now that its step is over, and lets go of its pages. Says
    /// whether there was any.
    fn settle(
        &mut self,
        live: &mut Live,
        session: &SessionKey,
        session_row: i64,
        row: i64,
    ) -> rusqlite::Result<bool> {
        let Some(run) = live.take(session, row) else { return Ok(false) };
        for segment in &run.segments {
            self.body.clear();
            segment.write(&mut self.body);
            let (first, last) = (integer(segment.first_seq().0), integer(segment.seq().0));
            let (at, body) = (time(segment.at()), &self.body);
            let values = params![session_row, last, first, row, at, record::TEXT, body];
            self.cached(INSERT_EVENT)?.execute(values)?;
        }
        for page in run.pages {
            if let Some(steps) = self.pages.get_mut(&page) {
                *steps -= 1;
                if *steps == 0 {
                    self.pages.remove(&page);
                    // The present group's page is not there yet and need not be written then.
                    if page != self.page_id {
                        self.dead.push(page);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Remembers how far a session is; in the database only where `only_text` does not spare it:
    /// the head is then found from the text.
    fn advance(&mut self, session: &SessionKey, state: State, only_text: bool) -> rusqlite::Result<()> {
        if !only_text {
            let (head, reserved, opened) = (integer(state.head), integer(state.reserved), self.opened);
            // A session that only reserved numbers was not written to: the reserve still holds.
            let opened = if state.current { opened } else { 0 };
            self.cached("UPDATE sessions SET head = ?, reserved = ?, opened = ? WHERE id = ?")?
                .execute(params![head, reserved, opened, state.row])?;
        }
        match self.sessions.get_mut(session) {
            Some(known) => *known = state,
            None => {
                self.sessions.insert(session.clone(), state);
            }
        }
        Ok(())
    }

    fn insert_session(&mut self, append: &Append) -> rusqlite::Result<i64> {
        let at = time(append.events.first().map_or(Timestamp::default(), |logged| logged.at));
        self.cached(
            "INSERT INTO sessions (key, owner, created, updated, head, reserved, cleared, opened)
             VALUES (?1, ?2, ?3, ?3, 0, 0, 0, ?4)",
        )?
        .execute(params![append.session.as_str(), append.owner.as_str(), at, self.opened])?;
        Ok(self.db.last_insert_rowid())
    }

    fn record_usage(&mut self, record: &UsageRecord) -> rusqlite::Result<()> {
        let input = integer(record.usage.input_tokens.min(TOKENS_MAX));
        let output = integer(record.usage.output_tokens.min(TOKENS_MAX));
        self.cached(
            "INSERT INTO usage (session, run, agent, provider, model, input_tokens, output_tokens, at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            record.session.as_str(),
            record.run.as_str(),
            record.agent.as_str(),
            record.provider,
            record.model,
            input,
            output,
            time(record.at),
        ])?;
        self.cached(
            "UPDATE sessions SET input_tokens = input_tokens + ?1, output_tokens = output_tokens + ?2
             WHERE key = ?3",
        )?
        .execute(params![input, output, record.session.as_str()])?;
        Ok(())
    }

    fn delete_dead_pages(&mut self) -> rusqlite::Result<()> {
        if self.dead.is_empty() {
            return Ok(());
        }
        let mut dead = std::mem::take(&mut self.dead);
        dead.sort_unstable();
        for range in ranges(&dead) {
            self.cached("DELETE FROM deltas WHERE id BETWEEN ? AND ?")?
                .execute(params![range.start, range.end - 1])?;
        }
        dead.clear();
        self.dead = dead;
        Ok(())
    }

    /// The session, from memory or from the database.
    fn session(&mut self, live: &Live, key: &SessionKey) -> rusqlite::Result<Option<State>> {
        if let Some(state) = self.sessions.get(key) {
            return Ok(Some(*state));
        }
        let opened = self.opened;
        let found = self
            .cached("SELECT id, head, reserved, opened FROM sessions WHERE key = ?")?
            .query_row([key.as_str()], |row| {
                Ok(State {
                    row: row.get(0)?,
                    head: number(row.get(1)?).max(live.head(key)),
                    reserved: number(row.get(2)?),
                    current: row.get::<_, i64>(3)? == opened,
                })
            })
            .optional()?;
        if let Some(state) = found {
            self.sessions.insert(key.clone(), state);
        }
        Ok(found)
    }

    fn open_run(&self, run: &RunId) -> Result<OpenRun, Failure> {
        let open = self.runs.get(run).copied();
        open.ok_or_else(|| Failure::Refused(refused(format_args!("run {run} is not open"))))
    }

    fn exists(&self, sql: &str, values: &[&str]) -> rusqlite::Result<bool> {
        self.cached(sql)?.exists(params_from_iter(values))
    }

    fn cached(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.db.prepare_cached(sql)
    }

    /// Brings memory back to what is committed.
    fn reload(&mut self, live: &mut Live) -> Result<(), Error> {
        self.stale = true;
        live.broken = true;
        live.clear();
        self.sessions.clear();
        self.runs.clear();
        self.pages.clear();
        self.page.clear();
        self.dead.clear();
        if !self.db.is_autocommit() {
            self.db.execute_batch("ROLLBACK").map_err(|e| sql(&e))?;
        }
        let mut open: HashMap<u64, (SessionKey, RunId, Seq)> = HashMap::new();
        let mut statement = self
            .db
            .prepare_cached(
                "SELECT r.id, r.run, r.settled, r.session, s.key
                 FROM runs r INDEXED BY runs_unfinished JOIN sessions s ON s.id = r.session
                 WHERE r.ended IS NULL",
            )
            .map_err(|e| sql(&e))?;
        let mut rows = statement.query([]).map_err(|e| sql(&e))?;
        while let Some(row) = rows.next().map_err(|e| sql(&e))? {
            let text = |index| row.get::<_, String>(index).map_err(|e| sql(&e));
            let integer = |index| row.get::<_, i64>(index).map_err(|e| sql(&e));
            let (id, run, session) = (integer(0)?, RunId::from(text(1)?), SessionKey::parse(&text(4)?)?);
            self.runs.insert(run.clone(), OpenRun { row: id, session: integer(3)? });
            open.insert(number(id), (session, run, Seq(number(integer(2)?))));
        }
        let mut statement =
            self.db.prepare_cached("SELECT id, page FROM deltas ORDER BY id").map_err(|e| sql(&e))?;
        let mut rows = statement.query([]).map_err(|e| sql(&e))?;
        while let Some(row) = rows.next().map_err(|e| sql(&e))? {
            let id: i64 = row.get(0).map_err(|e| sql(&e))?;
            let bytes = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(|e| sql(&e))?;
            for piece in page::read(bytes)? {
                let Some((session, run, settled)) = open.get(&piece.run) else { continue };
                let place = Place { session, row: integer(piece.run), run, page: id };
                if piece.seq > *settled && live.push(place, piece.seq, piece.at, piece.text) {
                    *self.pages.entry(id).or_default() += 1;
                }
            }
            if !self.pages.contains_key(&id) {
                self.dead.push(id);
            }
            self.page_id = self.page_id.max(id + 1);
        }
        self.stale = false;
        live.broken = false;
        Ok(())
    }

    /// `FULL` or `NORMAL` for the transactions that follow.
    fn set_durability(&mut self, full: bool) -> rusqlite::Result<()> {
        if self.full != full {
            let pragma = if full { "PRAGMA synchronous=FULL" } else { "PRAGMA synchronous=NORMAL" };
            self.db.execute_batch(pragma)?;
            self.full = full;
        }
        Ok(())
    }

    /// What can wait until nobody waits.
    fn rest(&mut self) {
        if self.commits_since_rest > 0 {
            if let Err(error) = self.checkpoint("PASSIVE") {
                tracing::warn!(%error, "the write-ahead log could not be moved into the database");
            }
            self.commits_since_rest = 0;
        }
        self.forget_idle_sessions();
        self.measure();
    }

    /// Only those without an open run: what text alone moved is found nowhere else.
    fn forget_idle_sessions(&mut self) {
        if self.sessions.len() > SESSIONS_MAX {
            let busy: HashSet<i64> = self.runs.values().map(|run| run.session).collect();
            self.sessions.retain(|_, state| busy.contains(&state.row));
        }
    }

    fn checkpoint(&self, mode: &str) -> rusqlite::Result<()> {
        self.db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))
    }

    fn measure(&self) {
        self.figures.db_bytes.store(self.files.bytes(), Relaxed);
    }
}

const INSERT_EVENT: &str =
    "INSERT INTO events (session, seq, first, run, at, kind, body) VALUES (?, ?, ?, ?, ?, ?, ?)";

/// As SQLite keeps it. What is checked to fit, or was read from there, does; a time beyond is cut.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn time(at: Timestamp) -> i64 {
    integer(at.as_millis())
}

fn number(integer: i64) -> u64 {
    u64::try_from(integer).unwrap_or(0)
}

/// The ranges that sorted numbers form.
fn ranges(sorted: &[i64]) -> impl Iterator<Item = Range<i64>> {
    sorted.chunk_by(|a, b| a + 1 == *b).map(|chunk| chunk[0]..chunk[chunk.len() - 1] + 1)
}

#[cfg(test)]
mod tests {
    use super::super::reader::Reader;
    use super::super::{Load, ReadEvents};
    use super::*;
    use clawmux_core::auth::Owner;
    use clawmux_core::event::Outcome;

    struct Log {
        writer: Writer,
        reader: Reader,
        session: SessionKey,
        _folder: tempfile::TempDir,
    }

    impl Log {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let files = Arc::new(Files::claim(&folder.path().join("clawmux.db")).unwrap());
            let (shared, figures) = (Arc::<Shared>::default(), Arc::default());
            let writer = Writer::open(Arc::clone(&files), Arc::clone(&shared), figures).unwrap();
            let reader = Reader::open(files, shared).unwrap();
            let session = SessionKey::new("main", "test", "a", "main").unwrap();
            let mut log = Self { writer, reader, session, _folder: folder };
            log.write(&[&[prompt()]]).remove(0).unwrap();
            log
        }

        fn write(&mut self, appends: &[&[(u64, Event)]]) -> Vec<Result<(), Error>> {
            let group: Vec<_> = appends.iter().map(|events| self.waiting(events)).collect();
            self.writer.group(&group)
        }

        fn waiting(&self, events: &[(u64, Event)]) -> Waiting {
            let events = events.iter().map(|(seq, event)| {
                let (seq, run) = (Seq(*seq), Some("r".into()));
                Logged { first_seq: seq, seq, run, at: Timestamp::default(), event: event.clone() }
            });
            let (session, owner) = (self.session.clone(), Owner::Admins);
            let reserve = (self.writer.sessions.is_empty()).then_some(Seq(100));
            let append = Append { session, owner, events: events.collect(), durable: false, reserve };
            waiting(Write::Append(append))
        }

        fn read(&mut self) -> Vec<(u64, Event)> {
            let asked =
                ReadEvents { session: self.session.clone(), after: Seq(0), run: None, max_bytes: usize::MAX };
            self.reader
                .events(&asked)
                .unwrap()
                .into_iter()
                .map(|logged| (logged.seq.0, logged.event))
                .collect()
        }

        fn pages(&self) -> i64 {
            self.writer.db.query_row("SELECT count(*) FROM deltas", [], |row| row.get(0)).unwrap()
        }
    }

    fn waiting(write: Write) -> Waiting {
        Waiting { write, bytes: 0, done: oneshot::channel().0 }
    }

    fn prompt() -> (u64, Event) {
        let (content, owner) = ("hi".into(), Owner::Admins);
        (1, Event::Prompted { content, owner, idempotency_key: None })
    }

    fn text(seq: u64, piece: &str) -> (u64, Event) {
        (seq, Event::Text(piece.into()))
    }

    #[test]
    fn a_full_disk_is_named_loses_nothing_and_passes() {
        let mut log = Log::new();
        log.write(&[&[text(2, "a")]]).remove(0).unwrap();
        let pages: i64 = log.writer.db.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        log.writer.db.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
        let (large, small) = ([text(3, &"x".repeat(100_000))], [text(4, "y")]);
        for result in log.write(&[&large, &small]) {
            let error = result.unwrap_err();
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert!(error.message.starts_with("the log can't be written: "), "{error}");
        }
        assert_eq!(log.read(), [prompt(), text(2, "a")]);
        log.writer.db.execute_batch("PRAGMA max_page_count = 1000000").unwrap();
        for result in log.write(&[&large, &small]) {
            result.unwrap();
        }
        assert_eq!(log.read(), [prompt(), text(4, &format!("a{}y", "x".repeat(100_000)))]);
        assert_eq!(log.writer.figures.failures.load(Relaxed), 1);
    }

    #[test]
    fn a_panic_concerns_nobody_but_who_caused_it() {
        let mut log = Log::new();
        let group = [log.waiting(&[text(2, "a")]), waiting(Write::Panic), log.waiting(&[text(3, "b")])];
        let results = log.writer.group(&group);
        assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
        assert!(results[1].as_ref().unwrap_err().message.contains("panicked"), "{results:?}");
        assert_eq!(log.read(), [prompt(), text(3, "ab")]);
    }

    #[test]
    fn text_is_durable_only_past_the_reserve() {
        let mut log = Log::new();
        let durable = |log: &Log| log.writer.figures.durable_commits.load(Relaxed);
        let mode = |log: &Log| -> i64 {
            log.writer.db.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
        };
        let (normal, full) = (1, 2);
        assert_eq!((durable(&log), mode(&log)), (1, full));
        for seq in 2..=100 {
            log.write(&[&[text(seq, "a")]]).remove(0).unwrap();
        }
        assert_eq!((durable(&log), mode(&log)), (1, normal));
        log.write(&[&[text(101, "a")]]).remove(0).unwrap();
        assert_eq!((durable(&log), mode(&log)), (2, full));
    }

    #[test]
    fn pages_live_as_long_as_a_step_that_streams_needs_them() {
        let mut log = Log::new();
        for seq in 2..10 {
            log.write(&[&[text(seq, "a")]]).remove(0).unwrap();
        }
        assert_eq!(log.pages(), 8);
        let step_ended = || Event::StepEnded { usage: clawmux_core::event::Usage::default() };
        log.write(&[&[text(10, "a")], &[(11, step_ended())]]).remove(0).unwrap();
        assert_eq!(log.pages(), 0, "what began and ended within the group needs no page either");
        let end = (13, Event::Ended { outcome: Outcome::Completed, usage: Default::default() });
        log.write(&[&[text(12, "b"), end.clone()]]).remove(0).unwrap();
        assert_eq!(log.read(), [prompt(), text(10, &"a".repeat(9)), (11, step_ended()), text(12, "b"), end]);
        let asked = Load { session: log.session.clone(), runs: 0 };
        assert_eq!(log.reader.load(&asked).unwrap().unwrap().head, Seq(13));
        assert!(log.writer.runs.is_empty() && log.writer.pages.is_empty());
    }

    #[test]
    fn numbers_that_follow_each_other_form_ranges() {
        let found: Vec<_> = ranges(&[1, 2, 3, 7, 9, 10]).collect();
        assert_eq!(found, [1..4, 7..8, 9..11]);
        assert_eq!(ranges(&[]).count(), 0);
    }
}
