//! `Nodes`: which nodes are connected, and what they have been told to do.
//!
//! A node is a connection that offers commands. It belongs to whoever connected it: others neither
//! see it nor may have it do anything, except through an agent that the configuration grants one of
//! its commands ([`NodeTool`]). A command it did not declare is refused before it is asked.
//!
//! An invocation goes to the node's connection alone and is answered once: with the node's result,
//! with why there is none in time, or with its having left. One node has a bounded number under way.
//! An idempotency key names one invocation: asked for again it is joined, or answered with what
//! became of it. A tool call has its journal for that: what a crash cut off is never asked again,
//! since nobody knows whether the node did it.

mod connected;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::access::About;
use clawmux_core::area::Noted;
use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::{ConnectionId, Owner, RunId, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::request::reply::Reply;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::call::{ToolCall, ToolResult};
use clawmux_core::tools::node::{
    INVOKE_TIMEOUT, INVOKE_TIMEOUT_MAX, Invocation, InvokeNode, Invoked, NodeCommand, NodeFailure, NodeReply,
    NodeResult, NodeRow, NodeTool, PARAMS_BYTES_MAX,
};
use serde_json::json;
use tokio::sync::oneshot;

use crate::runtime::clock;
use crate::runtime::deliver::{Asker, Client, Deliver};
use crate::runtime::dispatch::Request;
use crate::runtime::observe::{Observe, Observed};

pub use connected::Connected;

use connected::Shown;

/// Invocations of one node that may be under way.
pub const UNDER_WAY_MAX: usize = 16;

/// The most bytes of a result that a model is told, and that a session's log keeps.
pub const TOOL_RESULT_BYTES_MAX: usize = 1024 * 1024;

/// For how long what became of an invocation is remembered under its key.
const REMEMBERED: Duration = Duration::from_secs(5 * 60);

/// How many invocations are remembered under their keys, and the most bytes of each result.
const REMEMBERED_MAX: usize = 256;
const REMEMBERED_BYTES_MAX: usize = 64 * 1024;

/// Messages that may wait.
const MAILBOX: usize = 2048;

type Outcome = Result<Option<String>, NodeFailure>;

/// An idempotency key of an owner, for one node.
type Key = (Owner, Arc<str>, String);

/// Which nodes there are.
#[derive(Default)]
pub struct Nodes {
    nodes: BTreeMap<Arc<str>, Node>,
    connected: Connected,
    /// What is under way, by its id.
    open: HashMap<Arc<str>, Open>,
    keys: HashMap<Key, Known>,
    /// The keys of what is over, the oldest first.
    over: VecDeque<(Timestamp, Key)>,
    invoked: u64,
    failed: u64,
}

/// One node.
struct Node {
    shown: Arc<Shown>,
    /// Whether its id is one it has proven.
    is_proven: bool,
    client: Client,
    /// How many invocations are under way.
    under_way: usize,
}

/// An invocation under way.
struct Open {
    node: Arc<str>,
    connection: ConnectionId,
    command: String,
    key: Option<Key>,
    waiting: Vec<Waiter>,
    deadline: SpawnHandle,
}

/// Who waits for what becomes of it.
enum Waiter {
    Client(Asker),
    Tool(oneshot::Sender<Outcome>),
}

/// What is known of an idempotency key.
enum Known {
    /// Under way, by its id.
    Open(Arc<str>),
    /// Over; without its outcome where that was too large to be kept.
    Over { command: String, outcome: Option<Outcome> },
}

/// A node has connected.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct NodeJoins {
    /// The way to it.
    pub client: Client,
    /// Whose it is.
    pub owner: Owner,
    /// Where it comes from, without a port.
    pub host: String,
    /// What it says of itself.
    pub about: About,
    /// Its device.
    pub device: Option<Arc<str>>,
}

/// A node's connection is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct NodeLeaves {
    /// Its number.
    pub connection: ConnectionId,
}

/// The nodes this principal may see.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Vec<NodeRow>")]
pub struct ListNodes(pub Principal);

/// What became of an invocation, from the connection that was told of it; whether anybody waited.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct Resulted {
    /// The connection.
    pub connection: ConnectionId,
    /// The invocation.
    pub invocation: Arc<str>,
    /// What became of it.
    pub outcome: Outcome,
}

/// Calls a granted command as a tool. Whatever happens, the answer is a result.
#[derive(Clone, Debug, Message)]
#[rtype(result = "ToolResult")]
pub struct CallNode {
    /// The session it is for.
    pub session: SessionKey,
    /// The run it is for.
    pub run: RunId,
    /// What was granted.
    pub tool: NodeTool,
    /// The call.
    pub call: ToolCall,
}

