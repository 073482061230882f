//! The arguments of `memory`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::value::positive;

/// `memory`
#[derive(Args, Debug)]
pub(crate) struct Memory {
    /// Whose memories: the name of a credential, `operators`, or a conversation over a channel such as
    /// `channel:telegram/main:telegram:main:42`
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) owner: Option<String>,
    /// List those too whose place a newer one took
    #[arg(long, requires = "owner")]
    pub(crate) history: bool,
    /// What to do; without it they are listed
    #[command(subcommand)]
    pub(crate) command: Option<MemoryCommand>,
}

/// What can be done with memories.
#[derive(Debug, Subcommand)]
pub(crate) enum MemoryCommand {
    /// Find what is relevant to a question, among the memories of one owner
    ///
    /// Finds what an agent of this owner finds: by words, by what is written alike, and by what facts connect. Without
    /// --owner those of the operators are searched. The score ranks the answers of one search against each other.
    Search {
        /// A question, or words
        query: String,
        /// Show at most N
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = positive)]
        limit: usize,
    },
    /// Show one memory: where it is from, and of a fact what was known before
    Show {
        /// Its id, or the beginning of it
        memory: String,
    },
    /// Delete memories for good; nothing that they took the place of comes back
    Forget {
        /// Their ids, or the beginnings of them
        #[arg(required_unless_present = "all")]
        memories: Vec<String>,
        /// Delete all that is remembered for --owner
        #[arg(long, conflicts_with = "memories")]
        all: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Write all memories, superseded facts too, one JSON object a line
    ///
    /// Without --owner those of everybody.
    Export,
    /// Read what `export` wrote; what is there already is left as it is
    ///
    /// Without --owner each memory goes to whom it belonged to. With it all go to that owner, without their sessions.
    Import {
        /// The file; `-` for stdin
        file: PathBuf,
    },
}
