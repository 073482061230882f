//! What can be asked about plugins; their manifests and grants.

mod address;
mod capability;
mod host_call;
mod http_grant;
mod http_request;
mod input_schema;
mod limits;
mod manifest;
mod namespace;
mod rights;
mod secret;
pub mod signature;
mod store_grant;

use crate::area::area;
use crate::ids::PluginName;

pub use capability::{Capability, HostFunction};
pub use host_call::{GetValue, HOST_CALL_BYTES_MAX, ListKeys, SearchMemory, SetValue};
pub use http_grant::{Denied, HttpGrant, allow};
pub use http_request::{HttpRequest, REDIRECTS_MAX};
pub use input_schema::InputSchema;
pub use limits::CallLimits;
pub use manifest::Manifest;
pub use namespace::PluginNamespace;
pub use rights::Rights;
pub use secret::{GrantedSecret, PluginSecret, SecretGrant, SecretPlace, inject, redact, redact_values};
pub use store_grant::{KEY_BYTES_MAX, LISTED_MAX, QUOTA_BYTES, QUOTA_KEYS, StoreGrant, VALUE_BYTES_MAX};

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
