//! A plugin: one module and the calls to it.
//!
//! It loads itself off the arbiter when it starts, keeps the engines, lets a bounded number of
//! calls run at a time and the next ones wait in order, ends what takes too long, and tells how it
//! is. Guest code runs on the threads of the pool, never here.
//!
//! Deliberately absent: retries (a tool call may have had its effect), and state between calls
//! (each gets a fresh instance).

mod answer;
mod calling;
mod conduct;
mod host_side;
mod load;
mod quarantine;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, MessageResult, WrapFuture,
};
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{Owner, PluginName};
use clawmux_core::time::Timestamp;
use clawmux_core::tools::plugin::signature::PublicKey;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::runtime::clock;
use crate::runtime::observe::{Observe, Observed};
use crate::runtime::supervision::Guard;
use crate::sandbox::cache::Cache;
use crate::sandbox::engine::Engine;
use crate::sandbox::host::call::{Asking, Origin};
use crate::sandbox::pool::Pool;
use crate::sandbox::source::Source;

pub use answer::Answer;
pub use calling::{Calling, Progress, WAIT_MAX};
pub use host_side::HostServices;
pub use load::{Kind, LOAD_MAX, LOAD_WAIT_MAX, LOADS_MAX, Loaded, Loading, attempt, settled};

use calling::Called;
use conduct::{Ended, Job, conduct};
use host_side::HostSide;
use load::load;
use quarantine::Quarantine;

/// The most calls that may wait for one plugin.
pub const WAITING_MAX: usize = 64;

/// Engines kept for later calls; one more call at a time makes one more engine.
const IDLE_ENGINES_MAX: usize = 2;

/// What every plugin shares.
#[derive(Clone)]
pub struct Surroundings {
    /// The threads guests run on.
    pub pool: Pool,
    /// The threads plugins are loaded on, [`LOADS_MAX`] of them: calls never wait behind a compiler, and
    /// one plugin that takes all its time to be compiled holds up no other.
    pub loaders: Pool,
    /// Where compiled code comes from.
    pub cache: Arc<Cache>,
    /// What guests may ask of.
    pub services: HostServices,
    /// Whose plugins are loaded; none = everybody's.
    pub trusted: Arc<Vec<PublicKey>>,
}

/// A loaded plugin, or one on its way there.
pub struct Plugin {
    name: PluginName,
    source: Source,
    entry: Option<config::Plugin>,
    surroundings: Surroundings,
    loading: watch::Sender<Loading>,
    idle: Vec<Engine>,
    /// The calls that wait for their turn.
    waiting: VecDeque<(Call, Called)>,
    running: usize,
    retiring: bool,
    quarantine: Quarantine,
    figures: Figures,
    _guard: Guard,
}

#[derive(Default)]
struct Figures {
    calls: u64,
    failures: u64,
    cut_off: u64,
    engines: u64,
    load: Duration,
    last_call: Duration,
    /// What the last call that failed was answered, and when.
    last_error: Option<(String, Timestamp)>,
}

/// Calls the tool; every call has a result within its time limit and [`WAIT_MAX`].
#[derive(Debug, Message)]
#[rtype(result = "Calling")]
pub struct Call {
    /// What it is for.
    pub origin: Origin,
    /// What is called.
    pub what: What,
}

/// What of a plugin is called, and with what.
#[derive(Debug)]
pub enum What {
    /// The tool.
    Tool {
        /// The tool's input.
        input: Value,
        /// The same as the guest gets it.
        json: Vec<u8>,
    },
    /// A function of a channel adapter.
    Adapter(AdapterCall, Vec<u8>),
}

/// A function of a channel adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterCall {
    /// Messages of what a platform said.
    ParseIncoming,
    /// Requests of an answer.
    FormatOutgoing,
    /// A request that says that an answer is under way.
    FormatTyping,
    /// What a platform has to say.
    Poll,
}

impl What {
    /// The export that is called.
    fn export(&self) -> &'static str {
        match self {
            Self::Tool { .. } => "handle_tool_call",
            Self::Adapter(AdapterCall::ParseIncoming, _) => "parse_incoming",
            Self::Adapter(AdapterCall::FormatOutgoing, _) => "format_outgoing",
            Self::Adapter(AdapterCall::FormatTyping, _) => "format_typing",
            Self::Adapter(AdapterCall::Poll, _) => "poll",
        }
    }

    /// Its input as the guest gets it.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Tool { json, .. } | Self::Adapter(_, json) => json,
        }
    }
}

