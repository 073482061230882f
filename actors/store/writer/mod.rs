//! The single writer: one thread, one connection, one transaction for everything that waits.
//!
//! **How durable an append is.** A group that holds nothing but text is committed under
//! `synchronous=NORMAL`: it survives the end of the process. A group with anything durable in it
//! is committed under `FULL`, which syncs the whole write-ahead log: so what is acknowledged as
//! durable takes everything before it, of every session, with it. What goes past a session's
//! reserve of numbers is made durable too, asked or not, so that a number a client saw is never
//! used twice. Acknowledgements leave after the commit. Of what waits, that which needs no sync is
//! committed first, so that text waits for the disk no longer than a sync under way; the order
//! within a session stays.
//!
//! **When something fails** nothing of the group is applied, everybody in it is told, and what is
//! kept in memory is read anew from the database. A failure of the disk is everybody's: see
//! `trouble`. One that is not the disk's is not shared: each of the group is then tried alone. A
//! panic counts as such a failure.
//!
//! **Text** goes into the log twice, for little: at once on a page for the group (one row for all
//! sessions), and in one piece when its step is over. A page is deleted when no step that still
//! streams has text on it; a few with each group, so that no commit waits for many of them.

mod append;
mod room;
#[cfg(test)]
mod tests;
mod trouble;
mod wal;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clawmux_core::conversation::log::check::Reached;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, SessionKey};
use clawmux_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, params};
use tokio::sync::oneshot;

use super::change::Change;
use super::columns::integer;
use super::failure::{Failure, is_about_the_disk, sql};
use super::figures::Figures;
use super::files::Files;
use super::holdings::Holdings;
use super::live::{Live, Shared};
use super::pages::{self, Unended};
use super::{schema, usage};
use room::Room;
use trouble::{Trouble, Unsure, frames, leave_wal, secure};

/// The most writes of one transaction.
const GROUP_MAX: usize = 1024;
/// The most bytes of one transaction, but for a single write that has more.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// After so long a silence the write-ahead log is moved into the database.
const IDLE: Duration = Duration::from_millis(500);
/// How soon pages that nobody needs are deleted where no group comes that would do it.
const SOON: Duration = Duration::from_millis(5);
/// The most of them that one transaction deletes.
const DEAD_MAX: usize = 32;
/// After a group of so many bytes it is looked how large the log is.
const MEASURE_BYTES: usize = 1 << 20;
/// Past so many frames the write-ahead log is moved into the database at once.
const FRAMES_MAX: u64 = 8192;
/// Sessions remembered besides those with a run that goes on.
const SESSIONS_MAX: usize = 16_384;

/// A change and who waits for it.
#[derive(Debug)]
pub(super) struct PendingChange {
    pub(super) change: Box<dyn Change>,
    pub(super) bytes: usize,
    pub(super) done: oneshot::Sender<Result<(), Error>>,
}

/// A session, as far as the writer needs it.
#[derive(Clone, Debug)]
struct State {
    /// Its number in the database; 0 = it is not there yet.
    row: i64,
    /// Whose it is.
    owner: Owner,
    head: u64,
    reserved: u64,
    /// What [`Writer::opened`] was when it was last written to.
    opened: i64,
}

impl State {
    /// One of which nothing is kept.
    fn new(session: &SessionKey, opened: i64) -> Self {
        Self { row: 0, owner: session.owner(), head: 0, reserved: 0, opened }
    }

    fn reached(&self) -> Reached {
        Reached { head: self.head, reserved: self.reserved }
    }
}

/// A run that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenRun {
    row: i64,
    session: i64,
    /// Number of its prompt.
    prompted: i64,
    /// When that came, where it was since the log was opened.
    asked: Option<Timestamp>,
}

