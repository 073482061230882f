//! The arguments of commands about sessions.

use clap::{Args, Subcommand};

use super::value::positive;

/// `sessions`
#[derive(Args, Debug)]
pub(crate) struct Sessions {
    /// Show only sessions whose keys begin with this; OWNER/ before it: those of another owner
    #[arg(value_name = "KEY")]
    pub(crate) prefix: Option<String>,
    /// Show at most N
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(crate) limit: usize,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}

/// What can be done with one session.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Show the events of a session: prompts, answers, tool calls and their results; times are UTC
    Show(Show),
    /// Follow what happens in a session until Ctrl-C
    Tail(Tail),
    /// End the run of a session; what it said so far is kept, and the next prompt in the queue starts
    Abort(Abort),
    /// Have the agent start over in a session: it forgets the conversation, the events are kept
    Clear(SessionArg),
    /// End the run of a session and all that are queued
    Stop(SessionArg),
    /// Delete a session with all its events; what it cost stays on record
    Delete(SessionArg),
    /// Write all events of a session as JSON, one object a line, with the attachments of prompts
    Export(Export),
}

/// A session by its name or key.
#[derive(Args, Debug)]
pub(crate) struct SessionArg {
    /// The session: a NAME, short for main:cli:$USER:NAME; a KEY, AGENT:CHANNEL:ACCOUNT:PEER, or a beginning that only
    /// one has; another owner's is OWNER/KEY. `clawmux sessions` lists them
    #[arg(value_name = "NAME|KEY")]
    pub(crate) key: String,
}

/// `session show`
#[derive(Args, Debug)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Show only what comes after this event
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: u64,
    /// Show at most N events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// `session tail`
#[derive(Args, Debug)]
pub(crate) struct Tail {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Begin after this event, such as the last one seen [default: begin now]
    #[arg(long, value_name = "SEQ")]
    pub(crate) after: Option<u64>,
}

/// `session abort`
#[derive(Args, Debug)]
pub(crate) struct Abort {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// This run, which may still be queued, instead of the one that is under way
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
}

/// `session export`
#[derive(Args, Debug)]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Write only what comes after this event
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: u64,
}
