//! Agents that are put to work for a session, each in a session of its own.

/// What can be asked about agents that work for a session.
#[derive(Clone, Debug, PartialEq)]
pub enum SubAgentCommand {}

/// The answer to a [`SubAgentCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum SubAgentReply {}

impl SubAgentCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match *self {}
    }
}
