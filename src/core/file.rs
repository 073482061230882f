//! Files that clients put with the daemon and get from it.

/// What can be asked about files of clients.
#[derive(Clone, Debug, PartialEq)]
pub enum FileCommand {}

/// The answer to a [`FileCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum FileReply {}

impl FileCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match *self {}
    }
}
