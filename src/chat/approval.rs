//! Asks for approval of a tool call as it is shown: y, n, or e to edit the input first. A question is
//! withdrawn when somebody else decides it.

use std::time::Instant;

use clawmux_core::dialect::exoclaw::client as exoclaw;
use serde_json::Value;

use super::client::{ChatError, Client, Flow};
use super::conversation::PendingApproval;
use crate::terminal::{json_line, json_pretty, one_line};

/// An input of up to this many characters is part of the question; a longer one is shown above it.
const SHORT_CHARS_MAX: usize = 60;
/// How many characters of a longer input are shown.
const LONG_CHARS_MAX: usize = 8000;

/// The approval that is being asked for.
#[derive(Debug, Default)]
pub(super) struct ApprovalPrompt {
    /// The id of the approval whose question is shown.
    question: Option<String>,
    /// The call whose input is being edited.
    editing: Option<PendingApproval>,
    /// Decisions sent and not yet answered: id of the request, name of the tool.
    sent: Vec<(String, String)>,
}

impl ApprovalPrompt {
    /// Whether the user is editing the input of a call.
    pub(super) fn is_editing(&self) -> bool {
        self.editing.is_some()
    }
}

impl Client {
    /// Shows the question for the first call that waits, if any.
    pub(super) fn ask_what_waits(&mut self) {
        if self.approval.is_editing() {
            return;
        }
        let asked = self.conversation.question(Instant::now());
        if asked.map(|asked| &asked.id) == self.approval.question.as_ref() {
            return;
        }
        let Some(PendingApproval { id, name, input, .. }) = asked.cloned() else {
            self.approval.question = None;
            return self.renderer.ask(None);
        };
        self.approval.question = Some(id);
        let short = json_line(&input);
        let what = if short.chars().count() <= SHORT_CHARS_MAX {
            format!("{name} {short}")
        } else {
            let whole = json_pretty(&input);
            let hidden = whole.chars().count().saturating_sub(LONG_CHARS_MAX);
            let mut shown: String = whole.chars().take(LONG_CHARS_MAX).collect();
            if hidden > 0 {
                shown.push_str(&format!("\n[{hidden} more characters are not shown: e shows all of them]"));
            }
            self.renderer.note(&format!("{name} is to be called with\n{shown}"));
            if hidden > 0 {
                format!("{name} with an input of which {hidden} characters are not shown")
            } else {
                name
            }
        };
        self.renderer.ask(Some(&format!(
            "call {}? y = yes, n = no, e = edit the input, a = always in this session",
            one_line(&what, 200)
        )));
    }

    /// The key that a typed line stands for while a question is shown.
    pub(super) fn key_of(&self, line: &str) -> Option<char> {
        self.approval.question.as_ref()?;
        match line.trim() {
            "y" | "yes" => Some('y'),
            "a" | "always" => Some('a'),
            "n" | "no" => Some('n'),
            "e" | "edit" => Some('e'),
            _ => None,
        }
    }

    /// Handles a key pressed while a question is shown.
    pub(super) async fn decide(&mut self, key: char) -> Result<Flow, ChatError> {
        let asked = self.conversation.question(Instant::now()).cloned();
        let Some(asked) = asked.filter(|asked| self.approval.question.as_ref() == Some(&asked.id)) else {
            return Ok(Flow::Stay);
        };
        match key {
            'y' | 'Y' => self.send_decision(&asked, |id| exoclaw::approve(id, &asked.id, None)).await?,
            'a' | 'A' => {
                self.send_decision(&asked, |id| exoclaw::approve_for_session(id, &asked.id)).await?;
            }
            'n' | 'N' => self.send_decision(&asked, |id| exoclaw::deny(id, &asked.id, None)).await?,
            'e' | 'E' => {
                self.approval.question = None;
                self.renderer.ask(None);
                self.renderer.note(&format!(
                    "edit the input of {}; Enter sends it, Ctrl-C goes back to the question",
                    one_line(&asked.name, 64)
                ));
                self.renderer.edit(&json_pretty(&asked.input));
                self.approval.editing = Some(asked);
            }
            _ => {}
        }
        Ok(Flow::Stay)
    }

    /// Sends the edited input of a call.
    pub(super) async fn edited(&mut self, text: &str) -> Result<Flow, ChatError> {
        let Some(asked) = self.approval.editing.take() else { return Ok(Flow::Stay) };
        if !self.conversation.is_asked(&asked.id) {
            let name = one_line(&asked.name, 64);
            self.renderer
                .note(&format!("the call of {name} was decided meanwhile: the edited input is not sent"));
            return Ok(Flow::Stay);
        }
        if text.trim().is_empty() {
            return Ok(Flow::Stay);
        }
        match serde_json::from_str::<Value>(text) {
            Ok(input) if input.is_object() => {
                self.send_decision(&asked, |id| exoclaw::approve(id, &asked.id, Some(&input))).await?;
            }
            outcome => {
                match outcome {
                    Ok(_) => self.renderer.error("an input is a JSON object, such as {\"text\":\"hi\"}"),
                    Err(error) => self.renderer.error(&format!("the input is no JSON: {error}")),
                }
                self.renderer.edit(text);
                self.approval.editing = Some(asked);
            }
        }
        Ok(Flow::Stay)
    }

    /// Stops editing and shows the question again.
    pub(super) fn stop_editing(&mut self) {
        self.approval.editing = None;
    }

    async fn send_decision(
        &mut self,
        asked: &PendingApproval,
        request: impl FnOnce(&str) -> String,
    ) -> Result<(), ChatError> {
        let id = self.new_id();
        let request = request(&id);
        self.conversation.decides(&asked.id);
        self.approval.question = None;
        self.renderer.ask(None);
        self.approval.sent.push((id, asked.name.clone()));
        self.link.send(request).await.map_err(ChatError::Lost)
    }

    /// Handles the answer to a decision. A success is reported by an event that every client gets.
    pub(super) fn decided(&mut self, request: &str, outcome: Result<Value, String>) {
        let Some(at) = self.approval.sent.iter().position(|(id, _)| id == request) else { return };
        let (_, name) = self.approval.sent.swap_remove(at);
        if let Err(why) = outcome {
            self.renderer.error(&format!("{}: {why}", one_line(&name, 64)));
        }
    }
}
