//! `admin.memory` and what is below it: how much is remembered for whom, what for one owner, and what operators
//! do with it.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::event::owner_name;
use super::method::{Method, Request, ask, method};
use crate::daemon::operator::{ListMemories, ListedMemory, MemoryTotals, ReadMemoryTotals};
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, SessionKey};
use crate::memory::record::fact_json;
use crate::memory::upkeep::{ExportMemories, ForgetMemories, ImportMemories, SearchMemories, ShowMemory};
use crate::memory::{ENTRIES_MAX, MemoryRecord, OWNER_BYTES_MAX, Question, Remembered, Tier, question};

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.memory", r#"{"owner"?, "limit"?, "history"?}"#, memory),
    method("admin.memory.search", r#"{"query", "owner"?, "limit"?}"#, search),
    method("admin.memory.show", r#"{"memory"}"#, show),
    method("admin.memory.forget", r#"{"memory"? or "owner"?}"#, forget),
    method("admin.memory.export", r#"{"owner"?, "after"?}"#, export),
    method("admin.memory.import", r#"{"memories", "owner"?}"#, import),
];

/// Entries of one owner that are listed unless it is said, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// The most memories that are imported at a time.
const IMPORT_MAX: usize = 500;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryParams {
    /// The name of its credential; empty: the operators.
    owner: Option<String>,
    limit: Option<usize>,
    history: Option<bool>,
}

/// Answers it: `{"owners": [..], "entries_max", "bytes_max"}`; with an owner `{"owner", "entries": [..]}`,
/// the latest first, with `history` those whose place another one took as well.
fn memory(request: &Request) -> Result<Call, Error> {
    let MemoryParams { owner, limit, history } = request.read()?;
    let Some(owner) = owner else {
        return ask(ReadMemoryTotals, |totals| {
            let owners: Vec<Value> = totals.iter().map(total).collect();
            json!({ "owners": owners, "entries_max": ENTRIES_MAX, "bytes_max": OWNER_BYTES_MAX })
        });
    };
    let owner = Owner::from_name(&owner);
    let limit = limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    ask(
        ListMemories { owner: owner.clone(), limit, with_history: history.unwrap_or(false) },
        move |listed| json!({ "owner": owner_name(&owner), "entries": listed.iter().map(entry).collect::<Vec<_>>() }),
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchParams {
    query: String,
    owner: Option<String>,
    limit: Option<usize>,
}

/// Answers it: `{"owner", "memories": [..], "total"}`, the most relevant first.
fn search(request: &Request) -> Result<Call, Error> {
    let SearchParams { query, owner, limit } = request.read()?;
    let owner = Owner::from_name(owner.as_deref().unwrap_or_default());
    let question = Question::about(&query, limit.unwrap_or(question::LIMIT))?;
    ask(SearchMemories { owner: owner.clone(), question }, move |found| {
        let memories: Vec<Value> = found.results.iter().map(hit).collect();
        json!({ "owner": owner_name(&owner), "memories": memories, "total": found.total })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowParams {
    memory: String,
}

/// Answers it: `{"memories": [..], "history": [..]}`: one memory, or several whose ids begin so.
fn show(request: &Request) -> Result<Call, Error> {
    let ShowParams { memory } = request.read()?;
    ask(ShowMemory { id: memory }, |shown| {
        let lines =
            |memories: &[MemoryRecord]| memories.iter().map(MemoryRecord::to_json).collect::<Vec<_>>();
        json!({ "memories": lines(&shown.named), "history": lines(&shown.history) })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForgetParams {
    memory: Option<String>,
    owner: Option<String>,
}

/// Answers it: `{"forgotten": true}`.
fn forget(request: &Request) -> Result<Call, Error> {
    let which = match request.read()? {
        ForgetParams { memory: Some(memory), owner: None } => ForgetMemories::One(memory),
        ForgetParams { memory: None, owner: Some(owner) } => ForgetMemories::All(Owner::from_name(&owner)),
        ForgetParams { .. } => {
            let why = "invalid admin.memory.forget params: name a memory, or an owner to forget all of";
            return Err(ErrorCode::InvalidRequest.error(why));
        }
    };
    ask(which, |_| json!({ "forgotten": true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportParams {
    owner: Option<String>,
    after: Option<u64>,
}

/// Answers it: `{"memories": [..], "next"?}`: a part, and what to give as `after` for the next one; none after
/// the last.
fn export(request: &Request) -> Result<Call, Error> {
    let ExportParams { owner, after } = request.read()?;
    let owner = owner.map(|owner| Owner::from_name(&owner));
    ask(ExportMemories { owner, after: after.unwrap_or(0) }, |part| {
        let memories: Vec<Value> = part.memories.iter().map(MemoryRecord::to_json).collect();
        let next = (!memories.is_empty()).then_some(part.last);
        json!({ "memories": memories, "next": next })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportParams {
    memories: Vec<Value>,
    owner: Option<String>,
}

/// Answers it: `{"stored", "known"}`. All of them are stored, or none.
fn import(request: &Request) -> Result<Call, Error> {
    let ImportParams { memories, owner } = request.read()?;
    let invalid =
        |why: String| ErrorCode::InvalidRequest.error(format!("invalid admin.memory.import params: {why}"));
    if memories.len() > IMPORT_MAX {
        return Err(invalid(format!(
            "{} memories are more than the {IMPORT_MAX} of one request",
            memories.len()
        )));
    }
    let owner = owner.map(|owner| Owner::from_name(&owner));
    let read = (0..).zip(&memories).map(|(at, line): (usize, _)| {
        MemoryRecord::from_json(line, owner.as_ref()).map_err(|why| invalid(format!("memories[{at}]: {why}")))
    });
    let memories = read.collect::<Result<Vec<_>, Error>>()?;
    ask(ImportMemories { memories }, |imported| json!({ "stored": imported.stored, "known": imported.known }))
}

fn hit(found: &Remembered) -> Value {
    json!({
        "memory": found.id,
        "score": found.score,
        "tier": found.tier.name(),
        "type": found.kind.name(),
        "session": found.session.as_ref().map(SessionKey::as_str),
        "content": found.content,
        "fact": found.fact.as_ref().map(fact_json),
        "source": found.source.teller.name(),
        "created_ms": found.created.as_millis(),
    })
}

fn total(of: &MemoryTotals) -> Value {
    let mut value = json!({
        "owner": owner_name(&of.owner),
        "entries": of.entries.iter().sum::<u64>(),
        "embedded": of.embedded,
        "bytes": of.bytes,
        "stored_ms": of.stored.as_millis(),
    });
    for (tier, entries) in Tier::ALL.into_iter().zip(of.entries) {
        value[tier.name()] = entries.into();
    }
    value
}

fn entry(listed: &ListedMemory) -> Value {
    json!({
        "memory": listed.id,
        "tier": listed.tier.name(),
        "type": listed.kind.name(),
        "session": listed.session.as_ref().map(|session| session.as_str()),
        "content": listed.content,
        "dimensions": listed.dimensions,
        "bytes": listed.bytes,
        "created_ms": listed.created.as_millis(),
        "source": listed.teller.name(),
        "superseded_ms": listed.superseded.map(|at| at.as_millis()),
    })
}
