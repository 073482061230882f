//! The configuration, as the Control UI's form and editors of its text see it.
//!
//! Clients know it as JSON text (`raw`), ours is TOML; what the file says is told as JSON, and JSON
//! comes back. Which keys there are is ours: clients learn them from `config.schema`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answered, Call, OpenClaw, Request};
use crate::config;
use crate::config::request::{ConfigIssue, ConfigRequest, ConfigSnapshot};
use crate::dialect::Turn;
use crate::error::ErrorCode;

/// The text of a file, as JSON.
fn raw(file: &Value) -> Value {
    match file {
        Value::Null => Value::Null,
        file => format!("{file:#}\n").into(),
    }
}

fn issues(issues: &[ConfigIssue]) -> Value {
    issues.iter().map(|issue| json!({ "path": issue.path, "message": issue.message })).collect()
}

fn snapshot(snapshot: &ConfigSnapshot) -> Value {
    json!({
        "path": snapshot.path,
        "exists": snapshot.exists,
        "raw": raw(&snapshot.file),
        "parsed": snapshot.file,
        "valid": snapshot.complaints.is_empty(),
        "config": snapshot.effective,
        "hash": snapshot.hash,
        "issues": issues(&snapshot.complaints),
        "warnings": issues(&snapshot.warnings),
        "legacyIssues": [],
        "restartRequired": snapshot.needs_restart,
    })
}

/// `config.get`.
pub(super) fn config_get(_: &mut OpenClaw, _: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    Call::ask(ConfigRequest::Get, |_, found, _| snapshot(&found))
}

/// `config.set` and `config.apply`: all of it. It is in effect when it is answered, but for what takes a
/// restart, which the answer says.
pub(super) fn config_set(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    set(request, false)
}

/// `config.patch`: what is to change.
pub(super) fn config_patch(_: &mut OpenClaw, request: &Request<'_>, _: &mut Turn<'_>) -> Answered {
    set(request, true)
}

fn set(request: &Request<'_>, is_patch: bool) -> Answered {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Set {
        raw: String,
        base_hash: Option<String>,
    }
    let Set { raw, base_hash } = request.read()?;
    let Some(base_hash) = base_hash.filter(|hash| !hash.is_empty()) else {
        return Err(ErrorCode::InvalidRequest.error("config base hash required; re-run config.get and retry"));
    };
    let asked = serde_json::from_str(&raw)
        .map_err(|why| ErrorCode::InvalidRequest.error(format!("invalid config: it is not JSON: {why}")))?;
    Call::ask(ConfigRequest::Set { asked, is_patch, base_hash }, |_, now, _| {
        let mut payload = snapshot(&now);
        payload["ok"] = true.into();
        if now.needs_restart {
            payload["note"] = "it takes effect when clawmux is restarted".into();
        }
        payload
    })
}

/// `config.schema`.
pub(super) fn config_schema(dialect: &mut OpenClaw, _: &Request<'_>, turn: &mut Turn<'_>) -> Answered {
    let schema = config::schema();
    let hints = schema.hints.iter().map(|hint| {
        // Names such as `max_tokens` and `token_env` sound like secrets; none is ever a value here.
        let mut value = json!({ "order": hint.order, "sensitive": false });
        if !hint.help.is_empty() {
            value["help"] = hint.help.as_str().into();
        }
        (hint.path.clone(), value)
    });
    Ok(Call::Answer(json!({
        "schema": schema.json,
        "uiHints": hints.collect::<serde_json::Map<_, _>>(),
        "version": &*dialect.setup.version,
        "generatedAt": turn.now().to_rfc3339(),
    })))
}
