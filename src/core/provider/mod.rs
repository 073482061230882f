//! Wire formats of model providers, as pure encoders and decoders.
//!
//! A request goes out as the bytes of a JSON body; what comes back goes, chunk by chunk and split
//! anywhere, into a decoder that yields [`Delta`]s.

pub mod budget;
pub mod meter;

pub mod address;
pub mod anthropic;
pub mod breaker;
mod decoder;
mod described;
pub mod embeddings;
pub mod facts;
mod failure;
pub mod fault;
pub mod format;
mod json;
pub mod kind;
pub mod listing;
mod misfit;
pub mod model;
pub mod notice;
pub mod offline;
pub mod openai;
mod page;
pub mod prefix;
pub mod price;
pub mod proxy;
pub mod queue;
pub mod quirks;
pub mod reduce;
pub mod responses;
pub mod retry;
pub mod sse;
pub mod tally;
pub mod thought;
pub mod usage;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::Value;

pub use decoder::Decoder;
pub use failure::{hide, http_error, quote};
pub use kind::ProviderKind;
pub use misfit::{misdirected, not_a_stream};

use crate::access::Secret;
use crate::error::{Error, ErrorCode};
use crate::prompt::attachment::{Attachment, ImageType, Kind};
use crate::prompt::thinking::Thinking;
use crate::provider::failure::Failure;
use crate::provider::format::Format;
use crate::provider::notice::Notice;
use crate::provider::thought::SignatureData;
use crate::provider::thought::Thought;
use crate::provider::usage::Usage;
use crate::tools::call::ToolSpec;
use crate::tools::call::{ToolCall, ToolResult};

/// What a model is asked. Who pays and where it goes is decided by the provider supervisor.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The model's name at its provider.
    pub model: String,
    /// The soul: goes where the provider expects a system prompt. May be empty.
    pub system: String,
    /// The conversation, oldest first; starts with a user message.
    pub messages: Vec<ChatMessage>,
    /// The tools that the model may call.
    pub tools: Vec<ToolSpec>,
    /// At most so many tokens of output, thoughts included.
    pub max_tokens: u32,
    /// How much the model should think. `Off` asks for nothing, so that models that can't think and
    /// servers that know nothing of it are asked as ever.
    pub thinking: Thinking,
    /// Whether it is marked up to where the provider may keep it in its cache, where the format has such marks.
    pub cache_marks: bool,
}

/// One message of the conversation as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatMessage {
    /// What the user said.
    User {
        /// What is put before it that the user did not say, marked as such; may be empty.
        notes: String,
        /// The text of the prompt.
        text: String,
        /// And brought along. Those whose bytes are not there are named.
        attachments: Vec<Attachment>,
    },
    /// What the model said: text first, then its tool calls. One of the two may be empty.
    Assistant {
        /// The text of the answer.
        text: String,
        /// The calls, in the model's order.
        calls: Vec<ToolCall>,
        /// What it thought before and between, where that goes back to its provider.
        thoughts: Vec<Thought>,
    },
    /// The results of all calls of the assistant message before it, in its order.
    ToolResults(Vec<ToolResult>),
}

impl ChatMessage {
    /// What a user said who brought nothing along.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { notes: String::new(), text: text.into(), attachments: Vec::new() }
    }
}

/// One part of what a user said.
enum Part<'a> {
    Text(Cow<'a, str>),
    Image(ImageType, Base64<'a>),
}

/// What a user said, as its model is shown it: first the notes, then what was brought along, then the words,
/// which may refer to it. Empty where there is nothing to show.
fn parts<'a>(notes: &'a str, text: &'a str, attachments: &'a [Attachment]) -> Vec<Part<'a>> {
    let shown = attachments.iter().flat_map(|attachment| {
        let part = match (attachment.kind(), attachment.delimited()) {
            (Kind::Image(image), _) if !attachment.data().is_empty() => {
                Part::Image(image, Base64(attachment.data()))
            }
            (_, Some(text)) => Part::Text(text.into()),
            (_, None) => Part::Text(attachment.note().into()),
        };
        std::iter::once(part).chain(attachment.caption_note().map(|note| Part::Text(note.into())))
    });
    let said = |text: &'a str| (!text.trim().is_empty()).then_some(Part::Text(text.into()));
    said(notes).into_iter().chain(shown).chain(said(text)).collect()
}

/// Bytes that are written as base64 straight into a body.
struct Base64<'a>(&'a [u8]);

impl fmt::Display for Base64<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Base64Display::new(self.0, &STANDARD).fmt(f)
    }
}

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The reason a model stopped writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The answer is complete.
    End,
    /// It waits for tool results.
    ToolUse,
    /// It reached `max_tokens`.
    MaxTokens,
    /// The model refused to go on.
    Refused,
    /// Its provider's filter ended it.
    Filtered,
}

