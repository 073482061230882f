//! The way in: from a message to its prompt.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use async_nats::Client;
use async_nats::jetstream::{AckKind, Message};
use clawmux_core::bus::header;
use clawmux_core::bus::inbound::Inbound;
use clawmux_core::bus::outbound::{Address, live};
use clawmux_core::bus::peers::Place;
use clawmux_core::bus::subject::{Peer, check_reply};
use clawmux_core::conversation::command::{SessionCommand, Submit};
use clawmux_core::conversation::event::{Event, Published};
use clawmux_core::conversation::outbox::ChannelAnswer;
use clawmux_core::conversation::reply::SessionReply;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::{RunId, Ticket};
use clawmux_core::prompt::answer_to::{AnswerTo, BUS_CHANNEL};
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::request::reply::Reply;
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::target::Target;
use clawmux_core::time::backoff;

use super::actor::BusActor;
use super::dead_letters;
use super::outlet::headers;
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::cost;
use crate::store::{ChannelChange, IsRemembered, Saying, Words};

/// Messages that are being prompted with at once.
const PROMPTING_MAX: usize = 512;

/// The longest id of a message, in bytes.
const ID_BYTES_MAX: usize = 512;

/// Runs whose text is published as it is said, at once. Of others only the answer is.
const LIVE_MAX: usize = 512;

/// After so many deliveries a message of which no run came has one more chance.
const DELIVERIES_MAX: i64 = 20;

/// The pause after it can't be prompted for the moment, times how often.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How soon the stream is asked again which message of a peer is the oldest.
const OLDEST_AGAIN: Duration = Duration::from_secs(1);

/// When what is given back comes again; for each thousand that were given back that much later, and at most so late.
const GIVEN_BACK: Duration = Duration::from_secs(5);
const GIVEN_BACK_MAX: Duration = Duration::from_secs(60);

/// The pause after a dead letter could not be written, twice as long each time.
const BURY_AGAIN: Duration = Duration::from_secs(1);
const BURY_AGAIN_MAX: Duration = Duration::from_secs(30);

/// A message that was delivered.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) message: Message,
    pub(super) peer: Result<Peer, String>,
    /// Its id: that of its header, else one that no other message has.
    pub(super) id: String,
    /// How often it was delivered.
    pub(super) deliveries: i64,
}

impl Delivery {
    fn header(&self, name: &str) -> Option<&str> {
        Some(self.message.headers.as_ref()?.get(name)?.as_str())
    }

    /// The subject that its answers are to go to besides.
    fn reply(&self) -> Option<&str> {
        self.header(header::REPLY).filter(|reply| !reply.is_empty())
    }

    /// Where its answers go; `peer` is whose it is.
    fn address(&self, peer: &Peer) -> Address {
        let reply = self.reply().filter(|reply| check_reply(reply).is_ok()).map(str::to_owned);
        Address::new(peer.clone(), reply, Some(self.id.clone()))
    }
}

/// What was asked of the sessions: for whose message, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    subject: Arc<str>,
    seq: Place,
}

/// A message that is being taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    seq: Place,
    nth: u32,
    /// Whether it is noted that it was tried.
    is_noted: bool,
}

/// A run whose text is published as it is said.
#[derive(Debug)]
pub(super) struct Live {
    subject: String,
    run: RunId,
    in_reply_to: String,
    n: u64,
}

/// By what it is known that a message was tried.
fn tried(subject: &str, delivery: &Delivery) -> String {
    format!("tried {subject} {}", delivery.id)
}

/// What becomes of a message that is no prompt.
#[derive(Clone)]
struct Settled {
    /// What its peer is told; none where it has none.
    refused: Option<Error>,
    /// Why it is a dead letter; none where it is none.
    dead: Option<String>,
}

