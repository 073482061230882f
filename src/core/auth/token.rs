//! API keys and JWTs that the daemon gave out.

/// What can be asked about credentials of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenCommand {}

/// The answer to a [`TokenCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum TokenReply {}

impl TokenCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match *self {}
    }
}
