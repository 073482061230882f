//! Sessions as lists show them. What a row says is kept beside the log, so that a list of a hundred
//! among a hundred thousand looks at a hundred.

use actix::Message;
use clawmux_core::conversation::command::SessionFilter;
use clawmux_core::conversation::event::{Event, Outcome};
use clawmux_core::conversation::log::record;
use clawmux_core::conversation::reply::{LastRun, SessionList, SessionRow, SessionState, SessionSummary};
use clawmux_core::daemon::operator::{Listed, Place};
use clawmux_core::error::Error;
use clawmux_core::ids::{Owner, RunId, SessionKey};
use clawmux_core::provider::price::Money;
use rusqlite::{OptionalExtension, Row, ToSql, Transaction, params, params_from_iter};

use super::{Reader, session_row};
use crate::store::columns::{Columns, integer};
use crate::store::failure::Failure;
use crate::store::query::Query;

/// What a row takes besides its texts, roughly, in bytes.
const ROW_BYTES: usize = 512;

/// Asks for one session as lists show it; what its next run will ask is not filled in.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<SessionRow>, Error>")]
pub struct ReadRow(pub SessionKey);

/// Asks for the sessions that fit a filter, the latest used first, and how many fit it in all. What
/// their next runs will ask is not filled in.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<SessionList, Error>")]
pub struct ReadRows {
    /// The filter.
    pub filter: SessionFilter,
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// No more once they take so many bytes, roughly.
    pub bytes_max: usize,
}

/// Asks for sessions, the latest used first.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<Listed>, Error>")]
pub struct ListSessions {
    /// At most so many.
    pub limit: usize,
    /// Only this owner's; none = all.
    pub owner: Option<Owner>,
    /// Only those whose key begins with this, of whatever owner; none = all.
    pub prefix: Option<String>,
    /// Only those that come after this place; none = from the first on.
    pub before: Option<Place>,
}

impl Query for ReadRow {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| session_row(tx, &self.0)?.map(|session| one(tx, session, true)).transpose())
    }
}

impl Query for ReadRows {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let filter = &self.filter;
        let (mut conditions, mut values): (Vec<&str>, Vec<Box<dyn ToSql>>) = (Vec::new(), Vec::new());
        // The latest first are found by when they were used, whatever else is self.
        let mut index = "sessions_updated";
        if let Some(owner) = &self.owner {
            index = "sessions_owner";
            conditions.push("owner = ?");
            values.push(Box::new(owner.as_str().to_owned()));
        }
        if let Some(since) = filter.active_since {
            conditions.push("updated >= ?");
            values.push(Box::new(integer(since.as_millis())));
        }
        if let Some(agent) = &filter.agent {
            if self.owner.is_none() && filter.active_since.is_none() {
                index = "sessions_agent";
            }
            conditions.push("agent = ?");
            values.push(Box::new(agent.as_str().to_owned()));
        }
        if let Some(label) = &filter.label {
            index = "sessions_label";
            conditions.push("label = ?");
            values.push(Box::new(label.clone()));
        }
        if filter.is_open {
            conditions.push("NOT closed");
        }
        let is_open = matches!(filter.state, Some(SessionState::Running | SessionState::Paused));
        if let Some(state) = filter.state {
            conditions.push(state_is(state));
        }
        if is_open {
            // Few have a run under way: they are found by those.
            conditions
                .push("id IN (SELECT session FROM runs INDEXED BY runs_unfinished WHERE ended IS NULL)");
        }
        let conditions = if conditions.is_empty() { "TRUE".to_owned() } else { conditions.join(" AND ") };
        let from = match is_open {
            true => format!("FROM sessions WHERE {conditions}"),
            false => format!("FROM sessions INDEXED BY {index} WHERE {conditions}"),
        };
        let order = "ORDER BY updated DESC, id DESC";
        let offset = filter.offset as u64;
        reader.view(None, |tx, _| {
            let mut ids = Vec::new();
            let total;
            if let Some(search) = filter.search.as_deref().map(str::to_lowercase) {
                let mut statement =
                    tx.prepare_cached(&format!("SELECT id, key, label, title {from} {order}"))?;
                let mut rows = statement.query(params_from_iter(&values))?;
                let mut count: u64 = 0;
                let mut lower = String::new();
                while let Some(row) = rows.next()? {
                    let mut fits = false;
                    for column in 1..=3 {
                        let Some(text) =
                            row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from)?
                        else {
                            continue;
                        };
                        lower.clear();
                        lower.extend(text.chars().flat_map(char::to_lowercase));
                        fits |= lower.contains(&search);
                    }
                    if fits {
                        count += 1;
                        if count > offset && ids.len() < filter.limit {
                            ids.push(row.get(0)?);
                        }
                    }
                }
                total = count;
            } else {
                total = tx
                    .prepare_cached(&format!("SELECT count(*) {from}"))?
                    .query_row(params_from_iter(&values), |row| row.number(0))?;
                let limit = filter.limit;
                let order = if is_open { "ORDER BY +updated DESC, id DESC" } else { order };
                ids = tx
                    .prepare_cached(&format!("SELECT id {from} {order} LIMIT {limit} OFFSET {offset}"))?
                    .query_map(params_from_iter(&values), |row| row.get::<_, i64>(0))?
                    .collect::<Result<_, _>>()?;
            }
            let (mut rows, mut left) = (Vec::with_capacity(ids.len()), self.bytes_max);
            for id in ids {
                let row = one(tx, id, filter.with_texts)?;
                let Some(rest) = left.checked_sub(bytes(&row)) else { break };
                left = rest;
                rows.push(row);
            }
            Ok(SessionList { rows, total })
        })
    }
}

