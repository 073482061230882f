//! Manifests and grants of plugins.

/// Something a plugin may be granted, written `type:value` in the configuration. Everything that
/// is not granted is denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// `host_function:NAME`: may call this host function.
    HostFunction(String),
}
