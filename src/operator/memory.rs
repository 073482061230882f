//! `clawmux memory`: how many memories each owner has, the memories of one owner, and what can be done with them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Value, json};

use super::find::some;
use super::print::{self, List};
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{Global, Memory, MemoryCommand};
use crate::exit::{FAILED, Failure, USAGE};
use crate::question;
use crate::terminal::{json_line, one_line, put};
use crate::when::{ago, now_ms};

/// The name under which operators share their memories.
const OPERATORS: &str = "operators";

/// How many characters of an entry a table shows.
const SHOWN_CHARS: usize = 60;

/// How many characters of an entry a question shows.
const ASKED_CHARS: usize = 100;

/// So many lines of an export are imported at a time, or fewer where they have so many bytes.
const PART_LINES: usize = 200;
const PART_BYTES: usize = 1 << 20;

/// The longest line of an export that is read.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Runs `memory`.
///
/// # Errors
/// Status 69 if the daemon is not reachable; 1 if it refuses, or there is no such memory.
pub(crate) fn run(global: &Global, Memory { owner, history, command }: &Memory) -> Result<(), Failure> {
    // The daemon knows the operators by an empty name.
    let owner = owner.as_deref().map(|owner| if owner == OPERATORS { "" } else { owner });
    match command {
        None => list(global, owner, *history),
        Some(MemoryCommand::Search { query, limit }) => search(global, query, owner, *limit),
        Some(MemoryCommand::Show { memory }) => show(global, &find(global, memory, owner)?),
        Some(MemoryCommand::Forget { memories, all, yes }) => match owner {
            Some(owner) if *all => forget_all(global, owner, *yes),
            None if *all => Err(Failure::new(USAGE, "--all is of one owner: name it with --owner")),
            owner => forget(global, memories, owner, *yes),
        },
        Some(MemoryCommand::Export) => export(global, owner),
        Some(MemoryCommand::Import { file }) => import(global, file, owner),
    }
}

fn list(global: &Global, owner: Option<&str>, history: bool) -> Result<(), Failure> {
    let Some(owner) = owner else {
        let answer = ask(global, "admin.memory", &json!({}))?;
        let list = List {
            rows: answer.list("owners"),
            head: ["OWNER", "SCRATCHPAD", "EPISODIC", "SEMANTIC", "EMBEDDED", "BYTES", "STORED"],
            gives_way: &["OWNER"],
            cells: owner_row,
            none: "no memories yet: clients add them with memory.store, agents with memory_save, and memory.learn",
        };
        return list.print(global).map(drop);
    };
    let answer = ask(global, "admin.memory", &json!({ "owner": owner, "history": history }))?;
    let list = List {
        rows: answer.list("entries"),
        head: ["MEMORY", "TIER", "TYPE", "FROM", "SESSION", "STORED", "CONTENT"],
        gives_way: &["CONTENT", "SESSION"],
        cells: entry,
        none: "this owner has no memories",
    };
    list.print(global).map(drop)
}

fn search(global: &Global, query: &str, owner: Option<&str>, limit: usize) -> Result<(), Failure> {
    let params = json!({ "query": query, "owner": owner.unwrap_or_default(), "limit": limit });
    let answer = ask(global, "admin.memory.search", &params)?;
    let list = List {
        rows: answer.list("memories"),
        head: ["MEMORY", "SCORE", "TYPE", "STORED", "CONTENT"],
        gives_way: &["CONTENT"],
        cells: hit,
        none: "nothing is remembered about that",
    };
    list.print(global).map(drop)
}

/// The one memory that is meant, with its history.
fn find(global: &Global, id: &str, owner: Option<&str>) -> Result<Value, Failure> {
    let answer = ask(global, "admin.memory.show", &json!({ "memory": id }))?;
    let is_theirs =
        |memory: &&Value| owner.is_none_or(|owner| memory["owner"].as_str().unwrap_or_default() == owner);
    let named: Vec<&Value> = answer.list("memories").iter().filter(is_theirs).collect();
    match named[..] {
        [] => Err(Failure::new(FAILED, format!("no such memory: {id}"))),
        [memory] => Ok(json!({ "memory": memory, "history": answer["history"] })),
        _ => {
            let ids: Vec<&str> = named.iter().map(|memory| memory.text("id")).collect();
            let why = format!("{id} may be {}; give more of the id", some(&ids, 5));
            Err(Failure::new(FAILED, why))
        }
    }
}

