//! `admin.status`: how the daemon is, what waits for somebody, and what needs looking at.

use serde_json::{Value, json};

use super::Call;
use super::method::{Method, Request, ask, method};
use super::usage::budget;
use crate::daemon::operator::{AgentModels, DaemonInfo, DaemonStatus, GetDaemonStatus, Snapshot};
use crate::error::Error;
use crate::provider::budget::{Budget, NEAR_PERCENT, Period, Unit};
use crate::time::Timestamp;

/// The methods.
pub(super) const METHODS: &[Method] = &[method("admin.status", "{}", status)];

/// What is said where nobody can show a credential that holds.
pub const LOCKED_OUT: &str = "every credential has expired or was revoked, so clients can connect only over the Unix \
    socket: create one with `clawmux token create`";
/// How it begins what is said where the configuration was changed, and only a restart puts that into effect.
const NEEDS_RESTART: &str = "restart the daemon to apply the new value";

/// Answers it:
///
/// - `version`, `pid`, `home`, `store` (the log's file), `listen` (a list of `ADDR:PORT`, as bound), `draining`,
///   `new_prompts` (`accepted`, `passed_on` to the other daemons of the cluster, `refused`), `started_ms`, `uptime_ms`, `sessions`, `connections` (but for the one that asks), `plugins` and
///   `credentials_expiring` (counts); more may follow;
/// - `agents`, each with its `model`, the `fallback` models and whether it is the default one; `provider_errors`, what
///   went wrong last with each provider within the hour (`calls_failed` in a row, none where it works again);
///   `left_alone`, the models and keys that are not asked for now because they fail; `provider_calls`, of each
///   provider how many calls are `running` and `waiting` for a place, and how many may run (`max`); `embeddings`, the
///   model that makes vectors of memories, null where only the built-in ones are used;
/// - `running` and `queued` (runs and prompts), `budgets` and `budgets_of_each` as `admin.usage` tells them, and
///   `store_size`, in bytes, with the owners who hold most; `prompts_refused`, sentences for people of prompts that
///   budgets refuse;
/// - what waits for somebody: `approvals_waiting`, `devices_waiting`, `tokens_expiring` (the first to end);
/// - `cluster`, where the daemon is part of one: its name as `cluster`, this `node` with its `state`, how many `nodes`
///   are heard and how many `slots` of 256 this one owns;
/// - `reload_failed`, the last reload where it changed nothing, and `problems`: sentences for people.
fn status(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    ask(GetDaemonStatus, |status| told(&status))
}

fn told(daemon: &DaemonStatus) -> Value {
    let DaemonInfo { status, pid, home, store, listen, is_draining, uptime_ms } = &daemon.info;
    let tree = &daemon.actors;
    let of = |actor: &str, name: &str| tree.child(actor).map_or(Value::Null, |of| of.state[name].clone());
    let mut problems = problems(tree, &daemon.budgets);
    problems.extend(full(&of("store", "owners"), daemon));
    let without_price = of("provider supervisor", "refused_without_price");
    let spent = daemon.budgets.iter().filter_map(Budget::refusal_words);
    let refused: Vec<String> = spent.chain(texts(&without_price).map(str::to_owned)).collect();
    let mut answer = json!({
        "version": status.version,
        "pid": pid,
        "home": home.display().to_string(),
        "store": store.display().to_string(),
        "listen": listen,
        "draining": is_draining,
        "new_prompts": new_prompts(*is_draining, &of("cluster", "state"), &of("store", "fault")),
        "started_ms": status.started.as_millis(),
        "uptime_ms": uptime_ms,
        "sessions": status.sessions,
        // Nobody who asks wants to be told of himself.
        "connections": status.connections.saturating_sub(1),
        "plugins": status.plugins,
        "credentials_expiring": of("tokens", "expiring"),
        "agents": daemon.agents.iter().map(agent).collect::<Vec<_>>(),
        "provider_errors": of("provider supervisor", "last_errors"),
        "provider_calls": of("provider supervisor", "calls"),
        "left_alone": of("provider supervisor", "left_alone"),
        "embeddings": of("embedder", "model"),
        "tokens_expiring": of("tokens", "expiring_first"),
        "reload_failed": of("configuration", "not_reloaded"),
        "approvals_waiting": of("session supervisor", "approvals_waiting"),
        "devices_waiting": of("devices", "pending"),
        "store_size": {
            "bytes": of("store", "db_bytes"),
            "used_bytes": of("store", "used_bytes"),
            "free_bytes": of("store", "free_bytes"),
            "growth_bytes_per_day": growth(&daemon.sizes, of("store", "used_bytes").as_u64()),
            "owners": of("store", "owners"),
        },
        "budgets": daemon.budgets.iter().map(budget).collect::<Vec<_>>(),
        "budgets_of_each": daemon.budgets_of_each,
        "prompts_refused": refused,
        "problems": problems,
    });
    if let Some(Snapshot { state, .. }) = tree.child("cluster") {
        let names = ["cluster", "node", "state", "nodes", "slots"];
        answer["cluster"] = names.into_iter().map(|name| (name.to_owned(), state[name].clone())).collect();
    }
    if let Some(sessions) = tree.child("session supervisor").filter(|sessions| sessions.silent.is_none()) {
        let each = || sessions.children.iter().map(|session| &session.state);
        answer["running"] = each().filter(|state| state["run"].is_string()).count().into();
        answer["queued"] = each().filter_map(|state| state["queued"].as_u64()).sum::<u64>().into();
    }
    answer
}

