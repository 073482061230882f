//! `admin.status`: how the daemon is, what waits for somebody, and what needs looking at.

use clawmux_core::error::Error;
use clawmux_core::reply::{Budget, Period};
use serde_json::{Value, json};

use super::AdminStatus;
use super::methods::{Call, stopping};
use super::usage::budget;
use crate::observe::{Observe, Observed};
use crate::provider_supervisor::BudgetStatus;

/// A budget is near its end once so much of it is spent or set aside, in percent.
const NEAR_PERCENT: u64 = 80;

/// Answers it: what [`AdminStatus`] says, but for the connection that asks, with `running` and `queued` (runs and prompts), `approvals_waiting`
/// and `devices_waiting` (somebody has to decide), `budgets`, and `problems`: a list of words for people.
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
    status["approvals_waiting"] = of("session supervisor", "approvals_waiting");
    status["devices_waiting"] = of("devices", "pending");
    status["budgets"] = budgets.iter().map(budget).collect();
    status["problems"] = json!(problems(&tree, &budgets));
    Ok(status)
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
                found.extend(fault.map(|fault| format!("the log can't be written: {fault}")));
            }
            "sandbox supervisor" => {
                let broken = child.children.iter().filter_map(|plugin| {
                    let (name, why) = (plugin.state["plugin"].as_str()?, plugin.state["error"].as_str()?);
                    Some(if why.contains(name) { why.to_owned() } else { format!("plugin {name}: {why}") })
                });
                found.extend(broken);
            }
            "provider supervisor" => {
                let agents = state["agents_without_key"].as_array().into_iter().flatten();
                found.extend(agents.filter_map(Value::as_str).map(|agent| {
                    format!("agent {agent} has a provider that needs a key, and there is none")
                }));
            }
            _ => {}
        }
    }
    found.extend(budgets.iter().filter_map(near_its_end));
    found
}

fn silent(observed: &Observed, found: &mut Vec<String>) {
    if let Some(why) = &observed.silent {
        found.push(format!("the {} says nothing: {why}", observed.actor));
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
    fn what_needs_looking_at_is_said() {
        let plugin = Observed::leaf("plugin x", json!({ "plugin": "x", "error": "plugin x: no module" }));
        let tree = Observed::leaf("gateway", json!({})).with_children(vec![
            Observed::leaf("store", json!({ "fault": "the disk is full" })),
            Observed::leaf("sandbox supervisor", json!({})).with_children(vec![plugin]),
            Observed::leaf("provider supervisor", json!({ "agents_without_key": ["main"] })),
            Observed::silent("hub", "no answer in 1000 ms"),
        ]);
        let of = |period, used, limit| Budget { period, used, reserved: 1, limit };
        let budgets =
            [of(Period::Daily, 799, 1000), of(Period::Monthly, 9, 0), of(Period::Monthly, 700, 1000)];
        let found = problems(&tree, &budgets);
        let says = [
            "the hub says nothing: no answer in 1000 ms",
            "the log can't be written: the disk is full",
            "plugin x: no module",
            "agent main has a provider that needs a key, and there is none",
            "the daily budget is at 80 %: 800 of 1000 tokens",
        ];
        assert_eq!(found, says);
        assert!(problems(&Observed::leaf("gateway", json!({})), &budgets[1..]).is_empty());
    }
}
