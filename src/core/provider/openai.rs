//! OpenAI chat completions, streaming, as OpenAI and the many servers that imitate it speak them.
//!
//! Source: the chat completions API reference. Tolerated of imitators: a tool call's id and name in
//! every fragment or only in the first, fragments without an index, several calls under one index,
//! no `finish_reason`, no usage, a usage in the last content chunk, content in parts of which some are
//! thoughts, an error without its envelope. Not tolerated: a stream without its `[DONE]`, which can't be
//! told from one that was cut.
//!
//! What servers want otherwise is told by their [`Quirks`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::decoder::Progress;
use super::failure::Failure;
use super::json::{First, Lenient, Text, if_readable};
use super::quirks::{Effort, LengthField, Quirks};
use super::sse::Event;
use super::{Base64, ChatMessage, ChatRequest, Delta, Part, Stop, parts, version};
use crate::access::Secret;
use crate::error::{Error, ErrorCode};
use crate::ids::{CallId, PluginName};
use crate::prompt::attachment::Attachment;
use crate::prompt::thinking::Thinking;
use crate::provider::thought::{SignatureData, Thought};
use crate::provider::usage::Usage;
use crate::tools::call::ToolCall;

/// The most tool calls of one answer.
const CALLS_MAX: usize = 128;

/// What stands in place of the signature of a call that another model made, where signatures are wanted.
const UNSIGNED: &str = "skip_thought_signature_validator";

/// How many letters and digits an id of a tool call has where that matters.
const SHORT_ID_CHARS: usize = 9;

pub(super) fn headers(key: Option<&Secret>) -> Vec<(&'static str, Secret)> {
    key.map(|key| ("authorization", Secret::new(format!("Bearer {}", key.expose())))).into_iter().collect()
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Switch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Reasoning {
    effort: &'static str,
}

#[derive(Serialize)]
struct Switch {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "type", content = "function", rename_all = "snake_case")]
enum Tool<'a> {
    Function { name: &'a str, description: &'a str, parameters: &'a Value },
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Message<'a> {
    System {
        content: &'a str,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "String::is_empty")]
        reasoning_content: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        reasoning: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Cow<'a, str>,
    },
}

/// Text alone is a string, which every server takes; images need parts.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<ContentPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Serialize)]
struct ImageUrl<'a> {
    url: DataUrl<'a>,
}

/// An image within its own address.
pub(super) struct DataUrl<'a>(pub(super) &'static str, pub(super) Base64<'a>);

impl Serialize for DataUrl<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("data:{};base64,{}", self.0, self.1))
    }
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<Extra<'a>>,
}

/// What Google adds to a tool call.
#[derive(Serialize, Deserialize)]
struct Extra<'a> {
    #[serde(borrow)]
    google: Option<Google<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Google<'a> {
    #[serde(borrow)]
    thought_signature: Option<Text<'a>>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: String,
}

/// The JSON body of a request to a server with these quirks.
pub fn encode(request: &ChatRequest, quirks: Quirks) -> Vec<u8> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.trim().is_empty() {
        messages.push(Message::System { content: request.system.trim() });
    }
    for message in &request.messages {
        match message {
            ChatMessage::User { notes, text, attachments } => {
                messages.push(Message::User { content: content(notes, text, attachments) });
            }
            ChatMessage::Assistant { text, calls, .. } if text.is_empty() && calls.is_empty() => {}
            ChatMessage::Assistant { text, calls, thoughts } => {
                let thought = |field: &str| {
                    let bare = thoughts.iter().filter(|thought| thought.proof == SignatureData::Bare);
                    let bare = bare.filter(|_| quirks.thoughts == Some(field));
                    bare.map(|thought| thought.text.as_str()).collect()
                };
                let calls = calls.iter().enumerate().map(|(nth, call)| Call {
                    id: call_id(&call.id, quirks),
                    kind: "function",
                    function: Function {
                        name: call.name.as_str(),
                        arguments: super::input_object(&call.input).to_string(),
                    },
                    extra_content: quirks
                        .signs_calls
                        .then(|| signature(&request.model, thoughts, nth))
                        .flatten(),
                });
                messages.push(Message::Assistant {
                    content: (!text.is_empty()).then_some(text),
                    reasoning_content: thought("reasoning_content"),
                    reasoning: thought("reasoning"),
                    tool_calls: calls.collect(),
                });
            }
            ChatMessage::ToolResults(results) => {
                messages.extend(results.iter().map(|result| Message::Tool {
                    tool_call_id: call_id(&result.call, quirks),
                    content: super::tool_output(result),
                }));
            }
        }
    }
    let of = |length| (quirks.length == length).then_some(request.max_tokens);
    let effort = match quirks.effort {
        Effort::Groq => groq_effort(&request.model, request.thinking),
        _ => effort(&request.model, request.thinking),
    };
    let body = Body {
        model: &request.model,
        stream: true,
        stream_options: quirks.has_stream_options.then_some(StreamOptions { include_usage: true }),
        max_tokens: of(LengthField::MaxTokens),
        max_completion_tokens: of(LengthField::MaxCompletionTokens),
        reasoning_effort: effort.filter(|_| matches!(quirks.effort, Effort::Named | Effort::Groq)),
        reasoning: effort.filter(|_| quirks.effort == Effort::Nested).map(|effort| Reasoning { effort }),
        thinking: effort.filter(|_| quirks.effort == Effort::Switch).map(|_| Switch { kind: "enabled" }),
        tools: request
            .tools
            .iter()
            .map(|tool| Tool::Function {
                name: tool.name.as_str(),
                description: &tool.description,
                parameters: &tool.input_schema,
            })
            .collect(),
        messages,
    };
    serde_json::to_vec(&body).expect("strings and JSON values are serializable")
}

