//! What a session has spent, and what is set aside for its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use clawmux_core::provider::price::Money;
use clawmux_core::provider::tally::Spent;
use clawmux_core::provider::usage::Usage;

/// What a session has spent, shared by the session and its calls: a call that is over, however it
/// ended, is counted here at once, and so before the session's next one asks for its budget.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<State>);

#[derive(Debug, Default)]
struct State {
    usage: [AtomicU64; 4],
    /// In billionths of a dollar, as what is reserved.
    cost: AtomicU64,
    reserved_tokens: AtomicU64,
    reserved_cost: AtomicU64,
    /// Whether it was told that its budget is near its end.
    warned: AtomicBool,
}

impl Account {
    /// An account that stands at this.
    pub fn new(usage: Usage, cost: Money) -> Self {
        let usage = counts(usage).map(AtomicU64::new);
        Self(Arc::new(State { usage, cost: cost.nanos().into(), ..State::default() }))
    }

    /// The tokens spent so far. Calls under way are not in it.
    pub fn usage(&self) -> Usage {
        let [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens] =
            self.0.usage.each_ref().map(|count| count.load(Relaxed));
        Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens }
    }

    /// What budgets count of what is spent so far. Calls under way are not in it.
    pub fn spent(&self) -> Spent {
        Spent { tokens: self.usage().total(), cost: Money::from_nanos(self.0.cost.load(Relaxed)) }
    }

    /// Spent, and set aside for calls under way.
    pub(super) fn taken(&self) -> Spent {
        self.spent().plus(Spent {
            tokens: self.0.reserved_tokens.load(Relaxed),
            cost: Money::from_nanos(self.0.reserved_cost.load(Relaxed)),
        })
    }

    pub(super) fn reserve(&self, spent: Spent) {
        self.0.reserved_tokens.fetch_add(spent.tokens, Relaxed);
        self.0.reserved_cost.fetch_add(spent.cost.nanos(), Relaxed);
    }

    pub(super) fn release(&self, spent: Spent) {
        self.0.reserved_tokens.fetch_sub(spent.tokens, Relaxed);
        self.0.reserved_cost.fetch_sub(spent.cost.nanos(), Relaxed);
    }

    pub(super) fn add(&self, usage: Usage, cost: Money) {
        for (count, more) in self.0.usage.iter().zip(counts(usage)) {
            count.fetch_add(more, Relaxed);
        }
        self.0.cost.fetch_add(cost.nanos(), Relaxed);
    }

    /// Whether its budgets came near their end since it was last asked so; only once while the session is
    /// awake.
    pub(super) fn is_news(&self, is_near: bool) -> bool {
        is_near && !self.0.warned.swap(true, Relaxed)
    }
}

fn counts(usage: Usage) -> [u64; 4] {
    [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens]
}