impl BusActor {
    /// A message arrived.
    pub(super) fn arrived(&mut self, message: Message, ctx: &mut Context<Self>) {
        let Ok(info) = message.info() else { return };
        let (seq, deliveries) = (info.stream_sequence, info.delivered);
        let given = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
        let given = given.map(|id| id.as_str()).filter(|id| !id.is_empty());
        // Numbers begin anew with a stream that is made anew; when it was published tells them apart.
        let own = || format!("{}:{seq}:{}", info.stream, info.published.unix_timestamp_nanos());
        let is_too_long = given.is_some_and(|id| id.len() > ID_BYTES_MAX);
        let id = given.filter(|_| !is_too_long).map_or_else(own, str::to_owned);
        self.figures.received += 1;
        self.figures.redelivered += u64::from(deliveries > 1);
        let peer = match is_too_long {
            true => Err(format!("Nats-Msg-Id: longer than {ID_BYTES_MAX} bytes")),
            false => Peer::of_subject(&message.subject),
        };
        let subject: Arc<str> =
            peer.as_ref().map_or_else(|_| message.subject.as_str().into(), |peer| peer.subject().into());
        let bytes = message.length + 256;
        let asked_of = message.subject.to_string();
        let delivery = Delivery { message, peer, id, deliveries };
        let place = (self.stream_made, seq);
        let arrived = self.peers.arrived(&subject, place, bytes, delivery, self.unsettled_up_to == 0);
        if let Some(delivery) = arrived.give_back {
            self.give_back(delivery, ctx);
        }
        if arrived.checks {
            let (subject, oldest) = (subject.clone(), self.oldest(asked_of.clone()));
            ctx.spawn(
                oldest.into_actor(self).map(move |oldest, bus, _| bus.peers.still_there(&subject, oldest)),
            );
        }
        match arrived.asks {
            true => self.ask_for_oldest(subject, asked_of, ctx),
            false => self.ready.push_back(subject),
        }
    }

    fn give_back(&mut self, delivery: Delivery, ctx: &mut Context<Self>) {
        self.figures.given_back += 1;
        let thousands = u32::try_from(self.peers.given_back() / 1000).unwrap_or(u32::MAX);
        let pause = GIVEN_BACK.saturating_mul(thousands.saturating_add(1)).min(GIVEN_BACK_MAX);
        let given_back = async move {
            let _ = delivery.message.ack_with(AckKind::Nak(Some(pause))).await;
        };
        ctx.spawn(given_back.into_actor(self));
    }

    /// The oldest message on a subject that the stream still has; none where it can't be asked.
    fn oldest(&self, subject: String) -> impl Future<Output = Option<Place>> + use<> {
        let (made, stream) =
            (self.stream_made, self.connected.as_ref().map(|connected| connected.streams.inbound.clone()));
        async move {
            use async_nats::jetstream::stream::LastRawMessageErrorKind as Kind;
            match stream?.get_first_raw_message_by_subject(&subject, 1).await {
                Ok(oldest) => Some((made, oldest.sequence)),
                // It has none of that peer any more: nothing is older.
                Err(error) if error.kind() == Kind::NoMessageFound => Some((made, u64::MAX)),
                Err(_) => None,
            }
        }
    }

    /// Asks the stream which message of a peer is the oldest that it still has.
    fn ask_for_oldest(&self, subject: Arc<str>, asked_of: String, ctx: &mut Context<Self>) {
        let asked = self.oldest(asked_of.clone());
        ctx.spawn(asked.into_actor(self).map(move |oldest, bus, ctx| {
            if bus.peers.oldest_is(&subject, oldest) {
                ctx.run_later(OLDEST_AGAIN, move |bus, ctx| bus.ask_for_oldest(subject, asked_of, ctx));
            } else {
                bus.ready.push_back(subject);
                bus.take_next(ctx);
            }
        }));
    }

    /// How many prompts were sent and not answered yet: those that wait for another try are none.
    fn asking(&self) -> usize {
        self.line.len().saturating_sub(self.live.len())
    }

    /// Takes the next message of each peer that may have one.
    pub(super) fn take_next(&mut self, ctx: &mut Context<Self>) {
        while self.is_open && self.asking() < PROMPTING_MAX {
            let Some(subject) = self.ready.pop_front() else { return };
            let Some((seq, delivery)) = self.peers.next(&subject) else { continue };
            let deliveries = delivery.deliveries;
            self.attempts.insert(subject.clone(), Attempt { seq, nth: 0, is_noted: false });
            match deliveries >= DELIVERIES_MAX {
                true => self.give_one_more_chance(subject, seq, ctx),
                false => self.prompt(&subject, ctx),
            }
        }
    }

    /// Prompts with a message that was delivered often, unless that was tried before and came to nothing: it is what
    /// keeps the daemon from running, then.
    fn give_one_more_chance(&self, subject: Arc<str>, seq: Place, ctx: &mut Context<Self>) {
        let Some((_, delivery)) = self.peers.taking(&subject) else { return };
        let known_as = tried(&subject, delivery);
        let (store, ledger) = (self.around.store.clone(), self.ledger());
        let tried = async move {
            let asked = IsRemembered { channel: BUS_CHANNEL.to_owned(), known_as: known_as.clone() };
            let was_tried = ask(&store, asked).await.flatten().unwrap_or(false);
            if !was_tried {
                ledger.write(vec![ChannelChange::Remember(known_as)], |_| {}).await;
            }
            was_tried
        };
        ctx.spawn(tried.into_actor(self).map(move |was_tried, bus, ctx| {
            let Some(deliveries) = bus.taking(&subject, seq).map(|delivery| delivery.deliveries) else {
                return;
            };
            if was_tried {
                let why = format!("delivered {deliveries} times without a run");
                bus.settle(&subject, Settled { refused: None, dead: Some(why) }, ctx);
            } else {
                if let Some(attempt) = bus.attempts.get_mut(&subject) {
                    attempt.is_noted = true;
                }
                bus.prompt(&subject, ctx);
            }
        }));
    }

