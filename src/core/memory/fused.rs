//! What is relevant to a question, of all that is remembered for one owner: rankings, fused.
//!
//! | ranking | by |
//! |---|---|
//! | words | the terms of the question that an entry has: rare ones count more (BM25) |
//! | vectors | how near what is written is ([`hashed`](super::hashed)) |
//! | meaning | how near what is meant is, where a model made vectors of the question and of entries |
//! | graph | the facts that connect what the question names with something, and those one step further |
//!
//! Each sees what another one misses: words a name, vectors another form of it, the graph what is said of Miu
//! where the question is about the user's cat and the cat is called so. What they say can't be compared, so only
//! the ranks count: an entry that is at place `r` in a ranking gets `1 / (K + r)` from it (reciprocal rank
//! fusion), and the score is the part that has of what the first of all rankings would get. Rankings of what is
//! remembered for others are never looked at, not even for how rare a word is.
//!
//! An entry that no ranking speaks for is no answer, however few there are. Models differ in how near they put what
//! has nothing to do with each other: so what is meant counts from a least nearness on, and of many entries only
//! where it stands out. Vectors of different models are never compared.

use std::collections::{BTreeMap, BTreeSet};

use super::embedding::Embedding;
use super::hashed::Hashed;
use super::rank::{Candidate, Hit};
use super::text::{self, Wanted};
use super::{ENTRIES_MAX, fact};
use crate::time::Timestamp;

/// What softens the difference between the first places.
const K: f64 = 20.0;

/// What each ranking weighs.
const WORDS: f64 = 1.0;
const VECTORS: f64 = 1.0;
const MEANING: f64 = 2.0;
const GRAPH: f64 = 1.0;

/// How many places of a ranking count.
const PLACES_MAX: usize = 100;

/// How near vectors have to be for that to say something.
const WRITTEN_NEAR: f32 = 0.2;

/// How much of a text a model is to make a vector of, in bytes.
const MEANT_BYTES_MAX: usize = 4096;

/// How near vectors of a model have to be, and how many of the nearest count.
const MEANT_NEAR: f64 = 0.25;
const MEANT_MAX: usize = 20;

/// Of so many entries with such a vector only those count that are nearer than the middle between what is usual
/// and the nearest.
const USUAL_MIN: u64 = 8;

/// BM25: how fast more is less, and what the length of an entry counts.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.5;

/// A question, prepared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Topic {
    /// As much of it as a model is to make a vector of.
    text: String,
    wanted: Wanted,
    hashed: Option<Hashed>,
    /// The vector that a model made of it, and which.
    meant: Option<(String, Embedding)>,
    /// What it may name, and with how many words.
    names: BTreeMap<u64, usize>,
}

impl Topic {
    /// Of a text; none where that has no words.
    pub(super) fn of(text: &str) -> Option<Self> {
        let wanted = Wanted::of_content(text)?;
        let mut terms = text::content_terms(text);
        terms.truncate(text::WANTED_MAX);
        let (names, hashed) = (fact::names(&terms).collect(), Hashed::of(text));
        let text = text[..text.floor_char_boundary(MEANT_BYTES_MAX)].to_owned();
        Some(Self { text, wanted, hashed, meant: None, names })
    }

    /// The text, as much of it as a model is to make a vector of.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// With the vector that this model made of it.
    pub(super) fn set_meant(&mut self, model: String, vector: Embedding) {
        self.meant = Some((model, vector));
    }

    /// The model that made its vector.
    pub(super) fn model(&self) -> Option<&str> {
        self.meant.as_ref().map(|(model, _)| model.as_str())
    }
}

/// An entry that may be an answer, or lead to one.
#[derive(Clone, Debug)]
struct Seen {
    row: i64,
    created: Timestamp,
    /// Which terms of the question it has.
    found: u64,
    distinct: u32,
    written_near: f32,
    meant_near: f64,
    ends: [Option<u64>; 2],
}

/// What was looked at so far.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    seen: Vec<Seen>,
    looked: u64,
    terms: u64,
    /// The entries with a vector of the question's model, and how near they are together.
    meant: u64,
    meant_near: f64,
}

