//! Wire formats of model providers, as pure encoders and decoders.
//!
//! A request goes out as the bytes of a JSON body; what comes back goes, chunk by chunk and split
//! anywhere, into a decoder that yields [`Delta`]s.

use std::fmt;

use serde_json::Value;

use crate::event::{ToolCall, ToolResult, Usage};
use crate::ids::PluginName;

/// What a model is asked. Who pays and where it goes is decided by the provider supervisor.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The model's name at its provider.
    pub model: String,
    /// The soul: goes where the provider expects a system prompt. May be empty.
    pub system: String,
    /// The conversation, oldest first; starts with a user message.
    pub messages: Vec<ChatMessage>,
    /// The tools offered.
    pub tools: Vec<ToolSpec>,
    /// At most so many tokens of output.
    pub max_tokens: u32,
}

/// One message of the conversation as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatMessage {
    /// What the user said.
    User(String),
    /// What the model said: text first, then its tool calls. One of the two may be empty.
    Assistant {
        /// The text.
        text: String,
        /// The calls, in the model's order.
        calls: Vec<ToolCall>,
    },
    /// The results of all calls of the assistant message before it, in its order.
    ToolResults(Vec<ToolResult>),
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: PluginName,
    /// What it does.
    pub description: String,
    /// JSON Schema of its input.
    pub input_schema: Value,
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was done.
    End,
    /// It waits for tool results.
    ToolUse,
    /// It reached `max_tokens`.
    MaxTokens,
    /// It refused or was filtered.
    Refused,
}

/// What a model's answer is made of, in order. An answer is complete only with `Finished`; a
/// stream that ends without it was cut.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// A piece of text, never empty.
    Text(String),
    /// A complete tool call.
    ToolCall(ToolCall),
    /// The end of the answer.
    Finished {
        /// Why.
        stop: Stop,
        /// Tokens as the wire says; none where the server did not say.
        usage: Option<Usage>,
    },
}

/// The kinds of providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI chat completions, and any server that speaks them.
    OpenAi,
    /// Built in, deterministic, no network.
    Offline,
}

impl ProviderKind {
    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Offline => "offline",
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