/// What goes back with a call that was thought of. A model that wants signatures is told where there is none:
/// another one made the call.
fn signature<'a>(model: &str, thoughts: &'a [Thought], nth: usize) -> Option<Extra<'a>> {
    let signed = thoughts.iter().find_map(|thought| match &thought.proof {
        SignatureData::OfCall { nth: of, signature } if *of == nth => Some(signature.as_str()),
        _ => None,
    });
    let has_any = || thoughts.iter().any(|thought| matches!(thought.proof, SignatureData::OfCall { .. }));
    // Of calls that are made together only the first is signed.
    let wants_one =
        || nth == 0 && !has_any() && version(model, "gemini").is_none_or(|version| version >= (3, 0));
    let signature = signed.or_else(|| wants_one().then_some(UNSIGNED))?;
    Some(Extra { google: Some(Google { thought_signature: Some(Text(signature.into())) }) })
}

/// The id of a call as the server takes it. Where it must be short, one of letters and digits that stands for it,
/// always the same, unless it is such itself.
fn call_id(id: &CallId, quirks: Quirks) -> Cow<'_, str> {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let id = id.as_str();
    if !quirks.has_short_ids {
        return Cow::Borrowed(id);
    }
    if id.len() == SHORT_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Cow::Borrowed(id);
    }
    // FNV-1a: what a request says of a call must be the same in every request, and on every machine.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let digit = |_| {
        let digit = DIGITS[(hash % 62) as usize];
        hash /= 62;
        char::from(digit)
    };
    Cow::Owned((0..SHORT_ID_CHARS).map(digit).collect())
}

/// What a user said, with what was brought along.
fn content<'a>(notes: &'a str, text: &'a str, attachments: &'a [Attachment]) -> Content<'a> {
    if attachments.is_empty() && notes.is_empty() {
        return Content::Text(text.into());
    }
    let parts = parts(notes, text, attachments);
    if !parts.iter().any(|part| matches!(part, Part::Image(..))) {
        let texts: Vec<Cow<'_, str>> = parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text),
                Part::Image(..) => None,
            })
            .collect();
        return Content::Text(texts.join("\n\n").into());
    }
    let parts = parts.into_iter().map(|part| match part {
        Part::Text(text) => ContentPart::Text { text },
        Part::Image(image, data) => {
            ContentPart::ImageUrl { image_url: ImageUrl { url: DataUrl(image.media_type(), data) } }
        }
    });
    Content::Parts(parts.collect())
}

/// The effort to ask for. What every model that thinks knows, beyond that only where the model's version
/// says that it does.
pub(super) fn effort(model: &str, thinking: Thinking) -> Option<&'static str> {
    let version = version(model, "gpt");
    match thinking {
        Thinking::Off => None,
        Thinking::Minimal if version == Some((5, 0)) => Some("minimal"),
        Thinking::Minimal | Thinking::Low => Some("low"),
        Thinking::Medium => Some("medium"),
        Thinking::Max if version >= Some((5, 2)) => Some("xhigh"),
        Thinking::High | Thinking::Max => Some("high"),
    }
}

