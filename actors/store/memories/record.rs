//! Memories with all that is known of them: one that is named, and all of an owner's for an export.

use actix::Message;
use clawmux_core::error::Error;
use clawmux_core::ids::{Owner, RunId};
use clawmux_core::memory::fact::CERTAIN;
use clawmux_core::memory::record::Superseded;
use clawmux_core::memory::upkeep::{ExportedMemories, ShownMemory};
use clawmux_core::memory::{ANSWER_BYTES_MAX, Embedding, Fact, MemoryRecord, Source, Teller};
use rusqlite::{Params, Row, Transaction, params};

use super::{ENVELOPE_BYTES, kind_of, tier_of};
use crate::store::columns::{Columns as _, integer};
use crate::store::failure::Failure;
use crate::store::query::Query;
use crate::store::reader::Reader;

/// The most memories of one part of an export.
const PART_MAX: usize = 500;

/// The most memories that are shown whose ids begin alike, and the most facts of what one is about.
const NAMED_MAX: usize = 10;
const HISTORY_MAX: usize = 50;

/// Asks for the memory whose id is this or begins so, with what else was known of what it is about.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<ShownMemory, Error>")]
pub struct ReadMemory {
    /// The id, or the beginning of it.
    pub id: String,
}

/// Asks how many of these memories there are.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<u64, Error>")]
pub struct CountKnown {
    /// Their ids.
    pub ids: Vec<String>,
}

/// Asks for a part of all that is remembered, superseded facts too, in the order in which it was stored.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<ExportedMemories, Error>")]
pub struct ExportMemories {
    /// Only this owner's; none = everybody's.
    pub owner: Option<Owner>,
    /// What follows the part that ended here; 0 = the first.
    pub after: u64,
}

impl Query for ReadMemory {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            // A range, so that the index over ids is used and nothing in one is a pattern.
            let end = format!("{}\u{10ffff}", self.id);
            let named = "m.memory >= ?1 AND m.memory < ?2 ORDER BY m.memory LIMIT ?3";
            let mut shown = ShownMemory {
                named: read_all(tx, named, params![self.id, end, integer(NAMED_MAX)])?,
                history: Vec::new(),
            };
            // One whose whole id it is, whatever else begins so.
            if let Some(at) = shown.named.iter().position(|memory| memory.id == self.id) {
                shown.named = vec![shown.named.swap_remove(at)];
            }
            if let [memory] = &*shown.named
                && memory.fact.is_some()
            {
                let history = "m.memory <> ?1 AND (m.owner, m.slot) = (SELECT owner, slot FROM memories WHERE memory = ?1)
                    ORDER BY m.created DESC, m.id DESC LIMIT ?2";
                shown.history = read_all(tx, history, params![memory.id, integer(HISTORY_MAX)])?;
            }
            Ok(shown)
        })
    }
}

impl Query for CountKnown {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        reader.view(None, |tx, _| {
            let mut statement = tx.prepare_cached("SELECT 1 FROM memories WHERE memory = ?")?;
            let mut known = 0;
            for id in &self.ids {
                known += u64::from(statement.exists([id])?);
            }
            Ok(known)
        })
    }
}

impl Query for ExportMemories {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let owner = self.owner.as_ref().map(Owner::as_str);
        reader.view(None, |tx, _| {
            let mut part = ExportedMemories { memories: Vec::new(), last: self.after };
            let sql =
                format!("{SELECT} WHERE m.id > ?1 AND (?2 IS NULL OR o.owner = ?2) ORDER BY m.id LIMIT ?3");
            let mut statement = tx.prepare_cached(&sql)?;
            let mut rows = statement.query(params![integer(self.after), owner, integer(PART_MAX)])?;
            let mut bytes = 0;
            while let Some(row) = rows.next()? {
                let memory = read(row)?;
                bytes +=
                    told_bytes(&memory) + memory.embedding.as_ref().map_or(0, Embedding::dimensions) * 16;
                if bytes > ANSWER_BYTES_MAX && !part.memories.is_empty() {
                    break;
                }
                part.last = row.number(ROW)?;
                part.memories.push(memory);
            }
            Ok(part)
        })
    }
}

const SELECT: &str =
    "SELECT m.memory, o.owner, m.tier, m.kind, m.content, m.metadata, s.key, m.created, m.subject,
        m.predicate, m.object, m.confidence, m.teller, m.run, m.superseded, m.successor,
        m.vector, m.id
     FROM memories m JOIN memory_owners o ON o.id = m.owner LEFT JOIN sessions s ON s.id = m.session";

/// The column of the row's number.
const ROW: usize = 17;

/// The first memory of which this is true.
pub(super) fn read_one(
    tx: &Transaction<'_>,
    which: &str,
    params: impl Params,
) -> Result<Option<MemoryRecord>, Failure> {
    Ok(read_all(tx, which, params)?.into_iter().next())
}

/// The memories of which this is true.
fn read_all(tx: &Transaction<'_>, which: &str, params: impl Params) -> Result<Vec<MemoryRecord>, Failure> {
    let mut statement = tx.prepare_cached(&format!("{SELECT} WHERE {which}"))?;
    let mut rows = statement.query(params)?;
    let mut read_back = Vec::new();
    while let Some(row) = rows.next()? {
        read_back.push(read(row)?);
    }
    Ok(read_back)
}

fn read(row: &Row<'_>) -> Result<MemoryRecord, Failure> {
    let metadata: Option<String> = row.get(5)?;
    let vector: Vec<u8> = row.get(16)?;
    let superseded = row.at_if_any(14)?.map(|at| Ok::<_, Failure>(Superseded { at, by: row.get(15)? }));
    Ok(MemoryRecord {
        id: row.get(0)?,
        owner: row.owner(1)?,
        tier: tier_of(&row.get::<_, String>(2)?),
        kind: kind_of(&row.get::<_, String>(3)?),
        content: row.get(4)?,
        metadata: metadata.and_then(|metadata| serde_json::from_str(&metadata).ok()),
        session: row.session_if_any(6)?,
        embedding: Embedding::from_bytes(&vector),
        fact: fact(row)?,
        source: Source {
            teller: teller_of(&row.get::<_, String>(12)?),
            run: row.get::<_, Option<String>>(13)?.map(RunId::from),
        },
        created: row.at(7)?,
        superseded: superseded.transpose()?,
    })
}

fn fact(row: &Row<'_>) -> Result<Option<Fact>, Failure> {
    let Some(subject) = row.get::<_, Option<String>>(8)? else { return Ok(None) };
    let (predicate, object): (String, String) = (row.get(9)?, row.get(10)?);
    let confidence = row.get::<_, Option<u8>>(11)?.unwrap_or(CERTAIN);
    Ok(Some(Fact::new(&subject, &predicate, &object, confidence)?))
}

/// How many bytes it takes to tell of a memory, without its vector.
pub(super) fn told_bytes(memory: &MemoryRecord) -> usize {
    let metadata = memory.metadata.as_ref().and_then(|metadata| serde_json::to_string(metadata).ok());
    memory.content.len() + metadata.map_or(0, |text| text.len()) + ENVELOPE_BYTES
}

/// Who is unknown was a client.
pub(super) fn teller_of(name: &str) -> Teller {
    Teller::from_name(name).unwrap_or_default()
}
