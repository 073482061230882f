//! How the cluster is: for operators, and for those who write.
//!
//! The leader of the log is asked every second how far that reaches. Where nobody answers for [`STALL_MS`], or nothing
//! that is published is acknowledged for so long, the store counts as one that can't be written: new work is refused
//! with the reason, what runs waits, and both go on by themselves when the log does.
//!
//! Every heartbeat says how far its node's store is, with the chain over all records up to there. Where two were at the
//! same record, it is seen whether they are alike. Deliberately absent: a decision which of two that differ is right.

mod report;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix::{AsyncContext as _, Context, Handler, Message, ResponseFuture, StreamHandler};
use clawmux_core::cluster::node::{Heartbeat, NODES_MAX, NodeName, NodeState};
use clawmux_core::cluster::ownership::appender::STALL_MS;
use clawmux_core::cluster::ownership::slots::Input;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::replica::digest::Digest;
use clawmux_core::replica::record::ENVELOPE_VERSION;
use clawmux_core::time::Timestamp;
use tokio::sync::oneshot;

use super::engine::{Beat, Extent, HandOverAsked, LogServers, Node, is_full};
use super::{Cluster, Leave, now_ms};
use crate::in_cluster::{Depart, GiveAway};
use crate::runtime::clock;
use crate::store::{LogWriter, ReadPosition};

/// How long nothing may come of a log that goes on, in milliseconds.
const STILL_MS: u64 = 4_000;

/// How long a node was not heard that makes room for another one.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// How long a store can't follow the log until its node gives its slots away, and can again until it takes some, in
/// milliseconds.
const GIVES_WAY_MS: u64 = 3_000;

/// What servers say that have lost the log.
const NO_STREAM: &str = "10059";

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);

/// Every so many looks it is read which nodes there are.
const NODES_EVERY: u64 = 10;

/// How long it may take to give everything away.
const DEPART_MAX: Duration = Duration::from_secs(3);

/// So many places are known at which this store was.
const PLACES_MAX: usize = 128;

/// What was last seen of the cluster.
#[derive(Default)]
pub(super) struct Outlook {
    /// The name of the cluster and its servers, for operators.
    pub(super) about: About,
    /// Who is told why nothing can be written.
    log_writer: Option<LogWriter>,
    log: Option<(Extent, LogServers, Timestamp)>,
    /// Why the leader did not answer last.
    silent: Option<String>,
    /// Why a record was not acknowledged last.
    unknown: Option<String>,
    looks: u64,
    is_asking: bool,
    /// When the leader answered last, and when it acknowledged something, in milliseconds of this process's clock.
    answered_ms: u64,
    acked_ms: u64,
    /// How many records were acknowledged, and how long that took in all, in microseconds.
    acks: u64,
    ack_us: u64,
    /// How far the store was, and when it was seen to go further, or to be at the end.
    followed: (u64, u64),
    /// When the log was last followed anew because of that.
    begun_anew_ms: u64,
    /// Why the store can't go on with the log.
    held_up: Option<String>,
    /// Since when the store can't be written, or can again, in milliseconds of this process's clock.
    able: (bool, u64),
    /// Whether the slots are given away because of that.
    gives_way: bool,
    /// Places at which this store was, the latest last.
    places: VecDeque<(u64, Digest)>,
    /// The other nodes, as they were heard.
    heard: BTreeMap<NodeName, Peer>,
    /// The nodes that ever joined.
    nodes: Vec<Node>,
    gained: u64,
    lost: u64,
    /// Those who wait until everything is given away.
    departing: Vec<oneshot::Sender<()>>,
}

/// What the cluster is called, and by what it is reached.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) name: String,
    pub(super) servers: Vec<String>,
}

/// Another node, as it was heard last.
#[derive(Debug)]
struct Peer {
    heartbeat: Heartbeat,
    at: Timestamp,
    applied: Option<u64>,
    /// The latest version of records that it reads.
    reads: u32,
    /// Whether its store is as this one.
    agrees: Option<bool>,
}

impl Outlook {
    pub(super) fn new(now_ms: u64) -> Self {
        let (followed, able) = ((0, now_ms), (true, now_ms));
        Self { answered_ms: now_ms, acked_ms: now_ms, followed, able, ..Self::default() }
    }

    /// A record was acknowledged, after so long.
    pub(super) fn acked(&mut self, took: Duration) {
        self.acks += 1;
        self.ack_us += u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.acked_ms = now_ms();
        self.unknown = None;
    }

    /// What became of a record is not known, for this reason.
    pub(super) fn unknown(&mut self, why: &str) {
        self.unknown = Some(why.to_owned());
    }

