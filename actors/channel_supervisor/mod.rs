//! Who knows the channels and the bus: name to actor, starting anew what crashed, and going over to another
//! configuration. It is the one way out to people elsewhere: what is said over a channel that is not configured goes to
//! the bus, where there is one.
//!
//! In a cluster one daemon at a time has channels and the bus ([`Lead`]); what a session of another one has said is in
//! the store here, too.
//!
//! What platforms send to `/webhook/NAME` finds its channel in [`Webhooks`], and asks nobody here.

mod webhooks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use actix::prelude::*;
use clawmux_core::config::{self, ChannelMode};
use clawmux_core::daemon::operator::DeadLetter;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::Owner;
use clawmux_core::prompt::answer_to::BUS_CHANNEL;
use futures::future::join_all;
use serde_json::json;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::bus::{self, AskDeadLetters, Bus, End};
use crate::channel::{Channel, Configure, Land, LetIn, ShutOut, Surroundings, Unsent};
use crate::runtime::ask::ask;
use crate::runtime::lead::Lead;
use crate::runtime::line::Begin;
use crate::runtime::observe::{Observe, Observed, TIMEOUT, observe};
use crate::runtime::say::{OutboxGrew, Say};
use crate::runtime::supervision::{Down, Guard, Restarts};
use crate::store::{TableChanged, watch};

pub use webhooks::{Delivered, Webhooks};

use webhooks::{Door, Doors, READING_OF_CHANNEL_MAX};

/// Requests that wait in the mailbox.
const MAILBOX: usize = 256;

/// See the module.
pub struct ChannelSupervisor {
    around: Surroundings,
    configured: Vec<config::Channel>,
    /// Whether they are served here.
    leads: bool,
    /// Channels that come to their end because they are served elsewhere.
    landing: usize,
    /// None until sessions can be asked.
    sessions: Option<Begin>,
    channels: BTreeMap<String, Entry>,
    shared: watch::Sender<Option<Arc<Doors>>>,
    generation: u64,
    bus: BusEntry,
}

/// The bus, as it is and as it shall be.
struct BusEntry {
    around: bus::Surroundings,
    configured: Option<config::Bus>,
    /// None where there is none, or it is out of order.
    to: Option<Bus>,
    /// What it was started with.
    config: Option<config::Bus>,
    generation: u64,
    restarts: Restarts,
    /// Why there is none.
    why: Option<String>,
}

struct Entry {
    config: config::Channel,
    /// Whether the configuration has it: one that it has no more begins nothing.
    is_configured: bool,
    to: Addr<Channel>,
    generation: u64,
    restarts: Restarts,
    /// See [`Door`].
    reading: Arc<Semaphore>,
}

/// Goes over to these channels and to this bus: what is as it was goes on.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub struct Reconfigure(pub Vec<config::Channel>, pub Option<config::Bus>);

/// Lets somebody in who was told this code; answered with who that is.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<String, Error>")]
pub struct PairPeer {
    /// The channel.
    pub channel: String,
    /// The code.
    pub code: String,
}

/// Lets somebody in no more who was let in with a code.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct UnpairPeer {
    /// The channel.
    pub channel: String,
    /// Who.
    pub name: String,
}

/// What becomes of an answer that could not be sent.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct SettleUnsent {
    /// The channel.
    pub channel: String,
    /// Which answer, and what becomes of it.
    pub unsent: Unsent,
}

impl ChannelSupervisor {
    /// For these channels and this bus, which are started once sessions can be asked; where this daemon does not lead
    /// its cluster, once it does.
    pub fn new(
        configured: Vec<config::Channel>,
        around: Surroundings,
        bus: Option<config::Bus>,
        around_bus: bus::Surroundings,
        leads: bool,
    ) -> Self {
        let bus = BusEntry {
            around: around_bus,
            configured: bus,
            to: None,
            config: None,
            generation: 0,
            restarts: Restarts::default(),
            why: None,
        };
        Self {
            bus,
            around,
            configured,
            leads,
            landing: 0,
            sessions: None,
            channels: BTreeMap::new(),
            shared: watch::Sender::default(),
            generation: 0,
        }
    }

    /// Where webhook requests find their channels, as they come and go.
    pub fn webhooks(&self) -> Webhooks {
        Webhooks::new(self.shared.subscribe(), self.around.tools.clone())
    }