pub(super) struct Writer {
    db: Connection,
    files: Arc<Files>,
    shared: Arc<Shared>,
    pub(super) figures: Arc<Figures>,
    /// How often the log was opened, this time included; in a cluster, the token of the record that is applied.
    pub(super) opened: i64,
    /// Whether a record of a cluster's log is being applied.
    pub(super) is_replaying: bool,
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
    dead: BTreeSet<i64>,
    body: Vec<u8>,
    /// What the present append adds to its session, in bytes.
    grown: i64,
    /// Owners for whom the present group has changed what they hold.
    touched: HashSet<Owner>,
    holdings: Holdings,
    room: Room,
    commits_since_rest: usize,
    trouble: Trouble,
}

impl Writer {
    /// Opens the database and reads what goes on in it.
    pub(super) fn open(
        files: Arc<Files>,
        shared: Arc<Shared>,
        figures: Arc<Figures>,
        holdings: Holdings,
    ) -> Result<Self, Error> {
        let mut db = files.writer()?;
        // Nothing is built on what a killed process left before it is known to be on the disk.
        secure(&db, &files).map_err(Unsure::into_error)?;
        schema::migrate(&mut db)?;
        let interrupted = count_interrupted(&mut db).map_err(|e| sql(&e))?;
        if interrupted > 0 {
            tracing::warn!(
                calls = interrupted,
                "calls of models were under way when the daemon was gone: what was reserved for them counts as spent"
            );
        }
        let opened = db
            .query_row(
                "UPDATE meta SET opened = opened + 1, version = ? RETURNING opened",
                [env!("CARGO_PKG_VERSION")],
                |row| row.get(0),
            )
            .map_err(|e| sql(&e))?;
        let mut writer = Self {
            db,
            files,
            shared,
            figures,
            opened,
            is_replaying: false,
            full: false,
            stale: true,
            sessions: HashMap::new(),
            runs: HashMap::new(),
            page: Vec::new(),
            page_id: 1,
            pages: HashMap::new(),
            dead: BTreeSet::new(),
            body: Vec::new(),
            grown: 0,
            touched: HashSet::new(),
            holdings,
            room: Room::default(),
            commits_since_rest: 0,
            trouble: Trouble::default(),
        };
        writer.convert();
        let shared = Arc::clone(&writer.shared);
        writer.reload(&mut shared.enter())?;
        writer.measure();
        Ok(writer)
    }

