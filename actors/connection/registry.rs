//! Which connections there are.
//!
//! Sockets are accepted on many threads, and whether there is room must be known at once: hence a
//! shared table behind a lock that is held for a few instructions, and no actor.
//!
//! Who has not shown who it is makes room for others: the oldest of these is closed where there are
//! too many of them, or too many connections altogether. Nobody who was let in has to leave for
//! somebody who was not, and those are all that the places are counted for. Of one principal so
//! many are let in; operators of this host (`local`, and peers on the Unix socket) as many as come.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;
use clawmux_core::principal::Principal;

use super::link::{Link, Peer};
use super::partial::Partials;
use crate::runtime::clock;

/// Connections above the most there may be that are still taken in, so that they can be told.
pub(crate) const EXCESS: usize = 64;

/// Connections that were told to make room and may stay to read so. Of more, the oldest is reset.
pub(crate) const LEAVING_MAX: usize = 64;

/// All connections of the process.
#[derive(Debug)]
pub struct Registry {
    max: usize,
    unauthenticated_max: AtomicUsize,
    /// Of each principal.
    principal_max: AtomicUsize,
    last_id: Arc<AtomicU64>,
    partials: Arc<Partials>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    all: BTreeMap<ConnectionId, Weak<Link>>,
    /// Those before their handshake, the oldest first.
    unauthenticated: BTreeSet<ConnectionId>,
    /// Those that have to make room, and are still there.
    leaving: BTreeSet<ConnectionId>,
    /// Those of them that may still read why, the oldest first.
    told: VecDeque<ConnectionId>,
    /// Whose those are that were let in and count.
    principals: HashMap<ConnectionId, Arc<str>>,
    /// How many each of them has.
    of_principal: HashMap<Arc<str>, usize>,
    /// How many were closed by the daemon, and why.
    closed: BTreeMap<&'static str, u64>,
}

impl Table {
    /// Picks the oldest that has not shown who it is, to make room.
    fn pick(&mut self) -> Option<Picked> {
        let oldest = self.unauthenticated.pop_first()?;
        Some(self.send_away(oldest))
    }

    /// Has this one go.
    fn send_away(&mut self, oldest: ConnectionId) -> Picked {
        self.leaving.insert(oldest);
        self.told.push_back(oldest);
        let too_slow = (self.told.len() > LEAVING_MAX).then(|| self.told.pop_front()).flatten();
        Picked { told: self.link(oldest), too_slow: too_slow.and_then(|id| self.link(id)) }
    }

    /// This one counts no longer.
    fn discount(&mut self, id: ConnectionId) {
        let Some(name) = self.principals.remove(&id) else { return };
        if let Some(count) = self.of_principal.get_mut(&name) {
            *count -= 1;
            if *count == 0 {
                self.of_principal.remove(&name);
            }
        }
    }

    /// How many were let in.
    fn members(&self) -> usize {
        self.all.len() - self.unauthenticated.len() - self.leaving.len()
    }

    fn link(&self, id: ConnectionId) -> Option<Arc<Link>> {
        self.all.get(&id).and_then(Weak::upgrade)
    }
}

/// Why somebody can't be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// There are as many connections as may be.
    Full,
    /// The principal has as many as it may have.
    OfPrincipal {
        /// How many that are.
        max: usize,
    },
}

/// Who has to go.
struct Picked {
    /// This one now.
    told: Option<Arc<Link>>,
    /// This one was told before, and is there still.
    too_slow: Option<Arc<Link>>,
}

impl Picked {
    /// Not under the lock: dropping the last hold on a link takes it.
    fn go(self) {
        if let Some(link) = self.told {
            link.close(Fault::Overloaded, clock::now());
        }
        if let Some(link) = self.too_slow {
            link.reset();
        }
    }
}

