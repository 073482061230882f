//! Whether the store of a node is what the log says, found out before a daemon runs.
//!
//! ```text
//! base of the generation ──► a store beside the one that is doubted ──► records up to where that one is ──► compared
//! ```
//!
//! The records go the way they go in a daemon, through the same store. Nothing is changed of the store or of the log,
//! and nothing is left of the one that is made anew.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use actix::{Actor as _, Addr};
use clawmux_core::cluster::base::{ClusterId, Held, Manifest, Reach, Replica, Way, way};
use clawmux_core::cluster::stamp::Sequence;
use clawmux_core::error::{Error, ErrorCode};
use futures::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::beginning::{blocking, error, no_log, replica};
use super::engine::{Engine, Site, Unusable};
use super::large::{Reads, completed};
use super::{Followed, NotFed, REPLAYS_MAX, applied};
use crate::store::tables::Compared;
use crate::store::{Stop, Store, membership};

/// How long the log is tried to be followed that can't be, without a record that comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The pause before it is followed again.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a record may take until it is applied; large ones come in parts.
const RECORD_MAX: Duration = Duration::from_secs(300);

/// How long records are waited for where the log says that it has none any more, and the store has: a server may be a
/// little behind the others.
const END_MAX: Duration = Duration::from_secs(5);

/// How often it is told how far the comparison is.
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// How far it is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// So many bytes of so many of the base are there.
    Fetched(u64, u64),
    /// The records are applied up to this one of that one.
    Applied(u64, u64),
    /// So many rows are compared.
    Compared(u64),
}

/// A store that was compared with what the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Of which cluster it is.
    pub cluster: ClusterId,
    /// Of which of its logs.
    pub generation: u64,
    /// Its last record.
    pub applied: u64,
    /// How many records the log has up to that.
    pub records: u64,
    /// What is alike, and what not.
    pub compared: Compared,
}

/// Compares the store at `path`, which no daemon has open, with the base and the records of the log up to the last one
/// that it has. `told` hears how far that is.
///
/// # Errors
/// `Conflict` where it can't be said: the store is of no cluster, of another one or of another generation, or the log
/// lacks records that it has or a blob; `Unavailable` where there is no room for another store beside it; what the
/// servers or the disk say.
pub async fn verify(site: &Site, path: &Path, told: &mut dyn FnMut(Stage)) -> Result<Verified, Error> {
    let replica = replica(path).await?;
    {
        let path = path.to_owned();
        blocking(move || membership::tidy(&path)).await?;
    }
    let engine = Rc::new(site.open().await.map_err(error)?);
    let base = engine.base().clone();
    can_be_compared(&engine, &replica, &base).await?;
    membership::knows(&base)?;
    let mut anew = {
        let (path, base) = (path.to_owned(), base.clone());
        blocking(move || membership::make_anew(&path, &base)).await?
    };
    let fetched = |done, of| {
        told(Stage::Fetched(done, of));
        Ok(())
    };
    site.read_chunks(&base, &mut anew.file, fetched).await.map_err(error)?;
    let manifest = base.clone();
    let anew = blocking(move || anew.is_base(&manifest).map(|()| anew)).await?;
    let last = replica.at.applied;
    let records = replay(&engine, &anew.path, (&base, last), told).await?;
    let rows = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&rows);
    let mut comparing =
        Box::pin(blocking(move || anew.compare(last, &mut |rows| counted.store(rows, Relaxed))));
    let compared = loop {
        match timeout(TOLD_EVERY, &mut comparing).await {
            Ok(compared) => break compared?,
            Err(_) => told(Stage::Compared(rows.load(Relaxed))),
        }
    };
    let Replica { cluster, at, .. } = replica;
    Ok(Verified { cluster, generation: at.generation, applied: at.applied, records, compared })
}

