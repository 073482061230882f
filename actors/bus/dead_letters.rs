//! Messages that could not be taken: their stream, and what operators do with them.

use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::{HeaderMap, HeaderName};
use bytes::Bytes;
use clawmux_core::bus::header;
use clawmux_core::bus::subject::dead_subject_of;
use clawmux_core::daemon::operator::{DeadLetter, DeadLettersAsked};
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::time::Timestamp;

use super::outlet;
use crate::nats::{Nats, one_line};

/// So many are replayed or dropped at once: who has more asks again.
const SETTLED_MAX: usize = 1000;

/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// Room for the headers that a message brought along, in bytes; and for those that say why it is here.
const HEADERS_BYTES_MAX: usize = 16 * 1024;
const REASONS_BYTES: usize = 4 * 1024;

/// What a message is when it is buried.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) subject: String,
    pub(super) seq: u64,
    /// Its id, or one that no other has.
    pub(super) id: String,
    pub(super) deliveries: i64,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
}

/// What a message becomes that can't be taken: the same, with why. What has no room with a server that takes so many
/// bytes is left out, and that is said.
pub(super) fn letter(body: Body, stream: &str, why: &str, bytes_max: usize) -> (String, PublishMessage) {
    let mut headers = HeaderMap::new();
    let (mut bytes, mut left_out) = (0, Vec::new());
    for (name, values) in
        body.headers.iter().filter(|(name, _)| !is_of_server(name) && !is_named(name, header::ID))
    {
        for value in values {
            bytes += name.to_string().len() + value.as_str().len() + 4;
            match bytes <= HEADERS_BYTES_MAX {
                true => headers.append(name.clone(), value.clone()),
                false => left_out.push("headers"),
            }
        }
    }
    let mut payload = body.payload;
    let room = bytes_max.saturating_sub(HEADERS_BYTES_MAX + REASONS_BYTES);
    if payload.len() > room {
        payload.truncate(room);
        left_out.push("the end of the payload");
    }
    left_out.dedup();
    let reason: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let said = [
        (header::REASON, reason[..reason.floor_char_boundary(REASON_BYTES_MAX)].to_owned()),
        (header::SUBJECT, body.subject.clone()),
        (header::ID, body.id.clone()),
        (header::DELIVERIES, body.deliveries.to_string()),
        (header::LEFT_OUT, left_out.join(", ")),
    ];
    for (name, value) in outlet::headers(said.into_iter().filter(|(_, value)| !value.is_empty())).iter() {
        value.iter().for_each(|value| headers.insert(name.clone(), value.clone()));
    }
    let id = format!("dead-{stream}-{}-{}", body.seq, body.id);
    let publish = PublishMessage::build().payload(payload).headers(headers).message_id(id);
    (dead_subject_of(&body.subject), publish)
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
    let id = header_of(message, header::ID).unwrap_or_default();
    let before = id.rsplit_once("#replay-").and_then(|(id, nth)| Some((id, nth.parse::<u32>().ok()?)));
    let (id, nth) = before.map_or((id, 1), |(id, nth)| (id, nth.saturating_add(1)));
    if let Some(left_out) = header_of(message, header::LEFT_OUT) {
        let why = format!(
            "dead letter {} is not whole ({left_out} had no room): it can only be dropped",
            message.sequence
        );
        return Err(ErrorCode::InvalidRequest.error(why));
    }
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter() {
        let is_ours = [header::REASON, header::SUBJECT, header::ID, header::DELIVERIES, header::LEFT_OUT]
            .iter()
            .any(|ours| is_named(name, ours));
        if !is_ours && !is_of_server(name) {
            values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
        }
    }
    // Another message may have had its id, of another peer: then the number of the letter tells them apart.
    for id in [format!("{id}#replay-{nth}"), format!("{id}-{}#replay-{nth}", message.sequence)] {
        let publish =
            PublishMessage::build().payload(message.payload.clone()).headers(headers.clone()).message_id(id);
        let sent =
            nats.jetstream.send_publish(subject.clone(), publish).await.map_err(|error| away(&error))?;
        if !sent.await.map_err(|error| away(&error))?.duplicate {
            return Ok(());
        }
    }
    // It was published before, and was not deleted then.
    Ok(())
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