/// What becomes of new prompts.
fn new_prompts(is_draining: bool, in_cluster: &Value, fault: &Value) -> &'static str {
    match (fault.is_string(), is_draining) {
        (true, _) => "refused",
        // It has given its sessions to the others.
        (false, true) if in_cluster == "draining" => "passed_on",
        (false, true) => "refused",
        (false, false) => "accepted",
    }
}

fn agent(AgentModels { agent, provider, model, fallback, is_default }: &AgentModels) -> Value {
    json!({
        "agent": agent.as_str(),
        "provider": provider,
        "model": model,
        "fallback": fallback,
        "default": is_default,
    })
}

/// How many bytes more are in use each day, of late: from the first of these days to the last, and where
/// there is but one, none.
fn growth(sizes: &[(u64, u64)], used: Option<u64>) -> Option<i64> {
    let ((first, then), (last, _)) = (sizes.first()?, sizes.last()?);
    let days = i64::try_from(last.checked_sub(*first).filter(|days| *days > 0)?).ok()?;
    let grown = i64::try_from(used?).ok()?.checked_sub(i64::try_from(*then).ok()?)?;
    Some(grown / days)
}

/// Owners who may soon be refused, of those who hold most.
fn full(owners: &Value, daemon: &DaemonStatus) -> Vec<String> {
    let mut found = Vec::new();
    for owner in owners.as_array().into_iter().flatten() {
        let (name, have) = match owner["owner"].as_str() {
            Some(name) => (format!("{name:?}"), "has"),
            None => ("the operators".into(), "have"),
        };
        for (what, most, key) in [
            ("bytes of sessions", daemon.store_bytes_max, "limits.store_bytes"),
            ("sessions", daemon.sessions_max, "limits.sessions"),
        ] {
            let has = owner[what.split(' ').next().unwrap_or_default()].as_u64().unwrap_or(0);
            if most > 0 && u128::from(has) * 100 / u128::from(most) >= u128::from(NEAR_PERCENT) {
                found.push(format!("{name} {have} {has} of the {most} {what} that {key} allows"));
            }
        }
    }
    found
}

/// What needs looking at, the worst first.
fn problems(tree: &Snapshot, budgets: &[Budget]) -> Vec<String> {
    let mut found = Vec::new();
    silent(tree, &mut found);
    for child in &tree.children {
        let state = &child.state;
        match child.actor.as_str() {
            "store" => {
                let fault = state["fault"].as_str();
                found.extend(fault.map(|fault| {
                    // It mostly says so itself.
                    let why = fault.split_once("can't be written: ").map_or(fault, |(_, why)| why);
                    format!("the store can't be written: {why}")
                }));
            }
            "sandbox supervisor" => {
                let broken = child.children.iter().filter_map(|plugin| {
                    let (name, why) = (plugin.state["plugin"].as_str()?, plugin.state["error"].as_str()?);
                    Some(if why.contains(name) { why.to_owned() } else { format!("plugin {name}: {why}") })
                });
                found.extend(broken);
            }
            "mcp supervisor" => {
                let broken = child.children.iter().filter_map(|server| {
                    let name = server.state["server"].as_str()?;
                    match server.state["state"].as_str()? {
                        "failed" => {
                            let why = server.state["last_error"].as_str().unwrap_or("no reason is known");
                            Some(format!("MCP server {name} is not there: {why}"))
                        }
                        "held" => Some(format!("MCP server {name}: some of its tools were not agreed to")),
                        _ => None,
                    }
                });
                found.extend(broken);
            }
            "channel supervisor" => {
                let unsent = child.children.iter().filter_map(|channel| {
                    let state = &channel.state;
                    let (name, count) = (state["channel"].as_str()?, state["unsent"].as_array()?.len());
                    (count > 0).then(|| format!("channel {name}: {count} answers were not sent"))
                });
                found.extend(unsent);
                found.extend(child.children.iter().filter_map(|bus| bus_is_wrong(&bus.state)));
            }
            "configuration" => {
                let last = &state["not_reloaded"];
                if let (Some(why), Some(by), Some(at)) =
                    (last["error"].as_str(), last["by"].as_str(), last["at_ms"].as_u64())
                {
                    let at = Timestamp::from_millis(at).to_rfc3339();
                    found.push(format!("the last reload ({by}, {at}) changed nothing: {why}"));
                }
                let keys: Vec<&str> = texts(&state["waits_for_restart"]).collect();
                if !keys.is_empty() {
                    found.push(format!("{NEEDS_RESTART} of {}", keys.join(", ")));
                }
            }
            "cluster" => {
                found.extend(texts(&state["stores_that_differ"]).map(|node| {
                    format!("the store of the cluster's node {node} is not as that of this daemon")
                }));
                if state["state"] == "draining" {
                    let why = "this daemon takes no sessions of the cluster until it is restarted, or until \
                               `clawmux drain --off`";
                    found.push(why.to_owned());
                }
                let away: Vec<&str> = texts(&state["servers_away"]).collect();
                if !away.is_empty() {
                    found.push(format!(
                        "NATS servers that have the log of the cluster are away: {}",
                        away.join(", ")
                    ));
                }
            }
            "embedder" => found.extend(state["wrong"].as_str().map(str::to_owned)),
            "tokens" if state["locked_out"] == true => found.push(LOCKED_OUT.to_owned()),
            "provider supervisor" => {
                let agents = texts(&state["agents_without_key"]);
                found.extend(agents.map(|agent| format!("agent {agent} has no API key for its provider")));
            }
            _ => {}
        }
    }
    found.extend(budgets.iter().filter_map(near_its_end));
    found
}

