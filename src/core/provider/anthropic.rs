//! Anthropic Messages, streaming.
//!
//! Source: the Messages API reference and its page on streaming (`anthropic-version: 2023-06-01`). The
//! system prompt goes to the top level, never into a message; all results of an answer's tool calls
//! are one user message, before any text; empty text blocks, which the API refuses, are left out.
//! Thinking and server-side tools are not asked for, and what comes of them is read over.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decoder::Progress;
use super::json::Text;
use super::sse::Event;
use super::{ChatMessage, ChatRequest, Delta, Failure, Stop};
use crate::auth::Secret;
use crate::error::{Error, ErrorCode};
use crate::event::{ToolCall, Usage};
use crate::ids::{CallId, PluginName};

/// The version of the API this module speaks.
const VERSION: &str = "2023-06-01";

/// The most tool calls of one answer that may be under way at once.
const OPEN_CALLS_MAX: usize = 128;

/// Where requests go. A base URL that ends in `/v1` is taken as well.
pub(super) fn url(base_url: &str) -> String {
    let base = base_url.trim_end_matches('/');
    format!("{}/v1/messages", base.strip_suffix("/v1").unwrap_or(base))
}

pub(super) fn headers(key: Option<&Secret>) -> Vec<(&'static str, Secret)> {
    let mut headers = vec![("anthropic-version", Secret::new(VERSION))];
    if let Some(key) = key {
        headers.push(("x-api-key", key.clone()));
    }
    headers
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    system: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: Cow<'a, Value>,
    },
    ToolResult {
        tool_use_id: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

/// The JSON body of a request.
pub fn encode(request: &ChatRequest) -> Vec<u8> {
    let body = Body {
        model: &request.model,
        max_tokens: request.max_tokens,
        stream: true,
        system: request.system.trim(),
        tools: request
            .tools
            .iter()
            .map(|tool| Tool {
                name: tool.name.as_str(),
                description: &tool.description,
                input_schema: &tool.input_schema,
            })
            .collect(),
        messages: messages(&request.messages),
    };
    serde_json::to_vec(&body).expect("strings and JSON values are serializable")
}

/// The messages with neighbours of one role made one, as the API demands.
fn messages(messages: &[ChatMessage]) -> Vec<Message<'_>> {
    let mut out: Vec<Message<'_>> = Vec::with_capacity(messages.len());
    for message in messages {
        let (role, blocks): (_, Vec<Block<'_>>) = match message {
            ChatMessage::User(text) => ("user", text_block(text).into_iter().collect()),
            ChatMessage::Assistant { text, calls } => {
                let calls = calls.iter().map(|call| Block::ToolUse {
                    id: call.id.as_str(),
                    name: call.name.as_str(),
                    input: super::input_object(&call.input),
                });
                ("assistant", text_block(text).into_iter().chain(calls).collect())
            }
            ChatMessage::ToolResults(results) => {
                let results = results.iter().map(|result| Block::ToolResult {
                    tool_use_id: result.call.as_str(),
                    content: &result.content,
                    is_error: result.is_error,
                });
                ("user", results.collect())
            }
        };
        match out.last_mut() {
            _ if blocks.is_empty() => {}
            Some(last) if last.role == role => last.content.extend(blocks),
            _ => out.push(Message { role, content: blocks }),
        }
    }
    out
}

fn text_block(text: &str) -> Option<Block<'_>> {
    (!text.trim().is_empty()).then_some(Block::Text { text })
}

/// One event of the stream: what of it matters, whatever its type.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default)]
    index: u64,
    #[serde(borrow)]
    delta: Option<WireDelta<'a>>,
    #[serde(borrow)]
    content_block: Option<WireBlock<'a>>,
    message: Option<WireMessage>,
    usage: Option<WireUsage>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct WireDelta<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    partial_json: Option<Text<'a>>,
    #[serde(borrow)]
    stop_reason: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct WireBlock<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    input: Option<Value>,
}

#[derive(Deserialize)]
struct WireMessage {
    usage: Option<WireUsage>,
}

/// Counts are cumulative; what an event does not name is as it was.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct WireUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl WireUsage {
    fn update(&mut self, other: Self) {
        self.input_tokens = other.input_tokens.or(self.input_tokens);
        self.cache_creation_input_tokens =
            other.cache_creation_input_tokens.or(self.cache_creation_input_tokens);
        self.cache_read_input_tokens = other.cache_read_input_tokens.or(self.cache_read_input_tokens);
        self.output_tokens = other.output_tokens.or(self.output_tokens);
    }
}

/// A tool call whose input is still being written.
#[derive(Debug)]
struct OpenCall {
    index: u64,
    id: CallId,
    name: PluginName,
    /// What the block started with: `{}`, or all of the input where nothing follows.
    start: Value,
    written: String,
}