impl Query for ListSessions {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        const COLUMNS: &str = "SELECT key, owner, created, updated,
            EXISTS (SELECT 1 FROM runs WHERE session = sessions.id AND ended IS NULL),
            head, (SELECT count(*) FROM runs WHERE session = sessions.id AND progress < 3), id, settings
            FROM sessions";
        const ORDER: &str = "(updated, id) < (?, ?) ORDER BY updated DESC, id DESC LIMIT ?";
        let limit = integer(self.limit);
        let (updated, row) =
            self.before.map_or((i64::MAX, i64::MAX), |place| (integer(place.updated_ms), place.row));
        reader.view(None, |tx, _| match (&self.prefix, &self.owner) {
            (Some(prefix), _) => tx
                .prepare_cached(&format!("{COLUMNS} WHERE key >= ? AND key < ? AND {ORDER}"))?
                .query_and_then(
                    params![prefix, format!("{prefix}{}", char::MAX), updated, row, limit],
                    listed,
                )?
                .collect(),
            (None, Some(owner)) => tx
                .prepare_cached(&format!("{COLUMNS} WHERE owner = ? AND {ORDER}"))?
                .query_and_then(params![owner.as_str(), updated, row, limit], listed)?
                .collect(),
            (None, None) => tx
                .prepare_cached(&format!("{COLUMNS} WHERE {ORDER}"))?
                .query_and_then(params![updated, row, limit], listed)?
                .collect(),
        })
    }
}

fn bytes(row: &SessionRow) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let running: usize = row.running.iter().map(|run| run.as_str().len()).sum();
    ROW_BYTES
        + row.session.as_str().len()
        + row.settings.bytes()
        + running
        + text(&row.title)
        + text(&row.last_message)
}

/// The session of a row of the table; what its next run will ask is not filled in.
pub(super) fn one(tx: &Transaction<'_>, id: i64, with_texts: bool) -> Result<SessionRow, Failure> {
    let mut statement = tx.prepare_cached(
        "SELECT key, owner, settings, created, updated, head, conversation, title, preview, closed, outcome,
                 (SELECT count(*) FROM runs INDEXED BY runs_past
                  WHERE session = sessions.id AND progress = 2 AND ended IS NOT NULL),
                 EXISTS (SELECT 1 FROM runs INDEXED BY runs_unfinished
                  WHERE session = sessions.id AND ended IS NULL AND waits > 0),
                 input_tokens - input_before, output_tokens - output_before,
                 cache_read_tokens - cache_read_before, cache_write_tokens - cache_write_before, cost - cost_before
             FROM sessions WHERE id = ?",
    )?;
    let mut rows = statement.query([id])?;
    let row = rows.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    let running = running(tx, id)?;
    let (closed, outcome, paused): (bool, i64, bool) = (row.get(9)?, row.get(10)?, row.get(12)?);
    let state = match outcome {
        _ if closed => SessionState::Closed,
        _ if paused => SessionState::Paused,
        _ if !running.is_empty() => SessionState::Running,
        0 => SessionState::New,
        2 => SessionState::Failed,
        _ => SessionState::Idle,
    };
    let text = |column: usize| -> rusqlite::Result<Option<String>> {
        Ok(Some(row.get(column)?).filter(|text: &String| with_texts && !text.is_empty()))
    };
    Ok(SessionRow {
        session_id: row.get(6)?,
        session: row.session(0)?,
        owner: row.owner(1)?,
        settings: record::read_settings(row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?)?,
        state,
        answered: row.number(11)?,
        model: None,
        created: row.at(3)?,
        updated: row.at(4)?,
        running,
        last_run: last_run(tx, id)?,
        usage: row.cached_usage(13)?,
        cost: Money::from_nanos(row.number(17)?),
        head: row.seq(5)?,
        title: text(7)?,
        last_message: text(8)?,
    })
}

