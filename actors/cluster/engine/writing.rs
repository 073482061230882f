//! Publishes with the last sequence of their subject expected, and what the stream said to each.
//!
//! The headers are written here and not by the client's JetStream, since what matters is the number of the
//! error, and a batch has no other way. A batch is a guard and a record: both are there or none. It goes out
//! over one connection, so the two must not be cut apart by another server: then the batch is incomplete, and
//! nothing of it is written.
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
        if let Some(too_large) = too_large(&record) {
            return too_large;
        }
        self.within(&self.publishes, self.put(subject, Some(expected.0), record, HeaderMap::new())).await
    }

    /// Writes a record and the guard of its key, or none of the two: where `expected` is the last sequence of
    /// the record's subject, and the key has no guard. A guard is there for a day. The place is that of the
    /// record.
    ///
    /// At most so many as a server takes are on their way at once, divided by the nodes; others wait.
    pub async fn publish_guarded(
        &self,
        guard: (&str, Bytes),
        subject: &str,
        expected: Sequence,
        record: Bytes,
    ) -> Published {
        let (key, guard) = guard;
        if let Some(too_large) = too_large(&guard).or_else(|| too_large(&record)) {
            return too_large;
        }
        let both = async {
            let id = hex(&clock::random());
            let mut first = of_batch(&id, "1");
            first.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(0_u64));
            first.insert(header::NATS_MESSAGE_TTL, format!("{}s", GUARD.as_secs()));
            if let Err(error) = self.nats.client.publish_with_headers(key.to_owned(), first, guard).await {
                return Published::Unknown(one_line(&error));
            }
            let mut last = of_batch(&id, "2");
            last.insert(header::NATS_BATCH_COMMIT, header::NATS_BATCH_COMMIT_FINAL);
            self.put(subject, Some(expected.0), record, last).await
        };
        self.within(&self.batches, both).await
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
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(expected));
    }
    let request = Request::new().headers(headers).payload(payload).timeout(Some(ANSWER_MAX));
    match nats.client.send_request(subject.to_owned(), request).await {
        Ok(answer) => Published::of(&answer.payload),
        Err(error) => Published::Unknown(format!("the log does not answer: {}", one_line(&error))),
    }
}

fn of_batch(id: &str, nth: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::NATS_BATCH_ID, id);
    headers.insert(header::NATS_BATCH_SEQUENCE, nth);
    headers
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