/// The same at Groq, where each family of models has values of its own and others know none.
fn groq_effort(model: &str, thinking: Thinking) -> Option<&'static str> {
    if model.contains("gpt-oss") {
        effort(model, thinking)
    } else {
        (model.contains("qwen3") && thinking != Thinking::Off).then_some("default")
    }
}

/// One chunk: what of it matters. There is one for each token, and it is moved as it is read: what is rarely there
/// is boxed.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    choices: First<Choice<'a>>,
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Box<WireUsage>>,
    error: Option<Box<Failure>>,
    /// Of an error without its envelope: `error`, with the words beside it.
    #[serde(borrow)]
    object: Option<Lenient<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<WireDelta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct WireDelta<'a> {
    #[serde(borrow, default)]
    content: Said<'a>,
    /// What it thinks, by either name.
    #[serde(borrow)]
    reasoning_content: Option<Lenient<'a>>,
    #[serde(borrow)]
    reasoning: Option<Lenient<'a>>,
    /// What the model says instead of an answer.
    #[serde(borrow)]
    refusal: Option<Text<'a>>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Fragment<'a>>>,
}

/// Content that is text, or parts of which some are thoughts.
#[derive(Default)]
struct Said<'a> {
    thought: String,
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct WirePart {
    text: Option<String>,
    thinking: Option<Vec<WirePart>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Said<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Reading<'a> {
            type Value = Said<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or its parts")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Said::default())
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Said { text: text.into(), ..Said::default() })
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Said { text: text.to_owned().into(), ..Said::default() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let mut said = Said::default();
                while let Some(part) = parts.next_element::<WirePart>()? {
                    let thought = part.thinking.unwrap_or_default().into_iter();
                    said.thought.extend(thought.filter_map(|part| part.text));
                    said.text.to_mut().push_str(&part.text.unwrap_or_default());
                }
                Ok(said)
            }
        }

        deserializer.deserialize_any(Reading(PhantomData))
    }
}

#[derive(Deserialize)]
struct Fragment<'a> {
    index: Option<u64>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    function: Option<FunctionFragment<'a>>,
    #[serde(borrow)]
    extra_content: Option<Extra<'a>>,
}

#[derive(Default, Deserialize)]
struct FunctionFragment<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    arguments: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    /// OpenAI's place for what was cached, and of most who imitate it.
    #[serde(default)]
    prompt_tokens_details: Value,
    /// DeepSeek's.
    #[serde(default)]
    prompt_cache_hit_tokens: Value,
    /// LiteLLM's, of what a model behind it put into a cache.
    #[serde(default)]
    cache_creation_input_tokens: Value,
}

impl WireUsage {
    /// Here the input is all that the model read. No more of it can have been cached, whatever is said.
    fn usage(&self) -> Usage {
        let cached = self.prompt_tokens_details["cached_tokens"].as_u64();
        let read = cached.or(self.prompt_cache_hit_tokens.as_u64()).unwrap_or(0).min(self.prompt_tokens);
        let written = self.cache_creation_input_tokens.as_u64().unwrap_or(0);
        Usage {
            cache_read_tokens: read,
            cache_write_tokens: written.min(self.prompt_tokens - read),
            ..Usage::new(self.prompt_tokens, self.completion_tokens)
        }
    }
}

/// A tool call as far as it was sent.
#[derive(Debug)]
struct OpenCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    signature: Option<String>,
}

/// What is known of the answer so far.
#[derive(Debug)]
pub(super) struct Answer {
    calls: Vec<OpenCall>,
    /// The name of thoughts that go back.
    thoughts: Option<&'static str>,
    /// Whether it thought by that name.
    wants_thoughts: bool,
    usage: Option<Usage>,
    stop: Option<Stop>,
}

