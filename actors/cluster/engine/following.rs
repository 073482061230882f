//! The log from a record on, in order, every record once. Guards of keys are left out: they say nothing for a store.
//!
//! A consumer of one's own for each time it is followed, without acknowledgements, kept in the memory of one
//! server. It numbers what it delivers: where a number is missing, the connection lost something, and
//! following is over. It is over, too, where the server falls silent or the consumer is gone. It is then
//! followed anew from the record that came last, with a pause: a consumer that was left behind is kept for
//! half a minute.
//!
//! The client's ordered consumer is not used: it makes its consumer again by itself, and where that happens
//! before the first record came, it begins with the first of the stream, whatever was asked for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use bytes::Bytes;
use clawmux_core::cluster::stamp::Sequence;
use futures::{Stream, StreamExt as _};
use tokio::time::timeout;

use super::Engine;
use crate::nats::one_line;

/// What may be on its way to us, in records and in bytes.
const AHEAD_MAX: usize = 500;
const AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a request for records stands.
const REQUEST: Duration = Duration::from_secs(10);

/// An idle server says so as often; after twice that it counts as silent.
const HEARTBEAT: Duration = Duration::from_millis(1500);

/// How long a consumer is kept that nobody asks.
const KEPT: Duration = Duration::from_secs(30);

/// How long a record may take to come that is not the last.
const NEXT_MAX: Duration = Duration::from_secs(20);

/// How long records are waited for where the log says that it has none any more: a server may be a little behind the
/// others.
const END_MAX: Duration = Duration::from_secs(5);

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its place. Places in between are those of guards, or empty.
    pub sequence: Sequence,
    /// What it is under.
    pub subject: String,
    /// It as it was published.
    pub record: Bytes,
}

/// The log as it is followed: a stream of records, and of one error at its end. Dropping it loses nothing:
/// what was taken from it is known by its place.
#[derive(Debug)]
pub struct Followed {
    messages: Messages,
    /// The number of the last that the consumer delivered.
    delivered: u64,
    last: Sequence,
    pending: u64,
    is_over: bool,
}

struct Messages(pull::Stream);

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Messages")
    }
}

impl Engine {
    /// Every record of the log after this place but guards, and those that are yet to come. A record of which an owner
    /// heard no acknowledgement comes, too, once a majority has it.
    ///
    /// A place behind the end of the log is waited for: whether the log is shorter than a replica,
    /// [`Engine::extent`] tells.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub async fn follow(&self, after: Sequence) -> Result<Followed, String> {
        let config = pull::Config {
            description: Some("clawmux: a replica".to_owned()),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: after.0.saturating_add(1) },
            filter_subjects: self.subjects.followed(),
            ack_policy: AckPolicy::None,
            inactive_threshold: KEPT,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let begun = async {
            let context = &self.nats.jetstream;
            let consumer = context.create_consumer_on_stream(config, self.subjects.log_stream()).await;
            let consumer = consumer.map_err(|error| one_line(&error))?;
            let pending = consumer.cached_info().num_pending;
            let messages = consumer
                .stream()
                .max_messages_per_batch(AHEAD_MAX)
                .max_bytes_per_batch(AHEAD_BYTES_MAX.max(2 * self.nats.payload_max()))
                .expires(REQUEST)
                .heartbeat(HEARTBEAT)
                .messages()
                .await;
            let messages = Messages(messages.map_err(|error| one_line(&error))?);
            Ok(Followed { messages, delivered: 0, last: after, pending, is_over: false })
        };
        match self.in_time(begun).await {
            Ok(followed) => Ok(followed),
            Err(why) => {
                self.look_whether_superseded().await;
                Err(format!("the log can't be followed: {why}"))
            }
        }
    }

    /// Every record after one place up to another one, and no more where the log has none between the last that came
    /// and there: what was there are guards.
    ///
    /// # Errors
    /// Where it can't be begun; the stream ends with an error where no record comes.
    pub(in crate::cluster) async fn follow_up_to(
        &self,
        after: Sequence,
        last: Sequence,
    ) -> Result<impl Stream<Item = Result<LogRecord, String>>, String> {
        let records = self.follow(after).await?;
        Ok(futures::stream::try_unfold(records, move |mut records| async move {
            let is_at_end = records.pending() == 0;
            let next = async {
                match records.last() < last {
                    true => records.next().await,
                    false => None,
                }
            };
            match timeout(if is_at_end { END_MAX } else { NEXT_MAX }, next).await {
                Ok(Some(record)) => {
                    Ok(Some(record?).filter(|record| record.sequence <= last).map(|record| (record, records)))
                }
                Err(_) if !is_at_end => Err("no record of the log comes".to_owned()),
                Ok(None) | Err(_) => Ok(None),
            }
        }))
    }
}

impl Followed {
    /// The place of the last record that came; at first the one after which it is followed.
    pub fn last(&self) -> Sequence {
        self.last
    }

    /// How many records are after the last one, as far as is known. 0 = the log was read to its end.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    fn record_of(&mut self, message: &async_nats::jetstream::Message) -> Result<LogRecord, String> {
        let info = message.info().map_err(|error| format!("a record of the log says no place: {error}"))?;
        let (nth, sequence, last) = (info.consumer_sequence, info.stream_sequence, self.last.0);
        if nth != self.delivered + 1 || sequence <= last {
            return Err(format!(
                "a record of the log went missing: number {nth} is {sequence}, after {last}"
            ));
        }
        (self.delivered, self.last, self.pending) = (nth, Sequence(sequence), info.pending);
        Ok(LogRecord {
            sequence: self.last,
            subject: message.subject.to_string(),
            record: message.payload.clone(),
        })
    }
}

impl Stream for Followed {
    type Item = Result<LogRecord, String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let taken = match ready!(Pin::new(&mut self.messages.0).poll_next(context)) {
            Some(Ok(message)) => self.record_of(&message),
            Some(Err(error)) => Err(format!("the log falls silent: {}", one_line(&error))),
            None => Err("the log falls silent: its consumer is gone".to_owned()),
        };
        self.is_over = taken.is_err();
        Poll::Ready(Some(taken))
    }
}
