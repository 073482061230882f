//! An answer's Markdown in rows of a terminal, line by line as it streams.
//!
//! Where Markdown would swallow what was said, such as the star of `2 * 3`, it stays: what a line
//! says is never less than what came.

use termimad::crossterm::style::{Attribute, Color};
use termimad::minimad::Alignment;
use termimad::{CompoundStyle, MadSkin};

use super::text::{bare, fold, plain, rows};

/// Of a line that has not ended, no more than its end is drawn.
pub(super) const PENDING_BYTES_MAX: usize = 4 << 10;
/// A table is drawn when it ended, or has so many rows.
const TABLE_LINES_MAX: usize = 200;
/// What is larger is told as it is: a model could make one that takes minutes to lay out.
const TABLE_BYTES_MAX: usize = 64 << 10;
const TABLE_COLUMNS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Markdown {
    skin: MadSkin,
    colored: bool,
    /// The line that has not ended.
    line: String,
    /// The fence of the code it is in, such as three backticks.
    fence: Option<String>,
    /// The lines of the table it is in.
    table: Vec<String>,
}

impl Markdown {
    pub(super) fn new(colored: bool) -> Self {
        let mut skin = MadSkin::no_style();
        if colored {
            skin.bold = CompoundStyle::with_attr(Attribute::Bold);
            skin.italic = CompoundStyle::with_attr(Attribute::Italic);
            skin.strikeout = CompoundStyle::with_attr(Attribute::CrossedOut);
            skin.inline_code = CompoundStyle::with_fg(Color::DarkCyan);
            for header in &mut skin.headers {
                header.compound_style = CompoundStyle::with_attr(Attribute::Bold);
            }
        }
        for header in &mut skin.headers {
            header.align = Alignment::Left;
        }
        Self { skin, colored, line: String::new(), fence: None, table: Vec::new() }
    }

    /// Takes a piece; gives the rows that are complete.
    pub(super) fn push(&mut self, piece: &str, columns: usize) -> Vec<String> {
        let mut done = Vec::new();
        let piece = piece.replace("\r\n", "\n");
        for part in piece.split_inclusive('\n') {
            self.line.push_str(part);
            if self.line.ends_with('\n') {
                let line = std::mem::take(&mut self.line);
                self.end_line(line.trim_end_matches('\n'), columns, &mut done);
            }
        }
        done
    }

    /// All that has come is all there is.
    pub(super) fn end(&mut self, columns: usize) -> Vec<String> {
        let mut done = Vec::new();
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, columns, &mut done);
        }
        self.end_table(columns, &mut done);
        self.fence = None;
        done
    }

    /// What has come and is not complete, as it looks so far.
    pub(super) fn pending(&self, columns: usize) -> Vec<String> {
        let mut rows = Vec::new();
        if !self.table.is_empty() {
            rows = self.drawn(&self.table.join("\n"), columns);
        }
        if self.line.is_empty() {
            return rows;
        }
        if self.line.len() > PENDING_BYTES_MAX {
            let from = self.line.ceil_char_boundary(self.line.len() - PENDING_BYTES_MAX);
            rows.extend(folded(&plain(&self.line[from..]), columns));
        } else if self.fence.is_some() || self.line.starts_with('|') {
            rows.extend(fold(&plain(&self.line), columns));
        } else {
            rows.extend(self.drawn(&plain(&self.line), columns));
        }
        rows
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.table.is_empty()
    }

    fn end_line(&mut self, line: &str, columns: usize, done: &mut Vec<String>) {
        let line = plain(line);
        let trimmed = line.trim();
        if let Some(fence) = &self.fence {
            if trimmed.starts_with(fence.as_str()) && trimmed.trim_start_matches(['`', '~']).is_empty() {
                self.fence = None;
            }
            done.extend(self.code(&line, columns));
            return;
        }
        let is_small =
            || trimmed.len() <= TABLE_BYTES_MAX && trimmed.matches('|').count() <= TABLE_COLUMNS_MAX + 1;
        if trimmed.starts_with('|') && is_small() {
            if self.table.iter().map(String::len).sum::<usize>() + trimmed.len() > TABLE_BYTES_MAX {
                self.end_table(columns, done);
            }
            self.table.push(trimmed.to_owned());
            if self.table.len() >= TABLE_LINES_MAX {
                self.end_table(columns, done);
            }
            return;
        }
        self.end_table(columns, done);
        if trimmed.starts_with('|') {
            return done.extend(folded(&line, columns));
        }
        let marks = trimmed.chars().take_while(|c| *c == '`' || *c == '~').count();
        if (trimmed.starts_with("```") || trimmed.starts_with("~~~")) && !trimmed[marks..].contains('`') {
            self.fence = Some(trimmed[..marks].to_owned());
            done.extend(self.code(&line, columns));
            return;
        }
        if trimmed.is_empty() {
            done.push(String::new());
        } else {
            done.extend(self.drawn(&line, columns));
        }
    }

    fn end_table(&mut self, columns: usize, done: &mut Vec<String>) {
        if !self.table.is_empty() {
            let table = std::mem::take(&mut self.table).join("\n");
            done.extend(self.drawn(&table, columns));
        }
    }

    /// Code as it is; a row that is too long breaks where it must.
    fn code(&self, line: &str, columns: usize) -> Vec<String> {
        if !self.colored || line.trim().is_empty() {
            return fold(line.trim_end(), columns);
        }
        let color = if line.trim().starts_with(['`', '~']) { 2 } else { 36 };
        fold(&format!("\u{1b}[{color}m{}\u{1b}[0m", line.trim_end()), columns)
    }

    /// Lines as Markdown, or as they are where that would lose something.
    fn drawn(&self, lines: &str, columns: usize) -> Vec<String> {
        let prepared: Vec<String> = lines.split('\n').map(prepared).collect();
        let drawn = self.skin.text(&prepared.join("\n"), Some(columns.max(3))).to_string();
        if said(&bare(&drawn)) != said(lines) {
            return lines.split('\n').flat_map(|line| folded(line, columns)).collect();
        }
        drawn.lines().flat_map(|row| fold(row.trim_end(), columns)).collect()
    }
}