impl Answer {
    /// That of a server with these quirks.
    pub(super) fn new(quirks: Quirks) -> Self {
        let thoughts = quirks.thoughts;
        Self { calls: Vec::new(), thoughts, wants_thoughts: false, usage: None, stop: None }
    }

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
            self.end(deltas);
            progress.finished = true;
            return Ok(());
        }
        let wire: Wire<'_> = progress.read(event)?;
        if let Some(failure) = wire.error {
            return Err(progress.reported(&failure));
        }
        if matches!(&wire.object, Some(Lenient(Some(object))) if object == "error") {
            return Err(progress.reported(&Failure::of_text(&event.data)));
        }
        if let Some(usage) = wire.usage {
            self.usage = Some(usage.usage());
        }
        let Some(choice) = wire.choices.0 else { return Ok(()) };
        if let Some(delta) = choice.delta {
            // Some send both, which are the same.
            let content = delta.reasoning_content.and_then(Lenient::into_text);
            let reasoning = delta.reasoning.and_then(Lenient::into_text);
            self.wants_thoughts |= match self.thoughts {
                Some("reasoning_content") => content.is_some(),
                Some(_) => reasoning.is_some(),
                None => false,
            };
            let Said { thought, text } = delta.content;
            let thought = content.or(reasoning).or(Some(thought).filter(|thought| !thought.is_empty()));
            deltas.extend(thought.map(Delta::Thinking));
            let refusal = delta.refusal.unwrap_or_default().0;
            for text in [text, refusal].into_iter().filter(|text| !text.is_empty()) {
                deltas.push(Delta::Text(text.into_owned()));
            }
            for fragment in delta.tool_calls.unwrap_or_default() {
                self.add(fragment, progress)?;
            }
        }
        if let Some(reason) = choice.finish_reason {
            self.stop = Some(stop(&reason.0));
        }
        Ok(())
    }

    fn add(&mut self, fragment: Fragment<'_>, progress: &mut Progress) -> Result<(), Error> {
        let id = fragment.id.map_or(Cow::Borrowed(""), |id| id.0);
        let function = fragment.function.unwrap_or_default();
        // The last call of this index; without an index the last call. Another id is another call.
        let at = self
            .calls
            .iter()
            .rposition(|call| fragment.index.is_none() || call.index == fragment.index)
            .filter(|at| id.is_empty() || self.calls[*at].id.is_empty() || self.calls[*at].id == id);
        let call = match at {
            Some(at) => &mut self.calls[at],
            None if self.calls.len() >= CALLS_MAX => {
                return Err(ErrorCode::Provider
                    .error(format!("{} made more than {CALLS_MAX} tool calls at once", progress.provider)));
            }
            None => {
                self.calls.push(OpenCall {
                    index: fragment.index,
                    id: String::new(),
                    name: String::new(),
                    arguments: String::new(),
                    signature: None,
                });
                self.calls.last_mut().expect("a call was just pushed")
            }
        };
        if call.id.is_empty() {
            call.id.push_str(&id);
        }
        if call.name.is_empty()
            && let Some(name) = function.name
        {
            call.name.push_str(&name.0);
        }
        let google = fragment.extra_content.and_then(|extra| extra.google);
        if let Some(signature) = google.and_then(|google| google.thought_signature) {
            call.signature = Some(signature.0.into_owned());
        }
        match function.arguments {
            Some(part) => progress.append(&mut call.arguments, &part.0),
            None => Ok(()),
        }
    }

    /// Tool calls are given out here: nothing in the format says earlier that one is complete.
    fn end(&mut self, deltas: &mut Vec<Delta>) {
        let stop = match self.stop {
            None | Some(Stop::End) if !self.calls.is_empty() => Stop::ToolUse,
            stop => stop.unwrap_or(Stop::End),
        };
        if self.wants_thoughts {
            deltas.push(Delta::Sealed(SignatureData::Bare));
        }
        for (at, call) in self.calls.drain(..).enumerate() {
            let signature = call.signature.map(|signature| SignatureData::OfCall { nth: at, signature });
            deltas.extend(signature.map(Delta::Sealed));
            let id = if call.id.is_empty() { format!("call_{at}") } else { call.id };
            deltas.push(Delta::ToolCall(ToolCall {
                id: CallId::from(id),
                name: PluginName::from(call.name),
                input: super::tool_input(call.arguments),
            }));
        }
        deltas.push(Delta::Finished { stop, usage: self.usage });
    }
}

