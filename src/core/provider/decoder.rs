//! Reads one answer from the bytes of its stream: what the formats have in common.
//!
//! A stream is good only up to its end marker; one that ends without it was cut.

use serde::Deserialize;

use super::sse::{Event, Parser};
use super::{Delta, ProviderKind, anthropic, cut, garbage, openai};
use crate::error::Error;
use crate::event::Usage;

/// Reads one answer of a provider from the bytes of its stream.
#[derive(Debug)]
pub struct Decoder {
    parser: Parser,
    progress: Progress,
    answer: Answer,
}

/// What is known of the answer so far, in its format.
#[derive(Debug)]
enum Answer {
    Anthropic(anthropic::Answer),
    OpenAi(openai::Answer),
}

/// How far a stream has come.
#[derive(Debug)]
pub(super) struct Progress {
    /// The provider's name, which errors are told with.
    pub(super) provider: String,
    /// Whether the end marker was seen.
    pub(super) finished: bool,
    events: u64,
    /// Whether an event could not be read.
    unreadable: bool,
}

impl Progress {
    /// An event's data in its format's terms.
    pub(super) fn read<'a, W: Deserialize<'a>>(&mut self, event: &'a Event<'_>) -> Result<W, Error> {
        let wire = serde_json::from_str(&event.data).map_err(|why| {
            self.unreadable = true;
            garbage(&self.provider, &event.data, &why)
        })?;
        self.events += 1;
        Ok(wire)
    }
}

impl Decoder {
    /// A decoder for the stream of the provider with this name, which its errors are told with; none
    /// for a kind without a network.
    pub fn new(kind: ProviderKind, provider: &str) -> Option<Self> {
        let answer = match kind {
            ProviderKind::Anthropic => Answer::Anthropic(anthropic::Answer::default()),
            ProviderKind::OpenAi => Answer::OpenAi(openai::Answer::default()),
            ProviderKind::Offline => return None,
        };
        let progress =
            Progress { provider: provider.to_owned(), finished: false, events: 0, unreadable: false };
        Some(Self { parser: Parser::default(), progress, answer })
    }

    /// Takes the next bytes, split anywhere, and adds what they complete to `deltas`. What was added
    /// before an error is good.
    ///
    /// # Errors
    /// `Provider`: what the provider reported within the stream, or what is wrong with the stream.
    /// The decoder is of no use afterwards.
    pub fn push(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) -> Result<(), Error> {
        let Self { parser, progress, answer } = self;
        parser.push(bytes, |event| answer.take(&event, deltas, progress))
    }

    /// The stream is over.
    ///
    /// # Errors
    /// `Provider` where it is over before its end marker: the answer was cut.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) -> Result<(), Error> {
        let Self { parser, progress, answer } = self;
        match parser.finish(|event| answer.take(&event, deltas, progress)) {
            _ if progress.finished => Ok(()),
            // The stream may end within an event, which then can't be read.
            Err(error) if !progress.unreadable => Err(error),
            _ => Err(cut(&progress.provider, progress.events)),
        }
    }

    /// Whether the end marker was seen. What follows it is of no interest.
    pub fn is_finished(&self) -> bool {
        self.progress.finished
    }

    /// What the wire said so far of the tokens used.
    pub fn usage(&self) -> Option<Usage> {
        match &self.answer {
            Answer::Anthropic(answer) => answer.usage(),
            Answer::OpenAi(answer) => answer.usage(),
        }
    }
}

impl Answer {
    fn take(
        &mut self,
        event: &Event<'_>,
        deltas: &mut Vec<Delta>,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        match self {
            _ if progress.finished => Ok(()),
            Self::Anthropic(answer) => answer.take(event, deltas, progress),
            Self::OpenAi(answer) => answer.take(event, deltas, progress),
        }
    }
}
