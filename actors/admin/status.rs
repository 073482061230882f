//! `admin.status`: how the daemon is, what waits for somebody, and what needs looking at.

use clawmux_core::config::{Agent, Config, Limits, ModelRef};
use clawmux_core::error::Error;
use clawmux_core::meter::{Budget, Period};
use clawmux_core::time::Timestamp;
use serde_json::{Value, json};

use super::AdminStatus;
use super::methods::{Call, stopping};
use super::usage::budget;
use crate::ask::ask;
use crate::observe::{Observe, Observed};
use crate::provider_supervisor::BudgetStatus;
use crate::store::ReadSizes;

/// A budget is near its end once so much of it is spent or set aside, in percent.
const NEAR_PERCENT: u64 = 80;

/// What is said where nobody can show a credential that holds.
pub const LOCKED_OUT: &str = "every credential has expired or was revoked, so clients can connect only over the Unix \
    socket: create one with `clawmux token create`";
/// How it begins what is said where the configuration was changed, and only a restart puts that into effect.
const NEEDS_RESTART: &str = "restart the daemon to apply the new value";
/// Of so many days it is looked how the store grew.
const GROWTH_DAYS: usize = 8;

/// Answers it: what [`AdminStatus`] says, but for the connection that asks, and
///
/// - `agents`, each with its `model`, the `fallback` models and whether it is the default one; `provider_errors`, what
///   went wrong last with each provider within the hour (`calls_failed` in a row, none where it works again);
/// - `running` and `queued` (runs and prompts), `budgets` as `admin.usage` tells them, and `store_size`, in bytes, with
///   the owners who hold most;
/// - what waits for somebody: `approvals_waiting`, `devices_waiting`, `tokens_expiring` (the first to end);
/// - `reload_failed`, the last reload where it changed nothing, and `problems`: sentences for people.
pub(super) async fn status(call: Call) -> Result<Value, Error> {
    call.takes_nothing("admin.status")?;
    let daemon = &call.daemon;
    let tree = daemon.actors.send(Observe);
    let budgets = daemon.budgets.send(BudgetStatus { session_spent: None });
    let mut status = daemon.status.send(AdminStatus).await.unwrap_or_else(|_| Err(stopping()))?;
    let tree = tree.await.map_err(|_| stopping())?;
    let budgets = budgets.await.map_err(|_| stopping())?;
    let of = |actor: &str, name: &str| {
        let child = tree.children.iter().find(|child| child.actor == actor);
        child.map_or(Value::Null, |child| child.state[name].clone())
    };
    let sessions = tree.children.iter().find(|child| child.actor == "session supervisor");
    if let Some(sessions) = sessions.filter(|sessions| sessions.silent.is_none()) {
        let each = || sessions.children.iter().map(|session| &session.state);
        status["running"] = each().filter(|state| state["run"].is_string()).count().into();
        status["queued"] = each().filter_map(|state| state["queued"].as_u64()).sum::<u64>().into();
    }
    // Nobody who asks wants to be told of himself.
    let others = status["connections"].as_u64().map(|connections| connections.saturating_sub(1));
    status["connections"] = others.into();
    let config = daemon.config.get();
    status["agents"] = agents(&config);
    status["provider_errors"] = of("provider supervisor", "last_errors");
    status["tokens_expiring"] = of("tokens", "expiring_first");
    status["reload_failed"] = of("configuration", "not_reloaded");
    status["approvals_waiting"] = of("session supervisor", "approvals_waiting");
    status["devices_waiting"] = of("devices", "pending");
    let sizes = ask(&daemon.store, ReadSizes { days: GROWTH_DAYS }).await.flatten().unwrap_or_default();
    status["store_size"] = json!({
        "bytes": of("store", "db_bytes"),
        "used_bytes": of("store", "used_bytes"),
        "free_bytes": of("store", "free_bytes"),
        "growth_bytes_per_day": growth(&sizes, of("store", "used_bytes").as_u64()),
        "owners": of("store", "owners"),
    });
    status["budgets"] = budgets.iter().map(budget).collect();
    let mut problems = problems(&tree, &budgets);
    problems.extend(full(&of("store", "owners"), &config.limits));
    status["problems"] = json!(problems);
    Ok(status)
}

