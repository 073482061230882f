//! How a cluster begins, how another log of it does, and how the store of a node gets to the log: before a daemon runs.
//!
//! | what | by |
//! |---|---|
//! | [`settle`] | the start of a daemon: its store follows the log, is taken from the base, or is refused |
//! | [`init`] | an operator, on the node whose sessions the cluster begins with |
//! | [`rebuild`] | an operator, on the node whose store is to count where the log is lost or differs |
//!
//! Each can be stopped at any point and done again. Until the manifest of a base is written ([`Site`] says more),
//! nothing has changed for other nodes. On the node that begins a cluster its store is the cluster's from before that
//! on: a daemon alone refuses it, and `init` again goes on with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clawmux_core::cluster::base::{ClusterId, Held, Left, Manifest, Reach, Replica, Way, way};
use clawmux_core::error::{Error, ErrorCode};

use super::engine::{Engine, Planned, Site, Unusable};
use crate::runtime::clock;
use crate::store::BackupReport;
use crate::store::membership::{self, Based, Beginning};

/// How often the log of the daemon says how far a base has come.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// How long a daemon that runs is listened for: several heartbeats.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// How far a cluster has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A generation has its number.
    Planned(u64),
    /// The base is there as a file.
    Copied(u64),
    /// The log, the blobs and the buckets are made.
    Made,
    /// So many bytes of so many are published.
    Published(u64, u64),
    /// The base is the cluster's.
    Committed,
    /// The store is in its place.
    Placed,
}

/// What hears of every step as it is done, and may have it end there.
pub type Told<'a> = &'a mut dyn FnMut(Step) -> Result<(), Error>;

/// A cluster, or another log of it, that was begun.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// What it begins with.
    pub base: Manifest,
    /// What is in that.
    pub report: BackupReport,
    /// Where the store is that was there, where another one took its place.
    pub kept: Option<PathBuf>,
}

/// How a store got to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// How.
    pub way: Way,
    /// Where the store is that was there, where the base took its place.
    pub kept: Option<PathBuf>,
}

/// What a rebuild would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// How far the store of this home is.
    pub ours: Left,
    /// The generation that the servers have; none where they have none.
    pub theirs: Option<u64>,
    /// How far the log of that reaches; none where it is gone.
    pub last: Option<u64>,
}

impl Loss {
    /// How many records are in the log and not in the store; none where that is not known.
    pub fn records(&self) -> Option<u64> {
        match (self.theirs, self.last) {
            (Some(theirs), Some(last)) if theirs == self.ours.generation => {
                Some(last.saturating_sub(self.ours.applied))
            }
            (Some(theirs), Some(last)) if theirs > self.ours.generation => Some(last),
            (Some(_), Some(_)) => Some(0),
            _ => None,
        }
    }
}

/// Has the store at `path`, which no daemon has open, be one that follows the log: it does already, or the base takes
/// its place.
///
/// # Errors
/// `Conflict` with what to do where it may not; what the servers or the disk say.
pub async fn settle(engine: &Engine, path: &Path) -> Result<Settled, Error> {
    let (base, site) = (engine.base(), engine.site());
    let held = {
        let path = path.to_owned();
        blocking(move || membership::tidy(&path).and_then(|()| membership::held(&path))).await?
    };
    let extent = engine.extent().await.map_err(no_log)?;
    let reach = Reach { first: extent.first.0, last: extent.last.0 };
    let way = way(&held, base, reach).map_err(|why| ErrorCode::Conflict.error(why))?;
    if way == Way::Follow {
        return Ok(Settled { way, kept: None });
    }
    membership::knows(base)?;
    tracing::info!(bytes = base.bytes, generation = base.generation, "cluster: the base of it is taken");
    let mut taking = {
        let path = path.to_owned();
        blocking(move || membership::take(&path)).await?
    };
    let mut told = Instant::now();
    let progress = |done: u64, of: u64| {
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            tracing::info!(done, of, "cluster: bytes of its base came");
        }
        Ok(())
    };
    site.read_chunks(base, &mut taking.file, progress).await.map_err(error)?;
    let manifest = base.clone();
    let kept = blocking(move || taking.place(&manifest)).await?;
    let kept_as = kept.as_ref().map(|kept| kept.display().to_string());
    tracing::info!(kept = kept_as, "cluster: the base of it is the store of this home");
    Ok(Settled { way, kept })
}

