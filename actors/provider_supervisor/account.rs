//! What a session has spent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clawmux_core::provider::usage::Usage;

/// What a session has spent, shared by the session and its calls: a call that is over, however it
/// ended, is counted here at once, and so before the session's next one asks for its budget.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<[AtomicU64; 4]>);

impl Account {
    /// An account that stands at this.
    pub fn new(spent: Usage) -> Self {
        Self(Arc::new(counts(spent).map(AtomicU64::new)))
    }

    /// Spent so far. Calls under way are not in it.
    pub fn spent(&self) -> Usage {
        let [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens] =
            self.0.each_ref().map(|count| count.load(Relaxed));
        Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens }
    }

    /// Spent since it stood at `before`.
    pub fn spent_since(&self, before: Usage) -> Usage {
        self.spent().since(before)
    }

    pub(super) fn add(&self, usage: Usage) {
        for (count, more) in self.0.iter().zip(counts(usage)) {
            count.fetch_add(more, Relaxed);
        }
    }
}

fn counts(usage: Usage) -> [u64; 4] {
    [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens]
}
