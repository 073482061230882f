//! What changed of which session in lists, as the sessions themselves note it.
//!
//! A session is not to wait for the hub, nor to lose a change because that is busy: it writes down
//! here what changed, over what it wrote before, and the hub comes by. One message is under way for
//! all of it, however many sessions there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix::{Message, Recipient};
use clawmux_core::daemon::announcement::SessionChange;
use clawmux_core::ids::SessionKey;

/// Sessions whose changes are remembered. Where more change at once, who is told of these reads
/// lists anew anyway.
const SESSIONS_MAX: usize = 4096;

/// Changes that are not announced yet; shared by the hub and all sessions.
#[derive(Clone, Debug, Default)]
pub struct Changes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// With the number of each: the order they are announced in.
    changes: HashMap<SessionKey, (u64, SessionChange)>,
    last: u64,
    hub: Option<Recipient<Changed>>,
    /// Whether the hub knows that there is something.
    is_told: bool,
}

/// There are changes, where there were none.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Changed;

impl Changes {
    /// Notes a change, in place of those of the same session that are not announced yet.
    pub fn note(&self, change: SessionChange) {
        let mut noted = self.lock();
        if noted.changes.len() >= SESSIONS_MAX && !noted.changes.contains_key(&change.session) {
            return;
        }
        noted.last += 1;
        let number = noted.last;
        noted.changes.insert(change.session.clone(), (number, change));
        if let Some(hub) = &noted.hub
            && !noted.is_told
        {
            #[expect(
                clippy::disallowed_methods,
                reason = "one is under way at a time; lost, no change would be announced any more"
            )]
            hub.do_send(Changed);
            noted.is_told = true;
        }
    }

    /// From here on this is told.
    pub(super) fn tell(&self, hub: Recipient<Changed>) {
        self.lock().hub = Some(hub);
    }

    /// Takes at most so many, the oldest first; and says whether there are more, which the hub then
    /// knows of.
    pub(super) fn take(&self, max: usize) -> (Vec<SessionChange>, bool) {
        let mut noted = self.lock();
        let mut all: Vec<(u64, SessionChange)> = std::mem::take(&mut noted.changes).into_values().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        let rest = all.split_off(all.len().min(max));
        noted.changes = rest.into_iter().map(|noted| (noted.1.session.clone(), noted)).collect();
        noted.is_told = !noted.changes.is_empty();
        (all.into_iter().map(|(_, change)| change).collect(), noted.is_told)
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
