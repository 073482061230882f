//! What can be asked about plugins; their manifests and grants.

mod manifest;

use std::fmt;

use crate::area::area;
use crate::ids::PluginName;

pub use manifest::Manifest;

area! {
    /// What can be asked about plugins.
    Plugin(PluginCommand => PluginReply) {
        /// List the loaded plugins.
        List(ListPlugins) => Plugins(Vec<PluginSummary>),
        /// Load a plugin.
        Load(LoadPlugin) => Loaded(PluginSummary),
        /// Unload a plugin.
        Unload(UnloadPlugin) => Unloaded(Unloaded),
    }
}

/// The answer to a [`PluginCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum PluginReply {
    /// To `List`.
    Plugins(Vec<PluginSummary>),
    /// To `Load`.
    Loaded(PluginSummary),
    /// To `Unload`.
    Unloaded(Unloaded),
}

/// List the loaded plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlugins;

/// Load a plugin: a configured one, or the file `path` under the plugins folder of the home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlugin {
    /// The name under which it is loaded.
    pub name: PluginName,
    /// The module; none means the configured or embedded one.
    pub path: Option<String>,
}

/// Unload a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnloadPlugin {
    /// The plugin's name.
    pub name: PluginName,
}

/// A plugin that is loaded no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unloaded {
    /// The plugin's name.
    pub name: PluginName,
}

/// A loaded plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSummary {
    /// The plugin's name.
    pub name: PluginName,
    /// Its version, where its manifest says one.
    pub version: Option<String>,
    /// What it says it does.
    pub description: String,
    /// What it was granted, as written in the configuration.
    pub capabilities: Vec<String>,
}

/// Something a plugin may be granted, written `type:value` in the configuration. Everything that
/// is not granted is denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// `host_function:NAME`: may call this host function.
    HostFunction(String),
}

impl Capability {
    /// The host functions there are.
    pub const HOST_FUNCTIONS: [&str; 1] = ["clock"];

    /// Reads a grant as the configuration and manifests write it.
    ///
    /// # Errors
    /// Why it is not understood, and what is allowed. A grant that is not understood refuses its plugin.
    pub fn parse(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "allowed is host_function:clock";
        match text.split_once(':') {
            Some(("host_function", name)) if Self::HOST_FUNCTIONS.contains(&name) => {
                Ok(Self::HostFunction(name.to_owned()))
            }
            Some(("host_function", name)) => {
                Err(format!("capability {text:?}: there is no host function {name:?}; {ALLOWED}"))
            }
            Some((kind @ ("http" | "store"), _)) => {
                Err(format!("capability {text:?}: {kind} grants are not implemented yet; {ALLOWED}"))
            }
            _ => Err(format!("capability {text:?} is not understood, it is written TYPE:VALUE; {ALLOWED}")),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostFunction(name) => write!(f, "host_function:{name}"),
        }
    }
}

#[cfg(test)]
mod capability_tests {
    use super::Capability;

    #[test]
    fn grants_read_back_and_others_are_refused_by_name() {
        let clock = Capability::parse("host_function:clock").unwrap();
        assert_eq!(clock.to_string(), "host_function:clock");
        for (text, says) in [
            ("host_function:exec", "no host function \"exec\""),
            ("http:https://api.example.com/", "http grants are not implemented yet"),
            ("store:notes", "store grants are not implemented yet"),
            ("clock", "not understood"),
            ("", "not understood"),
            ("İİİİ:İ", "not understood"),
        ] {
            let error = Capability::parse(text).unwrap_err();
            assert!(error.contains(says) && error.contains("allowed is"), "{text}: {error}");
        }
    }
}
