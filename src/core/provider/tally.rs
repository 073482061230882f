//! What calls came to together: tokens, and what they cost.

use super::price::Money;
use super::usage::Usage;
use crate::ids::{AgentId, Owner};

/// The sum of some calls of models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The tokens.
    pub usage: Usage,
    /// What those of them cost whose model has a known price.
    pub cost: Money,
    /// How many calls it were.
    pub calls: u64,
    /// How many of them went to models without a known price.
    pub unpriced: u64,
}

impl Tally {
    /// What budgets count of it.
    pub fn spent(self) -> Spent {
        Spent { tokens: self.usage.total(), cost: self.cost }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.usage += other.usage;
        self.cost = self.cost.plus(other.cost);
        self.calls = self.calls.saturating_add(other.calls);
        self.unpriced = self.unpriced.saturating_add(other.unpriced);
    }
}

/// What was spent in the current day and month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Since the start of the day.
    pub day: Tally,
    /// Since the start of the month.
    pub month: Tally,
}

/// An amount as budgets count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Input and output.
    pub tokens: u64,
    /// What they cost.
    pub cost: Money,
}

impl Spent {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), cost: self.cost.plus(other.cost) }
    }

    /// What is left of this without the other.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_sub(other.tokens), cost: self.cost.minus(other.cost) }
    }
}

/// What an agent spent for a principal in the current day and month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentBy {
    /// The agent that asked.
    pub agent: AgentId,
    /// For whom.
    pub principal: Owner,
    /// Since the start of the day.
    pub day: Spent,
    /// Since the start of the month.
    pub month: Spent,
}