impl Nodes {
    /// The nodes that are connected, as they come and go.
    pub fn connected(&self) -> Connected {
        self.connected.clone()
    }

    fn share(&self) {
        let nodes = self.nodes.iter();
        self.connected.set(nodes.map(|(id, node)| (id.clone(), node.shown.clone())).collect());
    }

    /// Tells a node to do something.
    fn begin(
        &mut self,
        node: &Arc<str>,
        invoke: InvokeNode,
        key: Option<Key>,
        waiting: Waiter,
        ctx: &mut Context<Self>,
    ) {
        let fail = |waiting, error| answer(waiting, node, &invoke.command, Err(error));
        let Some(entry) = self.nodes.get_mut(node) else {
            return fail(waiting, not_connected(node));
        };
        if entry.under_way >= UNDER_WAY_MAX {
            let busy = format!("node {node} is busy with {UNDER_WAY_MAX} invocations: try again later");
            return fail(waiting, ErrorCode::Unavailable.error(busy));
        }
        let timeout = invoke.timeout.clamp(Duration::from_millis(1), INVOKE_TIMEOUT_MAX);
        let id: Arc<str> = RunId::from_random(clock::random()).as_str().into();
        let invocation = Arc::new(Invocation {
            id: id.clone(),
            node: node.clone(),
            command: invoke.command.clone(),
            params: invoke.params.clone(),
            timeout,
            idempotency_key: invoke.idempotency_key.clone(),
        });
        if entry.client.to.try_send(Deliver::Invoke(invocation)).is_err() {
            let deaf = format!("node {node} does not take anything at the moment: try again later");
            return fail(waiting, ErrorCode::Unavailable.error(deaf));
        }
        entry.under_way += 1;
        self.invoked += 1;
        let late = id.clone();
        let deadline = ctx.run_later(timeout, move |nodes, ctx| {
            let failure = NodeFailure {
                code: NodeFailure::TIMEOUT.into(),
                message: format!("the node did not answer within {} ms", timeout.as_millis()),
            };
            nodes.end(&late, Err(failure), ctx);
        });
        if let Some(key) = key.clone() {
            self.keys.insert(key, Known::Open(id.clone()));
        }
        let open = Open {
            node: node.clone(),
            connection: entry.client.connection,
            command: invoke.command,
            key,
            waiting: vec![waiting],
            deadline,
        };
        self.open.insert(id, open);
    }

    /// It is over: everybody who waits is told; whether there was such an invocation.
    fn end(&mut self, invocation: &Arc<str>, outcome: Outcome, ctx: &mut Context<Self>) -> bool {
        let Some(open) = self.open.remove(invocation) else { return false };
        ctx.cancel_future(open.deadline);
        if let Some(node) = self.nodes.get_mut(&open.node)
            && node.client.connection == open.connection
        {
            node.under_way -= 1;
        }
        self.failed += u64::from(outcome.is_err());
        if let Some(key) = open.key {
            self.remember(key, &open.command, &outcome);
        }
        for waiting in open.waiting {
            answer(waiting, &open.node, &open.command, Ok(outcome.clone()));
        }
        true
    }

    fn remember(&mut self, key: Key, command: &str, outcome: &Outcome) {
        let small = |outcome: &&Outcome| match outcome {
            Ok(payload) => payload.as_ref().map_or(0, String::len) <= REMEMBERED_BYTES_MAX,
            Err(failure) => failure.message.len() + failure.code.len() <= REMEMBERED_BYTES_MAX,
        };
        let outcome = Some(outcome).filter(small).cloned();
        self.keys.insert(key.clone(), Known::Over { command: command.to_owned(), outcome });
        self.over.push_back((clock::now(), key));
        self.forget_old();
    }

    fn forget_old(&mut self) {
        let now = clock::now();
        while let Some((at, key)) = self.over.front()
            && (self.over.len() > REMEMBERED_MAX || now.since(*at) > REMEMBERED)
        {
            self.keys.remove(key);
            self.over.pop_front();
        }
    }

    /// Ends what this connection was told to do.
    fn abandon(&mut self, connection: ConnectionId, why: &str, ctx: &mut Context<Self>) {
        let of = |open: &Open| open.connection == connection;
        let ids: Vec<Arc<str>> =
            self.open.iter().filter(|(_, open)| of(open)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let failure = NodeFailure { code: NodeFailure::NOT_CONNECTED.into(), message: why.to_owned() };
            self.end(&id, Err(failure), ctx);
        }
    }
}

