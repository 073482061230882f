//! The prompt being typed: any number of lines, with history, search and completion.
//!
//! The text and the cursor within it are reedline's. Its engine is not used: it owns the terminal,
//! spins where that is gone, and cannot draw what streams above the prompt.

use std::collections::VecDeque;

use reedline::LineBuffer;

use super::completions::Completions;
use super::history::History;
use super::keys::Key;
use super::text::{cells, rows, width};
use crate::terminal::{cut, is_obeyed, one_line};

/// Steps that can be undone, and what they may hold of text.
const UNDO_STEPS_MAX: usize = 100;
const UNDO_BYTES_MAX: usize = 4 << 20;
/// Rows of completions below the line.
const CANDIDATE_ROWS_MAX: usize = 4;
/// What stands before the first row; the others are indented as far.
pub(super) const MARK: &str = "> ";

/// What a key did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EditResult {
    /// Something of the editor's own.
    Edited,
    /// This text is complete: a prompt.
    Submitted(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D on an empty line.
    Left,
    /// Ctrl-L.
    Cleared,
}

/// How it stands on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) rows: Vec<String>,
    /// The row and the column.
    pub(super) cursor: (usize, usize),
}

#[derive(Debug, Default)]
pub(super) struct Editor {
    line: LineBuffer,
    history: History,
    completions: Completions,
    /// Where in the history it is, and what was typed before.
    walk: Option<(usize, String)>,
    search: Option<Search>,
    choice: Option<Choice>,
    /// What was cut last.
    cut: String,
    undo: VecDeque<(String, usize)>,
    /// Whether the last key only added to a word.
    within_word: bool,
    /// The text that a text to edit took the place of.
    aside: Option<String>,
}

/// A search backwards in the history.
#[derive(Debug, Default)]
struct Search {
    words: String,
    found: Option<usize>,
    before: String,
}

/// A choice among completions.
#[derive(Debug)]
struct Choice {
    start: usize,
    words: Vec<String>,
    chosen: Option<usize>,
}

impl Editor {
    pub(super) fn new(history: History, completions: Completions) -> Self {
        Self { history, completions, ..Self::default() }
    }

    pub(super) fn text(&self) -> &str {
        self.line.get_buffer()
    }

    /// Whether a text is being edited that somebody else put there.
    pub(super) fn is_editing(&self) -> bool {
        self.aside.is_some()
    }

    /// Drops what is typed; a text that was put aside is back. False where there was nothing.
    pub(super) fn drop_text(&mut self) -> bool {
        let dropped = !self.text().is_empty() || self.aside.is_some();
        self.reset();
        dropped
    }

    /// Takes a prompt that was submitted into the history; says what is wrong with its file.
    pub(super) fn remember(&mut self, prompt: &str) -> Option<String> {
        self.history.add(prompt)
    }

    /// Clears the line after it was submitted.
    pub(super) fn reset(&mut self) {
        let text = self.aside.take().unwrap_or_default();
        *self = Self {
            history: std::mem::take(&mut self.history),
            completions: self.completions.clone(),
            cut: std::mem::take(&mut self.cut),
            ..Self::default()
        };
        self.line.set_buffer(text);
    }

    /// Puts a text there to be edited. What is there comes back afterwards.
    pub(super) fn edit(&mut self, text: &str) {
        let before = self.text().to_owned();
        self.reset();
        self.aside = Some(before);
        self.line.set_buffer(text.to_owned());
    }

