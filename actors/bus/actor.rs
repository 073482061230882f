//! The bus as an actor: connects, goes on from where it was after whatever happened to the servers, and says how it is.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use async_nats::jetstream::consumer::{Consumer, pull};
use clawmux_core::bus::outbound::Address;
use clawmux_core::bus::peers::Peers;
use clawmux_core::bus::subject::Peer;
use clawmux_core::config;
use clawmux_core::conversation::outbox::ChannelAnswer;
use clawmux_core::daemon::operator::DeadLetter;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::ids::{Owner, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::answer_to::BUS_CHANNEL;
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::time::{Timestamp, backoff};
use futures::StreamExt as _;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::claim::{self, Daemon};
use super::intake::{Asked, Attempt, Delivery, Live};
use super::outlet::Outlet;
use super::{AskDeadLetters, End, Surroundings, dead_letters, unreadable};
use crate::host::machine;
use crate::nats::streams::{self, Streams};
use crate::nats::{self, Nats, Unusable, one_line};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::runtime::deliver::Deliver;
use crate::runtime::line::{Begin, Line};
use crate::runtime::observe::{Observe, Observed};
use crate::runtime::say::{OutboxGrew, Say};
use crate::runtime::supervision::Guard;
use crate::store::ledger::Ledger;
use crate::store::{ChannelChange, ReadRow, Saying, Words};

/// What may wait in the mailbox.
const MAILBOX: usize = 4096;

/// The pause before it is tried again what failed for the moment, twice as long each time; and what somebody has to do
/// something about.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);
const PAUSE_REFUSED: Duration = Duration::from_secs(60);

/// How soon it is tried again while another daemon takes the messages.
const PAUSE_CLAIMED: Duration = Duration::from_secs(5);

/// How often it is asked whether another daemon takes the messages.
const CLAIM_CHECK: Duration = Duration::from_secs(30);

/// How often messages that are held are kept alive.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// How often the servers are asked how streams and consumer are.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_SOON: Duration = Duration::from_secs(1);

/// How soon a line that fell too far behind is noticed.
const LAG_CHECK: Duration = Duration::from_secs(5);

/// Messages that are asked for at once.
const BATCH: usize = 512;

/// How long a request for messages waits for them, and how often the server says that it does.
const EXPIRES: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Messages that are handed over at once.
const CHUNK: usize = 128;

/// How long what is on its way may take when the bus ends.
const END_MAX: Duration = Duration::from_secs(8);
const END_LOOK: Duration = Duration::from_millis(20);

/// How the bus is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It is being connected, or again.
    Connecting,
    /// It works.
    Running,
    /// It can't be used for the moment, and why.
    Away(String),
    /// Somebody has to do something about this.
    Refused(String),
    /// Another daemon takes the messages.
    Claimed(String),
}

impl Phase {
    /// Its name, and why it is so; none where nothing is wrong.
    fn told(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Connecting => ("connecting", None),
            Self::Running => ("running", None),
            Self::Away(why) => ("away", Some(why)),
            Self::Refused(why) => ("refused", Some(why)),
            Self::Claimed(why) => ("claimed", Some(why)),
        }
    }
}

/// Connected servers with all that is needed of them.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) nats: Nats,
    pub(super) streams: Streams,
    consumer: Consumer<pull::Config>,
}

/// See the module.
pub(super) struct BusActor {
    pub(super) config: config::Bus,
    pub(super) around: Surroundings,
    pub(super) owner: Owner,
    pub(super) line: Line<Asked>,
    own: Daemon,
    phase: Phase,
    failures: u32,
    /// The client, which connects again by itself.
    nats: Option<Nats>,
    pub(super) connected: Option<Connected>,
    /// Which opening it is: what belongs to an earlier one has no effect.
    round: u64,
    pulling: Option<SpawnHandle>,
    pub(super) peers: Peers<Delivery>,
    /// When the stream of messages was made, in nanoseconds since 1970: one that is made anew counts anew.
    pub(super) stream_made: i64,
    /// When messages were last kept alive.
    pub(super) kept_alive: Timestamp,
    /// How often the connection was lost when the stream was last looked through.
    losses_seen: u64,
    /// Up to which number an earlier process may have been given messages that it did not acknowledge; 0 = none.
    pub(super) unsettled_up_to: u64,
    /// Peers of whom a message may be taken.
    pub(super) ready: VecDeque<Arc<str>>,
    pub(super) attempts: HashMap<Arc<str>, Attempt>,
    pub(super) live: HashMap<Ticket, Live>,
    pub(super) outlet: Outlet,
    /// Whether anything new is begun.
    pub(super) is_open: bool,
    pub(super) figures: Figures,
    _guard: Guard,
}

