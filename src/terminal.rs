//! Writing for people: stdout carries results, stderr everything else. What others wrote is made
//! harmless first, because a terminal obeys control characters.

use std::io::{self, Write};

/// Writes a line to stdout. That nobody reads it any more is no failure.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Writes a line to stderr.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// `text` without what a terminal would obey or what would disguise it: control characters but
/// line ends and tabs, and the characters that turn the direction of writing.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .filter(|c| {
            let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            matches!(c, '\n' | '\t') || !(c.is_control() || turns)
        })
        .collect()
}

/// `text` on one line of at most `chars_max` characters.
pub(crate) fn one_line(text: &str, chars_max: usize) -> String {
    let flat = harmless(text).replace(['\n', '\t'], " ");
    let mut short: String = flat.chars().take(chars_max).collect();
    if short.len() < flat.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_sequences_lose_their_power() {
        assert_eq!(harmless("a\u{1b}]0;title\u{7}b\u{9b}2Jc\r\u{202e}d\n\te"), "a]0;titleb2Jcd\n\te");
        assert_eq!(one_line("İİİİ\nİ", 5), "İİİİ …");
    }

    proptest! {
        #[test]
        fn nothing_is_left_to_obey(text in any::<String>(), most in 0_usize..20) {
            prop_assert!(!harmless(&text).chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            prop_assert!(one_line(&text, most).chars().count() <= most + 1);
        }
    }
}
