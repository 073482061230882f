//! What is remembered for an owner, apart from conversations.
//!
//! There are three tiers. A **scratchpad** belongs to one session: it takes a session to write one, it
//! is found only by who names that session, and it is deleted with it. What is **episodic** (what
//! happened) and **semantic** (what is known) belongs to its owner; it may say in which session it was
//! learned, which outlives that session's deletion only as a memory without one. A query without a
//! session looks through episodic and semantic memories; one with a session through all that was
//! stored with that session, its scratchpad included.
//!
//! | file | knows |
//! |---|---|
//! | [`text`] | the terms of a text, in whatever script |
//! | [`fact`] | subject, predicate and object; what takes the place of what |
//! | [`embedding`] | vectors that a model made of a text, a client's or one of a provider |
//! | [`hashed`] | vectors that are made here |
//! | [`record`] | a memory with all that is known of it, and as a line of an export |
//! | [`upkeep`] | what operators ask about the memories of anybody |
//! | [`question`] | what can be looked for |
//! | [`rank`] | how well an entry answers a question: one score for text and vectors |
//! | [`fused`] | what is relevant to a question: words, vectors, meaning and the graph of facts |
//!
//! An entry may be a **fact**, which says the same in a form that others can be compared with: a newer fact of
//! the same slot supersedes it. What is superseded is kept as history, and is not found. Forgetting deletes.
//!
//! Vectors come from three sides, and are compared with those of the same side alone: clients send some along, some
//! are made here, and where one is configured a model of a provider makes some after an entry is stored.
//!
//! Deliberately absent: stemming. Nothing is ever pushed out to make room: what does not fit is refused.

pub mod file;

pub mod embedding;
pub mod fact;
pub mod fused;
pub mod hashed;
pub mod question;
pub mod rank;
pub mod record;
pub mod text;
pub mod upkeep;

use serde_json::{Map, Value as Json};

use crate::area::area;
use crate::error::limit::Limit;
use crate::error::{Detail, Error, ErrorCode};
use crate::ids::{Owner, RunId, SessionKey};
use crate::target::Target;
use crate::time::Timestamp;
pub use embedding::Embedding;
pub use fact::Fact;
pub use question::Question;
pub use record::MemoryRecord;

/// The most bytes of one entry's text.
pub const CONTENT_BYTES_MAX: usize = 32 * 1024;
/// The most bytes of one entry's metadata, as JSON.
pub const METADATA_BYTES_MAX: usize = 8 * 1024;
/// The most entries of one owner.
pub const ENTRIES_MAX: u64 = 20_000;
/// The most bytes of one owner's entries, with what they are found by.
pub const OWNER_BYTES_MAX: u64 = 256 << 20;
/// The most entries in one answer.
pub const RESULTS_MAX: usize = 100;
/// The most bytes of texts and metadata in one answer, unless its first entry has more by itself.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// For how long something is remembered, and by whom it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Notes of one session.
    Scratchpad,
    /// What happened.
    Episodic,
    /// What is known.
    Semantic,
}

impl Tier {
    /// All tiers.
    pub const ALL: [Self; 3] = [Self::Scratchpad, Self::Episodic, Self::Semantic];

    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scratchpad => "scratchpad",
            Self::Episodic => "episodic",
            Self::Semantic => "semantic",
        }
    }

    /// The tier of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// What kind of thing is remembered. Told, never looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Something that was said or done with somebody.
    Interaction,
    /// An observation.
    #[default]
    Observation,
    /// A decision.
    Decision,
    /// A fact.
    Knowledge,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Interaction, Self::Observation, Self::Decision, Self::Knowledge];

    /// Its name, as clients and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interaction => "interaction",
            Self::Observation => "observation",
            Self::Decision => "decision",
            Self::Knowledge => "knowledge",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Who had something remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Teller {
    /// A client.
    #[default]
    Client,
    /// An agent, by a tool.
    Agent,
    /// Nobody: it was learned from what was said.
    Learned,
}

