//! What the store says of itself: counted by its threads, read by the actor.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use clawmux_core::conversation::event::Outcome;
use clawmux_core::error::Error;
use clawmux_core::time::Timestamp;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde_json::json;
use tokio::sync::watch;

use crate::runtime::meters::{Labels, long, short};

/// Writes that were committed together.
const BATCHES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0];

/// What the store says of itself.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(super) queue: AtomicUsize,
    pub(super) queue_bytes: AtomicUsize,
    pub(super) questions: AtomicUsize,
    pub(super) streaming: AtomicUsize,
    pub(super) commits: AtomicU64,
    pub(super) durable_commits: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) batch: AtomicUsize,
    pub(super) batch_max: AtomicUsize,
    pub(super) commit_us: AtomicU64,
    pub(super) commit_us_max: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) timings: Timings,
    pub(super) db_bytes: AtomicU64,
    /// Of the database, what is in use, and what is not.
    pub(super) used_bytes: AtomicU64,
    pub(super) free_bytes: AtomicU64,
    /// Whether rows of deleted sessions are yet to go.
    pub(super) deletes: AtomicBool,
    pub(super) memories_looked_at: AtomicU64,
    pub(super) sessions_made: AtomicU64,
    pub(super) tokens_used: AtomicU64,
    pub(super) runs_started: AtomicU64,
    pub(super) runs_completed: AtomicU64,
    pub(super) runs_failed: AtomicU64,
    pub(super) runs_aborted: AtomicU64,
    /// Those whose prompt came since the log was opened, and how long they took in all.
    pub(super) runs_timed: AtomicU64,
    pub(super) runs_response_ms: AtomicU64,
    pub(super) backup_pages_left: AtomicU64,
    /// Why the writer can't write; none where it can.
    pub(super) fault: watch::Sender<Option<Error>>,
    /// Why the cluster can't, likewise.
    pub(super) away: watch::Sender<Option<Error>>,
    /// Whether that is because the cluster can't be reached.
    pub(super) cut_off: watch::Sender<bool>,
}

/// How long things took.
#[derive(Debug)]
pub(super) struct Timings {
    /// Of whole group commits without a sync, and with one.
    commit: [Histogram; 2],
    /// Of the end of those with one: the sync is in it.
    sync: Histogram,
    /// How many writes a group had.
    batch: Histogram,
    /// Of runs, from their prompt to their end.
    run: Histogram,
}

impl Default for Timings {
    fn default() -> Self {
        let batch = Histogram::new(BATCHES);
        Self { commit: [short(), short()], sync: short(), batch, run: long() }
    }
}

impl Figures {
    /// How much more is in use than this, where it is known: not while deleted rows are yet to go.
    pub(crate) fn bytes_over(&self, most: u64) -> Option<u64> {
        let over = self.used_bytes.load(Relaxed).saturating_sub(most);
        (over > 0 && !self.deletes.load(Relaxed)).then_some(over)
    }

    /// Why nothing can be written; none where it can.
    pub(super) fn why_not(&self) -> Option<Error> {
        self.fault.borrow().clone().or_else(|| self.away.borrow().clone())
    }

    /// A run ended that was asked for then, if that is known.
    pub(super) fn run_ended(&self, outcome: &Outcome, prompted: Option<Timestamp>, ended: Timestamp) {
        let count = match outcome {
            Outcome::Completed | Outcome::Incomplete(_) => &self.runs_completed,
            Outcome::Failed(_) => &self.runs_failed,
            Outcome::Aborted(_) => &self.runs_aborted,
        };
        count.fetch_add(1, Relaxed);
        if let Some(prompted) = prompted
            && !matches!(outcome, Outcome::Aborted(_))
        {
            self.runs_timed.fetch_add(1, Relaxed);
            let took_ms = ended.millis_since(prompted);
            self.runs_response_ms.fetch_add(took_ms, Relaxed);
            self.timings.run.observe(Duration::from_millis(took_ms).as_secs_f64());
        }
    }

    /// A commit that syncs ended, which took so long; the rest of its transaction is not in it.
    pub(super) fn synced(&self, took: Duration) {
        self.timings.sync.observe(took.as_secs_f64());
    }

