//! Other plugins while the daemon runs: what a new configuration has of them is loaded beside what is
//! there, and put in its place when all of it can be called. So nobody waits for a compiler, calls under
//! way finish in the module they began in, and where one of them can't be loaded nothing has changed.
//!
//! What an operator has loaded or unloaded by hand stays so, unless its entry changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use actix::prelude::*;
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::signature::PublicKey;
use futures::future::join_all;
use tokio::sync::watch;

use super::{Entry, PLUGINS_MAX, SandboxSupervisor, State};
use crate::plugin::{Loading, Plugin, Retire, settled};
use crate::runtime::supervision::Restarts;
use crate::sandbox::source::Source;

/// Loads the plugins of another configuration that are not as they are now. What runs is not touched:
/// see [`Replace`].
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Staged, Error>")]
pub struct Stage {
    /// The plugins.
    pub plugins: Vec<config::Plugin>,
    /// What holds for all of them.
    pub sandbox: config::Sandbox,
}

/// Puts what was staged in the place of what runs.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Replace(pub Staged);

/// Plugins that are loaded and not in use yet. Dropped, they end.
pub struct Staged {
    trusted: Arc<Vec<PublicKey>>,
    configured: BTreeMap<PluginName, config::Plugin>,
    fresh: Vec<Fresh>,
    gone: Vec<PluginName>,
}

/// One of them.
struct Fresh {
    name: PluginName,
    source: Source,
    generation: u64,
    /// Taken where it is put to use.
    to: Option<Addr<Plugin>>,
    loading: watch::Receiver<Loading>,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            retire(&to);
        }
    }
}

impl Staged {
    /// The plugins that are added, replaced or taken away.
    pub fn changed(&self) -> impl Iterator<Item = &PluginName> {
        self.fresh.iter().map(|fresh| &fresh.name).chain(&self.gone)
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.changed()).finish()
    }
}

/// Has a plugin end when its calls have.
#[expect(clippy::disallowed_methods, reason = "lifecycle message to a child, one per child")]
pub(super) fn retire(plugin: &Addr<Plugin>) {
    plugin.do_send(Retire);
}

/// The entries of a configuration by name; relative paths start in `home`.
pub(super) fn by_name(plugins: Vec<config::Plugin>, home: &Path) -> BTreeMap<PluginName, config::Plugin> {
    let absolute = |mut plugin: config::Plugin| {
        plugin.path = plugin.path.map(|path| home.join(path));
        (plugin.name.clone(), plugin)
    };
    plugins.into_iter().map(absolute).collect()
}

/// A plugin that may have to be loaded, and what is known of the one that runs under its name.
struct Look {
    name: PluginName,
    source: Source,
    entry: Option<config::Plugin>,
    running: Option<watch::Receiver<Loading>>,
}

impl Look {
    /// Whether what would be loaded is something else than what runs.
    ///
    /// # Errors
    /// Where it can't be read, or may not be loaded.
    async fn is_other(&self, trusted: Arc<Vec<PublicKey>>) -> Result<bool, Error> {
        let (name, source, entry) = (self.name.clone(), self.source.clone(), self.entry.clone());
        let read =
            tokio::task::spawn_blocking(move || Ok(source.read(&name, entry.as_ref(), &trusted)?.digest()));
        let failed = |_| ErrorCode::Internal.error(format!("plugin {} could not be looked at", self.name));
        let digest = read.await.map_err(failed)??;
        let running = match self.running.clone() {
            Some(loading) => settled(loading).await.ok(),
            None => None,
        };
        Ok(running.is_none_or(|running| running.package.digest() != digest))
    }
}

