//! The arguments of commands that need no daemon: set-up, checks, files and documentation.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `setup`
#[derive(Args, Debug)]
pub(crate) struct Setup {
    /// Ask nothing: take the first provider that answers, and the offline model where none is found
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Change a gateway.toml that is there without asking; a copy of it is kept
    #[arg(long)]
    pub(crate) force: bool,
}

/// `doctor`
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Read the store for at most about so long; a large one is looked through as far as that goes
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) within: u64,
    /// Ask no model provider, and no server of the cluster
    #[arg(long)]
    pub(crate) offline: bool,
    /// Look only whether the record of tool calls is as it was written
    #[arg(long, conflicts_with = "within")]
    pub(crate) audit: bool,
}

/// `restore`
#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// A file that `clawmux backup` wrote
    pub(crate) file: PathBuf,
    /// Do not ask, even where revoked credentials become valid again or loopback needs none any more
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `unit`
#[derive(Args, Debug)]
pub(crate) struct Unit {
    /// For the service manager of this user instead of the system's: the home is ~/.clawmux as ever
    #[arg(long)]
    pub(crate) user: bool,
    /// Write clawmux.service and clawmux.socket into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The binary that the service starts, for packages [default: this one]
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<PathBuf>,
    /// Print the service unit alone
    #[arg(long, conflicts_with_all = ["out", "socket"])]
    pub(crate) service: bool,
    /// Print the socket unit alone
    #[arg(long, conflicts_with = "out")]
    pub(crate) socket: bool,
}

/// `reference`
#[derive(Args, Debug)]
pub(crate) struct Reference {
    /// The protocol [default: all of them]
    #[arg(value_enum)]
    pub(crate) protocol: Option<Protocol>,
}

/// A protocol that describes itself.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Protocol {
    /// exoclaw's, on /ws and on the Unix socket
    Exoclaw,
    /// OpenClaw's, on /
    Openclaw,
    /// Wundr's protocol v2, on /v2
    Wundr,
    /// xeno's, on the Unix socket
    Xeno,
    /// The operator's, on /admin and on the Unix socket
    Admin,
}

/// A shell that completes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    /// For ~/.local/share/bash-completion/completions/clawmux
    Bash,
    /// For a file _clawmux in a folder of $fpath
    Zsh,
    /// For ~/.config/fish/completions/clawmux.fish
    Fish,
}

/// `man`
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The command the page is about, such as `session tail` [default: all of clawmux]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub(crate) page: Vec<String>,
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