fn show(global: &Global, found: &Value) -> Result<(), Failure> {
    print::answer(global, found, |found| described(found, now_ms()));
    Ok(())
}

fn described(found: &Value, now_ms: u64) -> String {
    let memory = &found["memory"];
    let mut lines = vec![
        ("memory", memory.text("id").to_owned()),
        ("owner", memory["owner"].as_str().unwrap_or(OPERATORS).to_owned()),
        ("says", one_line(memory.text("content"), usize::MAX)),
    ];
    if let Some(fact) = memory.get("fact") {
        let parts = ["subject", "predicate", "object"].map(|part| fact.text(part));
        lines.push(("fact", format!("{} ({} % sure)", parts.join(" | "), fact.number("confidence"))));
    }
    lines.push(("kind", format!("{}, {}", memory.text("tier"), memory.text("type"))));
    let mut source = format!("{}, {}", memory.text("source"), ago(memory.number("created_ms"), now_ms));
    for name in ["session", "run"] {
        if let Some(named) = memory[name].as_str() {
            source += &format!(", {name} {named}");
        }
    }
    lines.push(("from", source));
    if let Some(at) = memory["superseded_ms"].as_u64() {
        lines.push(("superseded", format!("{} by {}", ago(at, now_ms), memory.text("superseded_by"))));
    }
    for other in found.list("history") {
        let when = ago(other.number("created_ms"), now_ms);
        let what = one_line(other.text("content"), SHOWN_CHARS);
        lines.push(("history", format!("{when}: {what} ({})", other.text("id"))));
    }
    lines.iter().map(|(name, value)| format!("{name:<11} {value}")).collect::<Vec<_>>().join("\n")
}

fn forget(global: &Global, ids: &[String], owner: Option<&str>, is_agreed: bool) -> Result<(), Failure> {
    // All of them are there before any is deleted.
    let found = ids.iter().map(|id| find(global, id, owner)).collect::<Result<Vec<_>, _>>()?;
    if !is_agreed {
        let what = |found: &Value| one_line(found["memory"].text("content"), ASKED_CHARS);
        let list: Vec<String> = found.iter().map(what).collect();
        let what = format!("this is deleted for good:\n  {}", list.join("\n  "));
        question::agree(&what, "Forget it?", "Give --yes to forget it", "nothing was forgotten")?;
    }
    for found in &found {
        let id = found["memory"].text("id");
        let params = json!({ "memory": id });
        print::done(global, "admin.memory.forget", &params, |_| format!("forgotten: {id}"))?;
    }
    Ok(())
}

fn forget_all(global: &Global, owner: &str, is_agreed: bool) -> Result<(), Failure> {
    let answer = ask(global, "admin.memory", &json!({}))?;
    let is_theirs = |of: &&Value| of["owner"].as_str().unwrap_or_default() == owner;
    let entries = answer.list("owners").iter().find(is_theirs).map_or(0, |of| of.number("entries"));
    let name = if owner.is_empty() { OPERATORS } else { owner };
    if !is_agreed {
        let what = format!("all {entries} memories of {name} are deleted for good");
        question::agree(&what, "Forget them?", "Give --yes to forget them", "nothing was forgotten")?;
    }
    print::done(global, "admin.memory.forget", &json!({ "owner": owner }), |_| {
        format!("forgotten: all {entries} memories of {name}")
    })
}

fn export(global: &Global, owner: Option<&str>) -> Result<(), Failure> {
    let mut after = Some(0);
    while let Some(from) = after {
        let part = ask(global, "admin.memory.export", &json!({ "owner": owner, "after": from }))?;
        for line in part.list("memories") {
            if !put(&json_line(line))? {
                // Nobody reads any more.
                return Ok(());
            }
        }
        after = part["next"].as_u64();
    }
    Ok(())
}

