//! `clawmux drain`: has the daemon refuse new prompts, and waits until all accepted ones have run; in a cluster until
//! other daemons have its sessions.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::print;
use crate::admin_client::ask;
use crate::answer::Members;
use crate::cli::{Drain, Global};
use crate::exit::{FAILED, Failure};
use crate::terminal::{json_line, one_line, say, tell};

/// How often to ask the daemon for its progress.
const POLL: Duration = Duration::from_millis(200);

/// Runs `drain`.
///
/// # Errors
/// As [`ask`]; status 1 if runs are left after `--timeout`.
pub(crate) fn run(global: &Global, options: &Drain) -> Result<(), Failure> {
    if options.off {
        let words = |_: &Value| "the daemon accepts new prompts again".to_owned();
        return print::done(global, "admin.drain", &json!({ "on": false }), words);
    }
    let begun = Instant::now();
    let mut told = String::new();
    let answer = loop {
        // Somebody may have called it off meanwhile, or started the daemon anew.
        if !told.is_empty() && ask(global, "admin.status", &json!({}))?["draining"] != true {
            let why =
                "the daemon is no longer draining: somebody ran `clawmux drain --off`, or it was restarted";
            return Err(Failure::new(FAILED, why));
        }
        let answer = ask(global, "admin.drain", &json!({ "on": true }))?;
        let left = left(&answer);
        if left.is_empty() {
            break answer;
        }
        if told.is_empty() {
            let how = match answer.get("slots") {
                Some(_) => "the other daemons of the cluster take its sessions",
                None => "new prompts are refused",
            };
            tell(&format!("draining: {how}; Ctrl-C stops waiting, not the draining"));
        }
        if told != left {
            tell(&format!("left: {left}"));
            told = left;
        }
        if options.timeout.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
            if global.json {
                say(&json_line(&answer));
            }
            return Err(Failure::new(
                FAILED,
                format!(
                    "not drained after {}s: {told}; the daemon is still draining: wait again with `clawmux drain`, end a \
                     run with `clawmux session abort KEY`, or stop the daemon (the next start continues what is left)",
                    begun.elapsed().as_secs()
                ),
            ));
        }
        sleep(POLL);
    };
    print::answer(global, &answer, |answer| {
        let meanwhile = match answer.get("slots") {
            Some(_) => "the other daemons have its sessions, so it can be stopped now. It takes none",
            None => "nothing is running, so the daemon can be stopped now. It refuses new prompts",
        };
        format!("drained: {meanwhile} until it is restarted, or until `clawmux drain --off`")
    });
    Ok(())
}

/// What is left to do; empty if nothing is.
fn left(answer: &Value) -> String {
    let names = [
        ("running", "running"),
        ("queued", "queued"),
        ("waking", "being read from the store"),
        ("slots", "slots to be taken over"),
    ];
    let counted = names
        .into_iter()
        .filter_map(|(name, words)| match answer[name].as_u64() {
            None | Some(0) => None,
            Some(count) => Some(format!("{count} {words}")),
        })
        .collect::<Vec<_>>()
        .join(", ");
    let keys = answer.texts("sessions");
    match keys.first() {
        Some(first) if !counted.is_empty() => {
            let others = if keys.len() > 1 { " and others" } else { "" };
            format!("{counted} (in {}{others})", one_line(first, 200))
        }
        _ => counted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_counted_and_named() {
        let answer = |running, queued, keys: &[&str]| {
            left(&json!({"running": running, "queued": queued, "waking": 0, "sessions": keys}))
        };
        assert_eq!(answer(0, 0, &[]), "");
        assert_eq!(answer(1, 0, &["a:b:c:d"]), "1 running (in a:b:c:d)");
        assert_eq!(answer(2, 3, &["a:b:c:d", "x"]), "2 running, 3 queued (in a:b:c:d and others)");
    }
}
