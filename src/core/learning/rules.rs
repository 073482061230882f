//! Facts that are said outright, found without a model.
//!
//! A prompt is taken apart into clauses, and each is compared with the beginnings of [`PATTERNS`]: `I live in
//! Lisbon and I work at Meridian` is two. A clause that begins otherwise says nothing here, so `if I lived in
//! Lisbon` and `I don't live in Lisbon` are no facts. English alone; nothing is concluded from anything.
//!
//! What is a question, quoted, or code is not looked at.

use super::FACTS_MAX;
use crate::memory::fact::{CERTAIN, Fact, USER};

/// The most words of what is learned: a name is short, a decision a sentence.
const NAME: usize = 4;
const PLACE: usize = 8;
const THING: usize = 12;
const SENTENCE: usize = 40;

/// How a clause begins, which fact of the user it says, and how many words its object has at most.
const PATTERNS: &[(&str, &str, usize)] = &[
    ("my name is ", "name", NAME),
    ("my name's ", "name", NAME),
    ("i'm called ", "name", NAME),
    ("i am called ", "name", NAME),
    ("you can call me ", "name", NAME),
    ("call me ", "name", NAME),
    ("i live in ", "lives_in", PLACE),
    ("i now live in ", "lives_in", PLACE),
    ("i'm living in ", "lives_in", PLACE),
    ("i am living in ", "lives_in", PLACE),
    ("i moved to ", "lives_in", PLACE),
    ("i've moved to ", "lives_in", PLACE),
    ("i have moved to ", "lives_in", PLACE),
    ("i'm based in ", "lives_in", PLACE),
    ("i am based in ", "lives_in", PLACE),
    ("i come from ", "comes_from", PLACE),
    ("i'm from ", "comes_from", PLACE),
    ("i am from ", "comes_from", PLACE),
    ("i work at ", "works_at", PLACE),
    ("i work for ", "works_at", PLACE),
    ("i'm working at ", "works_at", PLACE),
    ("i'm working for ", "works_at", PLACE),
    ("i work as a ", "works_as", PLACE),
    ("i work as an ", "works_as", PLACE),
    ("i was born on ", "born_on", NAME),
    ("i was born in ", "comes_from", PLACE),
    ("my birthday is on ", "born_on", NAME),
    ("my birthday is ", "born_on", NAME),
    ("my email address is ", "email", 1),
    ("my email is ", "email", 1),
    ("my phone number is ", "phone", NAME),
    ("my time zone is ", "time_zone", NAME),
    ("my timezone is ", "time_zone", NAME),
    ("i like ", "likes", THING),
    ("i really like ", "likes", THING),
    ("i love ", "likes", THING),
    ("i enjoy ", "likes", THING),
    ("i prefer ", "likes", THING),
    ("i don't like ", "dislikes", THING),
    ("i do not like ", "dislikes", THING),
    ("i no longer like ", "dislikes", THING),
    ("i dislike ", "dislikes", THING),
    ("i hate ", "dislikes", THING),
    ("i can't stand ", "dislikes", THING),
    ("i'm allergic to ", "allergic_to", THING),
    ("i am allergic to ", "allergic_to", THING),
    ("i speak ", "speaks", THING),
    ("we decided to ", "decided", SENTENCE),
    ("we've decided to ", "decided", SENTENCE),
    ("we have decided to ", "decided", SENTENCE),
    ("we decided that ", "decided", SENTENCE),
    ("we've decided that ", "decided", SENTENCE),
    ("we have decided that ", "decided", SENTENCE),
    ("we agreed to ", "decided", SENTENCE),
    ("we agreed that ", "decided", SENTENCE),
    ("i decided to ", "decided", SENTENCE),
    ("i've decided to ", "decided", SENTENCE),
    ("i have decided to ", "decided", SENTENCE),
];

/// Of these the word before the object belongs to it: "to use Postgres", "that we ship on Tuesdays".
const WITH_THEIR_LAST_WORD: &str = "decided";

/// What may stand before a clause and says nothing.
const LEADS: &[&str] = &[
    "hi",
    "hello",
    "hey",
    "well",
    "ok",
    "okay",
    "so",
    "also",
    "and",
    "but",
    "btw",
    "fyi",
    "actually",
    "now",
    "oh",
    "by the way",
    "just so you know",
    "for your information",
    "please note that",
    "note that",
    "as you know",
];

/// How one asks outright that something be remembered.
const REMEMBER: &[&str] =
    &["please remember that ", "please remember: ", "remember that ", "remember: ", "don't forget that "];

/// Between a thing and what it is called.
const CALLED: &[&str] = &[" is called ", " is named ", "'s name is "];

