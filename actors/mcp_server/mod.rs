//! An MCP server, and the calls to its tools.
//!
//! It is started or reached when the actor starts, shared by all sessions, and connected to anew, with growing
//! pauses, whenever it ends or does not answer any more. What it says of its tools is held against what was
//! agreed to: on the first meeting all of it is; later a tool that is new or says something else of itself is
//! held until an operator agrees.
//!
//! Deliberately absent: retries of calls (one may have had its effect), and everything a server may want of its
//! client (models, files, questions to people).

mod connect;
mod content;
mod http;
mod listing;
mod program;
mod stdio;
mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use clawmux_core::access::Secret;
use clawmux_core::config::{self, McpReach};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::time::{Timestamp, backoff};
use clawmux_core::tools::audit::CallUsage;
use clawmux_core::tools::call::{ToolCall, ToolResult, ToolSpec};
use clawmux_core::tools::plugin::redact_values;
use futures::future::{OptionFuture, ready};
use rmcp::RoleClient;
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, ServerResult};
use rmcp::service::{Peer, PeerRequestOptions, RunningServiceCancellationToken, ServiceError};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use crate::host::keeper::has_landlock;
use crate::outbound::fetch::Fetcher;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::observe::{Observe, Observed};
use crate::runtime::supervision::Guard;
use crate::store::{AgreeToTools, AgreedTools, ReadAgreedTools, Store, TableChanged, watch};

use connect::{Connection, connect};
use listing::{Listed, Listing, described, list, offered};
use program::Program;
use words::not_answered;

/// The most calls of one server under way.
pub const CALLS_MAX: usize = 32;

/// The most bytes of a call's input.
pub const INPUT_BYTES_MAX: usize = 1024 * 1024;

/// The pause after the first failure; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// A server that has answered for so long has not failed lately.
const STEADY: Duration = Duration::from_secs(60);

/// So many calls in a row may take too long before the server is started anew.
const LATE_MAX: u32 = 3;

/// How long changes of its tools are gathered before they are asked for.
const GATHER: Duration = Duration::from_secs(1);

/// How often a server behind a URL, which can't say that its tools have changed, is asked for them.
const LOOK: Duration = Duration::from_secs(600);

/// How long its program may take to end.
const END_MAX: Duration = Duration::from_secs(20);

/// So much is kept of why a call or a connection failed, in characters.
const ERROR_CHARS_MAX: usize = 500;

/// What all servers share.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The home: a server that is a program has a folder of its own in it.
    pub home: PathBuf,
    /// The program that keeps the programs of servers.
    pub keeper: PathBuf,
    /// Sends requests to servers behind URLs.
    pub fetcher: Fetcher,
    /// Keeps what was agreed to.
    pub store: Addr<Store>,
    /// Version of clawmux.
    pub version: &'static str,
}

/// What agents may be offered of a server.
#[derive(Clone, Debug, Default)]
pub struct Offered {
    /// Whether its first start is over, however it went.
    pub(crate) is_settled: bool,
    tools: Arc<BTreeMap<PluginName, Listed>>,
}

impl Offered {
    /// Its tools by the server's own names, as a model is told of them.
    pub(crate) fn tools(&self) -> impl Iterator<Item = (&str, &ToolSpec)> {
        self.tools.values().map(|tool| (tool.name.as_str(), &tool.spec))
    }
}

/// Calls a tool. Where `reply` is dropped the call is called off.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Call {
    /// The call, by the name the model knows the tool under.
    pub call: ToolCall,
    /// Takes what becomes of it.
    pub reply: oneshot::Sender<(ToolResult, CallUsage)>,
}

/// Starts or reaches the server anew, at once.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Restart;

/// Agrees to what the server says of its tools now; answered with the names of those that were held.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<Vec<String>, Error>")]
pub struct Agree {
    /// The digest of what was looked at: it is refused where the server says something else by now.
    pub digest: Option<String>,
}

/// Ends the server; answered when it and all it has started is gone.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct End;

/// See the module.
pub struct McpServer {
    config: config::McpServer,
    around: Surroundings,
    offered: watch::Sender<Offered>,
    state: State,
    /// Which connection it is: what an earlier one still has to say plays no part.
    generation: u64,
    /// Failures in a row.
    failures: u32,
    agreed: AgreedTools,
    listing: Listing,
    figures: Figures,
    /// While it is started or reached.
    connecting: Option<SpawnHandle>,
    /// Who waits for its end.
    ended: Option<oneshot::Sender<()>>,
    _guard: Guard,
}

