//! What a subject has, whose a guard is, how far the log reaches.
//!
//! A subject is read by one request that is answered by many messages. Each says which one came before it,
//! and an end says which was the last: where one is missing, the read ends before it. So what is read is a
//! prefix of what is there, as of some moment in the past. Any replica answers.

use std::pin::pin;
use std::time::Duration;

use async_nats::jetstream::stream::{LastRawMessageErrorKind, PeerInfo};
use async_nats::{HeaderMap, Message, StatusCode, header};
use bytes::Bytes;
use clawmux_core::cluster::stamp::Sequence;
use futures::StreamExt as _;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, timeout_at};

use super::{ANSWER_MAX, Engine, no_answer};
use crate::nats::one_line;

/// The most bytes that one read brings, give or take a record.
const READ_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How far the log reaches, as its leader says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first place that still has a record; one more than the last where there is none.
    pub first: Sequence,
    /// The last place that was given out, whether it still has a record or not; 0 where none was.
    pub last: Sequence,
    /// What is there, in bytes.
    pub bytes: u64,
    /// How many records are there.
    pub records: u64,
}

/// Followers are heard once a second: one that was not for so long is away. The leader says so itself after a quarter
/// of a minute.
const AWAY: Duration = Duration::from_secs(5);

/// The servers that have the log, as its leader says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogServers {
    /// The leader; none where the server is no part of a cluster.
    pub leader: Option<String>,
    /// The others.
    pub followers: Vec<LogServer>,
}

impl LogServers {
    /// Those that are away.
    pub fn away(&self) -> Vec<&str> {
        self.followers.iter().filter(|server| server.is_offline).map(|server| &*server.name).collect()
    }

    /// The same, where too many are for anything to be written; else none.
    pub fn most_are_away(&self) -> Vec<&str> {
        let (away, all) = (self.away(), self.followers.len() + 1);
        if 2 * away.len() >= all { away } else { Vec::new() }
    }
}

/// A server that has the log and does not lead it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogServer {
    /// Its name.
    pub name: String,
    /// Whether it has what the leader has.
    pub is_current: bool,
    /// Whether it is away.
    pub is_offline: bool,
    /// What it lacks, in records.
    pub lag: u64,
}

/// A message as it is stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
}

impl Engine {
    /// What the subject has after this place: at most `max` records, in order. It may be too little, and what
    /// is left out is always at the end.
    ///
    /// # Errors
    /// Where nothing can be said, not even a part.
    pub async fn read_since(
        &self,
        subject: &str,
        after: Sequence,
        max: usize,
    ) -> Result<Vec<(Sequence, Bytes)>, String> {
        let asked = json!({
            "seq": after.0.saturating_add(1),
            "next_by_subj": subject,
            "batch": max.max(1),
            "max_bytes": READ_BYTES_MAX,
        });
        let (found, _) = self.direct(&self.subjects.log_stream(), &asked).await?;
        Ok(found.into_iter().map(|stored| (Sequence(stored.sequence), stored.payload)).collect())
    }

    /// The guard under this subject, as the leader of the log has it; none where there is none.
    ///
    /// # Errors
    /// Where the leader does not answer.
    pub async fn read_guard(&self, subject: &str) -> Result<Option<Bytes>, String> {
        let asked = async {
            let log = self.nats.jetstream.get_stream_no_info(self.subjects.log_stream()).await;
            let log = log.map_err(|error| one_line(&error))?;
            match log.get_last_raw_message_by_subject(subject).await {
                Ok(guard) => Ok(Some(guard.payload)),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(one_line(&error)),
            }
        };
        self.in_time(asked).await
    }

    /// How far the log reaches, as its leader says.
    ///
    /// # Errors
    /// Where the leader does not answer.
    pub async fn extent(&self) -> Result<Extent, String> {
        self.look().await.map(|(extent, _)| extent)
    }

    /// How far the log reaches, and which servers have it.
    ///
    /// # Errors
    /// Where the leader does not answer.
    pub async fn look(&self) -> Result<(Extent, LogServers), String> {
        let asked = async {
            let log = self.nats.jetstream.get_stream(self.subjects.log_stream()).await;
            log.map_err(|error| one_line(&error))
        };
        let log = self.in_time(asked).await?;
        let info = log.cached_info();
        let state = &info.state;
        let extent = Extent {
            first: Sequence(state.first_sequence),
            last: Sequence(state.last_sequence),
            bytes: state.bytes,
            records: state.messages,
        };
        // Any server answers then, with what it knew last.
        if info.cluster.as_ref().is_some_and(|cluster| cluster.leader.is_none()) {
            return Err("no server leads it: most of those that have it are away".to_owned());
        }
        let servers = info.cluster.as_ref().map(|cluster| LogServers {
            leader: cluster.leader.clone(),
            followers: followers(&cluster.replicas),
        });
        Ok((extent, servers.unwrap_or_default()))
    }

