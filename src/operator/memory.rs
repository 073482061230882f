//! `clawmux memory`: how many memories each owner has, or the memories of one owner.

use serde_json::{Value, json};

use super::print::List;
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::Global;
use crate::exit::Failure;
use crate::when::ago;

/// The name under which operators share their memories.
const OPERATORS: &str = "operators";

/// How many characters of an entry a table shows.
const SHOWN_CHARS: usize = 60;

/// Runs `memory`.
pub(crate) fn run(global: &Global, owner: Option<&str>) -> Result<(), Failure> {
    let Some(owner) = owner else {
        let answer = ask(global, "admin.memory", &json!({}))?;
        let list = List {
            rows: answer.list("owners"),
            head: ["OWNER", "SCRATCHPAD", "EPISODIC", "SEMANTIC", "EMBEDDED", "BYTES", "STORED"],
            gives_way: &["OWNER"],
            cells: owner_row,
            none: "no memories yet: clients add them with memory.store",
        };
        return list.print(global).map(drop);
    };
    let name = if owner == OPERATORS { "" } else { owner };
    let answer = ask(global, "admin.memory", &json!({ "owner": name }))?;
    let list = List {
        rows: answer.list("entries"),
        head: ["MEMORY", "TIER", "TYPE", "SESSION", "BYTES", "STORED", "CONTENT"],
        gives_way: &["CONTENT"],
        cells: entry,
        none: "this owner has no memories",
    };
    list.print(global).map(drop)
}

fn owner_row(row: &Value, now_ms: u64) -> [String; 7] {
    let number = |name: &str| row.number(name);
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
    let text = |name: &str| row.text(name).to_owned();
    let mut content: String = row.text("content").chars().take(SHOWN_CHARS).collect();
    if content.len() < row.text("content").len() {
        content.push('…');
    }
    [
        text("memory"),
        text("tier"),
        text("type"),
        text("session"),
        row.number("bytes").to_string(),
        ago(row.number("created_ms"), now_ms),
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
        assert_eq!(owner_row(&row, 60_000), ["operators", "1", "2", "3", "4", "5", "1m ago"]);
        let row = json!({"memory": "m", "tier": "semantic", "type": "decision", "session": null, "bytes": 9,
                         "created_ms": 0, "content": "İ".repeat(61)});
        let shown = entry(&row, 60_000);
        assert_eq!(shown[..6], ["m", "semantic", "decision", "-", "9", "1m ago"]);
        assert_eq!(shown[6], "İ".repeat(60) + "…");
    }
}