/// A line broken at its spaces.
fn folded(line: &str, columns: usize) -> Vec<String> {
    rows(line, columns).into_iter().map(|range| line[range].trim_end().to_owned()).collect()
}

/// What a text says: its letters and digits.
fn said(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// A line with its marks escaped where they mark nothing, and its lists indented as termimad has it.
fn prepared(line: &str) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let (spaces, text) = line.split_at(indent);
    let is_item = text.starts_with("- ") || text.starts_with("* ") || text.starts_with("+ ") || {
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < text.len() && (rest.starts_with(". ") || rest.starts_with(") "))
    };
    let mut out = if is_item { " ".repeat((indent / 2).min(3)) } else { spaces.to_owned() };
    // The star of a list item marks the item.
    let (bullet, text) = if text.starts_with("* ") { text.split_at(2) } else { ("", text) };
    out.push_str(bullet);
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let run = text[at..].chars().take_while(|other| *other == c).count() * c.len_utf8();
        let marks = &text[at..at + run];
        let rest = &text[at + run..];
        match c {
            '`' if run == 1 && rest.contains('`') => {
                let end = rest.find('`').unwrap_or(0) + 1;
                out.push('`');
                out.push_str(&rest[..end]);
                at += run + end;
                continue;
            }
            '*' | '~' if is_mark(marks, &text[..at], rest) => out.push_str(marks),
            '*' | '~' | '`' => marks.chars().for_each(|mark| out.extend(['\\', mark])),
            '\\' => marks.chars().for_each(|mark| out.extend([mark, mark])),
            _ => out.push_str(marks),
        }
        at += run;
    }
    out
}

