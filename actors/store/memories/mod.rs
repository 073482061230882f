//! What is remembered for owners, as the database keeps it.
//!
//! An entry is one row: what it says, and before that what it is found by (its terms as digests, its
//! vectors; of a fact what it connects). A fact whose place another one took stays, marked with when and by
//! which.
//!
//! What is deleted is overwritten with zeros in the database; its pages in the write-ahead log go when
//! that is moved next.

use actix::Message;
use clawmux_core::daemon::operator::{ListedMemory, MemoryTotals};
use clawmux_core::error::Error;
use clawmux_core::ids::Owner;
use clawmux_core::memory::{Kind, MemoryRecord, Tier};
use rusqlite::params;

use super::columns::{Columns, integer};
use super::query::Query;
use super::reader::Reader;
pub(super) use keep::{Kept, KeptTogether};
pub use recall::Recall;
pub use record::{CountKnown, ExportMemories, ReadMemory};
pub use spending::{ReadLearningTokens, SpendOnLearning};
pub use vectors::{KeepVectors, ReadUnembedded, Unembedded};

mod keep;
mod recall;
mod record;
mod spending;
#[cfg(test)]
mod tests;
mod vectors;

/// The most entries that are listed.
const LIST_MAX: usize = 1000;

/// How many characters of an entry lists have.
const PREVIEW_CHARS: usize = 120;

/// What an entry takes besides its texts and what it is found by, in bytes.
const ENVELOPE_BYTES: usize = 128;

/// Remembers something; durable when answered.
///
/// Errors: `NotFound` where the session is not there or another's, `TooLarge` where the owner has as
/// much as one may have, `Conflict` where the id is taken; else as [`Append`](super::Append)'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Remember {
    /// What; its id, which none has.
    pub memory: Box<MemoryRecord>,
    /// Whether an operator asks, who may name anybody's session.
    pub by_operator: bool,
}

/// Remembers facts of one owner and one session that were learned together: all of them or none. What is
/// remembered already is left as it is, by its id or by what it says. Durable when answered.
///
/// Errors: as [`Remember`]'s, but for `Conflict`.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Learn(pub Vec<MemoryRecord>);

/// Remembers what was exported, superseded facts as such: all of it or nothing. What has an id that is there
/// is left as it is; what belonged to a session that is not there belongs to none. Durable when answered.
///
/// Errors: as [`Remember`]'s; `Conflict` where an id is another owner's.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Import(pub Vec<MemoryRecord>);

/// Forgets something; durable when answered. What it took the place of stays superseded.
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

/// Forgets all that is remembered for an owner; durable when answered.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct ForgetAll(pub Owner);

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
    /// Whether those are among them whose place another one took.
    pub with_history: bool,
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
                "SELECT m.memory, m.tier, m.kind, s.key, substr(m.content, 1, ?3), m.dimensions, m.bytes, m.created,
                    m.teller, m.superseded
                 FROM memories m JOIN memory_owners o ON o.id = m.owner LEFT JOIN sessions s ON s.id = m.session
                 WHERE o.owner = ?1 AND (?4 OR m.superseded IS NULL) ORDER BY m.id DESC LIMIT ?2",
            )?;
            let chars = integer(PREVIEW_CHARS);
            let mut rows = statement.query(params![self.owner.as_str(), limit, chars, self.with_history])?;
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
                    teller: record::teller_of(&row.get::<_, String>(8)?),
                    superseded: row.at_if_any(9)?,
                });
            }
            Ok(listed)
        })
    }
}

/// What is of no tier we know is looked for as what is known.
fn tier_of(name: &str) -> Tier {
    Tier::from_name(name).unwrap_or(Tier::Semantic)
}

fn kind_of(name: &str) -> Kind {
    Kind::from_name(name).unwrap_or_default()
}