    /// The store can't go on with the log, for this reason; says whether that is new.
    pub(super) fn is_held_up(&mut self, why: &str) -> bool {
        self.held_up.replace(why.to_owned()).is_none_or(|before| before != why)
    }

    /// Whether what others decide does not come: the log does not answer, or the store does not follow it.
    fn is_cut_off(&self, now: u64) -> bool {
        [self.answered_ms, self.followed.1].iter().any(|at| now.saturating_sub(*at) >= STALL_MS)
    }

    /// The store goes on with the log.
    pub(super) fn goes_on(&mut self) {
        self.held_up = None;
        self.is_able(true);
    }

    /// Whether the store could be written.
    pub(super) fn is_able(&mut self, is_able: bool) {
        if self.able.0 != is_able {
            self.able = (is_able, now_ms());
        }
    }

    /// A slot was gained.
    pub(super) fn gained(&mut self) {
        self.gained += 1;
    }

    /// Another daemon took a slot.
    pub(super) fn lost(&mut self) {
        self.lost += 1;
    }

    /// All slots are given away.
    pub(super) fn drained(&mut self) {
        for departing in self.departing.drain(..) {
            // Whoever does not wait any more has no use for it.
            let _ = departing.send(());
        }
    }

    /// What a heartbeat says besides.
    pub(super) fn beat(&self, heartbeat: Heartbeat) -> Beat {
        Beat { heartbeat, at: self.places.back().copied(), reads: ENVELOPE_VERSION }
    }

    /// Takes a heartbeat in.
    pub(super) fn heard(&mut self, Beat { heartbeat, at, reads }: &Beat) {
        if self.heard.len() >= NODES_MAX && !self.heard.contains_key(&heartbeat.from.node) {
            let now = clock::now();
            self.heard.retain(|_, peer| now.since(peer.at) < FORGOTTEN);
            if self.heard.len() >= NODES_MAX {
                return;
            }
        }
        // Of a daemon that was started anew nothing is known: its store may be another one.
        let peer = self.heard.get(&heartbeat.from.node);
        let before = peer.filter(|peer| peer.heartbeat.from == heartbeat.from).and_then(|peer| peer.agrees);
        let ours = at.and_then(|(place, _)| self.places.iter().find(|(ours, _)| *ours == place));
        let agrees = at.zip(ours).map(|((_, theirs), (_, ours))| theirs == *ours);
        let node = heartbeat.from.node.clone();
        if agrees == Some(false) && before != Some(false) {
            let place = at.map_or(0, |(place, _)| place);
            tracing::error!(%node, place, "cluster: its store is not as this one, though both have the same records");
        }
        let peer = Peer {
            heartbeat: heartbeat.clone(),
            at: clock::now(),
            applied: at.map(|(place, _)| place),
            reads: *reads,
            // One that was another once is not alike again until then.
            agrees: if before == Some(false) { before } else { agrees.or(before) },
        };
        self.heard.insert(node, peer);
    }

    /// Whether this node was heard, and can't read records of this version.
    pub(super) fn is_too_old(&self, node: &NodeName, version: u32) -> bool {
        self.heard.get(node).is_some_and(|peer| peer.reads < version)
    }

    /// The other nodes that were heard.
    pub(super) fn others(&self) -> Vec<NodeName> {
        self.heard.keys().cloned().collect()
    }

    fn is_at(&mut self, place: u64, digest: Digest) {
        if self.places.back().is_none_or(|(last, _)| *last != place) {
            self.places.push_back((place, digest));
        }
        if self.places.len() > PLACES_MAX {
            self.places.pop_front();
        }
    }
}

/// From now on the cluster is known by this, and this store counts as one that can't be written while nothing can be.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Begin(pub(super) About, pub(super) LogWriter);

/// Asks how far the store is.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Progress")]
pub(super) struct GetProgress;

/// How far the store is.
#[derive(Clone, Copy, Debug, actix::MessageResponse)]
pub(super) struct Progress {
    /// Whether it has what the log had when the daemon joined.
    pub(super) is_whole: bool,
    /// The last record that it has applied.
    pub(super) applied: u64,
    /// The last record that the log had then; none where that is not known yet.
    pub(super) last: Option<u64>,
}

impl Cluster {
    /// Begins to look, and to be asked.
    pub(super) fn begin_to_look(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(LOOK, Self::look);
        self.be_asked();
    }

