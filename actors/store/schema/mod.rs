//! The database's tables, its format version, and how an older one is brought up.
//!
//! A file says by its `application_id` that it is clawmux's and by its `user_version` which format
//! it has. A newer format is refused: reading it half would be worse.
//!
//! | table | holds |
//! |---|---|
//! | `meta` | one row: how often the log was opened, by which clawmux last, of which cluster it is, and how far in its log |
//! | `sessions` | one row a session: whose it is, how far its log goes, what it spent |
//! | `runs` | one row a run: from where to where it is in the log, and up to where its text is in `events` |
//! | `events` | the log itself, but for the text of steps that still stream |
//! | `deltas` | that text: one row for each group commit, of all sessions together |
//! | `holdings` | how many sessions each owner has, and their bytes |
//! | `deleted_sessions` | sessions that are gone, but for rows that are deleted a few at a time |
//! | `sizes` | how large the database was on each day |
//! | `attachments` | the bytes of what prompts brought along; what they are is in `events` |
//! | `idempotency` | which run a key stands for |
//! | `usage` | what every model call cost |
//! | `usage_days` | the sums of that for each day, owner, agent and model: what a month cost is asked at every start |
//! | `calls` | those under way: what a killed daemon had reserved for them is counted at the next start |
//! | `memories` | what is remembered for owners, with what it is found by |
//! | `memory_vectors` | the vectors that a provider's model made of them |
//! | `memory_owners` | how much that is for each |
//! | `learning_days` | what learning from conversations spent on a day |
//! | `devices` | the paired devices |
//! | `agents` | the agents that were put to work for sessions |
//! | `teams`, `team_said`, `team_mail` | their teams: what was said at the task, and messages that wait |
//! | `agent_notes` | what is yet to be put into conversations |
//! | `device_grants` | what each may come as, and what its token is made of; the rest of it is `meta.device_secret` |
//! | `tokens` | the API keys and JWTs that the daemon gave out: of a key its SHA-256, of a JWT its id |
//! | `jobs` | what is done at set times |
//! | `firings` | when each of them was done and what came of it, the latest |
//! | `job_days` | what each of them spent on a day |
//! | `credential_uses` | when the credentials of the configuration were last used, and from where |
//! | `plugin_namespaces`, `plugin_values` | what plugins keep, and how much that is |
//! | `positions` | the last record of each subject in the log of a cluster |
//! | `generations` | how earlier logs of the cluster were left |
//! | `audit`, `audit_chain` | tool calls that were made, and the hash of the last one |
//! | `mcp_servers`, `mcp_tools` | the MCP servers that were met, and what was agreed to of their tools |
//! | `channels`, `channel_inbox`, `channel_seen` | what came in over channels |
//! | `outbox` | what is yet to be said over channels and the bus |
//! | `channel_peers`, `channel_codes` | who may write over them, and who may be let in by which code |
//! | `files` | what is known of the files of clients; their bytes are in the folder `files` of the home |

mod migrations;
#[cfg(test)]
mod tests;

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::memory::hashed::Hashed;
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use super::failure::sql;
use migrations::MIGRATIONS;

/// "clwm" in ASCII.
const APPLICATION_ID: i64 = 0x636c_776d;

/// Whether a run has an answer in the end, given its session (1), the numbers of its prompt and its
/// end (2, 3) and its row (4): text that no restart made void. The migration has the same words.
pub(super) const HAS_ANSWER: &str = "SELECT EXISTS (SELECT 1 FROM events e
    WHERE e.session = ?1 AND e.seq BETWEEN ?2 AND ?3 AND e.run = ?4 AND e.kind = 'text'
        AND substr(e.body, 1, 11) <> CAST('{\"text\":\"\",' AS BLOB)
        AND coalesce((SELECT n.kind FROM events n
            WHERE n.session = ?1 AND n.seq > e.seq AND n.seq <= ?3 AND n.run = ?4
                AND n.kind IN ('step_ended', 'restarted', 'ended')
            ORDER BY n.seq LIMIT 1), 'ended') <> 'restarted')";

/// How far a run came, as `runs.progress` says it; 0 = its turn never came.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// Its turn came.
    Begun = 1,
    /// The model said something.
    Answered = 2,
    /// It is no run: something was said in the model's name.
    Injected = 3,
}

/// The present format.
pub(super) const FORMAT: i64 = MIGRATIONS.len() as i64;

/// What makes a new store of the present format: what all migrations make of an empty one, which a test compares.
const CURRENT: &str = include_str!("current.sql");

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing is in it yet.
    Empty,
    /// A log of this format; not a newer one.
    Log(i64),
    /// A log of a newer format, and the version of clawmux that wrote it, if it says so.
    Newer { format: i64, version: Option<String> },
    /// Another program's.
    Foreign,
}

