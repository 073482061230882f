//! Every method: its name, who may call it, what it costs, and what reads its parameters.
//!
//! The scope is looked at before anything else, so that somebody without `operator.admin` is not
//! told which other methods exist. (Source: the scopes of Clawdbot's gateway.)

use super::wire::{Failure, Protocol, scope_name};
use super::{Call, OpenClaw, Request, Turn};
use super::{
    approvals, catalog, chat, cron, devices, history, lists, logs, nodes, sessions, settings, state, usage,
    wait,
};
use crate::auth::{Role, Scope, Scopes};
use crate::dialect::json::clip;
use crate::error::Error;

/// One method.
pub(super) struct Method {
    /// Its name.
    pub(super) name: &'static str,
    /// As what one has to be connected.
    pub(super) role: Role,
    /// The scope an operator needs.
    pub(super) needs: Scope,
    /// What it costs, in units of `[limits]`.
    pub(super) cost: u32,
    /// Reads its parameters, and answers or asks the daemon.
    pub(super) handle: Handle,
}

/// Reads the parameters of a request, and answers or asks the daemon.
type Handle = fn(&mut OpenClaw, &Request<'_>, &mut Turn<'_>) -> Result<Call, Error>;

const fn read(name: &'static str, handle: Handle) -> Method {
    Method { name, role: Role::Operator, needs: Scope::Read, cost: 0, handle }
}

const fn write(name: &'static str, cost: u32, handle: Handle) -> Method {
    Method { name, role: Role::Operator, needs: Scope::Write, cost, handle }
}

const fn admin(name: &'static str, cost: u32, handle: Handle) -> Method {
    Method { name, role: Role::Operator, needs: Scope::Admin, cost, handle }
}

const fn pair(name: &'static str, cost: u32, handle: Handle) -> Method {
    Method { name, role: Role::Operator, needs: Scope::Pair, cost, handle }
}

const fn approve(name: &'static str, cost: u32, handle: Handle) -> Method {
    Method { name, role: Role::Operator, needs: Scope::Approve, cost, handle }
}

const fn node(name: &'static str, handle: Handle) -> Method {
    Method { name, role: Role::Node, needs: Scope::Read, cost: 0, handle }
}

/// What a prompt costs.
const PROMPT: u32 = 5;

/// All of them, by topic. `connect` is the handshake's and has no row.
pub(super) static METHODS: &[Method] = &[
    // Talking.
    write("chat.send", PROMPT, chat::send),
    write("chat.abort", 1, chat::abort),
    read("chat.history", history::history),
    read("chat.startup", history::startup),
    read("chat.metadata", catalog::metadata),
    admin("chat.inject", 1, chat::inject),
    write("agent", PROMPT, chat::agent),
    write("agent.wait", 0, wait::agent_wait),
    // Sessions.
    read("sessions.list", sessions::list),
    read("sessions.subscribe", sessions::subscribe),
    read("sessions.unsubscribe", sessions::unsubscribe),
    read("sessions.messages.subscribe", sessions::messages_subscribe),
    read("sessions.messages.unsubscribe", sessions::messages_unsubscribe),
    read("sessions.resolve", sessions::resolve),
    read("sessions.preview", sessions::preview),
    read("sessions.describe", sessions::describe),
    write("sessions.create", PROMPT, sessions::create),
    admin("sessions.patch", 1, sessions::patch),
    admin("sessions.reset", 1, sessions::reset),
    admin("sessions.compact", 1, sessions::compact),
    admin("sessions.delete", 1, sessions::delete),
    // What there is to choose from.
    read("agents.list", catalog::agents_list),
    read("agent.identity.get", catalog::agent_identity),
    read("models.list", catalog::models_list),
    read("commands.list", catalog::commands_list),
    read("question.list", catalog::question_list),
    // Devices.
    pair("device.pair.list", 0, devices::list),
    pair("device.pair.approve", 1, devices::approve),
    pair("device.pair.reject", 1, devices::reject),
    pair("device.pair.remove", 1, devices::remove),
    pair("device.token.rotate", 1, devices::rotate),
    pair("device.token.revoke", 1, devices::revoke),
    pair("node.pair.list", 0, devices::node_list),
    pair("node.pair.approve", 1, devices::node_approve),
    pair("node.pair.reject", 1, devices::node_reject),
    pair("node.pair.remove", 1, devices::node_remove),
    pair("node.pair.verify", 0, devices::node_verify),
    // Tool calls that wait.
    approve("exec.approval.list", 0, approvals::list),
    approve("exec.approval.get", 0, approvals::get),
    approve("exec.approval.resolve", 1, approvals::resolve),
    // The daemon.
    read("health", state::health),
    read("status", state::status),
    read("system-presence", state::system_presence),
    read("last-heartbeat", cron::last_heartbeat),
    admin("set-heartbeats", 1, cron::set_heartbeats),
    admin("system-event", 1, state::system_event),
    // What is done at set times.
    read("cron.status", cron::status),
    read("cron.list", cron::list),
    read("cron.get", cron::get),
    read("cron.runs", cron::runs),
    admin("cron.add", 2, cron::add),
    admin("cron.update", 1, cron::update),
    admin("cron.remove", 1, cron::remove),
    admin("cron.run", PROMPT, cron::run),
    write("wake", PROMPT, cron::wake),
    // Nodes.
    read("node.list", nodes::list),
    read("node.describe", nodes::describe),
    write("node.invoke", 1, nodes::invoke),
    node("node.invoke.result", nodes::result),
    node("node.event", nodes::event),
    node("skills.bins", nodes::skills_bins),
    // Its configuration, log and spending. Whoever is no operator is refused by the daemon.
    read("config.get", settings::config_get),
    read("config.schema", settings::config_schema),
    admin("config.set", 2, settings::config_set),
    admin("config.apply", 2, settings::config_set),
    admin("config.patch", 2, settings::config_patch),
    read("logs.tail", logs::tail),
    read("usage.status", usage::status),
    read("usage.cost", usage::cost),
    // What there is of other kinds.
    read("skills.status", lists::skills),
    read("channels.status", lists::channels),
    admin("exec.approvals.get", 0, lists::exec_approvals),
];