impl Gathered {
    /// Looks at an entry.
    pub(super) fn look(&mut self, topic: &Topic, (row, created): (i64, Timestamp), entry: &Candidate<'_>) {
        self.looked += 1;
        self.terms += u64::from(entry.distinct);
        let found = topic.wanted.found_in(entry.terms);
        let near = |hashed: &Hashed| hashed.similarity(entry.hashed);
        let written_near = topic.hashed.as_ref().map_or(0.0, near);
        let meant = topic.meant.as_ref().and_then(|(_, vector)| vector.similarity(entry.meant?));
        let meant_near = meant.unwrap_or(0.0);
        self.meant += u64::from(meant.is_some());
        self.meant_near += meant_near;
        let says = found != 0 || written_near >= WRITTEN_NEAR || meant_near >= MEANT_NEAR;
        let is_connected = entry.ends.iter().any(Option::is_some);
        if (says || is_connected) && (self.seen.len() as u64) < ENTRIES_MAX {
            let (distinct, ends) = (entry.distinct, entry.ends);
            self.seen.push(Seen { row, created, found, distinct, written_near, meant_near, ends });
        }
    }

    /// The answers, the best first, as many as are wanted, and how many there are.
    pub(super) fn answers(&self, topic: &Topic, limit: usize) -> (Vec<Hit>, u64) {
        let mut rankings =
            vec![(self.by_words(), WORDS), (self.by_vectors(), VECTORS), (self.by_graph(topic), GRAPH)];
        if self.meant > 0 {
            rankings.push((self.by_meaning(), MEANING));
        }
        let most: f64 = rankings.iter().map(|(_, weight)| weight / (K + 1.0)).sum();
        let mut scores: BTreeMap<usize, f64> = BTreeMap::new();
        for (ranking, weight) in &rankings {
            for (place, at) in (1..).zip(ranking.iter().take(PLACES_MAX)) {
                *scores.entry(*at).or_default() += weight / (K + f64::from(place)) / most;
            }
        }
        let hit = |(at, score): (&usize, &f64)| {
            let Seen { row, created, .. } = self.seen[*at];
            Hit { score: score.min(1.0), created, row }
        };
        let mut hits: Vec<Hit> = scores.iter().map(hit).collect();
        hits.sort_by(Hit::order);
        let total = hits.len() as u64;
        hits.truncate(limit);
        (hits, total)
    }

    /// The entries that have terms of the question, the best first.
    fn by_words(&self) -> Vec<usize> {
        let looked = self.looked as f64;
        let average = (self.terms as f64 / looked.max(1.0)).max(1.0);
        let mut has = [0u32; text::WANTED_MAX];
        for seen in &self.seen {
            bits(seen.found).for_each(|bit| has[bit] += 1);
        }
        // Rare terms say more; none says nothing.
        let rarity = has.map(|has| (1.0 + (looked - f64::from(has) + 0.5) / (f64::from(has) + 0.5)).ln());
        self.ranked(|seen| {
            let said: f64 = bits(seen.found).map(|bit| rarity[bit]).sum();
            let length = 1.0 - LENGTH + LENGTH * f64::from(seen.distinct) / average;
            said * (SATURATION + 1.0) / (SATURATION * length + 1.0)
        })
    }

    /// The entries that are near the question, the nearest first.
    fn by_vectors(&self) -> Vec<usize> {
        self.ranked(|seen| if seen.written_near >= WRITTEN_NEAR { f64::from(seen.written_near) } else { 0.0 })
    }

    /// The entries that mean what the question does, the nearest first.
    fn by_meaning(&self) -> Vec<usize> {
        let nearest = self.seen.iter().map(|seen| seen.meant_near).fold(0.0, f64::max);
        let usual = self.meant_near / (self.meant.max(1) as f64);
        let stands_out = if self.meant >= USUAL_MIN { usual.midpoint(nearest) } else { 0.0 };
        let least = MEANT_NEAR.max(stands_out);
        let mut ranked = self.ranked(|seen| if seen.meant_near >= least { seen.meant_near } else { 0.0 });
        ranked.truncate(MEANT_MAX);
        ranked
    }

