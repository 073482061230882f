//! What is asked of the log. One thread with a connection of its own, so that the writer never
//! waits for a question longer than it takes to open a view of the database. Owners have it in turn: who
//! asks for much keeps nobody else waiting for longer than one question.
//!
//! Every answer comes from one view: what was committed at one moment, from the tables and, for
//! steps that still stream, from memory.

use std::path::Path;
use std::sync::Arc;

use clawmux_core::conversation::event::Logged;
use clawmux_core::conversation::log::record;
use clawmux_core::conversation::log::segment::Segment;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{RunId, Seq, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

mod events;
mod find;
mod history;
mod load;
pub(super) mod questions;
mod room;
mod sessions;

use super::columns::{Columns, integer};
use super::failure::{self, Failure};
use super::files::Files;
use super::live::Shared;
use super::pages;
use super::schema::{self, FORMAT};
pub use events::{ReadEvents, ReadPrompt, exported};
pub use find::{
    Among, Describe, Described, FindRun, FindSession, Namesakes, ReadLanes, Unfinished, UnfinishedSince,
};
pub use history::{FindCut, FindTurn, ReadHistory, ReadPreviews, ReadTranscript};
pub use load::{LOAD_BYTES_MAX, Load, Loaded, WAITING_BYTES_MAX};
pub use room::{ReadDispensable, ReadSizes, ReadUnused, Unused};
pub use sessions::{ListSessions, ReadRow, ReadRows};

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
        let mut reader = Self::open(Arc::new(Files::unclaimed(path)), Arc::default())?;
        let format = schema::kind(&reader.db).map_err(|e| failure::sql(&e))?.format()?;
        if format < FORMAT {
            return Err(ErrorCode::Conflict.error(format!(
                "the store {} has format {format}, of an older clawmux, and is not read before it has format {FORMAT}: \
                 the next `clawmux serve` brings it there, for good (`clawmux backup` keeps a copy of it as it is)",
                path.display()
            )));
        }
        reader.read_pages().map_err(Failure::into_error)?;
        Ok(reader)
    }

    /// Reads what streamed when the store was last written to, where no writer knows it.
    fn read_pages(&mut self) -> Result<(), Failure> {
        let tx = self.db.transaction()?;
        pages::read(&tx, &pages::unended(&tx)?, &mut self.shared.enter(), |_, _| ())
    }

    #[cfg(test)]
    pub(in crate::store) fn db(&mut self) -> &mut Connection {
        &mut self.db
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
        answer(&tx, streaming).map_err(Failure::into_error)
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

fn session_row(tx: &Transaction<'_>, key: &SessionKey) -> rusqlite::Result<Option<i64>> {
    tx.prepare_cached("SELECT id FROM sessions WHERE key = ?")?
        .query_row([key.as_str()], |row| row.get(0))
        .optional()
}

/// The event of a row `seq, first, at, kind, body, ..`, without what is not after `after`.
fn logged(row: &Row<'_>, run: Option<RunId>, after: Seq) -> Result<Option<Logged>, Failure> {
    let (last, first, at) = (row.seq(0)?, row.seq(1)?, row.at(2)?);
    let kind = row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?;
    let body = row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?;
    if let (Some(of), Some(run)) = (record::streamed(kind), &run) {
        return Ok(Segment::read(of, first, at, body)?.rest_after(run, after));
    }
    Ok(Some(Logged { first_seq: first, seq: last, run, at, event: record::read(kind, body)? }))
}

fn span(row: &Row<'_>) -> rusqlite::Result<Span> {
    Ok(Span { row: row.get(0)?, run: row.id(1)?, prompted: row.number(2)?, ended: row.number_if_any(3)? })
}
