//! `echo`: a tool that answers with the text it was given.
//!
//! It needs nothing of the host. It is the smallest guest there can be, a template for others, and
//! the way to see that tools work at all.

use extism_pdk::{FnResult, plugin_fn};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Input {
    text: String,
}

#[derive(Serialize)]
struct Output {
    content: String,
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    is_error: bool,
}

/// What the tool is, for the model.
#[plugin_fn]
pub fn describe() -> FnResult<&'static str> {
    Ok(r#"{"name":"echo","description":"Answers with the text it is given, unchanged.","input_schema":{"type":"object","properties":{"text":{"type":"string","description":"The text to answer with."}},"required":["text"]}}"#)
}

/// Answers with the `text` of its input.
#[plugin_fn]
pub fn handle_tool_call(input: String) -> FnResult<String> {
    let output = match serde_json::from_str::<Input>(&input) {
        Ok(input) => Output { content: input.text, is_error: false },
        Err(error) => Output { content: format!("echo wants {{\"text\": string}}: {error}"), is_error: true },
    };
    Ok(serde_json::to_string(&output)?)
}
