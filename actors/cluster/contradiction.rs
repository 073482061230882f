//! Whether the log contradicts a store that a new log of its cluster is to begin with.
//!
//! A store says how far it has followed the log, and has the chain over all records up to there. The records of the log
//! make the same chain, unless the disk or the servers have changed something. What else is in the store is not looked
//! at: that takes a store that is made anew, as [`super::verifying`] does.

use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use clawmux_core::cluster::base::{Left, Manifest};
use clawmux_core::cluster::stamp::Sequence;
use clawmux_core::error::Error;
use clawmux_core::replica::digest::{Digest, chained};
use futures::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::beginning::{error, no_log, replica};
use super::engine::{Engine, Site, Unusable};

/// How long the log is tried to be read that can't be, without a record that comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a record may take.
const RECORD_MAX: Duration = Duration::from_secs(10);

/// How long more is waited for where the log says that it is read to its end: a server may be a little behind the
/// others.
const END_MAX: Duration = Duration::from_secs(2);

/// What a log says of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// That it was so far, and had these records.
    Fits,
    /// That it never was so: why, in a sentence.
    Contradicts(String),
    /// Nothing: why, in a sentence.
    Silent(String),
}

/// Asks the log of the cluster on the servers whether the store at `path`, which no daemon has open, was ever what it
/// says. `told` hears how many records of how many were read.
///
/// # Errors
/// `Conflict` where the store is of no cluster, or a daemon has it open; what the servers say.
pub async fn look(site: &Site, path: &Path, told: &mut dyn FnMut(u64, u64)) -> Result<Verdict, Error> {
    let ours = replica(path).await?.at;
    let Some(base) = site.base().await.map_err(error)? else {
        return Ok(Verdict::Silent("the servers do not have it any more".to_owned()));
    };
    if ours.generation != base.generation {
        return Ok(of_another(&ours, &base));
    }
    let engine = match site.open().await {
        Ok(engine) => engine,
        Err(unusable) if unusable.is_refused => return Ok(Verdict::Silent(unusable.why)),
        Err(unusable) => return Err(error(unusable)),
    };
    let extent = engine.extent().await.map_err(no_log)?;
    let (first, last) = (extent.first.0, extent.last.0);
    if ours.applied > last {
        return Ok(Verdict::Contradicts(format!(
            "the store of this home says that it has record {}, and the log ends at record {last}: the store is damaged, \
             or the servers have lost records",
            ours.applied
        )));
    }
    if first > base.position + 1 {
        return Ok(Verdict::Silent(format!("it begins with record {first}, and what was before is gone")));
    }
    if chain(&engine, &base, ours.applied, told).await? == ours.digest {
        return Ok(Verdict::Fits);
    }
    Ok(Verdict::Contradicts(format!(
        "the store of this home says that it has the log up to record {}, and what it had does not add up to what the \
         log has up to there: the store is damaged, or the log is",
        ours.applied
    )))
}

/// What is known of a store that is of another log than the present one.
fn of_another(ours: &Left, base: &Manifest) -> Verdict {
    let Left { generation, applied, digest } = ours;
    if *generation > base.generation {
        return Verdict::Contradicts(format!(
            "the store of this home is of generation {generation} of the cluster, and the servers have {}: the store is \
             damaged, or the servers are older than it",
            base.generation
        ));
    }
    match base.left.iter().find(|left| left.generation == *generation && left.applied == *applied) {
        Some(left) if left.digest == *digest => Verdict::Fits,
        Some(_) => Verdict::Contradicts(format!(
            "the store of this home has another record {applied} of generation {generation} than the cluster was rebuilt \
             from: the store is damaged, or that one was"
        )),
        None => {
            let why = format!("the one that the store is of (generation {generation}) was replaced");
            Verdict::Silent(why)
        }
    }
}

/// The chain over the records of the log up to `last`.
async fn chain(
    engine: &Engine,
    base: &Manifest,
    last: u64,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Digest, Error> {
    let mut reached = Reached { position: base.position, digest: base.digest, last };
    let mut since = Instant::now();
    loop {
        let before = reached.position;
        let Err(why) = reached.follow(engine, told).await else { return Ok(reached.digest) };
        if reached.position > before {
            since = Instant::now();
        } else if since.elapsed() >= PATIENCE {
            return Err(error(Unusable::away(why)));
        }
        sleep(PAUSE).await;
    }
}

/// How far the log was read.
struct Reached {
    position: u64,
    digest: Digest,
    /// How far it is to be read.
    last: u64,
}

impl Reached {
    async fn follow(&mut self, engine: &Engine, told: &mut dyn FnMut(u64, u64)) -> Result<(), String> {
        if self.position >= self.last {
            return Ok(());
        }
        let records = engine.follow(Sequence(self.position)).await?;
        let mut is_at_end = records.pending() == 0;
        let mut records = pin!(records);
        loop {
            let record = match timeout(if is_at_end { END_MAX } else { RECORD_MAX }, records.next()).await {
                Ok(Some(record)) => record?,
                // What would be between here and there are guards, which the log has forgotten.
                Err(_) if is_at_end => return Ok(()),
                Ok(None) | Err(_) => return Err("no record of the log comes".to_owned()),
            };
            let position = record.sequence.0;
            if position > self.last {
                return Ok(());
            }
            if !engine.is_guard(&record.subject) {
                self.digest = chained(&self.digest, position, &record.subject, &record.record);
            }
            (self.position, is_at_end) = (position, record.pending == 0);
            told(position, self.last);
            if position == self.last {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clawmux_core::cluster::base::ClusterId;

    use super::*;

    #[test]
    fn a_store_of_an_earlier_log_fits_where_the_next_one_began() {
        let left = |generation, applied, digest| Left { generation, applied, digest: [digest; 32] };
        let base = Manifest {
            cluster: ClusterId::from_random([1; 16]),
            generation: 2,
            position: 0,
            digest: [2; 32],
            bytes: 1,
            sha256: [0; 32],
            chunk_bytes: 1,
            store_format: 1,
            version: String::new(),
            left: vec![left(1, 9, 7)],
        };
        let verdict = |generation, applied, digest| of_another(&left(generation, applied, digest), &base);
        assert_eq!(verdict(1, 9, 7), Verdict::Fits);
        assert!(matches!(verdict(1, 9, 8), Verdict::Contradicts(why) if why.contains("another record 9")));
        assert!(matches!(verdict(1, 8, 7), Verdict::Silent(_)));
        assert!(matches!(verdict(3, 8, 7), Verdict::Contradicts(why) if why.contains("the servers have 2")));
    }
}
