//! `clawmux approvals`, `approval approve`, `approval deny`: tool calls that wait until somebody decides.

use std::io::Read;

use serde_json::{Value, json};

use super::table::table;
use super::when::{ago, now_ms, span};
use crate::admin_client::{call, home_of};
use crate::cli::{ApprovalCommand, Approvals, Global};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{json_line, one_line, say, tell};

/// An id may be cut to so many characters, where no other begins with them.
const PREFIX_CHARS_MIN: usize = 4;
/// So much of an id is shown.
const SHOWN_CHARS: usize = 12;
/// So much of an input is shown.
const INPUT_CHARS: usize = 60;
/// An input has at most so many bytes.
const INPUT_BYTES_MAX: u64 = 1024 * 1024;

/// Runs `approvals`.
///
/// # Errors
/// As [`call`].
pub(crate) fn list(global: &Global, options: &Approvals) -> Result<(), Failure> {
    let answer = call(&home_of(global)?, "admin.approvals", &json!({}))?;
    let now_ms = now_ms();
    if let Some(id) = &options.id {
        let id = whole(id, &answer)?;
        let Some(row) = waiting(&answer).iter().find(|row| row["approval"] == *id) else {
            let why = format!("no approval {id} is waiting: `clawmux approvals` lists those that are");
            return Err(Failure::new(FAILED, why));
        };
        say(&if options.json { json_line(row) } else { described(row, now_ms) });
        return Ok(());
    }
    if options.json {
        return super::objects(waiting(&answer));
    }
    let rows: Vec<_> = waiting(&answer).iter().map(|row| cells(row, now_ms)).collect();
    if rows.is_empty() {
        tell("no tool call waits for approval");
        return Ok(());
    }
    say(&table(
        ["ID", "SESSION", "TOOL", "INPUT", "WAITS", "LEFT", "PROMPTED BY"],
        &["INPUT", "PROMPTED BY"],
        &rows,
    ));
    tell(
        "`clawmux approvals ID` shows the whole of an input; decide with `clawmux approval approve ID` or \
         `clawmux approval deny ID`",
    );
    Ok(())
}

/// Runs `approval approve` and `approval deny`.
///
/// # Errors
/// As [`call`]; status 1 where no call, or more than one, waits under such an id, or somebody decided
/// before; 2 where the input is no JSON object.
pub(crate) fn run(global: &Global, command: &ApprovalCommand) -> Result<(), Failure> {
    let home = home_of(global)?;
    let (id, as_json, method, mut params) = match command {
        ApprovalCommand::Approve(options) => {
            let input = options.input_file.as_deref().map(read_input).transpose()?;
            let params = input.map_or_else(|| json!({}), |input| json!({ "input": input }));
            (&options.id, options.json, "admin.approval.approve", params)
        }
        ApprovalCommand::Deny(options) => {
            let reason = options.reason.as_ref();
            let params = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
            (&options.id, options.json, "admin.approval.deny", params)
        }
    };
    params["approval"] = json!(whole(id, &call(&home, "admin.approvals", &json!({}))?)?);
    let answer = call(&home, method, &params)?;
    if as_json {
        say(&json_line(&answer));
        return Ok(());
    }
    let (tool, session) = (text(&answer["tool"]), text(&answer["session"]));
    say(&match command {
        ApprovalCommand::Approve(_) => format!("approved {tool} in {session}"),
        ApprovalCommand::Deny(_) => format!("denied {tool} in {session}; the model was told"),
    });
    Ok(())
}

/// The id that is, or begins with, `id`. One that is not in the list may have been decided: the daemon
/// says so.
fn whole(id: &str, list: &Value) -> Result<String, Failure> {
    let known = || waiting(list).iter().map(|row| text(&row["approval"]));
    let begins = |known: &&str| id.chars().count() >= PREFIX_CHARS_MIN && known.starts_with(id);
    let found: Vec<&str> = known().filter(|known| *known == id || begins(known)).collect();
    match &found[..] {
        [] => Ok(id.to_owned()),
        [one] => Ok((*one).to_owned()),
        several => Err(Failure::new(
            FAILED,
            format!(
                "{} approvals begin with this id: give more of it (`clawmux approvals --json` shows the whole ids)",
                several.len()
            ),
        )),
    }
}