    fn be_asked(&mut self) {
        let (engine, node) = (Rc::clone(&self.engine), self.settings.node.clone());
        self.awaited.add(async move { engine.hand_overs_asked(&node).await }, |_, asked, ctx| match asked {
            Ok(asked) => drop(ctx.add_stream(asked)),
            Err(why) => {
                tracing::debug!(why, "cluster: it can't be asked for its slots yet");
                ctx.run_later(LOOK, |cluster, _| cluster.be_asked());
            }
        });
    }

    /// Who is to take what is given away may be gone, or give all away too: nobody would have it.
    fn look_whether_anybody_takes(&mut self, ctx: &mut Context<Self>) {
        let is_asked =
            self.ownership.state() == Some(NodeState::Draining) && self.outlook.departing.is_empty();
        if is_asked && self.ownership.membership().takers(now_ms()).is_empty() {
            tracing::warn!(
                "cluster: no other node takes what this one was to give away: it takes part again"
            );
            self.outlook.gives_way = false;
            self.own(Input::CallOff, ctx);
        }
    }

    /// What this node owned would wait for its store, where that can't be written: others can.
    fn look_whether_it_can_own(&mut self, ctx: &mut Context<Self>) {
        let (is_able, since) = self.outlook.able;
        if now_ms().saturating_sub(since) < GIVES_WAY_MS {
            return;
        }
        if !is_able && self.ownership.state() == Some(NodeState::Live) {
            let because = "since the store can't be written: they are taken back when it can";
            self.outlook.gives_way = self.hand_over(because, ctx).is_some();
        } else if is_able && std::mem::take(&mut self.outlook.gives_way) {
            tracing::info!("cluster: the store can be written again: slots are taken again");
            self.own(Input::CallOff, ctx);
        }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        self.look_whether_anybody_takes(ctx);
        self.look_whether_it_can_own(ctx);
        if !std::mem::replace(&mut self.outlook.is_asking, true) {
            let (engine, store) = (Rc::clone(&self.engine), self.store.clone());
            let is_nodes_turn = self.outlook.looks.is_multiple_of(NODES_EVERY);
            self.outlook.looks += 1;
            let asked = async move {
                let nodes = async { if is_nodes_turn { engine.nodes().await.ok() } else { None } };
                futures::join!(engine.look(), nodes, store.send(ReadPosition))
            };
            self.awaited.add(asked, |cluster, (log, nodes, position), ctx| {
                let outlook = &mut cluster.outlook;
                outlook.is_asking = false;
                if let Some(nodes) = nodes {
                    outlook.nodes = nodes;
                }
                if let Ok(Ok(position)) = position {
                    outlook.is_at(position.applied, position.digest);
                }
                match log {
                    Ok((extent, servers)) => {
                        (outlook.log, outlook.silent) = (Some((extent, servers, clock::now())), None);
                        outlook.answered_ms = now_ms();
                    }
                    Err(why) => outlook.silent = Some(why),
                }
                cluster.tell_whether_it_can_be_written();
                cluster.follow_anew_if_still(ctx);
            });
        }
        self.tell_whether_it_can_be_written();
    }

    /// Begins with the log anew where records are there and none comes.
    fn follow_anew_if_still(&mut self, ctx: &mut Context<Self>) {
        let (now, (at, since)) = (now_ms(), self.outlook.followed);
        let is_still = now.saturating_sub(since) >= STILL_MS && at == self.applied && !self.reads.any();
        if is_still && now.saturating_sub(self.outlook.begun_anew_ms) >= STILL_MS {
            self.outlook.begun_anew_ms = now;
            tracing::warn!(at, "cluster: the log goes on and nothing of it comes: it is followed anew");
            self.follow_later(ctx);
        }
    }

    pub(super) fn tell_whether_it_can_be_written(&mut self) {
        let now = now_ms();
        let outlook = &mut self.outlook;
        let last = outlook.log.as_ref().map_or(0, |(extent, ..)| extent.last.0);
        if outlook.followed.0 != self.applied || self.applied >= last {
            outlook.followed = (self.applied, now);
        }
        let fault = self.why_nothing_can_be_written(now);
        if let Some(log_writer) = &self.outlook.log_writer
            && log_writer.set_away(fault.clone(), self.outlook.is_cut_off(now))
        {
            match fault {
                Some(error) => tracing::error!(%error, "new work is refused until then; reads go on"),
                None => tracing::info!("cluster: new work is taken again"),
            }
        }
    }

