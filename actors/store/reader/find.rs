//! Which session, and which run, is meant by the name that somebody has for it.

use actix::Message;
use clawmux_core::conversation::event::Event;
use clawmux_core::conversation::log::record;
use clawmux_core::error::Error;
use clawmux_core::ids::{LaneName, Owner, RunId, Seq, SessionKey};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::provider::tally::Spent;
use rusqlite::{OptionalExtension, Row, params};

use super::Reader;
use crate::store::columns::Columns;
use crate::store::query::Query;

/// So many sessions that have the same key in other spaces are named.
const NAMESAKES_MAX: i64 = 3;

/// Asks which run an idempotency key stands for: its session, itself, the number of its prompt.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<(SessionKey, RunId, Seq)>, Error>")]
pub struct FindRun {
    /// Whose key.
    pub owner: Owner,
    /// The key.
    pub idempotency_key: String,
    /// Whether it may be the id of a run, where it is no key.
    pub or_id: bool,
}

/// Asks which session has this id, on behalf of an owner; of several his own, then the oldest.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<SessionKey>, Error>")]
pub struct FindSession {
    /// The id.
    pub id: String,
    /// Who asks.
    pub owner: Owner,
    /// What the id is, and whose session it may be.
    pub among: Among,
}

/// Among which sessions one is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All, by their UUIDs ([`SessionKey::uuid`]).
    All,
    /// One's own, by their UUIDs.
    Own,
    /// One's own, by the ids of their present conversations ([`SessionKey::conversation_id`]).
    OwnConversations,
}

/// Asks for the sessions of other owners that have the same key in their spaces: the latest used, a few.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<SessionKey>, Error>")]
pub struct Namesakes(pub SessionKey);

/// Asks whose a session is and what it has spent, without what happened in it. None where there is
/// no such session.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Described>, Error>")]
pub struct Describe {
    /// Which.
    pub session: SessionKey,
}

/// A session without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Whom it belongs to.
    pub owner: Owner,
    /// What all its calls came to.
    pub spent: Spent,
}

/// Asks for the sessions with a run that has not ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<SessionKey>, Error>")]
pub struct Unfinished;

/// Asks where the first run of a session was prompted that has not ended; none where all have.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Option<Seq>, Error>")]
pub struct UnfinishedSince(pub SessionKey);

/// Asks for the runs that are in a lane and have not ended, in the order in which they were prompted.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<(LaneName, SessionKey, RunId)>, Error>")]
pub struct ReadLanes;

impl Query for FindRun {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let place = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.id(1)?, row.seq(2)?));
        reader.view(None, |tx, _| {
            let found = tx
                .prepare_cached(
                    "SELECT s.key, r.run, r.prompted FROM idempotency i
                     JOIN runs r ON r.id = i.run JOIN sessions s ON s.id = r.session
                     WHERE i.owner = ? AND i.key = ?",
                )?
                .query_row([self.owner.as_str(), &self.idempotency_key], place)
                .optional()?;
            let found = match found {
                None if self.or_id => tx
                    .prepare_cached(
                        "SELECT s.key, r.run, r.prompted FROM runs r
                         JOIN sessions s ON s.id = r.session WHERE r.run = ?",
                    )?
                    .query_row([&self.idempotency_key], place)
                    .optional()?,
                found => found,
            };
            found.map(|(key, run, seq)| Ok((SessionKey::parse(&key)?, run, seq))).transpose()
        })
    }
}

impl Query for FindSession {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        const OLDEST: &str = "created, id LIMIT 1";
        const BY_UUID: &str = "SELECT key FROM sessions WHERE (uuid = ?1 OR uuid_before = ?1)";
        let sql = match self.among {
            Among::All => format!("{BY_UUID} ORDER BY owner <> ?2, {OLDEST}"),
            // By the index of owners all of theirs would be read.
            Among::Own => format!("{BY_UUID} AND +owner = ?2 ORDER BY {OLDEST}"),
            Among::OwnConversations => {
                format!("SELECT key FROM sessions WHERE conversation = ?1 AND owner = ?2 ORDER BY {OLDEST}")
            }
        };
        reader.view(None, |tx, _| {
            let found = tx
                .prepare_cached(&sql)?
                .query_row([self.id.as_str(), self.owner.as_str()], |row| row.get::<_, String>(0))
                .optional()?;
            found.map(|key| Ok(SessionKey::parse(&key)?)).transpose()
        })
    }
}

impl Query for Namesakes {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT key FROM sessions WHERE agent = ?1 AND owner <> '' AND owner <> ?2
                     AND substr(key, instr(key, '/') + 1) = ?3
                 ORDER BY updated DESC, id DESC LIMIT ?4",
            )?;
            let owner = self.0.owner();
            let asked = params![self.0.agent(), owner.as_str(), self.0.local(), NAMESAKES_MAX];
            statement.query_and_then(asked, |row| row.session(0))?.collect()
        })
    }
}

impl Query for Describe {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let found = tx
                .prepare_cached(
                    "SELECT owner, input_tokens + output_tokens, cost FROM sessions WHERE key = ?",
                )?
                .query_row([self.session.as_str()], |row| {
                    Ok(Described { owner: row.owner(0)?, spent: row.spent(1, 2)? })
                })
                .optional()?;
            Ok(found)
        })
    }
}

impl Query for ReadLanes {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT s.key, r.run, e.kind, e.body FROM runs r INDEXED BY runs_unfinished
                 JOIN sessions s ON s.id = r.session
                 JOIN events e ON e.session = r.session AND e.seq = r.prompted
                 WHERE r.ended IS NULL ORDER BY r.id",
            )?;
            let mut rows = statement.query([])?;
            let mut all = Vec::new();
            while let Some(row) = rows.next()? {
                let kind = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
                let body = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
                if let Event::Prompted { run_options: RunOptions { lane: Some(lane), .. }, .. } =
                    record::read(kind, body)?
                {
                    all.push((lane, row.session(0)?, row.id(1)?));
                }
            }
            Ok(all)
        })
    }
}

impl Query for Unfinished {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT DISTINCT s.key FROM runs r INDEXED BY runs_unfinished
                 JOIN sessions s ON s.id = r.session WHERE r.ended IS NULL",
            )?;
            statement.query_and_then([], |row| row.session(0))?.collect()
        })
    }
}

impl Query for UnfinishedSince {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let since = tx
                .prepare_cached(
                    "SELECT r.prompted FROM sessions s JOIN runs r INDEXED BY runs_unfinished ON r.session = s.id
                     WHERE s.key = ? AND r.ended IS NULL ORDER BY r.prompted LIMIT 1",
                )?
                .query_row([self.0.to_string()], |row| row.seq(0))
                .optional()?;
            Ok(since)
        })
    }
}
