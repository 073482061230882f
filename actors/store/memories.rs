//! What is remembered for owners, as the database keeps it.
//!
//! An entry is one row: what it says, and before that what it is found by (its terms as digests, its
//! vector). A question is put to the entries of one owner in turn, in parts small enough that whoever
//! else asks the reader waits for no more than one of them. There is no index over the words of all
//! owners: statistics over it would let one owner's texts change another's scores, words of deleted
//! entries would live on in it, and a question would have a syntax.
//!
//! What is deleted is overwritten with zeros in the database; its pages in the write-ahead log go when
//! that is moved next.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use actix::prelude::*;
use clawmux_core::auth::Owner;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use clawmux_core::memory::rank::{Best, Candidate, Hit};
use clawmux_core::memory::text::Index;
use clawmux_core::memory::{
    ANSWER_BYTES_MAX, ENTRIES_MAX, Embedding, Found, Kind, OWNER_BYTES_MAX, Question, Remembered, Tier,
};
use clawmux_core::operator::{ListedMemory, MemoryTotals};
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde_json::{Map, Value as Json};

use super::figures::Figures;
use super::reader::{Failure as ReadFailure, Reader};
use super::writer::{Failure, Writer, number, time};
use super::{Store, Write};
use crate::ask::ask;

#[cfg(test)]
mod tests;

/// So many entries are looked at in one go, or fewer where they have so many bytes.
const PART_ENTRIES: usize = 1000;
const PART_BYTES: usize = 4 << 20;

/// How long all parts of one answer may take; who asked has given up by then.
const RECALL_MAX: Duration = Duration::from_secs(30);

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

/// Asks for what answers a question best.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Found, Error>")]
pub struct Recall {
    /// The question.
    pub question: Question,
    /// Only this owner's; none = everybody's.
    pub owner: Option<Owner>,
    /// Only in this tier.
    pub tier: Option<Tier>,
    /// Only what belongs to this session; what has a session's scratchpad in it is not found without.
    pub session: Option<SessionKey>,
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

    /// What it counts of its owner's limit.
    fn bytes(&self) -> usize {
        let said = self.memory.content.len() + self.metadata.as_ref().map_or(0, String::len);
        ENVELOPE_BYTES + said + self.index.terms.len() + self.vector.len()
    }
}

/// So many entries more or less of one tier, with so many vectors and bytes.
#[derive(Clone, Copy, Debug)]
struct Change {
    tier: Tier,
    entries: i64,
    embedded: i64,
    bytes: i64,
}

impl Writer {
    pub(super) fn remember(&mut self, kept: &Kept) -> Result<(), Failure> {
        let Kept { memory, index, vector, metadata } = kept;
        let session = memory.session.as_ref().map(|session| self.session_of(session, memory)).transpose()?;
        let taken = self.cached("SELECT 1 FROM memories WHERE memory = ?")?.exists([&memory.id])?;
        if taken {
            return Err(ErrorCode::Conflict.error("there is a memory of this id already").into());
        }
        let bytes = i64::try_from(kept.bytes()).unwrap_or(i64::MAX);
        let owner = self.room_for(memory, number(bytes))?;
        self.cached(
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
            i64::try_from(memory.embedding.as_ref().map_or(0, Embedding::dimensions)).unwrap_or(0),
            index.terms,
            vector,
            memory.content,
            metadata,
        ])?;
        let embedded = i64::from(memory.embedding.is_some());
        self.count(owner, Change { tier: memory.tier, entries: 1, embedded, bytes })?;
        self.cached("UPDATE memory_owners SET stored = max(stored, ?) WHERE id = ?")?
            .execute(params![time(memory.created), owner])?;
        Ok(())
    }

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
        let full = |what: &str, name: &'static str, limit: u64| {
            let why = format!("the memory is full: it may have {limit} {what}; delete some");
            Err(ErrorCode::TooLarge.error(why).with(Detail::Limit { name, limit }).into())
        };
        if number(entries) >= ENTRIES_MAX {
            return full("entries", "memory_entries", ENTRIES_MAX);
        }
        if number(kept) + bytes > OWNER_BYTES_MAX {
            return full("bytes", "memory_bytes", OWNER_BYTES_MAX);
        }
        Ok(row)
    }

    fn count(&self, owner: i64, change: Change) -> rusqlite::Result<()> {
        let of = |tier: Tier| if tier == change.tier { change.entries } else { 0 };
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
            change.embedded,
            change.bytes
        ])?;
        Ok(())
    }

    pub(super) fn forget_memory(&mut self, asked: &Forget) -> Result<(), Failure> {
        let found: Option<(i64, i64, String, bool, i64, String)> = self
            .cached(
                "SELECT m.id, m.owner, m.tier, m.dimensions > 0, m.bytes, o.owner
                 FROM memories m JOIN memory_owners o ON o.id = m.owner WHERE m.memory = ?",
            )?
            .query_row([&asked.id], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
            })
            .optional()?;
        let mine = |name: &str| asked.owner.as_ref().is_none_or(|owner| owner.as_str() == name);
        let Some((row, owner, tier, embedded, bytes, _)) = found.filter(|found| mine(&found.5)) else {
            return Err(ErrorCode::NotFound.error("no such memory").into());
        };
        self.overwriting(|| self.cached("DELETE FROM memories WHERE id = ?")?.execute([row]))?;
        let (tier, embedded) = (tier_of(&tier), -i64::from(embedded));
        self.count(owner, Change { tier, entries: -1, embedded, bytes: -bytes })?;
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
                Change { tier: Tier::Scratchpad, entries: -entries, embedded: -embedded, bytes: -bytes };
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

