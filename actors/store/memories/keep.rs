//! Remembering and forgetting, in the transaction that is open.
//!
//! A change that is refused must not have changed anything: so what it needs is looked at before anything is
//! written.

use std::collections::{BTreeSet, HashSet};

use actix::{Handler, ResponseFuture};
use clawmux_core::error::limit::Limit;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{Owner, RunId, SessionKey};
use clawmux_core::memory::hashed::Hashed;
use clawmux_core::memory::record::Superseded;
use clawmux_core::memory::text::Index;
use clawmux_core::memory::{ENTRIES_MAX, Embedding, Fact, MemoryRecord, OWNER_BYTES_MAX, Tier};
use clawmux_core::replica::Write;
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension as _, params};
use serde_json::Value as Json;

use super::{ENVELOPE_BYTES, Forget, ForgetAll, Import, Learn, Remember, tier_of};
use crate::store::Store;
use crate::store::change::{Change, MadeBy};
use crate::store::columns::{Columns as _, integer, number, time};
use crate::store::failure::Failure;
use crate::store::live::Live;
use crate::store::writer::Writer;

/// How many entries are forgotten at a time where all of an owner's are.
const FORGET_ROWS: usize = 500;

/// An entry as it is kept.
#[derive(Debug)]
pub(in crate::store) struct Entry {
    memory: MemoryRecord,
    index: Index,
    hashed: Vec<u8>,
    vector: Vec<u8>,
    metadata: Option<String>,
}

impl Entry {
    fn of(memory: MemoryRecord) -> Self {
        let index = Index::of(&memory.content);
        let hash = |text: &str| Hashed::of(text).map(|hashed| hashed.to_bytes()).unwrap_or_default();
        let (index, hashed) = match &memory.fact {
            None => (index, hash(&memory.content)),
            Some(fact) => {
                (index.with(&fact.synonyms()), hash(&format!("{} {}", memory.content, fact.found_by())))
            }
        };
        Self {
            index,
            hashed,
            vector: memory.embedding.as_ref().map(Embedding::to_bytes).unwrap_or_default(),
            metadata: memory.metadata.as_ref().map(|metadata| Json::Object(metadata.clone()).to_string()),
            memory,
        }
    }

    fn bytes(&self) -> usize {
        let said = self.memory.content.len() + self.metadata.as_ref().map_or(0, String::len);
        let fact = self
            .memory
            .fact
            .as_ref()
            .map_or(0, |fact| fact.subject().len() + fact.predicate().len() + fact.object().len());
        ENVELOPE_BYTES + said + fact + self.index.terms.len() + self.hashed.len() + self.vector.len()
    }
}

/// One entry.
#[derive(Debug)]
pub(in crate::store) struct Kept {
    entry: Entry,
    by_operator: bool,
}

impl Kept {
    pub(in crate::store) fn new(memory: MemoryRecord, by_operator: bool) -> Self {
        Self { entry: Entry::of(memory), by_operator }
    }
}

/// Several entries of one owner.
#[derive(Debug)]
pub(in crate::store) struct KeptTogether {
    entries: Vec<Entry>,
    /// Whether what says the same is left as it is, and a session that is not there refuses all.
    are_learned: bool,
}

impl KeptTogether {
    pub(in crate::store) fn learned(facts: Vec<MemoryRecord>) -> Self {
        Self { entries: facts.into_iter().map(Entry::of).collect(), are_learned: true }
    }

    pub(in crate::store) fn imported(memories: Vec<MemoryRecord>) -> Self {
        Self { entries: memories.into_iter().map(Entry::of).collect(), are_learned: false }
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

    fn handle(&mut self, Remember { memory, by_operator }: Remember, _: &mut Self::Context) -> Self::Result {
        self.log_writer.write(Kept::new(*memory, by_operator))
    }
}

impl Handler<Learn> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Learn(facts): Learn, _: &mut Self::Context) -> Self::Result {
        self.log_writer.write(KeptTogether::learned(facts))
    }
}

