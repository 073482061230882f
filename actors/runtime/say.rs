//! What is said to people over a channel without their having asked.

use actix::Message;
use clawmux_core::error::Error;

/// Has a channel say something to somebody whom it admits; durable when answered, and once however often it is
/// asked for.
///
/// Errors: `NotFound` where there is no such channel, with those there are; `Forbidden` where it does not admit them;
/// `Unavailable` where it can't say anything at the moment; `InvalidRequest` where its adapter has no words for it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
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