/// What a model's answer is made of, in order. An answer is complete only with `Finished`; a
/// stream that ends without it was cut.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// A piece of text, never empty.
    Text(String),
    /// A piece of a thought, never empty.
    Thinking(String),
    /// A thought is complete, and its provider wants this back with it.
    Sealed(SignatureData),
    /// A complete tool call.
    ToolCall(ToolCall),
    /// What became of the answer, from whoever asks the model.
    Notice(Notice),
    /// The end of the answer.
    Finished {
        /// The reason.
        stop: Stop,
        /// Tokens as the wire says; none where the server did not say.
        usage: Option<Usage>,
    },
}

/// How many bytes make a token, where nobody counted: a rule of thumb for English text.
const BYTES_PER_TOKEN: u64 = 4;

/// How many tokens so many bytes of text or of a request body are, estimated.
pub fn estimate_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// How many tokens an image is, where nobody counted: what a large one is scaled down to.
const IMAGE_TOKENS: u64 = 1600;

/// How many tokens the model will read, estimated: of a request to a provider of this kind whose body has
/// so many bytes.
pub fn estimate_input(kind: ProviderKind, request: &ChatRequest, body_bytes: usize) -> u64 {
    if kind == ProviderKind::Offline {
        return offline::input_tokens(request);
    }
    let (images, base64_bytes) = images(request).fold((0, 0), |(images, bytes), image| {
        (images + 1, bytes + image.data().len().div_ceil(3) as u64 * 4)
    });
    estimate_tokens((body_bytes as u64).saturating_sub(base64_bytes)) + images * IMAGE_TOKENS
}

/// The images that the model is shown.
fn images(request: &ChatRequest) -> impl Iterator<Item = &Attachment> {
    let attachments = request.messages.iter().flat_map(|message| match message {
        ChatMessage::User { attachments, .. } => attachments.as_slice(),
        _ => &[],
    });
    attachments.filter(|attachment| attachment.is_shown_image())
}

/// The most output that is asked for because of thinking: what all models that think can write.
const THINKING_OUTPUT_MAX: u32 = 32_000;

/// What of its output a model is left for its answer at least, in tokens.
const ANSWER_TOKENS_MIN: u32 = 1024;

/// How many tokens a model may think at this level.
fn thinking_tokens(thinking: Thinking) -> u32 {
    match thinking {
        Thinking::Off => 0,
        Thinking::Minimal => 1024,
        Thinking::Low => 2048,
        Thinking::Medium => 4096,
        Thinking::High => 8192,
        Thinking::Max => 16_384,
    }
}

/// How many tokens of output to ask for where the answer may have `max_tokens`: thoughts count as output,
/// and must not take the place of the answer.
pub fn output_tokens(max_tokens: u32, thinking: Thinking) -> u32 {
    let both = max_tokens.saturating_add(thinking_tokens(thinking));
    both.min(max_tokens.max(THINKING_OUTPUT_MAX))
}

/// The version in a model's name, of a family whose names begin with `family` (wherever that stands in the
/// name): its first one or two small numbers. None where there is none, as with dates alone.
fn version(model: &str, family: &str) -> Option<(u32, u32)> {
    let (_, rest) = model.split_once(family)?;
    let mut words = rest.split(['-', '.', '@', ':', '_']).skip_while(|word| small_number(word).is_none());
    let major = words.next().and_then(small_number)?;
    Some((major, words.next().and_then(small_number).unwrap_or(0)))
}

fn small_number(word: &str) -> Option<u32> {
    if word.len() > 2 { None } else { word.parse().ok() }
}

/// Where a request goes over HTTP and what it carries besides its body. Header values are secrets,
/// so that nobody prints the one that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The base URL with the path of the wire format.
    pub url: String,
    /// The headers besides those every HTTP client sets, by names in lowercase; of two of a name the later holds.
    pub headers: Vec<(Cow<'static, str>, Secret)>,
}

impl HttpRequest {
    /// The request for a provider of this kind, with what else it is to carry; none for one without a network.
    pub fn new(
        kind: ProviderKind,
        base_url: &str,
        key: Option<&Secret>,
        more: &BTreeMap<String, Secret>,
    ) -> Option<Self> {
        let format = kind.format();
        let mut headers = match format {
            Format::Anthropic => anthropic::headers(key),
            Format::Chat | Format::Responses => openai::headers(key),
            Format::Offline => return None,
        };
        for (name, value) in [
            ("content-type", "application/json"),
            ("accept", "text/event-stream"),
            ("accept-encoding", "identity"),
            ("user-agent", concat!("clawmux/", env!("CARGO_PKG_VERSION"))),
        ] {
            headers.push((name, Secret::new(value)));
        }
        let headers = headers.into_iter().map(|(name, value)| (Cow::Borrowed(name), value));
        let more = more.iter().map(|(name, value)| (Cow::Owned(name.clone()), value.clone()));
        let headers = headers.chain(more).collect();
        Some(Self { url: address::endpoint(format, base_url), headers })
    }
}