/// Whether the log has all that the store has.
async fn can_be_compared(engine: &Engine, replica: &Replica, base: &Manifest) -> Result<(), Error> {
    let extent = engine.extent().await.map_err(no_log)?;
    let reach = Reach { first: extent.first.0, last: extent.last.0 };
    let conflict = |why: String| ErrorCode::Conflict.error(why);
    let (held, ours) = (Held::Replica(replica.clone()), replica.at.generation);
    if way(&held, base, reach).map_err(conflict)? == Way::Take {
        return Err(conflict(format!(
            "the store of this home is of generation {ours} of the cluster, and the servers have {}: there is nothing \
             to compare it with. Start the daemon, which takes the base of that",
            base.generation
        )));
    }
    // From the base on, too.
    way(&Held::Nothing, base, reach).map(drop).map_err(conflict)
}

/// Has the base at `path` apply the records of the log up to `last`, as a daemon does; says how many there were.
async fn replay(
    engine: &Rc<Engine>,
    path: &Path,
    (base, last): (&Manifest, u64),
    told: &mut dyn FnMut(Stage),
) -> Result<u64, Error> {
    let (store, _submissions) = Store::open_in_cluster(path).await?;
    let store = store.start();
    let mut reached = Reached { position: base.position, last, records: 0 };
    let replayed = reached.go_on(engine, &store, told).await;
    // It is closed before it is compared, or removed.
    let stopped = store.send(Stop).await;
    replayed?;
    stopped.map_err(|_| ErrorCode::Internal.error("the store has stopped"))??;
    Ok(reached.records)
}

/// How far a store has come with the records of the log.
struct Reached {
    position: u64,
    /// How far it is to come.
    last: u64,
    records: u64,
}

impl Reached {
    /// Goes on until all records are applied, however often the log has to be followed anew for that.
    async fn go_on(
        &mut self,
        engine: &Rc<Engine>,
        store: &Addr<Store>,
        told: &mut dyn FnMut(Stage),
    ) -> Result<(), Error> {
        let mut since = Instant::now();
        while self.position < self.last {
            let before = self.position;
            let why = match self.follow(engine, store, told).await {
                Ok(()) => return Ok(()),
                Err(NotFed::Log(why)) => why,
                Err(NotFed::Blob(why)) => {
                    return Err(ErrorCode::Conflict.error(format!(
                        "{why}. What the log says can't be known without it: run `clawmux cluster rebuild` on the node \
                         whose store is furthest, where that is to count"
                    )));
                }
                Err(NotFed::Store(why)) => {
                    let why = format!(
                        "the store that is made anew can't apply the record after {}: {why}",
                        self.position
                    );
                    return Err(ErrorCode::Unavailable.error(why));
                }
            };
            if self.position > before {
                since = Instant::now();
            } else if since.elapsed() >= PATIENCE {
                return Err(error(Unusable::away(why)));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Follows the log from here.
    async fn follow(
        &mut self,
        engine: &Rc<Engine>,
        store: &Addr<Store>,
        told: &mut dyn FnMut(Stage),
    ) -> Result<(), NotFed> {
        let records = engine.follow(Sequence(self.position)).await.map_err(NotFed::Log)?;
        // What came last, and how many are behind it.
        let came = Rc::new(Cell::new((self.position, records.pending())));
        let (of_record, last) = (Rc::clone(&came), self.last);
        let records = records.take_while(move |record| {
            if let Ok(record) = record {
                of_record.set((record.sequence.0, record.pending));
            }
            std::future::ready(!matches!(record, Ok(record) if record.sequence.0 > last))
        });
        let records = completed(Rc::clone(engine), records, Reads::default());
        let mut applied =
            std::pin::pin!(applied(store.clone(), self.position, records).buffered(REPLAYS_MAX));
        while self.position < self.last {
            let is_at_end = came.get() == (self.position, 0);
            let next = timeout(if is_at_end { END_MAX } else { RECORD_MAX }, applied.next()).await;
            match next {
                Ok(Some(Ok((Followed { position, .. }, _)))) => {
                    self.position = position;
                    self.records += 1;
                    told(Stage::Applied(position, self.last));
                }
                Ok(Some(Err(why))) => return Err(why),
                // What would be between here and there are guards, which the log has forgotten.
                Ok(None) => return Ok(()),
                Err(_) if is_at_end => return Ok(()),
                Err(_) => return Err(NotFed::Log("no record of the log comes".to_owned())),
            }
        }
        Ok(())
    }
}
