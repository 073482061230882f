//! Heartbeats: each node says to all that it is alive, by messages that are not stored.
//!
//! One that can't be sent at once is not sent: a heartbeat that waited in a buffer says nothing. One that
//! gets lost is followed by the next.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_nats::Subscriber;
use clawmux_core::cluster::node::{Epoch, Heartbeat, Incarnation, NodeName, NodeState};
use clawmux_core::cluster::ownership::slots::BEAT_MS;
use clawmux_core::hex::{from_hex, hex};
use clawmux_core::replica::digest::Digest;
use futures::{Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::Engine;
use crate::nats::one_line;

/// How long it may take until a heartbeat is on its way.
const SENT_WITHIN: Duration = Duration::from_millis(250);

/// How long it is listened whether a node is there.
const LISTENS: Duration = Duration::from_millis(2 * BEAT_MS + 200);

#[derive(Serialize, Deserialize)]
struct BeatValue {
    node: String,
    epoch: u64,
    state: StateValue,
    #[serde(default)]
    hears: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    applied: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// One that does not say reads the first version.
    #[serde(default = "first_version")]
    reads: u32,
}

fn first_version() -> u32 {
    1
}

/// A heartbeat, how far the store of its node is, and what it can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// What it says of itself.
    pub heartbeat: Heartbeat,
    /// The last record that its store has, and the chain over all records up to it; none where it does not say.
    pub at: Option<(u64, Digest)>,
    /// The latest version of records that it reads.
    pub reads: u32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StateValue {
    Joining,
    Live,
    Draining,
}

/// Heartbeats of other nodes, as they come, without an end. Those of the node that joined by this
/// engine are left out.
#[derive(Debug)]
pub struct Heartbeats {
    messages: Subscriber,
    me: Arc<OnceLock<NodeName>>,
}

impl Engine {
    /// Sends a heartbeat, with how far the node's store is, and does not know who hears it.
    ///
    /// # Errors
    /// Where it can't be sent now.
    pub async fn beat(&self, beat: &Beat) -> Result<(), String> {
        self.connected()?;
        let subject = self.subjects.alive(&beat.heartbeat.from.node);
        let value = serde_json::to_vec(&BeatValue::from(beat)).map_err(|error| error.to_string())?;
        match timeout(SENT_WITHIN, self.nats.client.publish(subject, value.into())).await {
            Ok(sent) => sent.map_err(|error| one_line(&error)),
            Err(_) => Err("too much waits to be sent".to_owned()),
        }
    }

    /// Whether a daemon is there that has joined as this node: it is listened for, for a little more than two heartbeats,
    /// where one ever was.
    ///
    /// # Errors
    /// Where that can't be found out.
    pub async fn is_there(&self, node: &NodeName) -> Result<bool, String> {
        if !self.nodes().await?.iter().any(|known| known.from.node == *node) {
            return Ok(false);
        }
        let mut beats = self.subscribe(self.subjects.alive(node)).await?;
        let heard = timeout(LISTENS, beats.next()).await;
        Ok(matches!(heard, Ok(Some(_))))
    }

    /// Begins to hear the other nodes, as soon as the server knows of it: what is sent in the first moment
    /// may be lost. It goes on over lost connections; what was sent meanwhile is lost, too.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn heartbeats(&self) -> Result<Heartbeats, String> {
        let messages = self.subscribe(self.subjects.all_alive()).await;
        let messages = messages.map_err(|why| format!("other nodes can't be heard: {why}"))?;
        Ok(Heartbeats { messages, me: Arc::clone(&self.me) })
    }
}

/// Who sent a heartbeat; nobody where it is none.
pub(super) fn sender(beat: &[u8]) -> Option<NodeName> {
    Some(NodeName::new(serde_json::from_slice::<BeatValue>(beat).ok()?.node))
}

impl Stream for Heartbeats {
    type Item = Beat;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(message) = ready!(Pin::new(&mut self.messages).poll_next(context)) else {
                return Poll::Ready(None);
            };
            match serde_json::from_slice::<BeatValue>(&message.payload) {
                Ok(beat) if self.me.get().is_some_and(|me| beat.node == me.as_str()) => {}
                Ok(beat) => {
                    let beat = Beat::from(beat);
                    if beat.heartbeat.is_bounded() {
                        return Poll::Ready(Some(beat));
                    }
                }
                Err(error) => {
                    let (subject, error) = (message.subject.as_str(), error.to_string());
                    tracing::debug!(subject, error = ?error, "cluster: no heartbeat");
                }
            }
        }
    }
}

impl From<&Beat> for BeatValue {
    fn from(Beat { heartbeat: beat, at, reads }: &Beat) -> Self {
        Self {
            node: beat.from.node.to_string(),
            epoch: beat.from.epoch.0,
            state: match beat.state {
                NodeState::Joining => StateValue::Joining,
                NodeState::Live => StateValue::Live,
                NodeState::Draining => StateValue::Draining,
            },
            hears: beat.hears.iter().map(NodeName::to_string).collect(),
            applied: at.map(|(applied, _)| applied),
            digest: at.map(|(_, digest)| hex(&digest)),
            reads: *reads,
        }
    }
}

impl From<BeatValue> for Beat {
    fn from(beat: BeatValue) -> Self {
        let heartbeat = Heartbeat {
            from: Incarnation { node: NodeName::new(beat.node), epoch: Epoch(beat.epoch) },
            state: match beat.state {
                StateValue::Joining => NodeState::Joining,
                StateValue::Live => NodeState::Live,
                StateValue::Draining => NodeState::Draining,
            },
            hears: beat.hears.into_iter().map(NodeName::new).collect(),
        };
        let at = beat.applied.zip(beat.digest.as_deref().and_then(from_hex));
        Self { heartbeat, at, reads: beat.reads }
    }
}