/// Begins a cluster with the store at `path`, which no daemon has open.
///
/// # Errors
/// `Conflict` where there is a cluster already, or where the store is of one; what the servers or the disk say; and
/// what `told` says. It can be done again then.
pub async fn init(site: &Site, path: &Path, told: Told<'_>) -> Result<Begun, Error> {
    let held = {
        let path = path.to_owned();
        blocking(move || membership::held(&path)).await?
    };
    let conflict = |why: String| Err(ErrorCode::Conflict.error(why));
    let base = site.base().await.map_err(error)?;
    // Only what an init that was stopped left is of a cluster and at the beginning of its log.
    let (cluster, above) = match (held, base) {
        (Held::Replica(Replica { cluster, .. }), Some(base)) if base.cluster == cluster => {
            return conflict(format!(
                "the cluster {:?} is there, and the store of this home is of it: start the daemon",
                site.name()
            ));
        }
        (_, Some(base)) => {
            return conflict(format!(
                "there is a cluster {:?} on these servers already ({}): a node whose store is empty joins it when its \
                 daemon is started; another cluster needs another cluster.name",
                site.name(),
                base.cluster
            ));
        }
        (Held::Replica(Replica { cluster, at, left }), None) => {
            if at.applied > 0 || left.iter().any(|left| left.applied > 0) {
                return conflict(format!(
                    "the store of this home is of the cluster {cluster}, which these servers do not have: see to \
                     cluster.servers; or `clawmux cluster rebuild`, where they have lost it; or `clawmux cluster leave`"
                ));
            }
            (cluster, at.generation)
        }
        (Held::Own(_) | Held::Nothing, None) => (ClusterId::from_random(clock::random()), 0),
    };
    let planned = site.plan(above).await.map_err(error)?;
    told(Step::Planned(planned.generation()))?;
    for generation in 1..=planned.generation() {
        if site.last_of_log(generation).await.map_err(error)?.is_some_and(|last| last > 0) {
            return conflict(format!(
                "the servers have a log of a cluster {:?} (generation {generation}) without its base: `clawmux cluster \
                 rebuild` on a node of it makes another one; or delete its streams, or take another cluster.name",
                site.name()
            ));
        }
    }
    let (of, path) = ((cluster.clone(), planned.generation()), path.to_owned());
    let based =
        blocking(move || membership::begin(&path, Beginning { cluster: &of.0, generation: of.1 })).await?;
    let base = publish(site, &planned, cluster, &based, told).await;
    based.remove();
    let base = base?;
    site.remove_earlier(base.generation).await.map_err(error)?;
    Ok(Begun { base, report: based.report, kept: None })
}

/// What a rebuild from the store at `path` would lose.
///
/// # Errors
/// `Conflict` where it can't be done from here: the store is of no cluster or of another one, or daemons of the
/// cluster run; what the servers say.
pub async fn look_at_loss(site: &Site, path: &Path) -> Result<Loss, Error> {
    let replica = replica(path).await?;
    let base = site.base().await.map_err(error)?;
    if let Some(base) = &base
        && base.cluster != replica.cluster
    {
        return Err(ErrorCode::Conflict.error(format!(
            "the store of this home is of the cluster {}, and the servers have {}: see to cluster.servers and \
             cluster.name",
            replica.cluster, base.cluster
        )));
    }
    let theirs = base.map(|base| base.generation);
    let heard = site.who_is_there(theirs.unwrap_or(replica.at.generation), HEARD_WITHIN).await;
    let heard = heard.map_err(|why| {
        error(Unusable::away(format!("whether daemons of the cluster run can't be heard: {why}")))
    })?;
    if !heard.is_empty() {
        let names: Vec<&str> = heard.iter().map(|node| node.as_str()).collect();
        return Err(ErrorCode::Conflict.error(format!(
            "daemons of the cluster run: {}. Stop them all first: what they write meanwhile would be lost",
            names.join(", ")
        )));
    }
    let last = match theirs {
        Some(generation) => site.last_of_log(generation).await.map_err(error)?,
        None => None,
    };
    Ok(Loss { ours: replica.at, theirs, last })
}

