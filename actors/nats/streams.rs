//! The streams of the bus, and the consumer of what comes in.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use clawmux_core::bus::subject::{DEAD_PREFIX, PREFIX};

use super::{NO_ANSWER, Nats, Unusable, one_line};

/// The name of the consumer.
pub(crate) const CONSUMER: &str = "clawmux";

/// How long a message is ours before it is delivered to us again. One that is held is kept alive more often.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(5);

/// So many messages may be delivered and not acknowledged: those that are given back count, too, so a flood of one
/// peer that is longer stops the others.
const ACK_PENDING_MAX: i64 = 100_000;

/// Within this time a message with an id that was there before is dropped by the server.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Replicas of what is made here where the servers are a cluster.
const REPLICAS: usize = 3;

/// The three streams.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    pub(crate) inbound: Stream,
    pub(crate) answers: Stream,
    pub(crate) dead: Stream,
}

/// Looks for the streams, and makes those that are not there where that is wanted.
///
/// # Errors
/// Why they can't be used.
pub(crate) async fn open(nats: &Nats, names: &[String; 3], create: bool) -> Result<Streams, Unusable> {
    let [inbound, answers, dead] = names;
    let base = Config {
        storage: StorageType::File,
        // A full stream refuses what is new: nothing is lost to make room.
        discard: DiscardPolicy::New,
        allow_direct: true,
        max_age: DAY * 7,
        duplicate_window: DUPLICATE_WINDOW,
        num_replicas: replicas(nats),
        ..Config::default()
    };
    let inbound = Config {
        name: inbound.clone(),
        subjects: vec![format!("{PREFIX}.*.*.*")],
        retention: RetentionPolicy::WorkQueue,
        description: Some("clawmux: messages of adapters".to_owned()),
        ..base.clone()
    };
    let answers = Config {
        name: answers.clone(),
        subjects: vec![format!("{PREFIX}.*.*.*.answer")],
        description: Some("clawmux: answers to adapters".to_owned()),
        ..base.clone()
    };
    let dead = Config {
        name: dead.clone(),
        subjects: vec![format!("{DEAD_PREFIX}.>")],
        max_age: DAY * 30,
        description: Some("clawmux: messages that could not be taken".to_owned()),
        ..base
    };
    Ok(Streams {
        inbound: one(nats, inbound, create).await?,
        answers: one(nats, answers, create).await?,
        dead: one(nats, dead, create).await?,
    })
}

/// A cluster tells its clients of its other servers.
fn replicas(nats: &Nats) -> usize {
    let info = nats.client.server_info();
    if info.connect_urls.len() >= REPLICAS { REPLICAS } else { 1 }
}

async fn one(nats: &Nats, wanted: Config, create: bool) -> Result<Stream, Unusable> {
    let name = wanted.name.clone();
    let found = match nats.jetstream.get_stream(&name).await {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(ref why) if why.code() == 404) => {
            if !create {
                return Err(Unusable::refused(format!(
                    "there is no stream {name}, and bus.create = false: make it on file storage, with the subjects {} and \
                     {} retention",
                    wanted.subjects.join(", "),
                    if wanted.retention == RetentionPolicy::WorkQueue { "work queue" } else { "limits" }
                )));
            }
            let made = nats.jetstream.create_stream(&wanted).await;
            made.map_err(|error| {
                let why = one_line(&error);
                // Another stream has its subjects, or it is not allowed to: somebody has to look.
                Unusable {
                    is_refused: why != NO_ANSWER,
                    why: match why.contains("overlap") {
                        true => format!(
                            "the stream {name} can't be made, since another one has its subjects: name that in bus.streams, \
                             for an account has one bus ({why})"
                        ),
                        false => format!("the stream {name} can't be made: {why}"),
                    },
                }
            })?
        }
        Err(error) => {
            return Err(Unusable::away(format!(
                "the stream {name} can't be looked at: {}",
                one_line(&error)
            )));
        }
    };
    let config = &found.cached_info().config;
    let wrong = if config.subjects != wanted.subjects {
        Some(format!("the subjects {}, not {}", config.subjects.join(", "), wanted.subjects.join(", ")))
    } else if config.retention != wanted.retention {
        Some(format!("retention {:?}, not {:?}", config.retention, wanted.retention))
    } else if config.storage != StorageType::File {
        Some("memory as its storage, which a restart of the server empties, not a file".to_owned())
    } else {
        None
    };
    match wrong {
        Some(wrong) => Err(Unusable::refused(format!(
            "the stream {name} has {wrong}: delete it, and it is made anew, or name others in bus.streams"
        ))),
        None => Ok(found),
    }
}

/// When a stream was made, in nanoseconds since 1970.
pub(crate) fn made(stream: &Stream) -> i64 {
    i64::try_from(stream.cached_info().created.unix_timestamp_nanos()).unwrap_or(i64::MAX)
}

/// The consumer of what comes in.
///
/// # Errors
/// Why there is none.
pub(crate) async fn consumer(stream: &Stream) -> Result<Consumer<pull::Config>, Unusable> {
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        description: Some("clawmux".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: ACK_PENDING_MAX,
        ..pull::Config::default()
    };
    let made = stream.create_consumer(config).await;
    made.map_err(|error| {
        Unusable::away(format!("the consumer {CONSUMER} can't be had: {}", one_line(&error)))
    })
}
