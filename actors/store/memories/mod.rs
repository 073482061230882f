//! What is remembered for owners, as the database keeps it.
//!
//! An entry is one row: what it says, and before that what it is found by (its terms as digests, its
//! vector).
//!
//! What is deleted is overwritten with zeros in the database; its pages in the write-ahead log go when
//! that is moved next.

use actix::{Handler, Message, ResponseFuture};
use clawmux_core::daemon::operator::{ListedMemory, MemoryTotals};
use clawmux_core::error::limit::Limit;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::memory::text::Index;
use clawmux_core::memory::{ENTRIES_MAX, Embedding, Kind, OWNER_BYTES_MAX, Tier};
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};
use serde_json::{Map, Value as Json};

use super::Store;
use super::change::Change;
use super::columns::{Columns, integer, number, time};
use super::failure::Failure;
use super::live::Live;
use super::query::Query;
use super::reader::Reader;
use super::writer::Writer;
pub use recall::Recall;

mod recall;
#[cfg(test)]
mod tests;

/// The most entries that are listed.
const LIST_MAX: usize = 1000;

/// How many characters of an entry lists have.
const PREVIEW_CHARS: usize = 120;

/// What an entry takes besides its texts and what it is found by, in bytes.
const ENVELOPE_BYTES: usize = 128;

/// Something to remember, with what it is found by.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Its id, which none has.
    pub id: String,
    /// Whose it is.
    pub owner: Owner,
    /// Whether that is an operator, who may name anybody's session.
    pub is_admin: bool,
    /// Where it goes.
    pub tier: Tier,
    /// What it is.
    pub kind: Kind,
    /// What it says.
    pub content: String,
    /// What else is to be known of it.
    pub metadata: Option<Map<String, Json>>,
    /// The session it belongs to, which must be there.
    pub session: Option<SessionKey>,
    /// What it is found by besides its words.
    pub embedding: Option<Embedding>,
    /// When that is.
    pub created: Timestamp,
}

/// Remembers something; durable when answered.
///
/// Errors: `NotFound` where the session is not there or another's, `TooLarge` where the owner has as
/// much as one may have, `Conflict` where the id is taken; else as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Remember(pub Box<Memory>);

/// Forgets something; durable when answered.
///
/// Errors: `NotFound` where there is no such entry, or it is another owner's.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Forget {
    /// Its id.
    pub id: String,
    /// Only this owner's; none = anybody's.
    pub owner: Option<Owner>,
}

/// Asks how much is remembered for whom, by name.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Vec<MemoryTotals>, Error>")]
pub struct ReadMemoryTotals;

/// Asks for an owner's entries, the latest first.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<ListedMemory>, Error>")]
pub struct ListMemories {
    /// Whose.
    pub owner: Owner,
    /// At most so many.
    pub limit: usize,
}

/// An entry as it is kept.
#[derive(Debug)]
pub(super) struct Kept {
    memory: Memory,
    index: Index,
    vector: Vec<u8>,
    metadata: Option<String>,
}

impl Kept {
    fn of(memory: Memory) -> Self {
        Self {
            index: Index::of(&memory.content),
            vector: memory.embedding.as_ref().map(Embedding::to_bytes).unwrap_or_default(),
            metadata: memory.metadata.as_ref().map(|metadata| Json::Object(metadata.clone()).to_string()),
            memory,
        }
    }
}

/// So many entries more or less of one tier, with so many vectors and bytes.
#[derive(Clone, Copy, Debug)]
struct Growth {
    tier: Tier,
    entries: i64,
    embedded: i64,
    bytes: i64,
}

impl Handler<Remember> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Remember(memory): Remember, _: &mut Self::Context) -> Self::Result {
        self.log_writer.write(Kept::of(*memory))
    }
}