impl Teller {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Client, Self::Agent, Self::Learned];

    /// Its name, as operators and the store know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Agent => "agent",
            Self::Learned => "learned",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|teller| teller.name() == name)
    }
}

/// Where a memory is from, besides its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Who had it remembered.
    pub teller: Teller,
    /// The run in which that was.
    pub run: Option<RunId>,
}

/// The second and third part of the key of the sessions for which vectors of memories count. There are none of such keys.
pub const EMBEDDINGS_SESSION: (&str, &str) = ("memory", "embeddings");

/// A memory to store.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMemory {
    /// The id it gets; a fresh one.
    pub id: String,
    /// The tier to store it in.
    pub tier: Tier,
    /// The kind of memory.
    pub kind: Kind,
    /// The text.
    pub content: String,
    /// What else is to be known of it; comes back as it was given.
    pub metadata: Option<Map<String, Json>>,
    /// The session it belongs to.
    pub session: Option<Target>,
    /// What it is found by besides its words.
    pub embedding: Option<Embedding>,
    /// The fact that it is; its text says the same.
    pub fact: Option<Fact>,
    /// Where it is from.
    pub source: Source,
}

impl NewMemory {
    /// Whether it can be kept, as far as that can be told from itself.
    ///
    /// # Errors
    /// `InvalidRequest` where it says nothing, or where a scratchpad has no session; `TooLarge` with the
    /// limit.
    pub fn check(&self) -> Result<(), Error> {
        if self.content.trim().is_empty() {
            return Err(ErrorCode::InvalidRequest.error("content: there is nothing to remember"));
        }
        within("content", self.content.len(), Limit::MemoryContentBytes, CONTENT_BYTES_MAX)?;
        if let Some(metadata) = &self.metadata {
            let bytes = serde_json::to_string(metadata).map_or(usize::MAX, |text| text.len());
            within("metadata", bytes, Limit::MemoryMetadataBytes, METADATA_BYTES_MAX)?;
        }
        if self.tier == Tier::Scratchpad && self.session.is_none() {
            return Err(no_session());
        }
        Ok(())
    }
}

fn within(what: &str, bytes: usize, name: Limit, limit: usize) -> Result<(), Error> {
    if bytes <= limit {
        return Ok(());
    }
    let why = format!("{what}: {bytes} bytes are more than the {limit} one memory may have");
    Err(ErrorCode::TooLarge.error(why).with(Detail::Limit { name, limit: limit as u64 }))
}

/// That a scratchpad was meant and no session named.
fn no_session() -> Error {
    ErrorCode::InvalidRequest.error("sessionId: a scratchpad belongs to a session: name it")
}

/// What to look for, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// What to search for.
    pub question: Question,
    /// Only in this tier.
    pub tier: Option<Tier>,
    /// Only what belongs to this session.
    pub session: Option<Target>,
}

impl Query {
    /// Whether there can be an answer.
    ///
    /// # Errors
    /// `InvalidRequest` where a scratchpad is meant and no session named.
    pub fn check(&self) -> Result<(), Error> {
        if self.tier == Some(Tier::Scratchpad) && self.session.is_none() {
            return Err(no_session());
        }
        Ok(())
    }
}

area! {
    /// What can be asked about what is remembered.
    Memory(MemoryCommand => MemoryReply) {
        /// Look for something.
        Query(Query) => Found(Found),
        /// Remember something.
        Store(NewMemory) => Stored(Stored),
        /// Forget something.
        Delete(Delete) => Deleted(Deleted),
    }
}

/// Forget something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Its id.
    pub id: String,
}

/// The answer to a [`MemoryCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryReply {
    /// To `Query`.
    Found(Found),
    /// To `Store`: it is on the disk.
    Stored(Stored),
    /// To `Delete`.
    Deleted(Deleted),
}

/// Something is there no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Its id.
    pub id: String,
}

