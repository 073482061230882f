//! A memory with all that is known of it: as the store keeps it, and as a line of an export.
//!
//! A line of an export is one JSON object. What was written by another clawmux can be read as long as its
//! names are these; what is not known is refused by name, so that nothing is lost without a word.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::fact::{CERTAIN, Fact};
use super::{CONTENT_BYTES_MAX, Embedding, Kind, NewMemory, Source, Teller, Tier};
use crate::ids::{Owner, RunId, SessionKey, uuid_of};
use crate::time::Timestamp;

/// The longest id of a memory, in bytes.
const ID_BYTES_MAX: usize = 128;

/// What took the place of a fact, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superseded {
    /// When that was.
    pub at: Timestamp,
    /// The id of the fact that did.
    pub by: String,
}

/// A memory with all that is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRecord {
    /// Its id.
    pub id: String,
    /// Whom it belongs to.
    pub owner: Owner,
    /// The tier it is in.
    pub tier: Tier,
    /// The kind of memory.
    pub kind: Kind,
    /// The text.
    pub content: String,
    /// What else is to be known of it.
    pub metadata: Option<Map<String, Json>>,
    /// The session it belongs to.
    pub session: Option<SessionKey>,
    /// The vector that its client gave.
    pub embedding: Option<Embedding>,
    /// The fact that it is.
    pub fact: Option<Fact>,
    /// Where it is from.
    pub source: Source,
    /// When it was stored.
    pub created: Timestamp,
    /// What took its place; none while nothing did.
    pub superseded: Option<Superseded>,
}

impl MemoryRecord {
    /// What is stored now for this owner, in this session.
    pub fn new(new: NewMemory, owner: Owner, session: Option<SessionKey>, now: Timestamp) -> Self {
        let NewMemory { id, tier, kind, content, metadata, embedding, fact, source, session: _ } = new;
        let superseded = None;
        Self {
            id,
            owner,
            tier,
            kind,
            content,
            metadata,
            session,
            embedding,
            fact,
            source,
            created: now,
            superseded,
        }
    }

    /// The fact that was learned in a run. Its id follows from the run and the fact, so that it is learned once.
    pub fn learned(fact: Fact, (run, session): (&RunId, &SessionKey), now: Timestamp) -> Self {
        let said = [run.as_str(), fact.subject(), fact.predicate(), fact.object()];
        let said: String = said.iter().map(|part| format!("{}|{part}", part.len())).collect();
        Self {
            id: uuid_of(&format!("learned|{said}")),
            owner: session.owner(),
            tier: Tier::Semantic,
            kind: if fact.predicate() == "decided" { Kind::Decision } else { Kind::Knowledge },
            content: fact.sentence(),
            metadata: None,
            session: Some(session.clone()),
            embedding: None,
            source: Source { teller: Teller::Learned, run: Some(run.clone()) },
            created: now,
            superseded: None,
            fact: Some(fact),
        }
    }

    /// It as a line of an export.
    pub fn to_json(&self) -> Json {
        let mut line = json!({
            "id": self.id,
            "owner": (self.owner != Owner::Admins).then(|| self.owner.as_str()),
            "tier": self.tier.name(),
            "type": self.kind.name(),
            "content": self.content,
            "source": self.source.teller.name(),
            "created_ms": self.created.as_millis(),
        });
        let optional = [
            ("run", self.source.run.as_ref().map(|run| json!(run.as_str()))),
            ("session", self.session.as_ref().map(|session| json!(session.as_str()))),
            ("metadata", self.metadata.clone().map(Json::Object)),
            ("embedding", self.embedding.as_ref().map(|embedding| json!(embedding.numbers()))),
            ("fact", self.fact.as_ref().map(fact_json)),
            ("superseded_ms", self.superseded.as_ref().map(|by| json!(by.at.as_millis()))),
            ("superseded_by", self.superseded.as_ref().map(|by| json!(by.by))),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                line[name] = value;
            }
        }
        line
    }

    /// What a line of an export says, for `owner` where that is given: ids are those of the export where it
    /// was this owner's, and else ids of its own that follow from them, so that who imports it again changes
    /// nothing.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn from_json(line: &Json, owner: Option<&Owner>) -> Result<Self, String> {
        let line = Line::deserialize(line).map_err(|error| error.to_string())?;
        if line.id.is_empty() || line.id.len() > ID_BYTES_MAX {
            return Err(format!("id: expected 1 to {ID_BYTES_MAX} bytes"));
        }
        let exported = Owner::from_name(line.owner.as_deref().unwrap_or_default());
        let owner = owner.unwrap_or(&exported).clone();
        let is_same = owner == exported;
        let id = |id: String| match is_same {
            true => id,
            false => uuid_of(&format!("imported|{}|{}|{id}", owner.as_str().len(), owner.as_str())),
        };
        let unknown = |what: &str, name: &str| format!("{what}: there is no {name:?}");
        let tier = Tier::from_name(&line.tier).ok_or_else(|| unknown("tier", &line.tier))?;
        let kind = Kind::from_name(&line.kind).ok_or_else(|| unknown("type", &line.kind))?;
        let teller = Teller::from_name(&line.source).ok_or_else(|| unknown("source", &line.source))?;
        let session = line.session.filter(|_| is_same).map(|key| SessionKey::parse(&key));
        let session = session.transpose().map_err(|error| format!("session: {error}"))?;
        let embedding = line.embedding.map(|numbers| Embedding::new(&numbers)).transpose();
        let fact = line.fact.map(|fact| {
            Fact::new(&fact.subject, &fact.predicate, &fact.object, fact.confidence.unwrap_or(CERTAIN))
        });
        let superseded = match (line.superseded_ms, line.superseded_by) {
            (None, None) => None,
            (Some(at), Some(by)) => Some(Superseded { at: Timestamp::from_millis(at), by: id(by) }),
            _ => return Err("superseded_ms and superseded_by go together".into()),
        };
        let new = NewMemory {
            id: id(line.id),
            tier,
            kind,
            content: line.content,
            metadata: line.metadata,
            session: None,
            embedding: embedding.map_err(|error| error.message)?,
            fact: fact.transpose().map_err(|error| format!("fact.{}", error.message))?,
            source: Source { teller, run: line.run.map(RunId::from) },
        };
        // A scratchpad is kept with its session; which one that is, is checked where it is stored.
        let checked = NewMemory { tier: Tier::Semantic, ..new.clone() }.check();
        checked.map_err(|error| error.message)?;
        if tier == Tier::Scratchpad && session.is_none() {
            return Err("session: a scratchpad belongs to a session of the same owner".into());
        }
        if line.created_ms > CREATED_MS_MAX {
            return Err("created_ms: it is after the year 9999".into());
        }
        let created = Timestamp::from_millis(line.created_ms);
        Ok(Self { superseded, ..Self::new(new, owner, session, created) })
    }
}

