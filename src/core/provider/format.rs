//! The wire formats that models are asked in.

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The Anthropic Messages API.
    Anthropic,
    /// OpenAI chat completions.
    Chat,
    /// OpenAI's Responses API.
    Responses,
    /// None: built in, deterministic, no network.
    Offline,
}
