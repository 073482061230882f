//! `notes`: a tool that keeps short texts under names.
//!
//! It keeps them in the store `notes` of the host, which is apart for each agent and each owner of
//! sessions: an agent finds again what it has noted in another conversation of the same user, and nobody
//! else does.

use extism_pdk::{FnResult, host_fn, plugin_fn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[host_fn]
extern "ExtismHost" {
    fn store_get(asked: String) -> String;
    fn store_set(asked: String) -> String;
    fn store_list(asked: String) -> String;
}

/// What the model asks.
#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
enum Input {
    /// Keeps a text under a name; what was there before is gone.
    Save { name: String, text: String },
    /// Answers with the text.
    Read { name: String },
    /// Forgets it.
    Delete { name: String },
    /// Answers with the names.
    List {
        #[serde(default)]
        prefix: String,
    },
}

#[derive(Serialize)]
struct Output {
    content: String,
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    is_error: bool,
}

/// What the tool is, for the model.
#[plugin_fn]
pub fn describe() -> FnResult<String> {
    let name = json!({ "type": "string", "minLength": 1, "maxLength": 200, "description": "The note's name." });
    Ok(json!({
        "name": "notes",
        "description": "Keeps short texts under names, beyond this conversation. Save what will be needed \
            again, list the names to see what there is, read a note before relying on it.",
        "input_schema": {
            "type": "object",
            "properties": {
                "action": { "type": "string", "enum": ["save", "read", "delete", "list"] },
                "name": name,
                "text": { "type": "string", "description": "What to save." },
                "prefix": { "type": "string", "description": "List the names that begin so." },
            },
            "required": ["action"],
            "additionalProperties": false,
        },
    })
    .to_string())
}

/// Does what its input says.
#[plugin_fn]
pub fn handle_tool_call(input: String) -> FnResult<String> {
    let output = match serde_json::from_str::<Input>(&input) {
        Ok(input) => act(input)?,
        Err(error) => Output { content: format!("notes: {error}"), is_error: true },
    };
    Ok(serde_json::to_string(&output)?)
}

fn act(input: Input) -> FnResult<Output> {
    let done = |content: String| Output { content, is_error: false };
    Ok(match input {
        Input::Save { name, text } => {
            unsafe { store_set(json!({ "key": name, "value": text }).to_string())? };
            done(format!("saved {name:?}"))
        }
        Input::Read { name } => match stored(&name)? {
            Some(text) => done(text),
            None => Output { content: format!("there is no note {name:?}"), is_error: true },
        },
        Input::Delete { name } => match stored(&name)? {
            Some(_) => {
                unsafe { store_set(json!({ "key": name, "value": null }).to_string())? };
                done(format!("deleted {name:?}"))
            }
            None => Output { content: format!("there is no note {name:?}"), is_error: true },
        },
        Input::List { prefix } => {
            let listed = unsafe { store_list(json!({ "prefix": prefix }).to_string())? };
            let Listed { keys, more } = serde_json::from_str(&listed)?;
            let mut lines = keys;
            if more {
                lines.push("(there are more: list them by prefix)".into());
            }
            done(if lines.is_empty() { "there are no notes".into() } else { lines.join("\n") })
        }
    })
}

#[derive(Deserialize)]
struct Listed {
    keys: Vec<String>,
    more: bool,
}

fn stored(name: &str) -> FnResult<Option<String>> {
    let found: Value = serde_json::from_str(&unsafe { store_get(json!({ "key": name }).to_string())? })?;
    Ok(found["value"].as_str().map(Into::into))
}
