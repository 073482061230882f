//! The way out: from the outbox to the stream of answers.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use actix::prelude::*;
use async_nats::HeaderMap;
use async_nats::jetstream::message::PublishMessage;
use clawmux_core::bus::outbound::{Address, Outbound, publish};
use clawmux_core::conversation::outbox::ChannelAnswer;
use clawmux_core::prompt::answer_to::BUS_CHANNEL;
use clawmux_core::time::{Timestamp, backoff};

use super::actor::BusActor;
use crate::nats::{Nats, one_line};
use crate::runtime::ask::ask;
use crate::store::{ChannelChange, OutboxRow, ReadOutbox, SendState, Words};

/// Answers on their way at once.
const SENDING_MAX: usize = 256;

/// So many that wait are in memory; the others are in the store.
const WAITING_MAX: usize = 2048;

/// The pause after an answer was not published, twice as long each time, for ever.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// When the store is asked again that could not answer.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Room for the headers of an answer, in bytes.
const HEADERS_BYTES: usize = 4096;

/// Answers that are yet to be published.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    /// By conversation, which has one on its way at a time.
    waiting: BTreeMap<String, VecDeque<OutboxRow>>,
    count: usize,
    sending: HashSet<String>,
    /// Those of which an answer was tried and not published yet.
    failing: HashSet<String>,
    on_their_way: Arc<AtomicUsize>,
    read_up_to: i64,
    is_reading: bool,
    reads_again: bool,
}

impl Outlet {
    /// How many there are in memory.
    pub(super) fn len(&self) -> usize {
        self.count + self.sending.len()
    }

    /// How many were tried and not published yet.
    pub(super) fn failing(&self) -> usize {
        self.failing.len()
    }

    /// Of when the oldest of those that wait is.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.waiting.values().filter_map(|rows| rows.front()).map(|row| row.made).min()
    }

    /// How many are on their way, for who waits until none is.
    pub(super) fn on_their_way(&self) -> Arc<AtomicUsize> {
        self.on_their_way.clone()
    }
}

impl BusActor {
    /// Reads what is in the outbox and not here yet, as far as there is room.
    pub(super) fn refill(&mut self, ctx: &mut Context<Self>) {
        self.send_next(ctx);
        if self.outlet.count >= WAITING_MAX || self.publisher().is_none() {
            return;
        }
        if std::mem::replace(&mut self.outlet.is_reading, true) {
            self.outlet.reads_again = true;
            return;
        }
        let store = self.around.store.clone();
        let read = ReadOutbox { channel: BUS_CHANNEL.to_owned(), after: self.outlet.read_up_to };
        let read = async move { ask(&store, read).await.flatten() };
        ctx.spawn(read.into_actor(self).map(|rows, bus, ctx| {
            bus.outlet.is_reading = false;
            let reads_again = std::mem::take(&mut bus.outlet.reads_again);
            match rows {
                Ok(rows) => {
                    let has_more = !rows.is_empty();
                    for row in rows {
                        bus.outlet.read_up_to = row.id;
                        // It is published under its id: who looks at that has it once, whatever became of it before.
                        bus.outlet.count += 1;
                        bus.outlet.waiting.entry(row.conversation.clone()).or_default().push_back(row);
                    }
                    bus.send_next(ctx);
                    if has_more || reads_again {
                        bus.refill(ctx);
                    }
                }
                Err(error) => {
                    bus.note(&error.message);
                    ctx.run_later(READ_AGAIN, |bus, ctx| bus.refill(ctx));
                }
            }
        }));
    }

    /// Publishes the next answer of each conversation that has none on its way.
    fn send_next(&mut self, ctx: &mut Context<Self>) {
        let Some(nats) = self.publisher() else { return };
        let room =
            if self.is_open { SENDING_MAX.saturating_sub(self.outlet.on_their_way.load(Relaxed)) } else { 0 };
        let is_idle = |conversation: &&String| !self.outlet.sending.contains(*conversation);
        let next: Vec<String> = self.outlet.waiting.keys().filter(is_idle).take(room).cloned().collect();
        for conversation in next {
            let Some(row) = self.outlet.waiting.get_mut(&conversation).and_then(VecDeque::pop_front) else {
                continue;
            };
            self.outlet.count -= 1;
            if self.outlet.waiting.get(&conversation).is_some_and(VecDeque::is_empty) {
                self.outlet.waiting.remove(&conversation);
            }
            self.outlet.sending.insert(conversation);
            self.send(nats.clone(), row, 0, ctx);
        }
    }