impl Change for Kept {
    fn bytes(&self) -> usize {
        let said = self.memory.content.len() + self.metadata.as_ref().map_or(0, String::len);
        ENVELOPE_BYTES + said + self.index.terms.len() + self.vector.len()
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let Kept { memory, index, vector, metadata } = self;
        let session =
            memory.session.as_ref().map(|session| writer.session_of(session, memory)).transpose()?;
        let taken = writer.cached("SELECT 1 FROM memories WHERE memory = ?")?.exists([&memory.id])?;
        if taken {
            return Err(ErrorCode::Conflict.error("there is a memory of this id already").into());
        }
        let bytes = integer(self.bytes());
        let owner = writer.room_for(memory, number(bytes))?;
        writer.cached(
            "INSERT INTO memories (memory, owner, tier, kind, session, created, bytes, distinct_terms, whole, dimensions,
                terms, vector, content, metadata)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            memory.id,
            owner,
            memory.tier.name(),
            memory.kind.name(),
            session,
            time(memory.created),
            bytes,
            index.distinct,
            index.whole.cast_signed(),
            integer(memory.embedding.as_ref().map_or(0, Embedding::dimensions)),
            index.terms,
            vector,
            memory.content,
            metadata,
        ])?;
        let embedded = i64::from(memory.embedding.is_some());
        writer.count(owner, Growth { tier: memory.tier, entries: 1, embedded, bytes })?;
        writer
            .cached("UPDATE memory_owners SET stored = max(stored, ?) WHERE id = ?")?
            .execute(params![time(memory.created), owner])?;
        Ok(())
    }
}

impl Change for Forget {
    fn bytes(&self) -> usize {
        ENVELOPE_BYTES + self.id.len()
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let found: Option<(i64, i64, String, bool, i64, String)> = writer
            .cached(
                "SELECT m.id, m.owner, m.tier, m.dimensions > 0, m.bytes, o.owner
                 FROM memories m JOIN memory_owners o ON o.id = m.owner WHERE m.memory = ?",
            )?
            .query_row([&self.id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
            })
            .optional()?;
        let mine = |name: &str| self.owner.as_ref().is_none_or(|owner| owner.as_str() == name);
        let Some((row, owner, tier, embedded, bytes, _)) = found.filter(|found| mine(&found.5)) else {
            return Err(ErrorCode::NotFound.error("no such memory").into());
        };
        writer.overwriting(|| writer.cached("DELETE FROM memories WHERE id = ?")?.execute([row]))?;
        let (tier, embedded) = (tier_of(&tier), -i64::from(embedded));
        writer.count(owner, Growth { tier, entries: -1, embedded, bytes: -bytes })?;
        Ok(())
    }
}

impl Query for ReadMemoryTotals {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT owner, scratchpad, episodic, semantic, embedded, bytes, stored FROM memory_owners ORDER BY owner",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(MemoryTotals {
                    owner: row.owner(0)?,
                    entries: [row.number(1)?, row.number(2)?, row.number(3)?],
                    embedded: row.number(4)?,
                    bytes: row.number(5)?,
                    stored: row.at(6)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

impl Query for ListMemories {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let limit = integer(self.limit.min(LIST_MAX));
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT m.memory, m.tier, m.kind, s.key, substr(m.content, 1, ?3), m.dimensions, m.bytes, m.created
                 FROM memories m JOIN memory_owners o ON o.id = m.owner LEFT JOIN sessions s ON s.id = m.session
                 WHERE o.owner = ?1 ORDER BY m.id DESC LIMIT ?2",
            )?;
            let chars = integer(PREVIEW_CHARS);
            let mut rows = statement.query(params![self.owner.as_str(), limit, chars])?;
            let mut listed = Vec::new();
            while let Some(row) = rows.next()? {
                listed.push(ListedMemory {
                    id: row.get(0)?,
                    tier: tier_of(&row.get::<_, String>(1)?),
                    kind: kind_of(&row.get::<_, String>(2)?),
                    session: row.session_if_any(3)?,
                    content: row.get(4)?,
                    dimensions: row.number(5)?,
                    bytes: row.number(6)?,
                    created: row.at(7)?,
                });
            }
            Ok(listed)
        })
    }
}

