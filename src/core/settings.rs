//! What a session is set to: its label, its model, how much is thought, and what clients keep with
//! it for their display.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::thinking::Thinking;

/// The settings of one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What people call it.
    pub label: Option<String>,
    /// The model that answers, `PROVIDER/MODEL`; none = the agent's.
    pub model: Option<String>,
    /// How much is thought; none = the agent's.
    pub thinking: Option<Thinking>,
    /// What clients keep with it, by the clients' names; nothing here means anything to clawmux.
    pub display: BTreeMap<String, Value>,
}

/// A change of [`Settings`]. The outer `None` leaves a setting as it is, the inner one clears it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patch {
    /// The label.
    pub label: Option<Option<String>>,
    /// The model.
    pub model: Option<Option<String>>,
    /// How much is thought.
    pub thinking: Option<Option<Thinking>>,
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
        for (name, value) in &patch.display {
            if value.is_null() {
                self.display.remove(name);
            } else {
                self.display.insert(name.clone(), value.clone());
            }
        }
    }
}