impl Handler<Import> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Import(memories): Import, _: &mut Self::Context) -> Self::Result {
        self.log_writer.write(KeptTogether::imported(memories))
    }
}

impl Change for Kept {
    fn bytes(&self) -> usize {
        self.entry.bytes()
    }

    fn made_by(&self) -> MadeBy<'_> {
        let memory = Box::new(self.entry.memory.clone());
        MadeBy::All(Write::Remember { memory, by_operator: self.by_operator })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let memory = &self.entry.memory;
        let session = match &memory.session {
            Some(session) => Some(
                writer
                    .session_of(session, &memory.owner, self.by_operator)?
                    .ok_or_else(|| ErrorCode::NotFound.error(format!("no such session: {session}")))?,
            ),
            None => None,
        };
        if writer.owner_of_memory(&memory.id)?.is_some() {
            return Err(ErrorCode::Conflict.error("there is a memory of this id already").into());
        }
        let owner = writer.room_for(&memory.owner, 1, self.entry.bytes() as u64)?;
        writer.enter(&self.entry, owner, session)
    }
}

impl Change for KeptTogether {
    fn bytes(&self) -> usize {
        self.entries.iter().map(Entry::bytes).sum()
    }

    fn made_by(&self) -> MadeBy<'_> {
        let memories = self.entries.iter().map(|entry| entry.memory.clone()).collect();
        MadeBy::All(if self.are_learned { Write::Learn(memories) } else { Write::Import(memories) })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let mut wanted = Vec::new();
        let mut ids = HashSet::new();
        for entry in &self.entries {
            let memory = &entry.memory;
            match writer.owner_of_memory(&memory.id)? {
                Some(owner) if owner == memory.owner.as_str() => continue,
                Some(_) => {
                    let why = format!("the memory {} is another owner's: import it with --owner", memory.id);
                    return Err(ErrorCode::Conflict.error(why).into());
                }
                None if !ids.insert(&memory.id) => continue,
                None => {}
            }
            let session = match &memory.session {
                None => None,
                Some(session) => match writer.session_of(session, &memory.owner, false)? {
                    Some(row) => Some(row),
                    None if self.are_learned || memory.tier == Tier::Scratchpad => {
                        return Err(ErrorCode::NotFound.error(format!("no such session: {session}")).into());
                    }
                    None => None,
                },
            };
            if self.are_learned && writer.says(memory)? {
                continue;
            }
            wanted.push((entry, session));
        }
        // They are of one owner but for an import of several, which is looked at one by one, in an order that every
        // daemon of a cluster has.
        let owners: BTreeSet<&Owner> = wanted.iter().map(|(entry, _)| &entry.memory.owner).collect();
        for owner in owners {
            let theirs = wanted.iter().filter(|(entry, _)| entry.memory.owner == *owner);
            let (entries, bytes) = theirs
                .fold((0, 0), |(entries, bytes), (entry, _)| (entries + 1, bytes + entry.bytes() as u64));
            writer.room_for(owner, entries, bytes)?;
        }
        for (entry, session) in wanted {
            let owner = writer.owner_row(&entry.memory.owner)?;
            writer.enter(entry, owner, session)?;
        }
        Ok(())
    }
}

impl Change for Forget {
    fn bytes(&self) -> usize {
        ENVELOPE_BYTES + self.id.len()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::Forget { id: self.id.clone(), owner: self.owner.clone() })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        let owner = writer.owner_of_memory(&self.id)?;
        let is_meant =
            |name: &String| self.owner.as_ref().is_none_or(|owner| owner.as_str() == name.as_str());
        if !owner.as_ref().is_some_and(is_meant) {
            return Err(ErrorCode::NotFound.error("no such memory").into());
        }
        let row = writer
            .cached("SELECT id FROM memories WHERE memory = ?")?
            .query_row([&self.id], |row| row.get(0))?;
        writer.forget_rows(&[row])
    }
}

