//! What is too large for one message, in parts: each a message of its own, under a subject of its own.
//!
//! A part is tried again for a while, since an election of the servers takes some seconds. It is read from the leader
//! of its stream, which alone knows that one is missing.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use tokio::time::{sleep, timeout};

use super::writing::put;
use super::{ANSWER_MAX, Published, no_answer, streams};
use crate::nats::{Nats, Unusable, one_line};

/// How many parts of one whole may be on their way.
pub(super) const AHEAD_MAX: usize = 8;

/// How long a part is tried.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The pause before it is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// Why a part can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is not there.
    Missing,
    /// It has another size than it should.
    Sized(u64),
    /// The servers do not say.
    Away(String),
}

/// Writes a part, and says how large it is.
///
/// # Errors
/// Why it can't be written for so long.
pub(super) async fn write(
    nats: &Nats,
    (subject, headers): (&str, &HeaderMap),
    part: Bytes,
    patience: Duration,
) -> Result<u64, String> {
    let begin = Instant::now();
    loop {
        let why = match put(nats, subject, None, part.clone(), headers.clone()).await {
            Published::Acked(_) => return Ok(part.len() as u64),
            Published::Transient | Published::Refused => "the servers take nothing for now".to_owned(),
            Published::Unknown(why) => why,
        };
        if begin.elapsed() > patience || is_full(&why) {
            return Err(why);
        }
        sleep(PAUSE).await;
    }
}

/// Reads a part that has so many bytes. One that is missing is looked for as long as `missing` says.
///
/// # Errors
/// Why it can't be read.
pub(super) async fn read(
    nats: &Nats,
    (stream, subject): (&str, &str),
    bytes: u64,
    missing: Duration,
) -> Result<Bytes, Unread> {
    let begin = Instant::now();
    loop {
        let found = match nats.jetstream.get_stream_no_info(stream).await {
            Ok(stream) => last_of(&stream, subject).await,
            Err(error) => Err(one_line(&error)),
        };
        let (unread, patience) = match found {
            Ok(Some((part, _))) if part.len() as u64 == bytes => return Ok(part),
            Ok(Some((part, _))) => return Err(Unread::Sized(part.len() as u64)),
            Ok(None) => (Unread::Missing, missing),
            Err(why) => (Unread::Away(why), PATIENCE),
        };
        if begin.elapsed() > patience {
            return Err(unread);
        }
        sleep(PAUSE).await;
    }
}

/// Whether a stream has no room left, by what a server said.
pub fn is_full(why: &str) -> bool {
    // Of the stream, or of the server.
    why.contains("maximum bytes") || why.contains("insufficient")
}

/// Removes all parts under subjects like this, where there are any.
///
/// # Errors
/// Why they can't be removed.
pub(super) async fn remove(nats: &Nats, stream: &str, subjects: String) -> Result<(), Unusable> {
    let Some(stream) = streams::find(nats, stream).await? else {
        return Ok(());
    };
    let purged = timeout(ANSWER_MAX, stream.purge().filter(subjects).into_future()).await;
    match purged {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Unusable::away(one_line(&error))),
        Err(_) => Err(Unusable::away(no_answer())),
    }
}

/// The last message of a subject and its sequence, as the leader of the stream has it.
///
/// # Errors
/// Where it does not say.
pub(super) async fn last_of<Info>(
    stream: &Stream<Info>,
    subject: &str,
) -> Result<Option<(Bytes, u64)>, String> {
    match timeout(ANSWER_MAX, stream.get_last_raw_message_by_subject(subject)).await {
        Ok(Ok(message)) => Ok(Some((message.payload, message.sequence))),
        Ok(Err(error)) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Ok(Err(error)) => Err(one_line(&error)),
        Err(_) => Err(no_answer()),
    }
}
