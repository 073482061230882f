//! Reads one answer from the bytes of its stream: what the formats have in common.
//!
//! A stream is good only up to its end marker; one that ends without it was cut.

use serde::Deserialize;

use super::failure::Failure;
use super::fault::Fault;
use super::format::Format;
use super::kind::ProviderKind;
use super::sse::{EVENT_BYTES_MAX, Event, Parser};
use super::{Delta, anthropic, cut, garbage, openai, reported, responses};
use crate::access::Secret;
use crate::error::{Detail, Error, ErrorCode};
use crate::provider::usage::Usage;

/// How large an answer's stream may be, in bytes: room for the longest answer of any model, each of its
/// tokens in an event of several hundred bytes.
pub(super) const STREAM_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Reads one answer of a provider from the bytes of its stream.
#[derive(Debug)]
pub struct Decoder {
    parser: Parser,
    bytes: u64,
    progress: Progress,
    answer: Answer,
}

/// What is known of the answer so far, in its format.
#[derive(Debug)]
enum Answer {
    Anthropic(anthropic::Answer),
    Chat(openai::Answer),
    Responses(responses::Answer),
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
    /// What is wrong, where the provider has said so.
    reported: Option<Fault>,
    /// How much of tool calls' inputs was written, in bytes.
    written: usize,
    /// What nobody is told, should the provider repeat it.
    hidden: Vec<Secret>,
}

impl Progress {
    /// An event's data in its format's terms.
    pub(super) fn read<'a, W: Deserialize<'a>>(&mut self, event: &'a Event<'_>) -> Result<W, Error> {
        let wire = serde_json::from_str(&event.data).map_err(|why| {
            self.unreadable = true;
            garbage(&self.provider, &event.data, &why, &self.hidden)
        })?;
        self.events += 1;
        Ok(wire)
    }

    /// Adds a piece of a tool call's input to what is written of it.
    pub(super) fn append(&mut self, written: &mut String, part: &str) -> Result<(), Error> {
        if written.len() + part.len() > EVENT_BYTES_MAX {
            let provider = &self.provider;
            return Err(ErrorCode::Provider
                .error(format!("{provider} wrote a tool call larger than {EVENT_BYTES_MAX} bytes")));
        }
        written.push_str(part);
        self.written = self.written.saturating_add(part.len());
        Ok(())
    }

    /// The error of a failure that the provider reports within its stream.
    pub(super) fn reported(&mut self, failure: &Failure) -> Error {
        self.reported = Some(failure.fault().unwrap_or(Fault::Server));
        reported(&self.provider, failure, &self.hidden)
    }
}

impl Decoder {
    /// A decoder for the stream of the provider with this name, which its errors are told with; none
    /// for a kind without a network.
    pub fn new(kind: ProviderKind, provider: &str) -> Option<Self> {
        let answer = match kind.format() {
            Format::Anthropic => Answer::Anthropic(anthropic::Answer::default()),
            Format::Chat => Answer::Chat(openai::Answer::new(kind.preset().quirks)),
            Format::Responses => Answer::Responses(responses::Answer::default()),
            Format::Offline => return None,
        };
        let progress = Progress {
            provider: provider.to_owned(),
            finished: false,
            events: 0,
            unreadable: false,
            reported: None,
            written: 0,
            hidden: Vec::new(),
        };
        Some(Self { parser: Parser::default(), bytes: 0, progress, answer })
    }

    /// The same with secrets that no error is to tell, should the provider repeat them.
    #[must_use]
    pub fn hiding(mut self, secrets: Vec<Secret>) -> Self {
        self.progress.hidden = secrets;
        self
    }

    /// Takes the next bytes, split anywhere, and adds what they complete to `deltas`. What was added
    /// before an error is good.
    ///
    /// # Errors
    /// `Provider`: what the provider reported within the stream, or what is wrong with the stream, be it
    /// larger than 128 MiB. The decoder is of no use afterwards.
    pub fn push(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > STREAM_BYTES_MAX {
            let provider = &self.progress.provider;
            return Err(ErrorCode::Provider
                .error(format!("{provider}: the answer's stream has more than {STREAM_BYTES_MAX} bytes"))
                .with(Detail::Limit {
                    name: crate::error::limit::Limit::StreamBytes,
                    limit: STREAM_BYTES_MAX,
                }));
        }
        let Self { parser, progress, answer, .. } = self;
        parser.push(bytes, |event| answer.take(&event, deltas, progress))
    }

    /// The stream is over.
    ///
    /// # Errors
    /// `Provider` where it is over before its end marker: the answer was cut.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) -> Result<(), Error> {
        let Self { parser, progress, answer, .. } = self;
        match parser.finish(|event| answer.take(&event, deltas, progress)) {
            _ if progress.finished => Ok(()),
            // The stream may end within an event, which then can't be read.
            Err(error) if !progress.unreadable => Err(error),
            _ => Err(cut(&progress.provider, progress.events)),
        }
    }

    /// What the last error comes to.
    pub fn fault(&self) -> Fault {
        self.progress.reported.unwrap_or(Fault::Cut)
    }

    /// How many events could be read so far. Only those tell that the provider is at work.
    pub fn events(&self) -> u64 {
        self.progress.events
    }

    /// How much was written of the inputs of tool calls, in bytes, of those too that are not complete.
    pub fn written(&self) -> usize {
        self.progress.written
    }

    /// Whether the end marker was seen. What follows it is of no interest.
    pub fn is_finished(&self) -> bool {
        self.progress.finished
    }

    /// What the wire said so far of the tokens used.
    pub fn usage(&self) -> Option<Usage> {
        match &self.answer {
            Answer::Anthropic(answer) => answer.usage(),
            Answer::Chat(answer) => answer.usage(),
            Answer::Responses(answer) => answer.usage(),
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
            Self::Chat(answer) => answer.take(event, deltas, progress),
            Self::Responses(answer) => answer.take(event, deltas, progress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_read_counts_and_a_stream_has_an_end() {
        for kind in [ProviderKind::Anthropic, ProviderKind::OpenAi, ProviderKind::OpenAiResponses] {
            let mut decoder = Decoder::new(kind, "p").unwrap();
            let mut deltas = Vec::new();
            decoder.push(b": stay\n\nevent: ping\nid: 7\n\n", &mut deltas).unwrap();
            assert_eq!((decoder.events(), deltas.len()), (0, 0), "{kind}");
            // One event after the other says nothing, each of a megabyte.
            let data = match kind {
                ProviderKind::OpenAi => r#"{"choices":[]}"#,
                _ => r#"{"type":"ping"}"#,
            };
            let event = format!("data: {data}{}\n\n", " ".repeat((1 << 20) - data.len() - 8));
            for count in 1..STREAM_BYTES_MAX / (1 << 20) {
                decoder.push(event.as_bytes(), &mut deltas).unwrap();
                assert_eq!((decoder.events(), deltas.len()), (count, 0), "{kind}");
            }
            let error = decoder.push(event.as_bytes(), &mut deltas).unwrap_err();
            let limit = STREAM_BYTES_MAX;
            assert_eq!(
                error.detail,
                Some(Detail::Limit { name: crate::error::limit::Limit::StreamBytes, limit }),
                "{kind}"
            );
        }
    }
}