/// What was done since the start, and how streams and consumer were when they were last looked at.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) received: u64,
    pub(super) prompted: u64,
    pub(super) repeated: u64,
    pub(super) refused: u64,
    pub(super) buried: u64,
    pub(super) redelivered: u64,
    pub(super) given_back: u64,
    pub(super) published: u64,
    pub(super) publish_failures: u64,
    pub(super) last_error: Option<(String, Timestamp)>,
    /// Of clients that are gone.
    disconnects: u64,
    pending: u64,
    ack_pending: usize,
    dead: u64,
    answers: u64,
}

impl BusActor {
    pub(super) fn new(config: config::Bus, around: Surroundings, sessions: Begin, guard: Guard) -> Self {
        let scopes = config.scopes.unwrap_or(Scopes::USER);
        let Principal { owner, .. } = Principal::new(config.principal.as_str(), scopes);
        let line = Line::new("bus", sessions).waking_on(around.arbiters.clone());
        let instance = hex(&clock::random());
        let own = Daemon {
            since: clock::wall().as_millis(),
            instance,
            host: machine::host(),
            home: around.home.display().to_string(),
            pid: std::process::id(),
            is_taking: false,
        };
        Self {
            config,
            around,
            owner,
            line,
            own,
            phase: Phase::Connecting,
            failures: 0,
            nats: None,
            connected: None,
            round: 0,
            pulling: None,
            peers: Peers::default(),
            stream_made: 0,
            kept_alive: clock::now(),
            losses_seen: 0,
            unsettled_up_to: 0,
            ready: VecDeque::new(),
            attempts: HashMap::new(),
            live: HashMap::new(),
            outlet: Outlet::default(),
            is_open: true,
            figures: Figures::default(),
            _guard: guard,
        }
    }

    /// The part of the store that is the bus's.
    pub(super) fn ledger(&self) -> Ledger {
        Ledger { channel: BUS_CHANNEL.into(), store: self.around.store.clone() }
    }

    /// Keeps why something failed.
    pub(super) fn note(&mut self, why: &str) {
        self.figures.last_error = Some((why.chars().take(300).collect(), clock::now()));
    }

    /// Connects, looks for the streams, and begins to take messages.
    fn open(&mut self, ctx: &mut Context<Self>) {
        if !self.is_open {
            return;
        }
        self.round += 1;
        self.close(ctx);
        let (config, nats, own) = (self.config.clone(), self.nats.clone(), self.own.clone());
        let opened = async move {
            let nats = match nats {
                Some(nats) => nats,
                None => nats::connect(&config, format!("clawmux {}", own.host)).await?,
            };
            let opened = async {
                let streams = streams::open(&nats, &config.streams, config.create).await?;
                let questions = claim::listen(&nats.client).await?;
                if let Some(other) = claim::ask(&nats.client, &own).await? {
                    return Ok(Err(other));
                }
                let consumer = streams::consumer(&streams.inbound).await?;
                unreadable::bury_all(&nats, &streams, &consumer).await?;
                Ok(Ok((Connected { nats: nats.clone(), streams, consumer }, questions)))
            };
            let opened: Result<_, Unusable> = opened.await;
            Ok((nats.clone(), opened))
        };
        let round = self.round;
        ctx.spawn(opened.into_actor(self).map(move |opened: Result<_, Unusable>, bus, ctx| {
            if round != bus.round {
                return;
            }
            match opened {
                Ok((nats, opened)) => {
                    bus.nats = Some(nats);
                    match opened {
                        Ok(Ok((connected, questions))) => bus.begin(connected, questions, ctx),
                        Ok(Err(other)) => bus.stand_back(&other, ctx),
                        Err(unusable) => bus.fail(unusable, ctx),
                    }
                }
                Err(unusable) => bus.fail(unusable, ctx),
            }
        }));
    }