fn stop(reason: &str) -> Stop {
    match reason {
        "tool_calls" | "function_call" => Stop::ToolUse,
        "length" | "model_length" => Stop::MaxTokens,
        "content_filter" => Stop::Filtered,
        // stop, and whatever imitators say.
        _ => Stop::End,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ProviderKind;
    use super::*;
    use crate::provider::tests::{self, Decoded, call, damaged, echo, every_cut, every_split, file};
    use crate::tools::call::ToolResult;
    use proptest::prelude::*;
    use serde_json::json;

    /// Text, two tool calls whose arguments come in fragments, the usage in a chunk of its own.
    const STREAM: &str = include_str!("streams/openai.sse");

    fn decode(chunks: &[&[u8]]) -> Decoded {
        tests::decode(ProviderKind::OpenAi, chunks)
    }

    /// What a stream of these chunks and `[DONE]` gives.
    fn decode_chunks(chunks: &[Value]) -> (Vec<Delta>, Result<(), Error>) {
        let mut stream: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        stream.push_str("data: [DONE]\n\n");
        decode(&[stream.as_bytes()])
    }

    #[test]
    fn a_documented_stream_reads_the_same_however_it_is_split() {
        let expected = vec![
            Delta::Text("Okay, İ look".into()),
            Delta::Text(" up\n😀.".into()),
            call("call_a", "get_weather", json!({"location": "São Paulo"})),
            call("call_b", "clock", json!({})),
            Delta::Finished {
                stop: Stop::ToolUse,
                usage: Some(Usage { cache_read_tokens: 64, ..Usage::new(82, 17) }),
            },
        ];
        every_split(STREAM, &(expected, Ok(())), decode);
        let cr = STREAM.replace('\n', "\r");
        assert_eq!(decode(&[cr.as_bytes()]), decode(&[STREAM.as_bytes()]));
    }

    #[test]
    fn a_stream_that_ends_anywhere_before_its_end_was_cut() {
        every_cut(STREAM, "[DONE]", decode);
    }

    #[test]
    fn reasons_to_stop() {
        for (reason, stop) in [
            (json!("stop"), Stop::End),
            (json!("length"), Stop::MaxTokens),
            (json!("content_filter"), Stop::Filtered),
            (json!(null), Stop::End),
        ] {
            let chunk = json!({"choices": [{"delta": {"content": "x"}, "finish_reason": reason}]});
            let expected = vec![Delta::Text("x".into()), Delta::Finished { stop, usage: None }];
            assert_eq!(decode_chunks(&[chunk]), (expected, Ok(())));
        }
    }

    #[test]
    fn imitators_are_understood() {
        let tools = |calls: Value| json!({"choices": [{"delta": {"tool_calls": calls}}]});
        // Id and name in every fragment.
        let same = |part: &str| {
            tools(json!([{"index": 0, "id": "a", "function": {"name": "echo", "arguments": part}}]))
        };
        let (deltas, _) = decode_chunks(&[same("{\"n\""), same(":1}")]);
        assert_eq!(deltas[0], call("a", "echo", json!({"n": 1})));
        // Two calls under one index; no index at all; no id.
        for index in [json!(0), json!(null)] {
            let one = |id: &str| {
                tools(json!([{"index": index, "id": id, "function": {"name": "echo", "arguments": "{}"}}]))
            };
            let (deltas, _) = decode_chunks(&[one("a"), one("b")]);
            assert_eq!(deltas[..2], [call("a", "echo", json!({})), call("b", "echo", json!({}))]);
        }
        let (deltas, _) =
            decode_chunks(&[tools(json!([{"index": 0, "function": {"name": "echo", "arguments": "nope"}}]))]);
        assert_eq!(deltas[0], call("call_0", "echo", json!("nope")));
        assert!(matches!(deltas[1], Delta::Finished { stop: Stop::ToolUse, .. }));
        // A usage beside content, null for what may be absent.
        let (deltas, _) = decode_chunks(&[json!({
            "choices": [{"delta": {"content": "x", "tool_calls": null}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1}, "error": null,
        })]);
        let usage = Some(Usage::new(3, 1));
        assert_eq!(deltas[1], Delta::Finished { stop: Stop::End, usage });
    }

    #[test]
    fn what_was_cached_is_read_from_every_place_it_is_said() {
        let usage = |usage: Value| {
            let (deltas, _) = decode_chunks(&[json!({
                "choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": usage,
            })]);
            let Some(Delta::Finished { usage: Some(usage), .. }) = deltas.last() else {
                panic!("{deltas:?}")
            };
            (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        };
        for (wire, expected) in [
            (json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}), (9, 4, 0)),
            (json!({"prompt_tokens": 9, "prompt_tokens_details": null}), (9, 0, 0)),
            (json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": null}}), (9, 0, 0)),
            (
                json!({"prompt_tokens": 9, "prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 4}),
                (9, 5, 0),
            ),
            (
                json!({"prompt_tokens": 9, "cache_creation_input_tokens": 6,
                       "prompt_tokens_details": {"cached_tokens": 2}}),
                (9, 2, 6),
            ),
            (json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 99}}), (9, 9, 0)),
        ] {
            assert_eq!(usage(wire.clone()), expected, "{wire}");
        }
    }

    #[test]
    fn what_goes_wrong_within_a_stream_is_named() {
        let (_, result) =
            decode_chunks(&[json!({"error": {"message": "overloaded", "type": "server_error"}})]);
        assert_eq!(
            result.unwrap_err().message,
            "openai reported within its answer: server_error: overloaded"
        );
        let (_, result) = decode_chunks(&[
            json!({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}),
        ]);
        assert_eq!(result.unwrap_err().message, "openai reported within its answer: BadRequestError: no");
        let (_, result) = decode_chunks(&[json!({"error": "out of memory"})]);
        assert_eq!(result.unwrap_err().message, "openai reported within its answer: out of memory");
        let error = decode(&[b"data: hello\n\n"]).1.unwrap_err();
        assert!(error.message.starts_with("openai sent an event that can't be read"), "{error}");
    }

    #[test]
    fn a_conversation_is_written_as_the_api_demands() {
        let result = ToolResult { call: "a".into(), content: "no".into(), is_error: true };
        let messages = vec![
            ChatMessage::user("hi"),
            ChatMessage::Assistant {
                text: String::new(),
                calls: vec![ToolCall { id: "a".into(), name: "echo".into(), input: json!({"n": 1}) }],
                thoughts: vec![],
            },
            ChatMessage::ToolResults(vec![result]),
            ChatMessage::Assistant { text: "done".into(), calls: vec![], thoughts: vec![] },
            ChatMessage::user("thanks"),
        ];
        let mut request = request(messages);
        (request.system, request.tools) = ("Be kind.".into(), vec![echo()]);
        let body: Value = serde_json::from_slice(&encode(&request, Quirks::USUAL)).unwrap();
        assert_eq!(
            body,
            json!({
                "model": "gpt", "max_tokens": 7, "stream": true, "stream_options": {"include_usage": true},
                "tools": [{"type": "function", "function":
                    {"name": "echo", "description": "says it", "parameters": {"type": "object"}}}],
                "messages": [
                    {"role": "system", "content": "Be kind."},
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": null, "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "echo", "arguments": "{\"n\":1}"}}]},
                    {"role": "tool", "tool_call_id": "a", "content": "error: no"},
                    {"role": "assistant", "content": "done"},
                    {"role": "user", "content": "thanks"},
                ],
            })
        );
        request.tools.clear();
        request.system.clear();
        let quirks = Quirks { length: LengthField::MaxCompletionTokens, ..Quirks::USUAL };
        let body: Value = serde_json::from_slice(&encode(&request, quirks)).unwrap();
        assert_eq!((&body["max_completion_tokens"], body.get("max_tokens")), (&json!(7), None));
        assert_eq!((body.get("tools"), &body["messages"][0]["role"]), (None, &json!("user")));
    }

    /// As servers that imitate the format stream what a model thinks.
    const THINKING: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":""}}]}

