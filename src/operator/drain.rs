//! `clawmux drain`: the daemon takes no new prompts; waits until what it accepted has run.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin_client::{call, home_of};
use crate::cli::{Drain, Global};
use crate::exit::{FAILED, Failure};
use crate::terminal::{json_line, say, tell};

/// How often the daemon is asked how far it is.
const POLL: Duration = Duration::from_millis(200);

/// Runs it.
///
/// # Errors
/// As [`call`]; status 1 where runs are left after `--timeout`.
pub(crate) fn run(global: &Global, options: &Drain) -> Result<(), Failure> {
    let home = home_of(global)?;
    let ask = |on: bool| call(&home, "admin.drain", &json!({ "on": on }));
    if options.off {
        let answer = ask(false)?;
        say(&if options.json { json_line(&answer) } else { "the daemon accepts new prompts again".into() });
        return Ok(());
    }
    let begun = Instant::now();
    let mut told = String::new();
    let answer = loop {
        // Somebody may have called it off meanwhile, or started the daemon anew.
        if !told.is_empty() && call(&home, "admin.status", &json!({}))?["draining"] != true {
            let why =
                "the daemon is no longer draining: somebody ran `clawmux drain --off`, or it was restarted";
            return Err(Failure::new(FAILED, why));
        }
        let answer = ask(true)?;
        let left = left(&answer);
        if left.is_empty() {
            break answer;
        }
        if told.is_empty() {
            tell("draining: new prompts are refused; Ctrl-C stops waiting, not the draining");
        }
        if told != left {
            tell(&format!("left: {left}"));
            told = left;
        }
        if options.timeout.is_some_and(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
            if options.json {
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
    say(&if options.json {
        json_line(&answer)
    } else {
        "drained: nothing is running, so the daemon can be stopped now. It refuses new prompts until it is restarted, \
         or until `clawmux drain --off`"
            .into()
    });
    Ok(())
}

/// What is left to do; empty where nothing is.
fn left(answer: &Value) -> String {
    let counted = [("running", "running"), ("queued", "queued"), ("waking", "being read from the store")]
        .into_iter()
        .filter_map(|(name, words)| match answer[name].as_u64() {
            None | Some(0) => None,
            Some(count) => Some(format!("{count} {words}")),
        })
        .collect::<Vec<_>>()
        .join(", ");
    let keys = answer["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    match keys.first().and_then(Value::as_str) {
        Some(first) if !counted.is_empty() => {
            let others = if keys.len() > 1 { " and others" } else { "" };
            format!("{counted} (in {}{others})", crate::terminal::one_line(first, 200))
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