    pub(super) fn key(&mut self, key: Key) -> EditResult {
        if self.search.is_some() && self.search_key(&key) {
            return EditResult::Edited;
        }
        let choice = self.choice.take();
        match (&key, choice) {
            (Key::Tab | Key::BackTab, choice) => {
                self.complete(choice, key == Key::Tab);
                return EditResult::Edited;
            }
            (Key::Esc, _) => return EditResult::Edited,
            _ => {}
        }
        let walk = self.walk.take();
        let within_word = std::mem::take(&mut self.within_word);
        match key {
            Key::Enter if self.text().trim().is_empty() && self.aside.is_none() => self.reset(),
            Key::Enter => return EditResult::Submitted(self.text().to_owned()),
            Key::Ctrl('c') => return EditResult::Interrupted,
            Key::Ctrl('d') if self.text().is_empty() && self.aside.is_none() => return EditResult::Left,
            Key::Ctrl('l') => return EditResult::Cleared,
            Key::Ctrl('r') => {
                let before = self.text().to_owned();
                self.search = Some(Search { before, ..Search::default() });
            }
            Key::Up if self.line.is_cursor_at_first_line() => self.older(walk),
            Key::Down if self.line.is_cursor_at_last_line() => self.newer(walk),
            Key::Ctrl('p') => self.older(walk),
            Key::Ctrl('n') => self.newer(walk),
            Key::Ctrl('z' | '_') => {
                if let Some((text, at)) = self.undo.pop_back() {
                    self.line.set_buffer(text);
                    self.line.set_insertion_point(at);
                }
            }
            Key::Char(c) => {
                if !within_word || c == ' ' {
                    self.keep();
                }
                self.within_word = true;
                self.line.insert_char(c);
            }
            key => {
                if !self.moves(&key) {
                    self.keep();
                    self.changes(key);
                }
                // Within a text of the history Up and Down go on from there.
                if self.walk.is_none()
                    && walk.as_ref().is_some_and(|(at, _)| self.history.get(*at) == Some(self.text()))
                {
                    self.walk = walk;
                }
            }
        }
        EditResult::Edited
    }

    fn moves(&mut self, key: &Key) -> bool {
        let line = &mut self.line;
        match key {
            Key::Left | Key::Ctrl('b') => line.move_left(),
            Key::Right | Key::Ctrl('f') => line.move_right(),
            Key::Up => line.move_line_up(),
            Key::Down => line.move_line_down(),
            Key::Home | Key::Ctrl('a') => line.move_to_line_start(),
            Key::End | Key::Ctrl('e') => line.move_to_line_end(),
            Key::WordLeft => line.set_insertion_point(word_left(line)),
            Key::WordRight => line.set_insertion_point(word_right(line)),
            _ => return false,
        }
        true
    }

    fn changes(&mut self, key: Key) {
        let at = self.line.insertion_point();
        match key {
            Key::Newline => self.line.insert_newline(),
            Key::Paste(text) => self.line.insert_str(&text),
            Key::Backspace | Key::Ctrl('h') => self.line.delete_left_grapheme(),
            Key::Delete | Key::Ctrl('d') => self.line.delete_right_grapheme(),
            Key::BackspaceWord => self.cut(word_left(&self.line)..at),
            Key::DeleteWord => self.cut(at..word_right(&self.line)),
            Key::Ctrl('w') => self.cut(space_left(&self.line)..at),
            Key::Ctrl('u') => self.cut(self.line.line_start_index()..at),
            Key::Ctrl('k') => {
                let end = self.line.find_current_line_end();
                let end = if end == at { (at + 1).min(self.text().len()) } else { end };
                self.cut(at..end);
            }
            Key::Ctrl('y') => self.line.insert_str(&self.cut.clone()),
            Key::Ctrl('t') => self.line.swap_graphemes(),
            _ => {
                self.undo.pop_back();
            }
        }
    }

    fn cut(&mut self, range: std::ops::Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.cut = self.text()[range.clone()].to_owned();
        self.line.replace_range(range.clone(), "");
        self.line.set_insertion_point(range.start);
    }

    /// Keeps the present text to come back to.
    fn keep(&mut self) {
        self.undo.push_back((self.text().to_owned(), self.line.insertion_point()));
        let mut bytes: usize = self.undo.iter().map(|(text, _)| text.len()).sum();
        while self.undo.len() > UNDO_STEPS_MAX || bytes > UNDO_BYTES_MAX && self.undo.len() > 1 {
            bytes -= self.undo.pop_front().map_or(0, |(text, _)| text.len());
        }
    }

    fn older(&mut self, walk: Option<(usize, String)>) {
        let (at, typed) = walk.unwrap_or_else(|| (self.history.len(), self.text().to_owned()));
        let at = at.checked_sub(1).filter(|at| self.history.get(*at).is_some());
        match at.and_then(|at| Some((at, self.history.get(at)?.to_owned()))) {
            Some((at, entry)) => {
                self.line.set_buffer(entry);
                self.walk = Some((at, typed));
            }
            None if self.history.len() > 0 => self.walk = Some((0, typed)),
            None => {}
        }
    }

    fn newer(&mut self, walk: Option<(usize, String)>) {
        let Some((at, typed)) = walk else { return };
        match self.history.get(at + 1).map(str::to_owned) {
            Some(entry) => {
                self.line.set_buffer(entry);
                self.walk = Some((at + 1, typed));
            }
            None => self.line.set_buffer(typed),
        }
    }