/// Looks at what the file is.
///
/// # Errors
/// What SQLite says.
pub(super) fn kind(db: &Connection) -> rusqlite::Result<Kind> {
    let pragma = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (id, format) = (pragma("application_id")?, pragma("user_version")?);
    if id == APPLICATION_ID && (1..=FORMAT).contains(&format) {
        return Ok(Kind::Log(format));
    }
    if id == APPLICATION_ID {
        let version = db.query_row("SELECT version FROM meta", [], |row| row.get(0)).ok();
        return Ok(Kind::Newer { format, version: version.filter(|version: &String| !version.is_empty()) });
    }
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(if id == 0 && format == 0 && tables == 0 { Kind::Empty } else { Kind::Foreign })
}

impl Kind {
    /// Why it is not for this clawmux, and what to do; none where it is.
    pub(super) fn complaint(&self) -> Option<(String, String)> {
        match self {
            Self::Empty | Self::Log(_) => None,
            Self::Newer { format, version } => {
                let by = version.as_ref().map_or_else(
                    || "the version that wrote it".into(),
                    |version| format!("clawmux {version}, which wrote it"),
                );
                Some((
                    format!("the store has format {format}, this clawmux knows up to {FORMAT}"),
                    format!("use {by}, or a newer one; or put a copy from before the update in its place"),
                ))
            }
            Self::Foreign => Some((
                "the file is not a clawmux store: it is another program's database, or its beginning is damaged".into(),
                "point store.path somewhere else, or put a backup in its place with `clawmux restore`".into(),
            )),
        }
    }

    /// From which format on it is to be migrated.
    ///
    /// # Errors
    /// `Conflict` where it is not for this clawmux.
    pub(super) fn format(&self) -> Result<i64, Error> {
        if let Some((what, advice)) = self.complaint() {
            return Err(ErrorCode::Conflict.error(format!("{what}: {advice} (clawmux doctor says more)")));
        }
        Ok(if let Self::Log(format) = self { *format } else { 0 })
    }
}

/// Brings the store to the present format, each step in a transaction of its own: an interrupted
/// one leaves the format before it. A new one is made at once, without those steps.
///
/// # Errors
/// `Conflict` where the file is another program's or of a newer clawmux; else what SQLite says.
pub(super) fn migrate(db: &mut Connection) -> Result<(), Error> {
    let from = kind(db).map_err(|e| sql(&e))?.format()?;
    add_functions(db).map_err(|e| sql(&e))?;
    if from == 0 {
        return take_step(db, CURRENT, FORMAT).map_err(|e| sql(&e));
    }
    for (format, step) in (1..=FORMAT).zip(MIGRATIONS).filter(|(format, _)| *format > from) {
        take_step(db, step, format).map_err(|e| sql(&e))?;
    }
    Ok(())
}

/// Brings the store to this format.
fn take_step(db: &mut Connection, step: &str, format: i64) -> rusqlite::Result<()> {
    let tx = db.transaction()?;
    tx.execute_batch(step)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", format)?;
    tx.commit()
}

/// What steps of a migration call that SQL can't say.
fn add_functions(db: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function("session_uuid", 1, flags, |arguments| {
        let key: String = arguments.get(0)?;
        SessionKey::parse(&key)
            .map(|key| key.uuid())
            .map_err(|error| rusqlite::Error::UserFunctionError(Box::new(error)))
    })?;
    // What can't be read as a key stays as it is: the session of that name could not be named before either.
    db.create_scalar_function("owned_key", 2, flags, |arguments| {
        let (owner, key): (String, Option<String>) = (arguments.get(0)?, arguments.get(1)?);
        Ok(key.map(|key| match SessionKey::parse(&unowned(&key)) {
            Ok(read) => read.in_space(&Owner::from_name(&owner)).as_str().to_owned(),
            Err(_) => key,
        }))
    })?;
    db.create_scalar_function("key_agent", 1, flags, |arguments| {
        let key: String = arguments.get(0)?;
        Ok(SessionKey::parse(&unowned(&key)).map_or_else(|_| String::new(), |key| key.agent().into_owned()))
    })?;
    db.create_scalar_function("key_owner", 1, flags, |arguments| {
        let key: String = arguments.get(0)?;
        Ok(SessionKey::parse(&key).map_or_else(|_| String::new(), |key| key.owner().as_str().to_owned()))
    })?;
    db.create_scalar_function("memory_hashed", 1, flags, |arguments| {
        let content: String = arguments.get(0)?;
        Ok(Hashed::of(&content).map(|hashed| hashed.to_bytes()).unwrap_or_default())
    })?;
    // As it was told before; since then a session that was begun under a UUID has that as its first.
    db.create_scalar_function("conversation_id", 3, flags, |arguments| {
        let (key, created, begun): (String, i64, i64) =
            (arguments.get(0)?, arguments.get(1)?, arguments.get(2)?);
        Ok(SessionKey::derived_conversation_id(&key, created, begun))
    })
}

/// A key that says nothing of an owner, from before they did: its agent may have had a `/` in its name.
fn unowned(key: &str) -> String {
    match key.split_once(':') {
        Some((agent, rest)) => format!("{}:{rest}", agent.replace('/', "%2F")),
        None => key.to_owned(),
    }
}
