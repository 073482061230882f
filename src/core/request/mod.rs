//! What a client can ask and what it is answered, in no protocol's words: every dialect translates into
//! these. Each area of commands has its own types; here they are put together.

pub mod ask;
pub mod command;
pub mod reply;
