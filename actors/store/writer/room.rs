//! Room that deleted sessions leave: made a little at a time, so that no append waits for it long.
//!
//! A session that is deleted is gone from the tables that are searched at once. The rows of its log,
//! which may be many, go after that: some with each group and some while nobody writes. SQLite
//! overwrites what they held. When all are gone the write-ahead log, which has it still, is emptied,
//! and while nobody writes the file gives back what it does not need.
//!
//! A file that was made before there was this gives nothing back until it was written anew, which a
//! small one is when it is opened. Of a large one that would take too long: there `clawmux doctor` says
//! what to do. What is deleted is overwritten in either.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clawmux_core::ids::Owner;
use clawmux_core::limits::quota::Kept;
use rusqlite::{OptionalExtension, params};

use super::Writer;
use crate::runtime::clock;
use crate::store::DAY_MS;
use crate::store::columns::{Columns, integer, number};

/// The most bytes of deleted sessions that one transaction removes, but for a single row that has more.
const STEP_BYTES: u64 = 1 << 20;
/// The most rows.
const STEP_ROWS: i64 = 256;
/// From so many pages on that are not needed they are given back, but for the rest, which is kept for
/// what comes.
const FREE_PAGES_MAX: u64 = 256;
const FREE_PAGES_KEPT: u64 = 64;
/// So many at once.
const STEP_PAGES: u64 = 128;
/// How long the write-ahead log keeps what was deleted where it is never quiet.
const SCRUB_WITHIN: Duration = Duration::from_secs(10);
/// A file of more bytes is not written anew when it is opened.
const CONVERT_BYTES_MAX: u64 = 64 << 20;
/// For how many days it is known how large the database was.
const SIZES_DAYS: i64 = 400;

/// What is left to do.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Whether there may be rows of deleted sessions.
    pub(super) has_deleted: bool,
    /// Whether the file gives back what it does not need.
    can_shrink: bool,
    /// Whether it is at that.
    shrinks: bool,
    /// Since when the write-ahead log may have what was deleted, or when it was last tried to empty it.
    unscrubbed: Option<Instant>,
    /// The day of which the size is known.
    day: i64,
}

impl Room {
    /// Whether there is something to do while nobody writes.
    pub(super) fn has_work(&self) -> bool {
        self.has_deleted || self.shrinks
    }

    /// Whether the write-ahead log is to be emptied.
    pub(super) fn is_unscrubbed(&self) -> bool {
        self.unscrubbed.is_some()
    }
}

impl Writer {
    /// Has the file give back what it does not need from here on, where it is small enough for that.
    pub(super) fn convert(&mut self) {
        let pragma = |name: &str| self.db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let facts = (|| {
            Ok::<_, rusqlite::Error>((pragma("auto_vacuum")?, pragma("page_count")?, pragma("page_size")?))
        })();
        self.room.can_shrink = match facts {
            Ok((0, pages, size)) if number(pages) * number(size) > CONVERT_BYTES_MAX => {
                tracing::info!(
                    "the store gives no room back when sessions are deleted: clawmux doctor says what to do"
                );
                false
            }
            Ok((0, ..)) => {
                let anew = self.set_durability(true).and_then(|()| self.db.execute_batch("VACUUM"));
                if let Err(error) = &anew {
                    tracing::warn!(%error, "the store could not be written anew, so it gives no room back; the next start tries again");
                }
                anew.is_ok()
            }
            Ok(_) => true,
            Err(_) => false,
        };
    }