/// A question on its way through the entries.
#[derive(Debug)]
struct Looking {
    asked: Recall,
    /// The owner whose entries are looked at, and the last of those; none = those of the next.
    owner: Option<i64>,
    owners_after: i64,
    after: i64,
    best: Best,
    began: Instant,
}

/// Looks on.
#[derive(Debug, Message)]
#[rtype(result = "Result<Step, Error>")]
struct Part(Box<Looking>);

/// How far that came.
#[derive(Debug)]
enum Step {
    /// There is more to look at.
    More(Box<Looking>),
    /// These are the answers.
    Done(Found),
}

impl Reader {
    /// Looks at some more entries.
    fn look_on(&mut self, mut looking: Box<Looking>, figures: &Figures) -> Result<Step, Error> {
        if looking.began.elapsed() > RECALL_MAX {
            return Err(
                ErrorCode::Timeout.error("there was too much to look through: name a tier or a session")
            );
        }
        let (mut looked, mut is_over) = (0, false);
        let found = self.view(None, |tx, _| {
            let session = match &looking.asked.session {
                Some(session) => match row_of(tx, "SELECT id FROM sessions WHERE key = ?", session.as_str())?
                {
                    Some(row) => Some(row),
                    None => return Ok(Some(Found::default())),
                },
                None => None,
            };
            if looking.owner.is_none() && !next_owner(tx, &mut looking)? {
                return found(tx, &looking.best).map(Some);
            }
            (looked, is_over) = part(tx, session, &mut looking)?;
            Ok(None)
        })?;
        figures.memories_looked_at.fetch_add(looked as u64, Relaxed);
        if let Some(found) = found {
            return Ok(Step::Done(found));
        }
        if is_over {
            (looking.owner, looking.after) = (None, 0);
        }
        Ok(Step::More(looking))
    }

