//! The latest lines of the daemon's own log, for operators who look from afar.
//!
//! A ring in memory, bounded in bytes: the lines themselves go to stderr, and from there to where the
//! operator sends them. A cursor counts bytes since the start of the process, so that who asks again
//! gets what came since; one that has left the ring, or is of an earlier process, is told so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use clawmux_core::daemon::command::LogTail;

/// How many bytes of lines are kept.
pub const BYTES_MAX: usize = 1 << 20;

/// The ring.
#[derive(Debug)]
pub struct DaemonLog {
    ring: Mutex<Ring>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Ring {
    /// The lines, the oldest first.
    lines: VecDeque<Arc<str>>,
    /// The place of the first of them.
    start: u64,
    /// The place behind the last.
    end: u64,
}

/// A line as it counts: with its end.
fn bytes(line: &str) -> u64 {
    line.len() as u64 + 1
}

impl Default for DaemonLog {
    fn default() -> Self {
        Self::new(BYTES_MAX)
    }
}

impl DaemonLog {
    /// An empty one that keeps so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { ring: Mutex::default(), bytes_max }
    }

    /// Takes a line; the oldest make room.
    pub fn push(&self, line: &str) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.end += bytes(line);
        ring.lines.push_back(line.into());
        while ring.end - ring.start > self.bytes_max as u64 {
            match ring.lines.pop_front() {
                Some(oldest) => ring.start += bytes(&oldest),
                None => break,
            }
        }
    }

    /// The latest lines, or those from `cursor` on: at most so many, and at most so many bytes of
    /// them, but one at least.
    pub fn tail(&self, cursor: Option<u64>, lines_max: usize, bytes_max: usize) -> LogTail {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cursor.and_then(|cursor| ring.index_of(cursor));
        let mut room = bytes_max as u64;
        let mut fits = |line: &&Arc<str>| match room.checked_sub(bytes(line)) {
            Some(left) => {
                room = left;
                true
            }
            // It would never come.
            None => std::mem::take(&mut room) == bytes_max as u64,
        };
        match (at, cursor) {
            (Some(index), Some(cursor)) => {
                let lines: Vec<_> =
                    ring.lines.range(index..).take(lines_max).take_while(&mut fits).cloned().collect();
                let cursor = cursor + lines.iter().map(|line| bytes(line)).sum::<u64>();
                LogTail { cursor, end: ring.end, lines, truncated: false, reset: false }
            }
            _ => {
                let mut lines: Vec<_> =
                    ring.lines.iter().rev().take(lines_max).take_while(&mut fits).cloned().collect();
                lines.reverse();
                let taken = lines.iter().map(|line| bytes(line)).sum::<u64>();
                let (end, truncated) = (ring.end, taken < ring.end);
                LogTail { cursor: end, end, lines, truncated, reset: cursor.is_some() }
            }
        }
    }
}

impl Ring {
    /// Which line begins at this place; the one to come counts.
    fn index_of(&self, cursor: u64) -> Option<usize> {
        let mut at = self.start;
        for (index, line) in self.lines.iter().enumerate() {
            if at >= cursor {
                return (at == cursor).then_some(index);
            }
            at += bytes(line);
        }
        (at == cursor).then_some(self.lines.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(tail: &LogTail) -> Vec<&str> {
        tail.lines.iter().map(|line| &**line).collect()
    }

    #[test]
    fn who_asks_again_gets_what_came_since() {
        let log = DaemonLog::default();
        let empty = log.tail(None, 10, 100);
        assert_eq!(empty, LogTail::default());
        log.push("one");
        log.push("two");
        let first = log.tail(None, 10, 100);
        assert_eq!((texts(&first), first.cursor, first.truncated), (vec!["one", "two"], 8, false));
        log.push("three");
        let then = log.tail(Some(first.cursor), 10, 100);
        assert_eq!((texts(&then), then.cursor, then.reset), (vec!["three"], 14, false));
        assert_eq!(texts(&log.tail(Some(then.cursor), 10, 100)), Vec::<&str>::new());
        let latest = log.tail(None, 1, 100);
        assert_eq!((texts(&latest), latest.truncated), (vec!["three"], true));
        assert_eq!(texts(&log.tail(None, 10, 10)), ["two", "three"], "at most so many bytes");
        assert_eq!(texts(&log.tail(None, 10, 1)), ["three"], "but one line at least");
    }

    #[test]
    fn a_place_that_is_none_any_longer_is_said_to_be() {
        let log = DaemonLog::new(20);
        for line in ["aaaa", "bbbb", "cccc", "dddd", "eeee"] {
            log.push(line);
        }
        let tail = log.tail(Some(0), 10, 100);
        assert_eq!((texts(&tail), tail.reset), (vec!["bbbb", "cccc", "dddd", "eeee"], true));
        assert!(log.tail(Some(1000), 10, 100).reset, "of a process before");
        assert!(log.tail(Some(7), 10, 100).reset, "within a line");
        assert!(!log.tail(Some(5), 10, 100).reset, "the oldest line there is");
    }

    proptest! {
        /// Whatever the sizes: who asks again and again misses nothing that is still there, and sees
        /// nothing twice.
        #[test]
        fn nothing_is_missed_or_seen_twice(
            pushes in prop::collection::vec(prop::collection::vec("[a-z]{0,20}", 0..4), 1..20),
            lines_max in 1usize..5,
            bytes_max in 1usize..60,
        ) {
            let log = DaemonLog::default();
            let (mut cursor, mut seen, mut pushed) = (log.tail(None, 1, 1).cursor, Vec::new(), Vec::new());
            for lines in pushes {
                for line in lines {
                    log.push(&line);
                    pushed.push(line);
                }
                let tail = log.tail(Some(cursor), lines_max, bytes_max);
                prop_assert!(!tail.reset && tail.lines.len() <= lines_max);
                cursor = tail.cursor;
                seen.extend(tail.lines.iter().map(|line| line.to_string()));
            }
            while log.tail(Some(cursor), lines_max, bytes_max).end > cursor {
                let tail = log.tail(Some(cursor), lines_max, bytes_max);
                prop_assert!(!tail.lines.is_empty());
                cursor = tail.cursor;
                seen.extend(tail.lines.iter().map(|line| line.to_string()));
            }
            prop_assert_eq!(seen, pushed);
        }
    }
}
