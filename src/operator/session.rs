//! `clawmux session`: one session, its events and what can be done to it.

use serde_json::json;

use super::find::some;
use super::source::Source;
use super::{print, tail, transcript};
use crate::admin_client::home_of;
use crate::answer::Members;
use crate::cli::{Export, Global, SessionCommand, Show};
use crate::exit::{FAILED, Failure};
use crate::naming::SessionNames;
use crate::terminal::{json_line, one_line, put, tell};

/// How many events are asked for at once.
const PAGE: u64 = 500;
/// How many of several matches are named.
const MEANT_MAX: usize = 5;

/// Runs `session`.
///
/// # Errors
/// Status 69 if the daemon is not reachable; 1 if it refuses, or there is no such session.
pub(crate) fn run(global: &Global, command: &SessionCommand) -> Result<(), Failure> {
    let key_of = |text: &str| key_at_daemon(global, text);
    match command {
        // Those that only read need no daemon.
        SessionCommand::Show(options) => {
            let source = Source::open(global)?;
            show(global, &source, options, &resolve(&source, &options.session.key)?)
        }
        SessionCommand::Export(options) => {
            let source = Source::open(global)?;
            export(&source, options, &resolve(&source, &options.session.key)?)
        }
        SessionCommand::Tail(options) => tail::run(global, options, &key_of(&options.session.key)?),
        SessionCommand::Abort(options) => {
            let params = json!({ "session": key_of(&options.session.key)?, "run": options.run });
            print::done(global, "admin.session.abort", &params, |answer| {
                match (answer["run"].as_str(), &options.run) {
                    (Some(run), _) => format!("aborted run {run}; what it said so far is kept"),
                    (None, Some(run)) => {
                        format!("nothing to abort: run {run} is neither running nor queued")
                    }
                    (None, None) => "nothing to abort: nothing is running".into(),
                }
            })
        }
        SessionCommand::Stop(session) => {
            let params = json!({ "session": key_of(&session.key)? });
            print::done(global, "admin.session.stop", &params, |answer| {
                let what = match answer.list("runs").len() {
                    0 => "nothing was running".to_owned(),
                    1 => "one run was ended".to_owned(),
                    runs => format!("{runs} runs were ended"),
                };
                format!("stopped: {what}; the next prompt starts the session again")
            })
        }
        SessionCommand::Delete(session) => {
            let key = key_of(&session.key)?;
            print::done(global, "admin.session.delete", &json!({ "session": key }), |_| {
                format!("deleted {key} with all its events; what it cost stays on record")
            })
        }
        SessionCommand::Clear(session) => {
            let params = json!({ "session": key_of(&session.key)? });
            print::done(global, "admin.session.clear", &params, |_| {
                "cleared: the agent starts over; the events are kept (`clawmux session show`)".into()
            })
        }
    }
}

/// The key that is meant with `text`, as [`resolve`] finds it at the daemon.
///
/// # Errors
/// Status 69 if the daemon is not reachable; 1 if several are meant.
pub(super) fn key_at_daemon(global: &Global, text: &str) -> Result<String, Failure> {
    resolve(&Source::Daemon(home_of(global)?), text)
}

/// The key of the user's own session of this name, else the only key that is, or begins with, `text`. If
/// there is none, returns `text`: the daemon knows what may have been meant.
fn resolve(source: &Source, text: &str) -> Result<String, Failure> {
    // As a table shows what is too long for it.
    let text = text.trim_end_matches('…');
    if text.is_empty() {
        return Ok(text.to_owned());
    }
    // The session that `clawmux chat --session NAME` opens.
    let names = SessionNames::new(|name| std::env::var(name).ok());
    if !text.contains(':')
        && let Ok(own) = names.session(Some(text), None)
        && beginning(source, own.as_str())?.iter().any(|key| key == own.as_str())
    {
        return Ok(own.as_str().to_owned());
    }
    let keys = beginning(source, text)?;
    chosen(text, &keys.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The first keys that begin with `text`, an exact match first.
fn beginning(source: &Source, text: &str) -> Result<Vec<String>, Failure> {
    let page = source.ask("admin.sessions", &json!({ "prefix": text, "limit": MEANT_MAX + 1 }))?;
    Ok(page
        .list("sessions")
        .iter()
        .filter_map(|session| Some(session["session"].as_str()?.to_owned()))
        .collect())
}

fn chosen(text: &str, keys: &[&str]) -> Result<String, Failure> {
    match keys {
        [one] => Ok((*one).to_owned()),
        // A whole key may begin another.
        keys if keys.is_empty() || keys.contains(&text) || text.matches(':').count() >= 3 => {
            Ok(text.to_owned())
        }
        several => {
            let shown: Vec<_> = several.iter().map(|key| one_line(key, 200)).collect();
            let (text, shown) = (one_line(text, 200), some(&shown, MEANT_MAX));
            let why = format!("several sessions begin with {text}: {shown}; give more of the key");
            Err(Failure::new(FAILED, why))
        }
    }
}

/// Shows the events page by page, so that a long session is never in memory as a whole.
fn show(global: &Global, source: &Source, options: &Show, key: &str) -> Result<(), Failure> {
    let (mut after, mut left) = (options.after, options.limit.unwrap_or(u64::MAX));
    let mut shown = 0_u64;
    while left > 0 {
        let params = json!({ "session": key, "after_seq": after, "limit": left.min(PAGE) });
        let page = source.ask("admin.session.show", &params)?;
        let events = page.list("events");
        if events.is_empty() {
            break;
        }
        for event in events {
            let line = if global.json { json_line(event) } else { transcript::lines(event) };
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
    if shown == 0 && !global.json {
        tell(&format!("nothing happened in {} after event {}", one_line(key, 1000), options.after));
    }
    Ok(())
}

/// Writes all events part by part, so that a long session is never in memory as a whole.
fn export(source: &Source, options: &Export, key: &str) -> Result<(), Failure> {
    let mut after = Some(options.after);
    while let Some(from) = after {
        let page = source.ask("admin.session.export", &json!({ "session": key, "after_seq": from }))?;
        for line in page.list("lines") {
            if !put(&json_line(line))? {
                // Nobody reads any more.
                return Ok(());
            }
        }
        after = page["next"].as_u64();
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
        assert!(refused.contains("main:cli:ada:main, main:cli:adam:main; give more of the key"), "{refused}");
        let whole = ["main:cli:ada:main", "main:cli:ada:main2"];
        assert_eq!(of("main:cli:ada:main", &whole).as_deref(), Ok("main:cli:ada:main"));
        // The list is cut, and it may be among those left out.
        assert_eq!(
            of("main:cli:ada:m", &["main:cli:ada:m1", "main:cli:ada:m2"]).as_deref(),
            Ok("main:cli:ada:m")
        );
    }
}
