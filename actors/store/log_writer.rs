//! The way of a change to the writer, and the changes of sessions.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};

use actix::{Handler, Message, ResponseFuture};
use clawmux_core::conversation::event::Logged;
use clawmux_core::conversation::outbox::ToSay;
use clawmux_core::error::Error;
use clawmux_core::ids::{Seq, SessionKey};
use clawmux_core::replica::Write;
use clawmux_core::time::Timestamp;
use clawmux_core::tools::audit::CallRecord;
use tokio::sync::oneshot;

use super::change::{Change, MadeBy};
use super::failure::Failure;
use super::figures::Figures;
use super::journal::Journal;
use super::live::Live;
use super::writer::{PendingChange, Writer};
use super::{Health, Holdings, RecordCall, Store, answered, closed, full};

/// How many bytes of writes may wait; a single one may have more.
const WRITE_BYTES_MAX: usize = 64 << 20;
/// What a deletion counts, in bytes.
const DELETE_BYTES: usize = 64;
/// What an answer for a channel counts besides its text, in bytes.
const TO_SAY_BYTES: usize = 512;

/// Adds events to a session's log, all or none; the session is made if it is new. Answered when
/// they will survive the end of the process, or, where `durable`, a power cut.
///
/// Errors: `Conflict` where a run or an idempotency key exists already ([`FindRun`](crate::store::FindRun) then finds
/// it), `Internal` where the events do not follow the log, `Unavailable` where the log is full or
/// can't be written; nothing was applied in all of these. After `Timeout` that is not known: load
/// the session anew.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Append {
    /// The session.
    pub session: SessionKey,
    /// The events; each covers one number, and they follow each other.
    pub events: Arc<[Logged]>,
    /// Whether a power cut must not take them. Text that goes past the reserve is durable anyway.
    pub durable: bool,
    /// Sets numbers up to here aside, durably: text up to it need not be durable itself.
    pub reserve: Option<Seq>,
    /// What is said over channels with them: it is in the outbox when they are in the log.
    pub to_say: Vec<ToSay>,
}

/// Removes a session with its log, its runs and their idempotency keys: a key that was used in it
/// can be used again, for nothing is known of it any more. What it cost stays on record. Durable when
/// answered; what the log held is overwritten soon after that, a little at a time.
///
/// Errors: `NotFound` where there is no such session, `Conflict` while a run of it has not ended;
/// else as [`Append`]'s.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Delete(pub SessionKey);

impl Handler<Delete> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, Delete(session): Delete, _: &mut Self::Context) -> Self::Result {
        self.log_writer.delete(session)
    }
}

impl Change for Append {
    fn bytes(&self) -> usize {
        let said: usize = self.to_say.iter().map(|to_say| to_say.answer.text.len() + TO_SAY_BYTES).sum();
        said + self.events.iter().map(|logged| logged.event.bytes()).sum::<usize>()
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::AllButText(self)
    }

    fn is_durable(&self, writer: &Writer) -> bool {
        let last = self.events.last().map_or(0, |logged| logged.seq.0);
        self.durable
            || self.reserve.is_some()
            || writer.reserved(&self.session).is_none_or(|reserved| last > reserved)
    }

    fn session(&self) -> Option<&SessionKey> {
        Some(&self.session)
    }

    fn apply(&self, writer: &mut Writer, live: &mut Live) -> Result<(), Failure> {
        writer.append(live, self)
    }
}

/// The deletion of a session.
#[derive(Debug)]
pub(super) struct Deletion {
    pub(super) session: SessionKey,
    /// Only where it was not used after this.
    pub(super) unused_since: Option<Timestamp>,
}

impl Change for Deletion {
    fn bytes(&self) -> usize {
        DELETE_BYTES
    }

    fn made_by(&self) -> MadeBy<'_> {
        let Self { session, unused_since } = self;
        MadeBy::All(Write::Delete { session: session.clone(), unused_since: *unused_since })
    }

    fn session(&self) -> Option<&SessionKey> {
        Some(&self.session)
    }

    fn apply(&self, writer: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        writer.delete(self)
    }
}