enum State {
    Starting,
    Ready {
        peer: Peer<RoleClient>,
        stop: Option<RunningServiceCancellationToken>,
        since: Instant,
        pid: Option<u32>,
        /// Calls under way.
        calls: usize,
        /// Calls in a row that took too long.
        late: u32,
    },
    /// It is tried again then.
    Waiting {
        until: Instant,
    },
    Ended,
}

#[derive(Default)]
struct Figures {
    calls: u64,
    failures: u64,
    starts: u64,
    last_error: Option<(String, Timestamp)>,
}

impl McpServer {
    /// Starts or reaches the server when started. What it offers is seen through `offered`.
    pub fn new(
        config: config::McpServer,
        around: Surroundings,
        offered: watch::Sender<Offered>,
        guard: Guard,
    ) -> Self {
        Self {
            config,
            around,
            offered,
            state: State::Starting,
            generation: 0,
            failures: 0,
            agreed: AgreedTools::default(),
            listing: Listing::default(),
            figures: Figures::default(),
            connecting: None,
            ended: None,
            _guard: guard,
        }
    }

    fn start_anew(&mut self, ctx: &mut Context<Self>) {
        self.generation += 1;
        self.figures.starts += 1;
        self.state = State::Starting;
        let (config, around, generation) = (self.config.clone(), self.around.clone(), self.generation);
        let connected = async move {
            let connection = connect(&config, &around).await?;
            let server = config.name;
            let known = ask(&around.store, ReadAgreedTools { server: server.clone() }).await.flatten();
            let agreed = match known.map_err(|error| error.message)? {
                Some(agreed) => agreed,
                None => {
                    let tools = connection.listing.digests();
                    let agree = AgreeToTools { server, tools: tools.clone() };
                    ask(&around.store, agree).await.flatten().map_err(|error| error.message)?;
                    tools
                }
            };
            Ok((connection, agreed))
        };
        let before = self.connecting.replace(ctx.spawn(connected.into_actor(self).map(
            move |connected: Result<_, String>, server, ctx| {
                server.connecting = None;
                match connected {
                    Ok((connection, agreed)) => server.connected(generation, connection, agreed, ctx),
                    Err(why) => server.failed(why, ctx),
                }
            },
        )));
        before.map(|before| ctx.cancel_future(before));
    }

    fn connected(
        &mut self,
        generation: u64,
        connection: Connection,
        agreed: AgreedTools,
        ctx: &mut Context<Self>,
    ) {
        let Connection { client, program, listing, changes } = connection;
        let pid = program.as_ref().and_then(Program::pid);
        tracing::info!(server = %self.config.name, pid, tools = listing.tools.len(), "MCP server is ready");
        self.state = State::Ready {
            peer: client.peer().clone(),
            stop: Some(client.cancellation_token()),
            since: Instant::now(),
            pid,
            calls: 0,
            late: 0,
        };
        self.agreed = agreed;
        self.take(listing);
        let over = async move {
            let _ = client.waiting().await;
            OptionFuture::from(program.map(Program::ended)).await
        };
        ctx.spawn(over.into_actor(self).map(move |how, server, ctx| {
            if server.generation == generation {
                server.failed(how.unwrap_or_else(|| "the connection was closed".to_owned()), ctx);
            } else if server.ended.take().is_some_and(|ended| ended.send(()).is_ok()) {
                ctx.stop();
            }
        }));
        self.await_changes(changes, ctx);
    }

    /// Asks for its tools once they change.
    fn await_changes(&self, mut changes: watch::Receiver<u64>, ctx: &mut Context<Self>) {
        let State::Ready { peer, .. } = &self.state else { return };
        let (peer, generation) = (peer.clone(), self.generation);
        let (name, is_asked) = (self.config.name.clone(), matches!(self.config.reach, McpReach::Url(_)));
        let listed = async move {
            if is_asked {
                sleep(LOOK).await;
            } else {
                changes.changed().await.ok()?;
                sleep(GATHER).await;
                changes.mark_unchanged();
            }
            Some((list(&name, &peer).await, changes))
        };
        ctx.spawn(listed.into_actor(self).map(move |listed, server, ctx| {
            let Some((listing, changes)) = listed.filter(|_| server.generation == generation) else { return };
            match listing {
                Ok(listing) => server.take(listing),
                Err(why) => drop(server.note(&why)),
            }
            server.await_changes(changes, ctx);
        }));
    }

    /// From now on these are its tools.
    fn take(&mut self, listing: Listing) {
        self.listing = listing;
        self.share();
    }

