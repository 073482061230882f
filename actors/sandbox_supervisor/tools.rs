//! The tools that plugins are, where every session finds them without asking anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::tools::call::ToolSpec;
use tokio::sync::watch;

use super::{SandboxSupervisor, loaded};
use crate::plugin::{Loaded, Loading, settled};
use crate::runtime::ask::gone;

/// The plugins that can be called, or may be soon: one value, which the supervisor swaps when one is loaded or
/// unloaded. Not there before the supervisor has started.
#[derive(Clone, Debug)]
pub struct Tools(watch::Receiver<Option<Arc<Plugins>>>);

type Plugins = BTreeMap<PluginName, watch::Receiver<Loading>>;

impl Tools {
    /// The tools of these names, in this order. Those that are not there or can't be loaded are left out,
    /// and those that take longer than [`TOOLS_WAIT`](super::TOOLS_WAIT) to be.
    ///
    /// # Errors
    /// `Unavailable` where the supervisor never started.
    pub async fn find(&self, names: impl Iterator<Item = &PluginName>) -> Result<Vec<ToolSpec>, Error> {
        let mut shared = self.0.clone();
        let plugins = shared.wait_for(Option::is_some).await;
        let plugins = plugins.map_err(|_| gone::<SandboxSupervisor>())?.clone().unwrap_or_default();
        let found = names.filter_map(|name| plugins.get(name).cloned()).collect();
        Ok(loaded(found).await.into_iter().filter_map(|loaded| loaded.tool().cloned()).collect())
    }

    /// The plugin of this name, once it is loaded.
    ///
    /// # Errors
    /// `NotFound` where there is none; why it can't be loaded.
    pub(crate) async fn named(&self, name: &PluginName) -> Result<Arc<Loaded>, Error> {
        let mut shared = self.0.clone();
        let plugins = shared.wait_for(Option::is_some).await;
        let plugins = plugins.map_err(|_| gone::<SandboxSupervisor>())?.clone().unwrap_or_default();
        let loading = plugins.get(name).cloned();
        let loading =
            loading.ok_or_else(|| ErrorCode::NotFound.error(format!("there is no plugin {name}")))?;
        settled(loading).await
    }
}

/// The supervisor's end.
pub(super) struct Shared(watch::Sender<Option<Arc<Plugins>>>);

impl Default for Shared {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Shared {
    pub(super) fn tools(&self) -> Tools {
        Tools(self.0.subscribe())
    }

    /// From now on it is these.
    pub(super) fn set(&self, plugins: Plugins) {
        self.0.send_replace(Some(Arc::new(plugins)));
    }
}