/// The id of a node, and whether it has proven it. One that is only said has its owner's name behind
/// it, so that nobody can take another's; the operators' have none.
fn id(about: &About, device: Option<&Arc<str>>, owner: &Owner) -> Option<(Arc<str>, bool)> {
    if let Some(device) = device {
        return Some((device.clone(), true));
    }
    let said = about.instance_id.as_deref().into_iter().chain([about.client_id.as_str()]);
    let said = said.map(str::trim).find(|said| !said.is_empty())?;
    Some(match owner {
        Owner::Admins => (said.into(), false),
        Owner::Credential(name) => (format!("{said}@{name}").into(), false),
    })
}

fn not_connected(node: &str) -> Error {
    ErrorCode::Unavailable.error(format!("node not connected: {node}"))
}

/// Tells who waits what became of it, or why it was not begun.
fn answer(waiting: Waiter, node: &Arc<str>, command: &str, outcome: Result<Outcome, Error>) {
    match waiting {
        Waiter::Client(asker) => asker.reply(outcome.map(|outcome| {
            Reply::Node(NodeReply::Invoked(Box::new(Invoked {
                node: node.clone(),
                command: command.to_owned(),
                outcome,
            })))
        })),
        Waiter::Tool(tool) => {
            let unbegun =
                |error: Error| NodeFailure { code: error.code.name().into(), message: error.message };
            // A run that was ended meanwhile does not wait any more.
            let _ = tool.send(outcome.unwrap_or_else(|error| Err(unbegun(error))));
        }
    }
}

impl Nodes {
    /// Has a node do something.
    fn invoke(&mut self, invoke: InvokeNode, principal: &Principal, asker: Asker, ctx: &mut Context<Self>) {
        self.forget_old();
        let node = self.nodes.get(invoke.node.trim()).filter(|node| principal.sees(&node.shown.owner));
        let Some(node) = node else {
            return asker.reply(Err(not_connected(&invoke.node)));
        };
        if !node.shown.row.about.commands.contains(&invoke.command) {
            let why =
                format!("node command not allowed: {} does not declare {:?}", invoke.node, invoke.command);
            return asker.reply(Err(ErrorCode::InvalidRequest.error(why)));
        }
        let bytes = invoke.params.as_ref().map_or(0, String::len);
        if bytes > PARAMS_BYTES_MAX {
            let why = format!("the parameters have {bytes} bytes (limit {PARAMS_BYTES_MAX})");
            let limit = Detail::Limit {
                name: clawmux_core::error::limit::Limit::NodeParams,
                limit: PARAMS_BYTES_MAX as u64,
            };
            return asker.reply(Err(ErrorCode::TooLarge.error(why).with(limit)));
        }
        let id = node.shown.row.id.clone();
        // The same key for another command is another invocation.
        let key = invoke.idempotency_key.as_ref().map(|key| format!("{} {key}", invoke.command));
        let key = key.map(|key| (principal.owner.clone(), id.clone(), key));
        match key.as_ref().and_then(|key| self.keys.get(key)) {
            None => self.begin(&id, invoke, key, Waiter::Client(asker), ctx),
            Some(Known::Open(open)) => match self.open.get_mut(open) {
                Some(open) if open.waiting.len() < UNDER_WAY_MAX => open.waiting.push(Waiter::Client(asker)),
                _ => asker.reply(Err(ErrorCode::Unavailable.error("too many wait for this invocation"))),
            },
            Some(Known::Over { command, outcome: Some(outcome) }) => {
                answer(Waiter::Client(asker), &id, command, Ok(outcome.clone()));
            }
            Some(Known::Over { outcome: None, .. }) => asker
                .reply(Err(ErrorCode::Conflict
                    .error("this was done already; what came of it was too large to be kept"))),
        }
    }
}

impl Actor for Nodes {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<NodeJoins> for Nodes {
    type Result = ();

    fn handle(&mut self, joins: NodeJoins, ctx: &mut Self::Context) {
        let NodeJoins { client, owner, host, about, device } = joins;
        let Some((id, is_proven)) = id(&about, device.as_ref(), &owner) else {
            tracing::warn!(%host, "a node without an id can't be asked for anything");
            return;
        };
        if let Some(old) = self.nodes.get(&id) {
            // Who only says that it is this one does not push out who has proven it or is another's.
            if !is_proven && (old.is_proven || old.shown.owner != owner) {
                tracing::warn!(node = %id, %host, "a node says it is one that is connected already");
                return;
            }
            let (connection, why) = (old.client.connection, "the node connected anew before it answered");
            self.abandon(connection, why, ctx);
        }
        tracing::info!(node = %id, %host, commands = about.commands.len(), "node connected");
        let row = NodeRow { id: id.clone(), about, host, connected: clock::now() };
        let shown = Arc::new(Shown { row, owner });
        self.nodes.insert(id, Node { shown, is_proven, client, under_way: 0 });
        self.share();
    }
}

impl Handler<NodeLeaves> for Nodes {
    type Result = ();