/// What the tool is to be given instead.
fn read_input(path: &std::path::Path) -> Result<Value, Failure> {
    let bad = |why: String| Failure::new(USAGE, format!("the input {}: {why}", path.display()));
    let mut text = String::new();
    let source: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| bad(error.to_string()))?)
    };
    source.take(INPUT_BYTES_MAX).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    let input: Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if input.is_object() { Ok(input) } else { Err(bad("expected a JSON object".into())) }
}

/// All of one.
fn described(row: &Value, now_ms: u64) -> String {
    let [_, session, tool, _, waits, left, by] = cells(row, now_ms);
    let input = serde_json::to_string_pretty(&row["input"]).unwrap_or_default();
    let lines: Vec<String> = input.lines().map(|line| one_line(line, usize::MAX)).collect();
    let id = text(&row["approval"]);
    format!(
        "id           {id}\nsession      {}\nprompted by  {}\nwaits        {waits}, {left} left\n{} {}",
        one_line(&session, usize::MAX),
        one_line(&by, usize::MAX),
        one_line(&tool, usize::MAX),
        lines.join("\n")
    )
}

fn cells(row: &Value, now_ms: u64) -> [String; 7] {
    let at = |name: &str| row[name].as_u64().unwrap_or_default();
    let left = at("deadline_ms").saturating_sub(now_ms);
    [
        text(&row["approval"]).chars().take(SHOWN_CHARS).collect(),
        text(&row["session"]).to_owned(),
        text(&row["tool"]).to_owned(),
        one_line(&row["input"].to_string(), INPUT_CHARS),
        ago(at("asked_ms"), now_ms),
        span(left),
        row["prompted_by"].as_str().unwrap_or("operators").to_owned(),
    ]
}

fn waiting(answer: &Value) -> &[Value] {
    answer["approvals"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_an_input_is_shown() {
        let long = "x".repeat(500);
        let row = json!({ "approval": "abcd1", "session": "main:a:b:c", "tool": "echo", "asked_ms": 0,
            "deadline_ms": 5000, "input": { "text": long, "evil": "\u{1b}[2J" } });
        let told = described(&row, 1000);
        assert!(told.contains(&long) && told.contains("4s left") && !told.contains('\u{1b}'), "{told}");
    }

    #[test]
    fn one_is_found_by_the_beginning_of_its_id_and_two_are_not() {
        let list = json!({ "approvals": [{"approval": "abcd1"}, {"approval": "abcd2"}, {"approval": "ab"}] });
        let of = |id: &str| whole(id, &list).ok();
        assert_eq!(of("abcd1").as_deref(), Some("abcd1"));
        assert_eq!(of("abcd"), None, "two begin with it");
        assert_eq!(of("abc").as_deref(), Some("abc"), "too short to be a beginning: the daemon says");
        assert_eq!(of("zzzz").as_deref(), Some("zzzz"));
    }

    #[test]
    fn a_row_says_what_waits_and_how_long_it_still_does() {
        let row = json!({
            "approval": "0123456789abcdef", "session": "main:cli:a:main", "tool": "rm",
            "input": {"path": "x".repeat(100)}, "prompted_by": null, "asked_ms": 60_000, "deadline_ms": 180_000,
        });
        let cells = cells(&row, 70_000);
        assert_eq!((&*cells[0], &*cells[4], &*cells[5]), ("0123456789ab", "10s ago", "1m 50s"));
        assert!(cells[3].chars().count() <= INPUT_CHARS + 1 && cells[6] == "operators", "{cells:?}");
    }
}
