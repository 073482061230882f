//! What bounds things: budgets of owners, of unfinished messages and of compressed data, and whose turn it is
//! where many wait.

pub mod fair;
pub mod inflate;
pub mod quota;
pub mod unfinished;
