//! `calc`: a tool that calculates exactly, with whole numbers and fractions of any size.
//!
//! It needs nothing of the host. How far it goes is bounded by the size of numbers, so that no expression
//! takes more than the fuel of a call.

mod expression;

use extism_pdk::{FnResult, plugin_fn};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    expression: String,
    #[serde(default)]
    digits: Option<usize>,
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
    Ok(r#"{"name":"calc","description":"Calculates exactly, with whole numbers, decimals and fractions of any size: + - * / % ^ ( ) and abs, floor, ceil, round, min, max, gcd, lcm, sqrt of perfect squares. Use it for every calculation that must be right.","input_schema":{"type":"object","properties":{"expression":{"type":"string","minLength":1,"maxLength":4000,"description":"Such as (1/3 + 0.25) * 2^100."},"digits":{"type":"integer","minimum":0,"maximum":1000,"description":"Decimal places to round to; without it the result is exact, as a fraction where it needs to be."}},"required":["expression"],"additionalProperties":false}}"#)
}

/// Answers with the value of its `expression`.
#[plugin_fn]
pub fn handle_tool_call(input: String) -> FnResult<String> {
    let value = serde_json::from_str::<Input>(&input)
        .map_err(|error| error.to_string())
        .and_then(|input| expression::calculate(&input.expression, input.digits));
    let output = match value {
        Ok(content) => Output { content, is_error: false },
        Err(why) => Output { content: format!("calc: {why}"), is_error: true },
    };
    Ok(serde_json::to_string(&output)?)
}