    pub(super) fn memory_totals(&mut self) -> Result<Vec<MemoryTotals>, Error> {
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT owner, scratchpad, episodic, semantic, embedded, bytes, stored FROM memory_owners ORDER BY owner",
            )?;
            let rows = statement.query_map([], |row| {
                let count = |column| row.get(column).map(number);
                Ok(MemoryTotals {
                    owner: Owner::from_name(&row.get::<_, String>(0)?),
                    entries: [count(1)?, count(2)?, count(3)?],
                    embedded: count(4)?,
                    bytes: count(5)?,
                    stored: at(row, 6)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub(super) fn list_memories(&mut self, asked: &ListMemories) -> Result<Vec<ListedMemory>, Error> {
        let limit = i64::try_from(asked.limit.min(LIST_MAX)).unwrap_or(i64::MAX);
        self.view(None, |tx, _| {
            let mut statement = tx.prepare_cached(
                "SELECT m.memory, m.tier, m.kind, s.key, substr(m.content, 1, ?3), m.dimensions, m.bytes, m.created
                 FROM memories m JOIN memory_owners o ON o.id = m.owner LEFT JOIN sessions s ON s.id = m.session
                 WHERE o.owner = ?1 ORDER BY m.id DESC LIMIT ?2",
            )?;
            let chars = i64::try_from(PREVIEW_CHARS).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![asked.owner.as_str(), limit, chars])?;
            let mut listed = Vec::new();
            while let Some(row) = rows.next()? {
                listed.push(ListedMemory {
                    id: row.get(0)?,
                    tier: tier_of(&row.get::<_, String>(1)?),
                    kind: kind_of(&row.get::<_, String>(2)?),
                    session: session_of(row, 3)?,
                    content: row.get(4)?,
                    dimensions: row.get(5).map(number)?,
                    bytes: row.get(6).map(number)?,
                    created: at(row, 7)?,
                });
            }
            Ok(listed)
        })
    }
}

/// Goes on to the next owner whose entries are asked for; says whether there is one.
fn next_owner(tx: &Transaction<'_>, looking: &mut Looking) -> rusqlite::Result<bool> {
    let last = looking.owners_after;
    looking.owner = match &looking.asked.owner {
        Some(owner) if last == 0 => {
            row_of(tx, "SELECT id FROM memory_owners WHERE owner = ?", owner.as_str())?
        }
        Some(_) => None,
        None => tx
            .prepare_cached("SELECT min(id) FROM memory_owners WHERE id > ?")?
            .query_row([last], |row| row.get(0))?,
    };
    looking.owners_after = looking.owner.unwrap_or(last);
    Ok(looking.owner.is_some())
}

/// Looks at some of the owner's entries; says at how many, and whether that was the last of them.
fn part(
    tx: &Transaction<'_>,
    session: Option<i64>,
    looking: &mut Looking,
) -> Result<(usize, bool), ReadFailure> {
    const COLUMNS: &str = "SELECT id, tier, created, distinct_terms, whole,
        CASE WHEN ?3 THEN terms END, CASE WHEN dimensions = ?4 THEN vector END FROM memories";
    const ORDER: &str = "owner = ?1 AND id > ?2 ORDER BY id LIMIT ?5";
    let (asked, best) = (&looking.asked, &mut looking.best);
    let sql = match session {
        Some(session) => format!("{COLUMNS} WHERE session = {session} AND {ORDER}"),
        None => format!("{COLUMNS} WHERE {ORDER}"),
    };
    let dimensions = asked.question.dimensions().unwrap_or(0);
    // Entries without a vector have none of 0 numbers either.
    let dimensions = if dimensions == 0 { -1 } else { i64::try_from(dimensions).unwrap_or(-1) };
    let limit = i64::try_from(PART_ENTRIES).unwrap_or(i64::MAX);
    let mut statement = tx.prepare_cached(&sql)?;
    let mut rows = statement.query(params![
        looking.owner,
        looking.after,
        asked.question.has_text(),
        dimensions,
        limit
    ])?;
    let (mut looked, mut bytes) = (0, 0);
    while bytes < PART_BYTES {
        let Some(row) = rows.next()? else { return Ok((looked, looked < PART_ENTRIES)) };
        looked += 1;
        looking.after = row.get(0)?;
        let tier = tier_of(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?);
        let is_meant = match asked.tier {
            Some(asked) => tier == asked,
            None => session.is_some() || tier != Tier::Scratchpad,
        };
        if !is_meant {
            continue;
        }
        let blob = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_blob_or_null()?);
        let (terms, vector) = (blob(5)?.unwrap_or_default(), blob(6)?);
        bytes += terms.len() + vector.map_or(0, <[u8]>::len);
        let candidate =
            Candidate { terms, distinct: row.get(3)?, whole: row.get::<_, i64>(4)?.cast_unsigned(), vector };
        let score = asked.question.score(&candidate);
        best.take(&asked.question, Hit { score, created: at(row, 2)?, row: looking.after });
    }
    Ok((looked, false))
}

/// The answers in full, as many as fit.
fn found(tx: &Transaction<'_>, best: &Best) -> Result<Found, ReadFailure> {
    let mut found = Found { results: Vec::new(), total: best.total() };
    let mut left = ANSWER_BYTES_MAX;
    for hit in best.hits() {
        // What was deleted meanwhile is no answer any more.
        let Some((remembered, bytes)) = remembered(tx, hit)? else { continue };
        if bytes > left && !found.results.is_empty() {
            break;
        }
        left = left.saturating_sub(bytes);
        found.results.push(remembered);
    }
    Ok(found)
}

fn remembered(tx: &Transaction<'_>, hit: &Hit) -> Result<Option<(Remembered, usize)>, ReadFailure> {
    let mut statement = tx.prepare_cached(
        "SELECT m.memory, o.owner, m.tier, m.kind, m.content, m.metadata, s.key, m.created
         FROM memories m JOIN memory_owners o ON o.id = m.owner LEFT JOIN sessions s ON s.id = m.session
         WHERE m.id = ?",
    )?;
    let mut rows = statement.query([hit.row])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (content, metadata): (String, Option<String>) = (row.get(4)?, row.get(5)?);
    let bytes = content.len() + metadata.as_ref().map_or(0, String::len) + ENVELOPE_BYTES;
    let remembered = Remembered {
        id: row.get(0)?,
        owner: Owner::from_name(&row.get::<_, String>(1)?),
        tier: tier_of(&row.get::<_, String>(2)?),
        kind: kind_of(&row.get::<_, String>(3)?),
        content,
        metadata: metadata.and_then(|metadata| serde_json::from_str(&metadata).ok()),
        session: session_of(row, 6)?,
        score: hit.score,
        created: at(row, 7)?,
    };
    Ok(Some((remembered, bytes)))
}

fn row_of(tx: &Transaction<'_>, sql: &str, name: &str) -> rusqlite::Result<Option<i64>> {
    tx.prepare_cached(sql)?.query_row([name], |row| row.get(0)).optional()
}

fn session_of(row: &Row<'_>, column: usize) -> Result<Option<SessionKey>, ReadFailure> {
    let key: Option<String> = row.get(column)?;
    Ok(key.map(|key| SessionKey::parse(&key)).transpose()?)
}

fn at(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp::from_millis(number(row.get(column)?)))
}

/// What is of no tier we know is looked for as what is known.
fn tier_of(name: &str) -> Tier {
    Tier::from_name(name).unwrap_or(Tier::Semantic)
}

fn kind_of(name: &str) -> Kind {
    Kind::from_name(name).unwrap_or_default()
}

impl Handler<Remember> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Remember(memory): Remember, _: &mut Self::Context) -> Self::Result {
        let kept = Kept::of(*memory);
        let bytes = kept.bytes();
        self.pen.write(Write::Remember(Box::new(kept)), bytes)
    }
}

