//! What the store says of itself: counted by its threads, read by the actor.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use clawmux_core::error::Error;
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
    pub(super) backup_pages_left: AtomicU64,
    /// Why nothing can be written; none where it can.
    pub(super) fault: watch::Sender<Option<Error>>,
}

impl Figures {
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
            "memories_looked_at": self.memories_looked_at.load(Relaxed),
            "backup_pages_left": self.backup_pages_left.load(Relaxed),
            "fault": self.fault.borrow().as_ref().map(|fault| fault.message.clone()),
        })
    }
}