impl OpenCall {
    fn close(self) -> Delta {
        let input = if self.written.is_empty() && self.start.is_object() {
            self.start
        } else {
            super::tool_input(self.written)
        };
        Delta::ToolCall(ToolCall { id: self.id, name: self.name, input })
    }
}

/// What is known of the answer so far.
#[derive(Debug, Default)]
pub(super) struct Answer {
    calls: Vec<OpenCall>,
    any_call: bool,
    usage: Option<WireUsage>,
    stop: Option<Stop>,
}

impl Answer {
    /// Takes one event of the stream.
    pub(super) fn take(
        &mut self,
        event: &Event<'_>,
        deltas: &mut Vec<Delta>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let wire: Wire<'_> = progress.read(event)?;
        match &*wire.kind {
            "content_block_delta" => self.block_delta(wire, deltas, progress)?,
            "content_block_start" => self.block_start(wire, deltas, progress)?,
            "content_block_stop" => {
                if let Some(at) = self.calls.iter().position(|call| call.index == wire.index) {
                    deltas.push(self.calls.remove(at).close());
                }
            }
            "message_start" => self.count(wire.message.and_then(|message| message.usage)),
            "message_delta" => {
                self.count(wire.usage);
                if let Some(reason) = wire.delta.and_then(|delta| delta.stop_reason) {
                    self.stop = Some(stop(&reason.0));
                }
            }
            "message_stop" => {
                deltas.extend(self.calls.drain(..).map(OpenCall::close));
                let otherwise = if self.any_call { Stop::ToolUse } else { Stop::End };
                deltas.push(Delta::Finished { stop: self.stop.unwrap_or(otherwise), usage: self.usage() });
                progress.finished = true;
            }
            "error" => {
                let failure = wire.error.unwrap_or_else(|| Failure::Text("an error without words".into()));
                return Err(super::reported(&progress.provider, &failure));
            }
            // `ping`, and whatever the API adds.
            _ => {}
        }
        Ok(())
    }

