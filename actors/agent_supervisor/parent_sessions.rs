//! The sessions whose end ends an agent, where everybody can look without asking the supervisor.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::ids::SessionKey;

/// Those sessions; shared by the agent supervisor, which keeps it true, and whoever ends sessions.
#[derive(Clone, Debug, Default)]
pub struct ParentSessions(Arc<Mutex<HashSet<SessionKey>>>);

impl ParentSessions {
    /// Whether a session's end ends somebody.
    pub fn has(&self, session: &SessionKey) -> bool {
        self.lock().contains(session)
    }

    pub(super) fn set<'a>(&self, sessions: impl Iterator<Item = &'a SessionKey>) {
        let mut all = self.lock();
        all.clear();
        all.extend(sessions.cloned());
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<SessionKey>> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
