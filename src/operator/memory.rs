//! `clawmux memory`: how much is remembered for whom, or what for one owner.

use serde_json::{Value, json};

use super::table::table;
use super::when::{ago, now_ms};
use crate::admin_client::{call, home_of};
use crate::cli::{Global, Memory};
use crate::exit::Failure;
use crate::terminal::{say, tell};

/// How operators are named, who share what they remember.
const OPERATORS: &str = "operators";

/// How much of an entry's text is shown in a table.
const SHOWN_CHARS: usize = 60;

/// Runs it.
///
/// # Errors
/// As [`call`].
pub(crate) fn run(global: &Global, options: &Memory) -> Result<(), Failure> {
    let mut params = json!({});
    if let Some(owner) = &options.owner {
        params["owner"] = if owner == OPERATORS { "" } else { owner }.into();
    }
    let answer = call(&home_of(global)?, "admin.memory", &params)?;
    let rows = |name: &str| answer[name].as_array().map(Vec::as_slice).unwrap_or_default();
    if options.json {
        return super::objects(rows(if options.owner.is_some() { "entries" } else { "owners" }));
    }
    let now_ms = now_ms();
    if options.owner.is_some() {
        let entries: Vec<_> = rows("entries").iter().map(|row| entry(row, now_ms)).collect();
        if entries.is_empty() {
            tell("this owner has no memories");
            return Ok(());
        }
        say(&table(
            ["MEMORY", "TIER", "TYPE", "SESSION", "BYTES", "STORED", "CONTENT"],
            &["CONTENT"],
            &entries,
        ));
        return Ok(());
    }
    let owners: Vec<_> = rows("owners").iter().map(|row| owner(row, now_ms)).collect();
    if owners.is_empty() {
        tell("no memories yet: clients add them with memory.store");
        return Ok(());
    }
    say(&table(
        ["OWNER", "SCRATCHPAD", "EPISODIC", "SEMANTIC", "EMBEDDED", "BYTES", "STORED"],
        &["OWNER"],
        &owners,
    ));
    Ok(())
}

fn owner(row: &Value, now_ms: u64) -> [String; 7] {
    let number = |name: &str| row[name].as_u64().unwrap_or(0);
    [
        row["owner"].as_str().unwrap_or(OPERATORS).to_owned(),
        number("scratchpad").to_string(),
        number("episodic").to_string(),
        number("semantic").to_string(),
        number("embedded").to_string(),
        number("bytes").to_string(),
        ago(number("stored_ms"), now_ms),
    ]
}

fn entry(row: &Value, now_ms: u64) -> [String; 7] {
    let text = |name: &str| row[name].as_str().unwrap_or("-").to_owned();
    let number = |name: &str| row[name].as_u64().unwrap_or(0);
    let mut content: String = text("content").chars().take(SHOWN_CHARS).collect();
    if content.len() < text("content").len() {
        content.push('…');
    }
    [
        text("memory"),
        text("tier"),
        text("type"),
        text("session"),
        number("bytes").to_string(),
        ago(number("created_ms"), now_ms),
        content,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_whose_and_what() {
        let row = json!({"owner": null, "scratchpad": 1, "episodic": 2, "semantic": 3, "embedded": 4, "bytes": 5,
                         "stored_ms": 0});
        assert_eq!(owner(&row, 60_000), ["operators", "1", "2", "3", "4", "5", "1m ago"]);
        let row = json!({"memory": "m", "tier": "semantic", "type": "decision", "session": null, "bytes": 9,
                         "created_ms": 0, "content": "İ".repeat(61)});
        let shown = entry(&row, 60_000);
        assert_eq!(shown[..6], ["m", "semantic", "decision", "-", "9", "1m ago"]);
        assert_eq!(shown[6], "İ".repeat(60) + "…");
    }
}
