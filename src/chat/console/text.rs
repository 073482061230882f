//! Text in rows of a terminal: how wide it stands there, and where it breaks.

use std::ops::Range;

use unicode_width::UnicodeWidthChar;

use crate::terminal::{harmless, is_obeyed};

/// How wide a tab stands.
const TAB: &str = "    ";

/// Makes text plain: nothing in it is obeyed, and tabs are spaces.
pub(super) fn plain(text: &str) -> String {
    harmless(text).replace('\t', TAB)
}

/// How many cells `c` takes. Terminals take characters one by one, so clusters are not wider or
/// narrower than their parts.
pub(super) fn cells(c: char) -> usize {
    match c {
        '\t' => TAB.len(),
        c if is_obeyed(c) => 0,
        c => c.width().unwrap_or(0),
    }
}

/// How many cells a text without colours takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(cells).sum()
}

/// Where one line of text breaks into rows of at most `columns` cells: after spaces where there are
/// any, and a space that does not fit hangs over. Rows follow each other without gaps.
pub(super) fn rows(line: &str, columns: usize) -> Vec<Range<usize>> {
    let columns = columns.max(2);
    let mut rows = Vec::new();
    let (mut start, mut used) = (0, 0);
    // After the last space of this row: where, and how much of the row it takes.
    let mut space: Option<(usize, usize)> = None;
    for (at, c) in line.char_indices() {
        let wide = cells(c);
        if c == ' ' {
            used += 1;
            space = Some((at + 1, used));
            continue;
        }
        if used + wide > columns && at > start {
            let (end, gone) = space.filter(|(end, _)| *end > start).unwrap_or((at, used));
            rows.push(start..end);
            (start, used, space) = (end, used - gone, None);
            // A run of spaces longer than the row leaves a word that begins right here.
            if used + wide > columns && at > start {
                rows.push(start..at);
                (start, used) = (at, 0);
            }
        }
        used += wide;
    }
    rows.push(start..line.len());
    rows
}

/// `text`, which may have colours but nothing else that is obeyed, in rows of at most `columns`
/// cells; each row ends without colours and the next takes them up.
pub(super) fn fold(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(2);
    let (mut rows, mut row, mut used) = (Vec::new(), String::new(), 0);
    let mut colours = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            let mut sequence = String::from(c);
            for c in chars.by_ref() {
                sequence.push(c);
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
            if matches!(sequence.as_str(), "\u{1b}[0m" | "\u{1b}[m") {
                colours.clear();
            } else {
                colours.push_str(&sequence);
            }
            row.push_str(&sequence);
            continue;
        }
        let wide = cells(c);
        if used + wide > columns {
            if !colours.is_empty() {
                row.push_str("\u{1b}[0m");
            }
            rows.push(std::mem::replace(&mut row, colours.clone()));
            used = 0;
        }
        row.push(c);
        used += wide;
    }
    rows.push(row);
    rows
}

/// `text` without its colours.
pub(super) fn bare(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(line: &str, columns: usize) -> Vec<&str> {
        rows(line, columns).into_iter().map(|range| &line[range]).collect()
    }

    #[test]
    fn lines_break_at_spaces_where_there_are_any() {
        assert_eq!(shown("one two three", 8), ["one two ", "three"]);
        assert_eq!(shown("onetwothree", 4), ["onet", "woth", "ree"]);
        assert_eq!(shown("漢字漢字", 5), ["漢字", "漢字"]);
        assert_eq!(shown("a      b", 3), ["a      ", "b"]);
        assert_eq!(shown("", 3), [""]);
    }

    #[test]
    fn colours_go_on_in_the_next_row() {
        assert_eq!(fold("\u{1b}[1mabcd\u{1b}[0mef", 3), ["\u{1b}[1mabc\u{1b}[0m", "\u{1b}[1md\u{1b}[0mef"]);
        assert_eq!(bare("\u{1b}[1mab\u{1b}[0m"), "ab");
    }

    proptest! {
        #[test]
        fn rows_have_all_of_a_line_and_fit(line in "[a-c 漢é]{0,60}", columns in 2_usize..12) {
            let rows = shown(&line, columns);
            prop_assert_eq!(rows.concat(), line.clone());
            for row in rows {
                prop_assert!(width(row.trim_end_matches(' ')) <= columns, "{row:?}");
            }
            for row in fold(&line, columns) {
                prop_assert!(width(&row) <= columns);
            }
        }

        #[test]
        fn plain_text_has_nothing_to_obey(text in any::<String>()) {
            prop_assert!(!plain(&text).chars().any(|c| c != '\n' && is_obeyed(c)));
        }
    }
}
