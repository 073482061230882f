//! Runs of several sessions that take place one at a time, in the order in which they were accepted.
//!
//! ```text
//!   enter ──► waits ──(first of those that wait, and nothing is active: turn)──► active ──► leave
//!               └────────────────────────────(ended before its turn)────────────────────────►┘
//! ```
//!
//! A prompt says which lane its run is in ([`Manner::lane`](crate::manner::Manner::lane)), so that after
//! a crash it waits in it again: behind what was accepted before it, ahead of all that comes new. The
//! places of one session are always in the order of its queue, so that no two runs wait for each other.

use std::collections::BTreeMap;

use crate::ids::LaneName;
use crate::time::Timestamp;

/// The lane of the queries of xeno's protocol: one at a time for the whole socket.
pub const XENO: &str = "xeno";

/// The name of that lane.
pub fn xeno() -> LaneName {
    LaneName::from(XENO)
}

/// Where a run stands in its lane: what is smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    accepted: Timestamp,
    number: u64,
}

/// One lane; `T` is what is known of each run in it.
#[derive(Clone, Debug)]
pub struct Lane<T> {
    /// Since when there is this lane: what was accepted by an earlier process stands before that.
    opened: Timestamp,
    places: BTreeMap<Place, T>,
    active: Option<Place>,
    entered: u64,
}

impl<T> Lane<T> {
    /// An empty one.
    pub fn new(now: Timestamp) -> Self {
        Self { opened: now, places: BTreeMap::new(), active: None, entered: 0 }
    }

    /// Takes the last place.
    pub fn enter(&mut self, now: Timestamp, who: T) -> Place {
        let last = self.places.last_key_value().map_or(self.opened, |(place, _)| place.accepted);
        self.insert(now.max(last), who)
    }

    /// Takes the place of what was accepted at this time: ahead of what came later. `after` is the place
    /// of the run before it in its session.
    pub fn enter_again(
        &mut self,
        now: Timestamp,
        accepted: Timestamp,
        after: Option<Place>,
        who: T,
    ) -> Place {
        // A time to come was told by another clock, before this lane was.
        let accepted = if accepted > now { self.opened } else { accepted };
        self.insert(after.map_or(accepted, |before| accepted.max(before.accepted)), who)
    }

    fn insert(&mut self, accepted: Timestamp, who: T) -> Place {
        self.entered += 1;
        let place = Place { accepted, number: self.entered };
        self.places.insert(place, who);
        place
    }

    /// Gives a place back, whether its turn had come or not.
    pub fn leave(&mut self, place: Place) -> Option<T> {
        if self.active == Some(place) {
            self.active = None;
        }
        self.places.remove(&place)
    }

    /// What becomes active, where nothing is: the first of those that wait.
    pub fn turn(&mut self) -> Option<&mut T> {
        if self.active.is_some() {
            return None;
        }
        let (place, who) = self.places.iter_mut().next()?;
        self.active = Some(*place);
        Some(who)
    }

    /// What is active.
    pub fn active(&self) -> Option<&T> {
        self.active.and_then(|place| self.places.get(&place))
    }

    /// How many come before this place is active: what is active now, and those that wait before it.
    pub fn ahead(&self, place: Place) -> usize {
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

    #[test]
    fn one_is_active_and_the_others_follow_in_order() {
        let mut lane = Lane::new(at(10));
        let [a, b, c] = ["a", "b", "c"].map(|who| lane.enter(at(10), who));
        assert_eq!(lane.turn(), Some(&mut "a"));
        assert_eq!(lane.turn(), None, "one at a time");
        assert_eq!([a, b, c].map(|place| lane.ahead(place)), [0, 1, 2]);
        lane.leave(b);
        assert_eq!((lane.active(), lane.ahead(c)), (Some(&"a"), 1));
        lane.leave(a);
        assert_eq!((lane.active(), lane.ahead(c)), (None, 0));
        assert_eq!(lane.turn(), Some(&mut "c"));
        lane.leave(c);
        assert!(lane.turn().is_none() && lane.is_empty());
    }

    #[test]
    fn what_was_accepted_before_a_crash_goes_first_but_ends_nothing() {
        let mut lane = Lane::new(at(100));
        let new = lane.enter(at(100), "new");
        lane.turn();
        let later = lane.enter(at(101), "later");
        let old = lane.enter_again(at(102), at(7), None, "old");
        // Of the same session, by a clock that was ahead.
        let older = lane.enter_again(at(102), at(9_000), Some(old), "older");
        assert_eq!([old, older, later].map(|place| lane.ahead(place)), [1, 2, 3]);
        assert_eq!(lane.active(), Some(&"new"));
        lane.leave(new);
        assert_eq!(lane.turn(), Some(&mut "old"));
    }

    #[test]
    fn a_clock_that_is_set_back_puts_nobody_ahead() {
        let mut lane = Lane::new(at(100));
        let first = lane.enter(at(200), 1);
        let second = lane.enter(at(50), 2);
        assert!(first < second);
        assert_eq!(lane.len(), 2);
    }

    proptest! {
        /// Whatever enters and leaves, at most one is active, all have their turn, and those of one
        /// session in its order.
        #[test]
        fn everybody_has_a_turn(steps in proptest::collection::vec((0u8..4, 0u64..200, 0usize..3), 1..80)) {
            let mut lane = Lane::new(at(100));
            let mut open: Vec<(Place, u64)> = Vec::new();
            let mut last: [Option<Place>; 3] = [None; 3];
            let mut number = 0;
            let mut turns: Vec<u64> = Vec::new();
            for (step, time, session) in steps {
                number += 1;
                let who = number * 10 + session as u64;
                match step {
                    0 | 1 => {
                        let place = lane.enter(at(time), who);
                        last[session] = Some(place);
                        open.push((place, who));
                    }
                    2 if last[session].is_none() => {
                        let place = lane.enter_again(at(150), at(time), None, who);
                        last[session] = Some(place);
                        open.push((place, who));
                    }
                    _ if !open.is_empty() => {
                        let (place, _) = open.remove(time as usize % open.len());
                        lane.leave(place);
                    }
                    _ => {}
                }
                if let Some(who) = lane.turn() {
                    turns.push(*who);
                }
                prop_assert_eq!(lane.active().is_some(), !open.is_empty());
                prop_assert_eq!(open.iter().filter(|(place, _)| lane.ahead(*place) == 0).count(), usize::from(!open.is_empty()));
            }
            for session in 0..3 {
                let of: Vec<u64> = turns.iter().copied().filter(|who| who % 10 == session).collect();
                prop_assert!(of.is_sorted(), "{:?}", of);
            }
        }
    }
}
