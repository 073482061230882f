//! `admin.memory`: how much is remembered for whom, or what for one owner.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::event::owner_name;
use super::method::{Method, Request, ask, method};
use crate::daemon::operator::{ListMemories, ListedMemory, MemoryTotals, ReadMemoryTotals};
use crate::error::Error;
use crate::ids::Owner;
use crate::memory::{ENTRIES_MAX, OWNER_BYTES_MAX, Tier};

/// The methods.
pub(super) const METHODS: &[Method] = &[method("admin.memory", r#"{"owner"?, "limit"?}"#, memory)];

/// Entries of one owner that are listed unless it is said, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryParams {
    /// The name of its credential; empty: the operators.
    owner: Option<String>,
    limit: Option<usize>,
}

/// Answers it: `{"owners": [..], "entries_max", "bytes_max"}`; with an owner `{"owner", "entries": [..]}`,
/// the latest first.
fn memory(request: &Request) -> Result<Call, Error> {
    let MemoryParams { owner, limit } = request.read()?;
    let Some(owner) = owner else {
        return ask(ReadMemoryTotals, |totals| {
            let owners: Vec<Value> = totals.iter().map(total).collect();
            json!({ "owners": owners, "entries_max": ENTRIES_MAX, "bytes_max": OWNER_BYTES_MAX })
        });
    };
    let owner = Owner::from_name(&owner);
    let limit = limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    ask(
        ListMemories { owner: owner.clone(), limit },
        move |listed| json!({ "owner": owner_name(&owner), "entries": listed.iter().map(entry).collect::<Vec<_>>() }),
    )
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
    })
}
