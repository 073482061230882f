//! Teams of agents that work on one task.

/// What can be asked about teams of agents.
#[derive(Clone, Debug, PartialEq)]
pub enum TeamCommand {}

/// The answer to a [`TeamCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum TeamReply {}

impl TeamCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match *self {}
    }
}
