//! The arguments of commands about the bus.

use clap::{Args, Subcommand};

/// What can be asked of the bus.
#[derive(Debug, Subcommand)]
pub(crate) enum BusCommand {
    /// Show how the bus is: its servers, what waits, what was done
    Status,
    /// List, show, replay or drop messages that could not be taken
    #[command(subcommand)]
    Dlq(DlqCommand),
}

/// What can be done with messages that could not be taken.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List them, the oldest first
    List {
        /// Only those that come after this number
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// No more than so many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
    },
    /// Show one with its headers and what it says
    Show {
        /// Its number: `clawmux bus dlq list` shows them
        letter: u64,
    },
    /// Publish one again where it came from, or all
    ///
    /// It is taken like a new message. Its id is the old one with #replay-1, or the next number, since the server drops
    /// an id that it has seen in the last minutes.
    Replay(WhichLetters),
    /// Delete one, or all
    Drop(WhichLetters),
}

/// Which of them.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WhichLetters {
    /// Its number: `clawmux bus dlq list` shows them
    pub(crate) letter: Option<u64>,
    /// All of them; no more than 1000 at once
    #[arg(long)]
    pub(crate) all: bool,
}
