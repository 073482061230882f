//! The arguments of commands about who and what is let in: tool calls, devices, credentials.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::value::{duration, duration_or_zero};

/// What can be decided about a tool call that waits.
#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalCommand {
    /// Run the call
    Approve {
        /// The id of the approval, or its beginning; `clawmux approvals` lists them
        id: String,
        /// Run it with the JSON object in this file (`-`: stdin) instead of the model's input
        #[arg(long, value_name = "FILE", conflicts_with = "for_session")]
        input_file: Option<PathBuf>,
        /// Run later calls of the same tool in the same session as well, without asking
        #[arg(long)]
        for_session: bool,
    },
    /// Refuse the call; the model is told
    Deny {
        /// The id of the approval, or its beginning; `clawmux approvals` lists them
        id: String,
        /// Tell the model why
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

/// What can be done with one device.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Pair a device that waits
    Approve(DeviceArg),
    /// Refuse a device that waits
    Reject(DeviceArg),
    /// Void the tokens of a device and close its connections; one that waits is refused
    Revoke(DeviceArg),
}

/// A device, or a request that waits.
#[derive(Args, Debug)]
pub(crate) struct DeviceArg {
    /// The id of the request or of the device, or its beginning; `clawmux devices` lists them
    pub(crate) id: String,
}

/// What can be done with credentials.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Give out an API key or a JWT: it goes to stdout, once; only its hash is kept
    ///
    /// From the first one on every client needs a credential, on loopback too, also when all are revoked.
    Create(CreateToken),
    /// Let nobody in with it any more, and close its connections
    Revoke {
        /// Its id, the beginning of that, or its name where no other has it; `clawmux tokens` lists them
        #[arg(value_name = "ID|NAME")]
        id: String,
    },
    /// Give out another in its place: it goes to stdout, once, and the old one holds on for a while
    ///
    /// The new one has the name and the scopes of the old one, so that what belongs to it is found by both. Connections
    /// of the old one stay until its end.
    Rotate(RotateToken),
}

/// `token create`
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("allowed").required(true))]
pub(crate) struct CreateToken {
    /// Its name: what is made with it belongs to that
    #[arg(long)]
    pub(crate) name: String,
    /// What it allows
    #[arg(long, value_name = "ROLE", group = "allowed", value_parser = ["admin", "user", "readonly"])]
    pub(crate) role: Option<String>,
    /// Instead of a role: a scope such as daemon.read or operator.approvals; may be given several times
    #[arg(long, group = "allowed")]
    pub(crate) scope: Vec<String>,
    /// A JWT instead of an API key; takes a secret under auth.jwt, and lives 30 days unless --expires says else
    #[arg(long)]
    pub(crate) jwt: bool,
    /// How long it lives, such as 12h or 30d [default: an API key lives until it is revoked]
    #[arg(long, value_name = "SPAN", value_parser = duration)]
    pub(crate) expires: Option<Duration>,
    /// Takes over what belongs to the name, where it had a credential before: sessions, memories, files, jobs
    #[arg(long)]
    pub(crate) inherit: bool,
    /// Do not ask before the first credential, from which on every client over TCP needs one
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// `token rotate`
#[derive(Args, Debug)]
pub(crate) struct RotateToken {
    /// Its id, the beginning of that, or its name where no other has it; `clawmux tokens` lists them
    #[arg(value_name = "ID|NAME")]
    pub(crate) id: String,
    /// For how long the old one holds on, such as 1h or 7d; 0s ends it at once
    #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = duration_or_zero)]
    pub(crate) overlap: Duration,
    /// How long the new one lives [default: as long as the old one was to live]
    #[arg(long, value_name = "SPAN", value_parser = duration)]
    pub(crate) expires: Option<Duration>,
}