    /// Deletes some rows of sessions that are gone, in the transaction that is open.
    pub(super) fn delete_some_rows(&mut self) -> rusqlite::Result<()> {
        if !self.room.has_deleted {
            return Ok(());
        }
        let session: Option<i64> = self
            .cached("SELECT session FROM deleted_sessions LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?;
        let Some(session) = session else {
            self.room.has_deleted = false;
            self.room.unscrubbed = Some(Instant::now());
            self.measure();
            return Ok(());
        };
        let mut left = Some(STEP_BYTES);
        let mut last = None;
        for (of_events, select) in [
            (
                false,
                "SELECT rowid, length(data) FROM attachments WHERE session = ? ORDER BY seq, place LIMIT ?",
            ),
            (true, "SELECT seq, length(body) FROM events WHERE session = ? ORDER BY seq LIMIT ?"),
        ] {
            let rows: Vec<(i64, i64)> = self
                .cached(select)?
                .query_map(params![session, STEP_ROWS], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            for (row, bytes) in rows {
                let Some(now) = left else { break };
                left = now.checked_sub(number(bytes).max(1));
                last = Some(row);
                if !of_events {
                    self.cached("DELETE FROM attachments WHERE rowid = ?")?.execute([row])?;
                }
            }
            if of_events && let Some(last) = last {
                self.cached("DELETE FROM events WHERE session = ? AND seq <= ?")?.execute([session, last])?;
            }
            if !of_events && last.is_some() {
                // Its events when nothing else of it is left.
                return Ok(());
            }
        }
        if last.is_none() {
            self.cached("DELETE FROM deleted_sessions WHERE session = ?")?.execute([session])?;
        }
        Ok(())
    }

    /// Gives some of the file back that it does not need, while nobody writes. Says whether there is
    /// more.
    pub(super) fn shrink_some(&mut self) -> rusqlite::Result<bool> {
        if !self.room.can_shrink {
            return Ok(false);
        }
        let free = self.free_pages()?;
        let was_at_it = self.room.shrinks;
        self.room.shrinks = free > FREE_PAGES_MAX || (self.room.shrinks && free > FREE_PAGES_KEPT);
        if self.room.shrinks {
            self.set_durability(false)?;
            let some = STEP_PAGES.min(free - FREE_PAGES_KEPT);
            // A step of it for each page.
            let mut statement = self.db.prepare(&format!("PRAGMA incremental_vacuum({some})"))?;
            let mut steps = statement.query([])?;
            while steps.next()?.is_some() {}
        }
        if was_at_it && !self.room.shrinks {
            // The file ends where it should once the write-ahead log is moved into it.
            self.room.unscrubbed = Some(Instant::now());
        }
        Ok(self.room.shrinks)
    }

    /// Empties the write-ahead log, which has what was deleted still, where nobody looks at what is older.
    /// Where it is never quiet, that is done in time all the same.
    pub(super) fn scrub(&mut self, is_quiet: bool) -> rusqlite::Result<()> {
        let is_due = |since: &Instant| is_quiet || since.elapsed() > SCRUB_WITHIN;
        if !self.room.unscrubbed.as_ref().is_some_and(is_due) {
            return Ok(());
        }
        self.db.busy_timeout(Duration::ZERO)?;
        let emptied = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        self.db.busy_timeout(crate::store::files::BUSY)?;
        self.room.unscrubbed = (emptied? != 0).then(Instant::now);
        Ok(())
    }

    /// What the database takes: of pages in use, and of those that are not; both in bytes.
    pub(super) fn sizes(&self) -> rusqlite::Result<(u64, u64)> {
        let pragma =
            |name: &str| self.db.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map(number);
        let (pages, size, free) = (pragma("page_count")?, pragma("page_size")?, self.free_pages()?);
        Ok((pages.saturating_sub(free) * size, free * size))
    }

    fn free_pages(&self) -> rusqlite::Result<u64> {
        self.db.pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0)).map(number)
    }

    /// Notes how large the database is as a day begins, in the transaction that is open.
    pub(super) fn note_size(&mut self) -> rusqlite::Result<()> {
        let day = integer(clock::wall().as_millis() / DAY_MS);
        if day != self.room.day {
            let bytes = integer(self.sizes()?.0);
            self.cached("INSERT OR IGNORE INTO sizes (day, bytes) VALUES (?, ?)")?.execute([day, bytes])?;
            self.cached("DELETE FROM sizes WHERE day < ?")?.execute([day - SIZES_DAYS])?;
            self.room.day = day;
        }
        Ok(())
    }

    /// Reads what owners hold that something was written for, now that it is committed.
    pub(super) fn tell_holdings(&mut self) -> rusqlite::Result<()> {
        for owner in std::mem::take(&mut self.touched) {
            let kept = self
                .cached("SELECT sessions, bytes FROM holdings WHERE owner = ?")?
                .query_row([owner.as_str()], |row| {
                    Ok(Kept { sessions: row.number(0)?, bytes: row.number(1)? })
                })
                .optional()?;
            self.holdings.set(&owner, kept.unwrap_or_default());
        }
        Ok(())
    }

    /// Reads what all owners hold, and what is left of sessions that are gone.
    pub(super) fn read_holdings(&mut self) -> rusqlite::Result<()> {
        self.touched.clear();
        let kept: Vec<(Owner, Kept)> = self
            .db
            .prepare_cached("SELECT owner, sessions, bytes FROM holdings")?
            .query_map([], |row| {
                let kept = Kept { sessions: row.number(1)?, bytes: row.number(2)? };
                Ok((row.owner(0)?, kept))
            })?
            .collect::<Result<_, _>>()?;
        self.holdings.set_all(kept);
        self.room.has_deleted =
            self.db.query_row("SELECT EXISTS (SELECT 1 FROM deleted_sessions)", [], |row| row.get(0))?;
        Ok(())
    }

    pub(super) fn measure(&self) {
        self.figures.db_bytes.store(self.files.bytes(), Relaxed);
        if let Ok((used, free)) = self.sizes() {
            self.figures.used_bytes.store(used, Relaxed);
            self.figures.free_bytes.store(free, Relaxed);
        }
        self.figures.deletes.store(self.room.has_deleted, Relaxed);
    }
}
