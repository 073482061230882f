//! `clawmux status`: how the daemon is on one screen, and what waits for somebody.

use serde_json::{Value, json};

use super::usage::grouped;
use super::when::span;
use crate::admin_client::{call, home_of};
use crate::cli::Global;
use crate::exit::Failure;
use crate::terminal::{Tone, json_line, may_color, one_line, say};

/// Runs it.
///
/// # Errors
/// As [`call`].
pub(crate) fn run(global: &Global, as_json: bool) -> Result<(), Failure> {
    let status = call(&home_of(global)?, "admin.status", &json!({}))?;
    say(&if as_json { json_line(&status) } else { screen(&status, may_color(&std::io::stdout())) });
    Ok(())
}

fn screen(status: &Value, colored: bool) -> String {
    let text = |name: &str| plain(&status[name]);
    let number = |name: &str| status[name].as_u64();
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String, tone: Tone| {
        let value = one_line(&value, 1000);
        if !value.is_empty() {
            lines.push(format!(
                "{} {}",
                Tone::Head.paint(&format!("{name:<12}"), colored),
                tone.paint(&value, colored)
            ));
        }
    };
    line("version", text("version"), Tone::Plain);
    let up = number("uptime_ms").map(span).unwrap_or_default();
    let pid = number("pid").map(|pid| format!(", process {pid}")).unwrap_or_default();
    line("up", format!("{up}{pid}"), Tone::Plain);
    line("listens on", text("listen"), Tone::Plain);
    line("home", text("home"), Tone::Plain);
    line("log", text("store"), Tone::Plain);
    match status["draining"].as_bool() {
        Some(true) => line(
            "drains",
            "new prompts are refused; `clawmux drain --off` takes them again".into(),
            Tone::Warn,
        ),
        Some(false) => line("drains", "no".into(), Tone::Plain),
        None => {}
    }
    let counted = |names: &[(&str, &str)]| {
        let each =
            names.iter().filter_map(|(name, words)| number(name).map(|count| format!("{count} {words}")));
        each.collect::<Vec<_>>().join(", ")
    };
    line(
        "sessions",
        counted(&[("sessions", "awake"), ("running", "running"), ("queued", "prompts queued")]),
        Tone::Plain,
    );
    line("connections", text("connections"), Tone::Plain);
    line("plugins", text("plugins"), Tone::Plain);
    for budget in status["budgets"].as_array().into_iter().flatten() {
        if let (Some(limit), Some(left)) = (budget["limit_tokens"].as_u64(), budget["left_tokens"].as_u64()) {
            let name = format!("{} tokens", plain(&budget["budget"]));
            line(&name, format!("{} of {} left", grouped(left), grouped(limit)), Tone::Plain);
        }
    }
    for (name, one, several, see) in [
        ("approvals_waiting", "tool call waits", "tool calls wait", "for approval: `clawmux approvals`"),
        ("devices_waiting", "device wants", "devices want", "in: `clawmux devices`"),
    ] {
        if let Some(count) = number(name).filter(|count| *count > 0) {
            let words = if count == 1 { one } else { several };
            line("waits", format!("{count} {words} {see}"), Tone::Warn);
        }
    }
    for problem in status["problems"].as_array().into_iter().flatten() {
        line("problem", plain(problem), Tone::Bad);
    }
    lines.join("\n")
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
            "sessions": 3, "running": 1, "queued": 2, "connections": 4, "approvals_waiting": 1, "devices_waiting": 0,
            "budgets": [{"budget": "daily", "limit_tokens": 1000, "left_tokens": 200},
                        {"budget": "monthly", "limit_tokens": null}],
            "problems": ["the disk is full"],
        });
        let lines = [
            "version      1[2J",
            "up           1d 1h, process 7",
            "listens on   a:1, b:2",
            "drains       new prompts are refused; `clawmux drain --off` takes them again",
            "sessions     3 awake, 1 running, 2 prompts queued",
            "connections  4",
            "daily tokens 200 of 1 000 left",
            "waits        1 tool call waits for approval: `clawmux approvals`",
            "problem      the disk is full",
        ];
        assert_eq!(screen(&status, false).lines().collect::<Vec<_>>(), lines);
        assert!(screen(&status, true).contains("\u{1b}[31mthe disk is full\u{1b}[0m"));
    }
}
