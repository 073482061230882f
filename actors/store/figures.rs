//! What the store says of itself: counted by its threads, read by the actor.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use clawmux_core::error::Error;
use clawmux_core::event::Outcome;
use clawmux_core::time::Timestamp;
use serde_json::json;
use tokio::sync::watch;

/// What the store says of itself.
#[derive(Debug, Default)]
pub(super) struct Figures {
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
    pub(super) db_bytes: AtomicU64,
    pub(super) memories_looked_at: AtomicU64,
    pub(super) sessions_made: AtomicU64,
    pub(super) tokens_used: AtomicU64,
    pub(super) runs_completed: AtomicU64,
    pub(super) runs_failed: AtomicU64,
    pub(super) runs_aborted: AtomicU64,
    /// Those whose prompt came since the log was opened, and how long they took in all.
    pub(super) runs_timed: AtomicU64,
    pub(super) runs_response_ms: AtomicU64,
    pub(super) backup_pages_left: AtomicU64,
    /// Why nothing can be written; none where it can.
    pub(super) fault: watch::Sender<Option<Error>>,
}

impl Figures {
    /// A run ended that was asked for then, if that is known.
    pub(super) fn run_ended(&self, outcome: &Outcome, prompted: Option<Timestamp>, ended: Timestamp) {
        let count = match outcome {
            Outcome::Completed => &self.runs_completed,
            Outcome::Failed(_) => &self.runs_failed,
            Outcome::Aborted => &self.runs_aborted,
        };
        count.fetch_add(1, Relaxed);
        if let (Some(prompted), Outcome::Completed | Outcome::Failed(_)) = (prompted, outcome) {
            self.runs_timed.fetch_add(1, Relaxed);
            self.runs_response_ms.fetch_add(ended.millis_since(prompted), Relaxed);
        }
    }

    pub(super) fn committed(&self, writes: usize, durable: bool, took_us: u64) {
        self.commits.fetch_add(1, Relaxed);
        self.durable_commits.fetch_add(u64::from(durable), Relaxed);
        self.writes.fetch_add(writes as u64, Relaxed);
        self.batch.store(writes, Relaxed);
        self.batch_max.fetch_max(writes, Relaxed);
        self.commit_us.store(took_us, Relaxed);
        self.commit_us_max.fetch_max(took_us, Relaxed);
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
            "sessions_made": self.sessions_made.load(Relaxed),
            "tokens_used": self.tokens_used.load(Relaxed),
            "runs_completed": self.runs_completed.load(Relaxed),
            "runs_failed": self.runs_failed.load(Relaxed),
            "runs_aborted": self.runs_aborted.load(Relaxed),
            "runs_timed": self.runs_timed.load(Relaxed),
            "runs_response_ms": self.runs_response_ms.load(Relaxed),
            "memories_looked_at": self.memories_looked_at.load(Relaxed),
            "backup_pages_left": self.backup_pages_left.load(Relaxed),
            "fault": self.fault.borrow().as_ref().map(|fault| fault.message.clone()),
        })
    }
}
