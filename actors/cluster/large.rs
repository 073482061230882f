//! Records that are too large for the log: a blob, and an envelope in the log that names it.
//!
//! ```text
//! record ──► blob (every part acknowledged) ──► envelope ──► log ──► envelope ──► blob ──► Replay (envelope and record)
//! ```
//!
//! The subject's queue waits while the blob is written, which has a deadline of its own: nothing of it is in the log
//! yet, so where it fails the change is refused, and what is there is removed. So is the blob of an envelope that never
//! comes into the log. A daemon that is killed in between leaves its blob behind.
//!
//! A daemon that was built before there were envelopes stops before the first one. So none is written while such a
//! one is there: what needs one is refused until it is updated.
//!
//! An envelope without its record is not passed over, since replicas would differ: the store stays before it, and
//! operators are told.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use actix::Context;
use bytes::Bytes;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::cluster::stamp::Stamp;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::replica::blob::BLOB_BYTES_MAX;
use clawmux_core::replica::record::ENVELOPE_VERSION;
use clawmux_core::replica::{Blob, Record, Subject};
use futures::{Stream, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::engine::{Engine, LogRecord, NoBlob, RECORD_BYTES_MAX, is_full};
use super::writing::{Stage, Writing};
use super::{Cluster, NotFed, away, now_ms};

/// Bytes of records that are here and not applied, however many those are.
const ROOM: usize = BLOB_BYTES_MAX;

/// So many blobs are read at once.
const READS_MAX: usize = 4;

/// The largest record, in bytes.
pub(super) const LARGE_BYTES_MAX: usize = BLOB_BYTES_MAX;

/// A record of the log, as it is there, and what that stands for.
pub(super) struct Whole {
    pub(super) record: LogRecord,
    /// The record of the envelope, where it is one.
    pub(super) whole: Option<Bytes>,
    /// Its room, until it is applied.
    pub(super) room: OwnedSemaphorePermit,
}

impl Whole {
    /// The record, wherever it was.
    pub(super) fn content(&self) -> Bytes {
        self.whole.as_ref().unwrap_or(&self.record.record).clone()
    }
}

/// How many blobs are being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads(Rc<Cell<usize>>);

struct Reading(Reads);

impl Reads {
    /// Whether any is: it takes as long as it takes.
    pub(super) fn any(&self) -> bool {
        self.0.get() > 0
    }

    fn begin(&self) -> Reading {
        self.0.set(self.0.get() + 1);
        Reading(self.clone())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Self(Reads(reads)) = self;
        reads.set(reads.get() - 1);
    }
}

/// The records of the log with those that envelopes stand for, in their order. No more are here at once than there is
/// room for; each gets its room in the order of the log, so that none waits for one after it.
pub(super) fn completed(
    engine: Rc<Engine>,
    records: impl Stream<Item = Result<LogRecord, String>>,
    reads: Reads,
) -> impl Stream<Item = Result<Whole, NotFed>> {
    let room = Arc::new(Semaphore::new(ROOM));
    let with_room = records.then(move |record| {
        let room = Arc::clone(&room);
        async move {
            let record = record.map_err(NotFed::Log)?;
            let blob = Record::enveloped(&record.record);
            let bytes = blob.map_or(record.record.len() as u64, |blob| blob.bytes).clamp(1, ROOM as u64);
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let closed = |_| NotFed::Log("it is followed no more".to_owned());
            let room = room.acquire_many_owned(bytes).await.map_err(closed)?;
            Ok((record, blob, room))
        }
    });
    let completed = with_room.map(move |record| {
        let (engine, reads) = (Rc::clone(&engine), reads.clone());
        async move {
            let (record, blob, room) = record?;
            let Some(blob) = blob else { return Ok(Whole { record, whole: None, room }) };
            let _reading = reads.begin();
            match engine.read_blob(&blob).await {
                Ok(whole) => Ok(Whole { record, whole: Some(whole), room }),
                Err(NoBlob::Away(why)) => Err(NotFed::Log(why)),
                Err(NoBlob::Damaged(why)) => Err(NotFed::Blob(format!(
                    "record {} of the log can't be applied, since {why}",
                    record.sequence.0
                ))),
            }
        }
    });
    completed.buffered(READS_MAX)
}

impl Cluster {
    /// Writes the record that is on its way under this subject as a blob, and its envelope into the log once that is
    /// there.
    pub(super) fn write_in_parts(
        &mut self,
        subject: &Subject,
        stamp: Stamp,
        record: Bytes,
        ctx: &mut Context<Self>,
    ) {
        let Some(writing) = self.writings.get(subject) else { return };
        if let Some(node) = self.too_old_for(ENVELOPE_VERSION) {
            let why = format!(
                "a record of {} bytes is too large for the clawmux of node {node}, which reads up to {RECORD_BYTES_MAX}: \
                 update that node, and try again",
                record.len()
            );
            return self.is_refused(subject, &ErrorCode::Unavailable.error(why), ctx);
        }
        let (engine, of) = (Rc::clone(&self.engine), (subject.clone(), writing.begun));
        let put = async move { engine.put_blob(&record, None).await };
        self.awaited.add(put, move |cluster, put, ctx| cluster.is_put(of, stamp, put, ctx));
    }

    /// A node that is there, and can't read records of this version.
    fn too_old_for(&self, version: u32) -> Option<NodeName> {
        let mut others = self.ownership.membership().hears(now_ms());
        others.find(|node| self.outlook.is_too_old(node, version)).cloned()
    }

    /// The blob of a record is there, or can't be written.
    fn is_put(
        &mut self,
        (subject, begun): (Subject, u64),
        stamp: Stamp,
        put: Result<Blob, String>,
        ctx: &mut Context<Self>,
    ) {
        let writing = self.writings.get_mut(&subject);
        let is_awaited = |writing: &&mut Writing| matches!(writing.in_flight, Some((at, _)) if at == stamp);
        let Some(writing) = writing.filter(is_awaited) else {
            // It was given up meanwhile.
            return put.into_iter().for_each(|blob| self.remove_blob(blob));
        };
        let is_awake = writing.begun == begun && matches!(writing.stage, Stage::Awake(_));
        let envelope = match put {
            Ok(blob) if is_awake => {
                writing.blob = Some(blob);
                Record::envelope(stamp, &blob)
            }
            Ok(blob) => {
                writing.blob = Some(blob);
                Err(away("it is not written by this daemon any more: try again"))
            }
            Err(why) => Err(not_put(&why)),
        };
        match envelope {
            Ok(envelope) => self.append(&subject, stamp, envelope.into(), ctx),
            Err(error) => self.is_refused(&subject, &error, ctx),
        }
    }

    /// The record that is on its way under this subject is not in the log, and never will be.
    fn is_refused(&mut self, subject: &Subject, error: &Error, ctx: &mut Context<Self>) {
        let Some(writing) = self.writings.get_mut(subject) else { return };
        let given_up = writing.give_up(|_| true);
        if matches!(writing.stage, Stage::Asleep) {
            self.awake.remove(&writing.name);
            self.restless.insert(subject.clone());
        }
        if let Some((answer, blob)) = given_up {
            blob.into_iter().for_each(|blob| self.remove_blob(blob));
            answer.one_is(Err(error.clone()));
        }
        self.proceed(subject, ctx);
    }

    /// Removes a blob that nothing in the log names, nor ever will.
    pub(super) fn remove_blob(&self, blob: Blob) {
        let engine = Rc::clone(&self.engine);
        self.awaited.add(async move { engine.remove_blob(&blob).await }, |_, removed, _| {
            if let Err(why) = removed {
                tracing::debug!(why, "cluster: a blob that nobody needs is left");
            }
        });
    }
}

fn not_put(why: &str) -> Error {
    let remedy =
        if is_full(why) { ": raise the limit of the stream of blobs with `nats stream edit`" } else { "" };
    away(&format!("it is too large for one record, and its parts can't be written: {why}{remedy}"))
}
