//! Events of the daemon that belong to no session, in words.

use serde_json::Value;

use crate::answer::Members;
use crate::when::{now_ms, span, utc};

/// How many characters of an id are shown: enough to name it.
const ID_CHARS: usize = 12;

/// The subject of an event, in one word.
pub(super) fn what(event: &Value) -> &str {
    match event["event"].as_str() {
        Some("presence") => "clients",
        Some("session_changed") => "session",
        Some("pairing") => "device",
        Some("catalog") => "models",
        Some("report") => "health",
        other => other.unwrap_or("-"),
    }
}

/// The event in a sentence, not escaped yet.
pub(super) fn said(event: &Value) -> String {
    let text = |name: &str| event.text(name);
    let short = |name: &str| text(name).chars().take(ID_CHARS).collect::<String>();
    let owner = event["owner"].as_str().map(|owner| format!(" (of {owner})")).unwrap_or_default();
    let why = || event["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    match text("event") {
        "presence" => {
            let mut names: Vec<&str> =
                event.list("present").iter().filter_map(|client| client["client"].as_str()).collect();
            let count = names.len();
            // Some say no name.
            names.retain(|name| !name.is_empty());
            match (count, names.is_empty()) {
                (0, _) => "nobody is connected".into(),
                (_, true) => format!("{count} connected"),
                (_, false) => format!("{count} connected: {}", names.join(", ")),
            }
        }
        "health" => match event["fault"].as_str() {
            Some(fault) => format!("not well: {fault}"),
            None => "all is well".into(),
        },
        "report" => {
            let bad: Vec<String> = event
                .list("parts")
                .iter()
                .flat_map(|part| part.list("errors").iter())
                .filter_map(|error| error.as_str().map(str::to_owned))
                .collect();
            let errors = if bad.is_empty() { String::new() } else { format!(": {}", bad.join("; ")) };
            format!("{}{errors}", text("condition"))
        }
        "session_changed" => format!("{}{owner}", text("reason")),
        "pairing" => {
            let device = format!("{} as {}{owner}", short("device"), text("role"));
            match event["approved"].as_bool() {
                Some(true) => format!("{device}: paired"),
                Some(false) => format!("{device}: rejected"),
                None => format!("{device} waits: clawmux device approve {}", short("request")),
            }
        }
        "approval" => {
            let (id, tool) = (short("approval"), text("tool"));
            match event["decision"].as_str() {
                Some(decision) => {
                    let by = event["by"].as_str().map(|by| format!(" by {by}")).unwrap_or_default();
                    format!("{tool} {}{by} [{id}]", decision.replace('_', " "))
                }
                None => {
                    let left = event.number("deadline_ms").saturating_sub(now_ms());
                    format!("{tool} waits for {}: clawmux approval approve {id}", span(left))
                }
            }
        }
        "agent" => format!("{} {}, {}{}{owner}", text("agent"), text("change"), text("state"), why()),
        "team" => match text("change") {
            "message" => {
                let to = event["to"].as_str().unwrap_or("all");
                format!("{}: {} to {to}: {}", text("team"), text("from"), text("content"))
            }
            "dissolved" => format!("{} dissolved: {}{owner}", text("team"), text("reason")),
            _ => format!("{} ({}) is {}{owner}", text("team"), text("name"), text("state")),
        },
        "job" => {
            let state = event["state"].as_str().map(|state| format!(", {state}")).unwrap_or_default();
            let next = event["next_ms"].as_u64().map(|at| format!("; next at {} UTC", utc(at)));
            format!("{} {}{state}{}{}{owner}", short("job"), text("what"), why(), next.unwrap_or_default())
        }
        "catalog" => {
            let names = |name: &str| event.texts(name).join(", ");
            format!("agents: {}; models: {}", names("agents"), names("models"))
        }
        _ => event.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_is_a_sentence() {
        for (event, what_it_is, sentence) in [
            (
                json!({"event": "presence", "present": [{"client": "cli"}, {"client": "ui"}]}),
                "clients",
                "2 connected: cli, ui",
            ),
            (
                json!({"event": "presence", "present": [{"client": ""}, {"client": "ui"}]}),
                "clients",
                "2 connected: ui",
            ),
            (json!({"event": "presence", "present": [{"client": ""}]}), "clients", "1 connected"),
            (json!({"event": "presence", "present": []}), "clients", "nobody is connected"),
            (json!({"event": "health", "fault": null}), "health", "all is well"),
            (json!({"event": "health", "fault": "the disk is full"}), "health", "not well: the disk is full"),
            (
                json!({"event": "report", "condition": "degraded", "parts": [{"errors": []}, {"errors": ["a", "b"]}]}),
                "health",
                "degraded: a; b",
            ),
            (
                json!({"event": "session_changed", "reason": "created", "owner": "ci"}),
                "session",
                "created (of ci)",
            ),
            (
                json!({"event": "pairing", "device": "0123456789abcdef", "role": "operator", "request": "r", "waiting": true}),
                "device",
                "0123456789ab as operator waits: clawmux device approve r",
            ),
            (
                json!({"event": "pairing", "device": "d", "role": "node", "request": "r", "approved": false}),
                "device",
                "d as node: rejected",
            ),
            (
                json!({"event": "approval", "approval": "a", "tool": "rm", "deadline_ms": 0}),
                "approval",
                "rm waits for 0s: clawmux approval approve a",
            ),
            (
                json!({"event": "approval", "approval": "a", "tool": "rm", "decision": "timed_out", "by": null}),
                "approval",
                "rm timed out [a]",
            ),
            (
                json!({"event": "job", "job": "j", "what": "finished", "state": "error", "why": "away", "next_ms": 0}),
                "job",
                "j finished, error: away; next at 1970-01-01 00:00:00 UTC",
            ),
            (
                json!({"event": "catalog", "agents": ["main"], "models": ["a/b"]}),
                "models",
                "agents: main; models: a/b",
            ),
            (json!({"event": "new thing"}), "new thing", r#"{"event":"new thing"}"#),
        ] {
            assert_eq!((what(&event), said(&event).as_str()), (what_it_is, sentence));
        }
    }
}