/// The events that a client may be sent.
pub(super) const EVENTS: &[&str] = &[
    "connect.challenge",
    "chat",
    "agent",
    "tick",
    "presence",
    "health",
    "sessions.changed",
    "session.message",
    "device.pair.requested",
    "device.pair.resolved",
    "node.pair.requested",
    "node.pair.resolved",
    "node.invoke.request",
    "exec.approval.requested",
    "exec.approval.resolved",
    "cron",
    "heartbeat",
    "shutdown",
];

/// Who is let in on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    /// As what.
    pub(super) role: Role,
    /// With which scopes.
    pub(super) scopes: Scopes,
}

/// The method of this name, for somebody who may call it.
pub(super) fn find(name: &str, who: &Who, protocol: Protocol) -> Result<&'static Method, Failure> {
    let method = METHODS.iter().find(|method| method.name == name);
    let role = method.map_or(Role::Operator, |method| method.role);
    if role != who.role {
        let role = if who.role == Role::Node { "node" } else { "operator" };
        return Err(Failure::new("INVALID_REQUEST", format!("unauthorized role: {role}")));
    }
    let needs = method.map_or(Scope::Admin, |method| method.needs);
    if who.role == Role::Operator && !who.scopes.allows(needs) {
        return Err(Failure::missing_scope(needs, protocol));
    }
    method.ok_or_else(|| Failure::new("INVALID_REQUEST", format!("unknown method: {}", clip(name))))
}

/// The scopes a client asked for, by name: those that we know, and whether it asked for any.
pub(super) fn scopes_asked(names: &[String]) -> Option<Scopes> {
    if names.is_empty() {
        return None;
    }
    let known = Scope::ALL.into_iter().filter(|scope| names.iter().any(|asked| asked == scope_name(*scope)));
    Some(Scopes::of(&known.collect::<Vec<_>>()))
}

/// The names of the scopes that were granted, in the order they were asked for. Who has all of them
/// has those that we do not know as well.
pub(super) fn scopes_granted(asked: &[String], granted: Scopes) -> Vec<String> {
    if asked.is_empty() {
        let all = [Scope::Admin, Scope::Read, Scope::Write, Scope::Approve, Scope::Pair];
        return all
            .into_iter()
            .filter(|scope| granted.allows(*scope))
            .map(|scope| scope_name(scope).into())
            .collect();
    }
    let holds = |name: &String| match Scope::ALL.into_iter().find(|scope| scope_name(*scope) == name) {
        Some(scope) => granted.allows(scope),
        None => name.starts_with("operator.") && granted.allows(Scope::Admin),
    };
    let mut names: Vec<String> = Vec::new();
    for name in asked {
        if holds(name) && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}
