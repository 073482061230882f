//! Which agent answers whom.

use crate::ids::AgentId;

/// One `[[bindings]]` entry: the agent answers what matches everything it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The agent.
    pub agent: AgentId,
    /// The channel.
    pub channel: Option<String>,
    /// The account.
    pub account: Option<String>,
    /// The peer.
    pub peer: Option<String>,
    /// The guild.
    pub guild: Option<String>,
    /// The team.
    pub team: Option<String>,
}
