//! The arguments of commands about channels.

use clap::{Args, Subcommand};

/// What can be done with one channel.
#[derive(Debug, Subcommand)]
pub(crate) enum ChannelCommand {
    /// Let somebody write over a channel, by the code that they were told
    Pair {
        /// The name of the channel; `clawmux channels` lists them
        channel: String,
        /// The code
        code: String,
    },
    /// Let somebody write over a channel no more who was let in with a code
    Unpair {
        /// The name of the channel; `clawmux channels` lists them
        channel: String,
        /// Who: as `clawmux channels NAME` shows them
        name: String,
    },
    /// Send an answer again that could not be sent
    ///
    /// It is sent from the message on that failed. If nobody knows whether that one arrived, the other side may get it
    /// twice.
    Resend(AnswerArg),
    /// Forget an answer that could not be sent; it stays in its session
    Drop(AnswerArg),
}

/// An answer of a channel.
#[derive(Args, Debug)]
pub(crate) struct AnswerArg {
    /// The name of the channel; `clawmux channels` lists them
    pub(crate) channel: String,
    /// The number of the answer: `clawmux channels NAME` shows them
    pub(crate) answer: i64,
}
