//! How well an entry answers a question: one score, above 0 and up to 1, for text and vectors alike.
//!
//! **Text.** Of a question with `n` distinct terms an entry has `m`. As vectors with a place for each
//! term, the question and the part of it that the entry has are at a cosine of `sqrt(m / n)`: half of
//! two words gives 0.707, so that the usual threshold of 0.7 finds it, one of three gives 0.577, and
//! all of them 1. Which words are rare does not count: that would hang on what else is stored, and one
//! of two words would be found or not by accident. A last hundredth orders equals: it is given in full
//! for the same text (its terms in their order, so nothing scores as much as an exact match), else by
//! the share that the question's terms have in the entry.
//!
//! **Vectors.** The cosine, where both have one of the same length; 0 from a right angle on.
//!
//! **Both.** The better of the two, and half of what the other one says of the room that is left to 1: an
//! entry is found by either, one that both speak for comes before, and more of one is never less in all.
//!
//! That is for who says how well an answer has to fit. What is relevant to something that was said
//! ([`Question::about`](super::Question::about)) is ranked otherwise: [`fused`](super::fused).

use std::cmp::Ordering;

use super::embedding::Embedding;
use super::text::Wanted;
use crate::time::Timestamp;

/// The part of a text's score that orders equals.
const FINE: f64 = 0.01;
/// What of that an entry may have that is not the same text.
const ALIKE: f64 = 0.9;

/// What answers have to fit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fit {
    pub(super) text: Option<Wanted>,
    pub(super) embedding: Option<Embedding>,
    /// The least score.
    pub(super) threshold: f64,
}

/// An entry, as far as it is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate<'a> {
    /// As [`Index`](super::text::Index) has it.
    pub terms: &'a [u8],
    /// As [`Index`](super::text::Index) has it.
    pub distinct: u32,
    /// As [`Index`](super::text::Index) has it.
    pub whole: u64,
    /// As [`Embedding::to_bytes`] gives it; none where the entry has none.
    pub vector: Option<&'a [u8]>,
    /// As [`Hashed::to_bytes`](super::hashed::Hashed::to_bytes) gives it; empty where the entry has no words.
    pub hashed: &'a [u8],
    /// As [`Embedding::to_bytes`] gives the vector that the model of the question made of it; none where it has none.
    pub meant: Option<&'a [u8]>,
    /// As [`Fact::ends`](super::fact::Fact::ends) gives them, of a fact.
    pub ends: [Option<u64>; 2],
}

impl Fit {
    /// How well this answers; 0 where it has nothing to do with it.
    pub(super) fn score(&self, candidate: &Candidate<'_>) -> f64 {
        let by_text = self.text.as_ref().map_or(0.0, |wanted| {
            let has = wanted.count_in(candidate.terms);
            text_score(has, wanted, candidate)
        });
        let near = |embedding: &Embedding| embedding.similarity(candidate.vector?);
        let by_vector = self.embedding.as_ref().and_then(near).unwrap_or(0.0);
        both(by_text, by_vector)
    }
}

fn text_score(has: usize, wanted: &Wanted, candidate: &Candidate<'_>) -> f64 {
    let cosine = (has as f64 / wanted.terms.len() as f64).sqrt();
    let fine = if candidate.whole == wanted.whole {
        1.0
    } else {
        // Characters that are terms by the way can make more of them than are counted.
        ALIKE * (has as f64 / f64::from(candidate.distinct.max(1))).min(1.0)
    };
    cosine * (1.0 - FINE + FINE * fine)
}

fn both(one: f64, other: f64) -> f64 {
    let (more, less) = (one.max(other), one.min(other));
    (more + (1.0 - more) * less / 2.0).min(1.0)
}

/// The best answers so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Best {
    /// The best first.
    pub(super) hits: Vec<Hit>,
    /// How many answers there were.
    pub(super) total: u64,
}

/// A candidate that matches, with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Above 0 and up to 1.
    pub score: f64,
    /// When it was stored: of equals the newest comes first.
    pub created: Timestamp,
    /// Its number, which grows with each entry.
    pub row: i64,
}

impl Hit {
    /// Less where it comes before another: no two are equal.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let order = other.score.total_cmp(&self.score);
        order.then(other.created.cmp(&self.created)).then(other.row.cmp(&self.row))
    }
}

