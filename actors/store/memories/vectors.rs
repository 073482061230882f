//! Vectors that a model of a provider made of entries: which entries have none of it, and keeping them.
//!
//! With each stands which model made it, so that vectors of another one are never taken for it: where the
//! configuration names another, all are made anew. An entry of which the model makes none has that model and no
//! vector. Rows are never used twice, so a vector that comes late is none of another entry's. Entries with a
//! client's own vector, and what is superseded, get none.

use actix::Message;
use clawmux_core::error::Error;
use clawmux_core::ids::Owner;
use clawmux_core::memory::{Embedding, OWNER_BYTES_MAX};
use clawmux_core::replica::Write;
use rusqlite::{OptionalExtension as _, params};
use serde_json::Value as Json;

use super::ENVELOPE_BYTES;
use crate::store::change::{Change, MadeBy};
use crate::store::columns::{Columns as _, integer, number};
use crate::store::failure::Failure;
use crate::store::live::Live;
use crate::store::query::Query;
use crate::store::reader::Reader;
use crate::store::writer::Writer;

/// So many times as many entries are looked at as are asked for: some are of other owners.
const LOOKED_AT: usize = 8;

/// Asks for some entries of one owner that this model made no vector of, the earliest first.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Unembedded, Error>")]
pub struct ReadUnembedded {
    /// The model.
    pub model: String,
    /// Entries that are not meant.
    pub but: Vec<i64>,
    /// Owners whose entries are not meant.
    pub but_of: Vec<Owner>,
    /// At most so many.
    pub limit: usize,
    /// So many bytes together at most, unless the first has more.
    pub bytes: usize,
    /// So many characters of each.
    pub chars: usize,
}

/// Entries of one owner without a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unembedded {
    /// Whose.
    pub owner: Owner,
    /// Their rows, and the beginnings of what they say.
    pub entries: Vec<(i64, String)>,
}

/// Keeps vectors that a model made of entries; none = it makes none of that one. What is not there any more is left
/// out. Durable when answered.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct KeepVectors {
    /// The model.
    pub model: String,
    /// The rows of the entries, each with its vector.
    pub vectors: Vec<(i64, Option<Embedding>)>,
}

impl Query for ReadUnembedded {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let mut found = Unembedded { owner: Owner::Admins, entries: Vec::new() };
        // Those of several owners take turns.
        let limit = integer(self.limit.saturating_mul(LOOKED_AT).saturating_add(self.but.len()));
        let but_of: Vec<&str> = self.but_of.iter().map(Owner::as_str).collect();
        let but_of = Json::from(but_of).to_string();
        reader.view(None, |tx, _| {
            let mut bytes = 0;
            // Each side of the model is a range of the index over them.
            for side in ["<", ">"] {
                let mut statement = tx.prepare_cached(&format!(
                    "SELECT m.id, o.owner, substr(m.content, 1, ?3) FROM memories m
                        CROSS JOIN memory_owners o ON o.id = m.owner
                     WHERE m.superseded IS NULL AND m.dimensions = 0 AND m.embedded_by {side} ?1
                        AND o.owner NOT IN (SELECT value FROM json_each(?4))
                     ORDER BY m.embedded_by, m.id LIMIT ?2"
                ))?;
                let mut rows = statement.query(params![self.model, limit, integer(self.chars), but_of])?;
                while let Some(row) = rows.next()? {
                    let (id, owner): (i64, Owner) = (row.get(0)?, row.owner(1)?);
                    if self.but.contains(&id) || (!found.entries.is_empty() && owner != found.owner) {
                        continue;
                    }
                    let content: String = row.get(2)?;
                    bytes += content.len();
                    if !found.entries.is_empty() && (bytes > self.bytes || found.entries.len() >= self.limit)
                    {
                        return Ok(found);
                    }
                    found.owner = owner;
                    found.entries.push((id, content));
                }
            }
            Ok(found)
        })
    }
}

impl Change for KeepVectors {
    fn bytes(&self) -> usize {
        let vector = |(_, vector): &(i64, Option<Embedding>)| vector.as_ref().map_or(0, bytes_of);
        ENVELOPE_BYTES + self.vectors.iter().map(vector).sum::<usize>()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::All(Write::KeepVectors { model: self.model.clone(), vectors: self.vectors.clone() })
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        self.vectors
            .iter()
            .try_for_each(|(row, vector)| writer.keep_vector(&self.model, *row, vector.as_ref()))
    }
}

fn bytes_of(vector: &Embedding) -> usize {
    vector.dimensions() * size_of::<f32>()
}

