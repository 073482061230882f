//! What is remembered besides conversations.
//!
//! A query is text, an `embedding`, or both; [`crate::memory::rank`] says what a score is. Where a session
//! is named, what was stored with it is meant, its scratchpad included.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::shape::{COUNT, Field, NAME, Shape, default, optional, required};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::dialect::json::put;
use crate::error::Error;
use crate::ids::SessionKey;
use crate::memory::{
    Delete, Deleted, Embedding, Kind, NewMemory, Query, Question, Remembered, Source, Stored, Tier,
};
use crate::target::Target;

/// The most characters of a question: what is longer is not looked for as a whole anyway.
const QUERY: Shape = Shape::Text(1, 8192);
/// The most characters of an entry; its bytes are bounded as well.
const CONTENT: Shape = Shape::Text(1, crate::memory::CONTENT_BYTES_MAX);
/// Numbers of any size: those that are none of a model are refused by their place.
const NUMBERS: Shape =
    Shape::List(&Shape::Number(f64::MIN, f64::MAX), 1, crate::memory::embedding::DIMENSIONS_MAX);

const TIERS: Shape = Shape::OneOf(&["scratchpad", "episodic", "semantic"]);
const KINDS: Shape = Shape::OneOf(&["interaction", "observation", "decision", "knowledge"]);

/// The parameters of `memory.query`.
pub(super) const QUERIED: &[Field] = &[
    optional("query", QUERY, "what to look for; needed where there is no `embedding`"),
    optional("embedding", NUMBERS, "looks for what is near it; entries with as many numbers are compared"),
    optional("tier", TIERS, "only this one; a scratchpad needs its `sessionId`"),
    optional("sessionId", NAME, "only what was stored with this session; its scratchpad is found only so"),
    default("limit", Shape::Integer(1, 100), "10", "at most so many"),
    default(
        "similarityThreshold",
        Shape::Number(0.0, 1.0),
        "0.7",
        "the least score: half of the query's words give 0.7, all of them 0.99, the same text 1",
    ),
];

/// What `memory.query` is answered.
pub(super) const FOUND: &[Field] = &[
    required(
        "results",
        Shape::List(&Shape::Object(RESULT), 0, 100),
        "the best first; of equal ones the newest",
    ),
    required("total", COUNT, "how many there are besides the limits"),
];

const RESULT: &[Field] = &[
    required("memoryId", NAME, "the entry"),
    required("id", NAME, "the same"),
    required("content", Shape::Text(1, usize::MAX), "what it says"),
    required("tier", TIERS, "where it is"),
    required("type", KINDS, "what it is"),
    required("score", Shape::Number(0.0, 1.0), "how well it answers"),
    optional("sessionId", NAME, "the session it was stored with"),
    optional("metadata", Shape::AnyObject, "as it was given"),
    required("createdAt", Shape::Time, "when it was stored"),
];

