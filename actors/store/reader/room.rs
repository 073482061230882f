//! What may be deleted, and how large the database was.

use actix::Message;
use clawmux_core::daemon::operator::Place;
use clawmux_core::error::Error;
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::time::Timestamp;
use rusqlite::{Row, params};

use super::Reader;
use crate::store::columns::{Columns, integer};
use crate::store::failure::Failure;
use crate::store::query::Query;

/// How many sessions are named that could be deleted.
const NAMED_MAX: i64 = 3;

const COLUMNS: &str = "SELECT key, owner, bytes, updated, id FROM sessions";
const IS_AT_REST: &str = "NOT EXISTS (SELECT 1 FROM runs INDEXED BY runs_unfinished
    WHERE session = sessions.id AND ended IS NULL)";

/// Asks for the sessions that were not used for longest and in which nothing is under way, those first.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<Unused>, Error>")]
pub struct ReadUnused {
    /// At most so many.
    pub limit: usize,
    /// Only those that were not used after this.
    pub since: Timestamp,
    /// Only those that come after this place; none = from the first on.
    pub after: Option<Place>,
}

/// A session that was not used for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Which.
    pub session: SessionKey,
    /// Whose it is.
    pub owner: Owner,
    /// How many bytes it has.
    pub bytes: u64,
    /// When it was last used.
    pub place: Place,
}

/// Asks for the sessions of an owner to delete first: those with most bytes, or those that were not used
/// for longest; three at most.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Unused>, Error>")]
pub struct ReadDispensable {
    /// Whose.
    pub owner: Owner,
    /// Whether those with most bytes are meant.
    pub is_about_bytes: bool,
}

/// Asks how large the database was as the last days began, the earliest first: days since 1970 and bytes
/// in use.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<(u64, u64)>, Error>")]
pub struct ReadSizes {
    /// Of at most so many days.
    pub days: usize,
}

impl Query for ReadUnused {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let limit = integer(self.limit);
        let (updated, row) = self.after.map_or((-1, 0), |place| (integer(place.updated_ms), place.row));
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(&format!(
                "{COLUMNS} WHERE (updated, id) > (?, ?) AND updated <= ? AND {IS_AT_REST} ORDER BY updated, id LIMIT ?"
            ))?;
            let since = integer(self.since.as_millis());
            let rows = statement.query_and_then(params![updated, row, since, limit], unused)?;
            rows.collect()
        })
    }
}

impl Query for ReadDispensable {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let order = if self.is_about_bytes { "bytes DESC, updated" } else { "updated" };
        reader.view(None, |tx, _| {
            let mut statement =
                tx.prepare_cached(&format!("{COLUMNS} WHERE owner = ? ORDER BY {order} LIMIT ?"))?;
            let rows = statement.query_and_then(params![self.owner.as_str(), NAMED_MAX], unused)?;
            rows.collect()
        })
    }
}

impl Query for ReadSizes {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let days = integer(self.days);
        reader.view(None, |tx, _| {
            let mut statement =
                tx.prepare_cached("SELECT day, bytes FROM sizes ORDER BY day DESC LIMIT ?")?;
            let rows = statement.query_map([days], |row| Ok((row.number(0)?, row.number(1)?)))?;
            let mut sizes = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            sizes.reverse();
            Ok(sizes)
        })
    }
}

fn unused(row: &Row<'_>) -> Result<Unused, Failure> {
    let place = Place { updated_ms: row.number(3)?, row: row.get(4)? };
    Ok(Unused { session: row.session(0)?, owner: row.owner(1)?, bytes: row.number(2)?, place })
}