/// What is true of the sessions in a state.
fn state_is(state: SessionState) -> &'static str {
    macro_rules! runs {
        () => {
            "EXISTS (SELECT 1 FROM runs r INDEXED BY runs_unfinished
                WHERE r.session = sessions.id AND r.ended IS NULL)"
        };
    }
    macro_rules! waits {
        () => {
            "EXISTS (SELECT 1 FROM runs r INDEXED BY runs_unfinished
                WHERE r.session = sessions.id AND r.ended IS NULL AND r.waits > 0)"
        };
    }
    match state {
        SessionState::Closed => "closed",
        SessionState::Running => concat!("NOT closed AND ", runs!(), " AND NOT ", waits!()),
        SessionState::New => concat!("NOT closed AND outcome = 0 AND NOT ", runs!()),
        SessionState::Idle => concat!("NOT closed AND outcome = 1 AND NOT ", runs!()),
        SessionState::Failed => concat!("NOT closed AND outcome = 2 AND NOT ", runs!()),
        SessionState::Paused => concat!("NOT closed AND ", waits!()),
    }
}

/// How clients name a run.
const NAME: &str = "coalesce((SELECT key FROM idempotency WHERE run = r.id LIMIT 1), r.run)";

/// The run under way, then those that wait.
fn running(tx: &Transaction<'_>, session: i64) -> rusqlite::Result<Vec<RunId>> {
    tx.prepare_cached(&format!(
        "SELECT {NAME} FROM runs r INDEXED BY runs_unfinished
         WHERE r.session = ? AND r.ended IS NULL ORDER BY r.started IS NULL, r.prompted"
    ))?
    .query_map([session], |row| row.id(0))?
    .collect()
}

fn last_run(tx: &Transaction<'_>, session: i64) -> Result<Option<LastRun>, Failure> {
    let found = tx
        .prepare_cached(&format!(
            "SELECT {NAME}, s.at, e.at, e.kind, e.body
             FROM runs r JOIN events s ON s.session = r.session AND s.seq = r.started
                 LEFT JOIN events e ON e.session = r.session AND e.seq = r.ended
             WHERE r.session = ? AND r.started IS NOT NULL ORDER BY r.prompted DESC LIMIT 1"
        ))?
        .query_row(params![session], |row| {
            let ended = row.get::<_, Option<i64>>(2)?.map(|_| row.at(2)).transpose()?;
            let end = (row.get::<_, Option<String>>(3)?, row.get::<_, Option<Vec<u8>>>(4)?);
            Ok((row.id(0)?, row.at(1)?, ended, end))
        })
        .optional()?;
    let Some((run, started, ended, end)) = found else { return Ok(None) };
    let is_aborted = match end {
        (Some(kind), Some(body)) => {
            matches!(record::read(&kind, &body)?, Event::Ended { outcome: Outcome::Aborted(_), .. })
        }
        _ => false,
    };
    Ok(Some(LastRun { run, started, ended, is_aborted }))
}

/// The session of a row `key, owner, created, updated, running, head, prompts, id, settings`.
fn listed(row: &Row<'_>) -> Result<Listed, Failure> {
    let (session, created, updated) = (row.session(0)?, row.at(2)?, row.at(3)?);
    Ok(Listed {
        summary: SessionSummary { session, created, updated, running: row.get(4)? },
        owner: row.owner(1)?,
        head: row.seq(5)?,
        prompts: row.number(6)?,
        settings: record::read_settings(row.get_ref(8)?.as_blob().map_err(rusqlite::Error::from)?)?,
        place: Place { updated_ms: updated.as_millis(), row: row.get(7)? },
    })
}