/// The memories that match a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The best answers, the best first; of equal ones the newest.
    pub results: Vec<Remembered>,
    /// How many there are besides the limit.
    pub total: u64,
}

/// The memory that was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The memory's id.
    pub id: String,
    /// The tier it is stored in.
    pub tier: Tier,
    /// The kind of memory.
    pub kind: Kind,
    /// The session it belongs to.
    pub session: Option<SessionKey>,
    /// When it was stored.
    pub created: Timestamp,
}

/// Something that is remembered, as an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// The memory's id.
    pub id: String,
    /// The owner of the memory.
    pub owner: Owner,
    /// The tier it is stored in.
    pub tier: Tier,
    /// The kind of memory.
    pub kind: Kind,
    /// The text.
    pub content: String,
    /// What else is to be known of it.
    pub metadata: Option<Map<String, Json>>,
    /// The session it belongs to.
    pub session: Option<SessionKey>,
    /// How well it answers, above 0 and up to 1: see [`rank`] and [`fused`].
    pub score: f64,
    /// When it was stored.
    pub created: Timestamp,
    /// The fact that it is.
    pub fact: Option<Fact>,
    /// Where it is from.
    pub source: Source,
}

impl MemoryCommand {
    /// The session it names, to be replaced.
    pub fn target_mut(&mut self) -> Option<&mut Target> {
        match self {
            Self::Query(query) => query.session.as_mut(),
            Self::Store(new) => new.session.as_mut(),
            Self::Delete(_) => None,
        }
    }

    /// Whether it can be done, as far as that can be told from itself.
    ///
    /// # Errors
    /// As [`NewMemory::check`] and [`Query::check`].
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Query(query) => query.check(),
            Self::Store(new) => new.check(),
            Self::Delete(_) => Ok(()),
        }
    }

    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::Query(_) => 1 + ANSWER_BYTES_MAX / WEIGHED_BYTES,
            Self::Store(new) => 1 + new.content.len() / WEIGHED_BYTES,
            Self::Delete(_) => 1,
        }
    }
}

/// So many bytes weigh as much as a small request.
const WEIGHED_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn new(tier: Tier) -> NewMemory {
        NewMemory {
            id: "1".into(),
            tier,
            kind: Kind::default(),
            content: "tea".into(),
            metadata: None,
            session: None,
            embedding: None,
            fact: None,
            source: Source::default(),
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        new(Tier::Semantic).check().unwrap();
        let no_session = new(Tier::Scratchpad).check().unwrap_err();
        assert!(no_session.message.starts_with("sessionId:"), "{no_session}");
        let empty = NewMemory { content: " \n".into(), ..new(Tier::Semantic) }.check().unwrap_err();
        assert!(empty.message.starts_with("content:"), "{empty}");
        let content = "x".repeat(CONTENT_BYTES_MAX + 1);
        let large = NewMemory { content, ..new(Tier::Semantic) }.check().unwrap_err();
        let limit = Detail::Limit { name: Limit::MemoryContentBytes, limit: CONTENT_BYTES_MAX as u64 };
        assert_eq!((large.code, large.detail), (ErrorCode::TooLarge, Some(limit)));
        let metadata = Map::from_iter([("k".into(), "x".repeat(METADATA_BYTES_MAX).into())]);
        let large = NewMemory { metadata: Some(metadata), ..new(Tier::Semantic) }.check().unwrap_err();
        assert!(large.message.starts_with("metadata: 8200 bytes"), "{large}");
    }

    #[test]
    fn names_read_back() {
        assert!(Tier::ALL.into_iter().all(|tier| Tier::from_name(tier.name()) == Some(tier)));
        assert!(Kind::ALL.into_iter().all(|kind| Kind::from_name(kind.name()) == Some(kind)));
        assert!(Teller::ALL.into_iter().all(|teller| Teller::from_name(teller.name()) == Some(teller)));
        assert_eq!(Teller::from_name("x"), None);
        assert_eq!((Tier::from_name("Semantic"), Kind::from_name("")), (None, None));
    }
}
