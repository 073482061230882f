//! `clawmux approvals`, `approval approve`, `approval deny`: tool calls that wait until somebody decides.

use serde_json::{Value, json};

use super::find::{PREFIX_CHARS_MIN, matching};
use super::input;
use super::print::{self, List};
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{ApprovalCommand, Global};
use crate::exit::{FAILED, Failure, USAGE};
use crate::terminal::{one_line, tell};
use crate::when::{ago, now_ms, span};

/// How many characters of an id are shown.
const SHOWN_CHARS: usize = 12;
/// How many characters of an input are shown.
const INPUT_CHARS: usize = 60;
/// Runs `approvals`.
///
/// # Errors
/// As [`ask`]; status 1 if no call waits under this id.
pub(crate) fn list(global: &Global, id: Option<&str>) -> Result<(), Failure> {
    let answer = ask(global, "admin.approvals", &json!({}))?;
    let waiting = answer.list("approvals");
    if let Some(id) = id {
        let id = whole(id, waiting)?;
        let Some(row) = waiting.iter().find(|row| row["approval"] == *id) else {
            let why = format!("no approval {id} is waiting: `clawmux approvals` lists those that are");
            return Err(Failure::new(FAILED, why));
        };
        print::answer(global, row, |row| described(row, now_ms()));
        return Ok(());
    }
    let list = List {
        rows: waiting,
        head: ["ID", "SESSION", "TOOL", "INPUT", "WAITS", "LEFT", "PROMPTED BY"],
        gives_way: &["INPUT", "PROMPTED BY"],
        cells,
        none: "no tool call waits for approval",
    };
    if list.print(global)? {
        tell(
            "`clawmux approvals ID` shows the whole of an input; decide with `clawmux approval approve ID` or \
             `clawmux approval deny ID`",
        );
    }
    Ok(())
}

/// Runs `approval approve` and `approval deny`.
///
/// # Errors
/// As [`ask`]; status 1 if no call, or more than one, waits under such an id, or somebody decided
/// before; 2 if the input is no JSON object.
pub(crate) fn run(global: &Global, command: &ApprovalCommand) -> Result<(), Failure> {
    let mut params = json!({});
    let (id, method, says) = match command {
        ApprovalCommand::Approve { id, input_file, for_session } => {
            if *for_session {
                params["for_session"] = json!(true);
            }
            if let Some(path) = input_file {
                params["input"] = read_input(path)?;
            }
            let later = if *for_session { ", and its later calls there" } else { "" };
            (id, "admin.approval.approve", ("approved", later))
        }
        ApprovalCommand::Deny { id, reason } => {
            if let Some(reason) = reason {
                params["reason"] = json!(reason);
            }
            (id, "admin.approval.deny", ("denied", "; the model was told"))
        }
    };
    params["approval"] = json!(whole(id, ask(global, "admin.approvals", &json!({}))?.list("approvals"))?);
    print::done(global, method, &params, |answer| {
        format!("{} {} in {}{}", says.0, answer.text("tool"), answer.text("session"), says.1)
    })
}

/// The approval whose id is, or begins with, `id`. One that is not in the list may have been decided
/// already: the daemon says so.
fn whole(id: &str, waiting: &[Value]) -> Result<String, Failure> {
    match matching(waiting, "approval", id, PREFIX_CHARS_MIN, |_| false)[..] {
        [] => Ok(id.to_owned()),
        [one] => Ok(one.text("approval").to_owned()),
        ref several => Err(Failure::new(
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
    input::read(Some(path)).and_then(|text| input::object(&text)).map_err(bad)
}

/// All details of one call.
fn described(row: &Value, now_ms: u64) -> String {
    let [_, session, tool, _, waits, left, by] = cells(row, now_ms);
    let input = serde_json::to_string_pretty(&row["input"]).unwrap_or_default();
    let lines: Vec<String> = input.lines().map(|line| one_line(line, usize::MAX)).collect();
    let id = row.text("approval");
    format!(
        "id           {id}\nsession      {}\nprompted by  {}\nwaits        {waits}, {left} left\n{} {}",
        one_line(&session, usize::MAX),
        one_line(&by, usize::MAX),
        one_line(&tool, usize::MAX),
        lines.join("\n")
    )
}

fn cells(row: &Value, now_ms: u64) -> [String; 7] {
    let left = row.number("deadline_ms").saturating_sub(now_ms);
    [
        row.text("approval").chars().take(SHOWN_CHARS).collect(),
        row.text("session").to_owned(),
        row.text("tool").to_owned(),
        one_line(&row["input"].to_string(), INPUT_CHARS),
        ago(row.number("asked_ms"), now_ms),
        span(left),
        row["prompted_by"].as_str().unwrap_or("operators").to_owned(),
    ]
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
        let list = [json!({"approval": "abcd1"}), json!({"approval": "abcd2"}), json!({"approval": "ab"})];
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