/// The parameters of `memory.store`.
pub(super) const STORED: &[Field] = &[
    required("content", CONTENT, "what to remember"),
    required("tier", TIERS, "for how long: a scratchpad ends with its session"),
    optional("sessionId", NAME, "the session it belongs to; a scratchpad needs one"),
    default("type", KINDS, r#""observation""#, "what it is"),
    optional("metadata", Shape::AnyObject, "comes back as it is given"),
    optional("embedding", NUMBERS, "what it is found by besides its words"),
];

/// What `memory.store` is answered.
pub(super) const KEPT: &[Field] = &[
    required("memoryId", NAME, "the entry"),
    required("id", NAME, "the same"),
    required("tier", TIERS, "where it is"),
    required("type", KINDS, "what it is"),
    optional("sessionId", NAME, "the session it belongs to"),
    required("createdAt", Shape::Time, "when it was stored"),
];

/// The parameters of `memory.delete`.
pub(super) const ONE: &[Field] = &[required("memoryId", NAME, "the entry")];

/// What `memory.delete` is answered.
pub(super) const GONE: &[Field] =
    &[required("ok", Shape::Flag, "true"), required("memoryId", NAME, "the entry that is gone")];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Queried {
    query: Option<String>,
    embedding: Option<Vec<f64>>,
    tier: Option<String>,
    session_id: Option<String>,
    limit: usize,
    similarity_threshold: f64,
}

/// `memory.query`
pub(super) fn query(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let asked: Queried = request.read()?;
    let embedding = read_embedding(asked.embedding.as_deref(), request)?;
    let question = Question::new(asked.query.as_deref(), embedding, asked.similarity_threshold, asked.limit)
        .map_err(|error| about(request, error))?;
    let query = Query {
        question,
        tier: asked.tier.as_deref().and_then(Tier::from_name),
        session: asked.session_id.map(Target::Uuid),
    };
    query.check().map_err(|error| about(request, error))?;
    Call::ask(query, |_, found, _| {
        let results: Vec<Value> = found.results.iter().map(remembered).collect();
        json!({ "results": results, "total": found.total })
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Store {
    content: String,
    tier: String,
    session_id: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    metadata: Option<Map<String, Value>>,
    embedding: Option<Vec<f64>>,
}

/// `memory.store`: answered when it is on the disk.
pub(super) fn store(_: &mut Wundr, request: &mut Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let asked: Store = request.read()?;
    let embedding = read_embedding(asked.embedding.as_deref(), request)?;
    let new = NewMemory {
        id: turn.run_id().to_string(),
        // In shape, they are known.
        tier: Tier::from_name(&asked.tier).unwrap_or(Tier::Semantic),
        kind: Kind::from_name(&asked.kind).unwrap_or_default(),
        content: asked.content,
        metadata: asked.metadata,
        session: asked.session_id.map(Target::Uuid),
        embedding,
        fact: None,
        source: Source::default(),
    };
    new.check().map_err(|error| about(request, error))?;
    Call::ask(new, |_, new, _| stored(&new))
}

/// `memory.delete`
pub(super) fn delete(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let forget = Delete { id: request.text("memoryId") };
    Call::ask(forget, |_, Deleted { id }, _| json!({ "ok": true, "memoryId": id }))
}

fn read_embedding(numbers: Option<&[f64]>, request: &Request<'_>) -> Result<Option<Embedding>, Error> {
    numbers.map(Embedding::new).transpose().map_err(|error| about(request, error))
}

/// Says in which request's parameters it is.
fn about(request: &Request<'_>, error: Error) -> Error {
    Error { message: request.invalid(&error.message).message, ..error }
}

fn remembered(found: &Remembered) -> Value {
    let mut value = json!({
        "memoryId": found.id,
        "id": found.id,
        "content": found.content,
        "tier": found.tier.name(),
        "type": found.kind.name(),
        "score": found.score,
        "createdAt": found.created.to_rfc3339(),
    });
    put(&mut value, "sessionId", found.session.as_ref().map(SessionKey::uuid));
    put(&mut value, "metadata", found.metadata.clone());
    value
}

fn stored(new: &Stored) -> Value {
    let mut value = json!({
        "memoryId": new.id,
        "id": new.id,
        "tier": new.tier.name(),
        "type": new.kind.name(),
        "createdAt": new.created.to_rfc3339(),
    });
    put(&mut value, "sessionId", new.session.as_ref().map(SessionKey::uuid));
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::question;

    #[test]
    fn defaults_and_names_are_those_of_the_daemon() {
        let default = |name: &str| QUERIED.iter().find(|field| field.name == name).map(|field| field.need);
        let json = |value: &dyn ToString| Some(super::super::shape::Need::Default(value.to_string().leak()));
        assert_eq!(default("limit"), json(&question::LIMIT));
        assert_eq!(default("similarityThreshold"), json(&question::THRESHOLD));
        let Shape::OneOf(tiers) = TIERS else { panic!("words") };
        assert_eq!(tiers, Tier::ALL.map(Tier::name));
        let Shape::OneOf(kinds) = KINDS else { panic!("words") };
        assert_eq!(kinds, Kind::ALL.map(Kind::name));
    }
}
