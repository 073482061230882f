//! Who knows the plugins: name to actor, loading and unloading, and starting anew what crashed.
//!
//! It forwards calls and never waits for one. Loading happens in the background from the start
//! on, so that a daemon is ready before its plugins are compiled; whoever looks for [`Tools`] or calls
//! one meanwhile waits for it, up to a bound.

mod reload;
mod tools;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, ResponseActFuture, ResponseFuture,
    WrapFuture, fut,
};
use clawmux_core::config;
use clawmux_core::daemon::operator::ReloadPlugin;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{PluginName, RunId, SessionKey};
use clawmux_core::tools::call::ToolCall;
use clawmux_core::tools::plugin::signature::PublicKey;
use clawmux_core::tools::plugin::{
    ListPlugins, LoadPlugin, PluginCommand, PluginReply, PluginSummary, UnloadPlugin, Unloaded,
};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all, ready};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::plugin::{
    AdapterCall, Call, Calling, HostServices, LOADS_MAX, Loaded, Loading, Plugin, Surroundings, What, settled,
};
use crate::runtime::ask::Typed;
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed, TIMEOUT, observe_passing};
use crate::runtime::supervision::{Down, Guard, Restarts};
use crate::sandbox::cache::Cache;
use crate::sandbox::compiler::Compiler;
use crate::sandbox::host::call::Origin;
use crate::sandbox::pool::Pool;
use crate::sandbox::source::{self, Embedded, Source};

pub use reload::{Replace, Stage, Staged};
pub use tools::Tools;

use tools::Shared;

/// How long lists of tools wait for plugins that are being loaded; what takes longer is left out.
pub const TOOLS_WAIT: Duration = Duration::from_secs(15);

/// The most bytes of a tool's input.
pub const INPUT_BYTES_MAX: usize = 1024 * 1024;

/// The most plugins loaded at a time.
pub const PLUGINS_MAX: usize = 256;

/// Calls and questions that wait in the mailbox.
const MAILBOX: usize = 1024;

/// The supervisor of the sandbox.
pub struct SandboxSupervisor {
    home: PathBuf,
    embedded: Vec<Embedded>,
    configured: BTreeMap<PluginName, config::Plugin>,
    surroundings: Surroundings,
    plugins: BTreeMap<PluginName, Entry>,
    shared: Shared,
    generation: u64,
}

struct Entry {
    source: Source,
    generation: u64,
    restarts: Restarts,
    state: State,
}

impl Entry {
    fn loading(&self) -> Option<watch::Receiver<Loading>> {
        match &self.state {
            State::Running { loading, .. } => Some(loading.clone()),
            State::OutOfOrder => None,
        }
    }

    /// Whether it can be called, or could once it is loaded.
    fn is_alive(&self) -> bool {
        matches!(&self.state, State::Running { to, .. } if to.connected())
    }

    /// It takes no more calls, and ends when those under way have.
    fn retire(self) {
        if let State::Running { to, .. } = self.state {
            reload::retire(&to);
        }
    }
}

enum State {
    Running {
        to: Addr<Plugin>,
        loading: watch::Receiver<Loading>,
    },
    /// It crashed too often.
    OutOfOrder,
}

/// Calls a tool; answered with the call under way. Whatever happens, it has a result: failures have `is_error`.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Calling")]
pub struct CallTool {
    /// The session it is for.
    pub session: SessionKey,
    /// The run it is for.
    pub run: RunId,
    /// What to call with what.
    pub call: ToolCall,
}

/// Calls a function of a channel adapter; answered with the call under way.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Calling")]
pub struct CallAdapter {
    /// The plugin.
    pub adapter: PluginName,
    /// Whose it is, by the session.
    pub origin: Origin,
    /// What is called.
    pub what: AdapterCall,
    /// With what.
    pub input: Vec<u8>,
}

/// How many plugins can be called or are being loaded. Answered at once.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "usize")]
pub struct CountPlugins;

/// Whether a call of this tool that a crash cut off may be made again; not so where it is not known.
#[derive(Clone, Debug, Message)]
#[rtype(result = "bool")]
pub struct IsIdempotent(pub PluginName);

impl SandboxSupervisor {
    /// For the plugins that ship in the binary and those configured. `home` is the daemon's home:
    /// relative paths start there, `plugins/` and `cache/` are in it.
    pub fn new(plugins: Vec<config::Plugin>, home: PathBuf) -> Self {
        let configured = reload::by_name(plugins, &home);
        Self {
            surroundings: Surroundings {
                pool: Pool::new(Pool::threads_for_this_machine()),
                loaders: Pool::new(LOADS_MAX),
                cache: Arc::new(Cache::new(home.join("cache"))),
                services: HostServices::default(),
                trusted: Arc::default(),
            },
            home,
            embedded: source::embedded(),
            configured,
            plugins: BTreeMap::new(),
            shared: Shared::default(),
            generation: 0,
        }
    }

