//! What a session has spent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clawmux_core::provider::usage::Usage;

/// What a session has spent, shared by the session and its calls: a call that is over, however it
/// ended, is counted here at once, and so before the session's next one asks for its budget.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<[AtomicU64; 2]>);

impl Account {
    /// An account that stands at this.
    pub fn new(spent: Usage) -> Self {
        Self(Arc::new([spent.input_tokens.into(), spent.output_tokens.into()]))
    }

    /// Spent so far. Calls under way are not in it.
    pub fn spent(&self) -> Usage {
        let [input, output] = &*self.0;
        Usage { input_tokens: input.load(Relaxed), output_tokens: output.load(Relaxed) }
    }

    /// Spent since it stood at `before`.
    pub fn spent_since(&self, before: Usage) -> Usage {
        let now = self.spent();
        Usage {
            input_tokens: now.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: now.output_tokens.saturating_sub(before.output_tokens),
        }
    }

    pub(super) fn add(&self, usage: Usage) {
        let [input, output] = &*self.0;
        input.fetch_add(usage.input_tokens, Relaxed);
        output.fetch_add(usage.output_tokens, Relaxed);
    }
}
