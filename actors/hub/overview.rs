//! How the daemon is, for those who ask many times a second.
//!
//! There is one picture for all who may see the same: one for the admins and one for each other
//! owner. It is taken from the log at most once a second, however many ask, and who asks within that
//! second is answered where it stands, without a message to anybody.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use clawmux_core::daemon::command::Overview;
use clawmux_core::ids::Owner;
use clawmux_core::principal::Principal;
use clawmux_core::scope::Scope;
use clawmux_core::time::Timestamp;

/// How old a picture may be.
pub const FRESH: Duration = Duration::from_secs(1);

/// Whose sessions are in a picture; none = everybody's.
pub(super) type View = Option<Owner>;

/// The view of a principal.
pub(super) fn view(principal: &Principal) -> View {
    (!principal.scopes.allows(Scope::Admin)).then(|| principal.owner.clone())
}

/// The pictures that are fresh; shared by the hub and all connections.
#[derive(Clone, Debug, Default)]
pub struct Overviews(Arc<RwLock<HashMap<View, Arc<Overview>>>>);

impl Overviews {
    /// What this principal may see, if it was looked at just now.
    pub fn fresh(&self, now: Timestamp, principal: &Principal) -> Option<Arc<Overview>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&view(principal)).filter(|overview| now.since(overview.at) < FRESH).cloned()
    }

    pub(super) fn put(&self, view: View, overview: Arc<Overview>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(view, overview);
    }

    /// None of them is true any more.
    pub(super) fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
