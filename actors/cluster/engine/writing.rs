//! Publishes with the last sequence of their subject expected, and what the stream said to each.
//!
//! The headers are written here and not by the client's JetStream, since what matters is the number of the
//! error, and a batch has no other way. A batch is a guard and a record, or those of several sessions ([`groups`](super::groups)):
//! all are there or none. It goes out over one connection, so it must not be cut apart by another server: then the
//! batch is incomplete, and nothing of it is written.
//!
//! Codes that say for sure that nothing was written, and that it may be tried again, are
//! [`Published::Transient`]. All that is not known here is [`Published::Unknown`], with the words of the
//! server.

use std::time::Duration;

use async_nats::{HeaderMap, HeaderValue, Request, header};
use bytes::Bytes;
use clawmux_core::cluster::stamp::Sequence;
use clawmux_core::hex::hex;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::groups::Entry;
use super::{ANSWER_MAX, Engine, RECORD_BYTES_MAX, no_answer};
use crate::nats::{Nats, one_line};
use crate::runtime::clock;

/// How long a guard keeps others of its key away.
const GUARD: Duration = Duration::from_secs(24 * 3600);

/// An expectation does not hold.
const WRONG_LAST: u64 = 10071;

/// Another write of the subject is on its way, and is not applied yet.
const WRONG_LAST_FOR_NOW: u64 = 10164;

/// The first part of a batch is not there: the connection or the leader changed between the two.
const INCOMPLETE: u64 = 10176;

/// There are too many batches at once.
const TOO_MANY_BATCHES: u64 = 10210;

/// What became of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is in the log, at this place.
    Acked(Sequence),
    /// It was refused for the moment, and is not written. The same again may be accepted.
    Transient,
    /// An expectation does not hold. This says nothing by itself: it may be a copy of this one that was
    /// faster.
    Refused,
    /// It may have been written, or may be written later, or not. Why that is not known.
    Unknown(String),
}

/// Why records that were published together are not known to be in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotWritten {
    /// The log says so of all of them, perhaps because of one.
    Refused(Published),
    /// There was no answer. Why that is.
    Unanswered(String),
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    seq: u64,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Published {
    fn of(answer: &[u8]) -> Self {
        match serde_json::from_slice(answer) {
            Ok(Answer { error: None, seq }) if seq > 0 => Self::Acked(Sequence(seq)),
            Ok(Answer { error: Some(error), .. }) => match error.err_code {
                WRONG_LAST => Self::Refused,
                WRONG_LAST_FOR_NOW | INCOMPLETE | TOO_MANY_BATCHES => Self::Transient,
                code => Self::Unknown(format!("the log takes nothing: {} ({code})", error.description)),
            },
            Ok(_) | Err(_) => Self::Unknown("the answer to a publish can't be read".to_owned()),
        }
    }
}

impl Engine {
    /// Writes a record where `expected` is the last sequence of its subject, 0 being an empty one.
    pub async fn publish(&self, subject: &str, expected: Sequence, record: Bytes) -> Published {
        self.write(None, subject, expected, record).await
    }

    /// Writes a record and the guard of its key, or none of the two: where `expected` is the last sequence of
    /// the record's subject, and the key has no guard. A guard is there for a day. The place is that of the
    /// record.
    pub async fn publish_guarded(
        &self,
        guard: (&str, Bytes),
        subject: &str,
        expected: Sequence,
        record: Bytes,
    ) -> Published {
        let (key, guard) = guard;
        self.write(Some((key.to_owned(), guard)), subject, expected, record).await
    }

    async fn write(
        &self,
        guard: Option<(String, Bytes)>,
        subject: &str,
        expected: Sequence,
        record: Bytes,
    ) -> Published {
        let too_large = guard.iter().map(|(_, guard)| guard).chain([&record]).find_map(too_large);
        if let Some(too_large) = too_large {
            return too_large;
        }
        let entry = Entry { guard, subject: subject.to_owned(), expected: expected.0, record };
        self.within(&self.publishes, self.write_in_group(entry)).await
    }

