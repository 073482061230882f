//! Tool calls that wait until somebody decides whether they are made.

/// What can be asked about tool calls that wait until somebody decides.
#[derive(Clone, Debug, PartialEq)]
pub enum ApprovalCommand {}

/// The answer to a [`ApprovalCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum ApprovalReply {}

impl ApprovalCommand {
    /// What it takes of memory with its reply, where a small request takes 1.
    pub fn weight(&self) -> usize {
        match *self {}
    }
}
