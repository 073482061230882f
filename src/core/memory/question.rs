//! What is looked for, and the answers among the entries that are looked at.
//!
//! There are two ways to ask. Who says how well an answer has to fit gets those that do, each with a score that
//! is its own ([`rank`](super::rank)). Who wants what is relevant to something gets the most relevant, ranked
//! against each other ([`fused`](super::fused)).

use super::embedding::Embedding;
use super::fused::{Gathered, Topic};
use super::rank::{Best, Candidate, Fit, Hit};
use super::{RESULTS_MAX, text};
use crate::error::{Error, ErrorCode};
use crate::time::Timestamp;

/// The score an answer has at least where the question does not say.
pub const THRESHOLD: f64 = 0.7;
/// How many answers are given where the question does not say.
pub const LIMIT: usize = 10;

/// A query, prepared for scoring.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    way: Way,
    limit: usize,
}

/// How answers are found.
#[derive(Clone, Debug, PartialEq)]
enum Way {
    /// They fit as well as was asked for.
    Fitting(Fit),
    /// They are relevant.
    Relevant(Topic),
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
        within(limit)?;
        Ok(Self { way: Way::Fitting(Fit { text, embedding, threshold }), limit })
    }

    /// Looks for what is relevant to a text: at most so many, the most relevant first, in what is remembered for
    /// one owner.
    ///
    /// # Errors
    /// `InvalidRequest` where the text has no words, or the limit is out of range.
    pub fn about(text: &str, limit: usize) -> Result<Self, Error> {
        let topic = Topic::of(text)
            .ok_or_else(|| ErrorCode::InvalidRequest.error("query: there is nothing to look for"))?;
        within(limit)?;
        Ok(Self { way: Way::Relevant(topic), limit })
    }

    /// The text to which something is to be relevant; none where that is not what is looked for.
    pub fn topic(&self) -> Option<&str> {
        match &self.way {
            Way::Fitting(_) => None,
            Way::Relevant(topic) => Some(topic.text()),
        }
    }

    /// With the vector that a model made of the text to which something is to be relevant, by the name of the model.
    #[must_use]
    pub fn meaning(mut self, model: String, vector: Embedding) -> Self {
        if let Way::Relevant(topic) = &mut self.way {
            topic.set_meant(model, vector);
        }
        self
    }

    /// The model that made that.
    pub fn model(&self) -> Option<&str> {
        match &self.way {
            Way::Fitting(_) => None,
            Way::Relevant(topic) => topic.model(),
        }
    }

    /// Whether what is relevant is looked for, in what is remembered for one owner.
    pub fn is_about(&self) -> bool {
        matches!(self.way, Way::Relevant(_))
    }

    /// Whether a text is looked for.
    pub fn has_text(&self) -> bool {
        match &self.way {
            Way::Fitting(fit) => fit.text.is_some(),
            Way::Relevant(_) => true,
        }
    }

    /// How many numbers the vectors have that are looked for; none where none is.
    pub fn dimensions(&self) -> Option<usize> {
        match &self.way {
            Way::Fitting(fit) => fit.embedding.as_ref().map(Embedding::dimensions),
            Way::Relevant(_) => None,
        }
    }

    /// To be told of all entries in turn.
    pub fn answers(&self) -> Answers {
        Answers(match &self.way {
            Way::Fitting(_) => Looked::Fitting(Best::default()),
            Way::Relevant(_) => Looked::Relevant(Gathered::default()),
        })
    }
}

/// The answers among the entries that were looked at.
#[derive(Clone, Debug)]
pub struct Answers(Looked);

#[derive(Clone, Debug)]
enum Looked {
    Fitting(Best),
    Relevant(Gathered),
}

impl Answers {
    /// Looks at an entry: its number, which grows with each, when it was stored, and what it is found by.
    pub fn look(&mut self, question: &Question, (row, created): (i64, Timestamp), entry: &Candidate<'_>) {
        match (&mut self.0, &question.way) {
            (Looked::Fitting(best), Way::Fitting(fit)) => {
                best.take(fit.threshold, question.limit, Hit { score: fit.score(entry), created, row });
            }
            (Looked::Relevant(gathered), Way::Relevant(topic)) => gathered.look(topic, (row, created), entry),
            // Made of another question.
            (Looked::Fitting(_) | Looked::Relevant(_), _) => {}
        }
    }

    /// The answers, the best first, as many as are wanted, and how many there are.
    pub fn best(&self, question: &Question) -> (Vec<Hit>, u64) {
        match (&self.0, &question.way) {
            (Looked::Relevant(gathered), Way::Relevant(topic)) => gathered.answers(topic, question.limit),
            (Looked::Fitting(best), _) => (best.hits.clone(), best.total),
            (Looked::Relevant(_), Way::Fitting(_)) => (Vec::new(), 0),
        }
    }
}

/// Whether so many answers can be asked for.
fn within(limit: usize) -> Result<(), Error> {
    if (1..=RESULTS_MAX).contains(&limit) {
        return Ok(());
    }
    Err(ErrorCode::InvalidRequest.error(format!("limit: expected a whole number from 1 to {RESULTS_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn answers_are_those_of_their_question() {
        let index = text::Index::of("green tea");
        let hashed = super::super::hashed::Hashed::of("green tea").unwrap().to_bytes();
        let text::Index { terms, distinct, whole } = &index;
        let entry =
            Candidate { terms, distinct: *distinct, whole: *whole, hashed: &hashed, ..Candidate::default() };
        let fitting = Question::new(Some("green tea"), None, 0.7, 10).unwrap();
        let relevant = Question::about("is there tea?", 10).unwrap();
        for question in [&fitting, &relevant] {
            let mut answers = question.answers();
            answers.look(question, (7, Timestamp::default()), &entry);
            let (hits, total) = answers.best(question);
            assert_eq!((hits.len(), hits[0].row, total), (1, 7, 1));
        }
        assert!(relevant.is_about() && !fitting.is_about());
        assert_eq!((relevant.dimensions(), fitting.dimensions()), (None, None));
        for (text, limit) in [("", 1), (" \n", 1), ("tea", 0), ("tea", RESULTS_MAX + 1)] {
            assert!(Question::about(text, limit).is_err(), "{text:?} {limit}");
        }
    }
}