    /// The message that was asked about, where it is still being taken.
    fn taking(&self, subject: &str, seq: Place) -> Option<&Delivery> {
        self.peers.taking(subject).filter(|(taking, _)| *taking == seq).map(|(_, delivery)| delivery)
    }

    fn prompt(&mut self, subject: &Arc<str>, ctx: &mut Context<Self>) {
        if self.starts_over(ctx) {
            return;
        }
        let Some((seq, delivery)) = self.peers.taking(subject) else { return };
        let submit = match self.submit(subject, delivery) {
            Ok(submit) => submit,
            Err(settled) => return self.settle(subject, settled, ctx),
        };
        let asked = Asked { subject: subject.clone(), seq };
        let to = ctx.address().recipient();
        let scopes = self.config.scopes.unwrap_or(Scopes::USER);
        if self.line.ask_as(self.owner.clone(), scopes, SessionCommand::Submit(submit), asked, to).is_err() {
            self.refused(subject, ErrorCode::Unavailable.error("the daemon is busy"), ctx);
        }
    }

    fn submit(&self, subject: &Arc<str>, delivery: &Delivery) -> Result<Submit, Settled> {
        let peer = match &delivery.peer {
            Ok(peer) => peer,
            Err(why) => return Err(Settled { refused: None, dead: Some(why.clone()) }),
        };
        if !self.config.scopes.is_none_or(|scopes| scopes.allows(Scope::Write)) {
            let why = format!("bus.principal = {:?} may not prompt", self.config.principal);
            return Err(Settled { refused: Some(ErrorCode::Forbidden.error(&*why)), dead: Some(why) });
        }
        let never = |why: String| {
            let refused = Some(ErrorCode::InvalidRequest.error(&*why));
            Settled { refused, dead: Some(why) }
        };
        let (bytes, most) = (delivery.message.payload.len(), self.around.payload_bytes_max);
        if bytes > most {
            return Err(never(format!(
                "the payload has {bytes} bytes, more than gateway.max_payload_bytes ({most})"
            )));
        }
        if let Some(Err(why)) = delivery.reply().map(check_reply) {
            return Err(never(format!("{}: {why}", header::REPLY)));
        }
        let inbound =
            Inbound::read(delivery.header("Content-Type"), &delivery.message.payload).map_err(never)?;
        let Inbound { content, attachments, guild, team, thinking } = inbound;
        let answer_to = AnswerTo {
            channel: BUS_CHANNEL.to_owned(),
            conversation: subject.to_string(),
            address: delivery.address(peer).to_json(),
        };
        Ok(Submit {
            target: Target::Route(peer.route(guild, team)),
            run: RunId::from_random(clock::random()),
            content,
            // Of one peer: another one's of the same id is another message.
            idempotency_key: Some(format!("{subject} {}", delivery.id)),
            attachments,
            files: Vec::new(),
            local_files: Vec::new(),
            run_options: RunOptions {
                thinking,
                answer_to: Some(Arc::new(answer_to)),
                ..RunOptions::default()
            },
            follow: self.wants_live(delivery),
        })
    }

    fn wants_live(&self, delivery: &Delivery) -> bool {
        delivery.header(header::STREAM) == Some("1") && self.live.len() < LIVE_MAX
    }

