//! What sessions spend together: that of agents that work for a session counts against its budget.
//!
//! Calls of one family may be under way at the same time, so what they have reserved counts as well;
//! none can overshoot because it does not see the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::error::{Detail, Error, ErrorCode};
use clawmux_core::ids::SessionKey;

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

/// What all of a family have spent, and set aside for calls under way, in tokens.
#[derive(Debug, Default)]
struct Family {
    spent: AtomicU64,
    reserved: AtomicU64,
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
    pub fn add(&self, session: &SessionKey, tokens: u64) {
        if let Some(shared_budget) = self.of(session) {
            shared_budget.add(tokens);
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
    pub(crate) fn taken(&self) -> u64 {
        self.family.spent.load(Relaxed).saturating_add(self.family.reserved.load(Relaxed))
    }

    /// How much output a call of `input` tokens may produce in a session that itself has spent
    /// `own_spent`.
    ///
    /// # Errors
    /// `BudgetExceeded` where what may be spent does not hold the input and one token more.
    pub(crate) fn clamp(&self, own_spent: u64, input: u64, output_max: u32) -> Result<u32, Error> {
        let Some(limit) = self.own_max else { return Ok(output_max) };
        let room = limit.saturating_sub(own_spent).saturating_sub(input);
        if room == 0 {
            return Err(ErrorCode::BudgetExceeded
                .error(format!("token budget exceeded (agent: {own_spent}/{limit})"))
                .with(Detail::Limit { name: clawmux_core::error::limit::Limit::AgentTokens, limit }));
        }
        Ok(output_max.min(u32::try_from(room).unwrap_or(u32::MAX)))
    }

    pub(super) fn add(&self, tokens: u64) {
        self.family.spent.fetch_add(tokens, Relaxed);
    }

    pub(super) fn reserve(&self, tokens: u64) {
        self.family.reserved.fetch_add(tokens, Relaxed);
    }

    pub(super) fn release(&self, tokens: u64) {
        self.family.reserved.fetch_sub(tokens, Relaxed);
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
        shared_budgets.add(&key("root"), 40);
        assert!(!shared_budgets.share(&key("root"), &key("b"), None), "it is known what the root spent");
        let (root, a, b) = (
            shared_budgets.of(&key("root")).unwrap(),
            shared_budgets.of(&key("a")).unwrap(),
            shared_budgets.of(&key("b")).unwrap(),
        );
        a.add(5);
        b.reserve(7);
        assert_eq!((root.taken(), a.taken()), (52, 52));
        b.release(7);
        assert_eq!(b.taken(), 45);
        assert_eq!(a.clamp(60, 30, 4096), Ok(10));
        assert_eq!(b.clamp(60, 30, 4096), Ok(4096));
        let refused = a.clamp(60, 40, 1).unwrap_err();
        assert_eq!(refused.message, "token budget exceeded (agent: 60/100)");
        shared_budgets.retain(|session| *session != key("a"));
        assert!(shared_budgets.of(&key("a")).is_none() && shared_budgets.of(&key("stranger")).is_none());
    }
}