impl Change for ForgetAll {
    fn bytes(&self) -> usize {
        ENVELOPE_BYTES
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::ForgetAll(self.0.clone()))
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        loop {
            let rows: Vec<i64> = writer
                .cached(
                    "SELECT id FROM memories WHERE owner = (SELECT id FROM memory_owners WHERE owner = ?) LIMIT ?",
                )?
                .query_map(params![self.0.as_str(), integer(FORGET_ROWS)], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            if rows.is_empty() {
                return Ok(());
            }
            writer.forget_rows(&rows)?;
        }
    }
}

impl Writer {
    /// The row of a session that a memory of this owner is to belong to; none where it is not there or
    /// another's.
    fn session_of(
        &self,
        session: &SessionKey,
        owner: &Owner,
        by_operator: bool,
    ) -> Result<Option<i64>, Failure> {
        let found: Option<(i64, String)> = self
            .cached("SELECT id, owner FROM sessions WHERE key = ?")?
            .query_row([session.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let is_theirs = |(_, name): &(i64, String)| by_operator || name == owner.as_str();
        Ok(found.filter(is_theirs).map(|(row, _)| row))
    }

    /// Whose the memory of this id is; none where there is none.
    fn owner_of_memory(&self, id: &str) -> rusqlite::Result<Option<String>> {
        self.cached(
            "SELECT o.owner FROM memories m JOIN memory_owners o ON o.id = m.owner WHERE m.memory = ?",
        )?
        .query_row([id], |row| row.get(0))
        .optional()
    }

    /// The row of an owner, made where there is none.
    fn owner_row(&self, owner: &Owner) -> rusqlite::Result<i64> {
        self.cached("INSERT INTO memory_owners (owner) VALUES (?) ON CONFLICT DO NOTHING")?
            .execute([owner.as_str()])?;
        self.cached("SELECT id FROM memory_owners WHERE owner = ?")?
            .query_row([owner.as_str()], |row| row.get(0))
    }

    /// The row of the owner, who has room for so many more entries and bytes.
    fn room_for(&self, owner: &Owner, entries: u64, bytes: u64) -> Result<i64, Failure> {
        let row = self.owner_row(owner)?;
        let (has, kept): (i64, i64) = self
            .cached("SELECT scratchpad + episodic + semantic, bytes FROM memory_owners WHERE id = ?")?
            .query_row([row], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let full = |what: &str, name: Limit, limit: u64| {
            let why = format!("the memory is full: it may have {limit} {what}; delete some");
            Err(ErrorCode::TooLarge.error(why).with(Detail::Limit { name, limit }).into())
        };
        if number(has) + entries > ENTRIES_MAX {
            return full("entries", Limit::MemoryEntries, ENTRIES_MAX);
        }
        if number(kept) + bytes > OWNER_BYTES_MAX {
            return full("bytes", Limit::MemoryBytes, OWNER_BYTES_MAX);
        }
        Ok(row)
    }

    /// Whether what holds now of what a fact is about says the same.
    fn says(&self, memory: &MemoryRecord) -> Result<bool, Failure> {
        let Some(fact) = &memory.fact else { return Ok(false) };
        let owner = self.owner_row(&memory.owner)?;
        Ok(self.current(owner, fact)?.iter().any(|current| current.says_the_same(fact)))
    }

    /// The facts that hold now of what this one is about.
    fn current(&self, owner: i64, fact: &Fact) -> rusqlite::Result<Vec<Current>> {
        self.cached(
            "SELECT id, memory, created, predicate, object FROM memories
             WHERE owner = ? AND slot = ? AND slot IS NOT NULL AND superseded IS NULL",
        )?
        .query_map(params![owner, fact.slot().cast_signed()], |row| {
            Ok(Current {
                row: row.get(0)?,
                id: row.get(1)?,
                created: row.at(2)?,
                predicate: row.get(3)?,
                object: row.get(4)?,
            })
        })?
        .collect()
    }

    /// Writes an entry down. A fact takes the place of the older ones of its slot, or is history already where
    /// there is a newer one.
    fn enter(&self, entry: &Entry, owner: i64, session: Option<i64>) -> Result<(), Failure> {
        let Entry { memory, index, hashed, vector, metadata } = entry;
        let mut superseded = memory.superseded.clone();
        if let (Some(fact), None) = (&memory.fact, &superseded) {
            for current in self.current(owner, fact)? {
                if current.created > memory.created {
                    superseded = Some(Superseded { at: current.created, by: current.id });
                    continue;
                }
                self.cached("UPDATE memories SET superseded = ?, successor = ? WHERE id = ?")?
                    .execute(params![time(memory.created), memory.id, current.row])?;
            }
        }
        let fact = memory.fact.as_ref();
        let [subject_name, object_name] = fact.map(Fact::ends).unwrap_or_default();
        let bytes = integer(entry.bytes());
        self.cached(
            "INSERT INTO memories (memory, owner, tier, kind, session, created, bytes, distinct_terms, whole, dimensions,
                terms, vector, content, metadata, subject, predicate, object, confidence, slot, subject_name, object_name,
                teller, run, superseded, successor, hashed)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            fact.map(Fact::subject),
            fact.map(Fact::predicate),
            fact.map(Fact::object),
            fact.map(Fact::confidence),
            fact.map(|fact| fact.slot().cast_signed()),
            subject_name.map(u64::cast_signed),
            object_name.map(u64::cast_signed),
            memory.source.teller.name(),
            memory.source.run.as_ref().map(RunId::as_str),
            superseded.as_ref().map(|by| time(by.at)),
            superseded.as_ref().map(|by| &by.by),
            hashed,
        ])?;
        let embedded = i64::from(memory.embedding.is_some());
        self.count(owner, Growth { tier: memory.tier, entries: 1, embedded, bytes })?;
        self.cached("UPDATE memory_owners SET stored = max(stored, ?) WHERE id = ?")?
            .execute(params![time(memory.created), owner])?;
        Ok(())
    }

    /// Forgets these entries.
    fn forget_rows(&self, rows: &[i64]) -> Result<(), Failure> {
        for row in rows {
            let (owner, tier, embedded, bytes): (i64, String, bool, i64) = self
                .cached("SELECT owner, tier, dimensions > 0, bytes FROM memories WHERE id = ?")?
                .query_row([row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
            let (tier, embedded) = (tier_of(&tier), -i64::from(embedded));
            self.count(owner, Growth { tier, entries: -1, embedded, bytes: -bytes })?;
        }
        self.overwriting(|| {
            rows.iter().try_fold(0, |deleted, row| {
                self.cached("DELETE FROM memory_vectors WHERE memory = ?")?.execute([row])?;
                Ok(deleted + self.cached("DELETE FROM memories WHERE id = ?")?.execute([row])?)
            })
        })?;
        Ok(())
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
    pub(in crate::store) fn forget_scratchpads(&mut self, session: i64) -> rusqlite::Result<()> {
        let gone: Vec<(i64, i64, i64, i64)> = self
            .cached(
                "SELECT owner, count(*), sum(dimensions > 0), sum(bytes) FROM memories
                 WHERE session = ? AND tier = 'scratchpad' GROUP BY owner",
            )?
            .query_map([session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .collect::<Result<_, _>>()?;
        if !gone.is_empty() {
            self.overwriting(|| {
                self.cached(
                    "DELETE FROM memory_vectors WHERE memory IN
                        (SELECT id FROM memories WHERE session = ? AND tier = 'scratchpad')",
                )?
                .execute([session])?;
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

/// A fact that holds now.
#[derive(Debug)]
struct Current {
    row: i64,
    id: String,
    created: Timestamp,
    predicate: String,
    object: String,
}

impl Current {
    fn says_the_same(&self, fact: &Fact) -> bool {
        fact.says_the_same(&self.predicate, &self.object)
    }
}
