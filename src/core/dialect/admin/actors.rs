//! `admin.actors`: the supervision tree, and how far each actor is behind.
//!
//! How many messages wait in a mailbox actix does not say. What is told instead is how long the
//! question waited there, and, where an actor keeps queues of its own, how many things wait in those.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, method};
use crate::daemon::operator::{ObserveActors, Snapshot};
use crate::error::Error;

/// The methods.
pub(super) const METHODS: &[Method] = &[method("admin.actors", r#"{"children"?}"#, actors)];

/// Children of one actor in an answer.
const CHILDREN: usize = 50;
/// The most of them.
const CHILDREN_MAX: usize = 10_000;

/// What actors call their queues.
const QUEUES: [&str; 12] = [
    "queue",
    "questions",
    "queued",
    "requests_waiting",
    "recovering",
    "parked",
    "calls_waiting",
    "jobs_waiting",
    "usage_records_waiting",
    "announcements_not_taken",
    "messages_waiting",
    "results_waiting",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActorsParams {
    children: Option<usize>,
}

/// Answers it: `{"actor", "mailbox_wait_us", "queued", "restarts", "silent", "state", "children": [..],
/// "children_total"}`, the gateway's, and the same of each child. Of many children those come that need
/// looking at most: who says nothing, then who has most waiting.
fn actors(request: &Request) -> Result<Call, Error> {
    let children = request.read::<ActorsParams>()?.children.unwrap_or(CHILDREN).min(CHILDREN_MAX);
    ask(ObserveActors, move |tree| node(&tree, children))
}

fn node(observed: &Snapshot, children_max: usize) -> Value {
    let mut children: Vec<&Snapshot> = observed.children.iter().collect();
    if children.len() > children_max {
        // Stable: of equals the order of their supervisor stays.
        children.sort_by_key(|child| {
            std::cmp::Reverse((child.silent.is_some(), queued(&child.state), child.mailbox_wait_us))
        });
        children.truncate(children_max);
    }
    json!({
        "actor": observed.actor,
        "mailbox_wait_us": observed.mailbox_wait_us,
        "queued": queued(&observed.state),
        "restarts": observed.state["restarts_total"].as_u64(),
        "silent": observed.silent,
        "state": observed.state,
        "children": children.into_iter().map(|child| node(child, children_max)).collect::<Vec<_>>(),
        "children_total": observed.children.len(),
    })
}

/// How many things wait in an actor's own queues; none where it has none.
fn queued(state: &Value) -> Option<u64> {
    let mut counts = QUEUES.iter().filter_map(|name| state[*name].as_u64()).peekable();
    counts.peek()?;
    Some(counts.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_children_those_are_told_that_need_looking_at() {
        let child = |name: &str, queued: u64| Snapshot {
            actor: name.into(),
            state: json!({ "queued": queued }),
            ..Snapshot::default()
        };
        let silent = Some("no answer in 5 ms".into());
        let stuck = Snapshot { actor: "stuck".into(), silent, ..Snapshot::default() };
        let tree = Snapshot {
            state: json!({ "restarts_total": 2 }),
            children: vec![child("idle", 0), child("busy", 7), stuck],
            ..Snapshot::default()
        };
        let told = node(&tree, 2);
        assert_eq!((&told["restarts"], &told["queued"]), (&json!(2), &Value::Null), "it has no queue");
        assert_eq!(told["children_total"], 3);
        let names: Vec<_> = told["children"].as_array().unwrap().iter().map(|c| &c["actor"]).collect();
        assert_eq!(names, ["stuck", "busy"]);
        assert_eq!(told["children"][1]["queued"], 7);
        let all = node(&tree, 3);
        assert_eq!(all["children"][0]["actor"], "idle", "none is left out: as the supervisor has them");
    }
}