    fn handle(&mut self, NodeLeaves { connection }: NodeLeaves, ctx: &mut Self::Context) {
        self.abandon(connection, "the node left before it answered", ctx);
        self.nodes.retain(|id, node| {
            let stays = node.client.connection != connection;
            if !stays {
                tracing::info!(node = %id, "node disconnected");
            }
            stays
        });
        self.share();
    }
}

impl Handler<Request<NodeCommand>> for Nodes {
    type Result = ();

    fn handle(&mut self, request: Request<NodeCommand>, ctx: &mut Self::Context) {
        let Request { command, principal, asker } = request;
        match command {
            NodeCommand::ListNodes(_) => {
                let MessageResult(rows) = Handler::<ListNodes>::handle(self, ListNodes(principal), ctx);
                asker.reply(Ok(Reply::Node(NodeReply::Nodes(rows))));
            }
            NodeCommand::Invoke(invoke) => self.invoke(*invoke, &principal, asker, ctx),
            NodeCommand::Result(NodeResult { invocation, outcome }) => {
                let connection = asker.client().connection;
                Handler::<Resulted>::handle(self, Resulted { connection, invocation, outcome }, ctx);
                asker.reply(Ok(Reply::Node(NodeReply::Noted(Noted))));
            }
        }
    }
}

impl Handler<ListNodes> for Nodes {
    type Result = MessageResult<ListNodes>;

    fn handle(&mut self, ListNodes(principal): ListNodes, _: &mut Self::Context) -> Self::Result {
        let seen = self.nodes.values().filter(|node| principal.sees(&node.shown.owner));
        MessageResult(seen.map(|node| node.shown.row.clone()).collect())
    }
}

impl Handler<Resulted> for Nodes {
    type Result = bool;

    fn handle(&mut self, resulted: Resulted, ctx: &mut Self::Context) -> Self::Result {
        let Resulted { connection, invocation, outcome } = resulted;
        // Only who was told to do it says what became of it.
        let is_told = self.open.get(&invocation).is_some_and(|open| open.connection == connection);
        is_told && self.end(&invocation, outcome, ctx)
    }
}

impl Handler<CallNode> for Nodes {
    type Result = ResponseFuture<ToolResult>;

    fn handle(
        &mut self,
        CallNode { session, run, tool, call }: CallNode,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        let ToolCall { id: call, input, .. } = call;
        let params = input.is_object().then(|| input.to_string());
        let (sender, outcome) = oneshot::channel();
        let begun = match (self.connected.granted(&tool).map(|node| node.row.id.clone()), params) {
            (Err(why), _) => Err(why),
            (Ok(_), None) => Err(format!("the input of {} is not a JSON object", tool.name)),
            (Ok(_), Some(params)) if params.len() > PARAMS_BYTES_MAX => {
                let bytes = params.len();
                Err(format!("the input of {} has {bytes} bytes (limit {PARAMS_BYTES_MAX})", tool.name))
            }
            (Ok(node), Some(params)) => {
                tracing::debug!(%session, %run, %node, command = tool.command, "tool call to a node");
                let invoke = InvokeNode {
                    node: node.to_string(),
                    command: tool.command.clone(),
                    params: Some(params),
                    timeout: INVOKE_TIMEOUT,
                    idempotency_key: None,
                };
                self.begin(&node, invoke, None, Waiter::Tool(sender), ctx);
                Ok(())
            }
        };
        Box::pin(async move {
            let (mut content, is_error) = match begun {
                Err(why) => (why, true),
                Ok(()) => match outcome.await {
                    Ok(Ok(payload)) => (payload.unwrap_or_else(|| "null".to_owned()), false),
                    Ok(Err(NodeFailure { code, message })) => (format!("{code}: {message}"), true),
                    Err(_) => ("the call was lost: whether the node did it is not known".to_owned(), true),
                },
            };
            if content.len() > TOOL_RESULT_BYTES_MAX {
                content.truncate(content.floor_char_boundary(TOOL_RESULT_BYTES_MAX));
            }
            ToolResult { call, content, is_error }
        })
    }
}

impl Handler<Observe> for Nodes {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        Observed::leaf(
            "nodes",
            json!({
                "connected": self.nodes.len(),
                "under_way": self.open.len(),
                "invoked": self.invoked,
                "failed": self.failed,
                "keys_remembered": self.keys.len(),
            }),
        )
    }
}
