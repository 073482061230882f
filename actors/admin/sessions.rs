//! `admin.sessions`: all sessions there are, the latest used first, a page at a time.
//!
//! What is used while somebody pages moves to the front and so may be missed by later pages.

use actix::Addr;
use clawmux_core::error::Error;
use serde::Deserialize;
use serde_json::{Value, json};

use super::activity::Activity;
use super::event::owner_name;
use super::methods::Call;
use super::params::read;
use crate::ask::ask;
use crate::store::{ListSessions, Listed, Place, Store};

/// Sessions on a page.
const PAGE: usize = 100;
/// The most on a page.
const PAGE_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    limit: Option<usize>,
    /// What their keys begin with.
    prefix: Option<String>,
    /// `next` of the page before: its time and row.
    before: Option<(u64, i64)>,
}

/// Answers it: `{"sessions": [..], "next"?}`, with `next` where there are more.
pub(super) async fn list(call: Call) -> Result<Value, Error> {
    let (listed, more) = asked(&call.daemon.store, &call.params).await?;
    Ok(page(&listed, more, &Activity::now(&call.daemon).await?))
}

/// The same of a store that no daemon has open.
pub(super) async fn of_store(store: &Addr<Store>, params: &Value) -> Result<Value, Error> {
    let (listed, more) = asked(store, params).await?;
    Ok(page(&listed, more, &Activity::default()))
}

/// Those of a page, and whether there are more.
async fn asked(store: &Addr<Store>, params: &Value) -> Result<(Vec<Listed>, bool), Error> {
    let Params { limit, prefix, before } = read("admin.sessions", params)?;
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let before = before.map(|(updated_ms, row)| Place { updated_ms, row });
    let wanted = ListSessions { limit: limit + 1, owner: None, prefix, before };
    let mut listed = ask(store, wanted).await??;
    let more = listed.len() > limit;
    listed.truncate(limit);
    Ok((listed, more))
}

fn page(listed: &[Listed], more: bool, activity: &Activity) -> Value {
    let next = listed.last().filter(|_| more).map(|last| json!([last.place.updated_ms, last.place.row]));
    let sessions: Vec<Value> = listed.iter().map(|listed| session(listed, activity)).collect();
    let mut page = json!({ "sessions": sessions });
    if let Some(next) = next {
        page["next"] = next;
    }
    page
}

fn session(listed: &Listed, activity: &Activity) -> Value {
    let awake = activity.awake.get(listed.summary.session.as_str());
    let state = match awake {
        Some(awake) if awake.run.is_some() => "running",
        Some(awake) if awake.queued > 0 => "queued",
        // Stopped for good, until it is reset.
        _ if listed.settings.closed.is_some() => "stopped",
        Some(_) => "idle",
        // A run that was cut off and waits to go on.
        None if listed.summary.running => "queued",
        None => "asleep",
    };
    json!({
        "session": listed.summary.session.as_str(),
        "owner": owner_name(&listed.owner),
        "label": listed.settings.label,
        "model": listed.settings.model,
        "state": state,
        "doing": awake.filter(|awake| awake.run.is_some()).map(|awake| awake.doing.as_str()),
        "spent_tokens": awake.map(|awake| awake.spent_tokens),
        "run": awake.and_then(|awake| awake.run.as_deref()),
        "queued": awake.map_or(0, |awake| awake.queued),
        "followers": awake.map_or(0, |awake| awake.followers),
        "prompts": listed.prompts,
        "seq": awake.map_or(0, |awake| awake.seq).max(listed.head.0),
        "created_ms": listed.summary.created.as_millis(),
        "updated_ms": listed.summary.updated.as_millis(),
    })
}
