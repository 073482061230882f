//! `clawmux status`: how the daemon is on one screen, and what waits for somebody.

use clawmux_core::cluster::slot::Slot;
use clawmux_core::provider::fault::Fault;
use serde_json::{Value, json};

use super::amount::{bytes, counted, grouped};
use super::print;
use super::usage::{of_everybody, other_budgets};
use crate::answer::Members;
use crate::cli::Global;
use crate::exit::Failure;
use crate::terminal::{Tone, may_color, one_line};
use crate::when::{ago, now_ms, span};

/// So many agents are named, and so many budgets besides those of all.
const AGENTS_SHOWN: usize = 5;
const BUDGETS_SHOWN: usize = 10;

/// Runs `status`.
pub(crate) fn run(global: &Global) -> Result<(), Failure> {
    print::done(global, "admin.status", &json!({}), |status| {
        screen(status, now_ms(), may_color(&std::io::stdout()))
    })
}

fn screen(status: &Value, now_ms: u64, colored: bool) -> String {
    let mut lines = Vec::new();
    let rows = [running(status), models(status, now_ms), work(status), attention(status, now_ms)].concat();
    let mut last = "";
    for (name, value, tone) in rows {
        let value = one_line(&value, 1000);
        if value.is_empty() {
            continue;
        }
        // What is said of the same thing stands under it.
        let head = if name == last { "" } else { name };
        last = name;
        let head = Tone::Head.paint(&format!("{head:<12}"), colored);
        lines.push(format!("{head} {}", tone.paint(&value, colored)));
    }
    lines.join("\n")
}