impl Writer {
    fn keep_vector(&self, model: &str, row: i64, vector: Option<&Embedding>) -> Result<(), Failure> {
        let kept: Option<(i64, i64, i64)> = self
            .cached(
                "SELECT m.owner, o.bytes, coalesce(length(v.vector), 0) FROM memories m
                    JOIN memory_owners o ON o.id = m.owner LEFT JOIN memory_vectors v ON v.memory = m.id
                 WHERE m.id = ?",
            )?
            .query_row([row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        // Forgotten meanwhile.
        let Some((owner, kept, before)) = kept else { return Ok(()) };
        // Where the owner's memory is full, the entry is found without.
        let has_room =
            |vector: &&Embedding| number(kept - before) + bytes_of(vector) as u64 <= OWNER_BYTES_MAX;
        let vector = vector.filter(has_room);
        let growth = integer(vector.map_or(0, bytes_of)) - before;
        match vector {
            Some(vector) => self
                .cached("INSERT OR REPLACE INTO memory_vectors (memory, vector) VALUES (?, ?)")?
                .execute(params![row, vector.to_bytes()])?,
            None => self.cached("DELETE FROM memory_vectors WHERE memory = ?")?.execute([row])?,
        };
        self.cached("UPDATE memories SET embedded_by = ?, bytes = bytes + ? WHERE id = ?")?
            .execute(params![model, growth, row])?;
        self.cached("UPDATE memory_owners SET bytes = bytes + ? WHERE id = ?")?
            .execute(params![growth, owner])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use actix::Addr;
    use clawmux_core::memory::{Kind, MemoryRecord, Question, Source, Tier};
    use clawmux_core::time::Timestamp;

    use super::*;
    use crate::store::{Forget, ReadMemoryTotals, Recall, Remember, Stop, Store};

    fn owner(name: &str) -> Owner {
        Owner::Credential(name.into())
    }

    async fn remember(store: &Addr<Store>, id: &str, owner: &Owner, embedding: Option<Embedding>) {
        let memory = MemoryRecord {
            id: id.into(),
            owner: owner.clone(),
            tier: Tier::Semantic,
            kind: Kind::Knowledge,
            content: format!("entry {id}"),
            metadata: None,
            session: None,
            embedding,
            fact: None,
            source: Source::default(),
            created: Timestamp::from_millis(7),
            superseded: None,
        };
        store.send(Remember { memory: Box::new(memory), by_operator: false }).await.unwrap().unwrap();
    }

    async fn unembedded(store: &Addr<Store>, model: &str, but: &[i64], but_of: &[Owner]) -> Unembedded {
        let (but, but_of) = (but.to_vec(), but_of.to_vec());
        let read = ReadUnembedded { model: model.into(), but, but_of, limit: 2, bytes: 100, chars: 7 };
        store.send(read).await.unwrap().unwrap()
    }

    async fn keep(store: &Addr<Store>, model: &str, vectors: Vec<(i64, Option<Embedding>)>) {
        store.send(KeepVectors { model: model.into(), vectors }).await.unwrap().unwrap();
    }

    async fn bytes(store: &Addr<Store>, owner: &Owner) -> u64 {
        let totals = store.send(ReadMemoryTotals).await.unwrap().unwrap();
        totals.iter().find(|of| of.owner == *owner).unwrap().bytes
    }

    async fn found(store: &Addr<Store>, model: &str, vector: &Embedding, owner: &Owner) -> Vec<String> {
        let question = Question::about("whatever", 9).unwrap().meaning(model.into(), vector.clone());
        let recall = Recall { question, owner: Some(owner.clone()), tier: None, session: None };
        store.send(recall).await.unwrap().unwrap().results.into_iter().map(|found| found.id).collect()
    }

    #[actix::test]
    async fn entries_without_a_vector_of_the_model_are_found_owner_by_owner_and_no_other_models_is_compared()
    {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::start(folder.path().join("clawmux.db")).await.unwrap();
        let (ada, eve) = (owner("ada"), owner("eve"));
        let [north, east] = [[0.0, 1.0], [1.0, 0.0]].map(|numbers| Embedding::new(&numbers).unwrap());
        for (id, owner) in [("a1", &ada), ("e1", &eve), ("a2", &ada), ("a3", &ada)] {
            remember(&store, id, owner, None).await;
        }
        remember(&store, "own", &ada, Some(north.clone())).await;
        let all = bytes(&store, &ada).await;

        let entries = |read: &Unembedded| read.entries.iter().map(|(row, _)| *row).collect::<Vec<_>>();
        let first = unembedded(&store, "up/m", &[], &[]).await;
        assert_eq!((&first.owner, entries(&first), &*first.entries[0].1), (&ada, vec![1, 3], "entry a"));
        assert_eq!(entries(&unembedded(&store, "up/m", &[1, 3], std::slice::from_ref(&eve)).await), [4]);
        assert_eq!(entries(&unembedded(&store, "up/m", &[], std::slice::from_ref(&ada)).await), [2]);

        // One is left without, and one is forgotten meanwhile.
        store.send(Forget { id: "a3".into(), owner: None }).await.unwrap().unwrap();
        let vectors =
            vec![(1, Some(north.clone())), (2, Some(north.clone())), (3, None), (4, Some(north.clone()))];
        keep(&store, "up/m", vectors).await;
        assert_eq!(entries(&unembedded(&store, "up/m", &[], &[]).await), [0i64; 0]);
        assert_eq!(found(&store, "up/m", &north, &ada).await, ["a1"]);
        assert_eq!(found(&store, "up/m", &east, &ada).await, [""; 0]);
        assert_eq!(found(&store, "up/m", &north, &eve).await, ["e1"]);

        // Those of another model are made anew, and not taken for its own until then.
        assert_eq!(found(&store, "a/other", &north, &ada).await, [""; 0]);
        assert_eq!(entries(&unembedded(&store, "a/other", &[], &[]).await), [1, 3]);
        keep(&store, "a/other", vec![(1, Some(east.clone()))]).await;
        assert_eq!(found(&store, "a/other", &east, &ada).await, ["a1"]);
        assert_eq!(found(&store, "up/m", &east, &ada).await, [""; 0]);
        assert_eq!(entries(&unembedded(&store, "up/m", &[], &[]).await), [1]);

        // They count as long as they are there.
        let kept = bytes(&store, &ada).await;
        store.send(Forget { id: "a1".into(), owner: None }).await.unwrap().unwrap();
        for id in ["a2", "own"] {
            store.send(Forget { id: id.into(), owner: None }).await.unwrap().unwrap();
        }
        assert_eq!(bytes(&store, &ada).await, 0);
        assert!(kept < all, "{kept} {all}: a3 took more than a vector");
        store.send(Stop).await.unwrap().unwrap();
    }
}
