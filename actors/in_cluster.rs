//! A daemon's store and its cluster, as the rest of the daemon sees them: alone, where none is configured, and whether
//! or not this clawmux was built with NATS.

use std::sync::Arc;

use actix::{Addr, ArbiterHandle, Message, Recipient};
use clawmux_core::daemon::cluster::{GetClusterStatus, HandOver, ListSlots};
use clawmux_core::error::{Error, ErrorCode};

use crate::files::Elsewhere;
use crate::mirror::remote::{Attend, Remote};
use crate::runtime::ask::Typed;
use crate::runtime::lane::Lanes;
use crate::runtime::observe::Observe;
use crate::store::{LogWriter, Store};

/// A store that can be written.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Addr<Store>,
    /// What sessions write with.
    pub log_writer: LogWriter,
    /// The cluster whose log the store follows.
    pub cluster: Option<InCluster>,
}

/// The part that a daemon takes in its cluster.
#[derive(Clone, Debug)]
pub struct InCluster {
    /// Says how it is.
    pub observe: Recipient<Observe>,
    /// Says how the cluster is.
    pub status: Recipient<Typed<GetClusterStatus>>,
    /// Says who owns which sessions.
    pub slots: Recipient<Typed<ListSlots>>,
    /// Has a node give its sessions away.
    pub hand_over: Recipient<Typed<HandOver>>,
    /// The other daemons, for this one's sessions.
    pub remote: Arc<dyn Remote>,
    /// The same, for its files.
    pub files: Arc<dyn Elsewhere>,
    /// The runs that are in lanes, by its log.
    pub lanes: Lanes,
    pub(crate) attend: Recipient<Attend>,
    pub(crate) give_away: Recipient<GiveAway>,
    pub(crate) depart: Recipient<Depart>,
    /// What it lives on, with the connection to the servers.
    pub(crate) arbiter: ArbiterHandle,
}

/// Gives all slots away that this daemon owns and takes none (true), or takes part again. Answers how many it has;
/// nothing where nobody else is there to take them.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<usize>")]
pub struct GiveAway(pub bool);

/// Gives everything away that this daemon owns, for the others to go on with, and ends. Answered when that is done, or
/// when it took too long.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Depart;

impl InCluster {
    /// Has these take part: see [`Attend`].
    pub(crate) async fn attend(&self, attend: Attend) {
        // One that is gone has the daemon end.
        let _ = self.attend.send(attend).await;
    }

    /// See [`GiveAway`].
    pub(crate) async fn give_away(&self, on: bool) -> Option<usize> {
        // One that is gone has nothing to give.
        self.give_away.send(GiveAway(on)).await.ok().flatten()
    }

    /// Gives everything away and ends. What is on its way is written before that, as far as there is time.
    pub async fn depart(&self) {
        // One that is gone has nothing to give.
        let _ = self.depart.send(Depart).await;
        self.arbiter.stop();
    }
}

/// That there is no cluster.
pub(crate) fn none() -> Error {
    ErrorCode::NotFound.error("there is no cluster: gateway.toml has no [cluster]")
}
