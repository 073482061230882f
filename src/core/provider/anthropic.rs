//! Anthropic Messages, streaming.
//!
//! Source: the Messages API reference and its pages on streaming, vision, extended and adaptive thinking
//! (`anthropic-version: 2023-06-01`). The system prompt goes to the top level, never into a message;
//! all results of an answer's tool calls are one user message, before any text; empty text blocks,
//! which the API refuses, are left out. Server-side tools are not asked for, and what comes of them is
//! read over.
//!
//! Thinking is asked for in one of two ways, by the model's version: up to 4.5 with a number of tokens
//! (at least 1,024, fewer than the output), from 4.6 on with an effort, where the model decides by
//! itself. What the model thought goes back with the results of its tools, block by block as it came,
//! with its signature. Where a turn did not begin with a thought (it was begun by another provider)
//! the first way would be refused, and the model is asked without.
//!
//! What the API keeps in its cache is marked (`cache_control`), in the four places it allows: the end of the
//! tools, of the system prompt, and of the last two messages of the user's side. The later of these two is
//! where the next request finds what this one left in the cache, the earlier where this one finds it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decoder::Progress;
use super::failure::Failure;
use super::json::{Text, if_readable};
use super::sse::Event;
use super::{
    ANSWER_TOKENS_MIN, Base64, ChatMessage, ChatRequest, Delta, Part, Stop, parts, thinking_tokens, version,
};
use crate::access::Secret;
use crate::error::{Error, ErrorCode};
use crate::ids::{CallId, PluginName};
use crate::prompt::thinking::Thinking;
use crate::provider::thought::{SignatureData, Thought};
use crate::provider::usage::Usage;
use crate::tools::call::ToolCall;

/// The version of the API this module speaks.
const VERSION: &str = "2023-06-01";

/// The least a model can be told to think, in tokens.
const BUDGET_TOKENS_MIN: u32 = 1024;

/// The version from which on models decide by themselves how much to think.
const ADAPTIVE_FROM: (u32, u32) = (4, 6);

/// The version from which on they know more than a high effort.
const XHIGH_FROM: (u32, u32) = (4, 7);

/// How many messages' ends are marked for the cache: the API allows four marks in all.
const MARKED_MESSAGES: usize = 2;

/// The role of the user's side, which tool results are of, too.
const USER: &str = "user";

/// The most tool calls of one answer that may be under way at once.
const OPEN_CALLS_MAX: usize = 128;

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
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Think>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<System<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Message<'a>>,
}

#[derive(Clone, Copy, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Think {
    Enabled {
        budget_tokens: u32,
    },
    /// Models that think this way leave out what they thought unless they are asked for it.
    Adaptive {
        display: &'static str,
    },
}

#[derive(Clone, Copy, Serialize)]
struct OutputConfig {
    effort: &'static str,
}

