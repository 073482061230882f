//! Facts: who or what (the subject), how it stands to something (the predicate), and what that is (the object).
//!
//! A fact may take the place of another one: where somebody lives now is not where they lived before. Which do
//! is decided by what both are about, their **slot**. Of a predicate that has one object at a time (a name, a
//! place to live) that is subject and predicate; of any other, the object too, so that two things that somebody
//! likes stand beside each other. Liking and disliking the same thing have one slot. The one that is superseded
//! is kept, as history.
//!
//! Predicates are known by one name in whatever words they come ([`PREDICATES`]); those that are not in the
//! table are kept as they are, and can have many objects: what may be true together is never superseded.

use crate::error::{Error, ErrorCode};
use crate::memory::text;

/// The subject that stands for whom the memory belongs to.
pub const USER: &str = "user";

/// The most bytes of a subject, a predicate and an object.
pub const SUBJECT_BYTES_MAX: usize = 256;
/// See [`SUBJECT_BYTES_MAX`].
pub const PREDICATE_BYTES_MAX: usize = 64;
/// See [`SUBJECT_BYTES_MAX`].
pub const OBJECT_BYTES_MAX: usize = 1024;

/// How sure one is of what was said outright, in percent.
pub const CERTAIN: u8 = 100;

/// A name has at most so many words that say something: longer ones are sentences, and nobody asks for them
/// by name.
const NAME_WORDS_MAX: usize = 5;

/// A predicate that is known.
struct Predicate {
    name: &'static str,
    /// Whether it has one object at a time.
    is_single: bool,
    /// In a sentence.
    words: &'static str,
    /// Other names for it.
    also: &'static [&'static str],
}

const fn one(name: &'static str, words: &'static str, also: &'static [&'static str]) -> Predicate {
    Predicate { name, is_single: true, words, also }
}

const fn many(name: &'static str, words: &'static str, also: &'static [&'static str]) -> Predicate {
    Predicate { name, is_single: false, words, also }
}

/// The predicates that are known.
const PREDICATES: &[Predicate] = &[
    one("name", "is called", &["called", "is_called", "named", "is_named", "has_name", "has_the_name"]),
    one("lives_in", "lives in", &["lives", "live_in", "resides_in", "lives_at", "is_based_in", "moved_to"]),
    one("comes_from", "comes from", &["is_from", "from", "was_born_in", "born_in"]),
    one("works_at", "works at", &["works_for", "employer", "employed_by", "is_employed_by", "employed_at"]),
    one("works_as", "works as", &["job", "job_title", "profession", "occupation", "is_employed_as"]),
    one("born_on", "was born on", &["birthday", "birth_date", "birthdate", "date_of_birth", "was_born_on"]),
    one("age", "is of the age", &["is_aged", "has_age"]),
    one("email", "has the email address", &["email_address", "e_mail", "has_email"]),
    one("phone", "has the phone number", &["phone_number", "telephone", "has_phone_number"]),
    one("time_zone", "is in the time zone", &["timezone"]),
    one("married_to", "is married to", &["spouse", "is_married_to"]),
    many("likes", "likes", &["like", "loves", "enjoys", "prefers", "is_fond_of"]),
    many("dislikes", "does not like", &["dislike", "hates", "does_not_like", "doesn_t_like", "can_t_stand"]),
    many("allergic_to", "is allergic to", &["is_allergic_to", "has_allergy_to", "allergy"]),
    many("speaks", "speaks", &["speaks_language"]),
    many("uses", "uses", &["use"]),
    many("has", "has", &["owns", "have"]),
    many("decided", "decided", &["has_decided", "decision", "agreed"]),
    many("asked_to_remember", "asked to remember:", &["remember", "note"]),
];

/// How predicates begin that have one object at a time besides those of the table.
const SINGLE_BEGINNINGS: [&str; 2] = ["favourite_", "favorite_"];

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    subject: String,
    predicate: String,
    object: String,
    confidence: u8,
}

impl Fact {
    /// Takes its parts, each as one line; how sure it is in percent, from 1 to [`CERTAIN`].
    ///
    /// # Errors
    /// `InvalidRequest`, naming the part that is empty, too long or out of range.
    pub fn new(subject: &str, predicate: &str, object: &str, confidence: u8) -> Result<Self, Error> {
        let subject = part("subject", subject, SUBJECT_BYTES_MAX)?;
        let predicate = part("predicate", predicate, PREDICATE_BYTES_MAX)?;
        let object = part("object", object, OBJECT_BYTES_MAX)?;
        if !(1..=CERTAIN).contains(&confidence) {
            let why = format!("confidence: expected 1 to {CERTAIN} percent, found {confidence}");
            return Err(ErrorCode::InvalidRequest.error(why));
        }
        let is_user = ["user", "the user", "i", "me", "self"].contains(&&*subject.to_lowercase());
        let subject = if is_user { USER.to_owned() } else { subject };
        Ok(Self { subject, predicate: predicate_name(&predicate)?, object, confidence })
    }

