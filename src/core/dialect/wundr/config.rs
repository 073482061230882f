//! The configuration: keys as `section.key`, values as they stand in the file or are by default.
//!
//! What is shown is what is stored. What is set is in effect when it is answered; `pending` names the keys
//! whose stored value takes effect with the next start alone. Secrets are never in it: the configuration
//! only names where they are. Who is no operator is shown the sections that concern everybody.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::shape::{Field, NAME, Shape, TEXT, default, optional, required};
use super::{Answered, Call, Request, Turn, Wundr};
use crate::config;
use crate::config::request::{ConfigIssue, ConfigRequest, ConfigSnapshot};
use crate::dialect::json::{clip, put};

/// How many keys may be asked for or set at once.
const KEYS_MAX: usize = 256;

/// The parameters of `config.get`.
pub(super) const ASKED: &[Field] = &[
    optional("keys", Shape::List(&NAME, 0, KEYS_MAX), "only these: `section.key` or a whole section"),
    default(
        "all",
        Shape::Flag,
        "false",
        "all keys with the values they have, rather than what the file says",
    ),
];

/// What `config.get` is answered.
pub(super) const SHOWN: &[Field] = &[
    required("values", Shape::AnyObject, "by key where keys were asked for, else by section"),
    PENDING,
    RESTART,
    required("valid", Shape::Flag, "whether one can run on it"),
    required("issues", ISSUES, "why not"),
    optional("path", NAME, "the file that is changed"),
    optional("hash", NAME, "tells its contents apart"),
];

/// The parameters of `config.set`.
pub(super) const SET: &[Field] = &[
    required(
        "values",
        Shape::AnyObject,
        "by `section.key` or section; null takes away, so that the default holds",
    ),
    default(
        "merge",
        Shape::Flag,
        "true",
        "whether what a section does not name is kept; else it is as it is given here",
    ),
];

/// What `config.set` is answered.
pub(super) const DONE: &[Field] = &[
    required("ok", Shape::Flag, "true: it is in the file"),
    PENDING,
    RESTART,
    required("warnings", ISSUES, "what has no effect or is probably not meant"),
    required("path", NAME, "the file"),
    required("hash", NAME, "tells its contents apart"),
];

const PENDING: Field =
    required("pending", Shape::List(&NAME, 0, usize::MAX), "keys that take effect with the next start");
const RESTART: Field = required("restartRequired", Shape::Flag, "whether there are any");
const ISSUES: Shape = Shape::List(
    &Shape::Object(&[required("path", TEXT, "the key"), required("message", TEXT, "what it is")]),
    0,
    usize::MAX,
);

#[derive(Deserialize)]
struct ConfigParams {
    keys: Option<Vec<String>>,
    all: bool,
}

/// `config.get`
pub(super) fn get(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let ConfigParams { keys, all } = request.read()?;
    let keys = keys.filter(|keys| !keys.is_empty());
    let unknown: Vec<&str> =
        keys.iter().flatten().filter(|key| !config::is_known(key)).map(|key| clip(key)).collect();
    if !unknown.is_empty() {
        return Err(request.invalid(&format!("keys: there is no {}", unknown.join(", "))));
    }
    Call::ask(ConfigRequest::Look, move |_, now, _| shown(&now, keys.as_deref(), all))
}

fn shown(now: &ConfigSnapshot, keys: Option<&[String]>, all: bool) -> Value {
    let values = match keys {
        // What is not set and has no default is left out.
        Some(keys) => {
            let value = |key: &String| Some((key.clone(), config::at(&now.effective, key)?.clone()));
            Value::Object(keys.iter().filter_map(value).collect())
        }
        None if all => now.effective.clone(),
        None if now.file.is_object() => now.file.clone(),
        None => json!({}),
    };
    let mut answer = json!({
        "values": values,
        "pending": now.pending,
        "restartRequired": now.needs_restart,
        "valid": now.complaints.is_empty(),
        "issues": issues(&now.complaints),
    });
    for (name, text) in [("path", &now.path), ("hash", &now.hash)] {
        put(&mut answer, name, Some(text.as_str()).filter(|text| !text.is_empty()));
    }
    answer
}

fn issues(issues: &[ConfigIssue]) -> Value {
    issues.iter().map(|issue| json!({ "path": issue.path, "message": issue.message })).collect()
}

#[derive(Deserialize)]
struct Set {
    values: Map<String, Value>,
    merge: bool,
}

/// `config.set`: all of it or, with every complaint, nothing. The file keeps its comments.
pub(super) fn set(_: &mut Wundr, request: &mut Request<'_>, _: &mut Turn<'_>) -> Answered {
    let Set { values, merge } = request.read()?;
    if values.is_empty() || values.len() > KEYS_MAX {
        return Err(request.invalid(&format!("values: must have 1 to {KEYS_MAX} keys")));
    }
    let values = values.into_iter().collect();
    Call::ask(ConfigRequest::Place { values, merge }, |_, now, _| {
        json!({
            "ok": true,
            "pending": now.pending,
            "restartRequired": now.needs_restart,
            "warnings": issues(&now.warnings),
            "path": now.path,
            "hash": now.hash,
        })
    })
}