/// Take no more calls, finish those there are, then stop.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Retire;

impl Plugin {
    /// The plugin `name` from `source`; loads when started. What becomes of that is seen through
    /// `loading`.
    pub fn new(
        name: PluginName,
        source: Source,
        entry: Option<config::Plugin>,
        surroundings: Surroundings,
        loading: watch::Sender<Loading>,
        guard: Guard,
    ) -> Self {
        Self {
            name,
            source,
            entry,
            surroundings,
            loading,
            idle: Vec::new(),
            waiting: VecDeque::new(),
            running: 0,
            retiring: false,
            quarantine: Quarantine::default(),
            figures: Figures::default(),
            _guard: guard,
        }
    }

    /// Calls at the same time: as many as its entry says, or half the threads, so that one plugin never has
    /// them all.
    fn running_max(&self) -> usize {
        match self.entry.as_ref().map_or(0, |entry| entry.concurrent_calls) {
            0 => (self.surroundings.pool.threads_max() / 2).max(1),
            calls => calls,
        }
    }

    fn load(&mut self, ctx: &mut Context<Self>) {
        let (sender, loaded) = oneshot::channel();
        let begun = Instant::now();
        let (name, source, entry) = (self.name.clone(), self.source.clone(), self.entry.clone());
        let Surroundings { cache, trusted, .. } = self.surroundings.clone();
        let (turn, has_turn) = oneshot::channel();
        let submitted = self.surroundings.loaders.submit(move || {
            // Nobody listens any more where it took too long, or was unloaded meanwhile.
            if turn.send(()).is_ok() {
                let loaded = load(&name, &source, entry.as_ref(), &trusted, &cache, &|| !sender.is_closed());
                let _ = sender.send(loaded);
            }
        });
        if submitted.is_err() {
            let error = ErrorCode::Unavailable.error(format!("plugin {}: the sandbox is full", self.name));
            return self.loaded(Err(error), begun, ctx);
        }
        let name = self.name.clone();
        let wait = async move {
            if tokio::time::timeout(LOAD_WAIT_MAX, has_turn).await.is_err() {
                return Err(ErrorCode::Timeout.error(format!(
                    "plugin {name}: it waited longer than {} s for others to be loaded",
                    LOAD_WAIT_MAX.as_secs()
                )));
            }
            match tokio::time::timeout(LOAD_MAX, loaded).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => {
                    Err(ErrorCode::Internal
                        .error(format!("plugin {name}: the sandbox failed while loading it")))
                }
                Err(_) => Err(ErrorCode::Timeout
                    .error(format!("plugin {name}: loading took longer than {} ms", LOAD_MAX.as_millis()))),
            }
        };
        ctx.spawn(wait.into_actor(self).map(move |result, act, ctx| act.loaded(result, begun, ctx)));
    }

    fn loaded(
        &mut self,
        result: Result<(Option<Engine>, Loaded), Error>,
        begun: Instant,
        ctx: &mut Context<Self>,
    ) {
        self.figures.load = begun.elapsed();
        match result {
            Ok((engine, loaded)) => {
                let load_ms = u64::try_from(self.figures.load.as_millis()).unwrap_or(u64::MAX);
                tracing::info!(plugin = %self.name, load_ms, "plugin loaded");
                self.figures.engines += u64::from(engine.is_some());
                self.idle.extend(engine);
                self.loading.send_replace(Loading::Done(Arc::new(loaded)));
            }
            Err(error) => {
                tracing::error!(plugin = %self.name, %error, "plugin not loaded");
                self.loading.send_replace(Loading::Failed(error));
            }
        }
        self.next(ctx);
    }

    /// Lets waiting calls run as far as there is room.
    fn next(&mut self, ctx: &mut Context<Self>) {
        let loaded = match &*self.loading.borrow() {
            Loading::UnderWay => return,
            Loading::Done(loaded) => Ok(Arc::clone(loaded)),
            Loading::Failed(error) => Err(error.message.clone()),
        };
        while self.running < self.running_max() {
            let Some((call, called)) = self.waiting.pop_front() else { break };
            if called.reply.is_closed() {
                continue;
            }
            let owner = call.origin.session.owner();
            let ready = loaded.clone().and_then(|loaded| match self.quarantined(&owner) {
                None => Ok(loaded),
                Some(why) => Err(why),
            });
            match ready {
                Ok(loaded) => self.run(call, called, &loaded, ctx),
                Err(why) => {
                    let _ = called.reply.send(Answer::error(why));
                }
            }
        }
        if self.retiring && self.running == 0 && self.waiting.is_empty() {
            ctx.stop();
        }
    }

    fn run(&mut self, call: Call, called: Called, loaded: &Loaded, ctx: &mut Context<Self>) {
        let Called { begun, reply, wanted } = called;
        let package = Arc::clone(&loaded.package);
        let (session, owner) = (call.origin.session.clone(), call.origin.session.owner());
        let rights = Arc::clone(&package.rights);
        let (to, host) = HostSide::new(session, rights, self.surroundings.services.clone());
        let schema = match (&loaded.kind, &call.what) {
            (Kind::Tool { schema, .. }, What::Tool { .. }) => Some(Arc::clone(schema)),
            (Kind::Adapter(_), What::Adapter(..)) => None,
            (Kind::Tool { .. }, What::Adapter(..)) => {
                let _ =
                    reply.send(Answer::error(format!("plugin {} is a tool, no channel adapter", self.name)));
                return;
            }
            (Kind::Adapter(_), What::Tool { .. }) => {
                let _ =
                    reply.send(Answer::error(format!("plugin {} is a channel adapter, no tool", self.name)));
                return;
            }
        };
        let is_tool = schema.is_some();
        let asking = Asking { origin: call.origin, to, pool: self.surroundings.pool.clone() };
        let (entered_sender, entered) = oneshot::channel();
        let (done_sender, done) = oneshot::channel();
        let job = Job {
            package: Arc::clone(&package),
            cache: Arc::clone(&self.surroundings.cache),
            engine: self.idle.pop(),
            what: call.what,
            schema,
            begun,
            wanted,
            asking,
            entered: entered_sender,
            done: done_sender,
        };
        if self.surroundings.pool.submit(move || job.run()).is_err() {
            let full = format!("plugin {}: the sandbox is full, try again later", self.name);
            let _ = reply.send(Answer::error(full));
            return;
        }
        self.running += 1;
        let conduct = conduct(package, host, entered, done, reply, is_tool);
        ctx.spawn(conduct.into_actor(self).map(move |ended, act, ctx| {
            act.running -= 1;
            act.ended(&owner, ended);
            act.next(ctx);
        }));
    }

    /// Why no call is made now, where it failed too often.
    fn quarantined(&self, owner: &Owner) -> Option<String> {
        let (name, left) = (&self.name, self.quarantine.left(owner, Instant::now())?.as_secs() + 1);
        Some(format!("plugin {name} is in quarantine for {left} s more: its last calls failed"))
    }

    fn ended(&mut self, owner: &Owner, ended: Ended) {
        let is_aborted = ended.cut_off && !ended.is_spoiled;
        if !is_aborted && let Some(pause) = self.quarantine.over(owner, ended.is_spoiled, Instant::now()) {
            let pause_s = pause.as_secs();
            tracing::warn!(plugin = %self.name, pause_s, error = ?ended.error, "plugin in quarantine: its calls keep failing");
        }
        self.figures.calls += 1;
        self.figures.failures += u64::from(ended.error.is_some());
        if let Some(error) = ended.error {
            self.figures.last_error = Some((error, clock::now()));
        }
        self.figures.cut_off += u64::from(ended.cut_off);
        self.figures.engines += u64::from(ended.compiled);
        self.figures.last_call = ended.took;
        if let Some(engine) = ended.engine
            && self.idle.len() < IDLE_ENGINES_MAX
        {
            self.idle.push(engine);
        }
    }
}

