//! What the writer does while the log can't be written.
//!
//! After the first failure that would hit everybody, whatever is to be written is refused at once
//! with what went wrong. The writer itself tries again, ever more rarely, with a small transaction
//! that is synced; once that is on the disk, work is taken again. So an outage is one line in the
//! daemon's log and one more at its end, however many wait for it, and no request decides by its
//! size whether there is an outage. On a disk that is full but for a few bytes every run that goes
//! on would fail again, at the cost of another model call: so there must be some room, too.
//!
//! After a failed sync nothing is tried before the write-ahead log was written anew, and the same
//! is done with what a killed process left of it: that a sync of it had failed is nowhere recorded.
//! See [`wal`].

use std::time::{Duration, Instant};

use clawmux_core::error::{Error, ErrorCode};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ffi};

use super::Writer;
use super::wal::{self, Rewrite};
use crate::store::failure::{is_outage, sql, written};
use crate::store::files::Files;

/// The first wait before another try, and what an outage so soon after one goes on with.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// The longest.
const RETRY_MAX: Duration = Duration::from_secs(4);
/// After so long without an outage the next one begins with the shortest wait.
const CALM: Duration = Duration::from_secs(30);

/// What is known of an outage.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// When to try again; none = there is no outage.
    again: Option<Instant>,
    delay: Duration,
    /// When the last one ended.
    over: Option<Instant>,
    /// Whether frames may not be on the disk although a sync after them succeeds.
    unsynced: bool,
    /// Whether what was written can't be read back: only a start anew finds out what is left.
    lost: bool,
}

impl Trouble {
    /// How long until the next try; none where there is no outage.
    pub(super) fn patience(&self) -> Option<Duration> {
        Some(self.again?.saturating_duration_since(Instant::now()))
    }

    pub(super) fn is_there(&self) -> bool {
        self.again.is_some()
    }
}

impl Writer {
    /// Takes note of a failure, where it is the disk's.
    pub(super) fn note(&mut self, error: &rusqlite::Error) {
        if !is_outage(error) {
            return;
        }
        if error.sqlite_error().is_some_and(|error| {
            matches!(error.extended_code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
        }) {
            self.trouble.unsynced = true;
        }
        self.begin_trouble(sql(error));
    }

    fn begin_trouble(&mut self, error: Error) {
        let trouble = &mut self.trouble;
        let now = Instant::now();
        let calm = trouble.over.is_none_or(|over| now.duration_since(over) > CALM);
        if !trouble.is_there() {
            tracing::error!(%error, "new work is refused until the store can be written; reads go on");
        } else {
            tracing::debug!(%error, "it still can't be");
        }
        trouble.delay = if calm && !trouble.is_there() {
            RETRY_MIN
        } else {
            (trouble.delay * 2).clamp(RETRY_MIN, RETRY_MAX)
        };
        trouble.again = Some(now + trouble.delay);
        self.figures.fault.send_if_modified(|fault| {
            let news = fault.as_ref() != Some(&error);
            *fault = Some(error);
            news
        });
    }

    /// Tries whether the log can be written again.
    pub(super) fn try_again(&mut self) {
        if self.trouble.lost {
            self.trouble.again = Some(Instant::now() + RETRY_MAX);
            return;
        }
        if let Err(error) = self.make_sure() {
            return self.begin_trouble(error);
        }
        if self.stale {
            let shared = std::sync::Arc::clone(&self.shared);
            if let Err(error) = self.reload(&mut shared.enter()) {
                return self.begin_trouble(error);
            }
        }
        if let Err(error) = self.files.has_room() {
            return self.begin_trouble(written(&error));
        }
        let tried = self
            .set_durability(true)
            .and_then(|()| self.db.execute("UPDATE meta SET opened = opened", []).map(drop))
            .and_then(|()| self.checkpoint("PASSIVE"));
        if let Err(error) = tried {
            return self.note(&error);
        }
        self.trouble.again = None;
        self.trouble.over = Some(Instant::now());
        tracing::info!("the store can be written again");
        self.figures.fault.send_replace(None);
    }

    /// Where a sync has failed: writes the write-ahead log anew.
    fn make_sure(&mut self) -> Result<(), Error> {
        if self.trouble.unsynced {
            secure(&self.db, &self.files).map_err(|unsure| {
                self.trouble.lost = matches!(unsure, Unsure::Lost(_));
                unsure.into_error()
            })?;
            self.trouble.unsynced = false;
        }
        Ok(())
    }

    /// Whether the database may be changed by what is in the write-ahead log, as closing it does.
    /// Where it may not, that is left to the next start.
    pub(super) fn may_move(&mut self) -> bool {
        let may = !self.trouble.lost && self.make_sure().is_ok();
        if !may {
            leave_wal(&self.db);
        }
        may
    }
}

/// Why it is not known that what is committed is on the disk.
#[derive(Debug)]
pub(super) enum Unsure {
    Failed(Error),
    Lost(u64),
}

impl Unsure {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Lost(frame) => ErrorCode::Unavailable.error(format!(
                "the store can't be written: the disk lost what was written to it (frame {frame}); restart \
                 clawmux, which goes on from what is on the disk"
            )),
        }
    }
}

/// Has everything that is committed in the write-ahead log on the disk, however its syncs went.
pub(super) fn secure(db: &Connection, files: &Files) -> Result<(), Unsure> {
    let frames = frames(db).map_err(|error| Unsure::Failed(sql(&error)))?;
    match wal::rewrite(&files.wal(), frames) {
        Ok(()) => Ok(()),
        Err(Rewrite::Failed(error)) => Err(Unsure::Failed(written(&error))),
        Err(Rewrite::Lost(frame)) => Err(Unsure::Lost(frame)),
    }
}

/// How many frames are committed in the write-ahead log.
pub(super) fn frames(db: &Connection) -> rusqlite::Result<u64> {
    let mut asked = db.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?;
    asked.query_row([], |row| row.get::<_, i64>(1)).map(|frames| u64::try_from(frames).unwrap_or(0))
}

/// Has the write-ahead log stay as it is when the database is closed.
pub(super) fn leave_wal(db: &Connection) {
    if let Err(error) = db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
        tracing::error!(%error, "the write-ahead log can't be left as it is");
    }
}
