//! The chunks of a base: a file in parts, each a message of its own.
//!
//! A few parts are on their way at once, so that a large file needs no more memory than a small one. Each is tried
//! again for a while: an election of the servers takes some seconds. What is read is asked of the leader, which alone
//! knows that a part is missing, and counts once its digest is that of the manifest.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;
use clawmux_core::cluster::base::Manifest;
use futures::StreamExt as _;
use futures::stream::{self, FuturesUnordered};
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use super::site::{Planned, Site, last_of};
use super::streams;
use super::writing::put;
use super::{ANSWER_MAX, Published};
use crate::nats::{Unusable, one_line};

/// How large a part is.
pub const CHUNK_BYTES: u64 = 512 * 1024;

/// How many parts may be on their way.
const AHEAD_MAX: usize = 8;

/// How long a part is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(250);

/// A file that was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunked {
    /// How large it is.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// How large its parts are.
    pub chunk_bytes: u64,
}

impl Site {
    /// Publishes a file as the chunks of a generation that was planned. `told` hears how many bytes of how many are
    /// there, and may have it end.
    ///
    /// # Errors
    /// Where it can't be read or written; and what `told` says.
    pub async fn publish_chunks(
        &self,
        planned: &Planned,
        path: &Path,
        mut told: impl FnMut(u64, u64) -> Result<(), Unusable>,
    ) -> Result<Chunked, Unusable> {
        let unread =
            |error: std::io::Error| Unusable::refused(format!("can't read {}: {error}", path.display()));
        let mut file = File::open(path).map_err(unread)?;
        let total = file.metadata().map_err(unread)?.len();
        let (mut hash, mut read, mut done) = (Sha256::new(), 0, 0);
        let mut on_their_way = FuturesUnordered::new();
        for nth in 0_u64.. {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES as usize);
            (&mut file).take(CHUNK_BYTES).read_to_end(&mut chunk).map_err(unread)?;
            if chunk.is_empty() {
                break;
            }
            hash.update(&chunk);
            read += chunk.len() as u64;
            let subject = self.names.chunk(planned.generation(), &nth.to_string());
            on_their_way.push(self.publish_chunk(subject, chunk.into()));
            if on_their_way.len() >= AHEAD_MAX
                && let Some(bytes) = on_their_way.next().await
            {
                done += bytes?;
                told(done, total)?;
            }
        }
        while let Some(bytes) = on_their_way.next().await {
            done += bytes?;
            told(done, total)?;
        }
        Ok(Chunked { bytes: read, sha256: hash.finalize().into(), chunk_bytes: CHUNK_BYTES })
    }

    async fn publish_chunk(&self, subject: String, chunk: Bytes) -> Result<u64, Unusable> {
        let begin = Instant::now();
        loop {
            let why = match put(&self.nats, &subject, None, chunk.clone(), HeaderMap::new()).await {
                Published::Acked(_) => return Ok(chunk.len() as u64),
                Published::Transient | Published::Refused => "the servers take nothing for now".to_owned(),
                Published::Unknown(why) => why,
            };
            if begin.elapsed() > PATIENCE {
                return Err(Unusable::away(format!("a part of the base can't be written: {why}")));
            }
            sleep(PAUSE).await;
        }
    }

    /// Writes the base into a file, and looks whether it is what was published. `told` hears how many bytes of how
    /// many are there, and may have it end.
    ///
    /// # Errors
    /// Where it can't be read or written, where a part is missing or damaged; and what `told` says.
    pub async fn read_chunks(
        &self,
        base: &Manifest,
        file: &mut File,
        mut told: impl FnMut(u64, u64) -> Result<(), Unusable>,
    ) -> Result<(), Unusable> {
        let (mut hash, mut done) = (Sha256::new(), 0);
        let parts = stream::iter(0..base.chunks()).map(|nth| self.read_chunk(base, nth));
        let mut parts = std::pin::pin!(parts.buffered(AHEAD_MAX));
        while let Some(part) = parts.next().await {
            let part = part?;
            file.write_all(&part).map_err(|error| {
                Unusable::refused(format!("the base of the cluster can't be written to the disk: {error}"))
            })?;
            hash.update(&part);
            done += part.len() as u64;
            told(done, base.bytes)?;
        }
        if <[u8; 32]>::from(hash.finalize()) != base.sha256 {
            return Err(damaged("its digest is not that of what was published"));
        }
        Ok(())
    }

    async fn read_chunk(&self, base: &Manifest, nth: u64) -> Result<Bytes, Unusable> {
        let (subject, begin) = (self.names.chunk(base.generation, &nth.to_string()), Instant::now());
        loop {
            let stream = self.nats.jetstream.get_stream_no_info(self.names.base_stream()).await;
            let stream = stream.map_err(|error| Unusable::refused(one_line(&error)))?;
            let why = match last_of(&stream, &subject).await {
                Ok(Some((part, _))) if part.len() as u64 == base.bytes_of_chunk(nth) => return Ok(part),
                Ok(Some((part, _))) => {
                    let (has, wanted) = (part.len(), base.bytes_of_chunk(nth));
                    return Err(damaged(&format!("part {nth} has {has} bytes, not {wanted}")));
                }
                Ok(None) => return Err(damaged(&format!("part {nth} of {} is missing", base.chunks()))),
                Err(error) => error,
            };
            if begin.elapsed() > PATIENCE {
                return Err(why);
            }
            sleep(PAUSE).await;
        }
    }

    /// Removes the chunks of a generation, where there are any.
    pub(super) async fn remove_chunks(&self, generation: u64) -> Result<(), Unusable> {
        let Some(stream) = streams::find(&self.nats, &self.names.base_stream()).await? else {
            return Ok(());
        };
        let purge = stream.purge().filter(self.names.chunk(generation, ">"));
        let late = |_| "the servers do not answer".to_owned();
        let purged = tokio::time::timeout(ANSWER_MAX, purge.into_future()).await.map_err(late);
        let purged = purged.and_then(|purged| purged.map_err(|error| one_line(&error)));
        purged
            .map(drop)
            .map_err(|why| Unusable::away(format!("an earlier base of the cluster can't be removed: {why}")))
    }
}

fn damaged(what: &str) -> Unusable {
    Unusable::refused(format!(
        "the base of the cluster is damaged ({what}): run `clawmux cluster rebuild` on a node that has the cluster's \
         store, which makes another one"
    ))
}
