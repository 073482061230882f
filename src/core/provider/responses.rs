//! OpenAI's Responses API, streaming, as OpenAI and the servers that imitate it speak it.
//!
//! Source: the Responses API reference and its guides on streaming, function calling, images and reasoning.
//! Nothing is kept at the provider (`store: false`): every request carries the whole conversation, and what
//! the model thought goes back with the results of its tools as it came, encrypted, in front of what it led
//! to. A thought that led to nothing stays out, since the API refuses it.
//!
//! Models that think do so unasked, so encrypted thoughts are asked of those that are known to; others refuse
//! even the question. A summary of what they think is only asked for where thinking is.
//!
//! Tolerated of imitators: items that come whole, without the events that lead to them, or whose end is not
//! told; an error with or without its envelope; `[DONE]`. Not tolerated: a stream without `response.completed`,
//! `response.incomplete` or `response.failed`, which can't be told from one that was cut.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decoder::Progress;
use super::failure::Failure;
use super::json::{Text, if_readable};
use super::openai::{DataUrl, effort};
use super::sse::Event;
use super::{ChatMessage, ChatRequest, Delta, Part, Stop, parts, version};
use crate::error::{Error, ErrorCode};
use crate::ids::{CallId, PluginName};
use crate::prompt::attachment::Attachment;
use crate::prompt::thinking::Thinking;
use crate::provider::thought::{SignatureData, Thought};
use crate::provider::usage::Usage;
use crate::tools::call::{ToolCall, ToolSpec};

/// The most tool calls of one answer.
const CALLS_MAX: usize = 128;

/// The least output that the API lets ask for, in tokens.
const OUTPUT_TOKENS_MIN: u32 = 16;

/// What stands between two parts of what is thought.
const PART_END: &str = "\n\n";

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    store: bool,
    max_output_tokens: u32,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    include: &'static [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    input: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Reasoning {
    effort: &'static str,
    summary: &'static str,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    /// Not written, the API would make every argument a required one.
    strict: bool,
}

