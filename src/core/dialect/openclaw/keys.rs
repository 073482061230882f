//! Session keys as OpenClaw clients write them, and the canonical ones they stand for.
//!
//! | what the client says | canonical |
//! |---|---|
//! | `main`, `agent:main:main` | `main:openclaw:main:main` |
//! | a bare word such as a UUID, `7f..` | `main:openclaw:7f..:main` |
//! | `agent:work:dashboard:7f..` | `work:openclaw:dashboard%3A7f..:main` |
//! | `agent:main:websocket:user-123:main`, where that session exists | `main:websocket:user-123:main` |
//!
//! All are in the space of whoever says them. Operators name the sessions of others with the owner and a
//! `/` before the key, which is how they are told of them: `ada/agent:main:main`, or canonical,
//! `ada/main:openclaw:main:main`; `ada/main` is taken so where ada has that session, since it may also be a
//! bare word.
//!
//! Whether a session exists is not known in here, so the last kind is named twice
//! ([`KeyMatch::Either`]) and whoever reads it asks.

use crate::error::Error;
use crate::ids;
use crate::ids::{Owner, SessionKey};

/// The channel of sessions that were named in this protocol.
const CHANNEL: &str = "openclaw";

/// The name of an agent's main session.
pub(super) const MAIN: &str = "main";

/// What a client's key may stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyMatch {
    /// This session.
    One(SessionKey),
    /// The first if it exists, else the second.
    Either(SessionKey, SessionKey),
}

/// Reads the key of a client that is `who`; `default_agent` answers those that name none.
pub(super) fn read(text: &str, default_agent: &str, who: &Owner) -> Result<KeyMatch, Error> {
    let Some((owner, local)) = ids::owner_apart(text) else {
        return read_own(text, default_agent).map(|named| named.in_space(who));
    };
    if local.starts_with("agent:") {
        return read_own(local, default_agent).map(|named| named.in_space(&owner));
    }
    if let Ok(canonical) = SessionKey::parse(text) {
        return Ok(KeyMatch::One(canonical));
    }
    let word = read_own(text, default_agent)?.in_space(who);
    Ok(match (read_own(local, default_agent).map(|named| named.in_space(&owner)), word) {
        // Nobody else may name what is not his.
        (Ok(KeyMatch::One(theirs)), KeyMatch::One(word)) if *who == Owner::Admins => {
            KeyMatch::Either(theirs, word)
        }
        (_, word) => word,
    })
}

impl KeyMatch {
    fn in_space(self, owner: &Owner) -> Self {
        match self {
            Self::One(key) => Self::One(key.in_space(owner)),
            Self::Either(first, second) => Self::Either(first.in_space(owner), second.in_space(owner)),
        }
    }
}

/// The session that clients of this protocol, which are `who`, call `word` with an agent.
pub(super) fn own(agent: &str, word: &str, who: &Owner) -> Result<SessionKey, Error> {
    Ok(SessionKey::new(agent, CHANNEL, word, SessionKey::DEFAULT_PEER)?.in_space(who))
}

fn read_own(text: &str, default_agent: &str) -> Result<KeyMatch, Error> {
    let own = |agent: &str, word: &str| own(agent, word, &Owner::Admins);
    let Some(rest) = text.strip_prefix("agent:") else {
        return own(default_agent, if text.is_empty() { MAIN } else { text }).map(KeyMatch::One);
    };
    let (agent, account) = rest.split_once(':').unwrap_or((rest, MAIN));
    let named = own(agent, account)?;
    Ok(match SessionKey::parse(rest) {
        Ok(canonical) if canonical != named => KeyMatch::Either(canonical, named),
        _ => KeyMatch::One(named),
    })
}

/// How a session is called in this protocol, for a client that is `who`; [`read`] finds it again, and no
/// other: a short name that could be another session's is not used.
pub(super) fn write(session: &SessionKey, who: &Owner) -> String {
    let own = write_own(&session.in_space(&Owner::Admins));
    let seen = session.seen_by(who);
    format!("{}{own}", &seen[..seen.len() - session.local().len()])
}

