//! `admin.sessions`: all sessions there are, the latest used first, a page at a time.
//!
//! What is used while somebody pages moves to the front and so may be missed by later pages.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::activity::Activity;
use super::event::owner_name;
use super::method::{Method, Request, ask, method};
use crate::daemon::operator::{ListAllSessions, Listed, Place, SessionPage};
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] =
    &[method("admin.sessions", r#"{"limit"?, "prefix"?, "before"?}"#, list)];

/// Sessions on a page.
const PAGE: usize = 100;
/// The most on a page.
const PAGE_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionsParams {
    limit: Option<usize>,
    /// What their keys begin with.
    prefix: Option<String>,
    /// `next` of the page before: its time and row.
    before: Option<(u64, i64)>,
}

/// Answers it: `{"sessions": [..], "next"?}`, with `next` where there are more.
fn list(request: &Request) -> Result<Call, Error> {
    let SessionsParams { limit, prefix, before } = request.read()?;
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let before = before.map(|(updated_ms, row)| Place { updated_ms, row });
    ask(ListAllSessions { limit, prefix, before }, |SessionPage { listed, has_more, awake }| {
        page(&listed, has_more, &awake.as_ref().map(Activity::of).unwrap_or_default())
    })
}

fn page(listed: &[Listed], has_more: bool, activity: &Activity) -> Value {
    let next = listed.last().filter(|_| has_more).map(|last| json!([last.place.updated_ms, last.place.row]));
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
