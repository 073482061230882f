//! The arguments of commands that run the daemon, look at it or act on the whole of it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::value::{connection_number, positive};

/// `serve`
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Address to listen on instead of the configured ones; can be given several times
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Vec<String>,
    /// Path of the operator's Unix socket [default: .xeno/gateway.sock in the home]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// `actors`
#[derive(Args, Debug)]
pub(crate) struct Actors {
    /// Show at most N children of each actor, those in trouble first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) children: usize,
    /// Show every figure, also those that are 0
    #[arg(long)]
    pub(crate) figures: bool,
}

/// What can be done with one connection.
#[derive(Debug, Subcommand)]
pub(crate) enum ConnectionCommand {
    /// Close a connection; its client may connect again, and what it asked for goes on
    Close {
        /// The number of the connection; `clawmux connections` lists them
        #[arg(value_parser = connection_number)]
        id: u64,
    },
}

/// `events`
#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Show only sessions whose keys begin with this
    #[arg(long, value_name = "KEY")]
    pub(crate) session: Option<String>,
    /// Show only this kind, such as prompt, tool_call, end or approval; can be given several times
    #[arg(long)]
    pub(crate) kind: Vec<String>,
    /// Wait for a daemon if none is reachable, or if it goes away
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `usage`
#[derive(Args, Debug)]
pub(crate) struct Usage {
    /// Say instead how much of the input was in the caches of providers, and what changed where it was not
    #[arg(long, conflicts_with_all = ["by", "csv"])]
    pub(crate) cache: bool,
    /// Print the sums as comma-separated values
    #[arg(long)]
    pub(crate) csv: bool,
    /// Sum up by this
    #[arg(long, value_enum, default_value_t = UsageBy::Day)]
    pub(crate) by: UsageBy,
    /// Look at the last N days, today included; days begin at midnight UTC
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = positive)]
    pub(crate) days: usize,
    /// Show at most N rows
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive)]
    pub(crate) limit: usize,
}

/// By what spending is added up.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UsageBy {
    /// The day, the latest first
    Day,
    /// The agent
    Agent,
    /// The principal: the owner of the session
    Principal,
    /// The model of a provider
    Model,
    /// The session
    Session,
}

/// `drain`
#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// Wait at most this long; then the exit status is 1, and the daemon goes on draining
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// Accept prompts again
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) off: bool,
}