fn write_own(session: &SessionKey) -> String {
    if session.channel() == CHANNEL && session.peer() == SessionKey::DEFAULT_PEER {
        let short = format!("agent:{}:{}", session.agent(), session.account());
        if read_own(&short, MAIN).is_ok_and(|named| named == KeyMatch::One(session.clone())) {
            return short;
        }
    }
    format!("agent:{session}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        match read(text, "main", &Owner::Admins).unwrap() {
            KeyMatch::One(key) => key.to_string(),
            KeyMatch::Either(first, second) => format!("{first} or {second}"),
        }
    }

    #[test]
    fn keys_stand_for_the_sessions_of_the_table() {
        for (text, key) in [
            ("main", "main:openclaw:main:main"),
            ("", "main:openclaw:main:main"),
            ("agent:main:main", "main:openclaw:main:main"),
            ("agent:main", "main:openclaw:main:main"),
            ("7f-1", "main:openclaw:7f-1:main"),
            ("agent:work:dashboard:7f", "work:openclaw:dashboard%3A7f:main"),
            ("telegram:group:1", "main:openclaw:telegram%3Agroup%3A1:main"),
            (
                "agent:main:websocket:user-123:main",
                "main:websocket:user-123:main or main:openclaw:websocket%3Auser-123%3Amain:main",
            ),
            ("ada/agent:main:main", "ada/main:openclaw:main:main"),
            ("jwt%3Aada/agent:work:x", "jwt%3Aada/work:openclaw:x:main"),
            ("ada/main:cli:ada:main", "ada/main:cli:ada:main"),
            ("ada/main", "ada/main:openclaw:main:main or main:openclaw:ada/main:main"),
            ("agent:main:a/b", "main:openclaw:a/b:main"),
        ] {
            assert_eq!(canonical(text), key, "{text:?}");
        }
    }

    #[test]
    fn broken_keys_say_what_is_wrong() {
        for text in ["agent:", "agent::main", "agent:main:", "a\nb", &"x".repeat(2000)] {
            let error = read(text, "main", &Owner::Admins).unwrap_err();
            assert!(error.message.starts_with("session key"), "{text:?}: {}", error.message);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            agent in "[a-z]{1,5}",
            channel in "openclaw|websocket|a:b|[^\\p{Cc}]{1,6}",
            account in "main|[^\\p{Cc}]{1,9}|a:b:c",
            peer in "main|[^\\p{Cc}]{1,5}",
        ) {
            let key = SessionKey::new(&agent, &channel, &account, &peer).unwrap();
            let [ada, eve] = ["ada", "jwt:e/ve%"].map(|name| Owner::Credential(name.into()));
            for (owner, who) in [(Owner::Admins, &Owner::Admins), (ada.clone(), &ada), (eve.clone(), &eve),
                                 (ada.clone(), &Owner::Admins), (eve.clone(), &Owner::Admins)] {
                let key = key.in_space(&owner);
                let written = write(&key, who);
                let (KeyMatch::One(back) | KeyMatch::Either(back, _)) = read(&written, "zz", who).unwrap();
                prop_assert_eq!(&back, &key, "as {}", written);
                prop_assert_eq!(owner == *who, written.starts_with("agent:"), "as {}", written);
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = read(&text, "main", &Owner::Credential("ada".into()));
            let _ = read(&text, "main", &Owner::Admins);
        }

        /// Whatever somebody says, it is in his own space, or is said to be another's.
        #[test]
        fn nothing_leads_into_anothers_space_unsaid(text in "(agent:|main|[a-z]{1,4}|[:/%]){1,7}") {
            let ada = Owner::Credential("ada".into());
            let (first, second) = match read(&text, "main", &ada) {
                Ok(KeyMatch::One(one)) => (one.clone(), one),
                Ok(KeyMatch::Either(first, second)) => (first, second),
                Err(_) => return Ok(()),
            };
            for key in [first, second] {
                prop_assert!(key.is_of(&ada) || text.starts_with(key.as_str().split_once('/').unwrap().0), "{}", key);
            }
        }
    }
}
