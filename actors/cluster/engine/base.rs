//! The chunks of a base: a file in parts.
//!
//! A few parts are on their way at once, so that a large file needs no more memory than a small one. What is read
//! counts once its digest is that of the manifest.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use clawmux_core::cluster::base::Manifest;
use futures::StreamExt as _;
use futures::stream::{self, FuturesUnordered};
use sha2::{Digest as _, Sha256};

use super::parts::{self, AHEAD_MAX, PATIENCE, Unread};
use super::site::{Planned, Site};
use crate::nats::Unusable;

/// How large a part is.
pub const CHUNK_BYTES: u64 = 512 * 1024;

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
        let written = parts::write(&self.nats, (&subject, &HeaderMap::new()), chunk, PATIENCE).await;
        written.map_err(|why| Unusable::away(format!("a part of the base can't be written: {why}")))
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
        let (subject, bytes) =
            (self.names.chunk(base.generation, &nth.to_string()), base.bytes_of_chunk(nth));
        let stream = self.names.base_stream();
        let read = parts::read(&self.nats, (&stream, &subject), bytes, Duration::ZERO).await;
        read.map_err(|unread| match unread {
            Unread::Missing => damaged(&format!("part {nth} of {} is missing", base.chunks())),
            Unread::Sized(has) => damaged(&format!("part {nth} has {has} bytes, not {bytes}")),
            Unread::Away(why) => Unusable::away(format!("the base of the cluster can't be read: {why}")),
        })
    }

    /// Removes the chunks of a generation, where there are any.
    pub(super) async fn remove_chunks(&self, generation: u64) -> Result<(), Unusable> {
        let chunks = self.names.chunk(generation, ">");
        let removed = parts::remove(&self.nats, &self.names.base_stream(), chunks).await;
        removed.map_err(|Unusable { why, is_refused }| Unusable {
            why: format!("an earlier base of the cluster can't be removed: {why}"),
            is_refused,
        })
    }
}

fn damaged(what: &str) -> Unusable {
    Unusable::refused(format!(
        "the base of the cluster is damaged ({what}): run `clawmux cluster rebuild` on a node that has the cluster's \
         store, which makes another one"
    ))
}