    /// The facts that connect what the question names, and then those that are one step away.
    fn by_graph(&self, topic: &Topic) -> Vec<usize> {
        let named = |end: &Option<u64>| end.and_then(|end| topic.names.get(&end).copied()).unwrap_or(0);
        let direct = |seen: &Seen| seen.ends.iter().map(named).sum::<usize>();
        // What those lead to that the question does not name itself.
        let reached: BTreeSet<u64> = self
            .seen
            .iter()
            .filter(|seen| direct(seen) > 0)
            .flat_map(|seen| seen.ends.into_iter().flatten())
            .filter(|end| !topic.names.contains_key(end))
            .collect();
        self.ranked(|seen| {
            let words = direct(seen);
            let steps = if words > 0 {
                2.0 + words as f64
            } else if seen.ends.iter().flatten().any(|end| reached.contains(end)) {
                1.0
            } else {
                return 0.0;
            };
            // Among those of one kind, the ones that are about what is asked of it.
            steps + f64::from(seen.written_near) * 0.9
        })
    }

    /// Those that the score speaks for, the best first; of equal ones the newest.
    fn ranked(&self, score: impl Fn(&Seen) -> f64) -> Vec<usize> {
        let scored = self.seen.iter().map(score).enumerate().filter(|(_, score)| *score > 0.0);
        let mut scored: Vec<(usize, f64)> = scored.collect();
        scored.sort_by(|(a, one), (b, other)| {
            let newest = |at: usize| (self.seen[at].created, self.seen[at].row);
            other.total_cmp(one).then_with(|| newest(*b).cmp(&newest(*a)))
        });
        scored.into_iter().map(|(at, _)| at).collect()
    }
}

