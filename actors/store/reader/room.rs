//! What may be deleted, how large the database was, and what waits outside of memory.

use clawmux_core::attachment::Attachment;
use clawmux_core::auth::Owner;
use clawmux_core::error::Error;
use clawmux_core::event::Event;
use clawmux_core::ids::{Seq, SessionKey};
use rusqlite::{Row, params};

use super::{Reader, attached, integer, logged, number, session_row};
use crate::store::{Place, ReadDispensable, ReadPrompt, ReadUnused, Unused};

/// How many sessions are named that could be deleted.
const NAMED_MAX: i64 = 3;

const COLUMNS: &str = "SELECT key, owner, bytes, updated, id FROM sessions";
const IS_AT_REST: &str = "NOT EXISTS (SELECT 1 FROM runs INDEXED BY runs_unfinished
    WHERE session = sessions.id AND ended IS NULL)";

impl Reader {
    pub(in crate::store) fn prompt(
        &mut self,
        asked: &ReadPrompt,
    ) -> Result<Option<(String, Vec<Attachment>)>, Error> {
        self.view(None, |tx, _| {
            let Some(session) = session_row(tx, &asked.session)? else { return Ok(None) };
            let mut statement = tx.prepare_cached(
                "SELECT seq, first, at, kind, body FROM events WHERE session = ? AND seq = ?",
            )?;
            let mut rows = statement.query(params![session, integer(asked.seq.0)])?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let Some(Event::Prompted { content, mut attachments, .. }) =
                logged(row, None, Seq(0))?.map(|logged| logged.event)
            else {
                return Ok(None);
            };
            for (place, attachment) in (0..).zip(&mut attachments) {
                attached(tx, (session, asked.seq, place), attachment)?;
            }
            Ok(Some((content, attachments)))
        })
    }

    pub(in crate::store) fn unused(&mut self, asked: ReadUnused) -> Result<Vec<Unused>, Error> {
        let limit = i64::try_from(asked.limit).unwrap_or(i64::MAX);
        let (updated, row) = asked.after.map_or((-1, 0), |place| (integer(place.updated_ms), place.row));
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(&format!(
                "{COLUMNS} WHERE (updated, id) > (?, ?) AND updated <= ? AND {IS_AT_REST} ORDER BY updated, id LIMIT ?"
            ))?;
            let since = integer(asked.since.as_millis());
            let rows = statement.query_map(params![updated, row, since, limit], unused)?;
            rows.map(|row| Ok(row??)).collect()
        })
    }

    pub(in crate::store) fn dispensable(&mut self, asked: &ReadDispensable) -> Result<Vec<Unused>, Error> {
        let order = if asked.is_about_bytes { "bytes DESC, updated" } else { "updated" };
        self.view(None, |tx, _| {
            let mut statement =
                tx.prepare_cached(&format!("{COLUMNS} WHERE owner = ? ORDER BY {order} LIMIT ?"))?;
            let rows = statement.query_map(params![asked.owner.as_str(), NAMED_MAX], unused)?;
            rows.map(|row| Ok(row??)).collect()
        })
    }

    pub(in crate::store) fn sizes(&mut self, days: usize) -> Result<Vec<(u64, u64)>, Error> {
        let days = i64::try_from(days).unwrap_or(i64::MAX);
        self.view(None, |tx, _| {
            let mut statement =
                tx.prepare_cached("SELECT day, bytes FROM sizes ORDER BY day DESC LIMIT ?")?;
            let rows = statement.query_map([days], |row| Ok((number(row, 0)?, number(row, 1)?)))?;
            let mut sizes = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            sizes.reverse();
            Ok(sizes)
        })
    }
}

fn unused(row: &Row<'_>) -> rusqlite::Result<Result<Unused, Error>> {
    let key: String = row.get(0)?;
    let owner = Owner::from_name(&row.get::<_, String>(1)?);
    let (bytes, place) = (number(row, 2)?, Place { updated_ms: number(row, 3)?, row: row.get(4)? });
    Ok(SessionKey::parse(&key).map(|session| Unused { session, owner, bytes, place }))
}
