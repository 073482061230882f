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

pub(crate) use text_id;

text_id! {
    /// The name of a configured agent, such as `main`.
    AgentId
}
text_id! {
    /// An agent that was put to work: a UUID, with `call-` before it where a call waits for it.
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

/// What ids of agents begin with that a call waits for.
const OF_CALL: &str = "call-";

impl SubAgentId {
    /// The id of the agent that this call of this run waits for: the same however often the call is made.
    pub fn of_call(run: &RunId, call: &CallId) -> Self {
        let (run, call) = (run.as_str(), call.as_str());
        Self::new(format!("{OF_CALL}{}", uuid_of(&format!("agent|{}|{run}|{call}", run.len()))))
    }

    /// Whether it is one of these.
    pub fn is_of_call(&self) -> bool {
        self.as_str().starts_with(OF_CALL)
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

/// The position of an event in the event log of its session. The first event has number 1; 0 is
/// "before everything". Numbers are never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one; there is none after the last, which only forged messages have.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
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
/// part percent-encoded, and a `/` in the agent's. (Source: exoclaw FR-005; the encoding is clawmux's.)
///
/// Every owner has a space of its own: the same four parts under two owners are two sessions. Those of
/// the operators are named as above; in front of any other's stands the name of its owner and a `/`:
/// `ada/main:websocket:ada:main`. In that name `:`, `%`, `/` and control characters are percent-encoded, so
/// that an owner is what stands before a `/` that comes before the first `:`.
///
/// What a client says is a key in the client's own space, unless it is an operator who names another's
/// ([`Principal::session`](crate::principal::Principal::session)); and whoever is told of a key is told it
/// as he would say it ([`Self::seen_by`]).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(Arc<str>);

impl SessionKey {
    /// The longest canonical key, in bytes, without its owner.
    pub const BYTES_MAX: usize = 1024;

    /// The longest name of an owner in one, encoded, in bytes. No principal's is longer.
    pub const OWNER_BYTES_MAX: usize = 1024;

    /// The peer of a session whose client names none.
    pub const DEFAULT_PEER: &'static str = "main";

    /// The key of these four parts in the operators' space, encoded where needed.
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
            let is_agent = key.is_empty();
            if !is_agent {
                key.push(':');
            }
            for c in part.chars() {
                match c {
                    ':' => key.push_str("%3A"),
                    '%' => key.push_str("%25"),
                    '/' if is_agent => key.push_str("%2F"),
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
    /// `InvalidRequest` where it does not have four non-empty parts, where in one of them a `%` is not
    /// followed by `3A`, `25` or `2F` (either case), or where an owner is named that none can be.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| ErrorCode::InvalidRequest.error(format!("session key {text:?}: {why}"));
        let (owner, local) = split(text);
        let parts: Vec<&str> = local.split(':').collect();
        let [agent, channel, account, peer] = parts.as_slice() else {
            return Err(bad("expected agent:channel:account:peer"));
        };
        let decoded = [agent, channel, account, peer].map(|part| decode(part));
        let [Some(agent), Some(channel), Some(account), Some(peer)] = decoded else {
            return Err(bad("a '%' must be written %25 and a ':' inside a part %3A"));
        };
        let key = Self::new(&agent, &channel, &account, &peer)?;
        let Some(owner) = owner else { return Ok(key) };
        let owner = decode_owner(owner).ok_or_else(|| bad("expected the name of an owner before the '/'"))?;
        let key = key.in_space(&Owner::Credential(owner.into()));
        if key.0.len() - key.local().len() > Self::OWNER_BYTES_MAX {
            return Err(bad("the name of its owner is too long"));
        }
        Ok(key)
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whom it belongs to: in whose space it is.
    pub fn owner(&self) -> Owner {
        match split(&self.0).0 {
            None => Owner::Admins,
            Some(owner) => Owner::Credential(decode_owner(owner).unwrap_or_else(|| owner.to_owned()).into()),
        }
    }

    /// Whose memories are searched in it and added to: its owner's. What is said in a channel's sessions is
    /// remembered for each of them alone, since each belongs to other people.
    pub fn memory_owner(&self) -> Owner {
        match self.owner() {
            owner if owner.is_channel() => {
                Owner::Credential(format!("{}/{}", owner.as_str(), self.local()).into())
            }
            owner => owner,
        }
    }

    /// Whether it belongs to this owner.
    pub fn is_of(&self, owner: &Owner) -> bool {
        match (split(&self.0).0, owner) {
            (None, Owner::Admins) => true,
            (Some(_), Owner::Credential(_)) => self.owner() == *owner,
            _ => false,
        }
    }

    /// The key of the same four parts in the space of this owner.
    #[must_use]
    pub fn in_space(&self, owner: &Owner) -> Self {
        match owner {
            _ if self.is_of(owner) => self.clone(),
            Owner::Admins => Self(self.local().into()),
            Owner::Credential(name) => Self(format!("{}/{}", encode_owner(name), self.local()).into()),
        }
    }

    /// The key as its owner says it: without its owner.
    pub fn local(&self) -> &str {
        split(&self.0).1
    }

    /// The key as this owner is told of it: one of his own as he says it, any other with its owner.
    pub fn seen_by(&self, owner: &Owner) -> &str {
        if self.is_of(owner) { self.local() } else { &self.0 }
    }

    /// The name (a UUID) of one conversation of this session: `created_ms` is when the session was
    /// made, `begun` the number of the event its present conversation began with, 0 for the first. Where
    /// the session was begun under a UUID, that is the name of the first.
    pub fn conversation_id(&self, created_ms: u64, begun: Seq) -> String {
        let account = self.account();
        if begun == Seq(0) && self.peer() == Self::DEFAULT_PEER && is_uuid(&account) {
            return account.into_owned();
        }
        Self::derived_conversation_id(&self.0, created_ms, begun.0)
    }

    /// The name of a conversation that follows from the key of its session.
    pub fn derived_conversation_id(
        key: &str,
        created_ms: impl fmt::Display,
        begun: impl fmt::Display,
    ) -> String {
        uuid_of(&format!("{key}|{created_ms}|{begun}"))
    }

    /// The channel of sessions whose account is a UUID of their own.
    pub const UUID_CHANNEL: &'static str = "wundr";

    /// The UUID that names the session to clients that know sessions by one: the one it was made
    /// under, else one derived from its key. One that was derived no other session has; one it was made
    /// under, no other of its owner.
    pub fn uuid(&self) -> String {
        if self.has_own_uuid() {
            return self.account().into_owned();
        }
        uuid_of(&format!("session|{}", self.0))
    }

    /// Whether it was made under a UUID, which was given out at random for it.
    pub fn has_own_uuid(&self) -> bool {
        let is_named = self.channel() == Self::UUID_CHANNEL && self.peer() == Self::DEFAULT_PEER;
        is_named && is_uuid(&self.account())
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
        let encoded = self.local().split(':').nth(index).unwrap_or_default();
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

/// The owner that stands before a key, encoded, and the key without it.
fn split(text: &str) -> (Option<&str>, &str) {
    match text.find(['/', ':']) {
        Some(at) if text.as_bytes()[at] == b'/' => (Some(&text[..at]), &text[at + 1..]),
        _ => (None, text),
    }
}

/// The owner that stands before a key, however that goes on, and the key without it.
pub(crate) fn owner_apart(text: &str) -> Option<(Owner, &str)> {
    let (owner, local) = split(text);
    Some((Owner::Credential(decode_owner(owner?)?.into()), local))
}

/// The name of an owner as it stands before a key.
fn encode_owner(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut buffer = [0; 4];
    for c in name.chars() {
        if c.is_control() || matches!(c, ':' | '%' | '/') {
            for byte in c.encode_utf8(&mut buffer).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The name of an owner that stands before a key; none where that is no name.
fn decode_owner(encoded: &str) -> Option<String> {
    let mut out = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let byte = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                rest = tail;
                let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|d| u8::try_from(d).ok());
                digit(high)? * 16 + digit(low)?
            }
            (b'%', _) => return None,
            (byte, _) => *byte,
        };
        out.push(byte);
    }
    String::from_utf8(out).ok().filter(|name| !name.is_empty())
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
            Some("2F" | "2f") => out.push('/'),
            _ => return None,
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

/// With what the names of owners of channels' sessions begin.
const OF_CHANNEL: &str = "channel:";

/// Whom a session, a key or a file belongs to. All admins are one owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The operators.
    Admins,
    /// The credential with this name.
    Credential(Arc<str>),
}

impl Owner {
    /// That of the sessions in which people write over the bus.
    pub const BUS: &'static str = "bus";

    /// How the store names it: empty for the admins.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Admins => "",
            Self::Credential(name) => name,
        }
    }

    /// That of the sessions in which people write over this channel.
    pub fn of_channel(channel: &str) -> Self {
        Self::Credential(format!("{OF_CHANNEL}{channel}").into())
    }

    /// Whether it is one of these: many people write in its sessions, each in their own.
    pub fn is_channel(&self) -> bool {
        matches!(self, Self::Credential(name) if &**name == Self::BUS || name.starts_with(OF_CHANNEL))
    }

    /// It in a sentence.
    pub fn in_words(&self) -> &str {
        match self {
            Self::Admins => "the operators",
            Self::Credential(name) => name,
        }
    }

    /// The owner the store names so.
    pub fn from_name(name: &str) -> Self {
        if name.is_empty() { Self::Admins } else { Self::Credential(name.into()) }
    }
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
    fn people_of_a_channel_are_remembered_apart() {
        let key = |peer| SessionKey::new("main", "telegram", "main", peer).unwrap();
        let of_channel = |peer| key(peer).in_space(&Owner::of_channel("telegram")).memory_owner();
        assert_ne!(of_channel("1"), of_channel("2"));
        assert_ne!(of_channel("1"), Owner::of_channel("telegram"));
        assert_eq!(key("1").memory_owner(), Owner::Admins);
        assert_eq!(key("1").in_space(&credential("ada")).memory_owner(), credential("ada"));
    }

    fn credential(name: &str) -> Owner {
        Owner::Credential(name.into())
    }

    #[test]
    fn every_owner_has_a_space_of_its_own() {
        let key = SessionKey::parse("main:openclaw:main:main").unwrap();
        assert!(key.is_of(&Owner::Admins) && key.owner() == Owner::Admins);
        let (ada, bob) = (key.in_space(&credential("ada")), key.in_space(&credential("jwt:b/o%b")));
        assert_eq!(ada.as_str(), "ada/main:openclaw:main:main");
        assert_eq!(bob.as_str(), "jwt%3Ab%2Fo%25b/main:openclaw:main:main");
        for (own, name) in [(&ada, "ada"), (&bob, "jwt:b/o%b")] {
            assert_eq!(SessionKey::parse(own.as_str()).unwrap(), *own);
            assert_eq!(own.owner(), credential(name));
            assert_eq!(own.seen_by(&credential(name)), "main:openclaw:main:main");
            assert_eq!(own.seen_by(&Owner::Admins), own.as_str());
            assert_eq!(own.in_space(&Owner::Admins), key);
            assert_eq!(
                [own.agent(), own.channel(), own.account(), own.peer()],
                ["main", "openclaw", "main", "main"]
            );
            assert_ne!(own.uuid(), key.uuid());
            assert_ne!(own.conversation_id(7, Seq(0)), key.conversation_id(7, Seq(0)));
        }
        assert!(
            !ada.is_of(&credential("bob")) && !ada.is_of(&Owner::Admins) && !key.is_of(&credential("ada"))
        );
        assert_ne!(ada.uuid(), bob.uuid());
    }

    #[test]
    fn an_owner_is_what_stands_before_a_slash_before_the_first_colon() {
        let path = SessionKey::parse("main:cli:home/ada:x/y").unwrap();
        assert_eq!((path.owner(), path.as_str()), (Owner::Admins, "main:cli:home/ada:x/y"));
        let agent = SessionKey::new("a/b", "cli", "x", "main").unwrap();
        assert_eq!((agent.as_str(), &*agent.agent()), ("a%2Fb:cli:x:main", "a/b"));
        let same = SessionKey::parse("%61da/main:cli:x:main").unwrap();
        assert_eq!(same.as_str(), "ada/main:cli:x:main");
        for text in ["/a:b:c:d", "%/a:b:c:d", "%zz/a:b:c:d", "%ff/a:b:c:d", "ada/eve/a:b:c:d:e", "ada/"] {
            let error = SessionKey::parse(text).unwrap_err();
            assert!(error.message.starts_with("session key"), "{text:?}: {}", error.message);
        }
        SessionKey::parse(&format!("{}/a:b:c:d", "x".repeat(2000))).unwrap_err();
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
        let own = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let begun = SessionKey::new("main", "openclaw", own, "main").unwrap();
        assert_eq!(begun.conversation_id(7, Seq(0)), own);
        assert_ne!(begun.conversation_id(7, Seq(4)), own);
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
            prop_assert_eq!([key.agent(), key.channel(), key.account(), key.peer()].map(String::from), parts.clone());
        }

        /// No two owners have a key in common, and each reads its own back.
        #[test]
        fn no_two_spaces_meet(parts in proptest::array::uniform4("[^\\p{Cc}]{1,9}|[/:%]{1,3}"),
                              names in proptest::array::uniform2("[^\\p{Cc}]{1,9}|[/:%ab]{1,4}|\\PC{1,3}")) {
            let [agent, channel, account, peer] = &parts;
            let key = SessionKey::new(agent, channel, account, peer).unwrap();
            let spaces = names.clone().map(|name| key.in_space(&credential(&name)));
            prop_assert_eq!(spaces[0] == spaces[1], names[0] == names[1]);
            for (own, name) in spaces.iter().zip(&names) {
                prop_assert_ne!(own, &key);
                let back = SessionKey::parse(own.as_str()).unwrap();
                prop_assert_eq!(&back, own);
                prop_assert_eq!(back.owner(), credential(name));
                prop_assert_eq!(SessionKey::parse(own.seen_by(&credential(name))).unwrap(), key.clone());
                prop_assert_eq!([own.agent(), own.channel(), own.account(), own.peer()].map(String::from), parts.clone());
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = SessionKey::parse(&text);
        }
    }
}
