//! The arguments of commands that ask a daemon of a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What a daemon can be asked of its cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum RunningCommand {
    /// Show how the cluster is: whether it can be written, its log, who owns how much
    ///
    /// It is what the daemon of this home sees. Exit status 1 if nothing can be written, or stores differ.
    Status,
    /// List the daemons that ever joined, and how far the store of each is
    ///
    /// BEHIND counts the records of the log that a store did not have when its daemon last said so. SAME is whether
    /// the store has the same records as that of the daemon that is asked, where both were seen at the same one.
    Nodes,
    /// List who owns which sessions: 256 slots, each with a share of them
    Slots {
        /// Only that of this session
        #[arg(long, value_name = "KEY")]
        session: Option<String>,
    },
    /// Have a daemon give its sessions to the others, before it is stopped
    ///
    /// Runs there may finish their step, and go on at the others. It stays connected to its clients, and takes no
    /// sessions until it is started anew. Any daemon of the cluster can be asked.
    Handover {
        /// Its name: `clawmux cluster nodes` lists them
        node: String,
    },
}

/// Arguments of `cluster demo`.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// The program of the NATS servers, of at least version 2.12 [default: nats-server of the PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) nats_server: Option<PathBuf>,
    /// An empty folder for everything, which is kept [default: a temporary one, which is removed]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