    /// Who or what it is about.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// How that stands to the object, as one word: `lives_in`.
    pub fn predicate(&self) -> &str {
        &self.predicate
    }

    /// What the subject stands to.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// How sure it is, in percent.
    pub fn confidence(&self) -> u8 {
        self.confidence
    }

    /// It in words.
    pub fn sentence(&self) -> String {
        let subject = match self.subject.strip_prefix(USER) {
            Some("") => "The user".to_owned(),
            Some(rest) if rest.starts_with("'s ") => format!("The user{rest}"),
            _ => self.subject.clone(),
        };
        let plain = self.predicate.replace('_', " ");
        let end = if self.object.ends_with(['.', '!', '?', '…', '。']) { "" } else { "." };
        if SINGLE_BEGINNINGS.iter().any(|beginning| self.predicate.starts_with(beginning)) {
            return format!("{subject}'s {plain} is {}{end}", self.object);
        }
        let predicate = known(&self.predicate).map_or(&*plain, |known| known.words);
        format!("{subject} {predicate} {}{end}", self.object)
    }

    /// The words whose vector it is found by: its sentence and the name of its predicate.
    pub fn found_by(&self) -> String {
        format!("{} {}", self.sentence(), self.predicate.replace('_', " "))
    }

    /// What it is found by besides its words: the other names of its predicate.
    pub fn synonyms(&self) -> String {
        let also = known(&self.predicate).map_or(&[][..], |known| known.also);
        let names = std::iter::once(&*self.predicate).chain(also.iter().copied());
        names.collect::<Vec<_>>().join(" ").replace('_', " ")
    }

    /// What it is about, as a number: a newer fact with the same one takes its place.
    pub fn slot(&self) -> u64 {
        let known = known(&self.predicate);
        let is_single = known.map_or_else(
            || SINGLE_BEGINNINGS.iter().any(|beginning| self.predicate.starts_with(beginning)),
            |known| known.is_single,
        );
        let predicate = if self.predicate == "dislikes" { "likes" } else { &*self.predicate };
        let object = if is_single { "" } else { &*self.object };
        text::digest_of_parts(&[&self.subject, predicate, object])
    }

    /// Whether it says what another one of the same slot says.
    pub fn says_the_same(&self, predicate: &str, object: &str) -> bool {
        let whole = |object: &str| text::Index::of(object).whole;
        self.predicate == predicate && whole(&self.object) == whole(object)
    }

    /// The names of what it connects, subject and object; none for whoever the memory belongs to, and for what
    /// is too long to be a name.
    pub fn ends(&self) -> [Option<u64>; 2] {
        [name(&self.subject), name(&self.object)]
    }
}

/// What a name stands for, as a number, whatever its case; none where it is none.
fn name(words: &str) -> Option<u64> {
    let terms = text::content_terms(words);
    (1..=NAME_WORDS_MAX).contains(&terms.len()).then(|| text::digest_of_terms(&terms))
}

/// All that a text may name: the names of up to so many words that stand in it, as numbers.
pub(super) fn names(terms: &[u64]) -> impl Iterator<Item = (u64, usize)> + '_ {
    let lengths = 1..=NAME_WORDS_MAX.min(terms.len());
    lengths
        .flat_map(|length| terms.windows(length).map(move |window| (text::digest_of_terms(window), length)))
}

fn known(predicate: &str) -> Option<&'static Predicate> {
    PREDICATES.iter().find(|known| known.name == predicate)
}

/// A predicate by the name it is kept under.
fn predicate_name(words: &str) -> Result<String, Error> {
    let mut name = String::with_capacity(words.len());
    for c in words.chars().flat_map(char::to_lowercase) {
        match c {
            c if c.is_alphanumeric() => name.push(c),
            _ if !name.is_empty() && !name.ends_with('_') => name.push('_'),
            _ => {}
        }
    }
    let name = name.trim_end_matches('_');
    if name.is_empty() {
        return Err(ErrorCode::InvalidRequest.error("predicate: expected a word such as lives_in"));
    }
    let named = PREDICATES.iter().find(|known| known.also.contains(&name));
    Ok(named.map_or(name, |known| known.name).to_owned())
}