impl<'a> From<&'a ToolSpec> for Tool<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        let (name, description) = (tool.name.as_str(), tool.description.as_str());
        Self { kind: "function", name, description, parameters: &tool.input_schema, strict: false }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        role: &'static str,
        content: Content<'a>,
    },
    Reasoning {
        #[serde(skip_serializing_if = "str::is_empty")]
        id: &'a str,
        summary: Vec<Summary<'a>>,
        encrypted_content: &'a str,
    },
    FunctionCall {
        call_id: &'a str,
        name: &'a str,
        arguments: String,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: Cow<'a, str>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Summary<'a> {
    SummaryText { text: &'a str },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<ContentPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentPart<'a> {
    InputText { text: Cow<'a, str> },
    InputImage { image_url: DataUrl<'a>, detail: &'static str },
}

/// The JSON body of a request.
pub fn encode(request: &ChatRequest) -> Vec<u8> {
    let mut input = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        match message {
            ChatMessage::User { notes, text, attachments } => {
                input.push(Item::Message { role: "user", content: content(notes, text, attachments) });
            }
            ChatMessage::Assistant { text, calls, thoughts } => {
                said(text, thoughts, !calls.is_empty(), &mut input);
                input.extend(calls.iter().map(|call| Item::FunctionCall {
                    call_id: call.id.as_str(),
                    name: call.name.as_str(),
                    arguments: super::input_object(&call.input).to_string(),
                }));
            }
            ChatMessage::ToolResults(results) => {
                input.extend(results.iter().map(|result| Item::FunctionCallOutput {
                    call_id: result.call.as_str(),
                    output: super::tool_output(result),
                }));
            }
        }
    }
    let thinks = request.thinking != Thinking::Off || thinks_unasked(&request.model);
    let body = Body {
        model: &request.model,
        stream: true,
        store: false,
        max_output_tokens: request.max_tokens.max(OUTPUT_TOKENS_MIN),
        include: if thinks { &["reasoning.encrypted_content"] } else { &[] },
        reasoning: effort(&request.model, request.thinking)
            .map(|effort| Reasoning { effort, summary: "auto" }),
        instructions: request.system.trim(),
        tools: request.tools.iter().map(Tool::from).collect(),
        input,
    };
    serde_json::to_vec(&body).expect("strings and JSON values are serializable")
}

/// Whether a model is known to think: `gpt-5` and later but for those that chat, `o1` and later.
fn thinks_unasked(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or_default();
    let is_o = name.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_o || (version(name, "gpt") >= Some((5, 0)) && !name.contains("-chat"))
}

/// What a user said, with what was brought along.
fn content<'a>(notes: &'a str, text: &'a str, attachments: &'a [Attachment]) -> Content<'a> {
    if attachments.is_empty() && notes.is_empty() {
        return Content::Text(text.into());
    }
    let parts = parts(notes, text, attachments).into_iter().map(|part| match part {
        Part::Text(text) => ContentPart::InputText { text },
        Part::Image(image, data) => {
            ContentPart::InputImage { image_url: DataUrl(image.media_type(), data), detail: "auto" }
        }
    });
    Content::Parts(parts.collect())
}

/// Text with the thoughts where they were. One that nothing follows is left out.
fn said<'a>(text: &'a str, thoughts: &'a [Thought], has_calls: bool, input: &mut Vec<Item<'a>>) {
    let message = |text: &'a str| Item::Message { role: "assistant", content: Content::Text(text.into()) };
    let mut rest = text;
    for thought in thoughts {
        let SignatureData::Encrypted { id, content } = &thought.proof else { continue };
        let before = rest.floor_char_boundary(thought.at.saturating_sub(text.len() - rest.len()));
        let (said, after) = rest.split_at(before);
        rest = after;
        if !said.trim().is_empty() {
            input.push(message(said));
        }
        if has_calls || !rest.trim().is_empty() {
            let summary = thought.text.trim();
            let summary = (!summary.is_empty()).then_some(Summary::SummaryText { text: summary });
            let summary = summary.into_iter().collect();
            input.push(Item::Reasoning { id, summary, encrypted_content: content });
        }
    }
    if !rest.trim().is_empty() {
        input.push(message(rest));
    }
}

/// One event of the stream: what of it matters, whatever its type.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default)]
    output_index: u64,
    #[serde(default)]
    summary_index: u64,
    #[serde(borrow)]
    delta: Option<Text<'a>>,
    #[serde(borrow)]
    arguments: Option<Text<'a>>,
    #[serde(borrow)]
    item: Option<WireItem<'a>>,
    response: Option<WireResponse>,
    error: Option<Failure>,
}

/// An item of the answer; its content and its summary are of interest only where they come at once.
#[derive(Deserialize)]
struct WireItem<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    call_id: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    arguments: Option<Text<'a>>,
    #[serde(borrow)]
    encrypted_content: Option<Text<'a>>,
    #[serde(borrow)]
    content: Option<Vec<WirePart<'a>>>,
    #[serde(borrow)]
    summary: Option<Vec<WirePart<'a>>>,
}