    /// The answer, where it comes within [`ANSWER_MAX`].
    pub(super) async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        self.connected()?;
        tokio::time::timeout(ANSWER_MAX, asked).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Reads several messages of a stream from any replica, by one request, and says whether that is all of
    /// them.
    pub(super) async fn direct(&self, stream: &str, asked: &Json) -> Result<(Vec<Stored>, bool), String> {
        self.connected()?;
        let until = Instant::now() + ANSWER_MAX;
        let client = &self.nats.client;
        let asking = async {
            let inbox = client.new_inbox();
            let answers = client.subscribe(inbox.clone()).await.map_err(|error| one_line(&error))?;
            let subject = format!("$JS.API.DIRECT.GET.{stream}");
            let sent = client.publish_with_reply(subject, inbox, asked.to_string().into()).await;
            sent.map(|()| answers).map_err(|error| one_line(&error))
        };
        let answers = timeout_at(until, asking).await.unwrap_or_else(|_| Err(no_answer()))?;
        let (mut answers, mut found) = (pin!(answers), Vec::new());
        loop {
            let Ok(answer) = timeout_at(until, answers.next()).await else {
                return partly(found, no_answer());
            };
            let Some(answer) = answer else { return partly(found, "the connection is closed".to_owned()) };
            match answer.status {
                None | Some(StatusCode::OK) => {}
                Some(status) => return ended(found, &answer, status),
            }
            let Some(sequence) = number(&answer, &header::NATS_SEQUENCE) else {
                return partly(found, "an answer of the log says no place".to_owned());
            };
            if !follows(&found, &answer) {
                return partly(found, "an answer of the log went missing".to_owned());
            }
            let headers = answer.headers.unwrap_or_default();
            found.push(Stored { sequence, headers, payload: answer.payload });
        }
    }
}

/// What the leader says of those that follow it. One that it never heard, while it heard others, was away before it led.
fn followers(peers: &[PeerInfo]) -> Vec<LogServer> {
    let hears = peers.iter().any(|peer| !peer.active.is_zero());
    let is_offline = |peer: &PeerInfo| {
        peer.offline || peer.active >= AWAY || (hears && !peer.current && peer.active.is_zero())
    };
    let follower = |peer: &PeerInfo| LogServer {
        name: peer.name.clone(),
        is_current: peer.current,
        is_offline: is_offline(peer),
        lag: peer.lag.unwrap_or(0),
    };
    peers.iter().map(follower).collect()
}

/// Whether a message is the next after those that were found; of the first nothing is known.
fn follows(found: &[Stored], answer: &Message) -> bool {
    let Some(last) = found.last() else { return number(answer, &header::NATS_LAST_SEQUENCE) == Some(0) };
    number(answer, &header::NATS_LAST_SEQUENCE) == Some(last.sequence)
}

fn ended(found: Vec<Stored>, answer: &Message, status: StatusCode) -> Result<(Vec<Stored>, bool), String> {
    match status.as_u16() {
        // Its end.
        204 if follows(&found, answer) => {
            let pending = answer.headers.as_ref().and_then(|headers| headers.get("Nats-Num-Pending"));
            let is_all = pending.is_none_or(|pending| pending.as_str() == "0");
            Ok((found, is_all))
        }
        204 => partly(found, "an answer of the log went missing".to_owned()),
        // There is nothing.
        404 if found.is_empty() => Ok((found, true)),
        503 => partly(found, "no replica of the log answers".to_owned()),
        code => {
            let said = answer.description.as_deref().unwrap_or_default();
            partly(found, format!("the log can't be read: {said} ({code})"))
        }
    }
}

/// A beginning is as good as a stale read, but for one that is empty for a reason.
fn partly(found: Vec<Stored>, why: String) -> Result<(Vec<Stored>, bool), String> {
    if found.is_empty() { Err(why) } else { Ok((found, false)) }
}

fn number(message: &Message, name: &header::HeaderName) -> Option<u64> {
    message.headers.as_ref()?.get_last(name.clone())?.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, current: bool, active_ms: u64) -> PeerInfo {
        let active = Duration::from_millis(active_ms);
        PeerInfo { name: name.to_owned(), current, active, offline: false, lag: None }
    }

    fn away(peers: &[PeerInfo]) -> Vec<String> {
        let servers = LogServers { leader: Some("a".to_owned()), followers: followers(peers) };
        servers.away().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn who_was_not_heard_for_long_or_never_while_others_were_is_away() {
        assert!(away(&[peer("b", true, 300), peer("c", true, 900)]).is_empty());
        assert!(away(&[peer("b", true, 300), peer("c", false, 4900)]).is_empty(), "it may be slow");
        assert_eq!(away(&[peer("b", true, 300), peer("c", false, 5000)]), ["c"]);
        assert_eq!(away(&[peer("b", true, 300), peer("c", false, 0)]), ["c"]);
        // A moment after it began to lead.
        assert!(away(&[peer("b", false, 0), peer("c", false, 0)]).is_empty());
    }
}