impl Writer {
    /// The row of the session that a memory is to belong to.
    fn session_of(&self, session: &SessionKey, memory: &Memory) -> Result<i64, Failure> {
        let found: Option<(i64, String)> = self
            .cached("SELECT id, owner FROM sessions WHERE key = ?")?
            .query_row([session.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        match found {
            Some((row, owner)) if memory.is_admin || owner == memory.owner.as_str() => Ok(row),
            _ => Err(ErrorCode::NotFound.error(format!("no such session: {session}")).into()),
        }
    }

    /// The row of the owner, who has room for one more of so many bytes.
    fn room_for(&self, memory: &Memory, bytes: u64) -> Result<i64, Failure> {
        self.cached("INSERT INTO memory_owners (owner) VALUES (?) ON CONFLICT DO NOTHING")?
            .execute([memory.owner.as_str()])?;
        let (row, entries, kept): (i64, i64, i64) = self
            .cached("SELECT id, scratchpad + episodic + semantic, bytes FROM memory_owners WHERE owner = ?")?
            .query_row([memory.owner.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let full = |what: &str, name: Limit, limit: u64| {
            let why = format!("the memory is full: it may have {limit} {what}; delete some");
            Err(ErrorCode::TooLarge.error(why).with(Detail::Limit { name, limit }).into())
        };
        if number(entries) >= ENTRIES_MAX {
            return full("entries", Limit::MemoryEntries, ENTRIES_MAX);
        }
        if number(kept) + bytes > OWNER_BYTES_MAX {
            return full("bytes", Limit::MemoryBytes, OWNER_BYTES_MAX);
        }
        Ok(row)
    }

    fn count(&self, owner: i64, growth: Growth) -> rusqlite::Result<()> {
        let of = |tier: Tier| if tier == growth.tier { growth.entries } else { 0 };
        self.cached(
            "UPDATE memory_owners SET scratchpad = scratchpad + ?2, episodic = episodic + ?3, semantic = semantic + ?4,
                embedded = embedded + ?5, bytes = bytes + ?6
             WHERE id = ?1",
        )?
        .execute(params![
            owner,
            of(Tier::Scratchpad),
            of(Tier::Episodic),
            of(Tier::Semantic),
            growth.embedded,
            growth.bytes
        ])?;
        Ok(())
    }

    /// Forgets the scratchpads of a session that is deleted; what else was stored with it stays, without it.
    pub(super) fn forget_scratchpads(&mut self, session: i64) -> rusqlite::Result<()> {
        let gone: Vec<(i64, i64, i64, i64)> = self
            .cached(
                "SELECT owner, count(*), sum(dimensions > 0), sum(bytes) FROM memories
                 WHERE session = ? AND tier = 'scratchpad' GROUP BY owner",
            )?
            .query_map([session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .collect::<Result<_, _>>()?;
        if !gone.is_empty() {
            self.overwriting(|| {
                self.cached("DELETE FROM memories WHERE session = ? AND tier = 'scratchpad'")?
                    .execute([session])
            })?;
        }
        for (owner, entries, embedded, bytes) in gone {
            let change =
                Growth { tier: Tier::Scratchpad, entries: -entries, embedded: -embedded, bytes: -bytes };
            self.count(owner, change)?;
        }
        self.cached("UPDATE memories SET session = NULL WHERE session = ?")?.execute([session])?;
        Ok(())
    }

    /// Overwrites what is deleted meanwhile; for all the text that comes and goes that would be too much.
    fn overwriting(&self, delete: impl FnOnce() -> rusqlite::Result<usize>) -> rusqlite::Result<()> {
        self.cached("PRAGMA secure_delete = ON")?.query_row([], |_| Ok(()))?;
        let deleted = delete();
        self.cached("PRAGMA secure_delete = OFF")?.query_row([], |_| Ok(()))?;
        deleted.map(drop)
    }
}

/// What is of no tier we know is looked for as what is known.
fn tier_of(name: &str) -> Tier {
    Tier::from_name(name).unwrap_or(Tier::Semantic)
}

fn kind_of(name: &str) -> Kind {
    Kind::from_name(name).unwrap_or_default()
}