/// What a line is about, what it says, and how that is meant.
type Row = (&'static str, String, Tone);

/// The process and where it keeps what it knows.
fn running(status: &Value) -> Vec<Row> {
    let text = |name: &str| plain(&status[name]);
    let up = status["uptime_ms"].as_u64().map(span).unwrap_or_default();
    let pid = status["pid"].as_u64().map(|pid| format!(", process {pid}")).unwrap_or_default();
    let mut rows = vec![
        ("version", text("version"), Tone::Plain),
        ("running for", format!("{up}{pid}"), Tone::Plain),
        ("listens on", text("listen"), Tone::Plain),
        ("home", text("home"), Tone::Plain),
        ("store", text("store"), Tone::Plain),
    ];
    if status["cluster"].is_object() {
        rows.push(("cluster", in_cluster(&status["cluster"]), Tone::Plain));
    }
    let size = &status["store_size"];
    if let (Some(total), Some(free)) = (size["bytes"].as_u64(), size["free_bytes"].as_u64()) {
        let mut what = bytes(total);
        if free > 0 {
            what += &format!(", {} of it free for reuse", bytes(free));
        }
        match size["growth_bytes_per_day"].as_i64() {
            Some(growth) if growth > 0 => {
                what += &format!(", grows by {} a day", bytes(growth.unsigned_abs()))
            }
            Some(growth) if growth < 0 => {
                what += &format!(", shrinks by {} a day", bytes(growth.unsigned_abs()));
            }
            _ => {}
        }
        rows.push(("store", what, Tone::Plain));
    }
    for owner in size.list("owners").iter().take(3) {
        let name =
            owner["owner"].as_str().map_or("the operators have".to_owned(), |name| format!("{name} has"));
        let sessions = owner.number("sessions");
        let held = bytes(owner.number("bytes"));
        rows.push(("store", format!("{name} {held} in {}", counted(sessions, "session")), Tone::Plain));
    }
    rows
}

/// The part that the daemon takes in its cluster.
fn in_cluster(cluster: &Value) -> String {
    format!(
        "{}, as its node {}: {}, {} of {} slots, {} heard",
        cluster.text("cluster"),
        cluster.text("node"),
        cluster.text("state"),
        cluster.number("slots"),
        Slot::COUNT,
        counted(cluster.number("nodes"), "node")
    )
}

/// Who answers, what went wrong with that, and what it costs.
fn models(status: &Value, now_ms: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for agent in status.list("agents").iter().take(AGENTS_SHOWN) {
        let asked: Vec<_> =
            std::iter::once(&agent["model"]).chain(agent.list("fallback")).map(plain).collect();
        rows.push(("agent", format!("{}: {}", plain(&agent["agent"]), asked.join(", then ")), Tone::Plain));
    }
    let more = status.list("agents").len().saturating_sub(AGENTS_SHOWN);
    if more > 0 {
        rows.push(("agent", format!("and {more} more: `clawmux config get agents`"), Tone::Plain));
    }
    for error in status.list("provider_errors") {
        let (name, why) = (plain(&error["provider"]), plain(&error["message"]));
        let why = match error["key"].as_str() {
            Some(key) => format!("with {key}: {why}"),
            None => why,
        };
        let when = ago(error["at_ms"].as_u64().unwrap_or(now_ms), now_ms);
        let (what, tone) = match error["calls_failed"].as_u64() {
            Some(0) => (format!("{name}: works again; the last error was {when}: {why}"), Tone::Plain),
            Some(1) => (format!("{name}: the last call failed, {when}: {why}"), Tone::Bad),
            calls => {
                let calls = calls.unwrap_or(0);
                (format!("{name}: the last {calls} calls failed, the latest {when}: {why}"), Tone::Bad)
            }
        };
        rows.push(("provider", what, tone));
    }
    rows.extend(left_alone(status, now_ms).into_iter().map(|what| ("provider", what, Tone::Warn)));
    for calls in status.list("provider_calls").iter().filter(|calls| calls.number("waiting") > 0) {
        let (name, waiting) = (plain(&calls["provider"]), counted(calls.number("waiting"), "call"));
        let (running, max) = (calls.number("running"), calls.number("max"));
        let what = format!("{name}: {waiting} waiting for a place, {running} of {max} under way");
        rows.push(("provider", what, Tone::Warn));
    }
    let others = other_budgets(status);
    for (name, budget) in [("today", "daily"), ("this month", "monthly")] {
        let budget = of_everybody(status, budget);
        if budget.is_null() {
            continue;
        }
        let number = |name: &str| budget[name].as_u64();
        let used = grouped(number("used_tokens").unwrap_or(0));
        rows.push(match (number("limit_tokens"), number("left_tokens")) {
            (Some(limit), Some(left)) => {
                let what = format!("{used} of {} tokens used, {} left", grouped(limit), grouped(left));
                (name, what, if left == 0 { Tone::Bad } else { Tone::Plain })
            }
            _ if others.is_empty() => (name, format!("{used} tokens used, no budget is set"), Tone::Plain),
            _ => (name, format!("{used} tokens used"), Tone::Plain),
        });
    }
    let more = others.len().saturating_sub(BUDGETS_SHOWN);
    rows.extend(others.into_iter().take(BUDGETS_SHOWN).map(|budget| ("budget", budget, Tone::Plain)));
    if more > 0 {
        rows.push(("budget", format!("and {more} more: `clawmux usage`"), Tone::Plain));
    }
    rows
}

/// The models and keys that are not asked for now, and for how long yet.
pub(crate) fn left_alone(status: &Value, now_ms: u64) -> Vec<String> {
    let told = |model: &Value| {
        let left_ms = model.number("until_ms").saturating_sub(now_ms);
        if left_ms < 1000 {
            return None;
        }
        let (provider, name, fault) =
            (plain(&model["provider"]), plain(&model["model"]), plain(&model["fault"]));
        // Without a name it is whichever the provider would choose.
        let name = if name.is_empty() { provider } else { format!("{provider}/{name}") };
        let key = model["key"].as_str().map(|key| format!(" with {key}")).unwrap_or_default();
        let why = Fault::from_name(&fault).map_or(fault, |fault| fault.words().to_owned());
        Some(format!("{name} is not asked{key} for {}: it {why}", span(left_ms)))
    };
    status.list("left_alone").iter().filter_map(told).collect()
}

/// What it does now.
fn work(status: &Value) -> Vec<Row> {
    let number = |name: &str| status[name].as_u64();
    let mut rows = Vec::new();
    let refused = status.texts("prompts_refused");
    let new_prompts = match (status["new_prompts"].as_str(), status["draining"] == true) {
        (Some("passed_on"), _) => Some((
            "are passed on to the other daemons; `clawmux drain --off` takes sessions again",
            Tone::Warn,
        )),
        (Some("refused"), true) => Some((
            "are refused while what runs is finished; `clawmux drain --off` accepts them again",
            Tone::Warn,
        )),
        (Some("refused"), false) => Some(("are refused: the store can't be written", Tone::Bad)),
        (None, _) => None,
        _ if refused.is_empty() => Some(("are accepted", Tone::Plain)),
        // No prompt of anybody fits, which is said below.
        _ if refused.iter().any(|refused| refused.starts_with("all ")) => None,
        _ => Some(("are accepted, but for these:", Tone::Plain)),
    };
    rows.extend(new_prompts.map(|(what, tone)| ("new prompts", what.to_owned(), tone)));
    rows.extend(refused.into_iter().map(|refused| ("new prompts", refused.to_owned(), Tone::Bad)));
    let each = [("sessions", "in memory"), ("running", "running"), ("queued", "prompts queued")];
    let each = each.into_iter().filter_map(|(name, words)| Some(format!("{} {words}", number(name)?)));
    rows.push(("sessions", each.collect::<Vec<_>>().join(", "), Tone::Plain));
    rows.push(("connections", plain(&status["connections"]), Tone::Plain));
    rows.push(("plugins", plain(&status["plugins"]), Tone::Plain));
    rows
}

/// What somebody has to do something about.
fn attention(status: &Value, now_ms: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, one, several, see) in [
        ("approvals_waiting", "tool call waits", "tool calls wait", "for approval: `clawmux approvals`"),
        ("devices_waiting", "device waits", "devices wait", "to be paired: `clawmux devices`"),
    ] {
        match status.number(name) {
            0 => {}
            1 => rows.push(("waiting", format!("1 {one} {see}"), Tone::Warn)),
            count => rows.push(("waiting", format!("{count} {several} {see}"), Tone::Warn)),
        }
    }
    let expiring = status.list("tokens_expiring");
    for token in expiring {
        let left = token["expires_ms"].as_u64().unwrap_or(now_ms).saturating_sub(now_ms);
        let (id, name) = (plain(&token["token"]), plain(&token["name"]));
        let what = format!("the credential of {name} in {}: `clawmux token rotate {id}`", span(left));
        rows.push(("expires", what, Tone::Warn));
    }
    let more = status.number("credentials_expiring").saturating_sub(expiring.len() as u64);
    if more > 0 {
        rows.push(("expires", format!("{}: `clawmux tokens`", counted(more, "more credential")), Tone::Warn));
    }
    let problems = status.list("problems").iter();
    rows.extend(problems.map(|problem| ("problem", plain(problem), Tone::Bad)));
    rows
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_is_for_people() {
        let status = json!({
            "version": "1\u{1b}[2J", "listen": ["a:1", "b:2"], "uptime_ms": 90_061_000, "pid": 7, "draining": true,
            "new_prompts": "refused", "sessions": 3, "running": 1, "queued": 2, "connections": 4,
            "approvals_waiting": 1, "devices_waiting": 2,
            "agents": [{"agent": "main", "model": "lab/m", "fallback": ["openai/gpt-4o"], "default": true}],
            "provider_errors": [
                {"provider": "lab", "calls_failed": 3, "at_ms": 40_000, "message": "no route"},
                {"provider": "openai", "calls_failed": 0, "at_ms": 60_000, "message": "overloaded",
                 "key": "key 1 of 2 (KEY_A)"},
            ],
            "left_alone": [
                {"provider": "lab", "model": "m", "key": "key 2 of 2 (LAB_KEY)", "fault": "rate_limit",
                 "until_ms": 140_000},
                {"provider": "down", "model": "", "key": null, "fault": "network", "until_ms": 140_000},
                {"provider": "over", "model": "m", "key": null, "fault": "network", "until_ms": 100_999},
            ],
            "provider_calls": [{"provider": "lab", "running": 4, "waiting": 2, "max": 4},
                               {"provider": "openai", "running": 1, "waiting": 0, "max": 256}],
            "budgets": [{"budget": "daily", "limit_tokens": 1000, "used_tokens": 800, "left_tokens": 200},
                        {"budget": "monthly", "limit_tokens": null, "used_tokens": 12_345}],
            "store": "/h/clawmux.db",
            "store_size": { "bytes": 12_345_678, "used_bytes": 1, "free_bytes": 1000, "growth_bytes_per_day": -5,
                            "owners": [{"owner": null, "sessions": 1, "bytes": 12_000}] },
            "credentials_expiring": 2,
            "tokens_expiring": [{"token": "abc", "name": "ci", "expires_ms": 3_700_000}],
            "problems": ["the disk is full"],
        });
        let lines = [
            "version      1[2J",
            "running for  1d 1h, process 7",
            "listens on   a:1, b:2",
            "store        /h/clawmux.db",
            "             11 MiB, 1000 B of it free for reuse, shrinks by 5 B a day",
            "             the operators have 11 KiB in 1 session",
            "agent        main: lab/m, then openai/gpt-4o",
            "provider     lab: the last 3 calls failed, the latest 1m ago: no route",
            "             openai: works again; the last error was 40s ago: with key 1 of 2 (KEY_A): overloaded",
            "             lab/m is not asked with key 2 of 2 (LAB_KEY) for 40s: it takes no more requests for now",
            "             down is not asked for 40s: it was not reached",
            "             lab: 2 calls waiting for a place, 4 of 4 under way",
            "today        800 of 1 000 tokens used, 200 left",
            "this month   12 345 tokens used, no budget is set",
            "new prompts  are refused while what runs is finished; `clawmux drain --off` accepts them again",
            "sessions     3 in memory, 1 running, 2 prompts queued",
            "connections  4",
            "waiting      1 tool call waits for approval: `clawmux approvals`",
            "             2 devices wait to be paired: `clawmux devices`",
            "expires      the credential of ci in 1h 0m: `clawmux token rotate abc`",
            "             1 more credential: `clawmux tokens`",
            "problem      the disk is full",
        ];
        assert_eq!(screen(&status, 100_000, false).lines().collect::<Vec<_>>(), lines);
        assert!(screen(&status, 0, true).contains("\u{1b}[31mthe disk is full\u{1b}[0m"));
        let quiet = screen(&json!({ "new_prompts": "accepted" }), 0, false);
        assert!(quiet.contains("new prompts  are accepted"), "{quiet}");
        let of_cluster = json!({ "draining": true, "new_prompts": "passed_on" });
        let said = screen(&of_cluster, 0, false);
        assert!(said.contains("new prompts  are passed on to the other daemons"), "{said}");
        let full = json!({ "draining": false, "new_prompts": "refused" });
        let said = screen(&full, 0, false);
        assert!(said.contains("new prompts  are refused") && !said.contains("accepted"), "{said}");
    }

    #[test]
    fn all_budgets_are_told_and_whose_prompts_are_refused() {
        let daily = json!({"budget": "daily", "unit": "tokens", "limit_tokens": null, "used_tokens": 600});
        let of_agent = json!({"budget": "daily", "unit": "tokens", "agent": "small", "limit_tokens": 600,
                              "used_tokens": 600, "left_tokens": 0});
        let cost = json!({"budget": "monthly_cost", "unit": "dollars", "limit_dollars": 5.0,
                          "used_dollars": 0.5, "left_dollars": 4.5});
        let status = |budgets: &[&Value]| {
            let refused = ["prompts to agent small are refused: its daily budget is spent"];
            json!({ "new_prompts": "accepted", "budgets": budgets, "prompts_refused": refused,
                    "budgets_of_each": ["each agent may spend 9 tokens a month"] })
        };
        let said = screen(&status(&[&daily, &of_agent, &cost]), 0, false);
        let lines = "today        600 tokens used\n\
             budget       daily of agent small: 600 tokens of 600 tokens, 0 tokens left\n             \
             monthly_cost: $0.50 of $5.00, $4.50 left\n             \
             each agent may spend 9 tokens a month\n\
             new prompts  are accepted, but for these:\n             \
             prompts to agent small are refused: its daily budget is spent";
        assert!(said.contains(lines), "{said}");
        let nothing = screen(&json!({ "budgets": [daily] }), 0, false);
        assert!(nothing.contains("600 tokens used, no budget is set"), "{nothing}");
    }
}