impl Actor for Plugin {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(WAITING_MAX);
        self.load(ctx);
    }
}

impl Handler<Call> for Plugin {
    type Result = MessageResult<Call>;

    fn handle(&mut self, call: Call, ctx: &mut Self::Context) -> Self::Result {
        let name = self.name.clone();
        if self.waiting.len() >= WAITING_MAX {
            let busy = format!("plugin {name} is busy: {WAITING_MAX} calls wait already, try again later");
            return MessageResult(Calling::refused(name, call.origin.call, busy));
        }
        let (calling, called) = Calling::new(name, call.origin.call.clone());
        self.waiting.push_back((call, called));
        self.next(ctx);
        MessageResult(calling)
    }
}

impl Handler<Retire> for Plugin {
    type Result = ();

    fn handle(&mut self, _: Retire, ctx: &mut Self::Context) {
        self.retiring = true;
        self.next(ctx);
    }
}

impl Handler<Observe> for Plugin {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let (state, error) = match &*self.loading.borrow() {
            Loading::UnderWay => ("loading", None),
            Loading::Done(_) if self.retiring => ("retiring", None),
            Loading::Done(_) if let Some((owners, left)) = self.quarantine.now(Instant::now()) => {
                let left = left.as_secs() + 1;
                let why = format!("its calls keep failing: no more for {left} s, for {owners} of the owners");
                ("quarantined", Some(why))
            }
            Loading::Done(_) => ("loaded", None),
            Loading::Failed(error) => ("failed", Some(error.message.clone())),
        };
        let loaded = match &*self.loading.borrow() {
            Loading::Done(loaded) => Some(loaded.clone()),
            Loading::UnderWay | Loading::Failed(_) => None,
        };
        let package = loaded.as_ref().map(|loaded| &*loaded.package);
        let approval = self.entry.as_ref().map(|entry| entry.approval).unwrap_or_default();
        Observed::leaf(
            format!("plugin {}", self.name),
            json!({
                "plugin": self.name.as_str(),
                "state": state,
                "error": error,
                "version": loaded.as_ref().and_then(|loaded| loaded.summary.version.as_deref()),
                "description": loaded.as_ref().map(|loaded| loaded.summary.description.as_str()),
                "input_schema": loaded.as_ref().and_then(|loaded| match &loaded.kind {
                    Kind::Tool { spec, .. } => Some(&spec.input_schema),
                    Kind::Adapter(_) => None,
                }),
                "kind": loaded.as_ref().map(|loaded| match loaded.kind {
                    Kind::Tool { .. } => "tool",
                    Kind::Adapter(_) => "channel_adapter",
                }),
                "idempotent": loaded.as_ref().map(|loaded| loaded.idempotent),
                "source": self.source.kind(),
                "path": self.source.path().map(|path| path.display().to_string()),
                "approval": match approval {
                    config::Approval::Never => "never",
                    config::Approval::Ask => "ask",
                },
                "limits": package.map(|package| json!({
                    "timeout_ms": package.limits.timeout.as_millis(),
                    "memory_mb": package.limits.memory_mb,
                    "fuel": package.limits.fuel,
                    "output_bytes": package.limits.output_bytes,
                    "host_calls": package.limits.host_calls,
                    "http_bytes": package.limits.http_bytes,
                })),
                "module_bytes": package.map(|package| package.module.len()),
                "asks": package.and_then(|package| {
                    let asks = package.manifest.capabilities.as_ref()?;
                    Some(asks.iter().map(ToString::to_string).collect::<Vec<_>>())
                }),
                "signed_by": package.and_then(|package| package.signer).map(|key| key.to_string()),
                "capabilities": package
                    .map(|package| package.grants.iter().map(ToString::to_string).collect::<Vec<_>>()),
                "calls_running": self.running,
                "calls_running_max": self.running_max(),
                "calls_waiting": self.waiting.len(),
                "calls_total": self.figures.calls,
                "calls_failed_total": self.figures.failures,
                "calls_cut_off_total": self.figures.cut_off,
                "engines_idle": self.idle.len(),
                "engines_compiled_total": self.figures.engines,
                "load_ms": self.figures.load.as_millis(),
                "last_call_us": self.figures.last_call.as_micros(),
                "last_error": self.figures.last_error.as_ref().map(|(error, _)| error),
                "last_error_ms": self.figures.last_error.as_ref().map(|(_, at)| at.as_millis()),
            }),
        )
    }
}

/// Ends the actor as a fault of its own would.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Panic;

#[cfg(test)]
impl Handler<Panic> for Plugin {
    type Result = ();

    fn handle(&mut self, _: Panic, _: &mut Self::Context) {
        panic!("a plugin actor was asked to panic");
    }
}