    pub(super) fn committed(&self, writes: usize, durable: bool, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.timings.commit[usize::from(durable)].observe(took.as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "a group has a few thousand writes at most")]
        self.timings.batch.observe(writes as f64);
        self.commits.fetch_add(1, Relaxed);
        self.durable_commits.fetch_add(u64::from(durable), Relaxed);
        self.writes.fetch_add(writes as u64, Relaxed);
        self.batch.store(writes, Relaxed);
        self.batch_max.fetch_max(writes, Relaxed);
        self.commit_us.store(took_us, Relaxed);
        self.commit_us_max.fetch_max(took_us, Relaxed);
    }

    /// Enters all of it that is of interest over time.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let mut count = |name: &str, help: &str, value: &AtomicU64| {
            registry.register(name, help, ConstCounter::new(value.load(Relaxed)));
        };
        count("log_writes", "Writes that were committed", &self.writes);
        count("log_events", "Events that were appended", &self.events);
        count("log_failed_commits", "Group commits that failed", &self.failures);
        count("runs_started", "Runs whose turn came", &self.runs_started);
        // Not how many there are, which would take a look at each of them at every start.
        count("sessions_made", "Sessions that were made", &self.sessions_made);
        let mut gauge = |name: &str, help: &str, value: u64| {
            registry.register(name, help, ConstGauge::new(value));
        };
        gauge("log_queue_writes", "Writes that wait to be committed", self.queue.load(Relaxed) as u64);
        gauge("log_queue_questions", "Questions that wait to be read", self.questions.load(Relaxed) as u64);
        gauge("log_streaming_steps", "Answers that stream", self.streaming.load(Relaxed) as u64);
        let is_writable = u64::from(self.why_not().is_none());
        gauge(
            "log_writable",
            "1 = the store can be written, 0 = it can't and new work is refused",
            is_writable,
        );
        let mut bytes = |name: &str, help: &str, value: u64| {
            registry.register_with_unit(name, help, Unit::Bytes, ConstGauge::new(value));
        };
        bytes("log_queue", "Size of what waits to be committed", self.queue_bytes.load(Relaxed) as u64);
        bytes("log_size", "Size of the store on the disk", self.db_bytes.load(Relaxed));
        bytes("log_data", "Of the store, what is in use", self.used_bytes.load(Relaxed));
        bytes("log_free", "Of the store, what is free for new work", self.free_bytes.load(Relaxed));
        let written = ConstCounter::new(self.written_bytes.load(Relaxed));
        let help = "Size of the writes that were committed, before the database's own";
        registry.register_with_unit("log_written", help, Unit::Bytes, written);

        let ended = Family::<Labels<1>, Counter>::default();
        let outcomes = [
            ("completed", &self.runs_completed),
            ("failed", &self.runs_failed),
            ("aborted", &self.runs_aborted),
        ];
        for (outcome, count) in outcomes {
            ended.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(count.load(Relaxed));
        }
        registry.register("runs_ended", "Runs that are over, by how they ended", ended);

        let Timings { commit: [normal, full], sync, batch, run } = &self.timings;
        let mut timing = |name: &str, help: &str, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        timing("run_duration", "From a prompt to the end of its run, aborted ones left out", run);
        timing("log_commit_duration", "Group commits of text, which survive the end of the process", normal);
        timing("log_durable_commit_duration", "Group commits that survive a power cut, sync included", full);
        timing("log_sync_duration", "The last statement of those, which is the write and the sync", sync);
        registry.register("log_batch_writes", "Writes in a group commit", batch.clone());
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        json!({
            "queue": self.queue.load(Relaxed),
            "queue_bytes": self.queue_bytes.load(Relaxed),
            "questions": self.questions.load(Relaxed),
            "streaming_steps": self.streaming.load(Relaxed),
            "commits": self.commits.load(Relaxed),
            "durable_commits": self.durable_commits.load(Relaxed),
            "failed_commits": self.failures.load(Relaxed),
            "writes": self.writes.load(Relaxed),
            "events": self.events.load(Relaxed),
            "batch_last": self.batch.load(Relaxed),
            "batch_max": self.batch_max.load(Relaxed),
            "commit_last_us": self.commit_us.load(Relaxed),
            "commit_max_us": self.commit_us_max.load(Relaxed),
            "db_bytes": self.db_bytes.load(Relaxed),
            "used_bytes": self.used_bytes.load(Relaxed),
            "free_bytes": self.free_bytes.load(Relaxed),
            "deletes": self.deletes.load(Relaxed),
            "written_bytes": self.written_bytes.load(Relaxed),
            "sessions_made": self.sessions_made.load(Relaxed),
            "tokens_used": self.tokens_used.load(Relaxed),
            "runs_started": self.runs_started.load(Relaxed),
            "runs_completed": self.runs_completed.load(Relaxed),
            "runs_failed": self.runs_failed.load(Relaxed),
            "runs_aborted": self.runs_aborted.load(Relaxed),
            "runs_timed": self.runs_timed.load(Relaxed),
            "runs_response_ms": self.runs_response_ms.load(Relaxed),
            "memories_looked_at": self.memories_looked_at.load(Relaxed),
            "backup_pages_left": self.backup_pages_left.load(Relaxed),
            "fault": self.why_not().map(|fault| fault.message),
        })
    }
}