    /// True where the search took the key.
    fn search_key(&mut self, key: &Key) -> bool {
        let Some(mut search) = self.search.take() else { return false };
        let newest = self.history.len();
        match key {
            Key::Ctrl('c' | 'g') | Key::Esc => {
                self.line.set_buffer(search.before);
                return true;
            }
            Key::Ctrl('r') | Key::Up => {
                let older = self.history.find(&search.words, search.found.unwrap_or(newest));
                search.found = older.or(search.found);
            }
            Key::Backspace => {
                search.words.pop();
                search.found = self.history.find(&search.words, newest);
            }
            Key::Char(c) => {
                search.words.push(*c);
                let from = search.found.map_or(newest, |at| at + 1);
                search.found = self.history.find(&search.words, from);
            }
            // Anything else takes what was found; Enter does no more than that.
            key => return *key == Key::Enter,
        }
        if let Some(entry) = search.found.and_then(|at| self.history.get(at)) {
            self.line.set_buffer(entry.to_owned());
        }
        self.search = Some(search);
        true
    }

    fn complete(&mut self, choice: Option<Choice>, forwards: bool) {
        if let Some(mut choice) = choice {
            let count = choice.words.len();
            let next = match (choice.chosen, forwards) {
                (None, true) => 0,
                (None, false) => count - 1,
                (Some(at), true) => (at + 1) % count,
                (Some(at), false) => (at + count - 1) % count,
            };
            choice.chosen = Some(next);
            let at = self.line.insertion_point();
            self.line.replace_range(choice.start..at, &choice.words[next]);
            self.line.set_insertion_point(choice.start + choice.words[next].len());
            self.choice = Some(choice);
            return;
        }
        let at = self.line.insertion_point();
        let (start, words) = self.completions.of(&self.text()[..at]);
        let Some(first) = words.first() else { return };
        let common = words.iter().fold(first.as_str(), |common, word| {
            let same = common.bytes().zip(word.bytes()).take_while(|(a, b)| a == b).count();
            &common[..common.floor_char_boundary(same)]
        });
        self.keep();
        let whole = words.len() == 1;
        // Where a candidate only has the word within it, there may be nothing in common.
        if whole || common.starts_with(&self.text()[start..at]) {
            let space = if whole && !common.ends_with('/') { " " } else { "" };
            let instead = format!("{common}{space}");
            self.line.replace_range(start..at, &instead);
            self.line.set_insertion_point(start + instead.len());
        }
        if !whole {
            self.choice = Some(Choice { start, words, chosen: None });
        }
    }

    /// How it stands on a screen so wide, in at most so many rows.
    pub(super) fn view(&self, columns: usize, rows_max: usize, colored: bool) -> View {
        if let Some(search) = &self.search {
            let failed = if search.found.is_none() && !search.words.is_empty() { "nothing has " } else { "" };
            let mut row = cut(&format!("search {failed}`{}`: ", one_line(&search.words, 60)), columns / 2);
            let found = one_line(self.text(), columns);
            row.push_str(&cut(&found, columns.saturating_sub(width(&row) + 1)));
            let at = width(&row).min(columns.saturating_sub(1));
            return View { rows: vec![row], cursor: (0, at) };
        }
        let indent = width(MARK);
        // A cell is left for the cursor, or for a space that hangs over.
        let space = columns.saturating_sub(indent + 1).max(2);
        let at = self.line.insertion_point();
        let (mut all, mut cursor, mut start) = (Vec::new(), (0, 0), 0);
        for line in self.text().split('\n') {
            for range in rows(line, space) {
                let range = start + range.start..start + range.end;
                if range.start <= at {
                    let before = width(&self.text()[range.start..at.min(range.end)]);
                    cursor = (all.len(), before.min(space));
                }
                all.push(range);
            }
            start += line.len() + 1;
        }
        let candidates = self.candidates(columns, colored);
        let rows_max = rows_max.saturating_sub(candidates.len()).max(1);
        let first = (cursor.0 + 1).saturating_sub(rows_max.max(1)).min(all.len().saturating_sub(rows_max));
        let (bold, end) = if colored { ("\u{1b}[1;32m", "\u{1b}[0m") } else { ("", "") };
        let mut shown: Vec<String> = (first..all.len().min(first + rows_max))
            .map(|row| {
                let text: String =
                    self.text()[all[row].clone()].chars().filter(|c| *c == '\t' || !is_obeyed(*c)).collect();
                let mark = if row == 0 { format!("{bold}{MARK}{end}") } else { " ".repeat(indent) };
                format!("{mark}{}", text.replace('\t', "    "))
            })
            .collect();
        let cursor = (cursor.0 - first, indent + cursor.1);
        shown.extend(candidates);
        View { rows: shown, cursor }
    }

