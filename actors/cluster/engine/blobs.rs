//! Blobs: what is too large for one message of the log, or from node to node, in parts in a stream of their own.
//!
//! All parts are acknowledged before anything speaks of the blob, so whoever stops in between leaves parts that nobody
//! looks for. Their subjects have the digest of the whole, so that a part is the same whoever writes it. What nobody
//! needs any more is removed, or goes by itself after a time that was said when it was written.
//!
//! Few parts are on their way at once, of all that a node writes: what is to reach others in time, heartbeats above
//! all, has to wait for no more than those.

use std::time::Duration;

use async_nats::{HeaderMap, header};
use bytes::Bytes;
use clawmux_core::replica::Blob;
use clawmux_core::replica::blob::BLOB_BYTES_MAX;
use futures::StreamExt as _;
use futures::stream::{self, TryStreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::parts::{self, AHEAD_MAX, Unread};
use super::{Engine, no_answer};

/// How long a blob may take to be written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);

/// How long a part is looked for that is not there: a leader that was just elected may not know of it yet.
const MISSING_MAX: Duration = Duration::from_secs(3);

/// Parts of one blob that are read at once.
const READ_AHEAD_MAX: usize = 4;

/// Why a blob can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoBlob {
    /// It is not there, or not what was written; what is wrong with it.
    Damaged(String),
    /// The servers do not say; why.
    Away(String),
}

impl Engine {
    /// Writes a blob of these bytes, which is there as a whole when this returns. With a time it goes by itself after
    /// that.
    ///
    /// # Errors
    /// Why it can't be written. What is there of it is removed, or goes by itself.
    pub async fn put_blob(&self, content: &Bytes, kept: Option<Duration>) -> Result<Blob, String> {
        let bytes = content.len();
        if bytes > BLOB_BYTES_MAX {
            return Err(format!("it has {bytes} bytes, and {BLOB_BYTES_MAX} are the most"));
        }
        let hashed = content.clone();
        let blob = tokio::task::spawn_blocking(move || Blob::of(&hashed)).await;
        let blob = blob.map_err(|_| "its digest can't be made".to_owned())?;
        let written = timeout(WRITTEN_WITHIN, self.put_parts(&blob, content, kept)).await;
        match written.unwrap_or_else(|_| Err(no_answer())) {
            Ok(()) => Ok(blob),
            Err(why) => {
                if kept.is_none()
                    && let Err(why) = self.remove_blob(&blob).await
                {
                    tracing::debug!(blob = blob.name(), why, "cluster: parts of a blob are left");
                }
                Err(why)
            }
        }
    }

    async fn put_parts(&self, blob: &Blob, content: &Bytes, kept: Option<Duration>) -> Result<(), String> {
        self.connected()?;
        let mut headers = HeaderMap::new();
        if let Some(kept) = kept {
            headers.insert(header::NATS_MESSAGE_TTL, format!("{}s", kept.as_secs()));
        }
        let part = |nth: u64| {
            let (subject, part) = (self.subjects.blob(blob, &nth.to_string()), content.slice(blob.part(nth)));
            let headers = &headers;
            async move {
                let _turn = self.parts.acquire().await.map_err(|_| "the engine is closed".to_owned())?;
                parts::write(&self.nats, (&subject, headers), part, WRITTEN_WITHIN).await
            }
        };
        let written = stream::iter(0..blob.parts()).map(part).buffer_unordered(AHEAD_MAX);
        written.try_for_each(|_| async { Ok(()) }).await
    }

    /// Reads a blob, as it was written.
    ///
    /// # Errors
    /// Why it can't be had.
    pub async fn read_blob(&self, blob: &Blob) -> Result<Bytes, NoBlob> {
        let stream = self.subjects.blob_stream();
        let part = |nth: u64| {
            let (subject, range) = (self.subjects.blob(blob, &nth.to_string()), blob.part(nth));
            let stream = &stream;
            async move {
                let read = parts::read(&self.nats, (stream, &subject), range.len() as u64, MISSING_MAX).await;
                read.map_err(|unread| match unread {
                    Unread::Missing => {
                        damaged(blob, &format!("part {} of {} is missing", nth + 1, blob.parts()))
                    }
                    Unread::Sized(has) => {
                        damaged(blob, &format!("part {} has {has} bytes, not {}", nth + 1, range.len()))
                    }
                    Unread::Away(why) => NoBlob::Away(format!("a blob can't be read: {why}")),
                })
            }
        };
        let mut parts = stream::iter(0..blob.parts()).map(part).buffered(READ_AHEAD_MAX);
        let (mut hash, mut content) = (Sha256::new(), Vec::new());
        while let Some(part) = parts.next().await {
            let part = part?;
            hash.update(&part);
            content.reserve_exact(usize::try_from(blob.bytes).unwrap_or(usize::MAX) - content.len());
            content.extend_from_slice(&part);
        }
        match <[u8; 32]>::from(hash.finalize()) == blob.sha256 {
            true => Ok(content.into()),
            false => Err(damaged(blob, "its digest is another one")),
        }
    }

    /// Removes a blob, or what is there of it.
    ///
    /// # Errors
    /// Why it can't be removed.
    pub async fn remove_blob(&self, blob: &Blob) -> Result<(), String> {
        let parts = self.subjects.blob(blob, "*");
        let removed = parts::remove(&self.nats, &self.subjects.blob_stream(), parts).await;
        removed.map_err(|unusable| unusable.why)
    }
}

fn damaged(blob: &Blob, what: &str) -> NoBlob {
    NoBlob::Damaged(format!("the blob {} of {} bytes is damaged: {what}", blob.name(), blob.bytes))
}
