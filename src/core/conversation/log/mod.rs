//! How events are written down.
//!
//! The log owns its record structs; domain types know nothing of them. An event becomes a *kind*
//! (a name) and a *body* (JSON). Fields may be added to a body: readers pass over what they do not
//! know. A field or a kind whose meaning changes gets a new name, and a kind that is not known is
//! refused with a typed error, never skipped: a fold that misses an event is wrong.
//!
//! | module | what it knows |
//! |---|---|
//! | [`record`] | an event as kind and body, and back |
//! | [`segment`] | text of consecutive sequence numbers, kept once and cut anywhere |
//! | [`page`] | the text of many sessions between two commits, as one value |
//! | [`check`] | what may be added to a session's log |
//! | [`usage`] | what one model call cost |
//!
//! Deliberately absent: where records are kept, and in which order they become durable. That is
//! the store's.

pub mod check;
pub mod page;
pub mod record;
pub mod segment;
pub mod usage;

use crate::error::{Error, ErrorCode};

/// A record that can't be read: a damaged store, or one of a newer version.
fn unreadable(what: &str, why: impl std::fmt::Display) -> Error {
    ErrorCode::Internal.error(format!("the store holds a {what} that can't be read: {why}"))
}