    /// Why nothing can be written; none where it can, or where that is not known yet.
    pub(super) fn why_nothing_can_be_written(&self, now: u64) -> Option<Error> {
        let Outlook { log, silent, unknown, answered_ms, acked_ms, followed, held_up, .. } = &self.outlook;
        let is_long_ago = |at: u64| now.saturating_sub(at) >= STALL_MS;
        let because = |why: &Option<String>| why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        if is_long_ago(*answered_ms) && silent.as_ref().is_some_and(|why| why.contains(NO_STREAM)) {
            return Some(ErrorCode::Unavailable.error(
                "the log of the cluster can't be reached: the servers have lost it; `clawmux cluster rebuild` on the node \
                 whose store is furthest begins another log",
            ));
        }
        let away = log.as_ref().map(|(_, servers, _)| servers.most_are_away()).unwrap_or_default();
        let why = if is_long_ago(*answered_ms) {
            format!("the log of the cluster can't be reached{}", because(silent))
        } else if !away.is_empty() {
            format!("the log of the cluster can't be written: {} of its servers are away", away.join(" and "))
        } else if let Some(why) = held_up {
            format!("the store does not follow the log of the cluster: {why}")
        } else if !self.stalled.is_empty() && is_long_ago(*acked_ms) {
            let is_full = unknown.as_ref().is_some_and(|why| is_full(why));
            let remedy = if is_full { ": raise the limit of its stream with `nats stream edit`" } else { "" };
            format!("the log of the cluster can't be written{}{remedy}", because(unknown))
        } else if is_long_ago(followed.1) {
            let last = log.as_ref().map_or(0, |(extent, ..)| extent.last.0);
            format!(
                "the store does not follow the log of the cluster: it is at record {} of {last}",
                followed.0
            )
        } else {
            return None;
        };
        Some(ErrorCode::Unavailable.error(format!("{why}; it goes on by itself when that is over")))
    }

    /// Gives all slots away, as an operator asks, and says how many; none where nobody else is there to take them.
    fn hand_over_as_asked(&mut self, ctx: &mut Context<Self>) -> Option<usize> {
        self.outlook.gives_way = false;
        let because = "as an operator asked; none is taken until a restart or `clawmux drain --off`";
        self.hand_over(because, ctx)
    }

    fn hand_over(&mut self, because: &str, ctx: &mut Context<Self>) -> Option<usize> {
        if self.ownership.membership().takers(now_ms()).is_empty() {
            return None;
        }
        let slots = self.held();
        if self.ownership.state() != Some(NodeState::Draining) {
            tracing::info!("cluster: all slots are being given away, {because}");
        }
        self.own(Input::Drain, ctx);
        Some(slots)
    }
}

impl StreamHandler<HandOverAsked> for Cluster {
    fn handle(&mut self, asked: HandOverAsked, ctx: &mut Context<Self>) {
        let slots = self.hand_over_as_asked(ctx);
        let engine = Rc::clone(&self.engine);
        self.awaited.add(async move { engine.hands_over(asked, slots).await }, |_, answered, _| {
            if let Err(why) = answered {
                tracing::debug!(why, "cluster: who asked for the slots is not answered");
            }
        });
    }

    /// It ends only where the connection does.
    fn finished(&mut self, _: &mut Context<Self>) {}
}

impl Handler<GiveAway> for Cluster {
    type Result = Option<usize>;

    fn handle(&mut self, GiveAway(on): GiveAway, ctx: &mut Self::Context) -> Self::Result {
        if on {
            return self.hand_over_as_asked(ctx).map(|_| self.not_taken());
        }
        self.outlook.gives_way = false;
        self.own(Input::CallOff, ctx);
        Some(self.held())
    }
}

impl Handler<Begin> for Cluster {
    type Result = ();

    fn handle(&mut self, Begin(about, log_writer): Begin, _: &mut Self::Context) {
        (self.outlook.about, self.outlook.log_writer) = (about, Some(log_writer));
    }
}

impl Handler<GetProgress> for Cluster {
    type Result = Progress;

    fn handle(&mut self, _: GetProgress, _: &mut Self::Context) -> Progress {
        let is_whole = self.ownership.state().is_some_and(|state| state != NodeState::Joining);
        Progress { is_whole, applied: self.applied, last: self.catches_up_to }
    }
}

impl Handler<Depart> for Cluster {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Depart, ctx: &mut Self::Context) -> Self::Result {
        let (done, drained) = oneshot::channel();
        self.outlook.departing.push(done);
        if self.held() == 0 {
            self.outlook.drained();
        }
        self.own(Input::Drain, ctx);
        let (me, begin) = (ctx.address(), Instant::now());
        Box::pin(async move {
            if tokio::time::timeout(DEPART_MAX, drained).await.is_err() {
                let after_ms = begin.elapsed().as_millis();
                tracing::warn!(
                    after_ms,
                    "cluster: not everything was given away: others take it after the lease"
                );
            }
            // It may have ended by itself.
            let _ = me.send(Leave).await;
        })
    }
}
