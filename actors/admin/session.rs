//! `admin.session.*`: one session, its log and what can be done to it.

use actix::Addr;
use clawmux_core::auth::Principal;
use clawmux_core::command::Command;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::Cause;
use clawmux_core::ids::{RunId, Seq, SessionKey, Ticket};
use clawmux_core::reply::Reply;
use clawmux_core::session_command::{self, Clear, Delete, SessionCommand, Stop};
use clawmux_core::session_reply::{Aborted, Cleared, Deleted, SessionReply, Stopped};
use clawmux_core::target::Target;
use serde::Deserialize;
use serde_json::{Value, json};

use super::asked::Execute;
use super::event;
use super::methods::Call;
use super::params::read;
use crate::ask::ask;
use crate::session_supervisor::requests::missing;
use crate::store::{Describe, ListSessions, ReadEvents, Store, exported};

/// Events on a page.
const PAGE: usize = 200;
/// The most on a page.
const PAGE_MAX: usize = 1000;
/// A page ends once it has so many bytes of the log.
const PAGE_BYTES_MAX: usize = 256 * 1024;
/// Among so many sessions, the latest used, one is looked for that may have been meant.
const MEANT_AMONG: usize = 1000;
/// So many are named.
const MEANT_MAX: usize = 3;

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
pub(super) async fn show(call: Call) -> Result<Value, Error> {
    shown(&call.daemon.store, &call.principal, &call.params).await
}