/// The places of the bits that are set.
fn bits(set: u64) -> impl Iterator<Item = usize> {
    (0..text::WANTED_MAX).filter(move |bit| set >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::fact::{CERTAIN, Fact};
    use super::super::text::Index;
    use super::*;

    /// What the ranking is judged by.
    const QUESTIONS: &str = include_str!("questions.txt");

    struct Judged {
        /// The ids of the facts, in their order.
        ids: Vec<String>,
        facts: Vec<(Index, Vec<u8>, Fact)>,
        questions: Vec<(String, Vec<String>)>,
    }

    fn judged() -> Judged {
        let mut judged = Judged { ids: Vec::new(), facts: Vec::new(), questions: Vec::new() };
        for line in QUESTIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(question) = line.strip_prefix("? ") {
                let (words, ids) = question.split_once(" => ").unwrap();
                judged.questions.push((words.into(), ids.split(' ').map(str::to_owned).collect()));
                continue;
            }
            let (id, fact) = line.split_once(' ').unwrap();
            let parts: Vec<&str> = fact.split(" | ").collect();
            let fact = Fact::new(parts[0], parts[1], parts[2], CERTAIN).unwrap();
            let hashed = Hashed::of(&fact.found_by()).unwrap().to_bytes();
            judged.ids.push(id.into());
            judged.facts.push((Index::of(&fact.sentence()).with(&fact.synonyms()), hashed, fact));
        }
        judged
    }

    impl Judged {
        fn gather(&self, topic: &Topic) -> Gathered {
            let mut gathered = Gathered::default();
            for (row, (index, hashed, fact)) in (0..).zip(&self.facts) {
                let Index { terms, distinct, whole } = index;
                let (distinct, whole, ends) = (*distinct, *whole, fact.ends());
                let entry = Candidate { terms, distinct, whole, vector: None, hashed, meant: None, ends };
                gathered.look(topic, (row, Timestamp::default()), &entry);
            }
            gathered
        }

        /// Recall among the first five, and the mean reciprocal rank.
        fn judge(&self, rank: impl Fn(&Gathered, &Topic) -> Vec<usize>) -> (f64, f64) {
            let (mut recall, mut reciprocal) = (0.0, 0.0);
            for (words, wanted) in &self.questions {
                let topic = Topic::of(words).unwrap();
                let gathered = self.gather(&topic);
                let ranked: Vec<&str> =
                    rank(&gathered, &topic).into_iter().map(|at| &*self.ids[at]).collect();
                let is_wanted = |id: &str| wanted.iter().any(|wanted| wanted == id);
                let found = ranked.iter().take(5).filter(|id| is_wanted(id)).count();
                recall += found as f64 / wanted.len() as f64;
                reciprocal +=
                    ranked.iter().position(|id| is_wanted(id)).map_or(0.0, |at| 1.0 / (at as f64 + 1.0));
            }
            let asked = self.questions.len() as f64;
            (recall / asked, reciprocal / asked)
        }
    }

    fn rows(gathered: &Gathered, ranking: Vec<usize>) -> Vec<usize> {
        ranking.into_iter().map(|at| usize::try_from(gathered.seen[at].row).unwrap()).collect()
    }

    #[test]
    fn fused_finds_more_than_each_ranking_alone() {
        let judged = judged();
        let words = judged.judge(|gathered, _| rows(gathered, gathered.by_words()));
        let vectors = judged.judge(|gathered, _| rows(gathered, gathered.by_vectors()));
        let graph = judged.judge(|gathered, topic| rows(gathered, gathered.by_graph(topic)));
        let fused = judged.judge(|gathered, topic| {
            let (hits, _) = gathered.answers(topic, 100);
            hits.into_iter().map(|hit| usize::try_from(hit.row).unwrap()).collect()
        });
        println!("recall@5 and MRR: words {words:?}, vectors {vectors:?}, graph {graph:?}, fused {fused:?}");
        for alone in [words, vectors, graph] {
            assert!(fused.0 >= alone.0, "{fused:?} {alone:?}");
        }
    }

    #[test]
    fn every_fact_that_a_question_wants_is_there() {
        let judged = judged();
        let ids: HashMap<&str, usize> = judged.ids.iter().map(|id| &**id).zip(0..).collect();
        assert_eq!(ids.len(), judged.ids.len(), "each id stands once");
        assert!(judged.ids.len() >= 30 && judged.questions.len() >= 30);
        for id in judged.questions.iter().flat_map(|(_, ids)| ids) {
            assert!(ids.contains_key(&**id), "{id}");
        }
    }

    #[test]
    fn what_means_the_same_is_found_by_vectors_of_the_same_model_and_only_what_stands_out() {
        let vector = |numbers: &[f64]| Embedding::new(numbers).unwrap();
        let mut topic = Topic::of("which automobile").unwrap();
        let found = |topic: &Topic, vectors: &[Embedding]| {
            let mut gathered = Gathered::default();
            for (row, vector) in (0..).zip(vectors) {
                let Index { terms, distinct, whole } = Index::of(&format!("entry {row}"));
                let meant = vector.to_bytes();
                let entry =
                    Candidate { terms: &terms, distinct, whole, meant: Some(&meant), ..Candidate::default() };
                gathered.look(topic, (row, Timestamp::default()), &entry);
            }
            let (hits, _) = gathered.answers(topic, 100);
            assert!(hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0), "{hits:?}");
            hits.into_iter().map(|hit| hit.row).collect::<Vec<_>>()
        };
        let few = [vector(&[0.0, 1.0]), vector(&[1.0, 0.2]), vector(&[1.0, 1.0])];
        assert_eq!(found(&topic, &few), [0i64; 0], "the question has no vector");
        topic.set_meant("up/m".into(), vector(&[1.0, 0.0]));
        assert_eq!((topic.model(), topic.text()), (Some("up/m"), "which automobile"));
        assert_eq!(found(&topic, &few), [1, 2]);
        let mut many = vec![vector(&[1.0, 1.0]); 20];
        many[7] = vector(&[1.0, 0.1]);
        assert_eq!(found(&topic, &many), [7]);
        assert_eq!(found(&topic, &[vector(&[1.0]), vector(&[1.0, 0.0, 0.0])]), [0i64; 0], "of other lengths");
    }

    #[test]
    fn what_is_one_step_away_is_found_and_what_nothing_speaks_for_is_not() {
        let judged = judged();
        let found = |words: &str| {
            let topic = Topic::of(words).unwrap();
            let (hits, total) = judged.gather(&topic).answers(&topic, 100);
            assert_eq!(hits.len() as u64, total);
            assert!(hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0), "{hits:?}");
            assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
            hits.into_iter()
                .map(|hit| judged.ids[usize::try_from(hit.row).unwrap()].clone())
                .collect::<Vec<_>>()
        };
        let cat = found("cat");
        assert!(cat.contains(&"cat".into()) && cat.contains(&"miu-food".into()), "{cat:?}");
        assert!(!cat.contains(&"deploy".into()), "{cat:?}");
    }
}
