//! Whether the log contradicts a store that a new log of its cluster is to begin with.
//!
//! A store says how far it has followed the log, and has the chain over all records up to there. The records of the log
//! make the same chain, unless the disk or the servers have changed something. What else is in the store is not looked
//! at: that takes a store that is made anew, as [`super::verifying`] does.

use std::path::Path;
use std::pin::pin;

use clawmux_core::cluster::base::{Left, Manifest};
use clawmux_core::cluster::stamp::Sequence;
use clawmux_core::error::Error;
use clawmux_core::replica::digest::{Digest, chained};
use futures::StreamExt as _;

use super::NotFed;
use super::beginning::{error, no_log, replica};
use super::engine::{Engine, Site, Unusable};
use super::log_reader::{LogReader, read};

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
    let (position, digest) = (base.position, base.digest);
    let mut chain = Chain { engine: &engine, position, digest, last: ours.applied, told };
    read(&mut chain).await.map_err(|stopped| error(Unusable::away(stopped.into_why())))?;
    if chain.digest == ours.digest {
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

/// The chain over records of the log, and how far it is.
struct Chain<'a> {
    engine: &'a Engine,
    position: u64,
    digest: Digest,
    /// How far it is to come.
    last: u64,
    told: &'a mut dyn FnMut(u64, u64),
}

impl LogReader for Chain<'_> {
    fn position(&self) -> u64 {
        self.position
    }

    async fn follow(&mut self) -> Result<(), NotFed> {
        let records = self.engine.follow_up_to(Sequence(self.position), Sequence(self.last)).await;
        let mut records = pin!(records.map_err(NotFed::Log)?);
        while let Some(record) = records.next().await {
            let record = record.map_err(NotFed::Log)?;
            self.position = record.sequence.0;
            self.digest = chained(&self.digest, self.position, &record.subject, &record.record);
            (self.told)(self.position, self.last);
        }
        Ok(())
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
