//! The bus: how adapters in any language, in other processes or on other machines, bring messages in and carry
//! answers out. What a message means, and in which order those of a peer are taken; nothing here speaks to a server.
//!
//! | module | what it knows |
//! |---|---|
//! | [`subject`] | the subjects of a peer, and back |
//! | [`headers`] | whether the headers of a message can be read |
//! | [`inbound`] | a message as an adapter publishes it |
//! | [`outbound`] | an answer as adapters read it |
//! | [`peers`] | which message of which peer is next, and what is given back |

pub mod headers;
pub mod inbound;
pub mod outbound;
pub mod peers;
pub mod subject;

/// The headers of the bus, beside `Nats-Msg-Id` and `Content-Type`.
pub mod header {
    /// Of an inbound message: a subject that its answers go to, too.
    pub const REPLY: &str = "Clawmux-Reply";
    /// Of an inbound message: `1` = the text is wanted as it is said.
    pub const STREAM: &str = "Clawmux-Stream";
    /// Of an answer: its run.
    pub const RUN: &str = "Clawmux-Run";
    /// Of an answer: the id of the message it answers.
    pub const IN_REPLY_TO: &str = "Clawmux-In-Reply-To";
    /// Of a dead letter: why it could not be taken.
    pub const REASON: &str = "Clawmux-Reason";
    /// Of a dead letter: the subject it came on.
    pub const SUBJECT: &str = "Clawmux-Subject";
    /// Of a dead letter: the id it came with.
    pub const ID: &str = "Clawmux-Id";
    /// Of a dead letter: how often it was delivered.
    pub const DELIVERIES: &str = "Clawmux-Deliveries";
    /// Of a dead letter: what of it was left out, since it had no room.
    pub const LEFT_OUT: &str = "Clawmux-Left-Out";
}