/// A fact, as JSON.
pub fn fact_json(fact: &Fact) -> Json {
    json!({
        "subject": fact.subject(),
        "predicate": fact.predicate(),
        "object": fact.object(),
        "confidence": fact.confidence(),
    })
}

/// The end of the year 9999, in milliseconds since 1970.
const CREATED_MS_MAX: u64 = 253_402_300_799_999;

/// The most bytes of a line of an export: a memory as large as one may be, in JSON.
pub const LINE_BYTES_MAX: usize = 8 * CONTENT_BYTES_MAX;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    #[serde(default)]
    owner: Option<String>,
    tier: String,
    #[serde(rename = "type")]
    kind: String,
    content: String,
    source: String,
    created_ms: u64,
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    session: Option<String>,
    #[serde(default)]
    metadata: Option<Map<String, Json>>,
    #[serde(default)]
    embedding: Option<Vec<f64>>,
    #[serde(default)]
    fact: Option<LineFact>,
    #[serde(default)]
    superseded_ms: Option<u64>,
    #[serde(default)]
    superseded_by: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineFact {
    subject: String,
    predicate: String,
    object: String,
    #[serde(default)]
    confidence: Option<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> MemoryRecord {
        let session = SessionKey::parse("ada/main:cli:ada:main").unwrap();
        let fact = Fact::new("user", "lives_in", "Lisbon", 90).unwrap();
        MemoryRecord {
            metadata: json!({ "n": 1.5 }).as_object().cloned(),
            embedding: Some(Embedding::new(&[3.0, 4.0]).unwrap()),
            superseded: Some(Superseded { at: Timestamp::from_millis(9), by: "other".into() }),
            ..MemoryRecord::learned(fact, (&RunId::from("r"), &session), Timestamp::from_millis(7))
        }
    }

    #[test]
    fn a_line_reads_back_and_for_another_owner_under_ids_of_its_own() {
        let record = record();
        let line = record.to_json();
        assert_eq!(line["fact"]["confidence"], 90, "{line}");
        assert_eq!(MemoryRecord::from_json(&line, None), Ok(record.clone()));
        assert_eq!(MemoryRecord::from_json(&line, Some(&record.owner)), Ok(record.clone()));
        let bob = Owner::Credential("bob".into());
        let copy = MemoryRecord::from_json(&line, Some(&bob)).unwrap();
        assert_eq!((&copy.owner, &copy.session, &copy.fact), (&bob, &None, &record.fact));
        assert!(copy.id != record.id && copy.superseded.as_ref().unwrap().by != "other");
        assert_eq!(MemoryRecord::from_json(&line, Some(&bob)), Ok(copy), "the same each time");
        let operators = MemoryRecord { owner: Owner::Admins, session: None, ..record };
        assert_eq!(MemoryRecord::from_json(&operators.to_json(), None), Ok(operators));
    }

    #[test]
    fn what_is_learned_twice_has_one_id() {
        let session = SessionKey::parse("ada/main:cli:ada:main").unwrap();
        let id = |run: &str, object: &str| {
            let fact = Fact::new("user", "likes", object, 100).unwrap();
            MemoryRecord::learned(fact, (&RunId::from(run), &session), Timestamp::default()).id
        };
        assert_eq!(id("r", "tea"), id("r", "tea"));
        assert!(id("r", "tea") != id("s", "tea") && id("r", "tea") != id("r", "coffee"));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let good = record().to_json();
        for (name, value, why) in [
            ("id", json!(""), "id:"),
            ("tier", json!("x"), "tier: there is no \"x\""),
            ("type", json!("x"), "type:"),
            ("source", json!("x"), "source:"),
            ("content", json!(" "), "content:"),
            ("session", json!("x"), "session:"),
            ("embedding", json!([0.0]), "embedding:"),
            ("fact", json!({ "subject": "", "predicate": "p", "object": "o" }), "fact.subject:"),
            ("superseded_by", Json::Null, "superseded_ms and"),
            ("owners", json!("x"), "unknown field `owners`"),
        ] {
            let mut line = good.clone();
            line[name] = value;
            let error = MemoryRecord::from_json(&line, None).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
    }
}
