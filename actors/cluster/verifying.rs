//! Whether the store of a node is what the log says, found out before a daemon runs.
//!
//! ```text
//! base of the generation ──► a store beside the one that is doubted ──► records up to where that one is ──► compared
//! ```
//!
//! The records go the way they go in a daemon, through the same store. Nothing is changed of the store or of the log,
//! and nothing is left of the one that is made anew.

use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use actix::{Actor as _, Addr};
use clawmux_core::cluster::base::{ClusterId, Held, Manifest, Reach, Replica, Way, way};
use clawmux_core::cluster::stamp::Sequence;
use clawmux_core::error::{Error, ErrorCode};
use futures::StreamExt as _;
use tokio::time::timeout;

use super::beginning::{blocking, error, no_log, replica};
use super::engine::{Engine, Site, Unusable};
use super::large::{Reads, completed};
use super::log_reader::{LogReader, read};
use super::{Followed, NotFed, REPLAYS_MAX, applied};
use crate::store::tables::Compared;
use crate::store::{Stop, Store, membership};

/// How long a record may take until it is applied; large ones come in parts.
const RECORD_MAX: Duration = Duration::from_secs(300);

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
    let position = base.position;
    let mut replaying = Replaying { engine, store: &store, position, last, records: 0, told };
    let replayed = read(&mut replaying).await;
    let (reached, records) = (replaying.position, replaying.records);
    // It is closed before it is compared, or removed.
    let stopped = store.send(Stop).await;
    replayed.map_err(|stopped| match stopped {
        NotFed::Log(why) => error(Unusable::away(why)),
        NotFed::Blob(why) => ErrorCode::Conflict.error(format!(
            "{why}. What the log says can't be known without it: run `clawmux cluster rebuild` on the node whose store is \
             furthest, where that is to count"
        )),
        NotFed::Store(why) => ErrorCode::Unavailable
            .error(format!("the store that is made anew can't apply the record after {reached}: {why}")),
    })?;
    stopped.map_err(|_| ErrorCode::Internal.error("the store has stopped"))??;
    Ok(records)
}

/// A store that is made anew, and how far it has come with the records of the log.
struct Replaying<'a> {
    engine: &'a Rc<Engine>,
    store: &'a Addr<Store>,
    position: u64,
    /// How far it is to come.
    last: u64,
    records: u64,
    told: &'a mut dyn FnMut(Stage),
}

impl LogReader for Replaying<'_> {
    fn position(&self) -> u64 {
        self.position
    }

    async fn follow(&mut self) -> Result<(), NotFed> {
        let records = self.engine.follow_up_to(Sequence(self.position), Sequence(self.last)).await;
        let records = completed(Rc::clone(self.engine), records.map_err(NotFed::Log)?, Reads::default());
        let mut applied = pin!(applied(self.store.clone(), self.position, records).buffered(REPLAYS_MAX));
        while let Some(fed) = timeout(RECORD_MAX, applied.next())
            .await
            .map_err(|_| NotFed::Log("no record of the log comes".to_owned()))?
        {
            let (Followed { position, .. }, _) = fed?;
            self.position = position;
            self.records += 1;
            (self.told)(Stage::Applied(position, self.last));
        }
        Ok(())
    }
}
