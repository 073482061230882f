//! Sessions as their store has them: listed, found, read.

use actix::Addr;
use clawmux_core::conversation::event::Logged;
use clawmux_core::daemon::operator::{self, FoundSession, ListAllSessions, SessionPage};
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::principal::Principal;

use crate::runtime::ask::ask;
use crate::session_supervisor::missing;
use crate::store::{Describe, ListSessions, ReadEvents, Store};

/// A page of a log ends once it has so many bytes.
const PAGE_BYTES_MAX: usize = 256 * 1024;
/// Among so many sessions, the latest used, one is looked for that may have been meant.
const MEANT_AMONG: usize = 1000;
/// So many are named.
const MEANT_MAX: usize = 3;

/// Some of them; which are awake is not known here.
pub(super) async fn list(store: &Addr<Store>, asked: ListAllSessions) -> Result<SessionPage, Error> {
    let ListAllSessions { limit, prefix, before } = asked;
    let wanted = ListSessions { limit: limit + 1, owner: None, prefix, before };
    let mut listed = ask(store, wanted).await??;
    let has_more = listed.len() > limit;
    listed.truncate(limit);
    Ok(SessionPage { listed, has_more, awake: None })
}

/// A part of the log of one.
pub(super) async fn events(store: &Addr<Store>, asked: operator::ReadEvents) -> Result<Vec<Logged>, Error> {
    let operator::ReadEvents { session, after } = asked;
    ask(store, ReadEvents { session, after, run: None, max_bytes: PAGE_BYTES_MAX }).await?
}

/// The session of this key; where there is none, the error says which may have been meant.
pub(super) async fn find(store: &Addr<Store>, by: &Principal, text: &str) -> Result<FoundSession, Error> {
    let refused = match SessionKey::parse(text) {
        Ok(key) => match ask(store, Describe { session: key.clone() }).await?? {
            Some(described) => return Ok(FoundSession { key, owner: described.owner }),
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
