//! Typed identifiers. Every one is cheap to clone: text is shared.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorCode};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::new(text)
            }
        }
    };
}

text_id! {
    /// The name of a configured agent, such as `main`.
    AgentId
}
text_id! {
    /// An agent that was put to work (a UUID).
    SubAgentId
}
text_id! {
    /// Something that is done at set times: a UUID, or the name of a built-in job.
    JobId
}
text_id! {
    /// A team of such agents (a UUID).
    TeamId
}
text_id! {
    /// One run: a prompt and all that follows from it until its terminal event.
    RunId
}
text_id! {
    /// One tool call, as the model provider named it.
    CallId
}
text_id! {
    /// One tool call in the whole daemon, also after a restart: what a provider calls a call is unique
    /// within its run alone, and may be any text.
    ApprovalId
}
text_id! {
    /// A lane: runs of several sessions that take place one at a time.
    LaneName
}
text_id! {
    /// The name a plugin is loaded under; also the name of the tool it offers.
    PluginName
}

impl RunId {
    /// A fresh id (a version 4 UUID) from 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self::new(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
    }

    /// The id of what this call of this run puts into a conversation: the same however often the call is
    /// made.
    pub fn of_message(run: &Self, call: &CallId) -> Self {
        let (run, call) = (run.as_str(), call.as_str());
        Self::new(format!("message-{}", uuid_of(&format!("message|{}|{run}|{call}", run.len()))))
    }
}

impl JobId {
    /// A fresh id (a version 4 UUID) from 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self::new(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
    }
}

impl ApprovalId {
    /// The id (a UUID) of this call of this run.
    pub fn of(run: &RunId, call: &CallId) -> Self {
        let (run, call) = (run.as_str(), call.as_str());
        Self::new(uuid_of(&format!("approval|{}|{run}|{call}", run.len())))
    }
}

/// A UUID that follows from a text.
pub(crate) fn uuid_of(text: &str) -> String {
    let digest = Sha256::digest(text);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// The position of an event in the log of its session. The first event has number 1; 0 is
/// "before everything". Numbers are never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One connection of this process. Not reused while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Ties a request that a dialect asked to execute to its reply; counts up per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The canonical name of a session: `{agent}:{channel}:{account}:{peer}`, a `:` or `%` inside a
/// part percent-encoded. (Source: exoclaw FR-005; the encoding is clawmux's.)
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(Arc<str>);

impl SessionKey {
    /// The longest canonical key, in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// The peer of a session whose client names none.
    pub const DEFAULT_PEER: &'static str = "main";

    /// The key of these four parts, encoded where needed.
    ///
    /// # Errors
    /// `InvalidRequest` where a part is empty or holds a control character, or where the key is
    /// longer than [`Self::BYTES_MAX`].
    pub fn new(agent: &str, channel: &str, account: &str, peer: &str) -> Result<Self, Error> {
        let mut key = String::with_capacity(agent.len() + channel.len() + account.len() + peer.len() + 3);
        for (name, part) in [("agent", agent), ("channel", channel), ("account", account), ("peer", peer)] {
            if part.is_empty() {
                return Err(ErrorCode::InvalidRequest.error(format!("session key: {name} is empty")));
            }
            if part.chars().any(char::is_control) {
                return Err(
                    ErrorCode::InvalidRequest.error(format!("session key: {name} holds a control character"))
                );
            }
            if !key.is_empty() {
                key.push(':');
            }
            for c in part.chars() {
                match c {
                    ':' => key.push_str("%3A"),
                    '%' => key.push_str("%25"),
                    c => key.push(c),
                }
            }
        }
        if key.len() > Self::BYTES_MAX {
            return Err(ErrorCode::InvalidRequest.error(format!(
                "session key: {} bytes is longer than {}",
                key.len(),
                Self::BYTES_MAX
            )));
        }
        Ok(Self(key.into()))
    }

    /// Reads a canonical key back. Encodings other than the canonical one are brought to it, so
    /// that one session has one key.
    ///
    /// # Errors
    /// `InvalidRequest` where it does not have four non-empty parts or a `%` is not followed by
    /// `3A` or `25` (either case).
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| ErrorCode::InvalidRequest.error(format!("session key {text:?}: {why}"));
        let parts: Vec<&str> = text.split(':').collect();
        let [agent, channel, account, peer] = parts.as_slice() else {
            return Err(bad("expected agent:channel:account:peer"));
        };
        let decoded = [agent, channel, account, peer].map(|part| decode(part));
        let [Some(agent), Some(channel), Some(account), Some(peer)] = decoded else {
            return Err(bad("a '%' must be written %25 and a ':' inside a part %3A"));
        };
        Self::new(&agent, &channel, &account, &peer)
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name (a UUID) of one conversation of this session: `created_ms` is when the session was
    /// made, `begun` the number of the event its present conversation began with, 0 for the first.
    pub fn conversation_id(&self, created_ms: u64, begun: Seq) -> String {
        uuid_of(&format!("{}|{created_ms}|{begun}", self.0))
    }

    /// The channel of sessions whose account is a UUID of their own.
    pub const UUID_CHANNEL: &'static str = "wundr";

    /// The UUID that names the session to clients that know sessions by one: the one it was made
    /// under, else one derived from its key.
    pub fn uuid(&self) -> String {
        let account = self.account();
        if self.channel() == Self::UUID_CHANNEL && self.peer() == Self::DEFAULT_PEER && is_uuid(&account) {
            return account.into_owned();
        }
        uuid_of(&format!("session|{}", self.0))
    }

    /// The agent's name, decoded.
    pub fn agent(&self) -> Cow<'_, str> {
        self.part(0)
    }

    /// The channel, decoded.
    pub fn channel(&self) -> Cow<'_, str> {
        self.part(1)
    }

    /// The account, decoded.
    pub fn account(&self) -> Cow<'_, str> {
        self.part(2)
    }

    /// The peer, decoded.
    pub fn peer(&self) -> Cow<'_, str> {
        self.part(3)
    }

    fn part(&self, index: usize) -> Cow<'_, str> {
        let encoded = self.0.split(':').nth(index).unwrap_or_default();
        decode(encoded).unwrap_or(Cow::Borrowed(encoded))
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Whether it is a UUID as they are written here: hyphenated, in lower case.
pub fn is_uuid(text: &str) -> bool {
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    text.len() == 36 && is_lower && uuid::Uuid::try_parse(text).is_ok()
}

