//! Messages whose headers the client can't read: it ends its connection over each, again and again, and tells nobody
//! which it was. A server takes such headers from whoever may publish.
//!
//! So what was delivered and not acknowledged is looked through here where the connection was lost, and before messages
//! are taken: through the interface of the stream, which gives headers as they are. What can't be read becomes a dead
//! letter without them, and is deleted.

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{Consumer, pull};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawmux_core::bus::headers;
use serde::Deserialize;
use serde_json::{Value, json};

use super::dead_letters::{self, Body};
use crate::nats::streams::Streams;
use crate::nats::{Nats, Unusable, one_line};

/// So many messages are looked at, at most.
const LOOKED_AT_MAX: usize = 4096;

/// A message as the stream has it.
#[derive(Deserialize)]
struct Stored {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

/// Buries what was delivered and can't be read.
///
/// # Errors
/// Where the servers do not answer.
pub(super) async fn bury_all(
    nats: &Nats,
    streams: &Streams,
    consumer: &Consumer<pull::Config>,
) -> Result<(), Unusable> {
    let away = |why: String| Unusable::away(format!("the stream of messages can't be looked through: {why}"));
    let info = consumer.get_info().await.map_err(|error| away(one_line(&error)))?;
    let stream = &streams.inbound.cached_info().config.name;
    let mut next = info.ack_floor.stream_sequence + 1;
    for _ in 0..LOOKED_AT_MAX.min(info.num_ack_pending) {
        let subject = format!("STREAM.MSG.GET.{stream}");
        let asked = json!({ "seq": next, "next_by_subj": ">" });
        let answer: Value =
            nats.jetstream.request(subject, &asked).await.map_err(|error| away(one_line(&error)))?;
        // None follows.
        let Ok(stored) = serde_json::from_value::<Stored>(answer["message"].clone()) else { return Ok(()) };
        if stored.seq > info.delivered.stream_sequence {
            return Ok(());
        }
        next = stored.seq + 1;
        let bytes = STANDARD.decode(&stored.hdrs).unwrap_or_default();
        let Err(why) = headers::check(&bytes) else { continue };
        let why = format!("its headers can't be read: {why}");
        tracing::warn!(subject = %stored.subject, seq = stored.seq, error = ?why, "bus: a message becomes a dead letter");
        let body = Body {
            id: format!("{stream}:{}", stored.seq),
            subject: stored.subject,
            seq: stored.seq,
            deliveries: 1,
            headers: HeaderMap::new(),
            payload: STANDARD.decode(&stored.data).unwrap_or_default().into(),
        };
        let (subject, letter) = dead_letters::letter(body, stream, &why, nats.payload_max());
        dead_letters::bury(nats, subject, letter).await.map_err(|why| away(why.to_owned()))?;
        streams.inbound.delete_message(stored.seq).await.map_err(|error| away(one_line(&error)))?;
    }
    Ok(())
}