/// The JSON body of a streaming request to a provider of this kind at this base URL; empty for one
/// without a network.
pub fn encode(kind: ProviderKind, base_url: &str, request: &ChatRequest) -> Vec<u8> {
    match kind.format() {
        Format::Anthropic => anthropic::encode(request),
        Format::Chat => openai::encode(request, kind.quirks(base_url)),
        Format::Responses => responses::encode(request),
        Format::Offline => Vec::new(),
    }
}

/// A failure the provider reported within its stream.
fn reported(provider: &str, failure: &Failure, hidden: &[Secret]) -> Error {
    let said = quote(&failure.to_string(), hidden);
    ErrorCode::Provider.error(format!("{provider} reported within its answer: {said}"))
}

/// The stream is over, its answer is not.
fn cut(provider: &str, events: u64) -> Error {
    ErrorCode::Provider.error(match events {
        0 => format!("{provider} answered with a stream that holds no event"),
        _ => format!("{provider} cut the answer: the stream ended without its end marker"),
    })
}

/// An event that is not what the format says.
fn garbage(provider: &str, data: &str, why: &serde_json::Error, hidden: &[Secret]) -> Error {
    let (said, why) = (quote(data, hidden), quote(&why.to_string(), hidden));
    ErrorCode::Provider.error(format!("{provider} sent an event that can't be read ({why}): {said}"))
}

/// A tool call's input from the text the model wrote; nothing written means no arguments.
fn tool_input(written: String) -> Value {
    if written.trim().is_empty() {
        return Value::Object(serde_json::Map::new());
    }
    match serde_json::from_str(&written) {
        Ok(input) => input,
        Err(_) => Value::String(written),
    }
}

/// The input of a past tool call as both formats want it: an object. What is none (the model's
/// mistake, of which the result after it tells) is wrapped in one.
fn input_object(input: &Value) -> Cow<'_, Value> {
    match input {
        Value::Object(_) => Cow::Borrowed(input),
        other => Cow::Owned(serde_json::json!({ "input": other })),
    }
}

