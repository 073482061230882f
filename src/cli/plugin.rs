//! The arguments of commands about plugins.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What can be done with one plugin.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Load a plugin that is configured, ships in the binary, or lies in the plugins folder of the home
    ///
    /// A plugin of the folder is found by its name: plugins/NAME.wasm. An agent uses it once the agent's tools name it:
    /// `clawmux config set agents.main.tools echo,clock,NAME`.
    Load(LoadPlugin),
    /// Unload a plugin: no new calls are made, those that are running finish
    Unload(PluginArg),
    /// Load a plugin again from where it came from, without a gap
    ///
    /// Its file, its manifest and its capabilities are read again. Calls that are running finish on the old one. If the
    /// new one can't be loaded, the old one stays.
    Reload(PluginArg),
    /// Try a plugin with an input, under its own capabilities and limits; the exit status is 1 if it fails
    Call(CallPlugin),
    /// Write the beginnings of a plugin in Rust: a crate that builds, with a test
    New(NewPlugin),
    /// Sign a plugin: write the digest of its module into its manifest, and a signature beside it
    ///
    /// The signature is in NAME.toml.sig. With sandbox.trusted_keys in the configuration, only plugins that one of these
    /// keys has signed are loaded.
    Sign(SignPlugin),
    /// Look at who has signed a plugin; the exit status is 1 if nobody has, or something was changed since
    Verify(VerifyPlugin),
}

/// A plugin by its name.
#[derive(Args, Debug)]
pub(crate) struct PluginArg {
    /// The name of the plugin; `clawmux plugins` lists them
    pub(crate) name: String,
}

/// `plugin load`
#[derive(Args, Debug)]
pub(crate) struct LoadPlugin {
    #[command(flatten)]
    pub(crate) plugin: PluginArg,
    /// A file in the plugins folder of the home, such as notes.wasm [default: the one that is configured or ships in
    /// the binary, else NAME.wasm]
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<String>,
}

/// `plugin call`
#[derive(Args, Debug)]
pub(crate) struct CallPlugin {
    #[command(flatten)]
    pub(crate) plugin: PluginArg,
    #[command(flatten)]
    pub(crate) input: ToolInput,
}

/// What a tool is called with.
#[derive(Args, Debug)]
pub(crate) struct ToolInput {
    /// A JSON object, such as '{"text":"hi"}' (`-`: from stdin) [default: {}]
    #[arg(conflicts_with = "input_file")]
    pub(crate) input: Option<String>,
    /// File with the JSON object
    #[arg(long, value_name = "FILE")]
    pub(crate) input_file: Option<PathBuf>,
}

/// `plugin new`
#[derive(Args, Debug)]
pub(crate) struct NewPlugin {
    /// Its name
    pub(crate) name: String,
    /// An adapter of a channel instead of a tool
    #[arg(long)]
    pub(crate) adapter: bool,
    /// The folder that it is written into [default: one of its name, here]
    #[arg(long, value_name = "DIR")]
    pub(crate) into: Option<PathBuf>,
}

/// `plugin sign`
#[derive(Args, Debug)]
pub(crate) struct SignPlugin {
    /// The module, or the name of one in the plugins folder of the home
    #[arg(value_name = "NAME|FILE")]
    pub(crate) plugin: PathBuf,
    /// File with the secret key, made if it is not there [default: plugin-signing.key in the home]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

/// `plugin verify`
#[derive(Args, Debug)]
pub(crate) struct VerifyPlugin {
    /// The module, or the name of one in the plugins folder of the home
    #[arg(value_name = "NAME|FILE")]
    pub(crate) plugin: PathBuf,
    /// The public key that must have signed it [default: any]
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
}

/// `compile-plugin`
#[derive(Args, Debug)]
pub(crate) struct CompilePlugin {
    /// Where the code goes
    pub(crate) folder: PathBuf,
    /// Memory it may take, in bytes
    pub(crate) memory: u64,
    /// Time it may take, in seconds
    pub(crate) seconds: u64,
}