impl Handler<Forget> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, forget: Forget, _: &mut Self::Context) -> Self::Result {
        let bytes = ENVELOPE_BYTES + forget.id.len();
        self.pen.write(Write::Forget(forget), bytes)
    }
}

impl Handler<Recall> for Store {
    type Result = ResponseFuture<Result<Found, Error>>;

    fn handle(&mut self, asked: Recall, ctx: &mut Self::Context) -> Self::Result {
        let best = Best::default();
        let began = Instant::now();
        let mut looking = Box::new(Looking { asked, owner: None, owners_after: 0, after: 0, best, began });
        let store = ctx.address();
        Box::pin(async move {
            loop {
                match ask(&store, Part(looking)).await?? {
                    Step::More(more) => looking = more,
                    Step::Done(found) => return Ok(found),
                }
            }
        })
    }
}

impl Handler<Part> for Store {
    type Result = ResponseFuture<Result<Step, Error>>;

    fn handle(&mut self, Part(looking): Part, _: &mut Self::Context) -> Self::Result {
        let figures = self.figures.clone();
        self.ask(move |reader| reader.look_on(looking, &figures))
    }
}

impl Handler<ReadMemoryTotals> for Store {
    type Result = ResponseFuture<Result<Vec<MemoryTotals>, Error>>;

    fn handle(&mut self, _: ReadMemoryTotals, _: &mut Self::Context) -> Self::Result {
        self.ask(Reader::memory_totals)
    }
}

impl Handler<ListMemories> for Store {
    type Result = ResponseFuture<Result<Vec<ListedMemory>, Error>>;

    fn handle(&mut self, asked: ListMemories, _: &mut Self::Context) -> Self::Result {
        self.ask(move |reader| reader.list_memories(&asked))
    }
}