/// Persons and animals that are told by name: "my wife is Helena".
const KIN: &[&str] = &[
    "wife",
    "husband",
    "partner",
    "girlfriend",
    "boyfriend",
    "mother",
    "father",
    "mom",
    "mum",
    "dad",
    "sister",
    "brother",
    "son",
    "daughter",
    "boss",
    "manager",
    "dog",
    "cat",
];

/// What a clause may begin with after a comma or an "and", to be one of its own.
const CLAUSE_STARTS: &[&str] = &["i ", "i'", "my ", "our ", "we ", "we'", "you can call me ", "call me "];

/// What may end an object and does not belong to it.
const TAILS: &[&str] = &[
    " now",
    " these days",
    " anymore",
    " any more",
    " too",
    " as well",
    " very much",
    " a lot",
    " by the way",
];

/// Words with which nothing is named: what they mean stands elsewhere.
const POINTERS: &[&str] = &[
    "it",
    "this",
    "that",
    "them",
    "these",
    "those",
    "you",
    "your",
    "he",
    "she",
    "they",
    "there",
    "here",
    "what",
    "how",
    "when",
    "to",
    "not",
    "if",
    "one",
    "some",
    "something",
    "nothing",
    "everything",
];

/// The facts that a prompt says outright, in its order, each once.
pub fn facts(prompt: &str) -> Vec<Fact> {
    let mut found: Vec<Fact> = Vec::new();
    for clause in sentences(prompt).flat_map(|sentence| clauses(&sentence)) {
        if let Some(fact) = said(&clause)
            && !found.contains(&fact)
        {
            found.push(fact);
        }
    }
    found.truncate(FACTS_MAX);
    found
}

/// The sentences that are neither questions, nor quoted, nor code.
fn sentences(prompt: &str) -> impl Iterator<Item = String> {
    let plain = prompt.replace(['\u{2019}', '\u{2018}'], "'");
    let mut is_code = false;
    let mut found = Vec::new();
    for line in plain.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code || line.starts_with(['>', '"', '\u{201c}', '|', '<', '{', '`']) {
            continue;
        }
        let mut sentence = String::new();
        let mut chars = line.trim_start_matches(['-', '*', ' ']).chars().peekable();
        while let Some(c) = chars.next() {
            let is_end = matches!(c, '!' | ';' | '?' | '。')
                || (c == '.' && chars.peek().is_none_or(|next| next.is_whitespace()) && !is_short(&sentence));
            if !is_end {
                sentence.push(c);
                continue;
            }
            let ended = std::mem::take(&mut sentence);
            if c != '?' {
                found.push(ended);
            }
        }
        found.push(sentence);
    }
    found.into_iter().map(|sentence| sentence.trim().to_owned()).filter(|sentence| {
        // What is quoted within a sentence may be anybody's.
        !sentence.is_empty() && !sentence.contains(['"', '\u{201c}', '\u{201d}', '`'])
    })
}

/// Whether a dot after this belongs to a shortened word: `St. Gallen`, `Dr. Okafor`.
fn is_short(before: &str) -> bool {
    let word = before.rsplit(' ').next().unwrap_or_default();
    ["St", "Dr", "Mr", "Mrs", "Ms", "Prof", "No"].contains(&word) || is_initial(word)
}

/// Whether a word is one letter, as in `Ada K. Lovelace`.
fn is_initial(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(char::is_alphabetic) && chars.next().is_none()
}

/// A sentence apart at commas and "and"s behind which another clause begins.
fn clauses(sentence: &str) -> Vec<String> {
    let mut left = sentence;
    let mut found = Vec::new();
    let mut from = 0;
    while let Some((at, length)) = joint(&left[from..]) {
        let next = left[from + at + length..].trim_start();
        let lower = next.to_ascii_lowercase();
        if CLAUSE_STARTS.iter().any(|start| lower.starts_with(start)) {
            found.push(left[..from + at].to_owned());
            left = next;
            from = 0;
        } else if PATTERNS
            .iter()
            .any(|(start, ..)| start.strip_prefix("i ").is_some_and(|verb| lower.starts_with(verb)))
        {
            // "I live in Lisbon and work at Meridian"
            found.push(left[..from + at].to_owned());
            found.extend(clauses(&format!("I {next}")));
            return found;
        } else {
            from += at + length;
        }
    }
    found.push(left.to_owned());
    found
}

