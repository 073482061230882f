//! Runs of several sessions that take place one at a time, in the order in which they were accepted.
//!
//! ```text
//!   enter ──► on its way ──(ready)──► waits ──(it is the first, and nothing is active: turn)──► active ──► leave
//!                  └────────────────────┴───────(ended before its turn)──────────────────────────────────►┘
//! ```
//!
//! A run enters when it is sent to its session, and is ready when it is in the session's queue: until
//! then it keeps its place but does not become active, for what a session reads back from its event log goes
//! before what is new.
//!
//! A prompt says which lane its run is in ([`RunOptions::lane`](crate::prompt::run_options::RunOptions::lane)), so that after
//! a crash it waits in it again: behind what was accepted before it, ahead of all that comes new. The
//! places of one session are always in the order of its queue, so that no two runs wait for each other.

use std::collections::BTreeMap;

use crate::ids::{LaneName, RunId};
use crate::time::Timestamp;

/// The lane of the queries of xeno's protocol: one at a time for the whole socket.
pub const XENO: &str = "xeno";

/// The name of that lane.
pub fn xeno() -> LaneName {
    LaneName::from(XENO)
}

/// What became of a run, as a cluster's log says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneChange {
    /// It was prompted, in a lane.
    Entered(RunId, LaneName),
    /// It ended, in whichever lane it was.
    Left(RunId),
}

/// Where a run stands in its lane: what is smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LanePosition {
    accepted: Timestamp,
    number: u64,
}

/// One lane; `T` is what is known of each run in it.
#[derive(Clone, Debug)]
pub struct Lane<T> {
    /// Since when there is this lane: what was accepted by an earlier process stands before that.
    opened: Timestamp,
    /// Each with whether it is ready.
    places: BTreeMap<LanePosition, (bool, T)>,
    active: Option<LanePosition>,
    entered: u64,
}

impl<T> Lane<T> {
    /// A lane in which nothing waits.
    pub fn new(now: Timestamp) -> Self {
        Self { opened: now, places: BTreeMap::new(), active: None, entered: 0 }
    }

    /// Takes the last place, for one that is on its way.
    pub fn enter(&mut self, now: Timestamp, who: T) -> LanePosition {
        let last = self.places.last_key_value().map_or(self.opened, |(place, _)| place.accepted);
        self.insert(now.max(last), false, who)
    }

    /// Marks that what waits at this place can run.
    pub fn ready(&mut self, place: LanePosition) {
        if let Some((is_ready, _)) = self.places.get_mut(&place) {
            *is_ready = true;
        }
    }

    /// Takes the place of what was accepted at this time and is in its session: ahead of what came later.
    /// It is between two others of its session, where there are such: `after` this one, `before` that.
    pub fn enter_again(
        &mut self,
        now: Timestamp,
        accepted: Timestamp,
        (after, before): (Option<LanePosition>, Option<LanePosition>),
        who: T,
    ) -> LanePosition {
        // A time to come was told by another clock, before this lane was.
        let accepted = if accepted > now { self.opened } else { accepted };
        let accepted = after.map_or(accepted, |after| accepted.max(after.accepted));
        let ahead =
            |place: LanePosition| Timestamp::from_millis(place.accepted.as_millis().saturating_sub(1));
        self.insert(before.map_or(accepted, |before| accepted.min(ahead(before))), true, who)
    }

    fn insert(&mut self, accepted: Timestamp, is_ready: bool, who: T) -> LanePosition {
        self.entered += 1;
        let place = LanePosition { accepted, number: self.entered };
        self.places.insert(place, (is_ready, who));
        place
    }

    /// Gives a place back, whether its turn had come or not.
    pub fn leave(&mut self, place: LanePosition) -> Option<T> {
        if self.active == Some(place) {
            self.active = None;
        }
        self.places.remove(&place).map(|(_, who)| who)
    }

    /// What becomes active, where nothing is: the first, as soon as it is ready.
    pub fn turn(&mut self) -> Option<&mut T> {
        if self.active.is_some() {
            return None;
        }
        let (place, (is_ready, who)) = self.places.iter_mut().next()?;
        if !*is_ready {
            return None;
        }
        self.active = Some(*place);
        Some(who)
    }

    /// What is active, else what is about to be.
    pub fn current(&self) -> Option<&T> {
        let active = self.active.and_then(|place| self.places.get(&place));
        active.or_else(|| self.places.values().next()).map(|(_, who)| who)
    }

    /// All that are in it, in order.
    pub fn all(&self) -> impl Iterator<Item = (LanePosition, &T)> {
        self.places.iter().map(|(place, (_, who))| (*place, who))
    }

