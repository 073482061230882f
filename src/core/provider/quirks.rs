//! In what servers that speak OpenAI's chat completions differ.

/// How a request names the bound on its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthField {
    /// `max_tokens`
    MaxTokens,
    /// `max_completion_tokens`
    MaxCompletionTokens,
}

/// How a request asks for thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// `reasoning_effort`
    Named,
    /// `reasoning: {"effort": ..}`
    Nested,
    /// `thinking: {"type": "enabled"}`, and as much as the model likes
    Switch,
    /// `reasoning_effort`, but to some models it is unknown and to some it has other values.
    Groq,
    /// Models think or don't; there is nothing to ask for.
    Never,
}

/// In what a server differs from others that speak OpenAI's chat completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// How the bound on the output is named.
    pub length: LengthField,
    /// Whether it knows `stream_options`; who doesn't says what was used unasked.
    pub has_stream_options: bool,
    /// How it is asked to think.
    pub effort: Effort,
    /// The field of a message in which thoughts go back with the results of tools; none = they don't.
    pub thoughts: Option<&'static str>,
    /// Whether ids of tool calls must have nine letters and digits.
    pub has_short_ids: bool,
    /// Whether it signs tool calls, and wants the signatures back.
    pub signs_calls: bool,
}

impl Quirks {
    /// As most servers are that imitate OpenAI.
    pub const USUAL: Self = Self {
        length: LengthField::MaxTokens,
        has_stream_options: true,
        effort: Effort::Named,
        thoughts: Some("reasoning_content"),
        has_short_ids: false,
        signs_calls: false,
    };
}