/// The same of this store.
pub(super) async fn shown(store: &Addr<Store>, by: &Principal, params: &Value) -> Result<Value, Error> {
    let Show { session, after_seq, limit } = read("admin.session.show", params)?;
    let (key, owner) = existing(store, by, &session).await?;
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let part = |after| ReadEvents { session: key.clone(), after, run: None, max_bytes: PAGE_BYTES_MAX };
    let mut events = ask(store, part(Seq(after_seq))).await??;
    // A read that ends before its bytes are used up has come to the end of the log: so a page that
    // is not cut is asked for once more, and that answer is empty.
    events.truncate(limit);
    let mut page = json!({ "session": key.as_str(), "owner": owner });
    if let Some(last) = events.last() {
        page["next"] = json!(last.seq.0);
    }
    page["events"] = events.iter().map(event::to_json).collect();
    Ok(page)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tail {
    session: String,
    after_seq: Option<u64>,
}

/// `admin.session.tail`, of which the dialect makes what follows it: `{"session", "after_seq"}`, where there
/// is such a session.
pub(super) async fn tail(call: Call) -> Result<Value, Error> {
    let Tail { session, after_seq } = call.params("admin.session.tail")?;
    let (key, _) = existing(&call.daemon.store, &call.principal, &session).await?;
    Ok(json!({ "session": key.as_str(), "after_seq": after_seq }))
}

/// `admin.session.stop`: `{"session", "stopped", "runs"}`, with the runs that were ended.
pub(super) async fn stop(call: Call) -> Result<Value, Error> {
    let Named { session } = call.params("admin.session.stop")?;
    let (key, _) = existing(&call.daemon.store, &call.principal, &session).await?;
    match execute(
        &call,
        Command::Session(SessionCommand::Stop(Stop { target: Target::Session(key), cause: Cause::Stopped })),
    )
    .await?
    {
        (_, Reply::Session(SessionReply::Stopped(Stopped { session, runs }))) => {
            let runs: Vec<&str> = runs.iter().map(RunId::as_str).collect();
            Ok(json!({ "session": session.as_str(), "stopped": true, "runs": runs }))
        }
        (_, other) => Err(unexpected(&other)),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Abort {
    session: String,
    run: Option<String>,
}

/// `admin.session.abort`: `{"session", "aborted", "run"}`.
pub(super) async fn abort(call: Call) -> Result<Value, Error> {
    let Abort { session, run } = call.params("admin.session.abort")?;
    let (key, _) = existing(&call.daemon.store, &call.principal, &session).await?;
    let command = Command::Session(SessionCommand::Abort(session_command::Abort {
        target: Target::Session(key.clone()),
        run: run.map(RunId::new),
    }));
    match execute(&call, command).await? {
        (_, Reply::Session(SessionReply::Aborted(Aborted { run }))) => Ok(json!({
            "session": key.as_str(),
            "aborted": run.is_some(),
            "run": run.as_ref().map(RunId::as_str),
        })),
        (_, other) => Err(unexpected(&other)),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    session: String,
}

/// `admin.session.clear`: `{"session", "cleared"}`.
pub(super) async fn clear(call: Call) -> Result<Value, Error> {
    let Named { session } = call.params("admin.session.clear")?;
    let (key, _) = existing(&call.daemon.store, &call.principal, &session).await?;
    match execute(&call, Command::Session(SessionCommand::Clear(Clear { target: Target::Session(key) })))
        .await?
    {
        (_, Reply::Session(SessionReply::Cleared(Cleared { session }))) => {
            Ok(json!({ "session": session.as_str(), "cleared": true }))
        }
        (_, other) => Err(unexpected(&other)),
    }
}

/// `admin.session.delete`: `{"session", "deleted"}`.
pub(super) async fn delete(call: Call) -> Result<Value, Error> {
    let Named { session } = call.params("admin.session.delete")?;
    let (key, _) = existing(&call.daemon.store, &call.principal, &session).await?;
    match execute(
        &call,
        Command::Session(SessionCommand::Delete(Delete { target: Target::Session(key.clone()) })),
    )
    .await?
    {
        (_, Reply::Session(SessionReply::Deleted(Deleted { found }))) => {
            Ok(json!({ "session": key.as_str(), "deleted": found }))
        }
        (_, other) => Err(unexpected(&other)),
    }
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
pub(super) async fn export(call: Call) -> Result<Value, Error> {
    given(&call.daemon.store, &call.principal, &call.params).await
}

/// The same of this store.
pub(super) async fn given(store: &Addr<Store>, by: &Principal, params: &Value) -> Result<Value, Error> {
    let Export { session, after_seq } = read("admin.session.export", params)?;
    let (key, owner) = existing(store, by, &session).await?;
    let events = exported(store, &key, Seq(after_seq)).await?;
    let lines: Vec<Value> = events.iter().map(event::exported).collect();
    let mut page = json!({ "session": key.as_str(), "owner": owner, "lines": lines });
    if let Some(last) = events.last() {
        page["next"] = json!(last.seq.0);
    }
    Ok(page)
}

pub(super) async fn execute(call: &Call, command: Command) -> Result<(Ticket, Reply), Error> {
    ask(&call.admin, Execute { command, principal: call.principal.clone() }).await?
}

pub(super) fn unexpected(reply: &Reply) -> Error {
    tracing::error!(?reply, "a session answered something else than it was asked");
    ErrorCode::Internal.error("the session answered something else than it was asked: see the log")
}

/// The session of this key, and its owner's name; where there is none, says which may have been
/// meant.
async fn existing(store: &Addr<Store>, by: &Principal, text: &str) -> Result<(SessionKey, Value), Error> {
    let refused = match SessionKey::parse(text) {
        Ok(key) => match ask(store, Describe { session: key.clone() }).await?? {
            Some(described) => return Ok((key, event::owner_name(&described.owner))),
            None => missing(store, &key, by).await,
        },
        Err(error) => error,
    };
    let list = ListSessions { limit: MEANT_AMONG, owner: None, prefix: None, before: None };
    let listed = ask(store, list).await??;
    let keys = || listed.iter().map(|listed| listed.summary.session.as_str());
    // Who writes less than a key means the beginning of one.
    let refused = if text.matches(':').count() < 3 && !keys().any(|key| key.starts_with(text)) {
        Error { message: format!("no session begins with {text:?}"), ..refused }
    } else {
        refused
    };
    let meant = nearest(text, keys());
    let advice = if meant.is_empty() {
        "`clawmux sessions` lists them".to_owned()
    } else {
        format!("did you mean {}?", meant.join(" or "))
    };
    Err(Error { message: format!("{}; {advice}", refused.message), ..refused })
}

/// Which of these keys look like `wanted`: first those that hold it, then those that differ by a few
/// characters.
fn nearest<'a>(wanted: &str, keys: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    if wanted.is_empty() || wanted.len() > SessionKey::BYTES_MAX {
        return Vec::new();
    }
    // A slip in one part of the key, however short the others are.
    let most = (wanted.chars().count() / 8).clamp(1, 4);
    let mut found: Vec<(usize, &str)> = keys
        .filter_map(|key| {
            let lower = key.to_lowercase();
            let distance = if lower.contains(&wanted) { 0 } else { distance(&wanted, &lower, most)? };
            Some((distance, key))
        })
        .collect();
    // Stable: among equals the latest used comes first.
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().take(MEANT_MAX).map(|(_, key)| key).collect()
}

/// How many characters differ (inserted, removed, replaced), where not more than `most`.
fn distance(one: &str, other: &str, most: usize) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > most {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    Some(row[other.len()]).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_may_have_been_meant_is_found() {
        let keys = ["main:websocket:ada:main", "main:websocket:bob:main", "main:cli:ada:main"];
        let near = |wanted: &str| nearest(wanted, keys.into_iter());
        assert_eq!(near("ada"), ["main:websocket:ada:main", "main:cli:ada:main"]);
        assert_eq!(near("main:websocket:adb:main"), ["main:websocket:ada:main", "main:websocket:bob:main"]);
        assert_eq!(near("MAIN:CLI:ADA:MAIN"), ["main:cli:ada:main"]);
        assert!(near("work:telegram:x:y").is_empty() && near("").is_empty());
    }

    proptest! {
        #[test]
        fn distances_are_distances(one in "[ab]{0,8}", other in "[ab]{0,8}") {
            let far = distance(&one, &other, 8).unwrap();
            prop_assert_eq!(far == 0, one == other);
            prop_assert_eq!(Some(far), distance(&other, &one, 8));
            prop_assert!(far <= one.len().max(other.len()));
        }
    }
}