    fn share(&self) {
        let (allowed, is_ready) = (self.config.tools.as_deref(), matches!(self.state, State::Ready { .. }));
        let tools =
            if is_ready { offered(&self.listing, allowed, &self.agreed) } else { BTreeMap::default() };
        if is_ready && described(&self.listing, allowed, &self.agreed).1 {
            let server = &self.config.name;
            tracing::warn!(%server, "MCP server: what it says of its tools was not agreed to: see `clawmux mcp list {server}`");
        }
        self.offered.send_replace(Offered { is_settled: true, tools: Arc::new(tools) });
    }

    /// It can't be started or reached, or is gone: it is tried again after a pause.
    fn failed(&mut self, why: String, ctx: &mut Context<Self>) {
        if let State::Ready { since, .. } = &self.state
            && since.elapsed() >= STEADY
        {
            self.failures = 0;
        }
        let pause = backoff(PAUSE, self.failures, PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        let why = self.note(&why);
        let pause_s = pause.as_secs();
        tracing::warn!(server = %self.config.name, pause_s, error = ?why, "MCP server is not there: it is tried again");
        self.generation += 1;
        let generation = self.generation;
        self.state = State::Waiting { until: Instant::now() + pause };
        self.share();
        ctx.run_later(pause, move |server, ctx| {
            if server.generation == generation {
                server.start_anew(ctx);
            }
        });
    }

    /// Ends the connection; what is under way fails, and its program ends.
    fn stop(&mut self) {
        if let State::Ready { stop, .. } = &mut self.state
            && let Some(stop) = stop.take()
        {
            stop.cancel();
        }
    }

    /// Keeps why something failed, without secrets and bounded.
    fn note(&mut self, why: &str) -> String {
        let why: String = self.shown(why).chars().take(ERROR_CHARS_MAX).collect();
        self.figures.last_error = Some((why.clone(), clock::now()));
        why
    }

    /// A text of the server without its secrets.
    fn shown(&self, text: &str) -> String {
        shown(&self.config, text)
    }

    /// What has to be known to make a call.
    ///
    /// # Errors
    /// Why it is not made.
    fn admit(&mut self, call: &ToolCall) -> Result<(Peer<RoleClient>, CallToolRequestParams), String> {
        let name = &self.config.name;
        let tools = Arc::clone(&self.offered.borrow().tools);
        let (peer, calls) = match &mut self.state {
            State::Ready { peer, calls, .. } => (peer.clone(), calls),
            State::Starting => return Err(format!("MCP server {name} is being started, try again")),
            State::Waiting { until } => {
                let left = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                return Err(format!("MCP server {name} is not there; it is tried again in {left} s"));
            }
            State::Ended => return Err(format!("MCP server {name} has ended")),
        };
        let tool = tools.get(&call.name);
        let listed = || self.listing.tools.iter().any(|tool| tool.spec.name == call.name);
        let tool = tool.ok_or_else(|| match listed() {
            true => format!("{} is not offered: see `clawmux mcp list {name}`", call.name),
            false => format!("there is no tool {:?}", call.name.as_str()),
        })?;
        let Value::Object(arguments) = &call.input else {
            return Err(format!("the input of {} is not a JSON object, see its input_schema", call.name));
        };
        tool.schema.check(&call.input).map_err(|why| format!("{} {why}", call.name))?;
        if *calls >= CALLS_MAX {
            return Err(format!("MCP server {name} is busy with {CALLS_MAX} calls, try again later"));
        }
        *calls += 1;
        Ok((peer, CallToolRequestParams::new(tool.name.clone()).with_arguments(arguments.clone())))
    }

    /// A call is over.
    fn made(&mut self, generation: u64, end: &CallEnd) {
        self.figures.calls += 1;
        if let CallEnd::Failed(why) | CallEnd::Late(why) = end {
            self.figures.failures += 1;
            self.note(why);
        }
        if self.generation != generation {
            return;
        }
        let State::Ready { calls, late, .. } = &mut self.state else { return };
        *calls = calls.saturating_sub(1);
        match end {
            CallEnd::Late(_) => *late += 1,
            CallEnd::Ok(_) | CallEnd::Failed(_) => *late = 0,
            CallEnd::Aborted => {}
        }
        if *late >= LATE_MAX {
            tracing::warn!(server = %self.config.name, "MCP server does not answer calls any more: it is started anew");
            self.stop();
        }
    }
}

/// What became of a call.
enum CallEnd {
    Ok(String),
    Failed(String),
    /// It took too long.
    Late(String),
    /// Nobody waits for it any more.
    Aborted,
}

fn shown(config: &config::McpServer, text: &str) -> String {
    let none: &[Secret] = &[];
    let (in_env, in_requests) = match &config.reach {
        McpReach::Command(command) => (command.secrets.as_slice(), [].as_slice()),
        McpReach::Url(url) => (none, url.secrets.as_slice()),
    };
    let secrets = in_env.iter().chain(in_requests.iter().map(|granted| &granted.secret.value));
    String::from_utf8_lossy(&redact_values(secrets, text.as_bytes())).into_owned()
}

/// Makes a call.
async fn make(
    config: &config::McpServer,
    peer: Peer<RoleClient>,
    params: CallToolRequestParams,
    closed: impl Future<Output = ()>,
) -> CallEnd {
    let (name, limit) = (&config.name, config.timeout);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options());
    let mut handle = match tokio::time::timeout(limit, sent).await {
        Ok(Ok(handle)) => handle,
        Ok(Err(error)) => return CallEnd::Failed(format!("MCP server {name}: {}", not_answered(&error))),
        Err(_) => return CallEnd::Late(format!("MCP server {name} does not take calls")),
    };
    let answer = tokio::select! {
        answer = &mut handle.rx => answer.unwrap_or(Err(ServiceError::TransportClosed)),
        () = sleep(limit) => {
            let _ = handle.cancel(Some("it took too long".to_owned())).await;
            let limit = limit.as_millis();
            return CallEnd::Late(format!("MCP server {name} took longer than {limit} ms"));
        }
        () = closed => {
            let _ = handle.cancel(Some("it is not wanted any more".to_owned())).await;
            return CallEnd::Aborted;
        }
    };
    let result = match answer {
        Ok(ServerResult::CallToolResult(result)) => result,
        Ok(ServerResult::InputRequiredResult(_)) => {
            return CallEnd::Failed(format!(
                "MCP server {name} asks for input, which nobody can give it here"
            ));
        }
        Ok(_) => {
            return CallEnd::Failed(format!("MCP server {name} answered with what is no result of a call"));
        }
        Err(ServiceError::TransportClosed) => {
            return CallEnd::Failed(format!(
                "MCP server {name} went away during the call, which it may have carried out"
            ));
        }
        Err(error) => return CallEnd::Failed(format!("MCP server {name}: {}", not_answered(&error))),
    };
    let text = content::text(&result);
    let limit = config.output_bytes;
    if text.len() > limit {
        let bytes = text.len();
        return CallEnd::Failed(format!("MCP server {name} answered with {bytes} bytes (limit {limit})"));
    }
    if result.is_error == Some(true) { CallEnd::Failed(text) } else { CallEnd::Ok(text) }
}