    /// What answers are published with: also while another daemon takes the messages, for those are owed here.
    pub(super) fn publisher(&self) -> Option<Nats> {
        let is_there = matches!(self.phase, Phase::Running | Phase::Claimed(_));
        self.nats.clone().filter(|_| is_there)
    }

    /// Takes no more messages.
    fn close(&mut self, ctx: &mut Context<Self>) {
        self.connected = None;
        self.own.is_taking = false;
        if let Some(pulling) = self.pulling.take() {
            ctx.cancel_future(pulling);
        }
    }

    fn fail(&mut self, Unusable { why, is_refused }: Unusable, ctx: &mut Context<Self>) {
        self.close(ctx);
        self.note(&why);
        // With another client: this one may have ended, and what is wrong may be who we are.
        self.figures.disconnects += self.nats.take().map_or(0, |nats| nats.losses());
        let (phase, pause) = match is_refused {
            true => (Phase::Refused(why.clone()), PAUSE_REFUSED),
            false => {
                let pause = backoff(PAUSE, self.failures, PAUSE_MAX);
                self.failures = self.failures.saturating_add(1);
                (Phase::Away(why.clone()), pause)
            }
        };
        if self.phase != phase {
            tracing::warn!(error = ?why, "the bus can't be used: it is tried again");
            self.phase = phase;
        }
        self.open_again(pause, ctx);
    }

    fn stand_back(&mut self, other: &Daemon, ctx: &mut Context<Self>) {
        self.close(ctx);
        let why = format!(
            "another daemon takes the messages of this bus: process {} on {}, home {}. One daemon has a bus: stop one \
             of them, or take [bus] out of its configuration",
            other.pid, other.host, other.home
        );
        self.note(&why);
        // What is held here is delivered to the other one.
        self.let_go();
        if !matches!(self.phase, Phase::Claimed(_)) {
            tracing::error!("bus: {why}");
        }
        self.phase = Phase::Claimed(why);
        self.refill(ctx);
        self.open_again(PAUSE_CLAIMED, ctx);
    }

    fn open_again(&mut self, pause: Duration, ctx: &mut Context<Self>) {
        let round = self.round;
        ctx.run_later(pause, move |bus, ctx| {
            if bus.round == round {
                bus.open(ctx);
            }
        });
    }

    fn begin(
        &mut self,
        connected: Connected,
        mut questions: async_nats::Subscriber,
        ctx: &mut Context<Self>,
    ) {
        let info = connected.consumer.cached_info();
        self.unsettled_up_to = if info.num_ack_pending > 0 { info.delivered.stream_sequence } else { 0 };
        (self.figures.pending, self.figures.ack_pending) = (info.num_pending, info.num_ack_pending);
        self.failures = 0;
        self.stream_made = streams::made(&connected.streams.inbound);
        self.kept_alive = clock::now();
        self.losses_seen = connected.nats.losses();
        self.own.is_taking = true;
        let server = connected.nats.client.server_info();
        tracing::info!(server = %server.server_name, version = %server.version, "bus: taking messages");
        self.phase = Phase::Running;
        let (to, round, consumer) = (ctx.address(), self.round, connected.consumer.clone());
        let (client, own) = (connected.nats.client.clone(), self.own.clone());
        self.connected = Some(connected);
        let pulled = async move {
            let answered = async {
                while let Some(question) = questions.next().await {
                    claim::answer(&client, &own, question).await;
                }
            };
            let pulled = pull(consumer, to);
            futures::pin_mut!(answered, pulled);
            match futures::future::select(answered, pulled).await {
                futures::future::Either::Left(_) => Unusable::away("the connection is closed"),
                futures::future::Either::Right((why, _)) => why,
            }
        };
        self.pulling = Some(ctx.spawn(pulled.into_actor(self).map(move |unusable, bus, ctx| {
            if round == bus.round {
                bus.pulling = None;
                bus.fail(unusable, ctx);
            }
        })));
        self.look(round, ctx);
        self.check_claim(round, ctx);
        self.take_next(ctx);
        self.refill(ctx);
    }