/// The first place where a sentence may come apart, and how long that is.
fn joint(text: &str) -> Option<(usize, usize)> {
    let joints = [", and ", ", but ", " and ", " but ", ", ", " because ", " - ", " – "];
    let places = joints.iter().filter_map(|joint| Some((text.find(joint)?, joint.len())));
    // The longest of those that begin first.
    places.min_by_key(|(at, length)| (*at, usize::MAX - length))
}

/// The fact that a clause says.
fn said(clause: &str) -> Option<Fact> {
    let mut clause = clause.trim().trim_end_matches([',', '.', ':']);
    while let Some(rest) = without_lead(clause) {
        clause = rest;
    }
    if let Some(rest) = REMEMBER.iter().find_map(|start| after(clause, start)) {
        return said(rest).or_else(|| {
            let object = object(rest, SENTENCE)?;
            Fact::new(USER, "asked_to_remember", object, CERTAIN).ok()
        });
    }
    for (start, predicate, words_max) in PATTERNS {
        let Some(mut rest) = after(clause, start) else { continue };
        if *predicate == WITH_THEIR_LAST_WORD {
            let last = start.trim_end().rsplit(' ').next().unwrap_or_default();
            rest = &clause[start.len() - last.len() - 1..];
            let decided = cut(rest);
            let words = decided.split_whitespace().count();
            return (3..=*words_max).contains(&words).then(|| fact(USER, predicate, decided)).flatten();
        }
        return fact(USER, predicate, object(rest, *words_max)?);
    }
    favourite(clause).or_else(|| kin(clause)).or_else(|| owned(clause)).or_else(|| called(clause))
}

/// "my favourite colour is blue"
fn favourite(clause: &str) -> Option<Fact> {
    let rest = after(clause, "my favourite ").or_else(|| after(clause, "my favorite "))?;
    let (what, object) = rest.split_once(" is ")?;
    if what.split_whitespace().count() > 2 {
        return None;
    }
    fact(USER, &format!("favourite_{what}"), self::object(object, THING)?)
}

/// "my wife is Helena"
fn kin(clause: &str) -> Option<Fact> {
    let (who, name) = after(clause, "my ")?.split_once(" is ")?;
    let is_name = name.starts_with(char::is_uppercase) && name.split_whitespace().count() <= 2;
    let known = KIN.contains(&who.to_ascii_lowercase().as_str()) && is_name;
    known.then(|| fact(&format!("{USER}'s {who}"), "name", object(name, NAME)?)).flatten()
}

/// "I have a dog called Rex"
fn owned(clause: &str) -> Option<Fact> {
    let thing = after(clause, "i have a ").or_else(|| after(clause, "i have an "))?;
    let (thing, name) = [" called ", " named "].iter().find_map(|between| thing.split_once(between))?;
    let is_short = (1..=NAME).contains(&thing.split_whitespace().count());
    is_short.then(|| fact(&format!("{USER}'s {thing}"), "name", object(name, NAME)?)).flatten()
}

/// "my cat is called Miu", "the backup server is named Atlas"
fn called(clause: &str) -> Option<Fact> {
    let (thing, name) = CALLED.iter().find_map(|between| clause.split_once(between))?;
    let name = object(name, NAME)?;
    let thing = thing.trim();
    let own = after(thing, "my ").or_else(|| after(thing, "our "));
    let subject = match own {
        Some(own) => format!("{USER}'s {own}"),
        None => after(thing, "the ").unwrap_or(thing).to_owned(),
    };
    let words = subject.split_whitespace().count();
    let is_pointer = POINTERS.contains(&thing.to_ascii_lowercase().as_str());
    ((1..=NAME + 1).contains(&words) && !is_pointer).then(|| fact(&subject, "name", name)).flatten()
}

fn fact(subject: &str, predicate: &str, object: &str) -> Option<Fact> {
    Fact::new(subject, predicate, object, CERTAIN).ok()
}

/// What follows this beginning, whatever its case.
fn after<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    let begins = text.get(..start.len())?.eq_ignore_ascii_case(start);
    begins.then(|| &text[start.len()..])
}

fn without_lead(clause: &str) -> Option<&str> {
    LEADS.iter().find_map(|lead| {
        let rest = after(clause, lead)?;
        let rest = rest.strip_prefix([',', ':', ' '])?;
        Some(rest.trim_start_matches([',', ' ']))
    })
}

/// What stands before what does not belong to an object.
fn cut(rest: &str) -> &str {
    let mut object = rest.trim().trim_end_matches(['.', ',', ':', ')']);
    while let Some(shorter) = TAILS.iter().find_map(|tail| {
        let at = object.len().checked_sub(tail.len())?;
        object.get(at..)?.eq_ignore_ascii_case(tail).then(|| &object[..at])
    }) {
        object = shorter.trim_end_matches([',', ' ']);
    }
    object
}