/// Whether these stars or tildes begin or end something.
fn is_mark(marks: &str, before: &str, after: &str) -> bool {
    let fits = match marks.as_bytes() {
        [b'*'] | [b'*', b'*'] | [b'~', b'~'] => true,
        _ => return false,
    };
    let alone = |text: &str, at: usize| {
        let mark = marks.as_bytes()[0];
        !text.as_bytes()[..at].ends_with(&[mark]) && !text.as_bytes()[at + marks.len()..].starts_with(&[mark])
    };
    let closes = |text: &str, at: usize| text[..at].ends_with(|c: char| !c.is_whitespace());
    let opens = |text: &str, at: usize| text[at + marks.len()..].starts_with(|c: char| !c.is_whitespace());
    let ends = after.match_indices(marks).filter(|(at, _)| alone(after, *at) && closes(after, *at));
    let begins = before.match_indices(marks).filter(|(at, _)| alone(before, *at) && opens(before, *at));
    let opening = after.starts_with(|c: char| !c.is_whitespace()) && ends.count() > 0;
    let closing = before.ends_with(|c: char| !c.is_whitespace()) && begins.count() > 0;
    fits && (opening || closing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::is_obeyed;
    use proptest::prelude::*;

    fn drawn(text: &str, columns: usize, colored: bool) -> Vec<String> {
        let mut markdown = Markdown::new(colored);
        let mut rows = markdown.push(text, columns);
        rows.extend(markdown.end(columns));
        rows
    }

    #[test]
    fn headings_lists_and_emphasis_are_drawn() {
        let rows = drawn("# Title\nSome **bold** and `code`.\n\n- one\n  - two\n1. first", 40, true);
        assert_eq!(bare(&rows.join("\n")), "Title\nSome bold and code.\n\n• one\n • two\n1. first");
        assert!(rows[0].contains("\u{1b}[1m") && rows[1].contains("\u{1b}[1m"), "{rows:?}");
        let plain = drawn("# Title\nSome **bold** and `code`.", 40, false).join("\n");
        assert_eq!(plain, "Title\nSome bold and code.");
    }

    #[test]
    fn tables_are_drawn_and_fit() {
        let table = "| name | size |\n|---|---|\n| one | 1 |\n| two | 22222 |\nafter";
        let rows = drawn(table, 40, false);
        assert!(rows.iter().any(|row| row.contains("one") && row.contains('│')), "{rows:#?}");
        assert_eq!(rows.last().map(String::as_str), Some("after"));
        for columns in 20..40 {
            assert!(
                drawn(table, columns, true)
                    .iter()
                    .all(|row| super::super::text::width(&bare(row)) <= columns)
            );
        }
    }

    #[test]
    fn a_table_that_is_too_wide_is_told_as_it_is() {
        let row = |cell: &str| format!("|{}", format!(" {cell} |").repeat(TABLE_COLUMNS_MAX + 1));
        let table = [row("head"), row("---"), row("one")].join("\n");
        assert_eq!(said(&drawn(&table, 80, true).join("")), said(&table));
        assert!(!drawn(&table, 80, true).iter().any(|row| row.contains('│')));
    }

    #[test]
    fn code_is_as_it_is() {
        let code = "```rust\nfn main() { let x = 2 * 3 ** 4; }\n\n    # no heading\n```\nafter";
        assert_eq!(drawn(code, 60, false).join("\n"), code);
    }

    #[test]
    fn nothing_is_lost() {
        for text in [
            "2 * 3 = 6 and 4 * 5 = 20",
            "a ` b",
            "*",
            "**",
            "***",
            "a\\b \\* c",
            "~5 and ~6",
            "4294967299. big",
            "5 ** 2 ** 1",
            "a | b",
            "<html> & [link](http://x.y/z_1_2)",
            "__init__",
        ] {
            assert_eq!(drawn(text, 60, false), [text]);
        }
    }

    #[test]
    fn what_streams_looks_in_the_end_as_what_came_at_once() {
        let text = "# A **b**\ntext `c` more\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```\ncode\n```\nend";
        let mut markdown = Markdown::new(true);
        let mut rows = Vec::new();
        for c in text.chars() {
            rows.extend(markdown.push(&c.to_string(), 30));
            markdown.pending(30);
        }
        rows.extend(markdown.end(30));
        assert_eq!(rows, drawn(text, 30, true));
        assert!(markdown.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn whatever_comes_is_said_and_nothing_of_it_obeyed(
            text in "([a-c 漢*`~|#>\\\\\n1.-]|[\u{1b}\u{9b}\u{202e}\u{200b}\u{feff}]|\\PC){0,60}", columns in 20_usize..50
        ) {
            for colored in [true, false] {
                let rows = drawn(&text, columns, colored);
                let all = rows.join("\n");
                prop_assert_eq!(said(&bare(&all)), said(&plain(&text)));
                prop_assert!(!bare(&all).chars().any(|c| c != '\n' && is_obeyed(c)));
                for row in &rows {
                    prop_assert!(super::super::text::width(&bare(row)) <= columns, "{row:?}");
                }
                // What is obeyed are colours, and each row ends without them.
                for sequence in all.split('\u{1b}').skip(1) {
                    let end = sequence.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
                    prop_assert!(sequence[end..].starts_with('m'), "{sequence:?}");
                    prop_assert!(colored);
                }
            }
        }
    }
}