    pub(super) fn replied(&mut self, ticket: Ticket, reply: Result<Reply, Error>, ctx: &mut Context<Self>) {
        let Some(Asked { subject, seq }) = self.line.waiting(ticket).cloned() else { return };
        match reply {
            Ok(Reply::Session(SessionReply::Accepted(accepted))) => {
                let delivery = self.taking(&subject, seq);
                let live = delivery.filter(|delivery| self.wants_live(delivery) && !accepted.is_over);
                let live = live.and_then(|delivery| {
                    let subject = delivery.peer.as_ref().ok()?.live_subject();
                    Some(Live { subject, run: accepted.run, in_reply_to: delivery.id.clone(), n: 0 })
                });
                match live {
                    Some(live) => {
                        self.live.insert(ticket, live);
                    }
                    None => drop(self.line.over(ticket)),
                }
                self.figures.prompted += 1;
                self.figures.repeated += u64::from(accepted.repeated);
                if self.taking(&subject, seq).is_some() {
                    self.done(&subject, ctx);
                }
            }
            // It was followed, and is no more.
            Ok(_) => drop(self.line.over(ticket)),
            Err(error) => {
                let _ = self.line.over(ticket);
                if self.live.remove(&ticket).is_none() && self.taking(&subject, seq).is_some() {
                    self.refused(&subject, error, ctx);
                }
            }
        }
    }

    /// The prompt is durable: the message is acknowledged, and the next one of its peer is taken.
    fn done(&mut self, subject: &Arc<str>, ctx: &mut Context<Self>) {
        if let Some(delivery) = self.over(subject, ctx) {
            let acknowledged = async move {
                // One that is lost is delivered again, and known.
                let _ = delivery.message.ack().await;
            };
            ctx.spawn(acknowledged.into_actor(self));
        }
        self.take_next(ctx);
    }

    /// A message is done with; its peer's next one may be taken, unless the stream has an older one.
    fn over(&mut self, subject: &Arc<str>, ctx: &mut Context<Self>) -> Option<Delivery> {
        self.attempts.remove(subject);
        let (delivery, asks) = self.peers.taken(subject, self.unsettled_up_to == 0)?;
        match asks {
            true => self.ask_for_oldest(subject.clone(), delivery.message.subject.to_string(), ctx),
            false => self.ready.push_back(subject.clone()),
        }
        Some(delivery)
    }

    /// It can't be prompted: for the moment, or ever.
    fn refused(&mut self, subject: &Arc<str>, error: Error, ctx: &mut Context<Self>) {
        if error.is_retryable() || error.code == ErrorCode::Internal {
            let Some(attempt) = self.attempts.get_mut(subject) else { return };
            let was_noted = std::mem::take(&mut attempt.is_noted);
            attempt.nth = attempt.nth.saturating_add(1);
            let (seq, nth) = (attempt.seq, attempt.nth);
            if let Some((_, delivery)) = self.peers.taking(subject).filter(|_| was_noted) {
                // It does no harm: it only finds no room.
                let (ledger, note) = (self.ledger(), ChannelChange::Unremember(tried(subject, delivery)));
                ctx.spawn(async move { ledger.write(vec![note], |_| {}).await }.into_actor(self));
            }
            self.note(&error.message);
            let (subject, pause) = (subject.clone(), RETRY.saturating_mul(nth).min(RETRY_MAX));
            ctx.run_later(pause, move |bus, ctx| {
                if bus.is_open && bus.taking(&subject, seq).is_some() {
                    bus.prompt(&subject, ctx);
                }
            });
            return;
        }
        let is_spent = error.code == ErrorCode::BudgetExceeded;
        let dead = (!is_spent).then(|| error.message.clone());
        self.settle(subject, Settled { refused: Some(error), dead }, ctx);
    }