impl Actor for McpServer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(CALLS_MAX * 4);
        let store = self.around.store.clone();
        watch(&store, "tools", self, ctx);
        self.start_anew(ctx);
    }
}

impl Handler<Call> for McpServer {
    type Result = ();

    fn handle(&mut self, Call { call, mut reply }: Call, ctx: &mut Self::Context) {
        let (peer, params) = match self.admit(&call) {
            Ok(admitted) => admitted,
            Err(why) => {
                let result = ToolResult { call: call.id, content: why, is_error: true };
                let _ = reply.send((result, CallUsage::default()));
                return;
            }
        };
        let grant = format!("mcp:{}/{}", self.config.name, params.name);
        let (config, generation) = (self.config.clone(), self.generation);
        let made = async move {
            let end = make(&config, peer, params, reply.closed()).await;
            let told = match &end {
                CallEnd::Ok(text) => Some((text, false)),
                CallEnd::Failed(text) | CallEnd::Late(text) => Some((text, true)),
                CallEnd::Aborted => None,
            };
            if let Some((text, is_error)) = told {
                let content = shown(&config, text);
                let usage = CallUsage { fuel: None, grants: vec![grant] };
                let _ = reply.send((ToolResult { call: call.id, content, is_error }, usage));
            }
            end
        };
        ctx.spawn(made.into_actor(self).map(move |end, server, _| server.made(generation, &end)));
    }
}

impl Handler<Restart> for McpServer {
    type Result = ();

    fn handle(&mut self, _: Restart, ctx: &mut Self::Context) {
        self.failures = 0;
        self.stop();
        self.start_anew(ctx);
        self.share();
    }
}

impl Handler<Agree> for McpServer {
    type Result = ResponseActFuture<Self, Result<Vec<String>, Error>>;