    /// Starts what is configured and not there, where it is served here.
    fn begin_all(&mut self, ctx: &Context<Self>) {
        if self.leads && self.landing == 0 {
            for config in self.configured.clone() {
                if !self.channels.contains_key(&config.name) {
                    self.begin(config, Restarts::default(), ctx);
                }
            }
            self.begin_bus(ctx);
        }
        self.share();
    }

    fn begin(&mut self, config: config::Channel, restarts: Restarts, ctx: &Context<Self>) {
        let Some(sessions) = self.sessions.clone() else { return };
        self.generation += 1;
        let generation = self.generation;
        let guard = Guard::new(config.name.as_str(), generation, ctx.address().recipient());
        let to = Channel::new(config.clone(), self.around.clone(), sessions, guard).start();
        let reading = Arc::new(Semaphore::new(READING_OF_CHANNEL_MAX));
        let entry = Entry { config, is_configured: true, to, generation, restarts, reading };
        self.channels.insert(entry.config.name.clone(), entry);
    }

    /// Starts the bus, where one is configured and none is there.
    fn begin_bus(&mut self, ctx: &Context<Self>) {
        let (Some(sessions), None, true) = (self.sessions.clone(), &self.bus.to, self.leads) else { return };
        let Some(config) = self.bus.configured.clone() else { return };
        self.generation += 1;
        let guard = Guard::new(BUS_CHANNEL, self.generation, ctx.address().recipient());
        (self.bus.generation, self.bus.config) = (self.generation, Some(config.clone()));
        match Bus::start(config, self.bus.around.clone(), sessions, guard) {
            Ok(bus) => (self.bus.to, self.bus.why) = (Some(bus), None),
            Err(error) => {
                tracing::error!(%error, "the bus can't be started");
                self.bus.why = Some(error.message);
            }
        }
    }

    /// Who carries what is said over this channel.
    fn carrier(&self, channel: &str) -> Result<Recipient<Say>, Error> {
        match (self.channels.get(channel), &self.bus.to) {
            (Some(entry), _) => Ok(entry.to.clone().recipient()),
            (None, Some(bus)) => Ok(bus.say.clone()),
            (None, None) => self.named(channel).map(Addr::recipient),
        }
    }

    fn share(&self) {
        let door = |entry: &Entry| match &entry.config.mode {
            ChannelMode::Poll(_) => None,
            ChannelMode::Webhook(secret) => Some(Door {
                to: entry.to.clone(),
                adapter: entry.config.adapter.clone(),
                secret: secret.clone(),
                reading: Arc::clone(&entry.reading),
            }),
        };
        let there = self.channels.iter().filter(|(_, entry)| entry.is_configured);
        let doors = there.filter_map(|(name, entry)| Some((name.clone(), door(entry)?)));
        self.shared.send_replace(self.leads.then(|| Arc::new(doors.collect())));
    }

    fn named(&self, name: &str) -> Result<Addr<Channel>, Error> {
        let known = self.channels.get(name).map(|entry| entry.to.clone());
        known.ok_or_else(|| {
            let names: Vec<&str> = self.channels.keys().map(String::as_str).collect();
            let there = match names.is_empty() {
                true => "none is configured".to_owned(),
                false => format!("there are: {}", names.join(", ")),
            };
            ErrorCode::NotFound.error(format!("there is no channel {name:?}; {there}"))
        })
    }
}

impl Actor for ChannelSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        let store = self.around.store.clone();
        watch(&store, "channels", self, ctx);
    }
}

/// Another daemon of the cluster has something said.
impl Handler<TableChanged> for ChannelSupervisor {
    type Result = ();

    fn handle(&mut self, _: TableChanged, _: &mut Self::Context) {
        // One that is not heard is found when the channel or the bus next looks.
        for (name, entry) in &self.channels {
            let _ = entry.to.try_send(OutboxGrew(name.clone()));
        }
        if let Some(bus) = &self.bus.to {
            let _ = bus.outbox.try_send(OutboxGrew(BUS_CHANNEL.to_owned()));
        }
    }
}

/// From here on channels prompt; what waits in them goes on.
impl Handler<Begin> for ChannelSupervisor {
    type Result = ();