/// A part as one line, without what is not seen.
fn part(what: &str, said: &str, bytes_max: usize) -> Result<String, Error> {
    if said.len() > bytes_max {
        let why = format!("{what}: {} bytes are more than {bytes_max}", said.len());
        return Err(ErrorCode::InvalidRequest.error(why));
    }
    let words = said.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return Err(ErrorCode::InvalidRequest.error(format!("{what}: it is empty")));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fact(subject: &str, predicate: &str, object: &str) -> Fact {
        Fact::new(subject, predicate, object, CERTAIN).unwrap()
    }

    #[test]
    fn predicates_have_one_name_and_facts_a_sentence() {
        for (subject, predicate, object, name, sentence) in [
            ("The user", "Resides in", "Lisbon", "lives_in", "The user lives in Lisbon."),
            ("user", "is called", "Ada", "name", "The user is called Ada."),
            ("user's cat", "named", "Miu", "name", "The user's cat is called Miu."),
            (
                "user",
                "favourite_colour",
                "green",
                "favourite_colour",
                "The user's favourite colour is green.",
            ),
            ("Miu", "Eats  mostly", "raw\nsalmon", "eats_mostly", "Miu eats mostly raw salmon."),
            ("I", "decision", "to ship it!", "decided", "The user decided to ship it!"),
        ] {
            let fact = fact(subject, predicate, object);
            assert_eq!((fact.predicate(), fact.sentence().as_str()), (name, sentence));
        }
    }

    #[test]
    fn what_has_one_object_at_a_time_is_superseded_by_any_other_and_the_rest_by_itself() {
        let slot = |subject, predicate, object| fact(subject, predicate, object).slot();
        assert_eq!(slot("user", "lives_in", "Porto"), slot("I", "moved to", "Lisbon"));
        assert_eq!(slot("user", "favourite_colour", "red"), slot("user", "favourite colour", "blue"));
        assert_eq!(slot("user", "likes", "Tea"), slot("user", "hates", "tea"));
        assert_ne!(slot("user", "likes", "tea"), slot("user", "likes", "coffee"));
        assert_ne!(slot("user", "lives_in", "Porto"), slot("Helena", "lives_in", "Porto"));
        assert_ne!(slot("user", "reviews", "a"), slot("user", "reviews", "b"), "unknown: both may be true");
        let likes = fact("user", "likes", "Green Tea");
        assert!(likes.says_the_same("likes", "green  tea!") && !likes.says_the_same("dislikes", "green tea"));
    }

    #[test]
    fn names_are_those_of_things_and_not_of_the_user_or_of_sentences() {
        let ends = |subject, object| fact(subject, "x", object).ends();
        let [user, lisbon] = ends("user", "LISBON");
        assert_eq!((user, lisbon), (None, ends("Lisbon", "x")[0]));
        assert_eq!(ends("user's cat", "x")[0], ends("the cat", "x")[0]);
        assert_eq!(ends("x", "that all deployments happen on Tuesdays after the daily meeting")[1], None);
        let asked = text::content_terms("where does Doctor Okafor work?");
        assert!(names(&asked).any(|(name, words)| Some(name) == ends("Doctor Okafor", "x")[0] && words == 2));
    }

    #[test]
    fn what_is_no_fact_is_refused_by_its_part() {
        let refused = |subject: &str, predicate: &str, object: &str, confidence| {
            Fact::new(subject, predicate, object, confidence).unwrap_err().message
        };
        assert!(refused(" \n", "p", "o", 1).starts_with("subject:"));
        assert!(refused("s", "??", "o", 1).starts_with("predicate:"));
        assert!(refused("s", "p", "", 1).starts_with("object:"));
        assert!(refused("s", "p", &"o".repeat(1025), 1).starts_with("object: 1025 bytes"));
        for confidence in [0, 101] {
            assert!(refused("s", "p", "o", confidence).starts_with("confidence:"));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_taken_again_as_it_is(s in "\\PC{1,40}", p in "\\PC{1,20}", o in "\\PC{1,40}") {
            if let Ok(fact) = Fact::new(&s, &p, &o, 50) {
                let again = Fact::new(fact.subject(), fact.predicate(), fact.object(), 50);
                prop_assert_eq!(again.as_ref(), Ok(&fact));
                prop_assert!(!fact.sentence().contains('\n'));
            }
        }
    }
}