    fn send(&self, nats: Nats, row: OutboxRow, attempt: u32, ctx: &mut Context<Self>) {
        let (ledger, on_their_way) = (self.ledger(), self.outlet.on_their_way.clone());
        on_their_way.fetch_add(1, Relaxed);
        let sent = async move {
            let sent = match read(&row, nats.payload_max().saturating_sub(HEADERS_BYTES)) {
                Ok(outbound) => send(&nats, outbound).await.map(|()| ChannelChange::Sent(row.id)),
                // Nothing can be made of it, ever; it stays in the outbox.
                Err(why) => {
                    tracing::error!(answer = row.id, error = ?why, "bus: an answer can't be read");
                    Ok(ChannelChange::Send(row.id, SendState::Failed(why)))
                }
            };
            let sent = match sent {
                Ok(change) => {
                    ledger.write(vec![change], |_| {}).await;
                    Ok(())
                }
                Err(why) => Err(why),
            };
            on_their_way.fetch_sub(1, Relaxed);
            (row, sent)
        };
        ctx.spawn(sent.into_actor(self).map(move |(row, sent), bus, ctx| match sent {
            Ok(()) => {
                bus.figures.published += 1;
                bus.outlet.sending.remove(&row.conversation);
                bus.outlet.failing.remove(&row.conversation);
                bus.refill(ctx);
            }
            Err(why) => {
                bus.figures.publish_failures += 1;
                bus.outlet.failing.insert(row.conversation.clone());
                let why = format!("an answer was not published: {why}");
                bus.note(&why);
                if why.contains("no stream found") {
                    bus.connect_anew("a stream is gone", ctx);
                }
                if attempt == 0 {
                    tracing::warn!(answer = row.id, error = ?why, "bus: it is tried again");
                }
                let pause = backoff(PAUSE, attempt, PAUSE_MAX);
                ctx.run_later(pause, move |bus, ctx| bus.send_again(row, attempt.saturating_add(1), ctx));
            }
        }));
    }

    /// Once it is connected: until then it waits.
    fn send_again(&self, row: OutboxRow, attempt: u32, ctx: &mut Context<Self>) {
        match self.publisher().filter(|_| self.is_open) {
            Some(nats) => self.send(nats, row, attempt, ctx),
            None => drop(ctx.run_later(PAUSE, move |bus, ctx| bus.send_again(row, attempt, ctx))),
        }
    }
}

fn read(row: &OutboxRow, bytes_max: usize) -> Result<Outbound, String> {
    let Words::Answer(answer) = &row.words else { return Err("it is no answer".to_owned()) };
    Ok(publish(&Address::from_json(&row.address)?, ChannelAnswer::from_json(answer)?, bytes_max))
}

/// These headers. A value that no header can have is left out: it is in the payload, or the adapter's own.
pub(super) fn headers(all: impl IntoIterator<Item = (&'static str, String)>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in all {
        if let Ok(value) = value.parse::<async_nats::HeaderValue>() {
            map.insert(name, value);
        }
    }
    map
}

/// Publishes an answer: to the subject that was asked for, then durably.
async fn send(nats: &Nats, outbound: Outbound) -> Result<(), String> {
    let Outbound { subject, reply, id, headers, payload } = outbound;
    let payload = bytes::Bytes::from(payload);
    let map = self::headers(headers);
    if let Some(reply) = reply {
        let mut map = map.clone();
        map.insert("Nats-Msg-Id", id.as_str());
        let published = nats.client.publish_with_headers(reply, map, payload.clone()).await;
        published.map_err(|error| one_line(&error))?;
    }
    let message = PublishMessage::build().payload(payload).headers(map).message_id(id);
    let acknowledged =
        nats.jetstream.send_publish(subject, message).await.map_err(|error| one_line(&error))?;
    acknowledged.await.map(drop).map_err(|error| one_line(&error))
}