/// The agents, with the models they ask.
fn agents(config: &Config) -> Value {
    let models = |models: &[ModelRef]| models.iter().map(ToString::to_string).collect::<Vec<_>>();
    let agent = |agent: &Agent| {
        let (model, fallback) = agent.models.split_first()?;
        Some(json!({
            "agent": agent.id.as_str(),
            "provider": model.provider,
            "model": model.to_string(),
            "fallback": models(fallback),
            "default": config.default_agent.as_ref() == Some(&agent.id),
        }))
    };
    config.agents.values().filter_map(agent).collect()
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
fn full(owners: &Value, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for owner in owners.as_array().into_iter().flatten() {
        let (name, have) = match owner["owner"].as_str() {
            Some(name) => (format!("{name:?}"), "has"),
            None => ("the operators".into(), "have"),
        };
        for (what, most, key) in [
            ("bytes of sessions", limits.store_bytes, "limits.store_bytes"),
            ("sessions", limits.sessions, "limits.sessions"),
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
fn problems(tree: &Observed, budgets: &[Budget]) -> Vec<String> {
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
            "configuration" => {
                let last = &state["not_reloaded"];
                if let (Some(why), Some(by), Some(at)) =
                    (last["error"].as_str(), last["by"].as_str(), last["at_ms"].as_u64())
                {
                    let at = Timestamp::from_millis(at).to_rfc3339();
                    found.push(format!("the last reload ({by}, {at}) changed nothing: {why}"));
                }
                let keys: Vec<&str> = state["waits_for_restart"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                if !keys.is_empty() {
                    found.push(format!("{NEEDS_RESTART} of {}", keys.join(", ")));
                }
            }
            "tokens" if state["locked_out"] == true => found.push(LOCKED_OUT.to_owned()),
            "provider supervisor" => {
                let agents = state["agents_without_key"].as_array().into_iter().flatten();
                found.extend(
                    agents
                        .filter_map(Value::as_str)
                        .map(|agent| format!("agent {agent} has no API key for its provider")),
                );
            }
            _ => {}
        }
    }
    found.extend(budgets.iter().filter_map(near_its_end));
    found
}

fn silent(observed: &Observed, found: &mut Vec<String>) {
    if let Some(why) = &observed.silent {
        found.push(format!("the {} does not answer: {why}", observed.actor));
    }
    for child in &observed.children {
        silent(child, found);
    }
}

fn near_its_end(budget: &Budget) -> Option<String> {
    let taken = budget.used.saturating_add(budget.reserved);
    if budget.period == Period::Session || budget.limit == 0 {
        return None;
    }
    let percent = u128::from(taken) * 100 / u128::from(budget.limit);
    (percent >= u128::from(NEAR_PERCENT)).then(|| {
        let (name, limit) = (budget.period.name(), budget.limit);
        format!("the {name} budget is at {percent} %: {taken} of {limit} tokens")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_and_fullness_are_told() {
        assert_eq!(growth(&[(5, 100), (6, 0), (7, 140)], Some(180)), Some(40));
        assert_eq!((growth(&[(5, 100)], Some(180)), growth(&[], None)), (None, None));
        let limits = Limits { sessions: 10, store_bytes: 100, ..Config::default().limits };
        let owners = json!([{ "owner": null, "sessions": 8, "bytes": 79 }, { "owner": "ada", "sessions": 1, "bytes": 99 }]);
        assert_eq!(
            full(&owners, &limits),
            [
                "the operators have 8 of the 10 sessions that limits.sessions allows",
                "\"ada\" has 99 of the 100 bytes of sessions that limits.store_bytes allows"
            ]
        );
        assert!(full(&owners, &Limits { sessions: 0, store_bytes: 0, ..limits }).is_empty());
    }

    #[test]
    fn what_needs_looking_at_is_said() {
        let plugin = Observed::leaf("plugin x", json!({ "plugin": "x", "error": "plugin x: no module" }));
        let tree = Observed::leaf("gateway", json!({})).with_children(vec![
            Observed::leaf("store", json!({ "fault": "the disk is full" })),
            Observed::leaf("sandbox supervisor", json!({})).with_children(vec![plugin]),
            Observed::leaf(
                "configuration",
                json!({ "not_reloaded": { "by": "SIGHUP", "at_ms": 0, "error": "g.toml:2: no" },
                        "waits_for_restart": ["gateway.listen", "store.path"] }),
            ),
            Observed::leaf("tokens", json!({ "locked_out": true })),
            Observed::leaf("provider supervisor", json!({ "agents_without_key": ["main"] })),
            Observed::silent("hub", "no answer in 1000 ms"),
        ]);
        let of = |period, used, limit| Budget { period, used, reserved: 1, limit };
        let budgets =
            [of(Period::Daily, 799, 1000), of(Period::Monthly, 9, 0), of(Period::Monthly, 700, 1000)];
        let found = problems(&tree, &budgets);
        let says = [
            "the hub does not answer: no answer in 1000 ms",
            "the store can't be written: the disk is full",
            "plugin x: no module",
            "the last reload (SIGHUP, 1970-01-01T00:00:00.000Z) changed nothing: g.toml:2: no",
            "restart the daemon to apply the new value of gateway.listen, store.path",
            LOCKED_OUT,
            "agent main has no API key for its provider",
            "the daily budget is at 80 %: 800 of 1000 tokens",
        ];
        assert_eq!(found, says);
        assert!(problems(&Observed::leaf("gateway", json!({})), &budgets[1..]).is_empty());
    }
}