    fn handle(&mut self, Agree { digest }: Agree, _: &mut Self::Context) -> Self::Result {
        if !matches!(self.state, State::Ready { .. }) {
            let why = format!(
                "MCP server {} is not there: what it says of its tools is not known",
                self.config.name
            );
            return Box::pin(fut::ready(Err(ErrorCode::Unavailable.error(why))));
        }
        let now = self.listing.digest();
        if digest.is_some_and(|digest| digest != now) {
            let name = &self.config.name;
            let why = format!(
                "what MCP server {name} says of its tools has changed since it was looked at: see `clawmux mcp list {name}`"
            );
            return Box::pin(fut::ready(Err(ErrorCode::Conflict.error(why))));
        }
        let tools = self.listing.digests();
        let held: Vec<String> = tools
            .iter()
            .filter(|(name, digest)| self.agreed.get(*name) != Some(digest))
            .map(|(name, _)| name.clone())
            .collect();
        let (store, server) = (self.around.store.clone(), self.config.name.clone());
        let written = async move {
            ask(&store, AgreeToTools { server, tools: tools.clone() }).await.flatten()?;
            Ok(tools)
        };
        Box::pin(written.into_actor(self).map(|agreed: Result<AgreedTools, Error>, server, _| {
            server.agreed = agreed?;
            server.share();
            Ok(held)
        }))
    }
}

/// Another daemon of the cluster agreed to something.
impl Handler<TableChanged> for McpServer {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: TableChanged, _: &mut Self::Context) -> Self::Result {
        let (store, server) = (self.around.store.clone(), self.config.name.clone());
        let read = async move { ask(&store, ReadAgreedTools { server }).await.flatten() };
        Box::pin(read.into_actor(self).map(|read, server, _| match read {
            Ok(Some(agreed)) if matches!(server.state, State::Ready { .. }) => {
                server.agreed = agreed;
                server.share();
            }
            // What is being reached reads it when it is.
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "what another daemon agreed to can't be read"),
        }))
    }
}

impl Handler<End> for McpServer {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: End, ctx: &mut Self::Context) -> Self::Result {
        self.stop();
        self.connecting.take().map(|connecting| ctx.cancel_future(connecting));
        self.generation += 1;
        let is_there = matches!(self.state, State::Ready { .. });
        self.state = State::Ended;
        self.share();
        if !is_there {
            ctx.stop();
            return Box::pin(ready(()));
        }
        let (ended, end) = oneshot::channel();
        self.ended = Some(ended);
        ctx.run_later(END_MAX, |_, ctx| ctx.stop());
        Box::pin(async move {
            let _ = end.await;
        })
    }
}

impl Handler<Observe> for McpServer {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let (tools, is_held) = described(&self.listing, self.config.tools.as_deref(), &self.agreed);
        let (state, pid, calls, retry_ms) = match &self.state {
            State::Starting => ("starting", None, 0, None),
            State::Ready { pid, calls, .. } => (if is_held { "held" } else { "ready" }, *pid, *calls, None),
            State::Waiting { until } => {
                let left = until.saturating_duration_since(Instant::now()).as_millis();
                ("failed", None, 0, Some(left))
            }
            State::Ended => ("ended", None, 0, None),
        };
        let (reach, limits) = match &self.config.reach {
            McpReach::Command(command) => (
                command.command.join(" "),
                json!({ "memory_bytes": command.memory_bytes, "processes": command.processes,
                    "folders": command.folders.iter().map(|folder| {
                        let mode = if folder.is_writable { "" } else { ":ro" };
                        format!("{}{mode}", folder.path.display())
                    }).collect::<Vec<_>>() }),
            ),
            McpReach::Url(url) => {
                (url.url.as_str().split('?').next().unwrap_or_default().to_owned(), json!({}))
            }
        };
        Observed::leaf(
            format!("mcp server {}", self.config.name),
            json!({
                "server": self.config.name,
                "state": state,
                "reach": reach,
                "pid": pid,
                "retry_ms": retry_ms,
                "approval": match self.config.approval {
                    config::Approval::Never => "never",
                    config::Approval::Ask => "ask",
                },
                "limits": limits,
                "is_confined": matches!(self.config.reach, McpReach::Command(_)).then(has_landlock),
                "timeout_ms": self.config.timeout.as_millis(),
                "output_bytes": self.config.output_bytes,
                "tools": tools,
                "digest": self.listing.digest(),
                "calls_running": calls,
                "calls_total": self.figures.calls,
                "calls_failed_total": self.figures.failures,
                "starts_total": self.figures.starts,
                "last_error": self.figures.last_error.as_ref().map(|(error, _)| error),
                "last_error_ms": self.figures.last_error.as_ref().map(|(_, at)| at.as_millis()),
            }),
        )
    }
}