impl Registry {
    /// For at most `max` connections that were let in, and `unauthenticated_max` that were not yet.
    pub fn new(max: usize, unauthenticated_max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            unauthenticated_max: AtomicUsize::new(unauthenticated_max),
            principal_max: AtomicUsize::new(usize::MAX),
            last_id: Arc::default(),
            partials: Arc::default(),
            table: Mutex::new(Table::default()),
        })
    }

    /// Another one, for at most `max` connections of which each is let in at once; no connection has the
    /// same number in both, and their unfinished messages share one bound.
    pub fn beside(&self, max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            unauthenticated_max: AtomicUsize::new(max),
            principal_max: AtomicUsize::new(usize::MAX),
            last_id: self.last_id.clone(),
            partials: self.partials.clone(),
            table: Mutex::new(Table::default()),
        })
    }

    /// Enters a socket that was just accepted. Where there are too many, the oldest of those that
    /// have not shown who they are is closed.
    ///
    /// # Errors
    /// Where the operating system refuses a descriptor.
    pub fn accept(
        self: &Arc<Self>,
        socket: &(impl AsFd + std::fmt::Debug),
        peer: Peer,
    ) -> std::io::Result<Arc<Link>> {
        let id = ConnectionId(self.last_id.fetch_add(1, Relaxed) + 1);
        let link = Arc::new(Link::new(id, socket, peer, self.clone())?);
        let picked = {
            let mut table = self.lock();
            table.all.insert(id, Arc::downgrade(&link));
            table.unauthenticated.insert(id);
            let too_many = table.unauthenticated.len() > self.unauthenticated_max.load(Relaxed).max(1)
                || table.all.len() - table.leaving.len() > self.max.saturating_add(EXCESS);
            too_many.then(|| table.pick()).flatten()
        };
        if let Some(picked) = picked {
            picked.go();
        }
        Ok(link)
    }

    /// From now on there may be so many that have not shown who they are; those that come from here on
    /// make room.
    pub(crate) fn set_unauthenticated_max(&self, max: usize) {
        self.unauthenticated_max.store(max, Relaxed);
    }

    /// From now on one principal may have so many. Those that are there stay.
    pub(crate) fn set_principal_max(&self, max: usize) {
        self.principal_max.store(max, Relaxed);
    }

    /// Makes room for one more, where there is none: the oldest of those has to go that were let in and
    /// never said anything. Whether there is room then.
    pub(crate) fn make_room(&self) -> bool {
        // Held until the lock is not: dropping the last hold on a link takes it.
        let (links, picked) = {
            let mut table = self.lock();
            if table.all.len() - table.leaving.len() < self.max {
                return true;
            }
            let there = table.all.iter().filter(|(id, _)| !table.leaving.contains(id));
            let links: Vec<_> = there.filter_map(|(_, link)| link.upgrade()).collect();
            let silent = links.iter().find(|link| !link.has_spoken()).map(|link| link.id());
            let picked = silent.map(|id| {
                table.unauthenticated.remove(&id);
                table.send_away(id)
            });
            (links, picked)
        };
        let is_room = picked.is_some();
        if let Some(picked) = picked {
            picked.go();
        }
        drop(links);
        is_room
    }

    /// What has come of messages that are not complete.
    pub(crate) fn partials(&self) -> &Partials {
        &self.partials
    }

    /// Whether as many are let in as may be.
    pub fn is_full(&self) -> bool {
        self.lock().members() >= self.max
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// How many were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.last_id.load(Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many have not completed their handshake.
    pub fn unauthenticated(&self) -> usize {
        self.lock().unauthenticated.len()
    }

    /// How many the daemon has closed so far, by cause.
    pub fn closed(&self) -> BTreeMap<&'static str, u64> {
        self.lock().closed.clone()
    }

    /// All of them, the oldest first.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.lock().all.values().filter_map(Weak::upgrade).collect()
    }

    /// The connection of this id.
    pub fn link(&self, id: ConnectionId) -> Option<Arc<Link>> {
        self.lock().link(id)
    }

    /// It has shown who it is.
    ///
    /// # Errors
    /// Where there is no place for it.
    pub(super) fn admit(&self, id: ConnectionId, principal: &Principal) -> Result<(), NoPlace> {
        let mut table = self.lock();
        if table.members() >= self.max || !table.unauthenticated.contains(&id) {
            return Err(NoPlace::Full);
        }
        if !principal.unlimited {
            let max = self.principal_max.load(Relaxed);
            let count = table.of_principal.entry(principal.name.clone()).or_default();
            if *count >= max {
                return Err(NoPlace::OfPrincipal { max });
            }
            *count += 1;
            table.principals.insert(id, principal.name.clone());
        }
        table.unauthenticated.remove(&id);
        Ok(())
    }

    /// It was let in and ends: its principal may have another.
    pub(super) fn leaves(&self, id: ConnectionId) {
        self.lock().discount(id);
    }

    pub(super) fn closes(&self, cause: &'static str) {
        *self.lock().closed.entry(cause).or_default() += 1;
    }

    pub(super) fn gone(&self, id: ConnectionId) {
        let mut table = self.lock();
        table.all.remove(&id);
        table.discount(id);
        table.unauthenticated.remove(&id);
        if table.leaving.remove(&id) {
            table.told.retain(|told| *told != id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing that can panic runs under it, and a table without one entry is still a table.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
