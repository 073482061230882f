//! What subjects, streams and buckets of one cluster are called.
//!
//! | subject | what is there |
//! |---|---|
//! | `PREFIX.log.s.{slot}.{session}` | a session's records; the session as 32 hexadecimal digits |
//! | `PREFIX.log.k.{hash}` | the guard of a key |
//! | `PREFIX.log.t.{table}` | the records of what is kept beside sessions |
//! | `PREFIX.blob.{sha256}.{part}` | the parts of what is too large for a message |
//! | `PREFIX.alive.{node}` | heartbeats |
//! | `PREFIX.node.{node}` | what a node is asked |
//! | `PREFIX.node.{node}.handover` | a node is asked to give its slots away |
//! | `PREFIX.live.{slot}.{session}` | what is said of a session, as it is said |
//! | `NAME.base.manifest`, `NAME.base.plan` | which base there is, and which one somebody means to write |
//! | `NAME.base.c.{generation}.{chunk}` | the parts of a base |
//!
//! Heartbeats, questions and what is said are not stored.
//!
//! PREFIX is the name of the cluster, and from the second generation of its log on that with `--` and the number of the
//! generation, which no name has in it. So a daemon that knows only an earlier generation reaches nobody of this one.
//!
//! Tokens are numbers, hexadecimal digits or names of ours, never text of a client: a dot, a wildcard or a
//! space in one would be another subject. The names of nodes come from the configuration and from hosts, so
//! they are encoded.

use std::fmt::Write as _;
use std::sync::Arc;

use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::slot::{SessionId, Slot};
use clawmux_core::hex::hex;
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::{Blob, Subject};

/// The longest name of a cluster, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// What comes before the number of a generation.
const GENERATION: &str = "--";

/// The names of what all generations of one cluster share.
#[derive(Clone, Debug)]
pub(super) struct Names {
    name: Arc<str>,
}

impl Names {
    /// Those of the cluster of this name.
    ///
    /// # Errors
    /// Where it can't be the name of a cluster: what may be in one.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed);
        if !is_name || name.contains(GENERATION) {
            return Err(format!(
                "cluster.name: {name:?} is no name of a cluster: give it 1 to {NAME_BYTES_MAX} letters, \
                 digits, _ and -, not two - in a row"
            ));
        }
        Ok(Self { name: name.into() })
    }

    /// The names of one generation.
    pub(super) fn of(&self, generation: u64) -> Subjects {
        let prefix = match generation {
            0 | 1 => Arc::clone(&self.name),
            _ => format!("{}{GENERATION}{generation}", self.name).into(),
        };
        Subjects { prefix }
    }

    /// The stream that has the base.
    pub(super) fn base_stream(&self) -> String {
        format!("{}_BASE", self.name)
    }

    /// Everything in it.
    pub(super) fn base(&self) -> String {
        format!("{}.base.>", self.name)
    }

    /// What says which base there is.
    pub(super) fn manifest(&self) -> String {
        format!("{}.base.manifest", self.name)
    }

    /// What says which generation was last begun to be made.
    pub(super) fn plan(&self) -> String {
        format!("{}.base.plan", self.name)
    }

    /// A part of the base of a generation; `>` stands for all of them.
    pub(super) fn chunk(&self, generation: u64, chunk: &str) -> String {
        format!("{}.base.c.{generation}.{chunk}", self.name)
    }
}

/// The names of one generation of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Subjects {
    prefix: Arc<str>,
}

impl Subjects {
    /// The stream that is the log.
    pub(super) fn log_stream(&self) -> String {
        format!("{}_LOG", self.prefix)
    }

    /// Everything in the log.
    pub(super) fn log(&self) -> String {
        format!("{}.log.>", self.prefix)
    }

    /// What a store is made of: everything in the log but guards.
    pub(super) fn followed(&self) -> Vec<String> {
        ["s", "t"].map(|of| format!("{}.log.{of}.>", self.prefix)).into()
    }

    /// The records of a session, whose slot is this.
    pub(super) fn session(&self, session: &SessionKey, slot: Slot) -> String {
        format!("{}.log.s.{}.{}", self.prefix, slot.number(), SessionId::of(session))
    }

    /// The records of what is kept beside sessions under this name.
    pub(super) fn table(&self, table: &str) -> String {
        format!("{}.log.t.{table}", self.prefix)
    }

