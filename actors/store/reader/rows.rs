//! Sessions as lists show them. What a row says is kept beside the log, so that a list of a hundred
//! among a hundred thousand looks at a hundred.

use clawmux_core::auth::Owner;
use clawmux_core::error::Error;
use clawmux_core::event::{Event, Outcome, Usage};
use clawmux_core::ids::{RunId, Seq, SessionKey};
use clawmux_core::log::record;
use clawmux_core::session_reply::{LastRun, SessionList, SessionRow, SessionState};
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension, ToSql, Transaction, params, params_from_iter};

use super::{Failure, Reader, integer, number, seq, session_row, time};
use crate::store::{ReadRow, ReadRows};

/// What a row takes besides its texts, roughly, in bytes.
const ROW_BYTES: usize = 512;

impl Reader {
    pub(in crate::store) fn row(&mut self, ReadRow(key): &ReadRow) -> Result<Option<SessionRow>, Error> {
        self.view(None, |tx, _| session_row(tx, key)?.map(|session| one(tx, session, true)).transpose())
    }

    pub(in crate::store) fn rows(&mut self, asked: &ReadRows) -> Result<SessionList, Error> {
        let filter = &asked.filter;
        let (mut conditions, mut values): (Vec<&str>, Vec<Box<dyn ToSql>>) = (Vec::new(), Vec::new());
        // The latest first are found by when they were used, whatever else is asked.
        let mut index = "sessions_updated";
        if let Some(owner) = &asked.owner {
            index = "sessions_owner";
            conditions.push("owner = ?");
            values.push(Box::new(owner.as_str().to_owned()));
        }
        if let Some(since) = filter.active_since {
            conditions.push("updated >= ?");
            values.push(Box::new(integer(since.as_millis())));
        }
        if let Some(agent) = &filter.agent {
            if asked.owner.is_none() && filter.active_since.is_none() {
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
        self.view(None, |tx, _| {
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
                    .query_row(params_from_iter(&values), |row| number(row, 0))?;
                let limit = filter.limit;
                let order = if is_open { "ORDER BY +updated DESC, id DESC" } else { order };
                ids = tx
                    .prepare_cached(&format!("SELECT id {from} {order} LIMIT {limit} OFFSET {offset}"))?
                    .query_map(params_from_iter(&values), |row| row.get::<_, i64>(0))?
                    .collect::<Result<_, _>>()?;
            }
            let (mut rows, mut left) = (Vec::with_capacity(ids.len()), asked.bytes_max);
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
    struct Found {
        key: String,
        owner: String,
        settings: Vec<u8>,
        created: Timestamp,
        updated: Timestamp,
        head: Seq,
        conversation: String,
        usage: Usage,
        title: String,
        preview: String,
        closed: bool,
        paused: bool,
        outcome: i64,
        answered: u64,
    }
    let found = tx
        .prepare_cached(
            "SELECT key, owner, settings, created, updated, head, conversation, input_tokens - input_before,
                 output_tokens - output_before, title, preview, closed, outcome,
                 (SELECT count(*) FROM runs INDEXED BY runs_past
                  WHERE session = sessions.id AND progress = 2 AND ended IS NOT NULL),
                 EXISTS (SELECT 1 FROM runs INDEXED BY runs_unfinished
                  WHERE session = sessions.id AND ended IS NULL AND waits > 0)
             FROM sessions WHERE id = ?",
        )?
        .query_row([id], |row| {
            Ok(Found {
                key: row.get(0)?,
                owner: row.get(1)?,
                settings: row.get(2)?,
                created: time(row, 3)?,
                updated: time(row, 4)?,
                head: seq(row, 5)?,
                conversation: row.get(6)?,
                usage: Usage { input_tokens: number(row, 7)?, output_tokens: number(row, 8)? },
                title: row.get(9)?,
                preview: row.get(10)?,
                closed: row.get(11)?,
                outcome: row.get(12)?,
                answered: number(row, 13)?,
                paused: row.get(14)?,
            })
        })?;
    let session = SessionKey::parse(&found.key)?;
    let running = running(tx, id)?;
    let state = match found.outcome {
        _ if found.closed => SessionState::Closed,
        _ if found.paused => SessionState::Paused,
        _ if !running.is_empty() => SessionState::Running,
        0 => SessionState::New,
        2 => SessionState::Failed,
        _ => SessionState::Idle,
    };
    let text = |text: String| Some(text).filter(|text| with_texts && !text.is_empty());
    Ok(SessionRow {
        session_id: found.conversation,
        session,
        owner: Owner::from_name(&found.owner),
        settings: record::read_settings(&found.settings)?,
        state,
        answered: found.answered,
        model: None,
        created: found.created,
        updated: found.updated,
        running,
        last_run: last_run(tx, id)?,
        usage: found.usage,
        head: found.head,
        title: text(found.title),
        last_message: text(found.preview),
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
    .query_map([session], |row| row.get::<_, String>(0).map(RunId::new))?
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
            let ended = row.get::<_, Option<i64>>(2)?.map(|_| time(row, 2)).transpose()?;
            let end = (row.get::<_, Option<String>>(3)?, row.get::<_, Option<Vec<u8>>>(4)?);
            Ok((RunId::new(row.get::<_, String>(0)?), time(row, 1)?, ended, end))
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
