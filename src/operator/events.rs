//! `clawmux events`: what happens in all sessions and to the daemon, as it happens, until Ctrl-C.
//!
//! Deliberately absent: what happened before, or while nobody looked; a session's log has it.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::tail::leave_on_interrupt;
use super::transcript;
use super::when::{now_ms, utc};
use crate::admin_client::{Link, Refused, home_of};
use crate::cli::{Events, Global};
use crate::exit::{Failure, UNREACHABLE};
use crate::terminal::{Tone, columns, cut, json_line, may_color, put, tell, visible};

/// How often a daemon that is away is looked for.
const RETRY: Duration = Duration::from_secs(1);
/// Room for a session's key; what is longer takes more.
const SESSION_CHARS: usize = 20;
/// Room for what happened: the longest is `session_changed`.
const WHAT_CHARS: usize = 15;
/// Where the time ends in what [`utc`] gives, and the day before it.
const CLOCK: std::ops::Range<usize> = 11..19;

/// Runs it.
///
/// # Errors
/// Status 69 where the daemon is not reachable or goes away, unless it is to be waited for.
pub(crate) fn run(global: &Global, options: &Events) -> Result<(), Failure> {
    leave_on_interrupt()?;
    let home = home_of(global)?;
    let look = Look { columns: columns(), colored: may_color(&std::io::stdout()) };
    let mut told_away = false;
    loop {
        let followed = Link::open(&home).and_then(|link| follow(link, options, look, &mut told_away));
        let why = match followed {
            Ok(Ended::Unread) => return Ok(()),
            Ok(Ended::Failed(failure)) => return Err(failure),
            Ok(Ended::Closed) => "the daemon closed the connection".to_owned(),
            Err(Refused::Unreachable(why)) => why,
            Err(refused) => return Err(refused.into()),
        };
        if !options.wait {
            return Err(Failure::new(UNREACHABLE, why));
        }
        if !std::mem::replace(&mut told_away, true) {
            tell(&format!("{}\nwaiting for it; Ctrl-C ends this", visible(&why)));
        }
        sleep(RETRY);
    }
}

/// Why it follows no more.
enum Ended {
    /// Nobody reads.
    Unread,
    /// It can't be written.
    Failed(Failure),
    /// The daemon went away.
    Closed,
}

fn follow(mut link: Link, options: &Events, look: Look, told_away: &mut bool) -> Result<Ended, Refused> {
    link.call("admin.events", &json!({}), |_, _| {})?;
    *told_away = false;
    if !options.json {
        tell("following what happens; times are UTC; Ctrl-C ends it");
    }
    link.wait_for(None)?;
    while let Some((method, event)) = link.next()? {
        match method.as_str() {
            "admin.event" if is_wanted(options, &event) => {
                let line = if options.json { as_json(event) } else { look.line(&event) };
                match put(&line) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Ended::Unread),
                    Err(failure) => return Ok(Ended::Failed(failure)),
                }
            }
            "admin.closing" => {
                tell(&visible(event["reason"].as_str().unwrap_or("the daemon closes the connection")));
            }
            _ => {}
        }
    }
    Ok(Ended::Closed)
}

fn is_wanted(options: &Events, event: &Value) -> bool {
    let begins = |prefix: &String| event["session"].as_str().is_some_and(|key| key.starts_with(&**prefix));
    let kind = event["event"].as_str().unwrap_or_default();
    options.session.as_ref().is_none_or(begins)
        && (options.kind.is_empty() || options.kind.iter().any(|wanted| wanted == kind))
}

fn as_json(mut event: Value) -> String {
    if let Value::Object(fields) = &mut event {
        // One connection follows once.
        fields.remove("follow");
    }
    json_line(&event)
}

/// How lines look.
#[derive(Clone, Copy)]
struct Look {
    columns: Option<usize>,
    colored: bool,
}

impl Look {
    /// One event on one line: when, where, what.
    fn line(self, event: &Value) -> String {
        let at = utc(event["at_ms"].as_u64().unwrap_or_else(now_ms));
        let (what, said) = if event["seq"].is_u64() {
            transcript::told(event)
        } else {
            (event["event"].as_str().unwrap_or("-"), members(event))
        };
        let tone = match what {
            "end" if event["outcome"] == "failed" => Tone::Bad,
            "result" if event["is_error"] == true => Tone::Bad,
            "asks" | "pairing" | "approval" => Tone::Warn,
            "prompt" | "end" => Tone::Head,
            _ => Tone::Plain,
        };
        let session = visible(event["session"].as_str().unwrap_or("-")).replace(['\n', '\t'], " ");
        let said = visible(&said).replace(['\n', '\t'], " ");
        let what = format!("{:<WHAT_CHARS$}", visible(what));
        let line = format!("{}  {session:<SESSION_CHARS$}  {what}  {said}", at.get(CLOCK).unwrap_or(&at));
        let line = match self.columns {
            Some(columns) => cut(line.trim_end(), columns),
            None => line.trim_end().to_owned(),
        };
        // Where it was cut off there is nothing to paint.
        line.replacen(&what, &tone.paint(&what, self.colored), 1)
    }
}

/// What is told of something that no session's log has.
fn members(event: &Value) -> String {
    let Value::Object(members) = event else { return event.to_string() };
    let told = members.iter().filter(|(name, value)| {
        !["event", "follow", "session", "at_ms"].contains(&name.as_str()) && !value.is_null()
    });
    told.map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        // The whole of it is for --json.
        Value::Array(list) => format!("{name}={}", list.len()),
        value => format!("{name}={value}"),
    })
    .collect::<Vec<_>>()
    .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let look = |columns| Look { columns, colored: false };
        let prompt = json!({"event": "prompt", "session": "main:cli:ada:main", "seq": 3, "at_ms": 3_661_000, "follow": 1,
                            "content": "two\nlines\u{1b}[2J", "owner": null});
        assert_eq!(
            look(None).line(&prompt),
            r"01:01:01  main:cli:ada:main     prompt           two lines\u{1b}[2J"
        );
        assert_eq!(look(Some(40)).line(&prompt), "01:01:01  main:cli:ada:main     prompt …");
        let presence = json!({"event": "presence", "at_ms": 0, "present": [{}, {}], "follow": 1});
        assert_eq!(look(None).line(&presence), "00:00:00  -                     presence         present=2");
        assert!(!as_json(presence).contains("follow"));
    }

    #[test]
    fn what_is_not_wanted_is_left_out() {
        let options = |session: Option<&str>, kind: &[&str]| Events {
            session: session.map(str::to_owned),
            kind: kind.iter().map(|kind| (*kind).to_owned()).collect(),
            wait: false,
            json: false,
        };
        let prompt = json!({"event": "prompt", "session": "main:cli:ada:main"});
        let presence = json!({"event": "presence"});
        assert!(is_wanted(&options(None, &[]), &presence));
        assert!(is_wanted(&options(Some("main:cli"), &["end", "prompt"]), &prompt));
        assert!(!is_wanted(&options(Some("main:cli"), &[]), &presence));
        assert!(!is_wanted(&options(None, &["end"]), &prompt));
    }
}
