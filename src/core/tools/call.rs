//! Tools as models know them: what they are offered, what they ask for and what they are told.

use serde_json::Value;

use crate::ids::{CallId, PluginName};

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The tool's name, by which the model calls it.
    pub name: PluginName,
    /// What the tool does, in words for the model.
    pub description: String,
    /// JSON Schema of its input.
    pub input_schema: Value,
}

/// A tool call the model asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The provider's name for the call.
    pub id: CallId,
    /// The tool to call.
    pub name: PluginName,
    /// Its input. What the model wrote where that is not JSON is a JSON string of it, and the
    /// call is answered with an error instead of being made.
    pub input: Value,
}

/// What became of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of the call that it answers.
    pub call: CallId,
    /// What the model is told.
    pub content: String,
    /// Whether the call failed.
    pub is_error: bool,
}