    /// How many come before this place is active: what is active now, and those that wait before it.
    pub fn ahead(&self, place: LanePosition) -> usize {
        if self.active == Some(place) {
            return 0;
        }
        let active_later = self.active.is_some_and(|active| active > place);
        self.places.range(..place).count() + usize::from(active_later)
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn join(lane: &mut Lane<&'static str>, time: u64, who: &'static str) -> LanePosition {
        let place = lane.enter(at(time), who);
        lane.ready(place);
        place
    }

    #[test]
    fn one_is_active_and_the_others_follow_in_order() {
        let mut lane = Lane::new(at(10));
        let [a, b, c] = ["a", "b", "c"].map(|who| join(&mut lane, 10, who));
        assert_eq!(lane.turn(), Some(&mut "a"));
        assert_eq!(lane.turn(), None, "one at a time");
        assert_eq!([a, b, c].map(|place| lane.ahead(place)), [0, 1, 2]);
        lane.leave(b);
        assert_eq!((lane.current(), lane.ahead(c)), (Some(&"a"), 1));
        lane.leave(a);
        assert_eq!((lane.current(), lane.ahead(c)), (Some(&"c"), 0));
        assert_eq!(lane.turn(), Some(&mut "c"));
        lane.leave(c);
        assert!(lane.turn().is_none() && lane.is_empty());
    }

    #[test]
    fn what_is_on_its_way_keeps_its_place() {
        let mut lane = Lane::new(at(10));
        let first = lane.enter(at(10), "first");
        join(&mut lane, 10, "second");
        assert_eq!(lane.turn(), None);
        assert_eq!(lane.current(), Some(&"first"));
        lane.ready(first);
        assert_eq!(lane.turn(), Some(&mut "first"));
        lane.leave(first);
        assert_eq!(lane.turn(), Some(&mut "second"));
    }

    #[test]
    fn what_was_accepted_before_a_crash_goes_first_but_ends_nothing() {
        let mut lane = Lane::new(at(100));
        let new = join(&mut lane, 100, "new");
        lane.turn();
        let later = join(&mut lane, 101, "later");
        let old = lane.enter_again(at(102), at(7), (None, None), "old");
        // Of the same session, by a clock that was ahead.
        let older = lane.enter_again(at(102), at(9_000), (Some(old), None), "older");
        assert_eq!([old, older, later].map(|place| lane.ahead(place)), [1, 2, 3]);
        assert_eq!(lane.current(), Some(&"new"));
        lane.leave(new);
        assert_eq!(lane.turn(), Some(&mut "old"));
    }

    #[test]
    fn what_a_session_reads_back_goes_before_what_was_on_its_way_to_it() {
        let mut lane = Lane::new(at(100));
        let new = lane.enter(at(100), "new");
        let old = lane.enter_again(at(120), at(110), (None, Some(new)), "old");
        assert!(old < new && lane.turn() == Some(&mut "old"));
    }

    #[test]
    fn a_clock_that_is_set_back_puts_nobody_ahead() {
        let mut lane = Lane::new(at(100));
        let [first, second] = [200, 50].map(|time| lane.enter(at(time), time));
        assert!(first < second);
        assert_eq!(lane.len(), 2);
    }

    proptest! {
        /// Whatever enters and leaves, at most one is active, all have their turn, and those of one
        /// session in its order.
        #[test]
        fn everybody_has_a_turn(steps in proptest::collection::vec((0u8..4, 0u64..200, 0usize..3), 1..80)) {
            let mut lane = Lane::new(at(100));
            let mut open: Vec<LanePosition> = Vec::new();
            let mut seen = [false; 3];
            let mut number = 0;
            let mut turns: Vec<usize> = Vec::new();
            for (step, time, session) in steps {
                number += 1;
                let who = number * 10 + session;
                match step {
                    0 | 1 => {
                        let place = lane.enter(at(time), who);
                        lane.ready(place);
                        open.push(place);
                    }
                    2 if !seen[session] => {
                        open.push(lane.enter_again(at(150), at(time), (None, None), who));
                    }
                    _ if !open.is_empty() => {
                        lane.leave(open.remove(time as usize % open.len()));
                    }
                    _ => {}
                }
                seen[session] |= step < 3;
                turns.extend(lane.turn().map(|who| *who));
                let active = open.iter().filter(|place| lane.ahead(**place) == 0).count();
                prop_assert_eq!(active, usize::from(!open.is_empty()));
            }
            for session in 0..3 {
                let of: Vec<usize> = turns.iter().copied().filter(|who| who % 10 == session).collect();
                prop_assert!(of.is_sorted(), "{:?}", of);
            }
        }
    }
}