    /// Asks the servers how streams and consumer are, again and again.
    fn look(&mut self, round: u64, ctx: &mut Context<Self>) {
        let Some(connected) = self.connected.clone().filter(|_| round == self.round) else { return };
        let losses = connected.nats.losses();
        let was_lost = std::mem::replace(&mut self.losses_seen, losses) != losses;
        let looked = async move {
            if was_lost {
                // Maybe because of what nobody can read.
                let _ = unreadable::bury_all(&connected.nats, &connected.streams, &connected.consumer).await;
            }
            let (consumer, dead) = (connected.consumer.get_info(), connected.streams.dead.get_info());
            let looked = futures::join!(consumer, dead, connected.streams.answers.get_info());
            (looked.0.ok(), looked.1.ok(), looked.2.ok())
        };
        ctx.spawn(looked.into_actor(self).map(move |(consumer, dead, answers), bus, ctx| {
            if let Some(info) = consumer {
                bus.figures.pending = info.num_pending;
                bus.figures.ack_pending = info.num_ack_pending;
                if info.num_ack_pending == 0 || info.ack_floor.stream_sequence >= bus.unsettled_up_to {
                    bus.unsettled_up_to = 0;
                }
            }
            if let Some(info) = dead {
                bus.figures.dead = info.state.messages;
            }
            if let Some(info) = answers {
                bus.figures.answers = info.state.messages;
            }
            let pause = if bus.unsettled_up_to > 0 { LOOK_SOON } else { LOOK };
            ctx.run_later(pause, move |bus, ctx| bus.look(round, ctx));
        }));
    }

    /// Asks whether another daemon goes before this one, again and again.
    fn check_claim(&self, round: u64, ctx: &mut Context<Self>) {
        ctx.run_later(CLAIM_CHECK, move |bus, ctx| {
            let Some(connected) = bus.connected.clone().filter(|_| round == bus.round) else { return };
            let own = bus.own.clone();
            let asked = async move { claim::ask(&connected.nats.client, &own).await };
            ctx.spawn(asked.into_actor(bus).map(move |asked, bus, ctx| match asked {
                Ok(Some(other)) if round == bus.round => bus.stand_back(&other, ctx),
                _ => bus.check_claim(round, ctx),
            }));
        });
    }

    /// Where this process stood still for so long that what it holds may have been delivered to another one, all of it
    /// is let go, and it connects anew. Says whether that is so.
    pub(super) fn starts_over(&mut self, ctx: &mut Context<Self>) -> bool {
        let stood_still = self.connected.is_some() && clock::now().since(self.kept_alive) > streams::ACK_WAIT;
        if stood_still {
            self.let_go();
            self.connect_anew("the daemon stood still for a while", ctx);
        }
        stood_still
    }

    /// Connects anew, looks for the streams, and makes them where that is wanted.
    pub(super) fn connect_anew(&mut self, why: &str, ctx: &mut Context<Self>) {
        if self.connected.is_some() {
            self.round += 1;
            self.fail(Unusable::away(why), ctx);
        }
    }

