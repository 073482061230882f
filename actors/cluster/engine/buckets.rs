//! Nodes join, slots are read and written: two buckets, of each key its last value.
//!
//! A bucket is a stream, and is used as one: a key's revision is the sequence of its last message, a write
//! with an expectation is a publish with one, all keys are read by one request. Clients of NATS read the same
//! buckets as key-value stores (`nats kv get clawmux_slots 7`).
//!
//! Values are JSON by named fields. A field that is not known is passed over; a value that can't be read is
//! left out, for a later version may have written it. A key that an operator has deleted is a slot that is
//! free.

use async_nats::HeaderMap;
use bytes::Bytes;
use clawmux_core::cluster::node::{Epoch, Incarnation, NodeName};
use clawmux_core::cluster::ownership::slots::{Claim, Entry};
use clawmux_core::cluster::slot::Slot;
use clawmux_core::cluster::stamp::Token;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::reading::Stored;
use super::subjects::token;
use super::{Engine, Published};

/// A node as it joined last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Which of its processes.
    pub from: Incarnation,
    /// What it says of itself: JSON.
    pub about: Bytes,
}

#[derive(Serialize, Deserialize)]
struct NodeValue<'a> {
    node: String,
    #[serde(borrow)]
    about: &'a RawValue,
}

#[derive(Default, Serialize, Deserialize)]
struct ClaimValue {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl Engine {
    /// Writes the node's record, with what it says of itself as JSON. The epoch is higher than that of every
    /// process that joined before.
    ///
    /// # Errors
    /// Where it is not known whether it was written. Joining again is harmless.
    pub async fn join(&self, node: &NodeName, about: Bytes) -> Result<Epoch, String> {
        let about = serde_json::from_slice(&about)
            .map_err(|error| format!("what a node says of itself is no JSON: {error}"))?;
        let value = NodeValue { node: node.as_str().to_owned(), about };
        let value = serde_json::to_vec(&value).map_err(|error| error.to_string())?;
        let key = self.subjects.nodes().key(&token(node));
        let put = self.put(&key, None, value.into(), HeaderMap::new());
        match self.within(&self.publishes, put).await {
            Published::Acked(sequence) => {
                self.me.get_or_init(|| node.clone());
                Ok(Epoch(sequence.0))
            }
            Published::Unknown(why) => Err(why),
            Published::Transient | Published::Refused => Err("the bucket of nodes takes nothing".to_owned()),
        }
    }

    /// The nodes that ever joined, each as it did last, in no order. It may be from the past.
    ///
    /// # Errors
    /// Where they can't be read as a whole.
    pub async fn nodes(&self) -> Result<Vec<Node>, String> {
        let bucket = self.subjects.nodes();
        let stored = self.all_of(&bucket.stream(), &bucket.key("*")).await?;
        let read = |stored: Stored| match serde_json::from_slice::<NodeValue<'_>>(&stored.payload) {
            Ok(NodeValue { node, about }) => Some(Node {
                from: Incarnation { node: NodeName::new(node), epoch: Epoch(stored.sequence) },
                about: about.get().to_owned().into(),
            }),
            Err(error) => {
                let error = error.to_string();
                tracing::debug!(revision = stored.sequence, error, "cluster: no record of a node");
                None
            }
        };
        Ok(stored.into_iter().filter_map(read).collect())
    }

    /// The entries of all slots that have one, in no order, by one request. They may be from the past, but
    /// all of them are from the same moment.
    ///
    /// # Errors
    /// Where they can't be read as a whole.
    pub async fn read_slots(&self) -> Result<Vec<Entry>, String> {
        let bucket = self.subjects.slots();
        let stored = self.all_of(&bucket.stream(), &bucket.key("*")).await?;
        let prefix = bucket.key("");
        Ok(stored.iter().filter_map(|stored| entry(&prefix, stored)).collect())
    }

    /// Writes the entry of a slot where its revision is the expected one, 0 being no entry. None where it was
    /// refused, which says nothing by itself: a copy of this write may have been faster.
    ///
    /// # Errors
    /// Where it is not known whether it was written.
    pub async fn write_slot(
        &self,
        slot: Slot,
        expected: Token,
        claim: &Claim,
    ) -> Result<Option<Token>, String> {
        let value = ClaimValue {
            owner: claim.owner.as_ref().map(|owner| owner.node.to_string()),
            epoch: claim.owner.as_ref().map(|owner| owner.epoch.0),
            next: claim.next.as_ref().map(NodeName::to_string),
        };
        let value = serde_json::to_vec(&value).map_err(|error| error.to_string())?;
        let key = self.subjects.slots().key(&slot.number().to_string());
        let put = self.put(&key, Some(expected.0), value.into(), HeaderMap::new());
        match self.within(&self.publishes, put).await {
            Published::Acked(sequence) => Ok(Some(Token(sequence.0))),
            Published::Refused | Published::Transient => Ok(None),
            Published::Unknown(why) => Err(why),
        }
    }

    /// The last message of each of these subjects.
    async fn all_of(&self, stream: &str, subjects: &str) -> Result<Vec<Stored>, String> {
        match self.direct(stream, &json!({ "multi_last": [subjects] })).await? {
            (all, true) => Ok(all),
            (_, false) => Err(format!("not all of {stream} came")),
        }
    }
}

fn entry(prefix: &str, stored: &Stored) -> Option<Entry> {
    let subject = stored.headers.get_last(async_nats::header::NATS_SUBJECT)?.as_str();
    let slot = subject.strip_prefix(prefix).and_then(|number| {
        let slot: u8 = number.parse().ok()?;
        // As it is written here, or two keys were one slot.
        (slot.to_string() == number).then_some(Slot::new(slot))
    });
    let claim = match stored.headers.get("KV-Operation").is_some() {
        true => Some(Claim::default()),
        false => claim(&stored.payload),
    };
    if slot.is_none() || claim.is_none() {
        tracing::debug!(subject, revision = stored.sequence, "cluster: no entry of a slot");
    }
    Some(Entry { slot: slot?, revision: Token(stored.sequence), claim: claim? })
}

fn claim(value: &[u8]) -> Option<Claim> {
    let ClaimValue { owner, epoch, next } = serde_json::from_slice(value).ok()?;
    let owner = match (owner, epoch) {
        (Some(node), Some(epoch)) => Some(Incarnation { node: NodeName::new(node), epoch: Epoch(epoch) }),
        (None, None) => None,
        _ => return None,
    };
    Some(Claim { owner, next: next.map(NodeName::new) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_read_by_its_names() {
        let owner = Some(Incarnation { node: NodeName::new("a"), epoch: Epoch(7) });
        let read = claim(br#"{"later":[1],"epoch":7,"owner":"a"}"#);
        assert_eq!(read, Some(Claim { owner, next: None }));
        let next = Some(NodeName::new("b"));
        assert_eq!(claim(br#"{"next":"b"}"#), Some(Claim { owner: None, next }));
        assert_eq!(claim(b"{}"), Some(Claim::default()));
        for value in [&b""[..], b"7", br#"{"owner":"a"}"#, br#"{"epoch":7}"#, br#"{"owner":7,"epoch":7}"#] {
            assert_eq!(claim(value), None);
        }
    }
}
