//! Results of tools that are longer than the model is shown at once, and the built-in tool `read_result`,
//! by which it reads on.
//!
//! The event log has every result whole. A model is shown the first [`shown_bytes`] of it, the same ones
//! in every request, and where that is not all, what to call for the rest. The handle is the id of the
//! call. Whoever sees no such result is not offered the tool. What is read is what the session still knows: the results of the run under way and of the past
//! turns that the model sees.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::ids::{CallId, PluginName};
use crate::tools::call::{ToolCall, ToolResult, ToolSpec};

/// The name under which models call the tool.
pub const NAME: &str = "read_result";

/// The least that is shown of a result, in bytes, however small the context.
const SHOWN_BYTES_MIN: usize = 1024;

/// The longest id of a call that is looked for, in bytes.
const CALL_BYTES_MAX: usize = 256;

/// How many bytes of a result a model is shown at once: a quarter of its context, estimated.
pub fn shown_bytes(context_tokens: usize) -> usize {
    context_tokens.max(SHOWN_BYTES_MIN)
}

/// The name as that of a tool.
pub fn name() -> PluginName {
    PluginName::from(NAME)
}

/// As a model is told of it.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: name(),
        description:
            "Reads on in the result of an earlier tool call that was too long to be shown whole. The end of \
            what was shown says which call to name and from which byte to go on."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "call": { "type": "string", "description": "The id of the call whose result is read." },
                "from": { "type": "integer", "minimum": 0, "description": "The byte to go on from." },
            },
            "required": ["call", "from"],
        }),
    }
}

/// The result of a call of `tool` as a model is shown it: at most `shown` bytes and a note, where there is
/// more.
pub fn shown<'a>(tool: &PluginName, result: &'a ToolResult, shown: usize) -> Cow<'a, str> {
    // What this tool gave has its note already.
    if result.content.len() <= shown || tool.as_str() == NAME {
        return Cow::Borrowed(&result.content);
    }
    Cow::Owned(part(&result.call, &result.content, 0, shown))
}

/// What a call of `read_result` gives: from the byte asked for, as much as is shown at once. `find` gives the
/// whole result of a call.
pub fn read<'a>(asked: &ToolCall, shown: usize, find: impl FnOnce(&CallId) -> Option<&'a str>) -> ToolResult {
    let read = || {
        let (call, from) = input(&asked.input)?;
        let content = find(&call).ok_or_else(|| {
            format!("there is no result of a call {call} in this conversation any more: call the tool again")
        })?;
        let length = content.len();
        match usize::try_from(from) {
            Ok(from) if from < length => Ok(part(&call, content, content.floor_char_boundary(from), shown)),
            _ => {
                Err(format!("the result of {call} has {length} bytes: there is nothing from byte {from} on"))
            }
        }
    };
    let (content, is_error) = match read() {
        Ok(part) => (part, false),
        Err(why) => (format!("not read: {why}"), true),
    };
    ToolResult { call: asked.id.clone(), content, is_error }
}

fn input(input: &Value) -> Result<(CallId, u64), String> {
    let call = input["call"].as_str().filter(|call| call.len() <= CALL_BYTES_MAX);
    let call = call.ok_or("call: expected the id of a call, a text")?;
    let from = input["from"].as_u64().ok_or("from: expected a number of bytes, 0 or more")?;
    Ok((CallId::new(call), from))
}

/// The bytes from `from` on, with a note of what they are and how to read on.
fn part(call: &CallId, content: &str, from: usize, shown: usize) -> String {
    let length = content.len();
    let to =
        content.floor_char_boundary(from.saturating_add(shown)).max(content.ceil_char_boundary(from + 1));
    let (text, bytes) = (&content[from..to], format!("bytes {from} to {to} of {length}"));
    if to == length {
        return format!("{text}\n[{bytes}, the end]");
    }
    let on = json!({ "call": call.as_str(), "from": to });
    format!("{text}\n[{bytes}; for more call {NAME} with {on}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn result(content: &str) -> ToolResult {
        ToolResult { call: "c1".into(), content: content.into(), is_error: false }
    }

    fn asked(input: Value) -> ToolCall {
        ToolCall { id: "c2".into(), name: NAME.into(), input }
    }

    #[test]
    fn what_is_short_is_shown_as_it_is_and_the_rest_is_read_on() {
        let tool = PluginName::from("fetch");
        assert!(matches!(shown(&tool, &result("12345"), 5), Cow::Borrowed("12345")));
        assert_eq!(
            shown(&tool, &result("123456"), 4),
            r#"1234
[bytes 0 to 4 of 6; for more call read_result with {"call":"c1","from":4}]"#
        );
        let read = |from| read(&asked(json!({ "call": "c1", "from": from })), 4, |_| Some("123456")).content;
        assert_eq!(read(4), "56\n[bytes 4 to 6 of 6, the end]");
        assert_eq!(read(6), "not read: the result of c1 has 6 bytes: there is nothing from byte 6 on");
        assert_eq!(shown(&PluginName::from(NAME), &result("123456"), 4), "123456", "it has its note already");
    }

    #[test]
    fn what_can_not_be_read_is_told() {
        for (input, why) in [
            (json!({}), "not read: call: expected the id of a call, a text"),
            (
                json!({ "call": "x".repeat(257), "from": 0 }),
                "not read: call: expected the id of a call, a text",
            ),
            (json!({ "call": "c1" }), "not read: from: expected a number of bytes, 0 or more"),
            (json!({ "call": "c1", "from": -1 }), "not read: from: expected a number of bytes, 0 or more"),
            (
                json!({ "call": "c9", "from": 0 }),
                "not read: there is no result of a call c9 in this conversation any more: call the tool again",
            ),
        ] {
            let told = read(&asked(input), 4, |call| (call.as_str() == "c1").then_some("123456"));
            assert_eq!((told.content.as_str(), told.is_error), (why, true));
        }
    }

    proptest! {
        /// Whoever reads on as the notes say has read all of it, in pieces that are shown whole.
        #[test]
        fn reading_on_gives_the_whole(content in "[aä語🙂\n\\]]{2,200}", most in 1_usize..40) {
            let whole = result(&content);
            let mut told = shown(&PluginName::from("x"), &whole, most).into_owned();
            let mut text = String::new();
            while let Some((part, note)) = told.clone().rsplit_once("\n[bytes ") {
                prop_assert!(part.len() <= most.max(4));
                text.push_str(part);
                let Some((_, input)) = note.split_once(" with ") else { break };
                let input = serde_json::from_str(input.trim_end_matches(']')).expect("an input");
                told = read(&asked(input), most, |_| Some(&content)).content;
            }
            prop_assert_eq!(if text.is_empty() { told } else { text }, content);
        }

        #[test]
        fn no_input_panics(call in ".{0,300}", from in any::<u64>(), content in ".{0,50}") {
            read(&asked(json!({ "call": call, "from": from })), 4, |_| Some(&content));
        }
    }
}
