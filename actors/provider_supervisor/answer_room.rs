//! Room for what answers under way hold in memory, all together.
//!
//! One answer is bounded by itself; many of them at once, of a provider that writes without end, are bounded here: the
//! large ones give way, and those that models write in fact always have room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much answers under way may hold together, in bytes.
const ALL_BYTES_MAX: usize = 512 << 20;

/// How much of an answer always has room, in bytes.
const ONE_BYTES_MIN: usize = 1 << 20;

/// The room, and how much of it is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerRoom(Arc<AtomicUsize>);

impl AnswerRoom {
    /// For one more answer, which holds nothing yet.
    pub(super) fn enter(&self) -> Share {
        Share { room: self.clone(), bytes: 0 }
    }
}

/// What one answer takes; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: AnswerRoom,
    bytes: usize,
}

impl Share {
    /// The answer holds so many bytes by now. Whether there is room for that.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        self.bytes += more;
        let all = self.room.0.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        all <= ALL_BYTES_MAX || self.bytes <= ONE_BYTES_MIN
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_give_way_when_there_are_many_and_all_is_given_back() {
        let room = AnswerRoom::default();
        let mut large: Vec<Share> = (0..64).map(|_| room.enter()).collect();
        assert!(large.iter_mut().all(|share| share.hold(ALL_BYTES_MAX / 64)));
        assert!(!large[0].hold(ALL_BYTES_MAX / 64 + 1), "there is no more room");
        let mut usual = room.enter();
        assert!(usual.hold(ONE_BYTES_MIN) && !usual.hold(ONE_BYTES_MIN + 1));
        drop(large.pop());
        assert!(usual.hold(ONE_BYTES_MIN + 1), "there is again");
        drop((large, usual));
        assert_eq!(room.0.load(Ordering::Relaxed), 0);
    }
}
