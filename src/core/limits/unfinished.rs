//! Who holds how much of messages that are not complete, and who has to give way.
//!
//! A message is of no use before its last byte is there, and whoever sends it decides when that is. So
//! what all of them hold together is bounded, and where it is more, the largest gives way: whoever
//! holds little is never let go for somebody who holds much.

use std::collections::{BTreeMap, BTreeSet};

/// What is held of each.
#[derive(Debug)]
pub struct Unfinished<K> {
    bytes_max: usize,
    bytes: usize,
    held: BTreeMap<K, usize>,
    by_size: BTreeSet<(usize, K)>,
}

impl<K: Copy + Ord> Unfinished<K> {
    /// Of which all together may have at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, held: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// From now on they may have so many bytes.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// This one has so many bytes now; none = it holds nothing.
    pub fn hold(&mut self, who: K, bytes: usize) {
        if let Some(before) = self.held.remove(&who) {
            self.by_size.remove(&(before, who));
            self.bytes -= before;
        }
        if bytes > 0 {
            self.held.insert(who, bytes);
            self.by_size.insert((bytes, who));
            self.bytes += bytes;
        }
    }

    /// Takes out the largest where there are too many bytes: it holds nothing from now on. To be asked
    /// until there is none.
    pub fn gives_way(&mut self) -> Option<K> {
        if self.bytes <= self.bytes_max {
            return None;
        }
        let (bytes, who) = self.by_size.pop_last()?;
        self.held.remove(&who);
        self.bytes -= bytes;
        Some(who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_gives_way_and_nobody_else() {
        let mut unfinished = Unfinished::new(100);
        for (who, bytes) in [(1, 30), (2, 60), (3, 10)] {
            unfinished.hold(who, bytes);
            assert_eq!(unfinished.gives_way(), None);
        }
        unfinished.hold(3, 11);
        assert_eq!((unfinished.gives_way(), unfinished.gives_way()), (Some(2), None));
        assert_eq!(unfinished.bytes(), 41);
        unfinished.set_bytes_max(20);
        assert_eq!((unfinished.gives_way(), unfinished.gives_way()), (Some(1), None));
        unfinished.hold(4, 21);
        assert_eq!(unfinished.gives_way(), Some(4), "also who came last");
    }

    proptest! {
        /// Whatever connections do, what is held is what each said last, at most the bound once those
        /// who give way are gone, and whoever gave way held at least as much as each who stayed.
        #[test]
        fn the_books_balance(
            bytes_max in 0_usize..2000,
            steps in proptest::collection::vec((0_u8..12, prop_oneof![Just(0), 1_usize..500]), 1..200),
        ) {
            let mut unfinished = Unfinished::new(bytes_max);
            let mut said: BTreeMap<u8, usize> = BTreeMap::new();
            for (who, bytes) in steps {
                unfinished.hold(who, bytes);
                said.insert(who, bytes);
                while let Some(largest) = unfinished.gives_way() {
                    let all: usize = said.values().sum();
                    prop_assert!(all > bytes_max, "nobody goes where there is room");
                    let had = said.remove(&largest);
                    prop_assert!(had.is_some_and(|had| said.values().all(|bytes| *bytes <= had)));
                }
                prop_assert_eq!(unfinished.bytes(), said.values().sum::<usize>());
                prop_assert!(unfinished.bytes() <= bytes_max);
            }
            for who in said.into_keys() {
                unfinished.hold(who, 0);
            }
            prop_assert_eq!((unfinished.bytes(), unfinished.held.len(), unfinished.by_size.len()), (0, 0, 0));
        }
    }
}