    fn handle(&mut self, begin: Begin, ctx: &mut Self::Context) {
        self.sessions = Some(begin);
        self.begin_all(ctx);
    }
}

impl Handler<Reconfigure> for ChannelSupervisor {
    type Result = ();

    fn handle(&mut self, Reconfigure(configured, bus): Reconfigure, ctx: &mut Self::Context) {
        self.bus.configured = bus;
        self.bus.restarts = Restarts::default();
        self.configured = configured;
        if let Some(bus) = &self.bus.to
            && self.bus.config != self.bus.configured
        {
            // When it is gone, another one is started as it is configured then.
            let _ = bus.end.try_send(End);
        }
        // An actor stays that was there once: two of one channel would send everything twice.
        for entry in self.channels.values_mut() {
            let now = self.configured.iter().find(|config| config.name == entry.config.name);
            if now == Some(&entry.config) && entry.is_configured {
                continue;
            }
            entry.is_configured = now.is_some();
            if let Some(now) = now {
                entry.config = now.clone();
            }
            // One that is gone is started anew as it is configured now.
            let _ = entry.to.try_send(Configure(now.cloned()));
        }
        self.begin_all(ctx);
    }
}

impl Handler<Lead> for ChannelSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Lead(leads): Lead, ctx: &mut Self::Context) -> Self::Result {
        let led = std::mem::replace(&mut self.leads, leads);
        if leads || !led {
            self.begin_all(ctx);
            return Box::pin(async {});
        }
        let all: Vec<Addr<Channel>> =
            std::mem::take(&mut self.channels).into_values().map(|entry| entry.to).collect();
        let bus = self.bus.to.take().map(|bus| bus.end);
        self.share();
        self.landing += 1;
        let (landed, over) = oneshot::channel::<()>();
        ctx.spawn(land(all, bus).into_actor(self).map(move |(), supervisor, ctx| {
            supervisor.landing -= 1;
            supervisor.begin_all(ctx);
            drop(landed);
        }));
        Box::pin(async move {
            let _ = over.await;
        })
    }
}

/// Has channels and the bus come to their end.
async fn land(channels: Vec<Addr<Channel>>, bus: Option<Recipient<End>>) {
    let ended = async move {
        if let Some(end) = bus {
            let _ = end.send(End).await;
        }
    };
    futures::join!(join_all(channels.iter().map(|to| to.send(Land))), ended);
}

impl Handler<PairPeer> for ChannelSupervisor {
    type Result = ResponseFuture<Result<String, Error>>;

    fn handle(&mut self, PairPeer { channel, code }: PairPeer, _: &mut Self::Context) -> Self::Result {
        let to = self.named(&channel);
        Box::pin(async move { ask(&to?, LetIn(code)).await? })
    }
}

impl Handler<UnpairPeer> for ChannelSupervisor {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, UnpairPeer { channel, name }: UnpairPeer, _: &mut Self::Context) -> Self::Result {
        let to = self.named(&channel);
        Box::pin(async move { ask(&to?, ShutOut(name)).await? })
    }
}

impl Handler<Say> for ChannelSupervisor {
    type Result = ResponseFuture<Result<Owner, Error>>;

    fn handle(&mut self, say: Say, _: &mut Self::Context) -> Self::Result {
        let to = match self.sessions {
            None => Err(ErrorCode::Unavailable.error("the channels are not there yet")),
            Some(_) => self.carrier(&say.channel),
        };
        Box::pin(async move {
            let gone = |_| ErrorCode::Unavailable.error("the channel is busy, or being started anew");
            to?.send(say).await.map_err(gone)?
        })
    }
}

impl Handler<OutboxGrew> for ChannelSupervisor {
    type Result = ();

    fn handle(&mut self, grew: OutboxGrew, _: &mut Self::Context) {
        // One that is not heard is found when the channel or the bus next looks.
        match (self.channels.get(&grew.0), &self.bus.to) {
            (Some(entry), _) => drop(entry.to.try_send(grew)),
            (None, Some(bus)) if grew.0 == BUS_CHANNEL => drop(bus.outbox.try_send(grew)),
            (None, _) => {}
        }
    }
}

impl Handler<AskDeadLetters> for ChannelSupervisor {
    type Result = ResponseFuture<Result<Vec<DeadLetter>, Error>>;