/// An object of at most so many words that names something; none where it does not.
fn object(rest: &str, words_max: usize) -> Option<&str> {
    let object = cut(rest);
    let words = object.split_whitespace().count();
    let first = object.split_whitespace().next()?.to_ascii_lowercase();
    let names = !POINTERS.contains(&first.trim_end_matches(',')) && object.chars().any(char::is_alphanumeric);
    ((1..=words_max).contains(&words) && names).then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(prompt: &str) -> Vec<String> {
        facts(prompt)
            .iter()
            .map(|fact| format!("{} {} {}", fact.subject(), fact.predicate(), fact.object()))
            .collect()
    }

    #[test]
    fn what_is_said_outright_is_found() {
        for (prompt, facts) in [
            ("My name is Ada Lovelace.", &["user name Ada Lovelace"][..]),
            ("hi, I'm called Ada!", &["user name Ada"]),
            ("By the way, you can call me Ada", &["user name Ada"]),
            ("I live in Lisbon now. What is the weather?", &["user lives_in Lisbon"]),
            ("I've moved to St. Gallen", &["user lives_in St. Gallen"]),
            (
                "I live in Lisbon and work at Meridian Robotics",
                &["user lives_in Lisbon", "user works_at Meridian Robotics"],
            ),
            ("I’m from Porto, and my cat is called Miu", &["user comes_from Porto", "user's cat name Miu"]),
            ("I work as a firmware engineer", &["user works_as firmware engineer"]),
            ("I really like green tea and black coffee", &["user likes green tea and black coffee"]),
            ("I don't like coffee anymore, but I love tea", &["user dislikes coffee", "user likes tea"]),
            ("I'm allergic to walnuts", &["user allergic_to walnuts"]),
            ("my wife is Helena", &["user's wife name Helena"]),
            ("I have an old dog called Rex.", &["user's old dog name Rex"]),
            ("My birthday is May 5. I'm 34.", &["user born_on May 5"]),
            ("Our dog's name is Rex", &["user's dog name Rex"]),
            ("The backup server is named Atlas.", &["backup server name Atlas"]),
            ("My favorite colour is blue", &["user favourite_colour blue"]),
            (
                "We decided to use Postgres for the inventory.",
                &["user decided to use Postgres for the inventory"],
            ),
            (
                "so we've decided that deployments happen on Tuesdays",
                &["user decided that deployments happen on Tuesdays"],
            ),
            ("Remember that I live in Rome", &["user lives_in Rome"]),
            (
                "Please remember: the key hangs behind the door",
                &["user asked_to_remember the key hangs behind the door"],
            ),
            ("my email is ada@example.com.", &["user email ada@example.com"]),
            (
                "- I speak Portuguese\n- I was born on 10 December 1985",
                &["user speaks Portuguese", "user born_on 10 December 1985"],
            ),
        ] {
            assert_eq!(found(prompt), facts, "{prompt}");
        }
    }

    #[test]
    fn nothing_is_invented() {
        for prompt in [
            "",
            "What is my name?",
            "Do I live in Lisbon?",
            "If I live in Lisbon, what then",
            "I don't live in Lisbon",
            "I wish I lived in Lisbon",
            "She said \"my name is Eve\"",
            "\"I live in Rome\", he wrote",
            "> I live in Rome\n> my name is Eve",
            "```\nmy name is Eve\n```",
            "I like it",
            "I like that you are here",
            "I like to think so",
            "call me when you are done",
            "it is called Miu",
            "my wife is at home",
            "my cat is hungry",
            "We decided",
            "the function that is called when a user of the system logs in is called often by very many other things here",
            "Translate: `my name is Eve`",
            "{\"text\": \"I live in Rome\"}",
        ] {
            assert_eq!(found(prompt), [""; 0], "{prompt}");
        }
    }

    #[test]
    fn many_facts_are_a_few() {
        let prompt: String = (0..50).map(|n| format!("I like thing number {n}. ")).collect();
        assert_eq!(facts(&prompt).len(), FACTS_MAX);
    }

    proptest! {
        /// Whatever is said: no panic, and what is found stands there.
        #[test]
        fn what_is_found_stands_there(prompt in "(I live in |my name is |I like |, and |\\. |\\PC{0,8}){0,12}") {
            let plain = prompt.replace(['\u{2019}', '\u{2018}'], "'");
            let words = plain.split_whitespace().collect::<Vec<_>>().join(" ");
            for fact in facts(&prompt) {
                prop_assert!(words.contains(fact.object()) || prompt.contains(fact.object()), "{:?}", fact);
            }
        }
    }
}