/// Begins another log of the cluster with the store at `path`, which no daemon has open. What `agreed` says would be
/// lost is.
///
/// # Errors
/// As [`look_at_loss`]'s; `Conflict` where more would be lost than was agreed to; what the disk says; and what `told`
/// says. It can be done again then.
pub async fn rebuild(site: &Site, path: &Path, agreed: &Loss, told: Told<'_>) -> Result<Begun, Error> {
    let Replica { cluster, at, .. } = replica(path).await?;
    let planned = site.plan(at.generation).await.map_err(error)?;
    told(Step::Planned(planned.generation()))?;
    let (of, from) = ((cluster.clone(), planned.generation()), path.to_owned());
    let based =
        blocking(move || membership::begin_anew(&from, Beginning { cluster: &of.0, generation: of.1 }))
            .await?;
    let base = match is_as_agreed(site, path, agreed).await {
        Ok(()) => publish(site, &planned, cluster, &based, told).await,
        Err(why) => Err(why),
    };
    let base = base.inspect_err(|_| based.remove())?;
    let (to, of, manifest) = (path.to_owned(), based.clone(), base.clone());
    let kept = blocking(move || of.place(&to, &manifest)).await?;
    told(Step::Placed)?;
    site.remove_earlier(base.generation).await.map_err(error)?;
    Ok(Begun { base, report: based.report, kept })
}

async fn is_as_agreed(site: &Site, path: &Path, agreed: &Loss) -> Result<(), Error> {
    match look_at_loss(site, path).await? == *agreed {
        true => Ok(()),
        false => Err(ErrorCode::Conflict.error(
            "the log has changed since it was looked at: stop all daemons of the cluster, and try again",
        )),
    }
}

/// Makes the streams of a generation and publishes its base.
async fn publish(
    site: &Site,
    planned: &Planned,
    cluster: ClusterId,
    based: &Based,
    told: Told<'_>,
) -> Result<Manifest, Error> {
    let published = async {
        told(Step::Copied(based.report.bytes))?;
        site.make_streams(planned, &cluster).await.map_err(error)?;
        told(Step::Made)?;
        let mut ended = None;
        let progress = |done, of| {
            told(Step::Published(done, of)).map_err(|why| {
                let message = why.message.clone();
                ended = Some(why);
                Unusable { why: message, is_refused: true }
            })
        };
        let chunked = site.publish_chunks(planned, &based.file, progress).await;
        let chunked = chunked.map_err(|why| ended.take().unwrap_or_else(|| error(why)))?;
        Ok(Manifest {
            cluster,
            generation: planned.generation(),
            position: 0,
            digest: based.digest,
            bytes: chunked.bytes,
            sha256: chunked.sha256,
            chunk_bytes: chunked.chunk_bytes,
            store_format: based.format,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            left: based.left.clone(),
        })
    };
    let base = match published.await {
        Ok(base) => base,
        Err(why) => {
            give_up(site, planned).await;
            return Err(why);
        }
    };
    match site.commit(planned, &base).await {
        Ok(()) => {
            told(Step::Committed)?;
            Ok(base)
        }
        Err(why) => {
            // Where it is not known what became of it, it may yet be written.
            if why.is_refused {
                give_up(site, planned).await;
            }
            Err(error(why))
        }
    }
}

async fn give_up(site: &Site, planned: &Planned) {
    if let Err(why) = site.give_up(planned).await {
        tracing::debug!(why = why.why, "cluster: what was begun is left; the next one removes it");
    }
}

/// What the store at `path` is to its cluster.
///
/// # Errors
/// `Conflict` where it is of none, or where a daemon has it open.
pub(super) async fn replica(path: &Path) -> Result<Replica, Error> {
    let of_store = path.to_owned();
    match blocking(move || membership::held(&of_store)).await? {
        Held::Replica(replica) => Ok(replica),
        Held::Nothing if is_empty(path) => Err(ErrorCode::Conflict.error(format!(
            "there is no store at {0}, or its file is empty. Start the daemon, which takes its store from the log of the \
             cluster; or put a copy of clawmux backup in its place",
            path.display()
        ))),
        Held::Own(_) | Held::Nothing => Err(ErrorCode::Conflict.error(
            "the store of this home is of no cluster: run it on a node of the cluster, or begin one with `clawmux \
             cluster init`",
        )),
    }
}

fn is_empty(path: &Path) -> bool {
    path.metadata().map_or(true, |meta| meta.len() == 0)
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let failed = |_| ErrorCode::Internal.error("what was to be done with the store failed");
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// That the log can't be asked.
pub(super) fn no_log(why: String) -> Error {
    error(Unusable::away(format!("the log of the cluster can't be asked: {why}")))
}

pub(super) fn error(unusable: Unusable) -> Error {
    let code = if unusable.is_refused { ErrorCode::Conflict } else { ErrorCode::Unavailable };
    code.error(unusable.with_advice())
}
