//! What is remembered for an owner, apart from conversations.

/// What can be asked about what is remembered.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryCommand {}

/// The answer to a [`MemoryCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryReply {}

impl MemoryCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match *self {}
    }
}
