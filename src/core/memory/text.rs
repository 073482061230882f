//! The terms of a text: what its entry is found by.
//!
//! Case, diacritics and compatibility forms are folded, so that `CAFÉ`, `café` and `ｃａｆｅ` are one. In
//! scripts with spaces a term is a word: letters, digits and what combines with them. In scripts without
//! (Han, kana, Hangul, Thai and their neighbours) it is every two characters that follow each other; a
//! single character is found too. An emoji or other symbol is a term by itself, and so is a run of
//! punctuation with no word in it. Nothing else has a meaning: there is no query syntax.
//!
//! Where what is relevant is looked for, English words that say nothing by themselves ([`SILENT`]) do not
//! count; where all of a text are such, all count.
//!
//! Terms are kept as 64-bit digests. The digest and the way terms are told apart are part of the store's
//! format: who changes them has to index anew what is stored.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed as Classes;
use icu_normalizer::{
    ComposingNormalizerBorrowed as Composing, DecomposingNormalizerBorrowed as Decomposing,
};

/// How many distinct terms of a question count; those beyond are not looked for.
pub const WANTED_MAX: usize = u64::BITS as usize;

/// The bytes of one term in an index.
const TERM_BYTES: usize = 8;

/// The terms of a text that is to be found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// The digests, sorted, each once, with single characters of scripts without spaces.
    pub terms: Vec<u8>,
    /// How many distinct terms the text has, without those.
    pub distinct: u32,
    /// Stands for the text: its terms in their order.
    pub whole: u64,
}

impl Index {
    /// The index of a text.
    pub fn of(text: &str) -> Self {
        let Terms { terms, singles } = Terms::of(text);
        let whole = whole(&terms);
        let mut distinct: BTreeSet<u64> = terms.into_iter().collect();
        let count = u32::try_from(distinct.len()).unwrap_or(u32::MAX);
        distinct.extend(singles);
        let terms = distinct.into_iter().flat_map(u64::to_be_bytes).collect();
        Self { terms, distinct: count, whole }
    }

    /// The same, found by the terms of these words as well.
    #[must_use]
    pub fn with(self, words: &str) -> Self {
        let (own, _) = self.terms.as_chunks::<TERM_BYTES>();
        let mut distinct: BTreeSet<[u8; TERM_BYTES]> = own.iter().copied().collect();
        distinct.extend(Terms::of(words).terms.into_iter().map(u64::to_be_bytes));
        Self { terms: distinct.into_iter().flatten().collect(), ..self }
    }
}

/// The terms of a text that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The digests, sorted, each once.
    pub terms: Vec<u64>,
    /// Stands for the text, as [`Index::whole`].
    pub whole: u64,
}

impl Wanted {
    /// Those of a text; none where it has none.
    pub fn of(text: &str) -> Option<Self> {
        Self::of_terms(Terms::of(text).terms)
    }

    /// Those of a text that say something, or all where none does; none where it has none.
    pub fn of_content(text: &str) -> Option<Self> {
        Self::of_terms(content_terms(text)).or_else(|| Self::of(text))
    }

    fn of_terms(terms: Vec<u64>) -> Option<Self> {
        let whole = whole(&terms);
        let mut distinct = BTreeSet::new();
        for term in terms {
            if distinct.len() == WANTED_MAX {
                break;
            }
            distinct.insert(term);
        }
        (!distinct.is_empty()).then(|| Self { terms: distinct.into_iter().collect(), whole })
    }

    /// Which of them an index has: of the first the lowest bit, and so on.
    pub fn found_in(&self, index: &[u8]) -> u64 {
        let (index, _) = index.as_chunks::<TERM_BYTES>();
        // Big-endian digests are ordered as their bytes are.
        let has = |term: &u64| index.binary_search(&term.to_be_bytes()).is_ok();
        (0..).zip(&self.terms).filter(|(_, term)| has(term)).fold(0, |found, (bit, _)| found | 1 << bit)
    }

    /// How many of them an index has.
    pub fn count_in(&self, index: &[u8]) -> usize {
        self.found_in(index).count_ones() as usize
    }
}

/// The terms of a text, in their order, as digests.
#[derive(Debug, Default)]
struct Terms {
    terms: Vec<u64>,
    /// Characters of scripts without spaces that are no terms themselves.
    singles: Vec<u64>,
}

/// What stands between terms, or is part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Of a script with spaces.
    Word,
    /// Of one without.
    Spaceless,
    /// A term by itself.
    Symbol,
    /// Nothing that is looked for, unless there is nothing else.
    Mark,
    /// What separates terms.
    Space,
}

/// What a run of characters is to who looks for terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// A term.
    Term,
    /// A character of a script without spaces that is no term itself.
    Single,
}

impl Terms {
    fn of(text: &str) -> Self {
        let mut found = Self::default();
        each_run(text, |run, chars| match run {
            Run::Term => found.terms.push(digest(chars)),
            Run::Single => found.singles.push(digest(chars)),
        });
        found
    }
}