fn decode(part: &str) -> Option<Cow<'_, str>> {
    if !part.contains('%') {
        return Some(Cow::Borrowed(part));
    }
    let mut out = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 3) {
            Some("3A" | "3a") => out.push(':'),
            Some("25") => out.push('%'),
            _ => return None,
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canonical_keys_are_encoded_once() {
        let key = SessionKey::new("work", "openclaw", "dashboard:7f", "100%").unwrap();
        assert_eq!(key.as_str(), "work:openclaw:dashboard%3A7f:100%25");
        assert_eq!(key.account(), "dashboard:7f");
        assert_eq!(SessionKey::parse("work:openclaw:dashboard%3a7f:100%25").unwrap(), key);
    }

    #[test]
    fn broken_keys_say_what_is_wrong() {
        for text in ["", "a:b:c", "a:b:c:d:e", "a::c:d", "a:b:c:%", "a:b:c:%zz", "a:b:c:%İ", "a:b\n:c:d"] {
            let error = SessionKey::parse(text).unwrap_err();
            assert!(error.message.starts_with("session key"), "{text:?}: {}", error.message);
        }
    }

    #[test]
    fn every_conversation_has_a_name_of_its_own() {
        let key = SessionKey::new("main", "openclaw", "main", "main").unwrap();
        let other = SessionKey::new("main", "openclaw", "other", "main").unwrap();
        let id = key.conversation_id(7, Seq(0));
        assert_eq!(id, key.conversation_id(7, Seq(0)));
        assert_eq!(id.len(), 36);
        for different in
            [key.conversation_id(8, Seq(0)), key.conversation_id(7, Seq(1)), other.conversation_id(7, Seq(0))]
        {
            assert_ne!(id, different);
        }
    }

    #[test]
    fn every_call_has_an_id_of_its_own_in_the_daemon() {
        let id = |run: &str, call: &str| ApprovalId::of(&run.into(), &call.into());
        assert_eq!(id("run", "call_0_0"), id("run", "call_0_0"));
        assert_eq!(id("run", "").as_str().len(), 36);
        for (one, other) in [(("a", "b"), ("a", "c")), (("a", "b"), ("c", "b")), (("a|b", "c"), ("a", "b|c"))]
        {
            assert_ne!(id(one.0, one.1), id(other.0, other.1));
        }
    }

    #[test]
    fn every_session_has_a_uuid() {
        let own = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let key = |text: &str| SessionKey::parse(text).unwrap();
        assert_eq!(key(&format!("work:wundr:{own}:main")).uuid(), own);
        let derived = key("main:websocket:ada:main").uuid();
        // It is in stores and in clients' hands: it may never become another.
        assert_eq!(derived, "74314795-0403-839d-b2f7-b9806d951e45");
        assert!(is_uuid(&derived) && uuid::Uuid::parse_str(&derived).unwrap().get_version_num() == 8);
        for other in [
            format!("main:websocket:{own}:main"),
            format!("main:wundr:{own}:other"),
            format!("main:wundr:{}:main", own.to_uppercase()),
            format!("main:wundr:{}:main", own.replace('-', "")),
            "main:wundr:default:main".into(),
        ] {
            let uuid = key(&other).uuid();
            assert!(uuid != own && is_uuid(&uuid), "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_key_reads_back(parts in proptest::array::uniform4("[^\\p{Cc}]{1,12}")) {
            let [agent, channel, account, peer] = &parts;
            let key = SessionKey::new(agent, channel, account, peer).unwrap();
            prop_assert_eq!(&SessionKey::parse(key.as_str()).unwrap(), &key);
            prop_assert_eq!([key.agent(), key.channel(), key.account(), key.peer()].map(String::from), parts);
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = SessionKey::parse(&text);
        }
    }
}
