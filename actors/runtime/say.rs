//! What is said to people over a channel without their having asked.

use actix::Message;
use clawmux_core::error::Error;
use clawmux_core::ids::Owner;

/// Has a channel say something to somebody whom it admits, or the bus where it is none of the configured ones; durable
/// when answered, and once however often it is asked for. Answered with whose the conversation is.
///
/// Errors: `NotFound` where there is no such channel, with those there are; `Forbidden` where it does not admit them;
/// `Unavailable` where it can't say anything at the moment; `InvalidRequest` where its adapter has no words for it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Owner, Error>")]
pub struct Say {
    /// The channel.
    pub channel: String,
    /// The account on its platform that says it; none = the only one.
    pub account: Option<String>,
    /// The conversation there.
    pub peer: String,
    /// What is said.
    pub text: String,
    /// What it is known by, among all that is said over the channel.
    pub id: String,
}

/// The outbox of this channel has something new.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct OutboxGrew(pub String);