/// Goes through the terms of a text, in their order, and the single characters between.
fn each_run(text: &str, mut to: impl FnMut(Run, &[char])) {
    let folded: Vec<char> = fold(text).chars().collect();
    for chunk in folded.split(|c| class(*c) == Class::Space) {
        if !chunk.is_empty() && chunk.iter().all(|c| class(*c) == Class::Mark) {
            to(Run::Term, chunk);
            continue;
        }
        for run in chunk.chunk_by(|a, b| class(*a) == class(*b)) {
            match class(run[0]) {
                Class::Word => to(Run::Term, run),
                Class::Symbol => run.chunks(1).for_each(|one| to(Run::Term, one)),
                Class::Spaceless if run.len() == 1 => to(Run::Term, run),
                Class::Spaceless => {
                    run.windows(2).for_each(|pair| to(Run::Term, pair));
                    run.chunks(1).for_each(|one| to(Run::Single, one));
                }
                Class::Mark | Class::Space => {}
            }
        }
    }
}

/// Words that say nothing by themselves. `user` is one: everything that is remembered is the user's.
const SILENT: &str = "a about all also am an and any are as at be been but by can could did do does doing for from had \
    has have he her him his how i if in into is it its just like me my not of on or our please s she should so some \
    tell than that the their them then there these they this those to too us user very was we were what when where \
    which who whom whose why will with would you your";

static SILENT_TERMS: LazyLock<BTreeSet<u64>> = LazyLock::new(|| {
    SILENT.split_whitespace().map(|word| digest(&word.chars().collect::<Vec<_>>())).collect()
});

/// The terms of a text that say something, in their order.
pub(super) fn content_terms(text: &str) -> Vec<u64> {
    let mut terms = Terms::of(text).terms;
    terms.retain(|term| !SILENT_TERMS.contains(term));
    terms
}

/// Goes through the words of a text that say something; through all of them where none does.
pub(super) fn each_content_word(text: &str, mut to: impl FnMut(&[char])) {
    let mut is_silent = true;
    each_run(text, |run, chars| {
        if run == Run::Term && !SILENT_TERMS.contains(&digest(chars)) {
            is_silent = false;
            to(chars);
        }
    });
    if is_silent {
        each_run(text, |run, chars| {
            if run == Run::Term {
                to(chars);
            }
        });
    }
}

/// Stands for these texts in their order, each by its terms.
pub(super) fn digest_of_parts(parts: &[&str]) -> u64 {
    digest_of_terms(&parts.iter().map(|part| whole(&Terms::of(part).terms)).collect::<Vec<_>>())
}

/// Stands for these terms in their order.
pub(super) fn digest_of_terms(terms: &[u64]) -> u64 {
    whole(terms)
}

/// Without differences of case, diacritics and compatibility forms.
fn fold(text: &str) -> String {
    let classes = Classes::new();
    let bare: String = Decomposing::new_nfkd()
        .normalize(text)
        .chars()
        .filter(|c| !is_diacritic(classes.get_u8(*c)))
        // What has no lower case of its own, such as a sharp s, has it by its upper case.
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .filter(|c| !is_diacritic(classes.get_u8(*c)))
        .collect();
    Composing::new_nfc().normalize(&bare).into_owned()
}

/// Accents and the points of Hebrew and Arabic, by their combining class; signs that make another
/// letter, as in kana and the scripts of India, have classes of their own.
fn is_diacritic(class: u8) -> bool {
    matches!(class, 10..=35 | 200..=240)
}

fn class(c: char) -> Class {
    match c {
        // Joiners and variants are not seen.
        '\u{200b}'..='\u{200f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' => Class::Mark,
        c if is_spaceless(c) => Class::Spaceless,
        c if c.is_alphanumeric() || Classes::new().get_u8(c) != 0 => Class::Word,
        '\u{2100}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}' | '\u{20a0}'..='\u{20cf}' => Class::Symbol,
        c if c.is_whitespace() || c.is_control() => Class::Space,
        _ => Class::Mark,
    }
}

/// Whether words of its script follow each other without spaces, or, as in Korean, with others grown
/// onto them.
fn is_spaceless(c: char) -> bool {
    matches!(c,
        '\u{0e01}'..='\u{0e3a}' | '\u{0e40}'..='\u{0e4e}'      // Thai
        | '\u{0e81}'..='\u{0ece}' | '\u{0edc}'..='\u{0edf}'    // Lao
        | '\u{1000}'..='\u{103f}' | '\u{1050}'..='\u{108f}'    // Burmese
        | '\u{1780}'..='\u{17d3}'                              // Khmer
        | '\u{3005}'..='\u{3007}' | '\u{3041}'..='\u{30fa}' | '\u{30fc}'..='\u{30ff}' // kana
        | '\u{3105}'..='\u{312f}' | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' // Han
        | '\u{20000}'..='\u{3ffff}'
        | '\u{1100}'..='\u{11ff}' | '\u{3131}'..='\u{318e}' | '\u{ac00}'..='\u{d7a3}' // Hangul
    )
}

