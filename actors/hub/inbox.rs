//! What one connection has yet to be told that is not about one session.
//!
//! A connection whose peer does not read is not polled, so nothing may pile up in its mailbox: it is
//! only told that there is something, once, and takes all of it when it has room. What is put in
//! replaces what it makes out of date, so that a connection that never takes anything holds one
//! picture of each kind, and a bounded number of changes. Of more than those the oldest is forgotten:
//! who hears of any reads the list again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::daemon::announcement::Announcement;

/// Announcements that wait to be told.
pub const WAITING_MAX: usize = 256;

/// The announcements that one connection has not taken yet.
#[derive(Debug, Default)]
pub struct Inbox(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    all: VecDeque<Arc<Announcement>>,
    /// Whether the connection was told that there is something.
    knocked: bool,
}

impl Inbox {
    /// Puts one in; whether the connection is to be told so.
    #[must_use]
    pub fn put(&self, announcement: &Arc<Announcement>) -> bool {
        let mut waiting = self.lock();
        let replaces = |old: &Arc<Announcement>| old.is_replaced_by(announcement);
        match waiting.all.iter().position(replaces) {
            Some(at) => waiting.all[at] = announcement.clone(),
            None => {
                let is_session = |old: &Arc<Announcement>| matches!(**old, Announcement::SessionChanged(_));
                if waiting.all.len() >= WAITING_MAX {
                    let oldest = waiting.all.iter().position(is_session).unwrap_or_default();
                    waiting.all.remove(oldest);
                }
                waiting.all.push_back(announcement.clone());
            }
        }
        !std::mem::replace(&mut waiting.knocked, true)
    }

    /// The connection could not be told that there is something: it is to be told with the next.
    pub fn unheard(&self) {
        self.lock().knocked = false;
    }

    /// Takes all there is, the oldest first.
    pub fn take(&self) -> VecDeque<Arc<Announcement>> {
        let mut waiting = self.lock();
        waiting.knocked = false;
        std::mem::take(&mut waiting.all)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Unread> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