/// A text, which every server takes, unless its end is marked.
#[derive(Serialize)]
#[serde(untagged)]
enum System<'a> {
    Text(&'a str),
    Marked([Block<'a>; 1]),
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheMark>,
}

/// That what comes before the end of this, and this, may be read from the cache the next time.
#[derive(Clone, Copy, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum CacheMark {
    Ephemeral,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
struct Block<'a> {
    #[serde(flatten)]
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheMark>,
}

impl<'a> From<Content<'a>> for Block<'a> {
    fn from(content: Content<'a>) -> Self {
        Self { content, cache_control: None }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Image {
        source: Source<'a>,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
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

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Source<'a> {
    Base64 { media_type: &'static str, data: Base64<'a> },
}

/// The JSON body of a request.
pub fn encode(request: &ChatRequest) -> Vec<u8> {
    let (thinking, output_config) = think(request);
    let mark = request.cache_marks.then_some(CacheMark::Ephemeral);
    let last_tool = request.tools.len().saturating_sub(1);
    let tools = request.tools.iter().enumerate().map(|(at, tool)| Tool {
        name: tool.name.as_str(),
        description: &tool.description,
        input_schema: &tool.input_schema,
        cache_control: mark.filter(|_| at == last_tool),
    });
    let mut messages = messages(&request.messages, thinking.is_some());
    mark_ends(&mut messages, mark);
    let body = Body {
        model: &request.model,
        max_tokens: request.max_tokens,
        stream: true,
        thinking,
        output_config,
        system: system(request.system.trim(), mark),
        tools: tools.collect(),
        messages,
    };
    serde_json::to_vec(&body).expect("strings and JSON values are serializable")
}

fn system(text: &str, mark: Option<CacheMark>) -> Option<System<'_>> {
    let marked = || Content::Text { text: text.into() };
    (!text.is_empty()).then(|| match mark {
        None => System::Text(text),
        Some(_) => System::Marked([Block { content: marked(), cache_control: mark }]),
    })
}

/// Marks the ends of the last messages of the user's side, as many as there may be marks besides those of tools
/// and system prompt.
fn mark_ends(messages: &mut [Message<'_>], mark: Option<CacheMark>) {
    for message in messages.iter_mut().rev().filter(|message| message.role == USER).take(MARKED_MESSAGES) {
        if let Some(last) = message.content.last_mut() {
            last.cache_control = mark;
        }
    }
}

/// How the model is asked to think, if it is.
fn think(request: &ChatRequest) -> (Option<Think>, Option<OutputConfig>) {
    if request.thinking == Thinking::Off {
        return (None, None);
    }
    if let Some(version) = version(&request.model, "claude").filter(|version| *version >= ADAPTIVE_FROM) {
        let effort = match request.thinking {
            Thinking::Off | Thinking::Minimal | Thinking::Low => "low",
            Thinking::Medium => "medium",
            Thinking::Max if version >= XHIGH_FROM => "xhigh",
            Thinking::High | Thinking::Max => "high",
        };
        return (Some(Think::Adaptive { display: "summarized" }), Some(OutputConfig { effort }));
    }
    let room = request.max_tokens.saturating_sub(ANSWER_TOKENS_MIN);
    let budget_tokens = thinking_tokens(request.thinking).min(room);
    let may = budget_tokens >= BUDGET_TOKENS_MIN && began_with_a_thought(&request.messages);
    (may.then_some(Think::Enabled { budget_tokens }), None)
}

/// Whether the turn under way, where the model spoke in it already, began with a thought of this API's.
fn began_with_a_thought(messages: &[ChatMessage]) -> bool {
    let after = messages.iter().rposition(|message| matches!(message, ChatMessage::User { .. }));
    let first = messages.iter().skip(after.map_or(0, |at| at + 1)).find_map(|message| match message {
        ChatMessage::Assistant { thoughts, .. } => Some(thoughts),
        _ => None,
    });
    first.is_none_or(|thoughts| thoughts.first().is_some_and(|thought| thought.at == 0 && is_ours(thought)))
}

fn is_ours(thought: &Thought) -> bool {
    matches!(thought.proof, SignatureData::Signature(_) | SignatureData::Redacted(_))
}

/// The messages with neighbours of one role made one, as the API demands.
fn messages(messages: &[ChatMessage], thinking: bool) -> Vec<Message<'_>> {
    let mut out: Vec<Message<'_>> = Vec::with_capacity(messages.len());
    for message in messages {
        let (role, blocks): (_, Vec<Block<'_>>) = match message {
            ChatMessage::User { notes, text, attachments } => {
                let blocks = parts(notes, text, attachments).into_iter().map(|part| match part {
                    Part::Text(text) => Content::Text { text },
                    Part::Image(image, data) => {
                        Content::Image { source: Source::Base64 { media_type: image.media_type(), data } }
                    }
                });
                (USER, blocks.map(Block::from).collect())
            }
            ChatMessage::Assistant { text, calls, thoughts } => {
                let thoughts = if thinking { thoughts.as_slice() } else { &[] };
                let calls = calls.iter().map(|call| Content::ToolUse {
                    id: call.id.as_str(),
                    name: call.name.as_str(),
                    input: super::input_object(&call.input),
                });
                ("assistant", said(text, thoughts).into_iter().chain(calls).map(Block::from).collect())
            }
            ChatMessage::ToolResults(results) => {
                let results = results.iter().map(|result| Content::ToolResult {
                    tool_use_id: result.call.as_str(),
                    content: &result.content,
                    is_error: result.is_error,
                });
                (USER, results.map(Block::from).collect())
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

/// Text with the thoughts where they were.
fn said<'a>(text: &'a str, thoughts: &'a [Thought]) -> Vec<Content<'a>> {
    let mut blocks = Vec::with_capacity(2 * thoughts.len() + 1);
    let mut rest = text;
    for thought in thoughts.iter().filter(|thought| is_ours(thought)) {
        let before = rest.floor_char_boundary(thought.at.saturating_sub(text.len() - rest.len()));
        let (said, after) = rest.split_at(before);
        rest = after;
        blocks.extend(text_block(said));
        match &thought.proof {
            SignatureData::Signature(signature) => {
                blocks.push(Content::Thinking { thinking: &thought.text, signature });
            }
            SignatureData::Redacted(data) => blocks.push(Content::RedactedThinking { data }),
            SignatureData::Bare | SignatureData::Encrypted { .. } | SignatureData::OfCall { .. } => {}
        }
    }
    blocks.extend(text_block(rest));
    blocks
}

fn text_block(text: &str) -> Option<Content<'_>> {
    (!text.trim().is_empty()).then_some(Content::Text { text: text.into() })
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
    content_block: Option<Box<WireBlock<'a>>>,
    message: Option<Box<WireMessage>>,
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Box<WireUsage>>,
    error: Option<Box<Failure>>,
}

#[derive(Deserialize)]
struct WireDelta<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    thinking: Option<Text<'a>>,
    #[serde(borrow)]
    signature: Option<Text<'a>>,
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
    thinking: Option<Text<'a>>,
    #[serde(borrow)]
    signature: Option<Text<'a>>,
    /// Of a thought that is encrypted.
    #[serde(borrow)]
    data: Option<Text<'a>>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    input: Option<Value>,
}

#[derive(Deserialize)]
struct WireMessage {
    #[serde(default, deserialize_with = "if_readable")]
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
    /// The thought that is being written: its block, and its signature, which comes at its end.
    thought: Option<(u64, String)>,
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
                if let Some((_, signature)) = self.thought.take_if(|(index, _)| *index == wire.index) {
                    deltas.push(Delta::Sealed(SignatureData::Signature(signature)));
                }
                if let Some(at) = self.calls.iter().position(|call| call.index == wire.index) {
                    deltas.push(self.calls.remove(at).close());
                }
            }
            "message_start" => self.count(wire.message.and_then(|message| message.usage)),
            "message_delta" => {
                self.count(wire.usage.map(|usage| *usage));
                if let Some(reason) = wire.delta.and_then(|delta| delta.stop_reason) {
                    self.stop = Some(stop(&reason.0));
                }
            }
            "message_stop" => {
                self.end_thought(deltas);
                deltas.extend(self.calls.drain(..).map(OpenCall::close));
                let otherwise = if self.any_call { Stop::ToolUse } else { Stop::End };
                deltas.push(Delta::Finished { stop: self.stop.unwrap_or(otherwise), usage: self.usage() });
                progress.finished = true;
            }
            "error" => {
                let failure =
                    wire.error.map_or_else(|| Failure::of_text("an error without words"), |failure| *failure);
                return Err(progress.reported(&failure));
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
            "thinking" => {
                self.end_thought(deltas);
                self.thought = Some((wire.index, block.signature.unwrap_or_default().0.into_owned()));
                push_thought(block.thinking, deltas);
            }
            "redacted_thinking" => {
                self.end_thought(deltas);
                let data = block.data.unwrap_or_default().0.into_owned();
                deltas.push(Delta::Sealed(SignatureData::Redacted(data)));
            }
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
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let Some(delta) = wire.delta else { return Ok(()) };
        push_text(delta.text, deltas);
        push_thought(delta.thinking, deltas);
        if let Some(signed) = delta.signature
            && let Some((_, signature)) = self.thought.as_mut().filter(|(index, _)| *index == wire.index)
        {
            *signature = signed.0.into_owned();
        }
        if let Some(part) = delta.partial_json
            && let Some(call) = self.calls.iter_mut().find(|call| call.index == wire.index)
        {
            progress.append(&mut call.written, &part.0)?;
        }
        Ok(())
    }

    /// Ends a thought whose block was not ended when the next one began, or at all.
    fn end_thought(&mut self, deltas: &mut Vec<Delta>) {
        let open =
            self.thought.take().map(|(_, signature)| Delta::Sealed(SignatureData::Signature(signature)));
        deltas.extend(open);
    }

    fn count(&mut self, usage: Option<WireUsage>) {
        if let Some(usage) = usage {
            self.usage.get_or_insert_default().update(usage);
        }
    }

    /// The wire's input is what has nothing to do with the cache: the three together are what the model read.
    pub(super) fn usage(&self) -> Option<Usage> {
        let wire = self.usage?;
        let input = [wire.input_tokens, wire.cache_creation_input_tokens, wire.cache_read_input_tokens];
        Some(Usage {
            input_tokens: input.into_iter().flatten().fold(0, u64::saturating_add),
            output_tokens: wire.output_tokens.unwrap_or_default(),
            cache_read_tokens: wire.cache_read_input_tokens.unwrap_or_default(),
            cache_write_tokens: wire.cache_creation_input_tokens.unwrap_or_default(),
        })
    }
}

fn push_text(text: Option<Text<'_>>, deltas: &mut Vec<Delta>) {
    if let Some(text) = text.filter(|text| !text.0.is_empty()) {
        deltas.push(Delta::Text(text.0.into_owned()));
    }
}

fn push_thought(thought: Option<Text<'_>>, deltas: &mut Vec<Delta>) {
    if let Some(thought) = thought.filter(|thought| !thought.0.is_empty()) {
        deltas.push(Delta::Thinking(thought.0.into_owned()));
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
    use crate::provider::tests::{self, Decoded, call, damaged, echo, every_cut, every_split, file, request};
    use crate::tools::call::ToolResult;
    use proptest::prelude::*;
    use serde_json::json;

    /// Text, two tool calls (one without arguments) and what else the documentation shows.
    const STREAM: &str = include_str!("streams/anthropic.sse");

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
                usage: Some(Usage { cache_read_tokens: 20, cache_write_tokens: 100, ..Usage::new(592, 89) }),
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
        assert_eq!(
            decoder.usage(),
            Some(Usage { cache_read_tokens: 20, cache_write_tokens: 100, ..Usage::new(592, 2) })
        );
    }

    #[test]
    fn a_conversation_is_written_as_the_api_demands() {
        let asked = |id: &str, input: Value| ToolCall { id: id.into(), name: "echo".into(), input };
        let result = |id: &str, content: &str, is_error| ToolResult {
            call: id.into(),
            content: content.into(),
            is_error,
        };
        let messages = vec![
            ChatMessage::user("first"),
            ChatMessage::user("second"),
            ChatMessage::Assistant {
                text: "I look.".into(),
                calls: vec![asked("t1", json!({"a": 1})), asked("t2", json!("{broken"))],
                thoughts: vec![],
            },
            ChatMessage::ToolResults(vec![result("t1", "one", false), result("t2", "", true)]),
            ChatMessage::user("and?"),
            ChatMessage::Assistant { text: "  ".into(), calls: vec![], thoughts: vec![] },
        ];
        let mut request = request("claude", messages);
        (request.system, request.tools) = ("Be kind.".into(), vec![echo()]);
        request.cache_marks = false;
        let body = body_of(&request);
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

    /// Of the documentation's streams with thinking: a signed thought, an encrypted one, a call.
    const THINKING: &str = include_str!("streams/anthropic-thinking.sse");

    const SIGNATURE: &str = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk==";

    #[test]
    fn thoughts_read_the_same_however_they_are_split() {
        let expected = vec![
            Delta::Thinking("I need to find the GCD\nof İ".into()),
            Delta::Thinking(" and 42.".into()),
            Delta::Sealed(SignatureData::Signature(SIGNATURE.into())),
            Delta::Sealed(SignatureData::Redacted("EmwKAhgBEgy3va3pzix".into())),
            Delta::Text("Let me see.".into()),
            call("toolu_01", "gcd", json!({})),
            Delta::Finished { stop: Stop::ToolUse, usage: Some(Usage::new(10, 89)) },
        ];
        every_split(THINKING, &(expected, Ok(())), decode);
        every_cut(THINKING, r#"{"type":"message_stop"}"#, decode);
    }

    #[test]
    fn a_thought_whose_end_is_missing_is_sealed_all_the_same() {
        let stop = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n";
        let signed = Delta::Sealed(SignatureData::Signature(SIGNATURE.into()));
        let (deltas, _) = decode(&[THINKING.replacen(stop, "", 1).as_bytes()]);
        assert_eq!(deltas[2], signed);
        let end = &THINKING[THINKING.find("event: message_stop").unwrap()..];
        let cut = &THINKING[..THINKING.find(stop).unwrap()];
        let (deltas, _) = decode(&[cut.as_bytes(), end.as_bytes()]);
        assert_eq!(deltas[2], signed);
    }

    /// Of llama.cpp's server: it ends no block before the answer is over, and signs with nothing.
    const LLAMA_CPP: &str = include_str!("streams/anthropic-llama-cpp.sse");

    #[test]
    fn a_thought_is_sealed_by_its_index_whatever_came_meanwhile() {
        let expected = vec![
            Delta::Thinking("I see a heron.".into()),
            Delta::Thinking("\n".into()),
            Delta::Text("Let me look.".into()),
            Delta::Text("\n".into()),
            Delta::Sealed(SignatureData::Signature(String::new())),
            call("Nt8j2YKQuJMkguf4DTFsf0UxmM9cpJ0u", "clock", json!({})),
            Delta::Finished { stop: Stop::ToolUse, usage: Some(Usage::new(224, 7)) },
        ];
        every_split(LLAMA_CPP, &(expected, Ok(())), decode);
        every_cut(LLAMA_CPP, r#"{"type":"message_stop"}"#, decode);
    }

    fn body_of(request: &ChatRequest) -> Value {
        serde_json::from_slice(&encode(request)).unwrap()
    }

    fn thinking(model: &str, level: Thinking, max_tokens: u32) -> ChatRequest {
        ChatRequest { max_tokens, thinking: level, ..request(model, vec![ChatMessage::user("hi")]) }
    }

    #[test]
    fn thinking_is_asked_for_as_the_models_version_wants_it() {
        for model in ["claude-sonnet-4-5", "claude-sonnet-4-20250514", "claude-3-7-sonnet-latest", "kimi-k2"]
        {
            let body = body_of(&thinking(model, Thinking::Medium, 8192));
            assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 4096}), "{model}");
            assert_eq!(body.get("output_config"), None);
        }
        for (model, level, effort) in [
            ("claude-opus-4-6", Thinking::Max, "high"),
            ("claude-opus-4.7", Thinking::Max, "xhigh"),
            ("claude-sonnet-4-6-20260101", Thinking::Minimal, "low"),
            ("eu.anthropic.claude-opus-5-v1:0", Thinking::Medium, "medium"),
        ] {
            let body = body_of(&thinking(model, level, 100));
            assert_eq!(body["thinking"], json!({"type": "adaptive", "display": "summarized"}), "{model}");
            assert_eq!(body["output_config"], json!({"effort": effort}), "{model}");
        }
        for model in ["claude-sonnet-4-5", "claude-opus-4-7"] {
            let body = body_of(&thinking(model, Thinking::Off, 8192));
            assert_eq!((body.get("thinking"), body.get("output_config")), (None, None));
        }
    }

    #[test]
    fn the_answer_keeps_room_beside_the_thoughts() {
        let budget = |max| body_of(&thinking("claude-sonnet-4-5", Thinking::High, max))["thinking"].clone();
        assert_eq!(budget(20_000)["budget_tokens"], 8192);
        assert_eq!(budget(4096)["budget_tokens"], 3072);
        assert_eq!(budget(2048)["budget_tokens"], 1024);
        assert_eq!(budget(2047), Value::Null, "what is left of a budget does not hold the least");
    }

    #[test]
    fn thoughts_go_back_where_they_were_with_their_proof() {
        let thought = |text: &str, at, proof| Thought { text: text.into(), at, proof };
        let mut request = thinking("claude-sonnet-4-5", Thinking::Low, 8192);
        let asked = ToolCall { id: "t1".into(), name: "echo".into(), input: json!({}) };
        request.messages.push(ChatMessage::Assistant {
            text: "First. Then.".into(),
            calls: vec![asked.clone()],
            thoughts: vec![
                thought("hm", 0, SignatureData::Signature("sig".into())),
                thought("", 6, SignatureData::Redacted("xyz".into())),
                thought("another provider's", 6, SignatureData::Bare),
                thought("", 99, SignatureData::Signature("end".into())),
            ],
        });
        let result = ToolResult { call: "t1".into(), content: "ok".into(), is_error: false };
        request.messages.push(ChatMessage::ToolResults(vec![result]));
        let body = body_of(&request);
        assert_eq!(body["thinking"]["type"], "enabled");
        let content = json!([
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "text", "text": "First."},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": " Then."},
            {"type": "thinking", "thinking": "", "signature": "end"},
            {"type": "tool_use", "id": "t1", "name": "echo", "input": {}},
        ]);
        assert_eq!(body["messages"][1]["content"], content);

        // A turn that another provider began: it is not asked to think, and shown no thoughts.
        if let ChatMessage::Assistant { thoughts, .. } = &mut request.messages[1] {
            thoughts.remove(0);
        }
        let body = body_of(&request);
        assert_eq!(
            (body.get("thinking"), body["messages"][1]["content"].as_array().unwrap().len()),
            (None, 2)
        );
        request.model = "claude-opus-4-7".into();
        assert_eq!(body_of(&request)["thinking"]["type"], "adaptive", "which need not begin with one");
    }

    #[test]
    fn what_is_brought_along_comes_before_the_words() {
        let mut gone = file("old.gif", b"GIF89a");
        gone.let_go();
        let mut request = thinking("claude", Thinking::Off, 8);
        let attachments = vec![file("a.png", b"\x89PNG\r\n\x1a\n\xff"), gone, file("n.txt", b"notes")];
        request.messages =
            vec![ChatMessage::User { notes: "noted".into(), text: "look".into(), attachments }];
        request.cache_marks = false;
        let body = body_of(&request);
        assert_eq!(
            body["messages"],
            json!([{"role": "user", "content": [
                {"type": "text", "text": "noted"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgr/"}},
                {"type": "text", "text": "[attachment \"old.gif\" (image/gif, 6 bytes), not shown again]"},
                {"type": "text", "text": "<attachment name=\"n.txt\" type=\"text/plain\">\nnotes\n</attachment>"},
                {"type": "text", "text": "look"},
            ]}])
        );
    }

    /// Where a body is marked, in the order of the API's prefix: tools, system, messages.
    fn marks(body: &Value) -> Vec<String> {
        let marked = |of: &Value| of["cache_control"] == json!({"type": "ephemeral"});
        let mut found = Vec::new();
        for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
            found.extend(marked(tool).then(|| format!("tool {at}")));
        }
        for (at, block) in body["system"].as_array().into_iter().flatten().enumerate() {
            found.extend(marked(block).then(|| format!("system {at}")));
        }
        for (at, message) in body["messages"].as_array().unwrap().iter().enumerate() {
            for (block_at, block) in message["content"].as_array().unwrap().iter().enumerate() {
                found.extend(
                    marked(block).then(|| format!("{at}.{block_at} {}", block["type"].as_str().unwrap())),
                );
            }
        }
        found
    }

    #[test]
    fn what_may_be_cached_is_marked_in_four_places_at_most() {
        let asked = ToolCall { id: "t1".into(), name: "echo".into(), input: json!({}) };
        let result = ToolResult { call: "t1".into(), content: "ok".into(), is_error: false };
        let said = |text: &str, calls| ChatMessage::Assistant { text: text.into(), calls, thoughts: vec![] };
        let past = (0..5).flat_map(|n| [ChatMessage::user(format!("q{n}")), said("a", vec![])]);
        let mut request = request("claude", past.chain([ChatMessage::user("now")]).collect());
        assert_eq!(marks(&body_of(&request)), ["8.0 text", "10.0 text"]);
        (request.system, request.tools) = ("Be kind.".into(), vec![echo(), echo()]);
        request.messages.extend([said("", vec![asked]), ChatMessage::ToolResults(vec![result])]);
        let body = body_of(&request);
        assert_eq!(marks(&body), ["tool 1", "system 0", "10.0 text", "12.0 tool_result"]);
        assert_eq!(body["system"][0]["text"], "Be kind.");
        request.cache_marks = false;
        let body = body_of(&request);
        assert_eq!((marks(&body).len(), &body["system"]), (0, &json!("Be kind.")));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop_oneof![damaged(STREAM), damaged(THINKING), damaged(LLAMA_CPP)]) {
            let _ = decode(&[&bytes]);
        }
    }
}