    /// Which table's records are under this subject of the log; none where it is another.
    pub(super) fn table_of(&self, subject: &str) -> Option<&'static str> {
        let table = subject.strip_prefix(&*self.prefix)?.strip_prefix(".log.t.")?;
        Subject::TABLES.into_iter().find(|name| *name == table)
    }

    /// The guard of the key with this hash.
    pub(super) fn guard(&self, hash: &[u8]) -> String {
        format!("{}.log.k.{}", self.prefix, hex(hash))
    }

    /// The stream that has blobs.
    pub(super) fn blob_stream(&self) -> String {
        format!("{}_BLOBS", self.prefix)
    }

    /// Everything in it.
    pub(super) fn blobs(&self) -> String {
        format!("{}.blob.>", self.prefix)
    }

    /// A part of a blob; `*` stands for all of them.
    pub(super) fn blob(&self, blob: &Blob, part: &str) -> String {
        format!("{}.blob.{}.{part}", self.prefix, blob.name())
    }

    /// The bucket of nodes.
    pub(super) fn nodes(&self) -> Bucket {
        Bucket(format!("{}_nodes", self.prefix))
    }

    /// The bucket of slots.
    pub(super) fn slots(&self) -> Bucket {
        Bucket(format!("{}_slots", self.prefix))
    }

    /// The heartbeats of this node.
    pub(super) fn alive(&self, node: &NodeName) -> String {
        format!("{}.alive.{}", self.prefix, token(node))
    }

    /// What this node is asked.
    pub(super) fn questions(&self, node: &NodeName) -> String {
        format!("{}.node.{}", self.prefix, token(node))
    }

    /// What is said of this session, as it is said.
    pub(super) fn live(&self, session: &SessionKey) -> String {
        format!("{}.live.{}.{}", self.prefix, Slot::of(session).number(), SessionId::of(session))
    }

    /// Where this node is asked to give its slots away.
    pub(super) fn handover(&self, node: &NodeName) -> String {
        format!("{}.node.{}.handover", self.prefix, token(node))
    }

    /// What is said to all nodes of what principals spend.
    pub(super) fn spending(&self) -> String {
        format!("{}.all.spending", self.prefix)
    }

    /// The heartbeats of all nodes.
    pub(super) fn all_alive(&self) -> String {
        format!("{}.alive.*", self.prefix)
    }
}

/// A bucket of keys, each with its last value: a stream as clients of NATS know key-value stores.
#[derive(Clone, Debug)]
pub(super) struct Bucket(String);

impl Bucket {
    /// Its stream.
    pub(super) fn stream(&self) -> String {
        format!("KV_{}", self.0)
    }

    /// The subject of a key; `*` stands for all of them, `>` for what the stream has.
    pub(super) fn key(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.0)
    }
}

/// A node's name as a token, and as a key: what is no letter, digit, `_` or `-` is `=` and two digits.
pub(super) fn token(node: &NodeName) -> String {
    let text = node.as_str();
    if text.is_empty() {
        return "=".to_owned();
    }
    text.bytes().fold(String::with_capacity(text.len()), |mut token, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => token.push(byte.into()),
            _ => drop(write!(token, "={byte:02X}")),
        }
        token
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subjects_stay_as_they_are() {
        let names = Names::new("clawmux").unwrap();
        let subjects = names.of(1);
        let session = SessionKey::parse("main:websocket:ada:main").unwrap();
        let slot = Slot::of(&session);
        assert_eq!(subjects.live(&session), "clawmux.live.228.e41824f2ab516549e0639172ced548ab");
        let session = subjects.session(&session, slot);
        assert_eq!(session, "clawmux.log.s.228.e41824f2ab516549e0639172ced548ab");
        assert_eq!(subjects.table("jobs"), "clawmux.log.t.jobs");
        assert_eq!(subjects.table_of("clawmux.log.t.jobs"), Some("jobs"));
        assert!(subjects.table_of("clawmux.log.t.cats").is_none() && subjects.table_of(&session).is_none());
        assert_eq!(subjects.guard(&[0, 255]), "clawmux.log.k.00ff");
        assert_eq!(subjects.followed(), ["clawmux.log.s.>", "clawmux.log.t.>"]);
        assert_eq!(
            (subjects.blob_stream(), subjects.blobs()),
            ("clawmux_BLOBS".into(), "clawmux.blob.>".into())
        );
        assert!(subjects.blob(&Blob::of(b"x"), "3").starts_with("clawmux.blob.2d711642"));
        assert!(subjects.blob(&Blob::of(b"x"), "3").ends_with("4881.3"));
        assert_eq!(subjects.slots().stream(), "KV_clawmux_slots");
        assert_eq!(subjects.nodes().key("a"), "$KV.clawmux_nodes.a");
        assert_eq!(subjects.alive(&NodeName::new("a.b c*")), "clawmux.alive.a=2Eb=20c=2A");
        assert_eq!(subjects.alive(&NodeName::new("")), "clawmux.alive.=");
        assert_eq!(subjects.questions(&NodeName::new("a.b")), "clawmux.node.a=2Eb");
        assert_eq!(subjects.spending(), "clawmux.all.spending");
        assert_eq!(names.of(12).log(), "clawmux--12.log.>");
        assert_eq!(names.of(12).slots().stream(), "KV_clawmux--12_slots");
        assert_eq!((names.base_stream(), names.base()), ("clawmux_BASE".into(), "clawmux.base.>".into()));
        assert_eq!(names.chunk(12, "7"), "clawmux.base.c.12.7");
    }

    #[test]
    fn a_name_that_would_be_another_subject_is_refused() {
        for name in ["", "a.b", "a b", "*", ">", "ä", "a--2", &"a".repeat(33)] {
            assert!(Names::new(name).unwrap_err().starts_with("cluster.name: "));
        }
    }

    proptest! {
        #[test]
        fn every_node_has_a_token_of_its_own(one in any::<String>(), other in any::<String>()) {
            let tokens = [&one, &other].map(|name| token(&NodeName::new(name.as_str())));
            prop_assert_eq!(one == other, tokens[0] == tokens[1]);
            prop_assert!(!tokens[0].is_empty() && !tokens[0].contains(['.', '*', '>', ' ', '$']));
        }
    }
}
