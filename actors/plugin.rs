//! A plugin: one module and the calls to it.
//!
//! It loads itself off the arbiter when it starts, keeps the engines, lets a bounded number of
//! calls run at a time and the next ones wait in order, ends what takes too long, and tells how it
//! is. Guest code runs on the threads of the pool, never here.
//!
//! Deliberately absent: retries (a tool call may have had its effect), and state between calls
//! (each gets a fresh instance).

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseFuture, WrapFuture,
};
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::plugin::PluginSummary;
use clawmux_core::provider::ToolSpec;
use clawmux_core::time::Timestamp;
use futures::future::{Either, select};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::clock;
use crate::observe::{Observe, Observed};
use crate::sandbox::cache::Cache;
use crate::sandbox::cancel::Cancel;
use crate::sandbox::engine::{Engine, Failure, Interrupt};
use crate::sandbox::pool::Pool;
use crate::sandbox::source::{self, Package, Source};
use crate::supervision::Guard;

/// The most calls that may wait for one plugin.
pub const WAITING_MAX: usize = 64;

/// How long a call may wait for a thread before it is given up.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// How long reading, compiling and describing a module may take.
pub const LOAD_MAX: Duration = Duration::from_secs(30);

/// Plugins that are loaded at a time. The memory of as many compilers is what a start may take.
pub const LOADS_MAX: usize = 4;

/// How long a plugin may wait for others to be loaded: as long as all there may be take, should each
/// take all it may.
pub const LOAD_WAIT_MAX: Duration = Duration::from_secs(LOAD_MAX.as_secs() * 256 / LOADS_MAX as u64);

/// Engines kept for later calls; one more call at a time makes one more engine.
const IDLE_ENGINES_MAX: usize = 2;

/// The most bytes of `describe`'s answer.
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// So much is kept of what the last call that failed was answered, in characters.
const ERROR_CHARS_MAX: usize = 300;

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
}

/// What became of loading.
#[derive(Clone, Debug)]
pub enum Loading {
    /// It is under way.
    UnderWay,
    /// The plugin can be called.
    Done(Arc<Loaded>),
    /// It can't; nor later, unless somebody changes something.
    Failed(Error),
}

/// A plugin that can be called, as others see it.
#[derive(Debug)]
pub struct Loaded {
    /// For lists.
    pub summary: PluginSummary,
    /// For models.
    pub tool: ToolSpec,
    /// Whether a call that was cut off may be made again.
    pub idempotent: bool,
    /// Tells what was loaded, and with which grants and limits, from anything else.
    pub digest: [u8; 32],
}

/// A loaded plugin, or one on its way there.
pub struct Plugin {
    name: PluginName,
    source: Source,
    entry: Option<config::Plugin>,
    surroundings: Surroundings,
    loading: watch::Sender<Loading>,
    package: Option<Arc<Package>>,
    idle: Vec<Engine>,
    waiting: VecDeque<Waiting>,
    running: usize,
    retiring: bool,
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

/// A call that waits for its turn.
struct Waiting {
    input: Vec<u8>,
    cancel: Cancel,
    turn: Arc<Turn>,
    reply: oneshot::Sender<Answer>,
}

/// Whether a call's turn has come, decided once: what was given up never runs.
#[derive(Default)]
struct Turn(AtomicU8);

impl Turn {
    const WAITS: u8 = 0;
    const BEGUN: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn begin(&self) -> bool {
        self.decide(Self::BEGUN)
    }

    fn give_up(&self) -> bool {
        self.decide(Self::GIVEN_UP)
    }

