//! What the pages hold: the text and the thoughts of steps that streamed when the store was last written to.

use std::collections::HashMap;

use clawmux_core::conversation::log::page;
use clawmux_core::ids::{RunId, Seq, SessionKey};
use rusqlite::Connection;

use super::columns::{Columns, integer};
use super::failure::Failure;
use super::live::{Live, Place};

/// A run that has not ended.
pub(super) struct Unended {
    /// Its number in the database.
    pub(super) row: u64,
    pub(super) run: RunId,
    /// Its session, and the number of that.
    pub(super) session: SessionKey,
    pub(super) session_row: i64,
    /// The number of its prompt.
    pub(super) prompted: i64,
    /// Its text up to here is where events are.
    settled: Seq,
}

/// All of them.
pub(super) fn unended(db: &Connection) -> Result<Vec<Unended>, Failure> {
    let mut statement = db.prepare_cached(
        "SELECT r.id, r.run, r.settled, r.session, s.key, r.prompted
         FROM runs r INDEXED BY runs_unfinished JOIN sessions s ON s.id = r.session
         WHERE r.ended IS NULL",
    )?;
    statement
        .query_and_then([], |row| {
            Ok(Unended {
                row: row.number(0)?,
                run: row.id(1)?,
                settled: row.seq(2)?,
                session_row: row.get(3)?,
                session: row.session(4)?,
                prompted: row.get(5)?,
            })
        })?
        .collect()
}

/// Reads what the pages hold of these. Tells of each page how many of them have something on it.
pub(super) fn read(
    db: &Connection,
    unended: &[Unended],
    live: &mut Live,
    mut tell: impl FnMut(i64, usize),
) -> Result<(), Failure> {
    let by_row: HashMap<u64, &Unended> = unended.iter().map(|open| (open.row, open)).collect();
    let mut statement = db.prepare_cached("SELECT id, page FROM deltas ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, mut steps) = (row.get(0)?, 0);
        for piece in page::read(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)? {
            let Some(open) = by_row.get(&piece.run) else { continue };
            let place = Place { session: &open.session, row: integer(piece.run), run: &open.run, page: id };
            let is_unsettled = piece.seq > open.settled;
            if is_unsettled && live.push(place, (piece.seq, piece.at), (piece.of, piece.text)) {
                steps += 1;
            }
        }
        tell(id, steps);
    }
    Ok(())
}