    /// With these instead of the plugins that ship in the binary.
    #[must_use]
    pub fn with_embedded(mut self, embedded: Vec<Embedded>) -> Self {
        self.embedded = embedded;
        self
    }

    /// With this cache of compiled plugins instead of the home's.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<Cache>) -> Self {
        self.surroundings.cache = cache;
        self
    }

    /// With plugins compiled there instead of in this process.
    #[must_use]
    pub fn with_compiler(mut self, compiler: Compiler) -> Self {
        self.surroundings.cache = Arc::new(Cache::new(self.home.join("cache")).compiled_by(compiler));
        self
    }

    /// With these services for guests to ask of.
    #[must_use]
    pub fn with_services(mut self, services: HostServices) -> Self {
        self.surroundings.services = services;
        self
    }

    /// With plugins loaded only if one of these has signed them.
    #[must_use]
    pub fn trusting(mut self, keys: Vec<PublicKey>) -> Self {
        self.surroundings.trusted = Arc::new(keys);
        self
    }

    /// With so many threads for guests.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.surroundings.pool = Pool::new(threads);
        self
    }

    /// The tools that its plugins are, as they come and go.
    pub fn tools(&self) -> Tools {
        self.shared.tools()
    }

    /// Those that ship in the binary and are loaded where nobody mentions them.
    fn default_plugins(&self) -> impl Iterator<Item = PluginName> {
        self.embedded.iter().filter(|embedded| embedded.is_default()).map(|embedded| embedded.name.into())
    }

    fn own_source(&self, name: &PluginName) -> Option<Source> {
        Source::own(&self.embedded, name, self.configured.get(name))
    }

    fn start_plugin(&mut self, name: &PluginName, source: Source, restarts: Restarts, ctx: &Context<Self>) {
        let entry = self.begin(name, source, restarts, ctx);
        self.put(name.clone(), entry);
    }

    /// From now on this is the plugin of that name.
    fn put(&mut self, name: PluginName, entry: Entry) {
        if let Some(before) = self.plugins.insert(name, entry) {
            before.retire();
        }
        self.share();
    }

    /// Forgets the plugin; it ends when its calls have.
    fn retire(&mut self, name: &PluginName) -> bool {
        let is_known = self.plugins.remove(name).map(Entry::retire).is_some();
        self.share();
        is_known
    }

    fn share(&self) {
        let plugins = self.plugins.iter();
        self.shared.set(plugins.filter_map(|(name, entry)| Some((name.clone(), entry.loading()?))).collect());
    }

    /// Starts one that is not in the table yet, as it is configured.
    fn begin(&mut self, name: &PluginName, source: Source, restarts: Restarts, ctx: &Context<Self>) -> Entry {
        let configured = self.configured.get(name).cloned();
        let trusted = Arc::clone(&self.surroundings.trusted);
        let (to, loading) = self.launch(name, source.clone(), configured, trusted, ctx);
        Entry { source, generation: self.generation, restarts, state: State::Running { to, loading } }
    }

    /// Starts the actor of a plugin, of the next generation.
    fn launch(
        &mut self,
        name: &PluginName,
        source: Source,
        entry: Option<config::Plugin>,
        trusted: Arc<Vec<PublicKey>>,
        ctx: &Context<Self>,
    ) -> (Addr<Plugin>, watch::Receiver<Loading>) {
        self.generation += 1;
        let (sender, loading) = watch::channel(Loading::UnderWay);
        let surroundings = Surroundings { trusted, ..self.surroundings.clone() };
        let guard = Guard::new(name.as_str(), self.generation, ctx.address().recipient());
        let plugin = Plugin::new(name.clone(), source, entry, surroundings, sender, guard);
        (plugin.start(), loading)
    }

    fn loading(&self, name: &PluginName) -> Option<watch::Receiver<Loading>> {
        self.plugins.get(name)?.loading()
    }

    fn out_of_order(name: &PluginName) -> String {
        format!(
            "plugin {name} is out of order: it crashed more than {} times within {} s; load it again",
            Restarts::LIMIT,
            Restarts::WINDOW.as_secs()
        )
    }
}