    fn handle(&mut self, asked: AskDeadLetters, _: &mut Self::Context) -> Self::Result {
        let bus = self.bus.to.as_ref().map(|bus| bus.dead_letters.clone());
        Box::pin(async move {
            let bus = bus.ok_or_else(bus::none)?;
            let gone =
                |_| ErrorCode::Unavailable.error("the bus is being started anew: try again in a moment");
            bus.send(asked).await.map_err(gone)?
        })
    }
}

impl Handler<SettleUnsent> for ChannelSupervisor {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(
        &mut self,
        SettleUnsent { channel, unsent }: SettleUnsent,
        _: &mut Self::Context,
    ) -> Self::Result {
        let to = self.named(&channel);
        Box::pin(async move { ask(&to?, unsent).await? })
    }
}

/// Nothing new is begun any more; answered when of every request it is written down what became of it.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct LandAll;

impl Handler<LandAll> for ChannelSupervisor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: LandAll, _: &mut Self::Context) -> Self::Result {
        // None is started again.
        self.bus.configured = None;
        self.configured.clear();
        let all = std::mem::take(&mut self.channels).into_values().map(|entry| entry.to).collect();
        self.share();
        Box::pin(land(all, self.bus.to.as_ref().map(|bus| bus.end.clone())))
    }
}

impl ChannelSupervisor {
    fn bus_is_down(&mut self, down: &Down, ctx: &Context<Self>) {
        if down.generation != self.bus.generation {
            return;
        }
        self.bus.to = None;
        if !self.leads {
            return;
        }
        if self.bus.config != self.bus.configured {
            // It was ended.
            return self.begin_bus(ctx);
        }
        if self.bus.restarts.allow(Instant::now()) {
            tracing::error!(panicked = down.panicked, "the bus: its actor stopped: restarting it");
            self.begin_bus(ctx);
        } else {
            tracing::error!(
                "the bus: its actor crashed too often: it is out of order until the configuration is reloaded"
            );
        }
    }
}

impl Handler<Down> for ChannelSupervisor {
    type Result = ();

    fn handle(&mut self, down: Down, ctx: &mut Self::Context) {
        if down.name == BUS_CHANNEL {
            return self.bus_is_down(&down, ctx);
        }
        // One that was taken away is not in the table any more, or a later start is.
        let Some(entry) = self.channels.get_mut(&down.name) else { return };
        if entry.generation != down.generation {
            return;
        }
        if !entry.is_configured {
            self.channels.remove(&down.name);
            return;
        }
        if entry.restarts.allow(Instant::now()) {
            tracing::error!(channel = %down.name, panicked = down.panicked, "channel: its actor stopped: restarting it");
            let (config, restarts) = (entry.config.clone(), std::mem::take(&mut entry.restarts));
            self.begin(config, restarts, ctx);
            self.share();
        } else {
            tracing::error!(channel = %down.name, "channel: its actor crashed too often: it is out of order");
        }
    }
}

impl Handler<Observe> for ChannelSupervisor {
    type Result = ResponseFuture<Observed>;

    fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
        let restarts: u64 = self.channels.values().map(|entry| entry.restarts.total()).sum();
        let state = json!({ "channels": self.channels.len(), "restarts_total": restarts });
        let observed = Observed::leaf("channel supervisor", state);
        let there = self.channels.iter().filter(|(_, entry)| entry.is_configured);
        let asked = there.map(|(name, entry)| {
            let (name, to) = (name.clone(), entry.to.clone());
            async move {
                let mut child = observe(format!("channel {name}"), to, TIMEOUT).await;
                child.state["channel"] = name.into();
                child
            }
        });
        let asked = join_all(asked);
        let bus = self.bus.to.as_ref().map(|bus| bus.observe.clone());
        let missing = self.bus.configured.is_some().then(|| self.bus.why.clone());
        Box::pin(async move {
            let mut children = asked.await;
            if let Some(bus) = bus {
                let mut child = observe("bus", bus, TIMEOUT).await;
                if child.silent.is_some() {
                    child.state = json!({ "bus": "away" });
                }
                children.push(child);
            } else if let Some(why) = missing {
                let why = why.unwrap_or_else(|| "it is out of order: see the log".to_owned());
                children.push(Observed::leaf("bus", json!({ "bus": "refused", "why": why })));
            }
            observed.with_children(children)
        })
    }
}