    fn candidates(&self, columns: usize, colored: bool) -> Vec<String> {
        let Some(choice) = &self.choice else { return Vec::new() };
        let (mut shown, mut row, mut used) = (Vec::new(), String::new(), 0);
        for (at, word) in choice.words.iter().enumerate() {
            let word = cut(&one_line(word, columns), columns);
            let wide: usize = word.chars().map(cells).sum();
            if used > 0 && used + 2 + wide > columns {
                shown.push(std::mem::take(&mut row));
                used = 0;
                if shown.len() == CANDIDATE_ROWS_MAX {
                    break;
                }
            }
            if used > 0 {
                row.push_str("  ");
                used += 2;
            }
            used += wide;
            match choice.chosen == Some(at) && colored {
                true => row.push_str(&format!("\u{1b}[7m{word}\u{1b}[0m")),
                false => row.push_str(&word),
            }
        }
        if !row.is_empty() {
            shown.push(row);
        }
        shown
    }
}

fn word_left(line: &LineBuffer) -> usize {
    let before = &line.get_buffer()[..line.insertion_point()];
    let words = before.trim_end_matches(|c: char| !c.is_alphanumeric());
    words.trim_end_matches(char::is_alphanumeric).len()
}

fn space_left(line: &LineBuffer) -> usize {
    let before = &line.get_buffer()[..line.insertion_point()];
    before.trim_end_matches(char::is_whitespace).trim_end_matches(|c: char| !c.is_whitespace()).len()
}

fn word_right(line: &LineBuffer) -> usize {
    let after = &line.get_buffer()[line.insertion_point()..];
    let words = after.trim_start_matches(|c: char| !c.is_alphanumeric());
    line.get_buffer().len() - words.trim_start_matches(char::is_alphanumeric).len()
}

#[cfg(test)]
mod tests {
    use super::super::completions::Arguments;
    use super::*;
    use proptest::prelude::*;

    fn typed(editor: &mut Editor, text: &str) {
        for c in text.chars() {
            editor.key(Key::Char(c));
        }
    }

    /// The text with a bar where the cursor is, after these keys.
    fn after(text: &str, keys: &[Key]) -> String {
        let mut editor = Editor::default();
        typed(&mut editor, text);
        for key in keys {
            editor.key(key.clone());
        }
        let mut text = editor.text().to_owned();
        text.insert(editor.line.insertion_point(), '|');
        text
    }

    #[test]
    fn keys_move_and_cut_as_in_a_shell() {
        use Key::*;
        assert_eq!(after("one two-three", &[WordLeft]), "one two-|three");
        assert_eq!(after("one two", &[Home, WordRight, Char('!')]), "one!| two");
        assert_eq!(after("one two-three ", &[Ctrl('w')]), "one |");
        assert_eq!(after("one two", &[BackspaceWord, Home, Ctrl('y')]), "two|one ");
        assert_eq!(after("one two", &[WordLeft, Ctrl('k')]), "one |");
        assert_eq!(after("one two", &[WordLeft, Ctrl('u')]), "|two");
        assert_eq!(after("a漢é", &[Left, Left, Delete]), "a|é");
        assert_eq!(after("one two", &[Ctrl('w'), Ctrl('z')]), "one two|");
        assert_eq!(after("one two", &[Ctrl('z')]), "one|");
        assert_eq!(after("ab", &[Newline, Char('c'), Up, Home, Char('x')]), "x|ab\nc");
        assert_eq!(after("ab", &[Paste("\nc\nd".into())]), "ab\nc\nd|");
    }

    #[test]
    fn a_prompt_is_submitted_whole_and_an_empty_one_is_none() {
        let mut editor = Editor::default();
        assert_eq!(editor.key(Key::Enter), EditResult::Edited);
        editor.key(Key::Paste("one\ntwo".into()));
        assert_eq!(editor.key(Key::Enter), EditResult::Submitted("one\ntwo".into()));
        editor.reset();
        assert_eq!(editor.key(Key::Ctrl('d')), EditResult::Left);
        assert_eq!(editor.key(Key::Ctrl('c')), EditResult::Interrupted);
    }

