//! The search for what answers a question.
//!
//! A question is put to the entries of one owner in turn, in parts small enough that whoever else asks
//! the reader waits for no more than one of them. There is no index over the words of all owners:
//! statistics over it would let one owner's texts change another's scores, words of deleted entries would
//! live on in it, and a question would have a syntax. What is superseded is no answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use actix::{AsyncContext, Handler, Message, ResponseFuture};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, SessionKey};
use clawmux_core::memory::question::Answers;
use clawmux_core::memory::rank::{Candidate, Hit};
use clawmux_core::memory::{ANSWER_BYTES_MAX, Found, MemoryRecord, Question, Remembered, Tier};
use rusqlite::{OptionalExtension, Transaction, params};

use super::{record, tier_of};
use crate::runtime::ask::ask;
use crate::store::Store;
use crate::store::columns::{Columns, integer};
use crate::store::failure::Failure;
use crate::store::figures::Figures;
use crate::store::query::Query;
use crate::store::reader::Reader;

/// So many entries are looked at in one go, or fewer where they have so many bytes.
const PART_ENTRIES: usize = 1000;
const PART_BYTES: usize = 4 << 20;

/// How long all parts of one answer may take; who asked has given up by then.
const RECALL_MAX: Duration = Duration::from_secs(30);

/// Asks for what answers a question best.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Found, Error>")]
pub struct Recall {
    /// The question.
    pub question: Question,
    /// Only this owner's; none = everybody's, where the question is not what is relevant to something.
    pub owner: Option<Owner>,
    /// Only in this tier.
    pub tier: Option<Tier>,
    /// Only what belongs to this session; what has a session's scratchpad in it is not found without.
    pub session: Option<SessionKey>,
}

/// A question on its way through the entries.
#[derive(Debug)]
struct Looking {
    asked: Recall,
    figures: Arc<Figures>,
    /// The owner whose entries are looked at, and the last of those; none = those of the next.
    owner: Option<i64>,
    owners_after: i64,
    after: i64,
    answers: Answers,
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

impl Handler<Recall> for Store {
    type Result = ResponseFuture<Result<Found, Error>>;

    fn handle(&mut self, asked: Recall, ctx: &mut Self::Context) -> Self::Result {
        if asked.question.is_about() && asked.owner.is_none() {
            let whose =
                ErrorCode::InvalidRequest.error("what is relevant is looked for in one owner's memories");
            return Box::pin(std::future::ready(Err(whose)));
        }
        let mut looking = Box::new(Looking {
            answers: asked.question.answers(),
            asked,
            figures: self.figures.clone(),
            owner: None,
            owners_after: 0,
            after: 0,
            began: Instant::now(),
        });
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

impl Query for Part {
    fn answer(self, reader: &mut Reader) -> Self::Result {
        let Self(mut looking) = self;
        if looking.began.elapsed() > RECALL_MAX {
            return Err(
                ErrorCode::Timeout.error("there was too much to look through: name a tier or a session")
            );
        }
        let (mut looked, mut is_over) = (0, false);
        let found = reader.view(None, |tx, _| {
            let session = match &looking.asked.session {
                Some(session) => match row_of(tx, "SELECT id FROM sessions WHERE key = ?", session.as_str())?
                {
                    Some(row) => Some(row),
                    None => return Ok(Some(Found::default())),
                },
                None => None,
            };
            if looking.owner.is_none() && !next_owner(tx, &mut looking)? {
                return found(tx, looking.answers.best(&looking.asked.question)).map(Some);
            }
            (looked, is_over) = part(tx, session, &mut looking)?;
            Ok(None)
        })?;
        looking.figures.memories_looked_at.fetch_add(looked as u64, Relaxed);
        if let Some(found) = found {
            return Ok(Step::Done(found));
        }
        if is_over {
            (looking.owner, looking.after) = (None, 0);
        }
        Ok(Step::More(looking))
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
fn part(tx: &Transaction<'_>, session: Option<i64>, looking: &mut Looking) -> Result<(usize, bool), Failure> {
    const COLUMNS: &str = "SELECT id, tier, created, distinct_terms, whole,
        CASE WHEN ?3 THEN terms END, CASE WHEN dimensions = ?4 THEN vector END,
        subject_name, object_name, CASE WHEN ?6 THEN hashed END,
        CASE WHEN ?7 IS NOT NULL AND embedded_by = ?7
            THEN (SELECT v.vector FROM memory_vectors v WHERE v.memory = memories.id) END
        FROM memories";
    const ORDER: &str = "owner = ?1 AND id > ?2 AND superseded IS NULL ORDER BY id LIMIT ?5";
    let (asked, answers) = (&looking.asked, &mut looking.answers);
    let sql = match session {
        Some(session) => format!("{COLUMNS} WHERE session = {session} AND {ORDER}"),
        None => format!("{COLUMNS} WHERE {ORDER}"),
    };
    let dimensions = asked.question.dimensions().unwrap_or(0);
    // Entries without a vector have none of 0 numbers either.
    let dimensions = if dimensions == 0 { -1 } else { integer(dimensions) };
    let limit = integer(PART_ENTRIES);
    let mut statement = tx.prepare_cached(&sql)?;
    let mut rows = statement.query(params![
        looking.owner,
        looking.after,
        asked.question.has_text(),
        dimensions,
        limit,
        asked.question.is_about(),
        asked.question.model(),
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
        let hashed = blob(9)?.unwrap_or_default();
        let meant = blob(10)?;
        bytes += terms.len() + vector.map_or(0, <[u8]>::len) + hashed.len() + meant.map_or(0, <[u8]>::len);
        let end =
            |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned));
        let entry = Candidate {
            terms,
            distinct: row.get(3)?,
            whole: row.get::<_, i64>(4)?.cast_unsigned(),
            vector,
            hashed,
            meant,
            ends: [end(7)?, end(8)?],
        };
        answers.look(&asked.question, (looking.after, row.at(2)?), &entry);
    }
    Ok((looked, false))
}

/// The answers in full, as many as fit.
fn found(tx: &Transaction<'_>, (hits, total): (Vec<Hit>, u64)) -> Result<Found, Failure> {
    let mut found = Found { results: Vec::new(), total };
    let mut left = ANSWER_BYTES_MAX;
    for hit in &hits {
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

fn remembered(tx: &Transaction<'_>, hit: &Hit) -> Result<Option<(Remembered, usize)>, Failure> {
    let Some(kept) = record::read_one(tx, "m.id = ?", [hit.row])? else { return Ok(None) };
    let bytes = record::told_bytes(&kept);
    let MemoryRecord { id, owner, tier, kind, content, metadata, session, fact, source, created, .. } = kept;
    let score = hit.score;
    let told = Remembered { id, owner, tier, kind, content, metadata, session, score, created, fact, source };
    Ok(Some((told, bytes)))
}

fn row_of(tx: &Transaction<'_>, sql: &str, name: &str) -> rusqlite::Result<Option<i64>> {
    tx.prepare_cached(sql)?.query_row([name], |row| row.get(0)).optional()
}