    /// Whether something may be said to this peer without having been asked: one that has written, or that a binding
    /// names.
    fn may_say(&self, peer: &Peer) -> impl Future<Output = Result<(), Error>> + use<> {
        let router = &self.around.agent_configs.get().router;
        let route = peer.route(None, None);
        let is_bound = router.is_bound(&route);
        let session = router.session_key(&route).map(|key| key.in_space(&self.owner));
        let (store, channel, peer) = (self.around.store.clone(), peer.channel.clone(), peer.peer.clone());
        async move {
            if is_bound || ask(&store, ReadRow(session?)).await.flatten()?.is_some() {
                return Ok(());
            }
            let peer = &peer[..peer.floor_char_boundary(64)];
            let why = format!(
                "{peer:?} never wrote over the channel {channel} of the bus, and no binding names them: nothing is said"
            );
            Err(ErrorCode::Forbidden.error(why))
        }
    }
}

/// Hands messages over as they come; ends with why none come any more.
async fn pull(consumer: Consumer<pull::Config>, to: Addr<BusActor>) -> Unusable {
    let away = |why: String| Unusable::away(format!("no messages can be had: {why}"));
    let stream = consumer.stream().max_messages_per_batch(BATCH).expires(EXPIRES).heartbeat(HEARTBEAT);
    let messages = match stream.messages().await {
        Ok(messages) => messages,
        Err(error) => return away(one_line(&error)),
    };
    let mut chunks = messages.ready_chunks(CHUNK);
    while let Some(chunk) = chunks.next().await {
        let mut failed = None;
        let deliveries = chunk.into_iter().filter_map(|message| match message {
            Ok(message) => Some(message),
            Err(error) => {
                failed = Some(one_line(&error));
                None
            }
        });
        let deliveries: Vec<_> = deliveries.collect();
        if !deliveries.is_empty() && to.send(Arrivals(deliveries)).await.is_err() {
            return away("the daemon stops".to_owned());
        }
        if let Some(why) = failed {
            return away(why);
        }
    }
    away("the server ended it".to_owned())
}

/// Messages, in the order in which they came.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Arrivals(pub(super) Vec<async_nats::jetstream::Message>);

impl Actor for BusActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let may_prompt = self.config.scopes.is_none_or(|scopes| scopes.allows(Scope::Write));
        if !may_prompt {
            tracing::warn!(principal = %self.config.principal, "bus.principal may not prompt: every message is refused");
        }
        self.open(ctx);
        ctx.run_interval(KEEP_ALIVE, |bus, ctx| bus.keep_alive(ctx));
        ctx.run_interval(LAG_CHECK, |bus, ctx| {
            if bus.line.is_lagging() {
                bus.listen_anew(ctx);
            }
            bus.refill(ctx);
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        // It has the thread for itself.
        Arbiter::current().stop();
    }
}

impl Handler<Arrivals> for BusActor {
    type Result = ();

    fn handle(&mut self, Arrivals(messages): Arrivals, ctx: &mut Self::Context) {
        for message in messages {
            self.arrived(message, ctx);
        }
        self.take_next(ctx);
    }
}

impl Handler<Deliver> for BusActor {
    type Result = ();

    fn handle(&mut self, delivery: Deliver, ctx: &mut Self::Context) {
        match delivery {
            Deliver::Reply(ticket, reply) => self.replied(ticket, reply, ctx),
            Deliver::Event { ticket, event, .. } => self.heard(ticket, &event, ctx),
            Deliver::Announced | Deliver::Progress(..) | Deliver::Invoke(_) => {}
        }
    }
}

impl Handler<OutboxGrew> for BusActor {
    type Result = ();

    fn handle(&mut self, _: OutboxGrew, ctx: &mut Self::Context) {
        self.refill(ctx);
    }
}

impl Handler<Say> for BusActor {
    type Result = ResponseActFuture<Self, Result<Owner, Error>>;

    fn handle(&mut self, say: Say, _: &mut Self::Context) -> Self::Result {
        let account = say.account.unwrap_or_else(|| "main".to_owned());
        let peer = Peer { channel: say.channel, account, peer: say.peer };
        let (may_say, ledger) = (self.may_say(&peer), self.ledger());
        let said = async move {
            may_say.await?;
            let saying = Saying {
                conversation: peer.subject(),
                address: Address::new(peer, None, None).to_json(),
                words: Words::Answer(ChannelAnswer::said(&say.id, say.text).to_json()),
            };
            ledger.try_write(vec![ChannelChange::SayOnce(format!("said {}", say.id), saying)]).await
        };
        Box::pin(said.into_actor(self).map(|written, bus, ctx| {
            bus.refill(ctx);
            written.map(|()| bus.owner.clone())
        }))
    }
}