/// The texts of a list.
fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn silent(observed: &Snapshot, found: &mut Vec<String>) {
    if let Some(why) = &observed.silent {
        found.push(format!("the {} does not answer: {why}", observed.actor));
    }
    for child in &observed.children {
        silent(child, found);
    }
}

fn near_its_end(budget: &Budget) -> Option<String> {
    let taken = budget.taken();
    if budget.period == Period::Session || !budget.is_near_with(taken) {
        return None;
    }
    let percent = u128::from(taken) * 100 / u128::from(budget.limit);
    let (name, whose, unit) = (budget.period.name(), budget.whose.words(), budget.unit);
    let (taken, limit) = (unit.said(taken), unit.said(budget.limit));
    let tokens = if unit == Unit::Tokens { " tokens" } else { "" };
    Some(format!("the {name} budget{whose} is at {percent} %: {taken} of {limit}{tokens}"))
}

/// What is wrong with the bus, where this is its state.
fn bus_is_wrong(bus: &Value) -> Option<String> {
    let why = bus["why"].as_str().unwrap_or("no reason is known");
    match bus["bus"].as_str()? {
        "away" => Some(format!("the bus is away: {why}")),
        "refused" => Some(format!("the bus can't be used: {why}")),
        "claimed" => Some(format!("the bus is another's: {why}")),
        _ => {
            let count = |name: &str| bus[name].as_u64().filter(|count| *count > 0);
            if let Some(failing) = count("failing") {
                let why = bus["last_error"].as_str().unwrap_or("no reason is known");
                return Some(format!("the bus can't publish answers to {failing} of its peers: {why}"));
            }
            let dead = count("dead_letters")?;
            Some(format!("the bus has {dead} dead {}", if dead == 1 { "letter" } else { "letters" }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::command::Status;
    use crate::ids::AgentId;
    use crate::provider::budget::Whose;

    fn leaf(actor: &str, state: Value) -> Snapshot {
        Snapshot { actor: actor.into(), state, ..Snapshot::default() }
    }

    fn daemon(sessions_max: u64, store_bytes_max: u64) -> DaemonStatus {
        let (started, home) = (Timestamp::default(), "h".into());
        let status =
            Status { version: "1".into(), plugins: 0, sessions: 0, connections: 1, started, condition: None };
        let (listen, store) = (Vec::new(), "s".into());
        DaemonStatus {
            info: DaemonInfo { status, pid: 1, home, store, listen, is_draining: false, uptime_ms: 0 },
            actors: Snapshot::default(),
            budgets: Vec::new(),
            budgets_of_each: Vec::new(),
            agents: Vec::new(),
            sizes: Vec::new(),
            store_bytes_max,
            sessions_max,
        }
    }

    #[test]
    fn what_becomes_of_new_prompts_is_told() {
        let (alone, none) = (Value::Null, Value::Null);
        assert_eq!(new_prompts(false, &alone, &none), "accepted");
        assert_eq!(new_prompts(true, &alone, &none), "refused");
        assert_eq!(new_prompts(true, &json!("live"), &none), "refused", "nobody else takes them");
        assert_eq!(new_prompts(true, &json!("draining"), &none), "passed_on");
        assert_eq!(new_prompts(false, &json!("draining"), &none), "accepted", "it passes them on");
        for in_cluster in [json!("live"), json!("draining"), alone] {
            assert_eq!(new_prompts(true, &in_cluster, &json!("no space is left")), "refused");
            assert_eq!(new_prompts(false, &in_cluster, &json!("no space is left")), "refused");
        }
    }

    #[test]
    fn growth_and_fullness_are_told() {
        assert_eq!(growth(&[(5, 100), (6, 0), (7, 140)], Some(180)), Some(40));
        assert_eq!((growth(&[(5, 100)], Some(180)), growth(&[], None)), (None, None));
        let owners = json!([{ "owner": null, "sessions": 8, "bytes": 79 }, { "owner": "ada", "sessions": 1, "bytes": 99 }]);
        assert_eq!(
            full(&owners, &daemon(10, 100)),
            [
                "the operators have 8 of the 10 sessions that limits.sessions allows",
                "\"ada\" has 99 of the 100 bytes of sessions that limits.store_bytes allows"
            ]
        );
        assert!(full(&owners, &daemon(0, 0)).is_empty());
    }

    #[test]
    fn what_needs_looking_at_is_said() {
        let plugin = leaf("plugin x", json!({ "plugin": "x", "error": "plugin x: no module" }));
        let sandbox = Snapshot { children: vec![plugin], ..leaf("sandbox supervisor", json!({})) };
        let silent = Some("no answer in 1000 ms".to_owned());
        let server = |name, state| {
            let state = json!({ "server": name, "state": state, "last_error": "no such program" });
            leaf("mcp server", state)
        };
        let servers = vec![server("a", "failed"), server("b", "held"), server("c", "ready")];
        let mcp = Snapshot { children: servers, ..leaf("mcp supervisor", json!({})) };
        let children = vec![
            leaf("store", json!({ "fault": "the disk is full" })),
            sandbox,
            mcp,
            leaf(
                "configuration",
                json!({ "not_reloaded": { "by": "SIGHUP", "at_ms": 0, "error": "g.toml:2: no" },
                        "waits_for_restart": ["gateway.listen", "store.path"] }),
            ),
            leaf("embedder", json!({ "wrong": "memory.embeddings: no vectors" })),
            leaf("tokens", json!({ "locked_out": true })),
            leaf("provider supervisor", json!({ "agents_without_key": ["main"] })),
            Snapshot { silent, ..leaf("hub", json!({})) },
        ];
        let tree = Snapshot { children, ..leaf("gateway", json!({})) };
        let of = |period, used, limit| Budget {
            whose: Whose::default(),
            period,
            unit: Unit::Tokens,
            used,
            reserved: 1,
            limit,
            resets: None,
        };
        let budgets =
            [of(Period::Daily, 799, 1000), of(Period::Monthly, 9, 0), of(Period::Monthly, 700, 1000)];
        let found = problems(&tree, &budgets);
        let says = [
            "the hub does not answer: no answer in 1000 ms",
            "the store can't be written: the disk is full",
            "plugin x: no module",
            "MCP server a is not there: no such program",
            "MCP server b: some of its tools were not agreed to",
            "the last reload (SIGHUP, 1970-01-01T00:00:00.000Z) changed nothing: g.toml:2: no",
            "restart the daemon to apply the new value of gateway.listen, store.path",
            "memory.embeddings: no vectors",
            LOCKED_OUT,
            "agent main has no API key for its provider",
            "the daily budget is at 80 %: 800 of 1000 tokens",
        ];
        assert_eq!(found, says);
        assert!(problems(&leaf("gateway", json!({})), &budgets[1..]).is_empty());
    }

    #[test]
    fn prompts_that_a_budget_refuses_are_told() {
        let mut daemon = daemon(0, 0);
        let without_price = json!({ "refused_without_price": ["prompts to agent dear are refused: x"] });
        daemon.actors.children = vec![leaf("provider supervisor", without_price)];
        let of = |agent: Option<&str>, period, used| Budget {
            whose: Whose { agent: agent.map(AgentId::from), principal: None },
            period,
            unit: Unit::Tokens,
            used,
            reserved: 0,
            limit: 100,
            resets: Some(Timestamp::default()),
        };
        daemon.budgets = vec![
            of(Some("main"), Period::Daily, 100),
            of(None, Period::Monthly, 101),
            of(None, Period::Daily, 99),
            of(None, Period::Session, 100),
        ];
        let at = "it resets at 1970-01-01T00:00:00Z";
        assert_eq!(
            told(&daemon)["prompts_refused"],
            json!([
                format!("prompts to agent main are refused: its daily budget is spent; {at}"),
                format!("all prompts are refused: the monthly budget is spent; {at}"),
                "prompts to agent dear are refused: x",
            ])
        );
    }
}
