//! The arguments of `clawmux config`.

use clap::Subcommand;

/// What can be done with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every key with its value and where that was written; secrets are never shown
    Get {
        /// Show only this key, such as limits.queue, or this section
        path: Option<String>,
    },
    /// Set a key; the running daemon applies it at once, or says that it needs a restart
    ///
    /// The file that the value came from is changed, and its comments stay. If it can't be written, or no file has the
    /// key yet, that is gateway.toml in the home (or --config FILE).
    Set {
        /// The key, such as limits.queue
        path: String,
        /// The value as in TOML, or a bare text; a list also as a,b,c
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Remove a key, so that its default applies again, or what another file says
    Unset {
        /// The key, such as limits.queue, or a section
        path: String,
    },
    /// Have the daemon read its configuration again, as SIGHUP does
    ///
    /// If anything in it is wrong, nothing changes: everything that is wrong is listed, and the exit status is 64.
    Reload,
}