/// FNV-1a of its UTF-8: two terms of one owner with the same digest would be taken for one, which is
/// less likely than a broken disk.
pub(super) fn digest(term: &[char]) -> u64 {
    let mut buffer = [0; 4];
    let mut hash = Fnv::default();
    for c in term {
        hash.write(c.encode_utf8(&mut buffer).as_bytes());
    }
    hash.0
}

fn whole(terms: &[u64]) -> u64 {
    let mut hash = Fnv::default();
    terms.iter().for_each(|term| hash.write(&term.to_be_bytes()));
    hash.0
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether all of what is wanted is in the text.
    fn finds(wanted: &str, text: &str) -> bool {
        let wanted = Wanted::of(wanted).unwrap_or_else(|| panic!("{wanted:?} has no terms"));
        wanted.count_in(&Index::of(text).terms) == wanted.terms.len()
    }

    #[test]
    fn case_diacritics_and_forms_are_one() {
        for (a, b) in [
            ("CAFÉ", "cafe\u{301}"),
            ("ｃａｆｅ", "café"),
            ("İstanbul", "istanbul"),
            ("STRASSE", "straße"),
            ("ΟΔΟΣ", "οδός"),
            ("Ёлка", "елка"),
            ("ﬁn", "FIN"),
            ("שָׁלוֹם", "שלום"),
            ("ｶﾞ", "ガ"),
            ("x²", "X2"),
        ] {
            assert!(finds(a, b) && finds(b, a), "{a} {b}");
        }
        assert!(!finds("か", "が"), "kana with and without a sign are different");
        assert!(!finds("हिन्दू", "हिनदू"));
    }

    #[test]
    fn words_are_found_where_there_are_no_spaces() {
        let text = "我喜欢喝咖啡。東京タワーへ行く iPhone手机 커피를 마신다 ฉันชอบกาแฟ";
        for wanted in
            ["咖啡", "喝咖啡", "啡", "東京", "タワー", "iphone", "手机", "커피", "กาแฟ", "喜欢 東京"]
        {
            assert!(finds(wanted, text), "{wanted}");
        }
        for wanted in ["啡咖", "茶", "京東", "phone"] {
            assert!(!finds(wanted, text), "{wanted}");
        }
    }

    #[test]
    fn symbols_count_and_punctuation_only_alone() {
        assert!(finds("🙂", "well done🙂!") && finds("好き", "好き🙂") && finds("€", "5€"));
        assert!(finds("***", "a *** b") && !finds("***", "a**b"));
        assert!(finds("\"tea\"", "(tea)") && finds("tea*", "tea"));
        assert_eq!(
            (Wanted::of(" \n\u{0}"), Index::of("")),
            (None, Index { whole: whole(&[]), ..Index::default() })
        );
    }

    #[test]
    fn digests_are_part_of_the_format() {
        assert_eq!(Index::of("Tea").terms, 0x56e4_c919_4453_6249_u64.to_be_bytes());
        assert_eq!(Index::of("茶茶").distinct, 1);
        assert_eq!(Index::of("茶茶").terms.len(), 16, "the pair and the single one");
    }

    #[test]
    fn a_long_question_is_cut() {
        let text: String = (0..1000).map(|n| format!("w{n} ")).collect();
        let wanted = Wanted::of(&text).unwrap();
        assert_eq!(wanted.terms.len(), WANTED_MAX);
        assert_eq!(wanted.count_in(&Index::of(&text).terms), WANTED_MAX);
    }

    proptest! {
        #[test]
        fn every_text_finds_itself(text in "\\PC{0,60}") {
            match Wanted::of(&text) {
                Some(wanted) => {
                    let index = Index::of(&text);
                    prop_assert_eq!(wanted.count_in(&index.terms), wanted.terms.len());
                    prop_assert_eq!(wanted.whole, index.whole);
                }
                None => prop_assert!(Index::of(&text).terms.is_empty()),
            }
        }

        #[test]
        fn a_word_is_found_among_others(before in "[a-zà-öø-ÿа-я0-9]{0,9}", word in "[a-zà-öø-ÿа-я0-9]{1,9}", after in "[ \\.,;!\\?\\)\"']\\PC{0,9}") {
            let text = format!("{before} {word}{after}");
            prop_assert!(finds(&word.to_uppercase(), &text), "{} {}", word, text);
        }

        #[test]
        fn a_piece_is_found_where_there_are_no_spaces(text in "[一-三あ-う가-각]{1,12}", from in 0usize..12, len in 1usize..12) {
            let piece: String = text.chars().skip(from % text.chars().count()).take(len).collect();
            prop_assert!(finds(&piece, &text), "{} {}", piece, text);
        }
    }
}
