//! What has come of messages that are not complete, of all connections.
//!
//! What one of them holds lies outside its actor: a peer that does not read keeps its actor from being
//! polled, and must give way all the same. So the bytes of the largest are dropped by whoever found
//! that there are too many of them, at once, and the connection is told to close.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::BytesMut;
use clawmux_core::dialect::Fault;
use clawmux_core::ids::ConnectionId;
use clawmux_core::limits::unfinished::Unfinished;

use super::link::Link;
use crate::runtime::clock;

/// They are counted in steps of so many bytes, each rounded up.
const STEP_BYTES: usize = 4096;

/// What has come of one connection's message.
#[derive(Debug, Default)]
pub(super) struct Partial(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    bytes: BytesMut,
    /// So many of them are counted.
    counted: usize,
    /// Whether they were taken away, or nobody wants them: nothing is held from then on.
    is_over: bool,
}

impl Partial {
    /// Changes what is held, unless that is over.
    pub(super) fn change<T>(&self, link: &Arc<Link>, change: impl FnOnce(&mut BytesMut) -> T) -> Option<T> {
        let mut held = self.lock();
        if held.is_over {
            return None;
        }
        let changed = change(&mut held.bytes);
        let bytes = held.bytes.len().next_multiple_of(STEP_BYTES);
        if std::mem::replace(&mut held.counted, bytes) != bytes {
            link.partials().note(link, bytes);
            drop(held);
            link.partials().make_room();
        }
        Some(changed)
    }

    /// Nothing is held any more, whatever comes.
    pub(super) fn give_up(&self, link: &Link) {
        let mut held = self.lock();
        *held = Held { is_over: true, ..Held::default() };
        link.partials().forget(link.id());
    }

    /// Drops what is held; whether there was anything: it may be complete just now.
    fn take_away(&self, link: &Link) -> bool {
        let mut held = self.lock();
        if held.bytes.is_empty() {
            return false;
        }
        *held = Held { is_over: true, ..Held::default() };
        // It may have been counted anew since it was picked.
        link.partials().forget(link.id());
        true
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all connections hold. Its lock is taken under that of a [`Partial`], and never the other way round.
#[derive(Debug)]
pub(crate) struct Partials(Mutex<Table>);

#[derive(Debug)]
struct Table {
    unfinished: Unfinished<ConnectionId>,
    links: BTreeMap<ConnectionId, Weak<Link>>,
}

impl Default for Partials {
    /// As many bytes as they like.
    fn default() -> Self {
        let (unfinished, links) = (Unfinished::new(usize::MAX), BTreeMap::new());
        Self(Mutex::new(Table { unfinished, links }))
    }
}

impl Partials {
    /// From now on they may have so many bytes together.
    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        self.lock().unfinished.set_bytes_max(bytes_max);
        self.make_room();
    }

    /// How many bytes they have.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().unfinished.bytes()
    }

    /// This connection holds so many bytes now.
    fn note(&self, link: &Arc<Link>, bytes: usize) {
        if bytes == 0 {
            return self.forget(link.id());
        }
        let mut table = self.lock();
        table.unfinished.hold(link.id(), bytes);
        table.links.entry(link.id()).or_insert_with(|| Arc::downgrade(link));
    }

    /// It holds nothing any more.
    pub(super) fn forget(&self, id: ConnectionId) {
        let mut table = self.lock();
        table.unfinished.hold(id, 0);
        table.links.remove(&id);
    }

    /// Has the largest give way until there is room.
    fn make_room(&self) {
        loop {
            let largest = {
                let mut table = self.lock();
                let Some(id) = table.unfinished.gives_way() else { return };
                table.links.remove(&id)
            };
            // Not under the lock: dropping the last hold on a link takes it.
            if let Some(link) = largest.as_ref().and_then(Weak::upgrade)
                && link.partial().take_away(&link)
            {
                tracing::debug!(connection = link.id().0, peer = %link.peer(), "unfinished message gives way");
                link.close(Fault::Crowded, clock::now());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