    fn decide(&self, to: u8) -> bool {
        self.0.compare_exchange(Self::WAITS, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What a call gave, as the model is told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The text.
    pub content: String,
    /// Whether it failed.
    pub is_error: bool,
}

/// Calls the tool. Every call is answered, within its time limit and [`WAIT_MAX`].
#[derive(Debug, Message)]
#[rtype(result = "Answer")]
pub struct Call {
    /// The tool's input, as JSON.
    pub input: Vec<u8>,
    /// Calls it off.
    pub cancel: Cancel,
}

/// Take no more calls, finish those there are, then stop.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Retire;

impl Answer {
    /// A failure, in words.
    pub fn error(content: impl Into<String>) -> Self {
        Self { content: content.into(), is_error: true }
    }

    /// The beginning of it, where it is a failure.
    fn failure(&self) -> Option<String> {
        self.is_error.then(|| self.content.chars().take(ERROR_CHARS_MAX).collect())
    }

    /// What a plugin's output means: `{"content": string, "is_error"?: bool}`, or else the output
    /// itself is the content.
    fn of_output(output: &[u8]) -> Self {
        let text = String::from_utf8_lossy(output);
        if let Ok(Value::Object(mut object)) = serde_json::from_str::<Value>(&text)
            && let Some(Value::String(content)) = object.get_mut("content")
        {
            let content = std::mem::take(content);
            return Self { content, is_error: object.get("is_error") == Some(&Value::Bool(true)) };
        }
        Self { content: text.into_owned(), is_error: false }
    }
}

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
            package: None,
            idle: Vec::new(),
            waiting: VecDeque::new(),
            running: 0,
            retiring: false,
            figures: Figures::default(),
            _guard: guard,
        }
    }

    /// Calls at the same time: half the threads, so that one plugin never has them all.
    fn running_max(&self) -> usize {
        (self.surroundings.pool.threads_max() / 2).max(1)
    }