/// Those that are loaded now, or within [`TOOLS_WAIT`], in the given order.
async fn loaded(all: Vec<watch::Receiver<Loading>>) -> Vec<Arc<Loaded>> {
    let each = all.into_iter().map(|loading| tokio::time::timeout(TOOLS_WAIT, settled(loading)));
    join_all(each).await.into_iter().filter_map(|result| result.ok()?.ok()).collect()
}

impl Actor for SandboxSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let mut names: Vec<PluginName> = self.default_plugins().collect();
        names
            .extend(self.configured.keys().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
        for name in names {
            match self.own_source(&name) {
                Some(source) => self.start_plugin(&name, source, Restarts::default(), ctx),
                None => {
                    tracing::error!(plugin = %name, "plugin not loaded: it has no path, and none of this name ships in the binary")
                }
            }
        }
        self.share();
    }
}

impl Handler<CallTool> for SandboxSupervisor {
    type Result = ResponseFuture<Calling>;

    fn handle(&mut self, call: CallTool, _: &mut Self::Context) -> Self::Result {
        let CallTool { session, run, call: ToolCall { id, name, input } } = call;
        let to = match self.plugins.get(&name).map(|entry| &entry.state) {
            Some(State::Running { to, .. }) => Ok(to.clone()),
            Some(State::OutOfOrder) => Err(Self::out_of_order(&name)),
            None => Err(format!("there is no tool {:?}", name.as_str())),
        };
        let to = to.and_then(|to| match input {
            Value::Object(_) => {
                let json = serde_json::to_vec(&input).map_err(|error| error.to_string())?;
                if json.len() > INPUT_BYTES_MAX {
                    return Err(format!(
                        "the input of {name} has {} bytes (limit {INPUT_BYTES_MAX})",
                        json.len()
                    ));
                }
                Ok((to, input, json))
            }
            _ => Err(format!("the input of {name} is not a JSON object, see its input_schema")),
        });
        Box::pin(async move {
            let sent = match to {
                Err(why) => Err(why),
                Ok((to, input, json)) => {
                    tracing::debug!(%session, %run, plugin = %name, call = %id, input_bytes = json.len(), "tool call");
                    let origin = Origin { session, run, call: id.clone() };
                    let sent = to.send(Call { origin, what: What::Tool { input, json } }).await;
                    sent.map_err(|_| format!("plugin {name} crashed, try again"))
                }
            };
            sent.unwrap_or_else(|why| Calling::refused(name, id, why))
        })
    }
}

impl Handler<CallAdapter> for SandboxSupervisor {
    type Result = ResponseFuture<Calling>;

    fn handle(&mut self, call: CallAdapter, _: &mut Self::Context) -> Self::Result {
        let CallAdapter { adapter: name, origin, what, input } = call;
        let to = match self.plugins.get(&name).map(|entry| &entry.state) {
            Some(State::Running { to, .. }) => Ok(to.clone()),
            Some(State::OutOfOrder) => Err(Self::out_of_order(&name)),
            None => Err(format!("there is no plugin {name}")),
        };
        Box::pin(async move {
            let id = origin.call.clone();
            let sent = match to {
                Err(why) => Err(why),
                Ok(to) => {
                    let sent = to.send(Call { origin, what: What::Adapter(what, input) }).await;
                    sent.map_err(|_| format!("plugin {name} crashed, try again"))
                }
            };
            sent.unwrap_or_else(|why| Calling::refused(name, id, why))
        })
    }
}

/// The plugins that can be called, by name.
impl Handler<Typed<ListPlugins>> for SandboxSupervisor {
    type Result = ResponseActFuture<Self, Result<Vec<PluginSummary>, Error>>;

    fn handle(&mut self, _: Typed<ListPlugins>, _: &mut Self::Context) -> Self::Result {
        let all = self.plugins.keys().filter_map(|name| self.loading(name)).collect();
        let list = loaded(all).into_actor(self);
        Box::pin(list.map(|all, _, _| Ok(all.iter().map(|loaded| loaded.summary.clone()).collect())))
    }
}

impl Handler<Request<PluginCommand>> for SandboxSupervisor {
    type Result = ();

    fn handle(&mut self, request: Request<PluginCommand>, ctx: &mut Self::Context) {
        let Request { command, asker, .. } = request;
        match command {
            PluginCommand::List(list) => {
                let list = self.handle(Typed(list), ctx);
                ctx.spawn(list.map(|all, _, _| asker.reply(all.map(|all| PluginReply::Plugins(all).into()))));
            }
            PluginCommand::Load(load) => {
                let load = self.handle(Typed(load), ctx);
                ctx.spawn(load.map(|one, _, _| asker.reply(one.map(|one| PluginReply::Loaded(one).into()))));
            }
            PluginCommand::Unload(unload) => {
                let unloaded = self.handle(Typed(unload), ctx);
                asker.reply(unloaded.map(|one| PluginReply::Unloaded(one).into()));
            }
        }
    }
}

