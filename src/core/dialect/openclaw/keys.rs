//! Session keys as OpenClaw clients write them, and the canonical ones they stand for.
//!
//! | what the client says | canonical |
//! |---|---|
//! | `main`, `agent:main:main` | `main:openclaw:main:main` |
//! | a bare word such as a UUID, `7f..` | `main:openclaw:7f..:main` |
//! | `agent:work:dashboard:7f..` | `work:openclaw:dashboard%3A7f..:main` |
//! | `agent:main:websocket:user-123:main`, where that session exists | `main:websocket:user-123:main` |
//!
//! Whether a session exists is not known in here, so the last kind is named twice
//! ([`Named::Either`]) and whoever reads it asks.

use crate::error::Error;
use crate::ids::SessionKey;

/// The channel of sessions that were named in this protocol.
const CHANNEL: &str = "openclaw";

/// The name of an agent's main session.
pub(super) const MAIN: &str = "main";

/// What a client's key may stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// This session.
    One(SessionKey),
    /// The first if it exists, else the second.
    Either(SessionKey, SessionKey),
}

/// Reads a client's key; `default_agent` answers those that name none.
pub(super) fn read(text: &str, default_agent: &str) -> Result<Named, Error> {
    let own = |agent: &str, account: &str| SessionKey::new(agent, CHANNEL, account, SessionKey::DEFAULT_PEER);
    let Some(rest) = text.strip_prefix("agent:") else {
        return own(default_agent, if text.is_empty() { MAIN } else { text }).map(Named::One);
    };
    let (agent, account) = rest.split_once(':').unwrap_or((rest, MAIN));
    let named = own(agent, account)?;
    Ok(match SessionKey::parse(rest) {
        Ok(canonical) if canonical != named => Named::Either(canonical, named),
        _ => Named::One(named),
    })
}

/// How a session is called in this protocol; [`read`] finds it again, and no other: a short name that
/// could be another session's is not used.
pub(super) fn write(session: &SessionKey) -> String {
    if session.channel() == CHANNEL && session.peer() == SessionKey::DEFAULT_PEER {
        let short = format!("agent:{}:{}", session.agent(), session.account());
        if read(&short, MAIN).is_ok_and(|named| named == Named::One(session.clone())) {
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
        match read(text, "main").unwrap() {
            Named::One(key) => key.to_string(),
            Named::Either(first, second) => format!("{first} or {second}"),
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
        ] {
            assert_eq!(canonical(text), key, "{text:?}");
        }
    }

    #[test]
    fn broken_keys_say_what_is_wrong() {
        for text in ["agent:", "agent::main", "agent:main:", "a\nb", &"x".repeat(2000)] {
            let error = read(text, "main").unwrap_err();
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
            let (Named::One(back) | Named::Either(back, _)) = read(&write(&key), "zz").unwrap();
            prop_assert_eq!(&back, &key, "as {}", write(&key));
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = read(&text, "main");
        }
    }
}