/// The result of a tool as text; OpenAI's formats have no flag for one that is an error.
fn tool_output(result: &ToolResult) -> Cow<'_, str> {
    if result.is_error {
        Cow::Owned(format!("error: {}", result.content))
    } else {
        Cow::Borrowed(&result.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What chunks of a stream decode to.
    pub(super) type Decoded = (Vec<Delta>, Result<(), Error>);

    /// Decodes `stream` split in two at every byte, and byte by byte.
    pub(super) fn every_split(stream: &str, expected: &Decoded, decode: impl Fn(&[&[u8]]) -> Decoded) {
        let bytes = stream.as_bytes();
        for at in 0..=bytes.len() {
            assert_eq!(&decode(&[&bytes[..at], &bytes[at..]]), expected, "split at byte {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(&decode(&single), expected, "byte by byte");
    }

    /// Decodes these chunks as an answer of this kind of provider.
    pub(super) fn decode(kind: ProviderKind, chunks: &[&[u8]]) -> Decoded {
        let mut decoder = Decoder::new(kind, kind.name()).unwrap();
        let mut deltas = Vec::new();
        let mut result = Ok(());
        for chunk in chunks {
            result = result.and_then(|()| decoder.push(chunk, &mut deltas));
        }
        let result = result.and_then(|()| decoder.finish(&mut deltas));
        (deltas, result)
    }

    /// Cuts `stream` off at every byte before the end of its end marker.
    pub(super) fn every_cut(stream: &str, marker: &str, decode: impl Fn(&[&[u8]]) -> Decoded) {
        let marker = stream.find(marker).unwrap() + marker.len();
        for end in 0..marker {
            let (deltas, result) = decode(&[&stream.as_bytes()[..end]]);
            let error = result.expect_err("no success without the end marker");
            assert!(error.message.contains("cut") || error.message.contains("no event"), "{end}: {error}");
            assert!(!deltas.iter().any(|delta| matches!(delta, Delta::Finished { .. })), "{end}");
        }
        assert_eq!(decode(&[&stream.as_bytes()[..marker]]).1, Ok(()));
    }

    pub(super) fn call(id: &str, name: &str, input: Value) -> Delta {
        Delta::ToolCall(ToolCall { id: id.into(), name: name.into(), input })
    }

    /// These messages for `model`, with neither system prompt nor tools.
    pub(super) fn request(model: &str, messages: Vec<ChatMessage>) -> ChatRequest {
        let (system, tools) = (String::new(), Vec::new());
        ChatRequest {
            model: model.into(),
            system,
            messages,
            tools,
            max_tokens: 7,
            thinking: Thinking::Off,
            cache_marks: true,
        }
    }

    pub(super) fn echo() -> ToolSpec {
        let input_schema = serde_json::json!({"type": "object"});
        ToolSpec { name: "echo".into(), description: "says it".into(), input_schema }
    }

    pub(super) fn file(name: &str, data: &'static [u8]) -> Attachment {
        Attachment::new(Some(name), None, bytes::Bytes::from_static(data)).unwrap()
    }

    /// Arbitrary bytes, and streams with a part of them replaced by such.
    pub(super) fn damaged(stream: &'static str) -> impl Strategy<Value = Vec<u8>> {
        let damage =
            (any::<prop::sample::Index>(), proptest::collection::vec(any::<u8>(), 0..20), 0usize..40);
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            damage.prop_map(|(at, bytes, removed)| {
                let at = at.index(stream.len());
                let mut changed = stream.as_bytes().to_vec();
                changed.splice(at..(at + removed).min(stream.len()), bytes);
                changed
            }),
        ]
    }

    #[test]
    fn versions_of_models() {
        for (model, family, expected) in [
            ("claude-sonnet-4-5-20250929", "claude", Some((4, 5))),
            ("claude-sonnet-4-20250514", "claude", Some((4, 0))),
            ("claude-3-7-sonnet-latest", "claude", Some((3, 7))),
            ("us.anthropic.claude-opus-4-7-v1:0", "claude", Some((4, 7))),
            ("anthropic/claude-opus-4.8", "claude", Some((4, 8))),
            ("claude-opus-5", "claude", Some((5, 0))),
            ("claude-latest", "claude", None),
            ("glm-4.6", "claude", None),
            ("gpt-5.2-codex", "gpt", Some((5, 2))),
            ("gpt-4o", "gpt", None),
            ("", "gpt", None),
        ] {
            assert_eq!(version(model, family), expected, "{model}");
        }
    }

    #[test]
    fn images_are_estimated_by_number_and_not_by_their_bytes() {
        let data = [&b"\xff\xd8\xff"[..], &[7; 3_000_000]].concat();
        let image = Attachment::new(None, None, data.into()).unwrap();
        let (notes, attachments) = (String::new(), vec![image.clone(), image]);
        let user = ChatMessage::User { notes, text: "look".into(), attachments };
        let mut request = request("m", vec![user]);
        for kind in ProviderKind::ALL {
            let tokens = estimate_input(kind, &request, encode(kind, "", &request).len());
            assert!((2 * IMAGE_TOKENS..2 * IMAGE_TOKENS + 200).contains(&tokens), "{kind}: {tokens}");
        }
        let ChatMessage::User { attachments, .. } = &mut request.messages[0] else { panic!() };
        attachments.iter_mut().for_each(Attachment::let_go);
        let body = encode(ProviderKind::OpenAi, "", &request);
        assert_eq!(
            estimate_input(ProviderKind::OpenAi, &request, body.len()),
            estimate_tokens(body.len() as u64)
        );
    }

    #[test]
    fn thoughts_get_room_of_their_own() {
        assert_eq!(output_tokens(4096, Thinking::Off), 4096);
        assert_eq!(output_tokens(4096, Thinking::High), 4096 + 8192);
        assert_eq!(output_tokens(20_000, Thinking::Max), 32_000, "what models can write");
        assert_eq!(output_tokens(64_000, Thinking::Max), 64_000, "unless it was configured so");
    }

    #[test]
    fn requests_carry_the_key_and_nobody_prints_it() {
        let more = BTreeMap::from([("x-title".to_owned(), Secret::new("geheim"))]);
        for (kind, url, header, value) in [
            (ProviderKind::Anthropic, "https://x.test/v1/messages", "x-api-key", "k1"),
            (ProviderKind::OpenAi, "https://x.test/v1/chat/completions", "authorization", "Bearer k1"),
            (ProviderKind::OpenAiResponses, "https://x.test/v1/responses", "authorization", "Bearer k1"),
        ] {
            let request = HttpRequest::new(kind, "https://x.test", Some(&Secret::new("k1")), &more).unwrap();
            assert_eq!(request.url, url);
            for (header, value) in [(header, value), ("x-title", "geheim")] {
                let sent = request.headers.iter().find(|(name, _)| name == header).unwrap();
                assert_eq!(sent.1.expose(), value);
            }
            assert!(!format!("{request:?}").contains("k1"), "{request:?}");
            assert!(!format!("{request:?}").contains("geheim"), "{request:?}");
        }
        assert_eq!(HttpRequest::new(ProviderKind::Offline, "", None, &more), None);
    }
}