    /// Its peer is told, it becomes a dead letter, and then it is gone from the stream: in this order.
    fn settle(&mut self, subject: &Arc<str>, settled: Settled, ctx: &mut Context<Self>) {
        let Some((seq, delivery)) = self.peers.taking(subject) else { return };
        let Settled { refused, dead } = &settled;
        let told = refused.as_ref().and_then(|error| {
            let peer = delivery.peer.as_ref().ok()?;
            let saying = Saying {
                conversation: subject.to_string(),
                address: delivery.address(peer).to_json(),
                words: Words::Answer(ChannelAnswer::refused(&delivery.id, error).to_json()),
            };
            Some(ChannelChange::SayOnce(format!("refused {subject} {}", delivery.id), saying))
        });
        let is_first = self.attempts.get(subject).is_none_or(|attempt| attempt.nth == 0);
        self.figures.refused += u64::from(refused.is_some() && is_first);
        if let Some(why) = dead.as_ref().filter(|_| is_first) {
            let id = &delivery.id[..delivery.id.floor_char_boundary(64)];
            tracing::warn!(subject = %delivery.message.subject, ?id, error = ?why, "bus: a message becomes a dead letter");
        }
        let bytes_max = self.connected.as_ref().map_or(0, |connected| connected.nats.payload_max());
        let letter = dead.as_ref().filter(|_| bytes_max > 0).map(|why| {
            let body = dead_letters::Body {
                subject: delivery.message.subject.to_string(),
                seq: seq.1,
                id: delivery.id.clone(),
                deliveries: delivery.deliveries,
                headers: delivery.message.headers.clone().unwrap_or_default(),
                payload: delivery.message.payload.clone(),
            };
            dead_letters::letter(body, &self.config.streams[0], why, bytes_max)
        });
        if let Some(why) = dead {
            self.note(why);
        }
        let (ledger, nats) = (self.ledger(), self.connected.as_ref().map(|connected| connected.nats.clone()));
        let is_dead = dead.is_some();
        let written = async move {
            ledger.write(told.into_iter().collect(), |_| {}).await;
            if is_dead {
                let nats = nats.ok_or("the bus is away")?;
                let (subject, publish) = letter.ok_or("the bus is away")?;
                dead_letters::bury(&nats, subject, publish).await?;
            }
            Ok::<(), &'static str>(())
        };
        let subject = subject.clone();
        ctx.spawn(written.into_actor(self).map(move |written, bus, ctx| {
            if bus.taking(&subject, seq).is_none() {
                return;
            }
            if let Err(why) = written {
                bus.note(&format!("a dead letter could not be written: {why}"));
                return bus.settle_again(subject, seq, settled, ctx);
            }
            bus.figures.buried += u64::from(is_dead);
            if let Some(delivery) = bus.over(&subject, ctx) {
                let gone = async move {
                    let kind = if is_dead { AckKind::Term } else { AckKind::Ack };
                    let _ = delivery.message.ack_with(kind).await;
                };
                ctx.spawn(gone.into_actor(bus));
            }
            bus.refill(ctx);
            bus.take_next(ctx);
        }));
    }

    fn settle_again(&mut self, subject: Arc<str>, seq: Place, settled: Settled, ctx: &mut Context<Self>) {
        let Some(attempt) = self.attempts.get_mut(&subject) else { return };
        let pause = backoff(BURY_AGAIN, attempt.nth, BURY_AGAIN_MAX);
        attempt.nth = attempt.nth.saturating_add(1);
        ctx.run_later(pause, move |bus, ctx| {
            if bus.is_open && bus.taking(&subject, seq).is_some() {
                bus.settle(&subject, settled, ctx);
            }
        });
    }

    pub(super) fn heard(&mut self, ticket: Ticket, event: &Published, ctx: &mut Context<Self>) {
        self.line.taken(cost(event));
        match &event.logged.event {
            Event::Text(text) => {
                let Some(live_run) = self.live.get_mut(&ticket) else { return };
                let payload = live(live_run.run.as_str(), live_run.n, text);
                live_run.n += 1;
                let subject = live_run.subject.clone();
                let headers = headers([(header::IN_REPLY_TO, live_run.in_reply_to.clone())]);
                let Some(client) = self.client() else { return };
                // The client keeps the order of those that are polled in it, as these are.
                let published = async move {
                    let _ = client.publish_with_headers(subject, headers, payload.into()).await;
                };
                ctx.spawn(published.into_actor(self));
            }
            Event::Ended { .. } => {
                let _ = self.line.over(ticket);
                self.live.remove(&ticket);
            }
            _ => {}
        }
    }

    fn client(&self) -> Option<Client> {
        self.connected.as_ref().map(|connected| connected.nats.client.clone())
    }

    /// All that is held is let go: what has no prompt yet is delivered again.
    pub(super) fn let_go(&mut self) {
        (self.peers, self.ready, self.attempts) = Default::default();
    }

    /// The line fell too far behind: what was asked for is asked again, and no text is published of what is under way.
    pub(super) fn listen_anew(&mut self, ctx: &mut Context<Self>) {
        tracing::warn!("bus: it fell behind its runs: their answers come whole");
        self.line = self.line.anew();
        self.live.clear();
        let asked: Vec<Arc<str>> = self.attempts.keys().cloned().collect();
        for subject in asked {
            self.prompt(&subject, ctx);
        }
    }

    /// Says of everything that is held that it is.
    pub(super) fn keep_alive(&mut self, ctx: &mut Context<Self>) {
        if self.starts_over(ctx) {
            return;
        }
        self.kept_alive = clock::now();
        let Some(client) = self.client().filter(|_| !self.peers.is_empty()) else { return };
        let held: Vec<_> = self.peers.held().filter_map(|delivery| delivery.message.reply.clone()).collect();
        let told = async move {
            for reply in held {
                if client.publish(reply, "+WPI".into()).await.is_err() {
                    return;
                }
            }
        };
        ctx.spawn(told.into_actor(self));
    }
}
