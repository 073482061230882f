//! `clawmux events`: what happens in all sessions and to the daemon, as it happens, until Ctrl-C.
//!
//! People get a line for each sentence of an answer; programs get every piece as it comes.
//!
//! Deliberately absent: what happened before, or while nobody looked; `session show` has it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::news;
use super::sentences::Sentences;
use super::tail::leave_on_interrupt;
use super::transcript;
use crate::admin_client::{Link, Notice, Refused, home_of};
use crate::answer::Members;
use crate::cli::{Events, Global};
use crate::exit::{Failure, UNREACHABLE};
use crate::terminal::{Tone, columns, cut, json_line, may_color, put, tell, visible};
use crate::when::{now_ms, utc};

/// How often to look for a daemon that is gone.
const RETRY: Duration = Duration::from_secs(1);
/// Room for a session's key; what is longer takes more.
const SESSION_CHARS: usize = 20;
/// Room for what happened.
const WHAT_CHARS: usize = 9;
/// Where the time ends in what [`utc`] gives, and the day before it.
const CLOCK: std::ops::Range<usize> = 11..19;

/// Runs `events`.
///
/// # Errors
/// Status 69 if the daemon is not reachable or goes away, unless it is to be waited for.
pub(crate) fn run(global: &Global, options: &Events) -> Result<(), Failure> {
    leave_on_interrupt()?;
    let home = home_of(global)?;
    let look = LineStyle { columns: columns(), colored: may_color(&std::io::stdout()) };
    let mut told_away = false;
    loop {
        let followed = Link::open(&home).and_then(|link| follow(global, link, options, look, &mut told_away));
        let why = match followed {
            Ok(FollowEnd::Unread) => return Ok(()),
            Ok(FollowEnd::Failed(failure)) => return Err(failure),
            Ok(FollowEnd::Closed) => "the daemon closed the connection".to_owned(),
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

/// Why following ended.
enum FollowEnd {
    /// Nobody reads.
    Unread,
    /// It can't be written.
    Failed(Failure),
    /// The daemon went away.
    Closed,
}

fn follow(
    global: &Global,
    mut link: Link,
    options: &Events,
    look: LineStyle,
    told_away: &mut bool,
) -> Result<FollowEnd, Refused> {
    link.call("admin.events", &json!({}), |_, _| {})?;
    *told_away = false;
    if !global.json {
        tell("following what happens; times are UTC; Ctrl-C ends it");
    }
    let mut sentences = Sentences::default();
    loop {
        let told = link.next_within(sentences.patience(Instant::now()))?;
        let now = Instant::now();
        let (mut events, is_over) = match told {
            Notice::Of(method, event) if method == "admin.event" && is_of_session(options, &event) => {
                (if global.json { vec![event] } else { sentences.take(event, now) }, false)
            }
            Notice::Of(method, event) if method == "admin.closing" => {
                tell(&visible(event["reason"].as_str().unwrap_or("the daemon closes the connection")));
                (Vec::new(), false)
            }
            Notice::Of(..) | Notice::Nothing => (Vec::new(), false),
            Notice::Closed => (sentences.rest(), true),
        };
        events.extend(sentences.overdue(now));
        for event in events.into_iter().filter(|event| is_of_kind(options, event)) {
            let line = if global.json { as_json(event) } else { look.line(&event) };
            match put(&line) {
                Ok(true) => {}
                Ok(false) => return Ok(FollowEnd::Unread),
                Err(failure) => return Ok(FollowEnd::Failed(failure)),
            }
        }
        if is_over {
            return Ok(FollowEnd::Closed);
        }
    }
}

fn is_of_session(options: &Events, event: &Value) -> bool {
    let begins = |prefix: &String| event["session"].as_str().is_some_and(|key| key.starts_with(&**prefix));
    options.session.as_ref().is_none_or(begins)
}

fn is_of_kind(options: &Events, event: &Value) -> bool {
    let kind = event["event"].as_str().unwrap_or_default();
    options.kind.is_empty() || options.kind.iter().any(|wanted| wanted == kind)
}

fn as_json(mut event: Value) -> String {
    if let Value::Object(fields) = &mut event {
        // One connection follows once.
        fields.remove("follow");
    }
    json_line(&event)
}

/// The layout of lines.
#[derive(Clone, Copy)]
struct LineStyle {
    columns: Option<usize>,
    colored: bool,
}

impl LineStyle {
    /// One event on one line: when, where, what.
    fn line(self, event: &Value) -> String {
        let at = utc(event["at_ms"].as_u64().unwrap_or_else(now_ms));
        let (what, said) = if event["seq"].is_u64() {
            transcript::told(event)
        } else {
            (news::what(event), news::said(event))
        };
        let tone = match what {
            "end" if event["outcome"] == "failed" => Tone::Bad,
            "result" if event["is_error"] == true => Tone::Bad,
            "asks" | "pairing" | "approval" if event["decision"].is_null() && event["approved"].is_null() => {
                Tone::Warn
            }
            "prompt" | "end" => Tone::Head,
            _ => Tone::Plain,
        };
        let session = visible(event.text("session")).replace(['\n', '\t'], " ");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let look = |columns| LineStyle { columns, colored: false };
        let prompt = json!({"event": "prompt", "session": "main:cli:ada:main", "seq": 3, "at_ms": 3_661_000, "follow": 1,
                            "content": "two\nlines\u{1b}[2J", "owner": null});
        assert_eq!(
            look(None).line(&prompt),
            r"01:01:01  main:cli:ada:main     prompt     two lines\u{1b}[2J"
        );
        assert_eq!(look(Some(40)).line(&prompt), "01:01:01  main:cli:ada:main     prompt …");
        let created = json!({"event": "session_changed", "session": "a:b:c:d", "reason": "created", "at_ms": 0,
                              "follow": 1});
        assert_eq!(look(None).line(&created), "00:00:00  a:b:c:d               session    created");
        assert!(!as_json(created).contains("follow"));
    }

    #[test]
    fn what_is_not_wanted_is_left_out() {
        let options = |session: Option<&str>, kind: &[&str]| Events {
            session: session.map(str::to_owned),
            kind: kind.iter().map(|kind| (*kind).to_owned()).collect(),
            wait: false,
        };
        let prompt = json!({"event": "prompt", "session": "main:cli:ada:main"});
        let presence = json!({"event": "presence"});
        let is_wanted = |session, kind: &[&str], event: &Value| {
            let options = options(session, kind);
            is_of_session(&options, event) && is_of_kind(&options, event)
        };
        assert!(is_wanted(None, &[], &presence));
        assert!(is_wanted(Some("main:cli"), &["end", "prompt"], &prompt));
        assert!(!is_wanted(Some("main:cli"), &[], &presence));
        assert!(!is_wanted(None, &["end"], &prompt));
    }
}
