//! Where values of plugins are kept: apart for each owner and agent.

use std::fmt;

use crate::ids::Owner;

/// A namespace of one owner and one agent.
#[derive(Clone, PartialEq, Eq)]
pub struct PluginNamespace {
    /// Whose sessions it is for.
    pub owner: Owner,
    /// The agent of these sessions.
    pub agent: String,
    /// The namespace's name.
    pub name: String,
}

impl fmt::Debug for PluginNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.owner.as_str(), self.agent, self.name)
    }
}
