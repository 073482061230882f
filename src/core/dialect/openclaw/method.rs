//! Every method: its name, who may call it, what it costs, and what reads its parameters.
//!
//! The scope is looked at before anything else, so that somebody without `operator.admin` is not
//! told which other methods exist. (Source: the scopes of Clawdbot's gateway.)

use serde_json::Value;

use super::wire::{Failure, Protocol, scope_name};
use super::{Answered, OpenClaw, Request, Turn};
use super::{
    absent, agents, approvals, catalog, chat, cron, devices, history, lists, logs, machine, nodes, sessions,
    settings, spending, state, tasks, tools, usage, wait,
};
use crate::dialect::json::{Params, clip};
use crate::prompt::run_options::PROMPT_COST;
use crate::scope::{Role, Scope, Scopes};

/// One method.
pub(super) struct Method {
    /// Its name.
    pub(super) name: &'static str,
    /// As what one has to be connected.
    pub(super) role: Role,
    /// The scope an operator needs, but for what [`Method::needs`] says otherwise.
    pub(super) needs: Scope,
    /// What it costs, in units of `[limits]`.
    pub(super) cost: u32,
    /// Reads its parameters, and answers or asks the daemon.
    pub(super) handle: Handle,
}

/// Reads the parameters of a request, and answers or asks the daemon.
type Handle = fn(&mut OpenClaw, &Request<'_>, &mut Turn<'_>) -> Answered;

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
const PROMPT: u32 = PROMPT_COST;

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
    write("sessions.delete", 1, sessions::delete),
    // What there is to choose from.
    read("agents.list", catalog::agents_list),
    read("agent.identity.get", catalog::agent_identity),
    read("models.list", catalog::models_list),
    read("models.authStatus", catalog::auth_status),
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
    approve("approval.history", 0, approvals::history),
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
    read("sessions.usage", spending::sessions),
    // Agents, as the configuration says them.
    admin("agents.create", 2, agents::create),
    admin("agents.update", 2, agents::update),
    admin("agents.delete", 2, agents::delete),
    read("agents.files.list", agents::files),
    read("agents.files.get", agents::file),
    admin("agents.files.set", 2, agents::set_file),
    // The machine, and what works on it besides conversations.
    read("system.info", machine::info),
    read("environments.list", machine::environments),
    read("diagnostics.lanes", machine::lanes),
    read("tasks.list", tasks::list),
    read("plugins.list", tools::plugins),
    read("tools.effective", tools::effective),
    read("tools.catalog", tools::catalog),
    // What pages ask for and there is none of.
    approve("plugin.approval.list", 0, absent::approvals),
    approve("openclaw.approval.list", 0, absent::approvals),
    approve("exec.approval.grants.list", 0, absent::grants),
    read("skills.search", absent::search),
    read("skills.library.list", absent::library),
    read("skills.proposals.list", absent::proposals),
    read("plugins.catalog.browse", absent::search),
    read("themes.list", absent::themes),
    read("talk.catalog", absent::talk),
    read("progressCard.get", absent::progress_card),
    read("worktrees.list", absent::worktrees),
    read("channels.pairing.list", absent::senders),
    read("transcripts.list", absent::meetings),
    admin("update.status", 0, absent::update),
    read("doctor.memory.status", absent::memory),
    read("webSearch.status", absent::web_search),
    read("tools.github.status", absent::github),
    read("migrations.memory.plan", absent::migrations),
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

/// What who may write may set in a session by protocol 4's `sessions.patch`, besides saying which
/// session. (Source: OpenClaw's gateway.)
const PATCHED_BY_WRITERS: [&str; 17] = [
    "key",
    "agentId",
    "label",
    "autoLabel",
    "icon",
    "color",
    "category",
    "boardFace",
    "boardPresentation",
    "pinned",
    "archived",
    "unread",
    "model",
    "agentRuntime",
    "thinkingLevel",
    "fastMode",
    "permissionMode",
];

impl Method {
    /// The scope an operator needs for it in this protocol, with these parameters.
    pub(super) fn needs(&self, protocol: Protocol, params: Params<'_>) -> Scope {
        match (self.name, protocol) {
            ("config.get" | "config.schema", Protocol::Three) => Scope::Admin,
            ("sessions.patch", Protocol::Four) => {
                let set: serde_json::Map<String, Value> = params.read(self.name).unwrap_or_default();
                let is_writers = |(name, value): (&String, &Value)| {
                    PATCHED_BY_WRITERS.contains(&name.as_str())
                        && !(name == "permissionMode" && value.as_str() == Some("full"))
                };
                if set.iter().all(is_writers) { Scope::Write } else { Scope::Admin }
            }
            _ => self.needs,
        }
    }
}

/// The method of this name, for somebody who may call it with these parameters, and the scope that
/// takes.
pub(super) fn find(
    name: &str,
    params: Params<'_>,
    who: &Who,
    protocol: Protocol,
) -> Result<(&'static Method, Scope), Failure> {
    let method = METHODS.iter().find(|method| method.name == name);
    let role = method.map_or(Role::Operator, |method| method.role);
    if role != who.role {
        let role = if who.role == Role::Node { "node" } else { "operator" };
        return Err(Failure::new("INVALID_REQUEST", format!("unauthorized role: {role}")));
    }
    let needs = method.map_or(Scope::Admin, |method| method.needs(protocol, params));
    if who.role == Role::Operator && !who.scopes.allows(needs) {
        return Err(Failure::missing_scope(needs, protocol));
    }
    let unknown = || Failure::new("INVALID_REQUEST", format!("unknown method: {}", clip(name)));
    method.map(|method| (method, needs)).ok_or_else(unknown)
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
/// has those that we do not know as well. Who was granted less than was asked for is told all of that.
pub(super) fn scopes_granted(asked: &[String], granted: Scopes) -> Vec<String> {
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
    if scopes_asked(asked).is_none_or(|asked| !granted.holds(asked)) {
        let all = [Scope::Admin, Scope::Read, Scope::Write, Scope::Approve, Scope::Pair];
        for scope in all.into_iter().filter(|scope| granted.allows(*scope)) {
            let name = scope_name(scope).to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}