#[derive(Deserialize)]
struct WirePart<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    refusal: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct WireResponse {
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<WireUsage>,
    error: Option<Failure>,
    incomplete_details: Option<Incomplete>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
struct WireUsage {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    input_tokens_details: Option<InputDetails>,
}

#[derive(Clone, Copy, Deserialize)]
struct InputDetails {
    cached_tokens: Option<u64>,
}

/// A tool call as far as it was sent.
#[derive(Debug)]
struct OpenCall {
    index: u64,
    id: String,
    name: String,
    arguments: String,
}

/// What is known of the answer so far.
#[derive(Debug, Default)]
pub(super) struct Answer {
    calls: Vec<OpenCall>,
    any_call: bool,
    refused: bool,
    /// The last item of which a piece came: the whole of it says nothing new.
    pieces_of: Option<u64>,
    usage: Option<Usage>,
}

impl Answer {
    /// What the wire said so far of the tokens used.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Takes one event of the stream.
    pub(super) fn take(
        &mut self,
        event: &Event<'_>,
        deltas: &mut Vec<Delta>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        if event.data == "[DONE]" {
            return Ok(());
        }
        let wire: Wire<'_> = progress.read(event)?;
        match &*wire.kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.refused |= wire.kind.contains("refusal");
                self.pieces_of = Some(wire.output_index);
                push(wire.delta, Delta::Text, deltas);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.pieces_of = Some(wire.output_index);
                push(wire.delta, Delta::Thinking, deltas);
            }
            "response.reasoning_summary_part.added" if wire.summary_index > 0 => {
                deltas.push(Delta::Thinking(PART_END.to_owned()));
            }
            "response.output_item.added" => self.item_began(wire, progress)?,
            "response.function_call_arguments.delta" => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.index == wire.output_index)
                    && let Some(part) = wire.delta
                {
                    progress.append(&mut call.arguments, &part.0)?;
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.index == wire.output_index)
                    && let Some(all) = wire.arguments
                {
                    call.arguments = all.0.into_owned();
                }
            }
            "response.output_item.done" => self.item_ended(wire, deltas, progress)?,
            "response.completed" | "response.incomplete" => {
                let response = wire.response;
                let reason = response.as_ref().and_then(|response| response.incomplete_details.as_ref());
                let reason = reason.and_then(|details| details.reason.as_deref());
                let is_incomplete = wire.kind == "response.incomplete";
                let stop = match reason {
                    Some("content_filter") => Stop::Filtered,
                    // `max_output_tokens`, and whatever the API adds.
                    _ if is_incomplete => Stop::MaxTokens,
                    _ if self.any_call => Stop::ToolUse,
                    _ if self.refused => Stop::Refused,
                    _ => Stop::End,
                };
                self.count(response.and_then(|response| response.usage));
                deltas.extend(self.calls.drain(..).map(OpenCall::close));
                deltas.push(Delta::Finished { stop, usage: self.usage });
                progress.finished = true;
            }
            "response.failed" => {
                let mut response = wire.response;
                self.count(response.as_ref().and_then(|response| response.usage));
                let failure = response.take().and_then(|response| response.error).or(wire.error);
                let failure = failure.unwrap_or_else(|| Failure::of_text("a failure without words"));
                return Err(progress.reported(&failure));
            }
            "error" => {
                let failure = wire.error.unwrap_or_else(|| Failure::of_text(&event.data));
                return Err(progress.reported(&failure));
            }
            // What repeats what was said, what tells of a server's own tools, and whatever the API adds.
            _ => {}
        }
        Ok(())
    }

    fn item_began(&mut self, wire: Wire<'_>, progress: &Progress) -> Result<(), Error> {
        let Some(item) = wire.item.filter(|item| item.kind == "function_call") else { return Ok(()) };
        if self.calls.len() >= CALLS_MAX {
            return Err(ErrorCode::Provider
                .error(format!("{} made more than {CALLS_MAX} tool calls at once", progress.provider)));
        }
        self.any_call = true;
        self.calls.push(OpenCall {
            index: wire.output_index,
            id: owned(item.call_id.or(item.id)),
            name: owned(item.name),
            arguments: owned(item.arguments),
        });
        Ok(())
    }

    fn item_ended(
        &mut self,
        wire: Wire<'_>,
        deltas: &mut Vec<Delta>,
        progress: &Progress,
    ) -> Result<(), Error> {
        let (index, is_new) = (wire.output_index, self.pieces_of != Some(wire.output_index));
        match wire.item {
            Some(item) if item.kind == "reasoning" => {
                if is_new {
                    // Either what may be told of the thought, or the thought itself.
                    let parts = item.summary.filter(|parts| !parts.is_empty()).or(item.content);
                    let parts: Vec<String> =
                        parts.unwrap_or_default().into_iter().map(|part| owned(part.text)).collect();
                    push(Some(Text(parts.join(PART_END).into())), Delta::Thinking, deltas);
                }
                if let Some(content) = item.encrypted_content.filter(|content| !content.0.is_empty()) {
                    let (id, content) = (owned(item.id), content.0.into_owned());
                    deltas.push(Delta::Sealed(SignatureData::Encrypted { id, content }));
                }
            }
            Some(item) if item.kind == "message" && is_new => {
                for part in item.content.unwrap_or_default() {
                    self.refused |= part.refusal.is_some();
                    push(part.text.or(part.refusal), Delta::Text, deltas);
                }
            }
            Some(item) if item.kind == "function_call" => {
                let Some(at) = self.calls.iter().position(|call| call.index == index) else {
                    // It came whole.
                    self.item_began(Wire { item: Some(item), ..wire }, progress)?;
                    deltas.extend(self.calls.pop().map(OpenCall::close));
                    return Ok(());
                };
                let mut call = self.calls.remove(at);
                if let Some(all) = item.arguments.filter(|all| !all.0.is_empty()) {
                    call.arguments = all.0.into_owned();
                }
                deltas.push(call.close());
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, usage: Option<WireUsage>) {
        if let Some(usage) = usage {
            let cached = usage.input_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
            let cache_read_tokens = cached.min(usage.input_tokens);
            self.usage =
                Some(Usage { cache_read_tokens, ..Usage::new(usage.input_tokens, usage.output_tokens) });
        }
    }
}

impl OpenCall {
    fn close(self) -> Delta {
        Delta::ToolCall(ToolCall {
            id: CallId::from(self.id),
            name: PluginName::from(self.name),
            input: super::tool_input(self.arguments),
        })
    }
}

fn owned(text: Option<Text<'_>>) -> String {
    text.unwrap_or_default().0.into_owned()
}

fn push(text: Option<Text<'_>>, delta: fn(String) -> Delta, deltas: &mut Vec<Delta>) {
    if let Some(text) = text.filter(|text| !text.0.is_empty()) {
        deltas.push(delta(text.0.into_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::ProviderKind;
    use super::*;
    use crate::provider::fault::Fault;
    use crate::provider::tests::{self, Decoded, call, damaged, echo, every_cut, every_split, file};
    use crate::tools::call::ToolResult;
    use proptest::prelude::*;
    use serde_json::json;

    /// A thought in two parts, text, two tool calls (one whose arguments come in fragments), the usage.
    const STREAM: &str = include_str!("streams/responses.sse");

    fn decode(chunks: &[&[u8]]) -> Decoded {
        tests::decode(ProviderKind::OpenAiResponses, chunks)
    }

    fn decode_events(events: &[Value]) -> Decoded {
        let stream: String = events
            .iter()
            .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()))
            .collect();
        decode(&[stream.as_bytes()])
    }

    fn finished(stop: Stop) -> Delta {
        Delta::Finished { stop, usage: None }
    }

    fn encrypted(id: &str, content: &str) -> SignatureData {
        SignatureData::Encrypted { id: id.into(), content: content.into() }
    }

    #[test]
    fn a_documented_stream_reads_the_same_however_it_is_split() {
        let expected = vec![
            Delta::Thinking("I must İ look".into()),
            Delta::Thinking("\n\n".into()),
            Delta::Thinking("it up".into()),
            Delta::Sealed(encrypted("rs_1", "gAAAA=")),
            Delta::Text("Okay, İ look".into()),
            Delta::Text(" up\n😀.".into()),
            call("call_a", "get_weather", json!({"location": "São Paulo"})),
            call("call_b", "clock", json!({})),
            Delta::Finished {
                stop: Stop::ToolUse,
                usage: Some(Usage { cache_read_tokens: 64, ..Usage::new(82, 117) }),
            },
        ];
        every_split(STREAM, &(expected, Ok(())), decode);
        let crlf = STREAM.replace('\n', "\r\n");
        assert_eq!(decode(&[crlf.as_bytes()]), decode(&[STREAM.as_bytes()]));
    }

    #[test]
    fn a_stream_that_ends_anywhere_before_its_end_was_cut() {
        every_cut(STREAM, "\"total_tokens\":199}}}", decode);
    }

    #[test]
    fn reasons_to_stop() {
        let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "x"});
        let refusal = json!({"type": "response.refusal.delta", "output_index": 0, "delta": "x"});
        let end = |kind: &str, reason: Value| json!({"type": kind, "response": {"incomplete_details": reason, "error": null}});
        for (said, kind, reason, stop) in [
            (&text, "response.completed", json!(null), Stop::End),
            (&refusal, "response.completed", json!(null), Stop::Refused),
            (&text, "response.incomplete", json!({"reason": "max_output_tokens"}), Stop::MaxTokens),
            (&text, "response.incomplete", json!({"reason": "content_filter"}), Stop::Filtered),
            (&text, "response.incomplete", json!(null), Stop::MaxTokens),
        ] {
            let expected = vec![Delta::Text("x".into()), finished(stop)];
            assert_eq!(decode_events(&[said.clone(), end(kind, reason)]), (expected, Ok(())));
        }
    }

    #[test]
    fn imitators_are_understood() {
        let done = |index: u64, item: Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
        let end = json!({"type": "response.completed"});
        let (deltas, result) = decode_events(&[
            done(
                0,
                json!({"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
            ),
            done(1, json!({"type": "message", "content": [{"type": "output_text", "text": "whole"}]})),
            done(
                2,
                json!({"type": "function_call", "id": "fc", "call_id": "a", "name": "echo", "arguments": "{\"n\":1}"}),
            ),
            end.clone(),
        ]);
        let expected = vec![
            Delta::Thinking("hm".into()),
            Delta::Text("whole".into()),
            call("a", "echo", json!({"n": 1})),
            finished(Stop::ToolUse),
        ];
        assert_eq!((deltas, result), (expected, Ok(())));
        // A call whose end is not told, and what is no JSON.
        let begun = json!({"type": "response.output_item.added", "output_index": 3, "item": {"type": "function_call", "call_id": "b", "name": "echo"}});
        let part =
            json!({"type": "response.function_call_arguments.delta", "output_index": 3, "delta": "nope"});
        let (deltas, _) = decode_events(&[begun, part, end]);
        assert_eq!(deltas, [call("b", "echo", json!("nope")), finished(Stop::ToolUse)]);
        let (_, result) = decode(&[b"data: [DONE]\n\n"]);
        assert!(result.unwrap_err().message.contains("no event"));
    }

    #[test]
    fn what_goes_wrong_within_a_stream_is_named() {
        for (event, said, fault) in [
            (
                json!({"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": null}),
                "slow down",
                Fault::RateLimit,
            ),
            (
                json!({"type": "error", "error": {"type": "server_error", "message": "oops"}}),
                "server_error: oops",
                Fault::Server,
            ),
            (
                json!({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "too much"}}}),
                "too much",
                Fault::ContextTooLong,
            ),
            (json!({"type": "response.failed"}), "a failure without words", Fault::Server),
        ] {
            let mut decoder = super::super::Decoder::new(ProviderKind::OpenAiResponses, "p").unwrap();
            let error = decoder.push(format!("data: {event}\n\n").as_bytes(), &mut Vec::new()).unwrap_err();
            assert_eq!(error.message, format!("p reported within its answer: {said}"));
            assert_eq!(decoder.fault(), fault, "{event}");
        }
    }

    fn body_of(request: &ChatRequest) -> Value {
        serde_json::from_slice(&encode(request)).unwrap()
    }

    #[test]
    fn a_conversation_is_written_as_the_api_demands() {
        let thought = |text: &str, at, proof| Thought { text: text.into(), at, proof };
        let messages = vec![
            ChatMessage::user("hi"),
            ChatMessage::Assistant {
                text: "Let me see.".into(),
                calls: vec![ToolCall { id: "a".into(), name: "echo".into(), input: json!({"n": 1}) }],
                thoughts: vec![
                    thought("another's", 0, SignatureData::Signature("s".into())),
                    thought("I see", 0, encrypted("rs_1", "e1")),
                    thought("", 11, encrypted("", "e2")),
                ],
            },
            ChatMessage::ToolResults(vec![ToolResult {
                call: "a".into(),
                content: "no".into(),
                is_error: true,
            }]),
            ChatMessage::Assistant {
                text: "done".into(),
                calls: vec![],
                thoughts: vec![thought("for nothing", 4, encrypted("rs_9", "e9"))],
            },
            ChatMessage::user("thanks"),
        ];
        let mut request = tests::request("gpt-5-mini", messages);
        (request.system, request.tools) = (" Be kind. ".into(), vec![echo()]);
        (request.max_tokens, request.thinking) = (700, Thinking::Medium);
        assert_eq!(
            body_of(&request),
            json!({
                "model": "gpt-5-mini", "stream": true, "store": false, "max_output_tokens": 700,
                "include": ["reasoning.encrypted_content"],
                "reasoning": {"effort": "medium", "summary": "auto"},
                "instructions": "Be kind.",
                "tools": [{"type": "function", "name": "echo", "description": "says it",
                    "parameters": {"type": "object"}, "strict": false}],
                "input": [
                    {"type": "message", "role": "user", "content": "hi"},
                    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I see"}],
                        "encrypted_content": "e1"},
                    {"type": "message", "role": "assistant", "content": "Let me see."},
                    {"type": "reasoning", "summary": [], "encrypted_content": "e2"},
                    {"type": "function_call", "call_id": "a", "name": "echo", "arguments": "{\"n\":1}"},
                    {"type": "function_call_output", "call_id": "a", "output": "error: no"},
                    {"type": "message", "role": "assistant", "content": "done"},
                    {"type": "message", "role": "user", "content": "thanks"},
                ],
            })
        );
        (request.system, request.tools, request.thinking) = (String::new(), vec![], Thinking::Off);
        (request.model, request.max_tokens) = ("gpt-4o".into(), 7);
        let body = body_of(&request);
        for absent in ["instructions", "tools", "reasoning", "include"] {
            assert_eq!(body.get(absent), None, "{absent}");
        }
        assert_eq!(body["max_output_tokens"], 16, "the least that may be asked for");
    }

    #[test]
    fn encrypted_thoughts_are_asked_of_models_that_have_them() {
        for (model, thinks) in [
            ("gpt-5", true),
            ("gpt-5.2-codex", true),
            ("openai/o3-mini", true),
            ("o1", true),
            ("gpt-5-chat-latest", false),
            ("gpt-4.1", false),
            ("gpt-4o", false),
            ("llama3", false),
            ("olmo-3", false),
        ] {
            assert_eq!(thinks_unasked(model), thinks, "{model}");
        }
    }

    #[test]
    fn images_are_parts_and_text_files_are_text() {
        let (image, notes) = (file("a.png", b"\x89PNG\r\n\x1a\n\xff"), file("n.txt", b"notes"));
        let attachments = vec![image, notes];
        let user = ChatMessage::User { notes: "noted".into(), text: "look".into(), attachments };
        let body = body_of(&tests::request("gpt-4o", vec![user]));
        assert_eq!(
            body["input"][0]["content"],
            json!([
                {"type": "input_text", "text": "noted"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgr/", "detail": "auto"},
                {"type": "input_text",
                    "text": "<attachment name=\"n.txt\" type=\"text/plain\">\nnotes\n</attachment>"},
                {"type": "input_text", "text": "look"},
            ])
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in damaged(STREAM)) {
            let _ = decode(&[&bytes]);
        }
    }
}
