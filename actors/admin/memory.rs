//! `admin.memory`: how much is remembered for whom, or what for one owner.

use clawmux_core::auth::Owner;
use clawmux_core::error::Error;
use clawmux_core::memory::{ENTRIES_MAX, OWNER_BYTES_MAX, Tier};
use serde::Deserialize;
use serde_json::{Value, json};

use super::event::owner_name;
use super::methods::Call;
use crate::ask::ask;
use crate::store::{ListMemories, ListedMemory, MemoryTotals, ReadMemoryTotals};

/// Entries of one owner that are listed unless it is said, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// The name of its credential; empty: the operators.
    owner: Option<String>,
    limit: Option<usize>,
}

/// Answers it: `{"owners": [..], "entries_max", "bytes_max"}`; with an owner `{"owner", "entries": [..]}`,
/// the latest first.
pub(super) async fn memory(call: Call) -> Result<Value, Error> {
    let Params { owner, limit } = call.params("admin.memory")?;
    let Some(owner) = owner else {
        let totals = ask(&call.daemon.store, ReadMemoryTotals).await??;
        let owners: Vec<Value> = totals.iter().map(total).collect();
        return Ok(json!({ "owners": owners, "entries_max": ENTRIES_MAX, "bytes_max": OWNER_BYTES_MAX }));
    };
    let owner = Owner::from_name(&owner);
    let limit = limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX);
    let listed = ask(&call.daemon.store, ListMemories { owner: owner.clone(), limit }).await??;
    let entries: Vec<Value> = listed.iter().map(entry).collect();
    Ok(json!({ "owner": owner_name(&owner), "entries": entries }))
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
