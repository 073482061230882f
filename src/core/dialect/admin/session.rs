//! `admin.session.*` and `admin.events`: one session, its log, what can be done to it, and what is followed.

use serde::Deserialize;
use serde_json::{Value, json};

use super::event::{self, owner_name};
use super::method::{Method, Request, ask, ask_on, method};
use super::{Call, Follow, Followed};
use crate::conversation::command::{Attach, Clear, Delete, Stop, Watch};
use crate::conversation::event::{Cause, Logged};
use crate::daemon::operator::{ExportEvents, FindSession, FoundSession, ReadEvents};
use crate::error::Error;
use crate::ids::{Owner, RunId, Seq, SessionKey};
use crate::target::Target;

/// The methods.
pub(super) const METHODS: &[Method] = &[
    method("admin.session.show", r#"{"session", "after_seq"?, "limit"?}"#, show),
    method("admin.session.tail", r#"{"session", "after_seq"?}"#, tail).following(),
    method("admin.events", "{}", events).following(),
    method("admin.session.stop", r#"{"session"}"#, stop),
    method("admin.session.abort", r#"{"session", "run"?}"#, abort),
    method("admin.session.delete", r#"{"session"}"#, delete),
    method("admin.session.export", r#"{"session", "after_seq"?}"#, export),
    method("admin.session.clear", r#"{"session"}"#, clear),
];

/// Events on a page.
const PAGE: usize = 200;
/// The most on a page.
const PAGE_MAX: usize = 1000;

/// Finds the session, and asks on.
fn find(
    session: String,
    then: impl FnOnce(SessionKey, Owner) -> Result<Call, Error> + 'static,
) -> Result<Call, Error> {
    ask_on(FindSession { key: session }, |FoundSession { key, owner }| then(key, owner))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Show {
    session: String,
    #[serde(default)]
    after_seq: u64,
    limit: Option<usize>,
}

/// `admin.session.show`: `{"session", "owner", "events": [..], "next"?}`; `next` is the number to go
/// on after, and absent at the end of the log.
fn show(request: &Request) -> Result<Call, Error> {
    let Show { session, after_seq, limit } = request.read()?;
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    find(session, move |key, owner| {
        ask(ReadEvents { session: key.clone(), after: Seq(after_seq) }, move |mut events| {
            // A read that ends before its bytes are used up has come to the end of the log: so a page that
            // is not cut is asked for once more, and that answer is empty.
            events.truncate(limit);
            let mut page = page(&key, &owner, &events);
            page["events"] = events.iter().map(event::to_json).collect();
            page
        })
    })
}

/// A part of a log, without its events.
fn page(session: &SessionKey, owner: &Owner, events: &[Logged]) -> Value {
    let mut page = json!({ "session": session.as_str(), "owner": owner_name(owner) });
    if let Some(last) = events.last() {
        page["next"] = json!(last.seq.0);
    }
    page
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Export {
    session: String,
    #[serde(default)]
    after_seq: u64,
}

/// `admin.session.export`: `{"session", "owner", "lines": [..], "next"?}`, a part of the whole log; `next`
/// is the number to go on after, and absent at its end.
fn export(request: &Request) -> Result<Call, Error> {
    let Export { session, after_seq } = request.read()?;
    find(session, move |key, owner| {
        ask(ExportEvents { session: key.clone(), after: Seq(after_seq) }, move |events| {
            let mut page = page(&key, &owner, &events);
            page["lines"] = events.iter().map(event::exported).collect();
            page
        })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tail {
    session: String,
    after_seq: Option<u64>,
}

/// `admin.session.tail`: `{"session", "follow", "after_seq", "head"}`; its events are told from then on.
fn tail(request: &Request) -> Result<Call, Error> {
    let Tail { session, after_seq } = request.read()?;
    find(session, move |key, _| {
        let attach = Attach { target: Target::Session(key), after: after_seq.map(Seq) };
        Call::ask(attach, |admin, attached, _| {
            let ticket = admin.calls.replying();
            let answer = json!({
                "session": attached.session.as_str(),
                "follow": ticket.0,
                "after_seq": attached.after.0,
                "head": attached.head.0,
            });
            admin.follows.push(Follow { ticket, followed: Followed::Session(attached.session) });
            answer
        })
    })
}

/// `admin.events`: `{"follow"}`; all that happens is told from then on.
fn events(request: &Request) -> Result<Call, Error> {
    request.takes_nothing()?;
    Call::ask(Watch, |admin, _, _| {
        let ticket = admin.calls.replying();
        admin.follows.push(Follow { ticket, followed: Followed::Everything });
        json!({ "follow": ticket.0 })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionParams {
    session: String,
}

/// `admin.session.stop`: `{"session", "stopped", "runs"}`, with the runs that were ended.
fn stop(request: &Request) -> Result<Call, Error> {
    let SessionParams { session } = request.read()?;
    find(session, |key, _| {
        ask(Stop { target: Target::Session(key), cause: Cause::Stopped }, |stopped| {
            let runs: Vec<&str> = stopped.runs.iter().map(RunId::as_str).collect();
            json!({ "session": stopped.session.as_str(), "stopped": true, "runs": runs })
        })
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Abort {
    session: String,
    run: Option<String>,
}

/// `admin.session.abort`: `{"session", "aborted", "run"}`.
fn abort(request: &Request) -> Result<Call, Error> {
    let Abort { session, run } = request.read()?;
    find(session, |key, _| {
        let target = Target::Session(key.clone());
        ask(crate::conversation::command::Abort { target, run: run.map(RunId::new) }, move |aborted| {
            json!({
                "session": key.as_str(),
                "aborted": aborted.run.is_some(),
                "run": aborted.run.as_ref().map(RunId::as_str),
            })
        })
    })
}

/// `admin.session.clear`: `{"session", "cleared"}`.
fn clear(request: &Request) -> Result<Call, Error> {
    let SessionParams { session } = request.read()?;
    find(session, |key, _| {
        ask(
            Clear { target: Target::Session(key) },
            |cleared| json!({ "session": cleared.session.as_str(), "cleared": true }),
        )
    })
}

/// `admin.session.delete`: `{"session", "deleted"}`.
fn delete(request: &Request) -> Result<Call, Error> {
    let SessionParams { session } = request.read()?;
    find(session, |key, _| {
        ask(
            Delete { target: Target::Session(key.clone()) },
            move |deleted| json!({ "session": key.as_str(), "deleted": deleted.found }),
        )
    })
}
