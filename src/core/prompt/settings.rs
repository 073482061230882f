//! What a session is set to: its label, its model, how much is thought, what it was made for, whether
//! it was stopped for good, and what clients keep with it for their display.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, ErrorCode};
use crate::ids::PluginName;
use crate::prompt::thinking::Thinking;

/// The settings of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The session's name for people.
    pub label: Option<String>,
    /// The model that answers, `PROVIDER/MODEL`; none = the agent's.
    pub model: Option<String>,
    /// How much is thought; none = the agent's.
    pub thinking: Option<Thinking>,
    /// What it was made for; none where that was not said.
    pub assignment: Option<Box<Assignment>>,
    /// Why it takes no more prompts: it was stopped for good, until it is reset. Empty where no reason
    /// was given; none = it takes them.
    pub closed: Option<String>,
    /// The tools that are called unasked in it, though they ask elsewhere: somebody decided so.
    pub allowed: Vec<PluginName>,
    /// What clients keep with it, by the clients' names; nothing here means anything to clawmux.
    pub display: BTreeMap<String, Value>,
}

/// What a session was made for, as its client put it. Its agent is told of the task ([`Self::brief`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Who was to lead it.
    pub lead: String,
    /// The kind of session that was asked for.
    pub kind: String,
    /// The kind of task.
    pub task: String,
    /// What is to be done.
    pub description: String,
    /// How urgent that is.
    pub priority: String,
    /// What else the client said of it; `Null` = nothing.
    pub metadata: Value,
}

impl Assignment {
    /// What the agent is told of its task, after its soul; none where there is nothing to tell.
    pub fn brief(&self) -> Option<String> {
        let Self { task, description, priority, .. } = self;
        let description = description.trim();
        if description.is_empty() {
            return None;
        }
        Some(format!("This session is for a task ({task}, priority {priority}):\n{description}"))
    }

    fn bytes(&self) -> usize {
        let Self { lead, kind, task, description, priority, metadata } = self;
        let texts = [lead, kind, task, description, priority].map(String::len);
        texts.iter().sum::<usize>() + metadata.to_string().len()
    }
}

/// A change of [`Settings`]. The outer `None` leaves a setting as it is, the inner one clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The new label; the inner none removes it.
    pub label: Option<Option<String>>,
    /// The new model; the inner none restores the default.
    pub model: Option<Option<String>>,
    /// The new level of thinking; the inner none restores the default.
    pub thinking: Option<Option<Thinking>>,
    /// What it was made for.
    pub assignment: Option<Option<Box<Assignment>>>,
    /// Why it takes no more prompts.
    pub closed: Option<Option<String>>,
    /// What clients keep; `Null` clears.
    pub display: BTreeMap<String, Value>,
}

impl Settings {
    /// Takes over what the patch sets.
    pub fn apply(&mut self, patch: &Patch) {
        if let Some(label) = &patch.label {
            self.label.clone_from(label);
        }
        if let Some(model) = &patch.model {
            self.model.clone_from(model);
        }
        if let Some(thinking) = patch.thinking {
            self.thinking = thinking;
        }
        if let Some(assignment) = &patch.assignment {
            self.assignment.clone_from(assignment);
        }
        if let Some(closed) = &patch.closed {
            self.closed.clone_from(closed);
        }
        for (name, value) in &patch.display {
            if value.is_null() {
                self.display.remove(name);
            } else {
                self.display.insert(name.clone(), value.clone());
            }
        }
    }
}

/// The most bytes that the settings of one session take.
pub const SETTINGS_BYTES_MAX: usize = 16 * 1024;

/// The most characters of a label.
pub const LABEL_CHARS_MAX: usize = 512;

impl Settings {
    /// What they take in memory and in the event log, roughly.
    pub fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let display = self.display.iter().map(|(name, value)| name.len() + value.to_string().len() + 8);
        let assignment = self.assignment.as_ref().map_or(0, |assignment| assignment.bytes());
        let allowed: usize = self.allowed.iter().map(|tool| tool.as_str().len() + 4).sum();
        let texts = text(&self.label) + text(&self.model) + text(&self.closed);
        texts + allowed + assignment + display.sum::<usize>()
    }

    /// The settings with a patch, where they are as they may be.
    ///
    /// # Errors
    /// `InvalidRequest` where the label is empty or too long, or where all of it takes more than
    /// [`SETTINGS_BYTES_MAX`].
    pub fn patched(&self, patch: &Patch) -> Result<Self, Error> {
        let mut settings = self.clone();
        settings.apply(patch);
        if let Some(label) = &settings.label {
            if label.trim().is_empty() {
                return Err(ErrorCode::InvalidRequest.error("invalid label: empty"));
            }
            if label.chars().count() > LABEL_CHARS_MAX {
                return Err(ErrorCode::InvalidRequest
                    .error(format!("invalid label: too long (max {LABEL_CHARS_MAX} characters)")));
            }
        }
        let bytes = settings.bytes();
        if bytes > SETTINGS_BYTES_MAX {
            return Err(ErrorCode::InvalidRequest
                .error(format!("a session's settings may take {SETTINGS_BYTES_MAX} bytes, not {bytes}")));
        }
        Ok(settings)
    }
}
