//! How a daemon joins its cluster: reaches the servers, opens its store, and waits until that has what the log has.
//!
//! Servers start at the same time as daemons do, and need a while to find each other: what they say at first is not
//! believed at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor as _, Addr, Arbiter, ArbiterHandle};
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use tokio::sync::oneshot;

use super::beginning::settle;
use super::engine::{Engine, EngineSettings, Unusable};
use super::remote::GetRemote;
use super::status::{About, Begin, GetProgress, Progress};
use super::{Cluster, ClusterSettings};
use crate::in_cluster::{InCluster, Opened};
use crate::runtime::ask::ask;
use crate::runtime::lane::Lanes;
use crate::store::{self, Store};

/// How long it is tried to reach the servers.
const REACH_MAX: Duration = Duration::from_secs(30);

/// The same where they say that somebody has to do something.
const REFUSED_MAX: Duration = Duration::from_secs(10);

/// The pause before they are tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// How often it is said what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked whether the store has everything.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Opens the store at `path` as a replica of the cluster's log, and takes part. It has what the log had when this
/// returns. The connection and the actor live on an arbiter of their own.
///
/// # Errors
/// Why the servers can't be used, or the store can't be opened.
pub(crate) async fn open(config: &config::Cluster, path: PathBuf) -> Result<Opened, Error> {
    let arbiter = Arbiter::new().handle();
    let opened = open_on(&arbiter, config, path).await;
    if opened.is_err() {
        arbiter.stop();
    }
    opened
}

async fn open_on(arbiter: &ArbiterHandle, config: &config::Cluster, path: PathBuf) -> Result<Opened, Error> {
    let settings = EngineSettings::from(config);
    let unusable = |why: &str| format!("can't join the cluster {:?}: {why}", config.name);
    let reached = on(arbiter, async move { reach(&settings).await }).await?;
    let engine = reached.map_err(|error| ErrorCode::Unavailable.error(unusable(&error.with_advice())))?;
    let (settled, is_there) = futures::join!(settle(&engine, &path), engine.is_there(&config.node));
    settled.map_err(|error| Error { message: unusable(&error.message), ..error })?;
    if is_there.map_err(|why| ErrorCode::Unavailable.error(unusable(&why)))? {
        let why = format!(
            "another daemon is there as node {}: stop that one, or give this one another name by cluster.node",
            config.node
        );
        return Err(ErrorCode::Conflict.error(unusable(&why)));
    }
    let (store, submissions) = Store::open_in_cluster(path).await?;
    let log_writer = store.log_writer();
    let store = store.start();
    let lease_ms = u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX);
    let lanes = Lanes::of_log();
    let settings = ClusterSettings { node: config.node.clone(), lease_ms, lanes: lanes.clone() };
    let of_cluster = store.clone();
    let started = async move { Cluster::start(settings, engine, of_cluster, submissions) };
    let cluster = on(arbiter, started).await?;
    let joined = async {
        let about = About { name: config.name.clone(), servers: config.servers.clone() };
        ask(&cluster, Begin(about, log_writer.clone())).await?;
        until_whole(&cluster).await
    };
    if let Err(error) = joined.await {
        // It is let go before the next try.
        let _ = store.send(store::Stop).await;
        return Err(error);
    }
    let remote = ask(&cluster, GetRemote).await?;
    tracing::info!(cluster = config.name, node = %config.node, "cluster: joined");
    let cluster = InCluster {
        observe: cluster.clone().recipient(),
        status: cluster.clone().recipient(),
        slots: cluster.clone().recipient(),
        hand_over: cluster.clone().recipient(),
        attend: cluster.clone().recipient(),
        give_away: cluster.clone().recipient(),
        depart: cluster.recipient(),
        files: Arc::new(remote.clone()),
        remote: Arc::new(remote),
        lanes,
        arbiter: arbiter.clone(),
    };
    Ok(Opened { store, log_writer, cluster: Some(cluster) })
}

/// Does this on that arbiter.
async fn on<T: Send + 'static>(
    arbiter: &ArbiterHandle,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Error> {
    let (done, answer) = oneshot::channel();
    arbiter.spawn(async move {
        // Whoever does not wait any more has no use for it.
        let _ = done.send(work.await);
    });
    answer.await.map_err(|_| ErrorCode::Internal.error("the thread of the cluster has ended: see the log"))
}

/// Tries to reach the servers, for a while.
async fn reach(settings: &EngineSettings) -> Result<Engine, Unusable> {
    let begin = Instant::now();
    let mut said: Option<Instant> = None;
    loop {
        let unusable = match Engine::open(settings).await {
            Ok(engine) => return Ok(engine),
            Err(unusable) => unusable,
        };
        let patience = if unusable.is_refused { REFUSED_MAX } else { REACH_MAX };
        if begin.elapsed() >= patience {
            return Err(unusable);
        }
        if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            said = Some(Instant::now());
            let left_s = patience.saturating_sub(begin.elapsed()).as_secs();
            tracing::warn!(why = unusable.why, left_s, "cluster: it can't be joined yet; it is tried again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the store has what the log had when the daemon joined, however long that takes.
async fn until_whole(cluster: &Addr<Cluster>) -> Result<(), Error> {
    let mut said = Instant::now();
    loop {
        let Progress { is_whole, applied, last } = ask(cluster, GetProgress).await?;
        if is_whole {
            return Ok(());
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            match last {
                Some(last) => tracing::info!(applied, last, "cluster: the store catches up with the log"),
                None => tracing::info!("cluster: the log does not say yet how far it reaches"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