    /// Publishes these, each with the guard of its key: all of them, or none. Gives the place of each.
    pub(super) async fn put_together(&self, entries: &[&Entry]) -> Result<Vec<Sequence>, NotWritten> {
        let (mut messages, mut places) = (Vec::with_capacity(2 * entries.len()), Vec::new());
        for entry in entries {
            if let Some((key, guard)) = &entry.guard {
                let mut headers = expecting(0);
                headers.insert(header::NATS_MESSAGE_TTL, format!("{}s", GUARD.as_secs()));
                messages.push((key, headers, guard));
            }
            places.push(messages.len() as u64);
            messages.push((&entry.subject, expecting(entry.expected), &entry.record));
        }
        let Some((subject, mut last, payload)) = messages.pop() else { return Ok(Vec::new()) };
        let before = messages.len();
        if before > 0 {
            let id = hex(&clock::random());
            for (nth, (subject, mut headers, payload)) in messages.into_iter().enumerate() {
                add_to_batch(&mut headers, &id, nth + 1);
                let client = &self.nats.client;
                let sent = client.publish_with_headers(subject.clone(), headers, payload.clone()).await;
                sent.map_err(|error| NotWritten::Unanswered(one_line(&error)))?;
            }
            add_to_batch(&mut last, &id, before + 1);
            last.insert(header::NATS_BATCH_COMMIT, header::NATS_BATCH_COMMIT_FINAL);
        }
        match send(&self.nats, subject, payload.clone(), last).await {
            // Nothing comes between those of a batch.
            Ok(Published::Acked(Sequence(last))) => {
                let first = last.saturating_sub(before as u64);
                Ok(places.into_iter().map(|place| Sequence(first + place)).collect())
            }
            Ok(said) => Err(NotWritten::Refused(said)),
            Err(why) => Err(NotWritten::Unanswered(why)),
        }
    }

    /// Publishes one message; with no expectation, where none is given.
    pub(super) async fn put(
        &self,
        subject: &str,
        expected: Option<u64>,
        payload: Bytes,
        headers: HeaderMap,
    ) -> Published {
        put(&self.nats, subject, expected, payload, headers).await
    }

    /// Does it once there is room, within [`ANSWER_MAX`] in all.
    pub(super) async fn within(&self, room: &Semaphore, put: impl Future<Output = Published>) -> Published {
        if let Err(why) = self.connected() {
            return Published::Unknown(why);
        }
        let in_turn = async {
            match room.acquire().await {
                Ok(_turn) => put.await,
                Err(_) => Published::Unknown("the engine is closed".to_owned()),
            }
        };
        timeout(ANSWER_MAX, in_turn).await.unwrap_or_else(|_| Published::Unknown(no_answer()))
    }
}

/// Publishes one message; with no expectation, where none is given.
pub(super) async fn put(
    nats: &Nats,
    subject: &str,
    expected: Option<u64>,
    payload: Bytes,
    mut headers: HeaderMap,
) -> Published {
    if let Some(expected) = expected {
        expect(&mut headers, expected);
    }
    send(nats, subject, payload, headers).await.unwrap_or_else(Published::Unknown)
}

/// Publishes one message.
///
/// # Errors
/// Why there was no answer.
async fn send(nats: &Nats, subject: &str, payload: Bytes, headers: HeaderMap) -> Result<Published, String> {
    let request = Request::new().headers(headers).payload(payload).timeout(Some(ANSWER_MAX));
    match nats.client.send_request(subject.to_owned(), request).await {
        Ok(answer) => Ok(Published::of(&answer.payload)),
        Err(error) => Err(format!("the log does not answer: {}", one_line(&error))),
    }
}

fn expect(headers: &mut HeaderMap, last: u64) {
    headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(last));
}

fn expecting(last: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    expect(&mut headers, last);
    headers
}

fn add_to_batch(headers: &mut HeaderMap, id: &str, nth: usize) {
    headers.insert(header::NATS_BATCH_ID, id);
    headers.insert(header::NATS_BATCH_SEQUENCE, HeaderValue::from(nth));
}

fn too_large(payload: &Bytes) -> Option<Published> {
    let bytes = payload.len();
    (bytes > RECORD_BYTES_MAX).then(|| {
        let why = format!("a record of {bytes} bytes is not written: {RECORD_BYTES_MAX} are the most");
        Published::Unknown(why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_is_known_and_no_more() {
        let of = |answer: &str| Published::of(answer.as_bytes());
        assert_eq!(of(r#"{"stream":"T","seq":5,"batch":"b1","count":2}"#), Published::Acked(Sequence(5)));
        let error = |code| of(&format!(r#"{{"error":{{"code":400,"err_code":{code}}},"seq":0}}"#));
        assert_eq!([error(10071), error(10164)], [Published::Refused, Published::Transient]);
        assert_eq!([error(10176), error(10210)], [Published::Transient, Published::Transient]);
        assert!(matches!(error(10077), Published::Unknown(why) if why.contains("10077")));
        for answer in ["", "{}", r#"{"seq":0}"#, "+ACK"] {
            assert!(matches!(of(answer), Published::Unknown(_)), "{answer}");
        }
    }
}