    /// Writes until nobody can ask any more, then closes the database.
    pub(super) fn run(mut self, waiting: &Receiver<PendingChange>) {
        let mut group = Vec::new();
        loop {
            let outage = self.trouble.patience();
            if outage.is_some_and(|patience| patience.is_zero()) {
                self.try_again();
                continue;
            }
            let has_work = !self.dead.is_empty() || self.room.has_work();
            let patience = outage.unwrap_or(if has_work { SOON } else { IDLE });
            let first = match waiting.recv_timeout(patience) {
                Ok(first) => first,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if outage.is_some() => continue,
                Err(RecvTimeoutError::Timeout) if self.delete_some_alone() => continue,
                Err(RecvTimeoutError::Timeout) => {
                    self.rest();
                    if self.trouble.is_there() || self.room.has_work() || self.room.is_unscrubbed() {
                        continue;
                    }
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
            let late = self.split_off_durable(&mut group);
            self.answer(&mut group);
            group = late;
            self.answer(&mut group);
        }
        // Deleted sessions may take long; the next start goes on with them.
        while !self.trouble.is_there() && !self.dead.is_empty() && self.delete_some_alone() {}
        // Closing moves the log too.
        if self.may_move()
            && let Err(error) = self.checkpoint("TRUNCATE")
        {
            leave_wal(&self.db);
            tracing::warn!(%error, "the store was not tidied at its end; the next start does it");
        }
    }

    /// Takes out of a mixed group what has to be synced, and what comes after that in the same
    /// session: the text of other sessions does not wait for the disk then.
    fn split_off_durable(&self, group: &mut Vec<PendingChange>) -> Vec<PendingChange> {
        if !group.iter().any(|waiting| waiting.change.is_durable(self)) {
            return Vec::new();
        }
        let mut behind = HashSet::new();
        group
            .extract_if(.., |waiting| {
                let durable = waiting.change.is_durable(self);
                let Some(session) = waiting.change.session() else { return durable };
                if durable {
                    behind.insert(session.clone());
                }
                behind.contains(session)
            })
            .collect()
    }

    /// Commits a group and tells everybody in it, which leaves it empty.
    fn answer(&mut self, group: &mut Vec<PendingChange>) {
        if group.is_empty() {
            return;
        }
        let fault = if self.trouble.is_there() { self.figures.fault.borrow().clone() } else { None };
        let results = match fault {
            Some(fault) => vec![Err(fault); group.len()],
            None => self.group(group),
        };
        self.figures.queue.fetch_sub(group.len(), Relaxed);
        self.figures.queue_bytes.fetch_sub(group.iter().map(|waiting| waiting.bytes).sum(), Relaxed);
        for (waiting, result) in group.drain(..).zip(results) {
            // Whoever does not wait any more has no use for the answer.
            let _ = waiting.done.send(result);
        }
        self.bound_wal();
    }

    /// Moves the write-ahead log into the database once it is long. SQLite would do it by itself,
    /// within the commit, and tell nobody that it failed.
    fn bound_wal(&mut self) {
        if self.trouble.is_there() {
            return;
        }
        let moved = frames(&self.db)
            .and_then(|frames| match frames {
                ..FRAMES_MAX => Ok(()),
                _ => self.checkpoint("PASSIVE"),
            })
            .and_then(|()| self.scrub(false));
        if let Err(error) = moved {
            self.note(&error);
        }
    }

    /// Commits a group; one result for each of it.
    fn group(&mut self, group: &[PendingChange]) -> Vec<Result<(), Error>> {
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
        let is_the_disk = matches!(&outcome, Ok(Err(error)) if is_about_the_disk(error));
        let results = match outcome {
            Ok(Ok(results)) => {
                self.figures.committed(group.len(), self.full, started.elapsed());
                let bytes: usize = group.iter().map(|waiting| waiting.bytes).sum();
                self.figures.written_bytes.fetch_add(bytes as u64, Relaxed);
                self.figures.streaming.store(live.len(), Relaxed);
                self.commits_since_rest += 1;
                if self.commits_since_rest.is_multiple_of(256) {
                    self.forget_idle_sessions();
                }
                if self.commits_since_rest.is_multiple_of(256) || bytes >= MEASURE_BYTES {
                    self.measure();
                }
                return results;
            }
            Ok(Err(error)) if is_the_disk || group.len() == 1 => {
                self.note(&error);
                vec![Err(sql(&error)); group.len()]
            }
            Err(_) if group.len() == 1 => {
                vec![Err(ErrorCode::Internal.error("the store's writer panicked over this append"))]
            }
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        self.figures.failures.fetch_add(1, Relaxed);
        self.stale = true;
        live.broken = true;
        // Where this fails the next group tries again; until then readers are refused.
        if let Err(error) = self.reload(&mut live) {
            tracing::error!(%error, "the store is out of order");
        }
        drop(live);
        if results.is_empty() || (!is_the_disk && group[0].change.is_tried_again()) {
            return group.chunks(1).flat_map(|one| self.group(one)).collect();
        }
        results
    }

    fn transaction(
        &mut self,
        live: &mut Live,
        group: &[PendingChange],
    ) -> Result<Vec<Result<(), Error>>, rusqlite::Error> {
        self.set_durability(group.iter().any(|waiting| waiting.change.is_durable(self)))?;
        self.cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut results = Vec::with_capacity(group.len());
        for waiting in group {
            match waiting.change.apply(self, live) {
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
        self.delete_some_pages()?;
        self.delete_some_rows()?;
        self.note_size()?;
        let ending = Instant::now();
        self.cached("COMMIT")?.execute([])?;
        if self.full {
            self.figures.synced(ending.elapsed());
        }
        self.tell_holdings()?;
        Ok(results)
    }

    /// Deletes some of the pages that nobody needs, in the transaction that is open.
    fn delete_some_pages(&mut self) -> rusqlite::Result<()> {
        let some: Vec<i64> = std::iter::from_fn(|| self.dead.pop_first()).take(DEAD_MAX).collect();
        for range in ranges(&some) {
            self.cached("DELETE FROM deltas WHERE id BETWEEN ? AND ?")?
                .execute(params![range.start, range.end - 1])?;
        }
        Ok(())
    }

    /// The same, and what else nobody needs, in a transaction of its own; says whether that went well
    /// and was of use.
    fn delete_some_alone(&mut self) -> bool {
        if self.stale || (self.dead.is_empty() && !self.room.has_work()) {
            return false;
        }
        let mut delete = || {
            if self.dead.is_empty() && !self.room.has_deleted {
                return self.shrink_some().map(drop);
            }
            self.set_durability(false)?;
            self.cached("BEGIN IMMEDIATE")?.execute([])?;
            self.delete_some_pages()?;
            self.delete_some_rows()?;
            self.cached("COMMIT")?.execute([]).map(drop)
        };
        if let Err(error) = delete() {
            // The next group begins with what is committed, which has these pages still.
            self.stale = true;
            self.note(&error);
            tracing::debug!(%error, "what nobody needs can't be deleted; it is tried again");
            return false;
        }
        self.bound_wal();
        true
    }

    /// Up to which number of a session clients may have seen any, where it is remembered.
    pub(super) fn reserved(&self, session: &SessionKey) -> Option<u64> {
        self.sessions.get(session).map(|state| state.reserved)
    }

    pub(super) fn db(&self) -> &Connection {
        &self.db
    }

    pub(super) fn cached(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
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
        self.read_open(live).map_err(Failure::into_error)?;
        self.stale = false;
        live.broken = false;
        Ok(())
    }

    /// Reads what goes on: what owners hold, the runs that have not ended, and their text.
    fn read_open(&mut self, live: &mut Live) -> Result<(), Failure> {
        self.read_holdings()?;
        let unended = pages::unended(&self.db)?;
        for open in &unended {
            let Unended { row, session_row: session, prompted, .. } = *open;
            let known = OpenRun { row: integer(row), session, prompted, asked: None };
            self.runs.insert(open.run.clone(), known);
        }
        let Self { db, pages, dead, page_id, .. } = self;
        pages::read(db, &unended, live, |id, steps| {
            if steps > 0 {
                pages.insert(id, steps);
            } else {
                dead.insert(id);
            }
            *page_id = (*page_id).max(id + 1);
        })
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
        if self.commits_since_rest > 0 && !self.trouble.is_there() {
            if let Err(error) = self.checkpoint("PASSIVE") {
                self.note(&error);
            }
            self.commits_since_rest = 0;
        }
        if !self.trouble.is_there()
            && let Err(error) = self.shrink_some().and_then(|_| self.scrub(true))
        {
            self.note(&error);
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
}

/// Counts what was under way when the daemon was gone. In a cluster it may go on elsewhere: there whoever takes a
/// session over does.
fn count_interrupted(db: &mut Connection) -> rusqlite::Result<usize> {
    let tx = db.transaction()?;
    let is_alone: bool =
        tx.query_row("SELECT cluster = '' AND applied = 0 FROM meta", [], |row| row.get(0))?;
    let interrupted = if is_alone { usage::count_interrupted(&tx, None)? } else { 0 };
    tx.commit()?;
    Ok(interrupted)
}

/// The ranges that sorted numbers form.
fn ranges(sorted: &[i64]) -> impl Iterator<Item = Range<i64>> {
    sorted.chunk_by(|a, b| a + 1 == *b).map(|chunk| chunk[0]..chunk[chunk.len() - 1] + 1)
}
