//! Messages that could not be taken: their stream, and what operators do with them.

use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::{HeaderMap, HeaderName};
use clawmux_core::bus::header;
use clawmux_core::bus::subject::dead_subject_of;
use clawmux_core::daemon::operator::{DeadLetter, DeadLettersAsked};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::time::Timestamp;

use super::intake::Delivery;
use crate::nats::{Nats, one_line};

/// So many are replayed or dropped at once: who has more asks again.
const SETTLED_MAX: usize = 1000;

/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// What a message becomes that can't be taken: the same, with why.
pub(super) fn letter(delivery: &Delivery, seq: u64, why: &str) -> (String, PublishMessage) {
    let message = &delivery.message;
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        // Its id is that of the message that could not be taken; what else is the server's is about that one, too.
        if !is_of_server(name) {
            values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
        }
    }
    let reason: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    headers.insert(header::REASON, reason);
    headers.insert(header::SUBJECT, message.subject.as_str());
    headers.insert(header::ID, delivery.id.as_str());
    headers.insert(header::DELIVERIES, delivery.deliveries.to_string().as_str());
    let stream = message.info().map(|info| info.stream.to_owned()).unwrap_or_default();
    let publish = PublishMessage::build()
        .payload(message.payload.clone())
        .headers(headers)
        .message_id(format!("dead-{stream}-{seq}-{}", delivery.id));
    (dead_subject_of(&message.subject), publish)
}

/// Writes it.
///
/// # Errors
/// That it is not known to be written.
pub(super) async fn bury(nats: &Nats, subject: String, publish: PublishMessage) -> Result<(), &'static str> {
    let sent = nats.jetstream.send_publish(subject, publish).await;
    let written = match sent {
        Ok(acknowledged) => acknowledged.await.map(drop),
        Err(error) => Err(error),
    };
    written.map_err(|error| {
        tracing::debug!(error = ?one_line(&error), "bus: a dead letter was not written");
        "the stream of dead letters does not take it"
    })
}

/// Does what is asked, and answers with those that it was done to.
///
/// # Errors
/// `NotFound` where there is none of this number; `Unavailable` where the servers do not answer.
pub(super) async fn answer(
    nats: &Nats,
    stream: &Stream,
    asked: DeadLettersAsked,
) -> Result<Vec<DeadLetter>, Error> {
    match asked {
        DeadLettersAsked::List { after, limit } => {
            let found = read_on(stream, after, limit).await?;
            Ok(found.iter().map(|message| described(message, false)).collect())
        }
        DeadLettersAsked::Show(seq) => Ok(vec![described(&one(stream, seq).await?, true)]),
        DeadLettersAsked::Replay(which) => {
            let mut replayed = Vec::new();
            for message in these(stream, which).await? {
                replay(nats, &message).await?;
                remove(stream, message.sequence).await?;
                replayed.push(described(&message, false));
            }
            Ok(replayed)
        }
        DeadLettersAsked::Drop(which) => {
            let mut dropped = Vec::new();
            for message in these(stream, which).await? {
                remove(stream, message.sequence).await?;
                dropped.push(described(&message, false));
            }
            Ok(dropped)
        }
    }
}

async fn these(stream: &Stream, which: Option<u64>) -> Result<Vec<StreamMessage>, Error> {
    match which {
        Some(seq) => Ok(vec![one(stream, seq).await?]),
        None => read_on(stream, 0, SETTLED_MAX).await,
    }
}

fn away(error: &dyn std::error::Error) -> Error {
    ErrorCode::Unavailable.error(format!("the stream of dead letters: {}", one_line(error)))
}

async fn one(stream: &Stream, seq: u64) -> Result<StreamMessage, Error> {
    stream.get_raw_message(seq).await.map_err(|error| match error.kind() {
        LastRawMessageErrorKind::NoMessageFound => ErrorCode::NotFound
            .error(format!("there is no dead letter {seq}: `clawmux bus dlq list` lists them")),
        _ => away(&error),
    })
}

/// The first that come after this number.
async fn read_on(stream: &Stream, after: u64, limit: usize) -> Result<Vec<StreamMessage>, Error> {
    let (mut found, mut next) = (Vec::new(), after.saturating_add(1));
    while found.len() < limit {
        match stream.get_first_raw_message_by_subject(">", next).await {
            Ok(message) => {
                next = message.sequence.saturating_add(1);
                found.push(message);
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => break,
            Err(error) => return Err(away(&error)),
        }
    }
    Ok(found)
}

fn is_named(name: &HeaderName, as_this: &str) -> bool {
    name.to_string().eq_ignore_ascii_case(as_this)
}

/// Whether a header is the server's own: about the message as it was published.
fn is_of_server(name: &HeaderName) -> bool {
    name.to_string().starts_with("Nats-")
}

fn header_of<'a>(message: &'a StreamMessage, name: &str) -> Option<&'a str> {
    message.headers.get(name).map(async_nats::HeaderValue::as_str)
}

/// Publishes it again where it came from, under an id that the server has not seen.
async fn replay(nats: &Nats, message: &StreamMessage) -> Result<(), Error> {
    let subject = header_of(message, header::SUBJECT).unwrap_or_default().to_owned();
    if subject.is_empty() {
        let why = format!(
            "dead letter {} does not say where it came from: it can only be dropped",
            message.sequence
        );
        return Err(ErrorCode::InvalidRequest.error(why));
    }
    let nth = header_of(message, header::REPLAY).and_then(|nth| nth.parse::<u64>().ok()).unwrap_or(0) + 1;
    let id = header_of(message, header::ID).unwrap_or_default();
    let id = id.split("#replay-").next().unwrap_or_default().to_owned();
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter() {
        let is_ours = [header::REASON, header::SUBJECT, header::ID, header::DELIVERIES, header::REPLAY]
            .iter()
            .any(|ours| is_named(name, ours));
        if !is_ours && !is_of_server(name) {
            values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
        }
    }
    headers.insert(header::REPLAY, nth.to_string().as_str());
    let publish = PublishMessage::build()
        .payload(message.payload.clone())
        .headers(headers)
        .message_id(format!("{id}#replay-{nth}"));
    let sent = nats.jetstream.send_publish(subject, publish).await.map_err(|error| away(&error))?;
    sent.await.map(drop).map_err(|error| away(&error))
}

async fn remove(stream: &Stream, seq: u64) -> Result<(), Error> {
    stream.delete_message(seq).await.map(drop).map_err(|error| away(&error))
}

fn described(message: &StreamMessage, is_whole: bool) -> DeadLetter {
    let text = |name: &str| header_of(message, name).unwrap_or_default().to_owned();
    let millis = u64::try_from(message.time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    let headers = message.headers.iter().flat_map(|(name, values)| {
        values.iter().map(move |value| (name.to_string(), value.as_str().to_owned()))
    });
    DeadLetter {
        seq: message.sequence,
        subject: text(header::SUBJECT),
        id: text(header::ID),
        reason: text(header::REASON),
        deliveries: text(header::DELIVERIES).parse().unwrap_or(0),
        at: Timestamp::from_millis(millis),
        bytes: message.payload.len(),
        payload: is_whole.then(|| message.payload.to_vec()),
        headers: if is_whole { headers.collect() } else { Vec::new() },
    }
}