impl Best {
    /// Takes a hit where it scores as much as it has to, and is one of the best.
    pub(super) fn take(&mut self, threshold: f64, limit: usize, hit: Hit) {
        if hit.score <= 0.0 || hit.score < threshold {
            return;
        }
        self.total += 1;
        let place = self.hits.partition_point(|better| better.order(&hit).is_lt());
        if place < limit {
            self.hits.truncate(limit - 1);
            self.hits.insert(place, hit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::question::THRESHOLD;
    use super::super::text::Index;
    use super::*;
    use proptest::prelude::*;

    fn fit(text: Option<&str>, embedding: Option<Embedding>) -> Fit {
        Fit { text: text.and_then(Wanted::of), embedding, threshold: THRESHOLD }
    }

    fn ask(text: &str) -> Fit {
        fit(Some(text), None)
    }

    fn score(fit: &Fit, text: &str, vector: Option<&Embedding>) -> f64 {
        let Index { terms, distinct, whole } = Index::of(text);
        let vector = vector.map(Embedding::to_bytes);
        let vector = vector.as_deref();
        fit.score(&Candidate { terms: &terms, distinct, whole, vector, ..Candidate::default() })
    }

    #[test]
    fn a_half_match_passes_the_usual_threshold_and_a_third_does_not() {
        let long = format!("green {}", "filler ".repeat(500));
        assert!(score(&ask("green tea"), &long, None) >= THRESHOLD);
        assert!(score(&ask("green tea"), "tea", None) >= THRESHOLD);
        assert!(score(&ask("green tea leaves"), "green", None) < THRESHOLD);
        assert!(score(&ask("green tea leaves"), "green leaves", None) >= THRESHOLD);
        assert_eq!(score(&ask("green tea"), "coffee", None), 0.0);
    }

    #[test]
    fn equals_are_ordered_by_how_much_they_are_about_it() {
        let question = ask("Green tea");
        let scores: Vec<f64> =
            ["green TEA!", "tea green", "green tea, hot", "green tea, hot, with milk", "tea", "green grass"]
                .into_iter()
                .map(|text| score(&question, text, None))
                .collect();
        assert_eq!(scores[0], 1.0);
        assert!(scores.is_sorted_by(|a, b| a > b), "{scores:?}");
    }

    #[test]
    fn text_and_vector_each_find_and_together_find_better() {
        let [near, far] = [[1.0, 0.1], [0.0, 1.0]].map(|numbers| Embedding::new(&numbers).unwrap());
        let to = Embedding::new(&[1.0, 0.0]).unwrap();
        let hybrid = fit(Some("green tea"), Some(to.clone()));
        let (text, vector) = (score(&hybrid, "tea", None), score(&hybrid, "coffee", Some(&near)));
        let both = score(&hybrid, "tea", Some(&near));
        assert!(text >= THRESHOLD && vector >= THRESHOLD && both > text.max(vector) && both <= 1.0);
        assert_eq!(score(&hybrid, "tea", Some(&far)), text, "what is far takes nothing away");
        let only = fit(None, Some(to));
        assert!(score(&only, "green tea", Some(&near)) > 0.9 && score(&only, "green tea", None) == 0.0);
    }

    proptest! {
        #[test]
        fn scores_are_bounded_and_an_exact_match_is_above_all(query in "[a-d茶 🙂]{1,12}", text in "[a-d茶 🙂]{0,20}") {
            let question = ask(&query);
            if question.text.is_some() {
                let of = score(&question, &text, None);
                prop_assert!((0.0..=1.0).contains(&of), "{}", of);
                let exact = score(&question, &query.to_uppercase(), None);
                prop_assert!(exact == 1.0);
                let is_same = Index::of(&text).whole == Index::of(&query).whole;
                prop_assert!(is_same || of < exact, "{} {}", of, exact);
            }
        }

        /// One word of the question more is never less.
        #[test]
        fn more_words_score_more(words in proptest::collection::btree_set("[a-z]{1,5}", 1..9), other in "[0-9 ]{0,20}") {
            let words: Vec<String> = words.into_iter().collect();
            let question = ask(&words.join(" "));
            let mut last = 0.0;
            for has in 0..=words.len() {
                let of = score(&question, &format!("{other} {}", words[..has].join(" ")), None);
                prop_assert!(has == 0 || of > last, "{} {}", of, last);
                last = of;
            }
        }

        #[test]
        fn both_together_are_monotone_and_bounded(a in 0.0f64..=1.0, b in 0.0f64..=1.0, more in 0.0f64..=1.0) {
            let of = both(a, b);
            prop_assert!(of >= a.max(b) && of <= 1.0);
            prop_assert_eq!(of, both(b, a));
            prop_assert!(both(a.max(more), b) >= of && both(a, b.max(more)) >= of);
        }

        /// Whatever the order in which entries are looked at, and in how many parts.
        #[test]
        fn the_order_is_that_of_all_sorted(
            hits in proptest::collection::vec((0u8..6, 0u64..4), 0..60), limit in 1usize..20, threshold in 0u8..6,
        ) {
            let threshold = f64::from(threshold) / 5.0;
            let mut all: Vec<Hit> = (1..).zip(&hits).map(|(row, (score, at))| Hit {
                score: f64::from(*score) / 5.0,
                created: Timestamp::from_millis(*at),
                row,
            }).collect();
            let mut best = Best::default();
            all.iter().rev().for_each(|hit| best.take(threshold, limit, *hit));
            let mut forth = Best::default();
            all.iter().for_each(|hit| forth.take(threshold, limit, *hit));
            prop_assert_eq!(&best, &forth);
            all.retain(|hit| hit.score > 0.0 && hit.score >= threshold);
            all.sort_by(|a, b| {
                (b.score, b.created.as_millis(), b.row).partial_cmp(&(a.score, a.created.as_millis(), a.row)).unwrap()
            });
            prop_assert_eq!(best.total, all.len() as u64);
            all.truncate(limit);
            prop_assert_eq!(&best.hits, &all);
        }
    }
}