impl Handler<CountPlugins> for SandboxSupervisor {
    type Result = usize;

    fn handle(&mut self, _: CountPlugins, _: &mut Self::Context) -> Self::Result {
        let alive = |name: &&PluginName| {
            self.loading(name).is_some_and(|loading| !matches!(*loading.borrow(), Loading::Failed(_)))
        };
        self.plugins.keys().filter(alive).count()
    }
}

impl Handler<IsIdempotent> for SandboxSupervisor {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, IsIdempotent(name): IsIdempotent, _: &mut Self::Context) -> Self::Result {
        let all = self.loading(&name).into_iter().collect();
        Box::pin(async move { loaded(all).await.first().is_some_and(|loaded| loaded.idempotent) })
    }
}

/// Loads a plugin: the configured or embedded one of this name, or a file in the plugins folder of the
/// home. Answered when it can be called.
impl Handler<Typed<LoadPlugin>> for SandboxSupervisor {
    type Result = ResponseActFuture<Self, Result<PluginSummary, Error>>;

    fn handle(&mut self, Typed(load): Typed<LoadPlugin>, ctx: &mut Self::Context) -> Self::Result {
        let LoadPlugin { name, path } = load;
        let started = source::check_name(&name).and_then(|()| {
            if let Some(loading) = self.loading(&name)
                && !matches!(*loading.borrow(), Loading::Failed(_))
            {
                return Err(
                    ErrorCode::Conflict.error(format!("plugin {name} is loaded already, unload it first"))
                );
            }
            if self.plugins.len() >= PLUGINS_MAX && !self.plugins.contains_key(&name) {
                return Err(ErrorCode::Unavailable
                    .error(format!("{PLUGINS_MAX} plugins are loaded already, unload one first")));
            }
            let source = match path {
                Some(path) => Source::Loaded { folder: self.home.join("plugins"), path },
                None => self.own_source(&name).ok_or_else(|| {
                    ErrorCode::NotFound.error(format!(
                        "plugin {name}: none of this name is configured or ships in the binary, name its file"
                    ))
                })?,
            };
            self.start_plugin(&name, source, Restarts::default(), ctx);
            let loading = self.loading(&name);
            Ok((self.generation, loading))
        });
        let wait = async move {
            let (generation, loading) = started.map_err(|error| (None, error))?;
            let Some(loading) = loading else {
                return Err((None, ErrorCode::Internal.error("a plugin ended as it was started")));
            };
            settled(loading).await.map_err(|error| (Some((name, generation)), error))
        };
        Box::pin(wait.into_actor(self).map(|result, act, _| match result {
            Ok(loaded) => Ok(loaded.summary.clone()),
            Err((failed, error)) => {
                // What was asked for by name and failed leaves nothing behind.
                if let Some((name, generation)) = failed
                    && act.plugins.get(&name).is_some_and(|entry| entry.generation == generation)
                {
                    act.retire(&name);
                }
                Err(error)
            }
        }))
    }
}

/// Unloads a plugin: it takes no more calls, those under way finish.
impl Handler<Typed<UnloadPlugin>> for SandboxSupervisor {
    type Result = Result<Unloaded, Error>;

    fn handle(&mut self, Typed(unload): Typed<UnloadPlugin>, _: &mut Self::Context) -> Self::Result {
        let UnloadPlugin { name } = unload;
        if self.retire(&name) {
            tracing::info!(plugin = %name, "plugin unloaded");
            Ok(Unloaded { name })
        } else {
            Err(not_loaded(&name))
        }
    }
}

fn not_loaded(name: &PluginName) -> Error {
    ErrorCode::NotFound.error(format!("plugin {:?} is not loaded", name.as_str()))
}

/// Loads a plugin anew, from where it came from; its file, manifest and grants are read again. The one
/// there is takes calls until the new one can be called, finishes those under way, and stays where the
/// new one can't be loaded. Answered when that is settled.
impl Handler<Typed<ReloadPlugin>> for SandboxSupervisor {
    type Result = ResponseActFuture<Self, Result<PluginSummary, Error>>;

