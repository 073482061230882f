//! `clawmux session`: one session, its log and what can be done to it.

use std::path::Path;

use serde_json::{Value, json};

use super::{tail, transcript};
use crate::admin_client::{call, home_of};
use crate::cli::{Global, SessionCommand, Show};
use crate::exit::{FAILED, Failure};
use crate::terminal::{json_line, one_line, put, say, tell};

/// Events asked for at once.
const PAGE: u64 = 500;
/// So many are named where several may be meant.
const MEANT_MAX: usize = 5;

/// Runs it.
///
/// # Errors
/// As [`call`]; status 1 where there is no such session.
pub(crate) fn run(global: &Global, command: &SessionCommand) -> Result<(), Failure> {
    let home = home_of(global)?;
    match command {
        SessionCommand::Show(options) => show(&home, options, &resolve(&home, &options.named.key)?),
        SessionCommand::Abort(options) => {
            let key = resolve(&home, &options.named.key)?;
            let params = json!({ "session": key, "run": options.run });
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
        SessionCommand::Tail(options) => tail::run(&home, options, &resolve(&home, &options.named.key)?),
        SessionCommand::Stop(named) => {
            let key = resolve(&home, &named.key)?;
            let answer = call(&home, "admin.session.stop", &json!({ "session": key }))?;
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
            let key = resolve(&home, &named.key)?;
            let answer = call(&home, "admin.session.clear", &json!({ "session": key }))?;
            done(&answer, named.json, |_| {
                "cleared: the agent starts anew, the log is kept (see `clawmux session show`)".into()
            })
        }
    }
}

/// The key that is, or alone begins with, `text`. One that does not begin any is left to the daemon, which
/// knows what may have been meant.
fn resolve(home: &Path, text: &str) -> Result<String, Failure> {
    // As a table shows what is too long for it.
    let text = text.trim_end_matches('…');
    if text.is_empty() {
        return Ok(text.to_owned());
    }
    let page = call(home, "admin.sessions", &json!({ "prefix": text, "limit": MEANT_MAX + 1 }))?;
    let listed = page["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let keys: Vec<&str> = listed.iter().filter_map(|session| session["session"].as_str()).collect();
    chosen(text, &keys)
}

fn chosen(text: &str, keys: &[&str]) -> Result<String, Failure> {
    match keys {
        [one] => Ok((*one).to_owned()),
        // A whole key may begin another.
        keys if keys.is_empty() || keys.contains(&text) || text.matches(':').count() >= 3 => {
            Ok(text.to_owned())
        }
        several => {
            let shown = several.iter().take(MEANT_MAX).map(|key| one_line(key, 200)).collect::<Vec<_>>();
            let more = if several.len() > MEANT_MAX { " and others" } else { "" };
            Err(Failure::new(
                FAILED,
                format!(
                    "several sessions begin with {}: {}{more}; give more of it",
                    one_line(text, 200),
                    shown.join(", ")
                ),
            ))
        }
    }
}

fn done(answer: &Value, as_json: bool, words: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
    say(&if as_json { json_line(answer) } else { words(answer) });
    Ok(())
}

/// Shows the log page by page, so that a long one is never in memory as a whole; whoever reads may
/// take the time they want.
fn show(home: &Path, options: &Show, key: &str) -> Result<(), Failure> {
    let (mut after, mut left) = (options.after, options.limit.unwrap_or(u64::MAX));
    let mut shown = 0_u64;
    while left > 0 {
        let params = json!({ "session": key, "after_seq": after, "limit": left.min(PAGE) });
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
        tell(&format!("nothing happened in {} after number {}", one_line(key, 1000), options.after));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_names_the_only_one_it_begins() {
        let keys = ["main:cli:ada:main", "main:cli:adam:main"];
        let of = |text: &str, keys: &[&str]| chosen(text, keys).map_err(|failure| failure.message);
        assert_eq!(of("main:cli:adam", &keys[1..]).as_deref(), Ok("main:cli:adam:main"));
        assert_eq!(of("nothing", &[]).as_deref(), Ok("nothing"), "the daemon says what may be meant");
        let refused = of("main:cli:ada", &keys).unwrap_err();
        assert!(refused.contains("main:cli:ada:main, main:cli:adam:main; give more of it"), "{refused}");
        let whole = ["main:cli:ada:main", "main:cli:ada:main2"];
        assert_eq!(of("main:cli:ada:main", &whole).as_deref(), Ok("main:cli:ada:main"));
        // The list is cut, and it may be among those left out.
        assert_eq!(
            of("main:cli:ada:m", &["main:cli:ada:m1", "main:cli:ada:m2"]).as_deref(),
            Ok("main:cli:ada:m")
        );
    }
}