    fn block_start(
        &mut self,
        wire: Wire<'_>,
        deltas: &mut Vec<Delta>,
        progress: &Progress,
    ) -> Result<(), Error> {
        let Some(block) = wire.content_block else { return Ok(()) };
        match &*block.kind {
            "text" => push_text(block.text, deltas),
            "tool_use" => {
                if self.calls.len() >= OPEN_CALLS_MAX {
                    return Err(ErrorCode::Provider.error(format!(
                        "{} opened more than {OPEN_CALLS_MAX} tool calls at once",
                        progress.provider
                    )));
                }
                self.any_call = true;
                self.calls.push(OpenCall {
                    index: wire.index,
                    id: CallId::new(&*block.id.unwrap_or_default().0),
                    name: PluginName::new(&*block.name.unwrap_or_default().0),
                    start: block.input.unwrap_or_default(),
                    written: String::new(),
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn block_delta(
        &mut self,
        wire: Wire<'_>,
        deltas: &mut Vec<Delta>,
        progress: &Progress,
    ) -> Result<(), Error> {
        let Some(delta) = wire.delta else { return Ok(()) };
        push_text(delta.text, deltas);
        if let Some(part) = delta.partial_json
            && let Some(call) = self.calls.iter_mut().find(|call| call.index == wire.index)
        {
            super::append(&mut call.written, &part.0, &progress.provider)?;
        }
        Ok(())
    }

    fn count(&mut self, usage: Option<WireUsage>) {
        if let Some(usage) = usage {
            self.usage.get_or_insert_default().update(usage);
        }
    }

    /// Cached tokens were read by the model like any other.
    pub(super) fn usage(&self) -> Option<Usage> {
        let wire = self.usage?;
        let input = [wire.input_tokens, wire.cache_creation_input_tokens, wire.cache_read_input_tokens];
        Some(Usage {
            input_tokens: input.into_iter().flatten().fold(0, u64::saturating_add),
            output_tokens: wire.output_tokens.unwrap_or_default(),
        })
    }
}

fn push_text(text: Option<Text<'_>>, deltas: &mut Vec<Delta>) {
    if let Some(text) = text.filter(|text| !text.0.is_empty()) {
        deltas.push(Delta::Text(text.0.into_owned()));
    }
}

fn stop(reason: &str) -> Stop {
    match reason {
        "tool_use" => Stop::ToolUse,
        "max_tokens" | "model_context_window_exceeded" => Stop::MaxTokens,
        "refusal" => Stop::Refused,
        // end_turn, stop_sequence, pause_turn, and whatever the API adds.
        _ => Stop::End,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, ProviderKind};
    use super::*;
    use crate::event::ToolResult;
    use crate::provider::ToolSpec;
    use crate::provider::tests::{self, Decoded, call, damaged, every_cut, every_split};
    use proptest::prelude::*;
    use serde_json::json;

    /// Text, two tool calls (one without arguments) and what else the documentation shows.
    const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","content":[],"model":"claude","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":472,"cache_creation_input_tokens":100,"cache_read_input_tokens":20,"output_tokens":2}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Okay, İ look"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" up\n\ud83d\ude00 \"it\"."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_01","name":"get_weather","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"location\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":" \"São Paulo\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_02","name":"clock","input":{}}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: something_new
data: {"type":"something_new","delta":{"type":"thinking_delta","thinking":"..."}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"#;

    fn decode(chunks: &[&[u8]]) -> Decoded {
        tests::decode(ProviderKind::Anthropic, chunks)
    }

    #[test]
    fn a_documented_stream_reads_the_same_however_it_is_split() {
        let expected = vec![
            Delta::Text("Okay, İ look".into()),
            Delta::Text(" up\n😀 \"it\".".into()),
            call("toolu_01", "get_weather", json!({"location": "São Paulo"})),
            call("toolu_02", "clock", json!({})),
            Delta::Finished {
                stop: Stop::ToolUse,
                usage: Some(Usage { input_tokens: 592, output_tokens: 89 }),
            },
        ];
        every_split(STREAM, &(expected, Ok(())), decode);
        let crlf = STREAM.replace('\n', "\r\n");
        assert_eq!(decode(&[crlf.as_bytes()]), decode(&[STREAM.as_bytes()]));
    }

    #[test]
    fn a_stream_that_ends_anywhere_before_its_end_was_cut() {
        every_cut(STREAM, r#"{"type":"message_stop"}"#, decode);
    }

    #[test]
    fn what_goes_wrong_within_a_stream_is_named() {
        let start = &STREAM[..STREAM.find("event: ping").unwrap()];
        let overloaded = format!(
            "{start}event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}}}\n\n"
        );
        let error = decode(&[overloaded.as_bytes()]).1.unwrap_err();
        assert_eq!(error.message, "anthropic reported within its answer: overloaded_error: Overloaded");
        let garbled = format!("{start}data: {{{{{{\n\n");
        let error = decode(&[garbled.as_bytes()]).1.unwrap_err();
        assert!(error.message.starts_with("anthropic sent an event that can't be read"), "{error}");
    }

    #[test]
    fn input_that_is_not_json_is_kept_as_text() {
        let stream = STREAM.replace(r#" \"São Paulo\"}"#, "oops");
        let (deltas, _) = decode(&[stream.as_bytes()]);
        assert_eq!(deltas[2], call("toolu_01", "get_weather", json!("{\"location\":oops")));
    }

    #[test]
    fn usage_is_known_before_the_end() {
        let mut decoder = Decoder::new(ProviderKind::Anthropic, "anthropic").unwrap();
        assert_eq!(decoder.usage(), None);
        let start = &STREAM[..STREAM.find("event: ping").unwrap()];
        decoder.push(start.as_bytes(), &mut Vec::new()).unwrap();
        assert_eq!(decoder.usage(), Some(Usage { input_tokens: 592, output_tokens: 2 }));
    }

    #[test]
    fn a_conversation_is_written_as_the_api_demands() {
        let asked = |id: &str, input: Value| ToolCall { id: id.into(), name: "echo".into(), input };
        let result = |id: &str, content: &str, is_error| ToolResult {
            call: id.into(),
            content: content.into(),
            is_error,
        };
        let request = ChatRequest {
            model: "claude".into(),
            system: "Be kind.".into(),
            messages: vec![
                ChatMessage::User("first".into()),
                ChatMessage::User("second".into()),
                ChatMessage::Assistant {
                    text: "I look.".into(),
                    calls: vec![asked("t1", json!({"a": 1})), asked("t2", json!("{broken"))],
                },
                ChatMessage::ToolResults(vec![result("t1", "one", false), result("t2", "", true)]),
                ChatMessage::User("and?".into()),
                ChatMessage::Assistant { text: "  ".into(), calls: vec![] },
            ],
            tools: vec![ToolSpec {
                name: "echo".into(),
                description: "says it".into(),
                input_schema: json!({"type": "object"}),
            }],
            max_tokens: 7,
        };
        let body: Value = serde_json::from_slice(&encode(&request)).unwrap();
        assert_eq!(
            body,
            json!({
                "model": "claude", "max_tokens": 7, "stream": true, "system": "Be kind.",
                "tools": [{"name": "echo", "description": "says it", "input_schema": {"type": "object"}}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]},
                    {"role": "assistant", "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "t1", "name": "echo", "input": {"a": 1}},
                        {"type": "tool_use", "id": "t2", "name": "echo", "input": {"input": "{broken"}},
                    ]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                        {"type": "tool_result", "tool_use_id": "t2", "is_error": true},
                        {"type": "text", "text": "and?"},
                    ]},
                ],
            })
        );
    }

    #[test]
    fn base_urls_with_and_without_a_version() {
        for base in ["http://h", "http://h/", "http://h/v1", "http://h/v1/"] {
            assert_eq!(url(base), "http://h/v1/messages");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in damaged(STREAM)) {
            let _ = decode(&[&bytes]);
        }
    }
}