    fn handle(&mut self, Typed(reload): Typed<ReloadPlugin>, ctx: &mut Self::Context) -> Self::Result {
        let ReloadPlugin { name } = reload;
        let Some(known) = self.plugins.get(&name) else {
            return Box::pin(fut::err(not_loaded(&name)));
        };
        let source = match &known.source {
            loaded @ Source::Loaded { .. } => loaded.clone(),
            own => self.own_source(&name).unwrap_or_else(|| own.clone()),
        };
        let new = self.begin(&name, source, Restarts::default(), ctx);
        let loading = new.loading();
        let wait = async move {
            match loading {
                Some(loading) => settled(loading).await,
                None => Err(ErrorCode::Internal.error("a plugin ended as it was started")),
            }
        };
        Box::pin(wait.into_actor(self).map(move |result, act, _| {
            let is_newest = act.plugins.get(&name).is_some_and(|known| known.generation < new.generation);
            let result = if is_newest && new.is_alive() || result.is_err() {
                result
            } else {
                let why = format!("plugin {name} was unloaded, or loaded anew by somebody else, meanwhile");
                Err(ErrorCode::Conflict.error(why))
            };
            match result {
                Ok(loaded) => {
                    act.put(name, new);
                    Ok(loaded.summary.clone())
                }
                Err(error) => {
                    new.retire();
                    let kept = act.plugins.get(&name).is_some_and(Entry::is_alive);
                    let kept = if kept { "; the one there was goes on" } else { "" };
                    Err(Error { message: format!("{}{kept}", error.message), ..error })
                }
            }
        }))
    }
}

impl Handler<Down> for SandboxSupervisor {
    type Result = ();

    fn handle(&mut self, down: Down, ctx: &mut Self::Context) {
        let name = PluginName::from(down.name);
        // A retired one is not in the table any more, or a later start is.
        let Some(entry) = self.plugins.get_mut(&name) else { return };
        if entry.generation != down.generation {
            return;
        }
        if entry.restarts.allow(Instant::now()) {
            tracing::error!(plugin = %name, panicked = down.panicked, "plugin stopped: restarting it");
            let (source, restarts) = (entry.source.clone(), std::mem::take(&mut entry.restarts));
            self.start_plugin(&name, source, restarts, ctx);
        } else {
            tracing::error!(plugin = %name, panicked = down.panicked, "{}", Self::out_of_order(&name));
            entry.state = State::OutOfOrder;
            self.share();
        }
    }
}

impl Handler<Observe> for SandboxSupervisor {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let load = self.surroundings.pool.load();
        let threads_max = self.surroundings.pool.threads_max();
        let named = |is_meant: fn(&State) -> bool| -> Vec<&str> {
            let meant = self.plugins.iter().filter(|(_, entry)| is_meant(&entry.state));
            meant.map(|(name, _)| name.as_str()).collect()
        };
        let is_failed = |state: &State| match state {
            State::Running { loading, .. } => matches!(*loading.borrow(), Loading::Failed(_)),
            State::OutOfOrder => false,
        };
        let restarts: usize = self.plugins.values().map(|entry| entry.restarts.recent()).sum();
        let restarts_total: u64 = self.plugins.values().map(|entry| entry.restarts.total()).sum();
        let state = json!({
            "plugins": self.plugins.len(),
            "plugins_out_of_order": named(|state| matches!(state, State::OutOfOrder)),
            "plugins_not_loaded": named(is_failed),
            "plugin_restarts_recent": restarts,
            "restarts_total": restarts_total,
            "threads_max": threads_max,
            "threads": load.threads,
            "threads_busy": load.busy,
            "jobs_waiting": load.queued,
            "loads_waiting": self.surroundings.loaders.load().queued,
            "cache": self.surroundings.cache.state(),
        });
        let observed = Observed::leaf("sandbox supervisor", state);
        let asked = self.plugins.iter().map(|(name, entry)| {
            let (name, restarts) = (name.clone(), entry.restarts.total());
            let actor = format!("plugin {name}");
            let child: LocalBoxFuture<'static, Option<Observed>> = match &entry.state {
                State::Running { to, .. } => Box::pin(observe_passing(actor, to.clone(), TIMEOUT)),
                State::OutOfOrder => {
                    let state = json!({ "state": "out of order", "error": Self::out_of_order(&name),
                        "source": entry.source.kind(),
                        "path": entry.source.path().map(|path| path.display().to_string()) });
                    Box::pin(ready(Some(Observed::leaf(actor, state))))
                }
            };
            child.map(move |child| {
                let mut child = child?;
                child.state["plugin"] = name.as_str().into();
                child.state["restarts_total"] = restarts.into();
                Some(child)
            })
        });
        let asked = join_all(asked);
        Box::pin(async move { observed.with_children(asked.await.into_iter().flatten().collect()) })
    }
}

#[cfg(test)]
mod tests;