impl Handler<AskDeadLetters> for BusActor {
    type Result = ResponseFuture<Result<Vec<DeadLetter>, Error>>;

    fn handle(&mut self, AskDeadLetters(asked): AskDeadLetters, _: &mut Self::Context) -> Self::Result {
        let connected = self.connected.clone().filter(|connected| connected.nats.is_up());
        let (phase, why) = self.told();
        let why = format!("the bus is {phase}: {}", why.unwrap_or("try again in a moment"));
        Box::pin(async move {
            let Connected { nats, streams, .. } =
                connected.ok_or_else(|| ErrorCode::Unavailable.error(why))?;
            dead_letters::answer(&nats, &streams.dead, asked).await
        })
    }
}

impl Handler<End> for BusActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: End, ctx: &mut Self::Context) -> Self::Result {
        self.is_open = false;
        self.round += 1;
        if let Some(pulling) = self.pulling.take() {
            ctx.cancel_future(pulling);
        }
        let on_their_way = self.outlet.on_their_way();
        let landed = async move {
            let over = async {
                while on_their_way.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                    sleep(END_LOOK).await;
                }
            };
            let _ = timeout(END_MAX, over).await;
        };
        let client = self.nats.as_ref().map(|nats| nats.client.clone());
        Box::pin(landed.into_actor(self).map(|(), _, ctx| ctx.stop()).then(move |(), bus, _| {
            let flushed = async move {
                if let Some(client) = client {
                    // So that acknowledgements are on their way.
                    let _ = timeout(END_LOOK * 50, client.flush()).await;
                }
            };
            flushed.into_actor(bus)
        }))
    }
}

impl BusActor {
    /// How it is, and why; none where nothing is wrong.
    fn told(&self) -> (&'static str, Option<&str>) {
        match &self.phase {
            Phase::Running if self.nats.as_ref().is_some_and(|nats| !nats.is_up()) => {
                ("away", Some("the connection is lost"))
            }
            phase => phase.told(),
        }
    }
}

impl Handler<Observe> for BusActor {
    type Result = Observed;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
        let (phase, why) = self.told();
        let server = self.nats.as_ref().map(|nats| nats.client.server_info());
        let figures = &self.figures;
        let state = json!({
            "bus": phase,
            "why": why,
            "servers": self.config.servers,
            "server": server.as_ref().map(|info| &info.server_name),
            "version": server.as_ref().map(|info| &info.version),
            "streams": self.config.streams,
            "principal": self.config.principal,
            "lag": figures.pending,
            "ack_pending": figures.ack_pending,
            "held": self.peers.len(),
            "peers": self.peers.peers(),
            "prompting": self.attempts.len(),
            "given_back": self.peers.given_back(),
            "live": self.live.len(),
            "outbox": self.outlet.len(),
            "failing": self.outlet.failing(),
            "outbox_oldest_ms": self.outlet.oldest().map(Timestamp::as_millis),
            "answers": figures.answers,
            "dead_letters": figures.dead,
            "received_total": figures.received,
            "prompted_total": figures.prompted,
            "repeated_total": figures.repeated,
            "redelivered_total": figures.redelivered,
            "given_back_total": figures.given_back,
            "refused_total": figures.refused,
            "buried_total": figures.buried,
            "published_total": figures.published,
            "publish_failures_total": figures.publish_failures,
            "disconnects_total": figures.disconnects + self.nats.as_ref().map_or(0, Nats::losses),
            "last_error": figures.last_error.as_ref().map(|(error, _)| error),
            "last_error_ms": figures.last_error.as_ref().map(|(_, at)| at.as_millis()),
        });
        Observed::leaf("bus", state)
    }
}
