//! `clawmux usage --cache`: how much of what models read was in the caches of their providers, and what changed
//! in the requests that missed them.

use serde_json::{Value, json};

use super::amount::grouped;
use super::source::Source;
use super::table::{Cell, table};
use crate::answer::Members;
use crate::cli::{Global, Usage};
use crate::exit::Failure;
use crate::terminal::{Tone, json_line, say, tell};

/// A cache that serves less than this much of the input is highlighted, in percent.
const POOR_PERCENT: u64 = 50;

/// What is said of each reason that a cache was missed for, by its name in the answer.
const REASONS: [(&str, &str); 6] = [
    ("model", "another model"),
    ("tools", "other tools"),
    ("system", "another system prompt"),
    ("messages", "other messages"),
    ("time", "time gone by"),
    ("provider", "nothing changed"),
];

/// Runs `usage --cache`.
pub(super) fn run(global: &Global, options: &Usage) -> Result<(), Failure> {
    let params = json!({ "days": options.days, "limit": options.limit });
    let answer = Source::open(global)?.ask("admin.usage.cache", &params)?;
    if global.json {
        say(&json_line(&answer));
        return Ok(());
    }
    let rows: Vec<_> = answer.list("rows").iter().map(row).collect();
    if rows.is_empty() {
        tell(&format!("no model was asked in the last {} days", options.days));
        return Ok(());
    }
    say(&table(
        ["SESSION", "MODEL", "CALLS", "INPUT", "CACHED", "MISSED", "WHAT CHANGED"],
        &["SESSION"],
        &rows,
    ));
    if answer["more"] == true {
        tell(&format!("these are the first {}: --limit N shows more", rows.len()));
    }
    Ok(())
}

fn row(share: &Value) -> [Cell; 7] {
    let (input, read) = (share.number("input_tokens"), share.number("cache_read_tokens"));
    let percent = read.saturating_mul(100) / input.max(1);
    let missed = share.number("missed");
    let tone = if missed > 0 && percent < POOR_PERCENT { Tone::Warn } else { Tone::Plain };
    [
        share.text("session").into(),
        format!("{}/{}", share.text("provider"), share.text("model")).into(),
        grouped(share.number("calls")).into(),
        grouped(input).into(),
        Cell::toned(format!("{percent} %"), tone),
        grouped(missed).into(),
        reasons(missed, &share["missed_because"]).into(),
    ]
}

/// Why a cache was missed, the most frequent reason first.
fn reasons(missed: u64, because: &Value) -> String {
    if missed == 0 {
        return "-".to_owned();
    }
    let mut found: Vec<(u64, &str)> = REASONS
        .iter()
        .map(|(name, words)| (because.number(name), *words))
        .filter(|(calls, _)| *calls > 0)
        .collect();
    let known: u64 = found.iter().map(|(calls, _)| calls).sum();
    if known < missed {
        found.push((missed - known, "not known"));
    }
    found.sort_by_key(|(calls, _)| std::cmp::Reverse(*calls));
    found.iter().map(|(calls, words)| format!("{words} ({calls})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_reason_comes_first_and_what_is_not_known_is_said() {
        let because = json!({"model": 0, "tools": 1, "system": 3, "messages": 0, "time": 0, "provider": 0});
        assert_eq!(reasons(6, &because), "another system prompt (3), not known (2), other tools (1)");
        assert_eq!(reasons(0, &because), "-");
    }
}