fn import(global: &Global, file: &Path, owner: Option<&str>) -> Result<(), Failure> {
    let unread = |why: &dyn std::fmt::Display| Failure::new(FAILED, format!("{}: {why}", file.display()));
    let source: Box<dyn Read> = match file.as_os_str().to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(file).map_err(|error| unread(&error))?),
    };
    let mut source = BufReader::new(source);
    let (mut stored, mut known) = (0, 0);
    let (mut at, mut first, mut part, mut bytes) = (0usize, 0, Vec::new(), 0);
    loop {
        let mut line = String::new();
        let read =
            source.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).map_err(|error| unread(&error))?;
        at += usize::from(read > 0);
        if read as u64 == LINE_BYTES_MAX {
            return Err(unread(&format!("line {at}: longer than {LINE_BYTES_MAX} bytes")));
        }
        if !line.trim().is_empty() {
            let memory: Value =
                serde_json::from_str(&line).map_err(|error| unread(&format!("line {at}: {error}")))?;
            first = if part.is_empty() { at } else { first };
            part.push(memory);
            bytes += read;
        }
        if !part.is_empty() && (read == 0 || part.len() == PART_LINES || bytes > PART_BYTES) {
            let params = json!({ "memories": std::mem::take(&mut part), "owner": owner });
            let imported = ask(global, "admin.memory.import", &params).map_err(|failure| {
                let so_far = format!("{stored} memories were imported before");
                let why = format!("from line {first} on: {} ({so_far})", failure.message);
                Failure { message: unread(&why).message, ..failure }
            })?;
            stored += imported.number("stored");
            known += imported.number("known");
            bytes = 0;
        }
        if read == 0 {
            break;
        }
    }
    let answer = json!({ "stored": stored, "known": known });
    print::answer(global, &answer, |_| format!("imported {stored} memories; {known} were there already"));
    Ok(())
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

fn shown(content: &str) -> String {
    let mut shown: String = content.chars().take(SHOWN_CHARS).collect();
    if shown.len() < content.len() {
        shown.push('…');
    }
    shown
}

fn entry(row: &Value, now_ms: u64) -> [String; 7] {
    let text = |name: &str| row.text(name).to_owned();
    let is_superseded = row["superseded_ms"].is_u64();
    let content = shown(row.text("content"));
    [
        text("memory"),
        text("tier"),
        text("type"),
        text("source"),
        text("session"),
        ago(row.number("created_ms"), now_ms),
        if is_superseded { format!("(superseded) {content}") } else { content },
    ]
}

fn hit(row: &Value, now_ms: u64) -> [String; 5] {
    [
        row.text("memory").to_owned(),
        format!("{:.2}", row["score"].as_f64().unwrap_or_default()),
        row.text("type").to_owned(),
        ago(row.number("created_ms"), now_ms),
        shown(row.text("content")),
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
        let row = json!({"memory": "m", "tier": "semantic", "type": "decision", "source": "client", "session": null,
                         "bytes": 9, "created_ms": 0, "content": "İ".repeat(61), "superseded_ms": null});
        let shown = entry(&row, 60_000);
        assert_eq!(shown[..6], ["m", "semantic", "decision", "client", "-", "1m ago"]);
        assert_eq!(shown[6], "İ".repeat(60) + "…");
        let old = entry(&json!({"content": "x", "superseded_ms": 5}), 60_000);
        assert_eq!(old[6], "(superseded) x");
    }

    #[test]
    fn a_fact_is_shown_with_where_it_is_from_and_what_it_took_the_place_of() {
        let fact =
            json!({ "subject": "user", "predicate": "lives_in", "object": "Lisbon", "confidence": 90 });
        let found = json!({
            "memory": { "id": "m", "owner": "ada", "content": "The user lives\nin Lisbon.", "fact": fact,
                        "tier": "semantic", "type": "knowledge", "source": "learned", "run": "r", "created_ms": 0 },
            "history": [{ "id": "o", "content": "The user lives in Porto.", "created_ms": 0 }],
        });
        let told = described(&found, 60_000);
        for line in [
            "fact        user | lives_in | Lisbon (90 % sure)",
            "from        learned, 1m ago, run r",
            "history     1m ago: The user lives in Porto. (o)",
        ] {
            assert!(told.contains(line), "{told}");
        }
        assert_eq!(told.lines().count(), 7, "{told}");
    }
}