/// Writes to the log without the detour through the store's mailbox, which would cost every token a
/// hop to the store's arbiter and back. Ends with the store: what comes later is refused.
#[derive(Clone, Debug)]
pub struct LogWriter {
    /// None once the store has stopped.
    pub(super) journal: Arc<RwLock<Option<Box<dyn Journal>>>>,
    pub(super) figures: Arc<Figures>,
    pub(super) holdings: Holdings,
}

impl LogWriter {
    /// Appends to the log; see [`Append`].
    ///
    /// # Errors
    /// As [`Append`]'s.
    pub fn append(&self, append: Append) -> ResponseFuture<Result<(), Error>> {
        self.write(append)
    }

    /// Removes a session, durably; see [`Delete`].
    ///
    /// # Errors
    /// As [`Delete`]'s.
    pub fn delete(&self, session: SessionKey) -> ResponseFuture<Result<(), Error>> {
        self.write(Deletion { session, unused_since: None })
    }

    /// The same, where the session was not used since then; else `Conflict`.
    ///
    /// # Errors
    /// As [`Delete`]'s.
    pub fn delete_unused(&self, session: SessionKey, since: Timestamp) -> ResponseFuture<Result<(), Error>> {
        self.write(Deletion { session, unused_since: Some(since) })
    }

    /// Keeps what became of a tool call, before whatever is written later; see [`RecordCall`]. Where that fails,
    /// the daemon's log says so.
    pub fn record_call(&self, record: CallRecord) {
        let written = self.write(RecordCall(record));
        actix::spawn(async move {
            if let Err(error) = written.await {
                tracing::warn!(error = %error.message, "a tool call is not on record");
            }
        });
    }

    /// What owners hold in the log.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Waits until what was appended to a session before is written or refused: a write whose sender
    /// is gone may still be on its way.
    pub async fn settled(&self, session: &SessionKey) {
        let session = session.clone();
        let nothing =
            Append { session, events: Arc::default(), durable: false, reserve: None, to_say: Vec::new() };
        // The writes of a session are done in their order; that there is nothing to do is no matter.
        let _ = self.append(nothing).await;
    }

    /// What the log says of itself, for those who must not wait for it.
    pub(crate) fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// Whether the log can be written.
    pub fn health(&self) -> Health {
        Health::new(&self.figures)
    }

    /// Says why the cluster can write nothing, or that it can, and whether it is known only now that one of both is so.
    /// `is_cut_off`: it can't be reached.
    #[cfg(feature = "nats")]
    pub(crate) fn set_away(&self, why: Option<Error>, is_cut_off: bool) -> bool {
        self.figures.cut_off.send_if_modified(|was| std::mem::replace(was, is_cut_off) != is_cut_off);
        let was_away = self.figures.away.borrow().is_some();
        self.figures.away.send_if_modified(|away| {
            let is_news = *away != why;
            away.clone_from(&why);
            is_news
        });
        was_away != why.is_some()
    }

    pub(super) fn write(&self, change: impl Change) -> ResponseFuture<Result<(), Error>> {
        let refuse = |error| -> ResponseFuture<_> { Box::pin(std::future::ready(Err(error))) };
        let journal = self.journal.read().unwrap_or_else(PoisonError::into_inner);
        let Some(journal) = &*journal else { return refuse(closed()) };
        let bytes = change.bytes();
        let waiting = self.figures.queue_bytes.fetch_add(bytes, Relaxed);
        let (done, answer) = oneshot::channel();
        let sent = if waiting > 0 && waiting.saturating_add(bytes) > WRITE_BYTES_MAX {
            Err(full("writes"))
        } else {
            // Counted first, so that the writer never counts down what was not counted up.
            self.figures.queue.fetch_add(1, Relaxed);
            let taken = journal.take(PendingChange { change: Box::new(change), bytes, done });
            if taken.is_err() {
                self.figures.queue.fetch_sub(1, Relaxed);
            }
            taken
        };
        if let Err(error) = sent {
            self.figures.queue_bytes.fetch_sub(bytes, Relaxed);
            return refuse(error);
        }
        Box::pin(async move { answered(answer).await? })
    }

    /// Refuses all that comes from now on, from every clone too.
    pub(super) fn put_down(&self) {
        *self.journal.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