    fn load(&mut self, ctx: &mut Context<Self>) {
        let (sender, loaded) = oneshot::channel();
        let begun = Instant::now();
        let (name, source, entry) = (self.name.clone(), self.source.clone(), self.entry.clone());
        let cache = Arc::clone(&self.surroundings.cache);
        let (turn, has_turn) = oneshot::channel();
        let submitted = self.surroundings.loaders.submit(move || {
            // Nobody listens any more where it took too long, or was unloaded meanwhile.
            if turn.send(()).is_ok() {
                let loaded = load(&name, &source, entry.as_ref(), &cache, &|| !sender.is_closed());
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
        result: Result<(Package, Engine, Loaded), Error>,
        begun: Instant,
        ctx: &mut Context<Self>,
    ) {
        self.figures.load = begun.elapsed();
        match result {
            Ok((package, engine, loaded)) => {
                let load_ms = u64::try_from(self.figures.load.as_millis()).unwrap_or(u64::MAX);
                tracing::info!(plugin = %self.name, load_ms, "plugin loaded");
                self.package = Some(Arc::new(package));
                self.idle.push(engine);
                self.figures.engines += 1;
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
        let failed = match &*self.loading.borrow() {
            Loading::UnderWay => return,
            Loading::Done(_) => None,
            Loading::Failed(error) => Some(error.message.clone()),
        };
        while self.running < self.running_max() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if waiting.cancel.is_cancelled() {
                let _ = waiting.reply.send(Answer::error(ABORTED));
                continue;
            }
            if waiting.reply.is_closed() {
                continue;
            }
            match (&failed, &self.package) {
                (None, Some(package)) => {
                    let package = Arc::clone(package);
                    self.run(waiting, package, ctx);
                }
                (failed, _) => {
                    let why = failed.as_deref().unwrap_or("plugin could not be loaded");
                    let _ = waiting.reply.send(Answer::error(why));
                }
            }
        }
        if self.retiring && self.running == 0 && self.waiting.is_empty() {
            ctx.stop();
        }
    }

    fn run(&mut self, waiting: Waiting, package: Arc<Package>, ctx: &mut Context<Self>) {
        let Waiting { input, cancel, turn, reply } = waiting;
        let (entered_sender, entered) = oneshot::channel();
        let (done_sender, done) = oneshot::channel();
        let engine = self.idle.pop();
        let cache = Arc::clone(&self.surroundings.cache);
        let job = {
            let (package, cancel) = (Arc::clone(&package), cancel.clone());
            move || {
                // Closed where the actor is gone.
                if cancel.is_cancelled() || done_sender.is_closed() || !turn.begin() {
                    let _ =
                        done_sender.send(Done { engine, compiled: false, result: Err(Failure::Interrupted) });
                    return;
                }
                let compiled = engine.is_none();
                let result = match engine {
                    Some(engine) => Ok(engine),
                    None => {
                        let wanted = || !cancel.is_cancelled();
                        Engine::load(&package, &cache, &wanted).map(|(engine, _)| engine)
                    }
                };
                let done = match result {
                    Ok(mut engine) => {
                        let result = engine.call("handle_tool_call", &input, |handle| {
                            let _ = entered_sender.send(handle);
                        });
                        Done { engine: Some(engine), compiled, result }
                    }
                    Err(why) => {
                        Done { engine: None, compiled, result: Err(Failure::Trapped(why.to_string())) }
                    }
                };
                let _ = done_sender.send(done);
            }
        };
        if self.surroundings.pool.submit(job).is_err() {
            let _ = reply
                .send(Answer::error(format!("plugin {}: the sandbox is full, try again later", self.name)));
            return;
        }
        self.running += 1;
        let conduct = conduct(package, entered, done, cancel, reply);
        ctx.spawn(conduct.into_actor(self).map(|ended, act, ctx| {
            act.running -= 1;
            act.ended(ended);
            act.next(ctx);
        }));
    }

    fn ended(&mut self, ended: Ended) {
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

/// Reads, compiles and describes, for as long as it is `wanted`. Blocks.
///
/// # Errors
/// What is wrong with it, with its name.
pub fn load(
    name: &PluginName,
    source: &Source,
    entry: Option<&config::Plugin>,
    cache: &Cache,
    wanted: &dyn Fn() -> bool,
) -> Result<(Package, Engine, Loaded), Error> {
    let fail = |why: String| ErrorCode::InvalidRequest.error(format!("plugin {name}: {why}"));
    let package = source.read(name, entry)?;
    let (mut engine, _loading) = Engine::load(&package, cache, wanted)
        .map_err(|why| why.code().error(format!("plugin {name}: {why}")))?;
    let output =
        engine.call("describe", b"{}", |_| ()).map_err(|failure| fail(format!("describe {failure}")))?;
    if output.len() > DESCRIPTION_BYTES_MAX {
        return Err(fail(format!(
            "describe answers with {} bytes, more than {DESCRIPTION_BYTES_MAX}",
            output.len()
        )));
    }
    let described: Value = serde_json::from_slice(&output)
        .map_err(|error| fail(format!("describe does not answer with JSON: {error}")))?;
    if let Some(kind) = described.get("type").and_then(Value::as_str).filter(|kind| *kind != "tool") {
        return Err(fail(format!("it is a {kind}, only tools are implemented yet")));
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let manifest = &package.manifest;
    let description =
        text(described.get("description")).or_else(|| manifest.description.clone()).unwrap_or_default();
    let input_schema = match described.get("input_schema") {
        None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(_) => return Err(fail("describe's input_schema is not an object".to_owned())),
    };
    let loaded = Loaded {
        summary: PluginSummary {
            name: name.clone(),
            version: manifest.version.clone(),
            description: manifest.description.clone().unwrap_or_else(|| description.clone()),
            capabilities: package.grants.iter().map(ToString::to_string).collect(),
        },
        tool: ToolSpec { name: name.clone(), description, input_schema },
        idempotent: manifest.idempotent,
        digest: package.digest(),
    };
    Ok((package, engine, loaded))
}

/// What is wrong with the configured plugins, each tried as it is when the daemon starts, where it can be
/// read at all: for what can't be, see [`source::check`]. `home` is where relative paths start. Blocks,
/// for as long as it takes to compile them.
pub fn attempt(plugins: &[config::Plugin], home: &Path, cache: &Cache) -> Vec<Error> {
    let embedded = source::embedded();
    let tried = plugins.iter().filter_map(|plugin| {
        let mut plugin = plugin.clone();
        plugin.path = plugin.path.map(|path| home.join(path));
        let source = Source::own(&embedded, &plugin.name, Some(&plugin))?;
        source.read(&plugin.name, Some(&plugin)).ok()?;
        let mut error = load(&plugin.name, &source, Some(&plugin), cache, &|| true).err()?;
        if let Some(path) = &plugin.path {
            error.message = format!("{}: {}", path.display(), error.message);
        }
        Some(error)
    });
    tried.collect()
}

/// What comes back from the pool.
struct Done {
    engine: Option<Engine>,
    compiled: bool,
    result: Result<Vec<u8>, Failure>,
}

/// What is known when a call is over and its thread is free.
struct Ended {
    /// The engine, where it may be used again.
    engine: Option<Engine>,
    compiled: bool,
    /// The beginning of what it was answered, where it failed.
    error: Option<String>,
    cut_off: bool,
    took: Duration,
}

/// Sees one call through: answers at its end, its time limit or its cancellation, whichever is
/// first, and then waits until the thread has let go of the guest.
async fn conduct(
    package: Arc<Package>,
    mut entered: oneshot::Receiver<Interrupt>,
    mut done: oneshot::Receiver<Done>,
    cancel: Cancel,
    reply: oneshot::Sender<Answer>,
) -> Ended {
    let name = &package.name;
    let limits = package.limits;
    // Where the guest is never entered the sender is dropped, and `done` knows why.
    let handle = match tokio::time::timeout(WAIT_MAX + LOAD_MAX, &mut entered).await {
        Ok(handle) => handle.ok(),
        Err(_) => {
            let answer = Answer::error(format!("plugin {name} could not be compiled in time"));
            let error = answer.failure();
            let _ = reply.send(answer);
            let compiled = release(entered.await.ok(), &mut done).await;
            return Ended { engine: None, compiled, error, cut_off: true, took: limits.timeout };
        }
    };
    let entered_at = Instant::now();
    let cut_off = if handle.is_some() {
        let end = std::pin::pin!(async {
            match select(
                std::pin::pin!(tokio::time::sleep(limits.timeout)),
                std::pin::pin!(cancel.cancelled()),
            )
            .await
            {
                Either::Left(_) => {
                    format!("plugin {name} took longer than {} ms", limits.timeout.as_millis())
                }
                Either::Right(_) => ABORTED.to_owned(),
            }
        });
        match select(&mut done, end).await {
            Either::Left((done, _)) => Err(done),
            Either::Right((why, _)) => Ok(why),
        }
    } else {
        Err((&mut done).await)
    };
    match cut_off {
        Ok(why) => {
            let answer = Answer::error(why);
            let error = answer.failure();
            let _ = reply.send(answer);
            let compiled = release(handle, &mut done).await;
            Ended { engine: None, compiled, error, cut_off: true, took: entered_at.elapsed() }
        }
        Err(done) => {
            let took = entered_at.elapsed();
            let Ok(Done { engine, compiled, result }) = done else {
                let answer = Answer::error(format!("plugin {name} crashed in the sandbox"));
                let error = answer.failure();
                let _ = reply.send(answer);
                return Ended { engine: None, compiled: false, error, cut_off: false, took };
            };
            let answer = match result {
                Ok(output) => Answer::of_output(&output),
                Err(Failure::OutOfFuel) => {
                    Answer::error(format!("plugin {name} ran out of fuel (limit {})", limits.fuel))
                }
                Err(Failure::OutOfMemory) => {
                    Answer::error(format!("plugin {name} ran out of memory (limit {} MiB)", limits.memory_mb))
                }
                Err(Failure::Interrupted) if cancel.is_cancelled() => Answer::error(ABORTED),
                Err(Failure::Interrupted) => {
                    Answer::error(format!("plugin {name} took longer than {} ms", limits.timeout.as_millis()))
                }
                Err(failure) => Answer::error(format!("plugin {name} {failure}")),
            };
            let error = answer.failure();
            let _ = reply.send(answer);
            // The runtime's own, later time limit may be about to strike an engine this slow.
            let engine = engine.filter(|_| took < limits.timeout);
            Ended { engine, compiled, error, cut_off: false, took }
        }
    }
}

/// What a call that was called off is answered.
pub const ABORTED: &str = "aborted";

/// Ends the guest and waits until its thread is free; fuel bounds what nothing else ends, such as a
/// start function.
async fn release(interrupt: Option<Interrupt>, done: &mut oneshot::Receiver<Done>) -> bool {
    let interrupt = interrupt.map(Arc::new);
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(interrupt) = &interrupt {
            interrupt.ask();
            if pause >= FORCE_AFTER {
                force(Arc::clone(interrupt)).await;
            }
        }
        match tokio::time::timeout(pause, &mut *done).await {
            Ok(done) => return done.is_ok_and(|done| done.compiled),
            Err(_) => pause = (pause * 2).min(Duration::from_millis(500)),
        }
    }
}

/// When patience ends.
const FORCE_AFTER: Duration = Duration::from_millis(32);

/// On a thread of its own: those of the pool may all be waiting for just this.
async fn force(interrupt: Arc<Interrupt>) {
    let (sender, forced) = oneshot::channel();
    let spawned = std::thread::Builder::new().name("sandbox-force".to_owned()).spawn(move || {
        interrupt.force();
        let _ = sender.send(());
    });
    match spawned {
        Ok(_) => {
            let _ = forced.await;
        }
        Err(error) => tracing::warn!(%error, "no thread to end a call with, trying again"),
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
    type Result = ResponseFuture<Answer>;

    fn handle(&mut self, call: Call, ctx: &mut Self::Context) -> Self::Result {
        let name = self.name.clone();
        if self.waiting.len() >= WAITING_MAX {
            let busy = format!("plugin {name} is busy: {WAITING_MAX} calls wait already, try again later");
            return Box::pin(async move { Answer::error(busy) });
        }
        let (reply, mut answer) = oneshot::channel();
        let turn = Arc::new(Turn::default());
        let cancel = call.cancel.clone();
        self.waiting.push_back(Waiting {
            input: call.input,
            cancel: call.cancel,
            turn: Arc::clone(&turn),
            reply,
        });
        self.next(ctx);
        Box::pin(async move {
            let gone = || Answer::error(format!("plugin {name} crashed, try again"));
            let give_up = std::pin::pin!(async {
                let wait = std::pin::pin!(tokio::time::sleep(WAIT_MAX));
                match select(wait, std::pin::pin!(cancel.cancelled())).await {
                    Either::Left(_) => Answer::error(format!(
                        "plugin {name} is busy: no room to run within {} ms",
                        WAIT_MAX.as_millis()
                    )),
                    Either::Right(_) => Answer::error(ABORTED),
                }
            });
            match select(&mut answer, give_up).await {
                Either::Left((answer, _)) => answer.unwrap_or_else(|_| gone()),
                // It runs, so its own time limit ends it.
                Either::Right(_) if !turn.give_up() && !cancel.is_cancelled() => {
                    answer.await.unwrap_or_else(|_| gone())
                }
                Either::Right((why, _)) => why,
            }
        })
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
            Loading::Done(_) => ("loaded", None),
            Loading::Failed(error) => ("failed", Some(error.message.clone())),
        };
        let loaded = match &*self.loading.borrow() {
            Loading::Done(loaded) => Some(loaded.clone()),
            Loading::UnderWay | Loading::Failed(_) => None,
        };
        let package = self.package.as_deref();
        let approval = self.entry.as_ref().map(|entry| entry.approval).unwrap_or_default();
        Observed::leaf(
            format!("plugin {}", self.name),
            json!({
                "plugin": self.name.as_str(),
                "state": state,
                "error": error,
                "version": loaded.as_ref().and_then(|loaded| loaded.summary.version.as_deref()),
                "description": loaded.as_ref().map(|loaded| loaded.summary.description.as_str()),
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
                })),
                "module_bytes": package.map(|package| package.module.len()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn output_that_is_not_in_the_shape_is_the_content() {
        for (output, content, is_error) in [
            (r#"{"content":"hi"}"#, "hi", false),
            (r#"{"content":"hi","is_error":false,"more":1}"#, "hi", false),
            (r#"{"content":"no","is_error":true}"#, "no", true),
            (r#"{"content":7}"#, r#"{"content":7}"#, false),
            (r#"{"is_error":true}"#, r#"{"is_error":true}"#, false),
            ("[1]", "[1]", false),
            ("plain İİİİ", "plain İİİİ", false),
            ("", "", false),
        ] {
            let answer = Answer::of_output(output.as_bytes());
            assert_eq!(answer, Answer { content: content.to_owned(), is_error }, "{output}");
        }
        assert_eq!(Answer::of_output(b"\xff").content, "\u{fffd}");
    }

    proptest! {
        #[test]
        fn no_output_panics(output in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Answer::of_output(&output);
        }
    }
}
