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

use super::embedding::Embedding;
use super::text::Wanted;
use super::{RESULTS_MAX, text};
use crate::error::{Error, ErrorCode};
use crate::time::Timestamp;

/// The score an answer has at least where the question does not say.
pub const THRESHOLD: f64 = 0.7;
/// How many answers are given where the question does not say.
pub const LIMIT: usize = 10;
/// The part of a text's score that orders equals.
const FINE: f64 = 0.01;
/// What of that an entry may have that is not the same text.
const ALIKE: f64 = 0.9;

/// A query, prepared for scoring.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    text: Option<Wanted>,
    embedding: Option<Embedding>,
    threshold: f64,
    limit: usize,
}

/// An entry, as far as it is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate<'a> {
    /// As [`text::Index`] has it.
    pub terms: &'a [u8],
    /// As [`text::Index`] has it.
    pub distinct: u32,
    /// As [`text::Index`] has it.
    pub whole: u64,
    /// As [`Embedding::to_bytes`] gives it; none where the entry has none.
    pub vector: Option<&'a [u8]>,
}

impl Question {
    /// Looks for a text, by its terms, or for what is near a vector, or both.
    ///
    /// # Errors
    /// `InvalidRequest` where there is nothing to look for, or a threshold or limit is out of range.
    pub fn new(
        text: Option<&str>,
        embedding: Option<Embedding>,
        threshold: f64,
        limit: usize,
    ) -> Result<Self, Error> {
        let text = text.and_then(text::Wanted::of);
        let invalid = |why: String| Err(ErrorCode::InvalidRequest.error(why));
        if text.is_none() && embedding.is_none() {
            return invalid("query: there is nothing to look for".into());
        }
        if !(0.0..=1.0).contains(&threshold) {
            return invalid("similarityThreshold: expected a number from 0 to 1".into());
        }
        if !(1..=RESULTS_MAX).contains(&limit) {
            return invalid(format!("limit: expected a whole number from 1 to {RESULTS_MAX}"));
        }
        Ok(Self { text, embedding, threshold, limit })
    }

    /// Whether a text is looked for.
    pub fn has_text(&self) -> bool {
        self.text.is_some()
    }

    /// How many numbers the vectors have that are looked for; none where none is.
    pub fn dimensions(&self) -> Option<usize> {
        self.embedding.as_ref().map(Embedding::dimensions)
    }

    /// How well this answers; 0 where it has nothing to do with it.
    pub fn score(&self, candidate: &Candidate<'_>) -> f64 {
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
pub struct Best {
    /// The best first.
    hits: Vec<Hit>,
    /// How many answers there were.
    total: u64,
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
    /// Whether it comes before another: no two are equal.
    fn is_before(&self, other: &Self) -> bool {
        let order = self.score.total_cmp(&other.score);
        order.then(self.created.cmp(&other.created)).then(self.row.cmp(&other.row)).is_gt()
    }
}

impl Best {
    /// Takes a hit where it is an answer to the question, and one of the best.
    pub fn take(&mut self, question: &Question, hit: Hit) {
        if hit.score <= 0.0 || hit.score < question.threshold {
            return;
        }
        self.total += 1;
        let place = self.hits.partition_point(|better| better.is_before(&hit));
        if place < question.limit {
            self.hits.truncate(question.limit - 1);
            self.hits.insert(place, hit);
        }
    }

    /// The best first.
    pub fn hits(&self) -> &[Hit] {
        &self.hits
    }

    /// How many answers there were.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::Index;
    use super::*;
    use proptest::prelude::*;

    fn ask(text: &str) -> Question {
        Question::new(Some(text), None, THRESHOLD, LIMIT).unwrap()
    }

    fn score(question: &Question, text: &str, vector: Option<&Embedding>) -> f64 {
        let Index { terms, distinct, whole } = Index::of(text);
        let vector = vector.map(Embedding::to_bytes);
        question.score(&Candidate { terms: &terms, distinct, whole, vector: vector.as_deref() })
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
        let hybrid = Question::new(Some("green tea"), Some(to.clone()), THRESHOLD, LIMIT).unwrap();
        let (text, vector) = (score(&hybrid, "tea", None), score(&hybrid, "coffee", Some(&near)));
        let both = score(&hybrid, "tea", Some(&near));
        assert!(text >= THRESHOLD && vector >= THRESHOLD && both > text.max(vector) && both <= 1.0);
        assert_eq!(score(&hybrid, "tea", Some(&far)), text, "what is far takes nothing away");
        let only = Question::new(None, Some(to), THRESHOLD, LIMIT).unwrap();
        assert!(score(&only, "green tea", Some(&near)) > 0.9 && score(&only, "green tea", None) == 0.0);
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
        let refused =
            |text, threshold, limit| Question::new(text, None, threshold, limit).unwrap_err().message;
        assert!(refused(None, 0.5, 1).starts_with("query:"));
        assert!(refused(Some(" "), 0.5, 1).starts_with("query:"));
        for threshold in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(refused(Some("x"), threshold, 1).starts_with("similarityThreshold:"));
        }
        for limit in [0, RESULTS_MAX + 1, usize::MAX] {
            assert!(refused(Some("x"), 0.5, limit).starts_with("limit:"));
        }
    }

    proptest! {
        #[test]
        fn scores_are_bounded_and_an_exact_match_is_above_all(query in "[a-d茶 🙂]{1,12}", text in "[a-d茶 🙂]{0,20}") {
            if let Ok(question) = Question::new(Some(&query), None, 0.0, 1) {
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
            let question = Question::new(Some("x"), None, f64::from(threshold) / 5.0, limit).unwrap();
            let mut all: Vec<Hit> = (1..).zip(&hits).map(|(row, (score, at))| Hit {
                score: f64::from(*score) / 5.0,
                created: Timestamp::from_millis(*at),
                row,
            }).collect();
            let mut best = Best::default();
            all.iter().rev().for_each(|hit| best.take(&question, *hit));
            let mut forth = Best::default();
            all.iter().for_each(|hit| forth.take(&question, *hit));
            prop_assert_eq!(&best, &forth);
            all.retain(|hit| hit.score > 0.0 && hit.score >= f64::from(threshold) / 5.0);
            all.sort_by(|a, b| {
                (b.score, b.created.as_millis(), b.row).partial_cmp(&(a.score, a.created.as_millis(), a.row)).unwrap()
            });
            prop_assert_eq!(best.total(), all.len() as u64);
            all.truncate(limit);
            prop_assert_eq!(best.hits(), &all[..]);
        }
    }
}
