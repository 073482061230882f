//! What sessions spend together: that of agents that work for a session counts against its budget.
//!
//! Calls of one family may be under way at the same time, so what they have reserved counts as well;
//! none can overshoot because it does not see the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use clawmux_core::provider::price::Money;
use clawmux_core::provider::tally::Spent;

/// The purses of sessions that share one, by session.
#[derive(Clone, Debug, Default)]
pub struct SharedBudgets(Arc<Mutex<HashMap<SessionKey, SharedBudget>>>);

/// What a session spends from.
#[derive(Clone, Debug, Default)]
pub struct SharedBudget {
    family: Arc<Family>,
    /// The most that this session may spend; none = as all together.
    own_max: Option<u64>,
}

/// What all of a family have spent and set aside for calls under way.
#[derive(Debug, Default)]
struct Family {
    tokens: AtomicU64,
    /// In billionths of a dollar.
    cost: AtomicU64,
}

impl SharedBudgets {
    /// Has `session` spend from the purse of `root`, and at most `own_max` itself. Says whether `root`
    /// had none: what it spent before is to be added then ([`Self::add`]).
    pub fn share(&self, root: &SessionKey, session: &SessionKey, own_max: Option<u64>) -> bool {
        let mut all = self.lock();
        let is_new = !all.contains_key(root);
        let family = all.entry(root.clone()).or_default().family.clone();
        all.insert(session.clone(), SharedBudget { family, own_max });
        is_new
    }

    /// Counts what a session spent before it shared a purse.
    pub fn add(&self, session: &SessionKey, spent: Spent) {
        if let Some(shared_budget) = self.of(session) {
            shared_budget.add(spent);
        }
    }

    /// Forgets all but those of these sessions.
    pub fn retain(&self, is_needed: impl Fn(&SessionKey) -> bool) {
        self.lock().retain(|session, _| is_needed(session));
    }

    /// What a session spends from, where that is not its own.
    pub fn of(&self, session: &SessionKey) -> Option<SharedBudget> {
        self.lock().get(session).cloned()
    }

    /// How many sessions share one.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, SharedBudget>> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedBudget {
    /// What all have spent and set aside.
    pub(crate) fn taken(&self) -> Spent {
        let cost = Money::from_nanos(self.family.cost.load(Relaxed));
        Spent { tokens: self.family.tokens.load(Relaxed), cost }
    }

    /// How much output a call of `input` tokens may produce, which needs `output_min`, in a session that
    /// itself has spent `own_spent`.
    ///
    /// # Errors
    /// `BudgetExceeded` where what may be spent does not hold the input and that much output.
    pub(crate) fn clamp(
        &self,
        own_spent: u64,
        input: u64,
        output_min: u32,
        output_max: u32,
    ) -> Result<u32, Error> {
        let Some(limit) = self.own_max else { return Ok(output_max) };
        let room = limit.saturating_sub(own_spent).saturating_sub(input);
        if room < output_min.max(1).into() {
            return Err(ErrorCode::BudgetExceeded
                .error(format!("token budget exceeded (agent: {own_spent}/{limit})"))
                .with(Detail::Limit { name: clawmux_core::error::limit::Limit::AgentTokens, limit }));
        }
        Ok(output_max.min(u32::try_from(room).unwrap_or(u32::MAX)))
    }

    pub(super) fn add(&self, spent: Spent) {
        self.family.tokens.fetch_add(spent.tokens, Relaxed);
        self.family.cost.fetch_add(spent.cost.nanos(), Relaxed);
    }

    /// Takes back what was added for a call that is over.
    pub(super) fn release(&self, spent: Spent) {
        self.family.tokens.fetch_sub(spent.tokens, Relaxed);
        self.family.cost.fetch_sub(spent.cost.nanos(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> SessionKey {
        SessionKey::new("main", "test", name, "main").unwrap()
    }

    #[test]
    fn a_family_spends_from_one_purse_and_each_at_most_its_own_share() {
        let shared_budgets = SharedBudgets::default();
        assert!(shared_budgets.share(&key("root"), &key("a"), Some(100)));
        let tokens = |tokens| Spent { tokens, cost: Money::from_nanos(10 * tokens) };
        shared_budgets.add(&key("root"), tokens(40));
        assert!(!shared_budgets.share(&key("root"), &key("b"), None), "it is known what the root spent");
        let (root, a, b) = (
            shared_budgets.of(&key("root")).unwrap(),
            shared_budgets.of(&key("a")).unwrap(),
            shared_budgets.of(&key("b")).unwrap(),
        );
        a.add(tokens(5));
        b.add(tokens(7));
        assert_eq!((root.taken(), a.taken()), (tokens(52), tokens(52)));
        b.release(tokens(7));
        assert_eq!(b.taken(), tokens(45));
        assert_eq!(a.clamp(60, 30, 1, 4096), Ok(10));
        assert_eq!(b.clamp(60, 30, 1, 4096), Ok(4096));
        let refused = a.clamp(60, 40, 1, 1).unwrap_err();
        assert_eq!(refused.message, "token budget exceeded (agent: 60/100)");
        shared_budgets.retain(|session| *session != key("a"));
        assert!(shared_budgets.of(&key("a")).is_none() && shared_budgets.of(&key("stranger")).is_none());
    }
}
