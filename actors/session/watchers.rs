//! Who watches all sessions it may see, whichever wake and fall asleep.
//!
//! The supervisor enters them and every session looks here before it publishes: for one number that
//! did not change where nobody came or went. So nobody is sent a message for it, and it costs
//! nothing while nobody watches. A session that sleeps is watched as soon as something happens in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::conversation::approval::decides_all;
use clawmux_core::ids::{ConnectionId, Owner, SessionKey, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::scope::Scope;

use crate::runtime::deliver::Client;

/// One connection that watches.
#[derive(Clone, Debug)]
pub struct Watcher {
    /// Which, and where it takes events.
    pub client: Client,
    /// Under which ticket.
    pub ticket: Ticket,
    /// On whose behalf.
    pub principal: Principal,
    /// Whether it watches the calls of sessions in which it may decide and that it is not shown
    /// otherwise, rather than all of those that it may see.
    pub is_for_calls: bool,
}

impl Watcher {
    /// Whether it watches sessions of this owner.
    fn watches(&self, owner: &Owner) -> bool {
        let is_shown = self.principal.sees(owner);
        if self.is_for_calls {
            let is_read = is_shown && self.principal.scopes.allows(Scope::Read);
            return decides_all(&self.principal) && !is_read;
        }
        is_shown
    }
}

/// All that watch; shared by the supervisor and its sessions.
#[derive(Clone, Debug, Default)]
pub struct Watchers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Counts the comings and goings.
    changes: AtomicU64,
    /// By connection, and whether it is for calls.
    all: Mutex<BTreeMap<(ConnectionId, bool), Watcher>>,
}

impl Watchers {
    /// Whether the connection watches, calls or all.
    pub fn is_watching(&self, connection: ConnectionId, is_for_calls: bool) -> bool {
        self.lock().contains_key(&(connection, is_for_calls))
    }

    /// Enters one.
    pub fn add(&self, watcher: Watcher) {
        let mut all = self.lock();
        all.insert((watcher.client.connection, watcher.is_for_calls), watcher);
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    /// Lets the connection's watch go; whether there was one under this ticket, or under any where
    /// none is named.
    pub fn remove(&self, connection: ConnectionId, ticket: Option<Ticket>) -> bool {
        let mut all = self.lock();
        let before = all.len();
        for is_for_calls in [false, true] {
            let key = (connection, is_for_calls);
            if all.get(&key).is_some_and(|watcher| ticket.is_none_or(|ticket| watcher.ticket == ticket)) {
                all.remove(&key);
            }
        }
        let found = all.len() < before;
        if found {
            self.0.changes.fetch_add(1, Ordering::Release);
        }
        found
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those who watch this session, where anybody came or went since `seen`.
    pub(super) fn since(&self, seen: &mut u64, session: &SessionKey) -> Option<Vec<Watcher>> {
        if self.0.changes.load(Ordering::Acquire) == *seen {
            return None;
        }
        let all = self.lock();
        *seen = self.0.changes.load(Ordering::Acquire);
        let owner = session.owner();
        Some(all.values().filter(|watcher| watcher.watches(&owner)).cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ConnectionId, bool), Watcher>> {
        // Nothing that can panic runs under it.
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
