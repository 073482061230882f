//! Sending a prompt until it is durable or refused. If the connection is lost before the answer comes,
//! the prompt is sent again under the same idempotency key.

use std::time::{Duration, Instant};

use clawmux_actors::runtime::clock;
use clawmux_core::dialect::exoclaw::client::{Prompt, ServerMessage, StreamEvent};
use clawmux_core::ids::RunId;

use super::client::{ChatError, Client, ClientEvent, Flow};
use super::conversation::Output;
use super::signals::Signal;
use crate::exit::{FAILED, Failure};

/// How long the daemon may take to put a prompt on its disk.
const ACCEPT: Duration = Duration::from_secs(60);

/// The outcome of sending a prompt.
pub(super) enum PromptOutcome {
    /// It is durable, under this run id.
    Accepted(String),
    /// The daemon refused it: why.
    Refused(String),
    /// The user left before it was accepted.
    Left,
}

impl Client {
    /// Sends a prompt until it is durable or refused. Ctrl-C aborts it, also where nobody knows yet whether the
    /// daemon has taken it; a second one leaves.
    ///
    /// # Errors
    /// If the daemon is gone or does not answer.
    pub(super) async fn prompt(&mut self, text: &str) -> Result<PromptOutcome, Failure> {
        let key = RunId::from_random(clock::random());
        self.aborting = None;
        let files = std::mem::take(&mut self.files);
        let begun = Instant::now();
        let sent = loop {
            let id = self.new_id();
            let prompt = Prompt {
                session: &self.session,
                content: text,
                key: key.as_str(),
                model: self.chosen_model.as_deref(),
                attachments: &files.files(),
                follow: false,
            };
            let frame = prompt.frame(&id);
            let most = self.link.request_bytes_max();
            if frame.len() > most {
                break PromptOutcome::Refused(format!(
                    "with its attachments the prompt has {} bytes as it is sent, more than the {most} that the \
                     daemon takes",
                    frame.len()
                ));
            }
            self.conversation.sends();
            let error = match self.link.send(frame).await {
                Ok(()) => match self.acceptance(&id, &key, begun).await {
                    Ok(sent) => break sent,
                    Err(error) => error,
                },
                Err(lost) => ChatError::Lost(lost),
            };
            if self.recover(error).await? == Flow::Leave {
                break PromptOutcome::Left;
            }
        };
        let output = &mut Output { renderer: &mut *self.renderer, now: Instant::now() };
        let changes = match &sent {
            PromptOutcome::Accepted(run) => {
                output.renderer.accepted(self.session.as_str(), run);
                self.conversation.accepted(run, output)
            }
            PromptOutcome::Refused(_) | PromptOutcome::Left => self.conversation.release(output),
        };
        self.changes.extend(changes);
        Ok(sent)
    }

    /// Waits for the answer to the prompt that was sent under this id, with this key.
    async fn acceptance(
        &mut self,
        id: &str,
        key: &RunId,
        begun: Instant,
    ) -> Result<PromptOutcome, ChatError> {
        loop {
            if begun.elapsed() > ACCEPT {
                let why = format!("the daemon did not take the prompt within {} s", ACCEPT.as_secs());
                return Err(ChatError::Fatal(Failure::new(FAILED, why)));
            }
            match self.next_but_typed().await {
                ClientEvent::ServerMessage(Ok(ServerMessage::Event {
                    id: of,
                    event: StreamEvent::Accepted { run, .. },
                    ..
                })) if of == id => {
                    return Ok(PromptOutcome::Accepted(run));
                }
                ClientEvent::ServerMessage(Ok(ServerMessage::Answer { id: of, outcome })) if of == id => {
                    return Ok(PromptOutcome::Refused(match outcome {
                        Err(why) => why,
                        Ok(_) => "the daemon answers something else than was asked".into(),
                    }));
                }
                ClientEvent::ServerMessage(Ok(told)) => self.hear(told)?,
                ClientEvent::ServerMessage(Err(lost)) => return Err(ChatError::Lost(lost)),
                // A run is known by the key of its prompt too.
                ClientEvent::Signal(Signal::Interrupt) if self.aborting.is_none() => {
                    self.abort(key.to_string()).await?;
                }
                ClientEvent::Signal(_) | ClientEvent::UserInput(_) => return Ok(PromptOutcome::Left),
                ClientEvent::Tick => {}
            }
        }
    }
}