    #[test]
    fn what_was_typed_before_comes_back() {
        let mut editor = Editor::default();
        for prompt in ["first", "second\nof two lines", "third"] {
            editor.remember(prompt);
        }
        typed(&mut editor, "new");
        let mut seen = Vec::new();
        for key in [Key::Up, Key::Up, Key::Up, Key::Up, Key::Up, Key::Down, Key::Down, Key::Down] {
            editor.key(key);
            seen.push(editor.text().lines().next().unwrap().to_owned());
        }
        // The second Up within the two lines moves to the first of them.
        assert_eq!(seen, ["third", "second", "second", "first", "first", "second", "third", "new"]);
    }

    #[test]
    fn the_history_is_searched() {
        let mut editor = Editor::default();
        for prompt in ["make tea", "make coffee", "drink"] {
            editor.remember(prompt);
        }
        typed(&mut editor, "kept");
        editor.key(Key::Ctrl('r'));
        typed(&mut editor, "make");
        assert_eq!(editor.text(), "make coffee");
        editor.key(Key::Ctrl('r'));
        assert_eq!(editor.view(60, 5, false).rows, ["search `make`: make tea"]);
        assert_eq!(editor.key(Key::Enter), EditResult::Edited);
        assert_eq!(editor.key(Key::Enter), EditResult::Submitted("make tea".into()));
        editor.reset();
        typed(&mut editor, "kept");
        editor.key(Key::Ctrl('r'));
        typed(&mut editor, "zzz");
        assert_eq!(editor.key(Key::Ctrl('c')), EditResult::Edited);
        assert_eq!(editor.text(), "kept");
    }

    #[test]
    fn tab_completes_and_offers() {
        let completions = Completions::default();
        completions.set("/sessions", Arguments::Words(vec![]));
        completions.set("/switch", Arguments::Words(vec!["a:home".into(), "a:work".into()]));
        let mut editor = Editor::new(History::default(), completions);
        typed(&mut editor, "/s");
        editor.key(Key::Tab);
        assert_eq!(editor.view(60, 5, false).rows, ["> /s", "/sessions  /switch"]);
        typed(&mut editor, "w");
        editor.key(Key::Tab);
        assert_eq!(editor.text(), "/switch ");
        editor.key(Key::Tab);
        assert_eq!(editor.text(), "/switch a:");
        editor.key(Key::Tab);
        editor.key(Key::Tab);
        assert_eq!(editor.text(), "/switch a:work");
        assert_eq!(editor.key(Key::Enter), EditResult::Submitted("/switch a:work".into()));
    }

    #[test]
    fn a_text_to_edit_takes_the_place_of_what_was_typed_and_gives_it_back() {
        let mut editor = Editor::default();
        typed(&mut editor, "half a prompt");
        editor.edit("{}");
        assert_eq!(editor.key(Key::Enter), EditResult::Submitted("{}".into()));
        editor.reset();
        assert_eq!(editor.text(), "half a prompt");
    }

    #[test]
    fn long_lines_wrap_and_the_cursor_stays_in_view() {
        let mut editor = Editor::default();
        typed(&mut editor, "one two three four");
        assert_eq!(editor.view(13, 9, false).rows, ["> one two ", "  three four"]);
        assert_eq!(editor.view(13, 9, false).cursor, (1, 12));
        assert_eq!(editor.view(13, 1, false).rows, ["  three four"]);
        editor.key(Key::Ctrl('a'));
        assert_eq!(editor.view(13, 1, false).rows, ["> one two "]);
    }

    proptest! {
        #[test]
        fn the_cursor_is_always_on_the_screen(
            text in "[a-c 漢\n\t\u{200b}é]{0,80}", columns in 8_usize..40, rows in 1_usize..6, left in 0_usize..80
        ) {
            let mut editor = Editor::default();
            editor.key(Key::Paste(text));
            for _ in 0..left {
                editor.key(Key::Left);
            }
            let view = editor.view(columns, rows, false);
            prop_assert!(view.rows.len() <= rows);
            prop_assert!(view.cursor.0 < view.rows.len() && view.cursor.1 < columns, "{view:?}");
            for row in &view.rows {
                prop_assert!(width(row.trim_end()) <= columns, "{row:?}");
                prop_assert!(!row.chars().any(is_obeyed), "{row:?}");
            }
        }
    }
}
