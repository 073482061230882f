//! Which connections there are.
//!
//! Sockets are accepted on many threads, and whether there is room must be known at once: hence a
//! shared table behind a lock that is held for a few instructions, and no actor.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;

use super::Nudge;
use super::link::Link;
use crate::clock;

/// All connections of the process.
#[derive(Debug)]
pub struct Registry {
    max: usize,
    unauthenticated_max: usize,
    last_id: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    all: BTreeMap<ConnectionId, Weak<Link>>,
    /// Those before their handshake, the oldest first.
    unauthenticated: BTreeMap<ConnectionId, ()>,
}

impl Registry {
    /// For at most `max` connections, `unauthenticated_max` of them before their handshake.
    pub fn new(max: usize, unauthenticated_max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            unauthenticated_max,
            last_id: AtomicU64::new(0),
            table: Mutex::new(Table::default()),
        })
    }

    /// Enters a socket that was just accepted. Where too many have not shown who they are, the
    /// oldest of them is closed.
    ///
    /// # Errors
    /// Where the operating system refuses a descriptor.
    pub fn accept(
        self: &Arc<Self>,
        socket: &(impl AsFd + std::fmt::Debug),
        peer: SocketAddr,
        local: SocketAddr,
    ) -> std::io::Result<Arc<Link>> {
        let id = ConnectionId(self.last_id.fetch_add(1, Relaxed) + 1);
        let link = Arc::new(Link::new(id, socket, peer, local, self.clone())?);
        let mut evicted = None;
        {
            let mut table = self.lock();
            table.all.insert(id, Arc::downgrade(&link));
            table.unauthenticated.insert(id, ());
            if table.unauthenticated.len() > self.unauthenticated_max.max(1)
                && let Some((oldest, ())) = table.unauthenticated.pop_first()
            {
                evicted = table.all.get(&oldest).and_then(Weak::upgrade);
            }
        }
        // Not under the lock: dropping the last hold on a link takes it.
        if let Some(evicted) = evicted {
            evicted.close_begins(clock::now());
            if !evicted.nudge(Nudge::Fault(Fault::Overloaded)) {
                evicted.reset();
            }
        }
        Ok(link)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there are more than there may be.
    pub fn is_full(&self) -> bool {
        self.len() > self.max
    }

    /// The most there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many have not completed their handshake.
    pub fn unauthenticated(&self) -> usize {
        self.lock().unauthenticated.len()
    }

    /// All of them, the oldest first.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.lock().all.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn admitted(&self, id: ConnectionId) {
        self.lock().unauthenticated.remove(&id);
    }

    pub(super) fn gone(&self, id: ConnectionId) {
        let mut table = self.lock();
        table.all.remove(&id);
        table.unauthenticated.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing that can panic runs under it, and a table without one entry is still a table.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
