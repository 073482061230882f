//! `clawmux session`: one session, its log and what can be done to it.

use std::path::Path;

use serde_json::{Value, json};

use super::{tail, transcript};
use crate::admin_client::{call, home_of};
use crate::cli::{Global, SessionCommand, Show};
use crate::exit::Failure;
use crate::terminal::{json_line, put, say, tell};

/// Events asked for at once.
const PAGE: u64 = 500;

/// Runs it.
///
/// # Errors
/// As [`call`]; status 1 where there is no such session.
pub(crate) fn run(global: &Global, command: &SessionCommand) -> Result<(), Failure> {
    let home = home_of(global)?;
    match command {
        SessionCommand::Show(options) => show(&home, options),
        SessionCommand::Abort(options) => {
            let params = json!({ "session": options.named.key, "run": options.run });
            done(&call(&home, "admin.session.abort", &params)?, options.named.json, |answer| {
                match answer["run"].as_str() {
                    Some(run) => format!("aborted run {run}; what it had said is kept"),
                    None => match &options.run {
                        Some(run) => format!("nothing to abort: run {run} is neither under way nor queued"),
                        None => "nothing to abort: no run is under way".into(),
                    },
                }
            })
        }
        SessionCommand::Tail(options) => tail::run(&home, options),
        SessionCommand::Stop(named) => {
            let answer = call(&home, "admin.session.stop", &json!({ "session": named.key }))?;
            done(&answer, named.json, |answer| {
                let what = match answer["runs"].as_array().map_or(0, Vec::len) {
                    0 => "nothing was running".to_owned(),
                    1 => "one run was ended".to_owned(),
                    runs => format!("{runs} runs were ended"),
                };
                format!("stopped: {what}; it sleeps once nobody follows it, and wakes when it is named")
            })
        }
        SessionCommand::Clear(named) => {
            let answer = call(&home, "admin.session.clear", &json!({ "session": named.key }))?;
            done(&answer, named.json, |_| {
                "cleared: the agent starts anew, the log is kept (see `clawmux session show`)".into()
            })
        }
    }
}

fn done(answer: &Value, as_json: bool, words: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
    say(&if as_json { json_line(answer) } else { words(answer) });
    Ok(())
}

/// Shows the log page by page, so that a long one is never in memory as a whole; whoever reads may
/// take the time they want.
fn show(home: &Path, options: &Show) -> Result<(), Failure> {
    let (mut after, mut left) = (options.after, options.limit.unwrap_or(u64::MAX));
    let mut shown = 0_u64;
    while left > 0 {
        let params = json!({ "session": options.named.key, "after_seq": after, "limit": left.min(PAGE) });
        let page = call(home, "admin.session.show", &params)?;
        let events = page["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        if events.is_empty() {
            break;
        }
        for event in events {
            let line = if options.named.json { json_line(event) } else { transcript::lines(event) };
            if !put(line.trim_end())? {
                // Nobody reads any more.
                return Ok(());
            }
        }
        let count = events.len() as u64;
        (shown, left) = (shown + count, left.saturating_sub(count));
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    if shown == 0 && !options.named.json {
        tell(&format!("nothing happened in {} after number {}", options.named.key, options.after));
    }
    Ok(())
}