impl SandboxSupervisor {
    /// What there is to look at, and what is to be taken away.
    fn compare(&self, configured: &BTreeMap<PluginName, config::Plugin>) -> (Vec<Look>, Vec<PluginName>) {
        let (mut looks, mut gone) = (Vec::new(), Vec::new());
        let own = self.default_plugins();
        let all: BTreeSet<PluginName> =
            own.chain(self.configured.keys().chain(configured.keys()).cloned()).collect();
        for name in all {
            let (before, now) = (self.configured.get(&name), configured.get(&name));
            let is_own = |entry: &Entry| !matches!(entry.source, Source::Loaded { .. });
            let source = Source::own(&self.embedded, &name, now);
            match (source, self.plugins.get(&name)) {
                (None, Some(entry)) if is_own(entry) => gone.push(name),
                (None, _) => {}
                (Some(_), None) if before == now => {}
                (Some(_), Some(entry)) if before == now && !is_own(entry) => {}
                (Some(source), running) => {
                    let running = running.filter(|entry| is_own(entry)).and_then(|_| self.loading(&name));
                    looks.push(Look { name, source, entry: now.cloned(), running });
                }
            }
        }
        (looks, gone)
    }

    fn start_beside(&mut self, look: Look, trusted: Arc<Vec<PublicKey>>, ctx: &Context<Self>) -> Fresh {
        let Look { name, source, entry, .. } = look;
        let (to, loading) = self.launch(&name, source.clone(), entry, trusted, ctx);
        Fresh { name, source, generation: self.generation, to: Some(to), loading }
    }
}

impl Handler<Stage> for SandboxSupervisor {
    type Result = ResponseActFuture<Self, Result<Staged, Error>>;

    fn handle(&mut self, Stage { plugins, sandbox }: Stage, _: &mut Self::Context) -> Self::Result {
        let trusted = Arc::new(sandbox.trusted_keys);
        let (looking, starting) = (Arc::clone(&trusted), Arc::clone(&trusted));
        let configured = by_name(plugins, &self.home);
        let (looks, gone) = self.compare(&configured);
        let others = async move {
            let mut others = Vec::new();
            for look in looks {
                if look.is_other(Arc::clone(&looking)).await? {
                    others.push(look);
                }
            }
            Ok(others)
        };
        Box::pin(
            others
                .into_actor(self)
                .map(move |others: Result<Vec<Look>, Error>, supervisor, ctx| {
                    let others = others?;
                    if supervisor.plugins.len() + others.len() > PLUGINS_MAX {
                        return Err(ErrorCode::Unavailable
                            .error(format!("more than {PLUGINS_MAX} plugins would be loaded")));
                    }
                    let beside = |look| supervisor.start_beside(look, Arc::clone(&starting), ctx);
                    Ok(others.into_iter().map(beside).collect::<Vec<_>>())
                })
                .then(move |fresh, supervisor, _| {
                    async move {
                        let fresh = fresh?;
                        let loaded =
                            join_all(fresh.iter().map(|fresh: &Fresh| settled(fresh.loading.clone()))).await;
                        let failed: Vec<String> =
                            loaded.into_iter().filter_map(|loaded| loaded.err().map(|e| e.message)).collect();
                        match failed.is_empty() {
                            true => Ok(Staged { trusted, configured, fresh, gone }),
                            false => Err(ErrorCode::InvalidRequest.error(failed.join("\n"))),
                        }
                    }
                    .into_actor(supervisor)
                }),
        )
    }
}

impl Handler<Replace> for SandboxSupervisor {
    type Result = ();

    fn handle(&mut self, Replace(staged): Replace, ctx: &mut Self::Context) {
        let Staged { trusted, configured, fresh, gone } = staged;
        self.surroundings.trusted = trusted;
        self.configured = configured;
        for name in gone {
            if self.plugins.get(&name).is_some_and(|entry| !matches!(entry.source, Source::Loaded { .. })) {
                self.retire(&name);
                tracing::info!(plugin = %name, "plugin unloaded: it is no longer configured");
            }
        }
        for mut fresh in fresh {
            let restarts = Restarts::default();
            match fresh.to.take().filter(Addr::connected) {
                Some(to) => {
                    let state = State::Running { to, loading: fresh.loading.clone() };
                    let (source, generation) = (fresh.source.clone(), fresh.generation);
                    self.put(fresh.name.clone(), Entry { source, generation, restarts, state });
                }
                // It crashed meanwhile.
                None => self.start_plugin(&fresh.name, fresh.source.clone(), restarts, ctx),
            }
        }
    }
}