data: {"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"I must \u0130 look"}}]}

data: {"choices":[{"index":0,"delta":{"reasoning_content":" it up","reasoning":" it up"}}]}

data: {"choices":[{"index":0,"delta":{"content":"Let me see.","reasoning_content":null}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_a","function":{"name":"clock","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}

data: [DONE]

"#;

    #[test]
    fn thoughts_read_the_same_however_they_are_split() {
        let expected = vec![
            Delta::Thinking("I must İ look".into()),
            Delta::Thinking(" it up".into()),
            Delta::Text("Let me see.".into()),
            Delta::Sealed(SignatureData::Bare),
            call("call_a", "clock", json!({})),
            Delta::Finished { stop: Stop::ToolUse, usage: None },
        ];
        every_split(THINKING, &(expected, Ok(())), decode);
        every_cut(THINKING, "[DONE]", decode);
        // By its other name, which is also used for other things.
        let chunk =
            |reasoning: Value| json!({"choices": [{"delta": {"reasoning": reasoning, "content": "x"}}]});
        let (deltas, result) =
            decode_chunks(&[chunk(json!("hm")), chunk(json!({"effort": "low"})), chunk(json!(null))]);
        let text = || Delta::Text("x".into());
        assert_eq!(
            (&deltas[..4], result),
            (&[Delta::Thinking("hm".into()), text(), text(), text()][..], Ok(()))
        );
    }

    fn request(messages: Vec<ChatMessage>) -> ChatRequest {
        tests::request("gpt", messages)
    }

    fn body_of(request: &ChatRequest) -> Value {
        serde_json::from_slice(&encode(request, Quirks::USUAL)).unwrap()
    }

    #[test]
    fn an_effort_is_asked_for_only_where_thinking_is() {
        let effort = |model: &str, thinking| {
            let mut request = request(vec![ChatMessage::user("hi")]);
            (request.model, request.thinking) = (model.into(), thinking);
            body_of(&request).get("reasoning_effort").and_then(Value::as_str).map(str::to_owned)
        };
        for model in ["gpt-4o", "o3", "gpt-5", "deepseek-reasoner", "gpt-oss-120b"] {
            assert_eq!(effort(model, Thinking::Off), None);
            assert_eq!(effort(model, Thinking::Medium).as_deref(), Some("medium"));
            assert_eq!(effort(model, Thinking::Max).as_deref(), Some("high"));
        }
        assert_eq!(effort("o3", Thinking::Minimal).as_deref(), Some("low"));
        assert_eq!(effort("gpt-5-mini", Thinking::Minimal).as_deref(), Some("minimal"));
        assert_eq!(effort("openai/gpt-5.2-pro", Thinking::Max).as_deref(), Some("xhigh"));
    }

    #[test]
    fn a_thought_goes_back_to_those_who_want_it() {
        let thought = |text: &str, proof| Thought { text: text.into(), at: 0, proof };
        let said = |thoughts| ChatMessage::Assistant { text: "x".into(), calls: vec![], thoughts };
        let body = body_of(&request(vec![
            said(vec![thought("mine", SignatureData::Bare)]),
            said(vec![thought("another's", SignatureData::Signature("s".into()))]),
        ]));
        assert_eq!(
            body["messages"],
            json!([
                {"role": "assistant", "content": "x", "reasoning_content": "mine"},
                {"role": "assistant", "content": "x"},
            ])
        );
    }

    #[test]
    fn images_are_parts_and_text_files_are_text() {
        let (image, notes) = (file("a.png", b"\x89PNG\r\n\x1a\n\xff"), file("n.txt", b"notes"));
        let user = |notes: &str, attachments| ChatMessage::User {
            notes: notes.into(),
            text: "look".into(),
            attachments,
        };
        let said =
            vec![user("", vec![image.clone(), notes.clone()]), user("", vec![notes]), user("noted", vec![])];
        let body = body_of(&request(said));
        let shown = "<attachment name=\"n.txt\" type=\"text/plain\">\nnotes\n</attachment>";
        assert_eq!(
            body["messages"],
            json!([
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgr/"}},
                    {"type": "text", "text": shown},
                    {"type": "text", "text": "look"},
                ]},
                {"role": "user", "content": format!("{shown}\n\nlook")},
                {"role": "user", "content": "noted\n\nlook"},
            ])
        );
    }

    #[test]
    fn each_service_is_asked_as_it_wants_to_be() {
        let signed = Thought {
            text: String::new(),
            at: 0,
            proof: SignatureData::OfCall { nth: 1, signature: "sig".into() },
        };
        let bare = Thought { text: "hm".into(), at: 0, proof: SignatureData::Bare };
        let call = |id: &str| ToolCall { id: id.into(), name: "echo".into(), input: json!({}) };
        let result = |id: &str| ToolResult { call: id.into(), content: "r".into(), is_error: false };
        let mut request = request(vec![
            ChatMessage::user("hi"),
            ChatMessage::Assistant {
                text: String::new(),
                calls: vec![call("call_1"), call("abcDEF123")],
                thoughts: vec![signed, bare],
            },
            ChatMessage::ToolResults(vec![result("call_1"), result("abcDEF123")]),
        ]);
        request.thinking = Thinking::Low;
        let body = |request: &ChatRequest, kind: ProviderKind| -> Value {
            serde_json::from_slice(&encode(request, kind.preset().quirks)).unwrap()
        };

        let mistral = body(&request, ProviderKind::Mistral);
        for unknown in ["stream_options", "reasoning_effort", "max_completion_tokens"] {
            assert_eq!(mistral.get(unknown), None, "{mistral}");
        }
        let [said, first, second] = [1, 2, 3].map(|at| &mistral["messages"][at]);
        let id = said["tool_calls"][0]["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!((&first["tool_call_id"], &second["tool_call_id"]), (&json!(id), &json!("abcDEF123")));
        assert_eq!((said.get("reasoning_content"), said.get("reasoning")), (None, None));
        assert_eq!(body(&request, ProviderKind::Mistral), mistral, "always the same");

        let router = body(&request, ProviderKind::OpenRouter);
        assert_eq!((&router["reasoning"], router.get("reasoning_effort")), (&json!({"effort": "low"}), None));
        let deepseek = body(&request, ProviderKind::DeepSeek);
        assert_eq!(deepseek["thinking"], json!({"type": "enabled"}));
        assert_eq!(deepseek["messages"][1]["reasoning_content"], "hm");
        assert_eq!(body(&request, ProviderKind::Ollama)["messages"][1]["reasoning"], "hm");

        let calls =
            |request: &ChatRequest| body(request, ProviderKind::Gemini)["messages"][1]["tool_calls"].clone();
        let signature = |signature: &str| json!({"google": {"thought_signature": signature}});
        assert_eq!(calls(&request)[1]["extra_content"], signature("sig"));
        assert_eq!(calls(&request)[0].get("extra_content"), None);
        let ChatMessage::Assistant { thoughts, .. } = &mut request.messages[1] else { panic!() };
        thoughts.clear();
        assert_eq!(calls(&request)[0]["extra_content"], signature(UNSIGNED), "another model made the call");
        request.model = "gemini-2.5-flash".into();
        assert_eq!(calls(&request)[0].get("extra_content"), None);

        for (model, effort) in [
            ("openai/gpt-oss-120b", json!("low")),
            ("qwen/qwen3-32b", json!("default")),
            ("llama-3.3", json!(null)),
        ] {
            request.model = model.into();
            let groq = body(&request, ProviderKind::Groq);
            assert_eq!(
                (&groq["reasoning_effort"], &groq["max_completion_tokens"]),
                (&effort, &json!(7)),
                "{model}"
            );
        }
    }

    #[test]
    fn what_services_add_is_understood() {
        let decode = |kind: ProviderKind, deltas: &[Value]| {
            let chunks =
                deltas.iter().map(|delta| format!("data: {}\n\n", json!({"choices": [{"delta": delta}]})));
            let stream: String = chunks.chain(["data: [DONE]\n\n".to_owned()]).collect();
            let (mut deltas, result) = tests::decode(kind, &[stream.as_bytes()]);
            assert_eq!(result, Ok(()));
            deltas.pop();
            deltas
        };
        // Content in parts, of which some are thoughts.
        let thought =
            json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]});
        let said =
            json!({"content": [{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [1]}]});
        assert_eq!(
            decode(ProviderKind::Mistral, &[thought, said]),
            [Delta::Thinking("hm".into()), Delta::Text("a".into())]
        );
        // Thoughts go back where the service wants them, by the name it wants them by.
        let thought = json!({"reasoning": "hm"});
        let sealed =
            |kind| decode(kind, std::slice::from_ref(&thought)).contains(&Delta::Sealed(SignatureData::Bare));
        assert!(
            sealed(ProviderKind::Ollama)
                && !sealed(ProviderKind::OpenAi)
                && !sealed(ProviderKind::OpenRouter)
        );
        // A signed call.
        let called = json!({"tool_calls": [{"index": 0, "id": "", "function": {"name": "echo", "arguments": "{}"},
            "extra_content": {"google": {"thought_signature": "sig"}}}]});
        let proof = SignatureData::OfCall { nth: 0, signature: "sig".into() };
        assert_eq!(
            decode(ProviderKind::Gemini, &[called]),
            [Delta::Sealed(proof), call("call_0", "echo", json!({}))]
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop_oneof![damaged(STREAM), damaged(THINKING)]) {
            let _ = decode(&[&bytes]);
        }
    }
}
