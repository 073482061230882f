//! A bounded queue that serves those who wait in it in turn.
//!
//! Whoever asks for much waits behind what it asked for itself, and everybody else at most for one of
//! its items at a time. Where there is no room, the latest item of whoever has most waiting gives way.

use std::collections::{BTreeMap, VecDeque};

/// Items that wait, by whose they are.
#[derive(Debug)]
pub struct Fair<K, T> {
    items_max: usize,
    items: usize,
    waiting: BTreeMap<K, VecDeque<T>>,
    /// Whose turn it is: everybody with an item that waits, once.
    turns: VecDeque<K>,
}

impl<K: Clone + Ord, T> Fair<K, T> {
    /// With room for so many items.
    pub fn new(items_max: usize) -> Self {
        Self { items_max, items: 0, waiting: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Adds an item. Answers with the one there is no room for, if any: this one, or the latest of whoever
    /// has more waiting than its owner.
    pub fn push(&mut self, whose: K, item: T) -> Option<T> {
        let mut crowded_out = None;
        if self.items >= self.items_max {
            let own = self.waiting.get(&whose).map_or(0, VecDeque::len);
            let most = self.waiting.iter().max_by_key(|(_, items)| items.len());
            match most.filter(|(_, items)| items.len() > own + 1).map(|(key, _)| key.clone()) {
                // It keeps an item, and so its turn.
                Some(key) => crowded_out = self.waiting.get_mut(&key).and_then(VecDeque::pop_back),
                None => return Some(item),
            }
            self.items -= usize::from(crowded_out.is_some());
        }
        let items = self.waiting.entry(whose.clone()).or_default();
        if items.is_empty() {
            self.turns.push_back(whose);
        }
        items.push_back(item);
        self.items += 1;
        crowded_out
    }

    /// Takes the first item of whoever's turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let whose = self.turns.pop_front()?;
        let items = self.waiting.get_mut(&whose)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.waiting.remove(&whose);
        } else {
            self.turns.push_back(whose);
        }
        self.items -= usize::from(item.is_some());
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_asks_for_one_thing_waits_for_one_of_each() {
        let mut fair = Fair::new(1000);
        for number in 0..800 {
            assert_eq!(fair.push("a", ("a", number)), None);
        }
        assert_eq!(fair.pop(), Some(("a", 0)));
        fair.push("b", ("b", 0));
        fair.push("c", ("c", 0));
        let served: Vec<_> = std::iter::from_fn(|| fair.pop()).take(4).collect();
        assert_eq!(served, [("a", 1), ("b", 0), ("c", 0), ("a", 2)]);
        assert_eq!(fair.len(), 797);
    }

    #[test]
    fn there_is_room_for_everybody_and_who_has_most_makes_it() {
        let mut fair = Fair::new(4);
        for number in 0..4 {
            assert_eq!(fair.push("a", number), None);
        }
        assert_eq!(fair.push("a", 4), Some(4), "its own latest");
        assert_eq!(fair.push("b", 10), Some(3));
        assert_eq!(fair.push("b", 11), Some(2));
        assert_eq!(fair.push("b", 12), Some(12), "it would have more than the other");
        let rest: Vec<_> = std::iter::from_fn(|| fair.pop()).collect();
        assert_eq!(rest, [0, 10, 1, 11]);
        assert_eq!(Fair::new(0).push("a", 1), Some(1));
    }

    proptest! {
        /// Nothing is lost or told twice, there are never too many, what one asks for is served in its
        /// order, and between two items of one who waits everybody else has at most one turn.
        #[test]
        fn everybody_is_served_in_turn(
            items_max in 0_usize..20,
            steps in proptest::collection::vec(prop_oneof![(0_u8..4).prop_map(Some), Just(None)], 0..200),
        ) {
            let mut fair = Fair::new(items_max);
            let mut waiting: Vec<(u8, usize)> = Vec::new();
            let mut turns_since: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            let steps = steps.into_iter().enumerate();
            for (number, step) in steps.chain((0..20).map(|number| (1000 + number, None))) {
                match step {
                    Some(whose) => {
                        waiting.push((whose, number));
                        if waiting.iter().filter(|(key, _)| *key == whose).count() == 1 {
                            turns_since.insert(whose, Vec::new());
                        }
                        if let Some(crowded_out) = fair.push(whose, (whose, number)) {
                            waiting.retain(|item| *item != crowded_out);
                        }
                    }
                    None => {
                        let Some(item) = fair.pop() else {
                            prop_assert!(waiting.is_empty());
                            continue;
                        };
                        let first = waiting.iter().find(|(whose, _)| *whose == item.0);
                        prop_assert_eq!(first, Some(&item));
                        waiting.retain(|other| *other != item);
                        for (whose, turns) in &mut turns_since {
                            if *whose != item.0 && waiting.iter().any(|(key, _)| key == whose) {
                                prop_assert!(!turns.contains(&item.0), "{} came twice before {}", item.0, whose);
                                turns.push(item.0);
                            }
                        }
                        turns_since.insert(item.0, Vec::new());
                    }
                }
                prop_assert!(fair.len() == waiting.len() && fair.len() <= items_max);
            }
            prop_assert!(fair.is_empty() && fair.turns.is_empty() && fair.waiting.is_empty());
        }
    }
}
