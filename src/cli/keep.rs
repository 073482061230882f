//! The arguments of the command by which the daemon keeps programs of somebody else's.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// `keep`
#[derive(Args, Debug)]
pub(crate) struct Keep {
    /// Memory it may take with all it starts, in bytes
    #[arg(long)]
    pub(crate) memory: u64,
    /// Processes there may be at a time
    #[arg(long)]
    pub(crate) processes: usize,
    /// Let it reach only the folders that are named, and those of programs and libraries
    #[arg(long)]
    pub(crate) folders: bool,
    /// A folder it may read
    #[arg(long, value_name = "DIR", requires = "folders")]
    pub(crate) read: Vec<PathBuf>,
    /// A folder it may read and write
    #[arg(long, value_name = "DIR", requires = "folders")]
    pub(crate) write: Vec<PathBuf>,
    /// Become the program instead of keeping it
    #[arg(long)]
    pub(crate) confined: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
