//! What the conversation looks like: what is finished, in rows that scroll away, and what is not.

use std::collections::VecDeque;

use serde_json::Value;

use super::editor::{Editor, MARK, View};
use super::markdown::{Markdown, PENDING_BYTES_MAX};
use super::painter::Frame;
use super::text::{fold, plain, rows, width};
use super::tty::Size;
use crate::terminal::{Tone, cut, one_line};

/// How much of a tool's input or result is looked at for its one row.
const TOOL_CHARS_MAX: usize = 1000;
/// How many rows of a prompt are shown when it was sent; the rest is counted.
const PROMPT_ROWS_MAX: usize = 12;
/// How many prompts that wait are shown.
const WAITING_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct Screen {
    colored: bool,
    columns: usize,
    finished: Vec<String>,
    markdown: Markdown,
    /// The thought that streams, as far as its last line goes.
    thought: String,
    status: Option<String>,
    question: Option<String>,
    /// Prompts sent while an answer streams.
    waiting: VecDeque<String>,
    /// Whether an answer is under way.
    answering: bool,
    /// Whether the last finished row is empty, so that paragraphs are one row apart and not two.
    gap: bool,
}

impl Screen {
    pub(super) fn new(colored: bool, size: Size) -> Self {
        Self {
            colored,
            columns: size.columns,
            finished: Vec::new(),
            markdown: Markdown::new(colored),
            thought: String::new(),
            status: None,
            question: None,
            waiting: VecDeque::new(),
            answering: false,
            gap: true,
        }
    }

    pub(super) fn resize(&mut self, size: Size) {
        self.columns = size.columns;
    }

    /// Whether a run is under way, so that Ctrl-C is for it and not for what is typed.
    pub(super) fn is_busy(&self) -> bool {
        self.answering || self.status.is_some()
    }

    pub(super) fn is_asking(&self) -> bool {
        self.question.is_some()
    }

    pub(super) fn banner(&mut self, text: &str) {
        self.close_texts();
        self.lines(text, Tone::Head);
    }

    /// A prompt that was typed here: shown at once, or when the answer under way is complete.
    /// Commands are shown at once, above the line that streams.
    pub(super) fn typed(&mut self, text: &str) {
        let is_command = text.starts_with('/') && !text.starts_with("//");
        if !self.is_busy() {
            self.close_texts();
            self.prompt(text, MARK);
        } else if is_command {
            self.prompt(text, MARK);
        } else {
            self.waiting.push_back(text.to_owned());
        }
    }

    pub(super) fn prompted(&mut self, text: &str, by: Option<&str>) {
        self.close_texts();
        let mark = by.map_or_else(|| MARK.to_owned(), |by| format!("{}> ", one_line(by, 40)));
        self.prompt(text, &mark);
    }

    pub(super) fn answer(&mut self, piece: &str) {
        self.close_thought();
        self.answering = true;
        let rows = self.markdown.push(piece, self.columns);
        self.finish(rows);
    }

    pub(super) fn thought(&mut self, piece: &str) {
        self.close_answer();
        self.answering = true;
        self.thought.push_str(piece);
        if let Some((whole, rest)) = self.thought.rsplit_once('\n') {
            let (whole, rest) = (whole.to_owned(), rest.to_owned());
            self.thought = rest;
            self.lines(&whole, Tone::Dim);
        }
    }

    pub(super) fn void_step(&mut self) {
        self.close_texts();
        self.lines("… (interrupted; this part starts again)", Tone::Dim);
    }

    pub(super) fn tool_call(&mut self, name: &str, input: &Value) {
        self.close_texts();
        self.answering = true;
        let input = one_line(&input.to_string(), TOOL_CHARS_MAX);
        self.row(&format!("→ {} {input}", one_line(name, 64)), Tone::Dim);
    }

    pub(super) fn tool_result(&mut self, content: &str, is_error: bool) {
        self.close_texts();
        let (mark, tone) = if is_error { ("✗", Tone::Bad) } else { ("←", Tone::Dim) };
        self.row(&format!("{mark} {}", one_line(content.trim(), TOOL_CHARS_MAX)), tone);
    }

    pub(super) fn end_answer(&mut self, summary: Option<&str>) {
        self.close_texts();
        self.answering = false;
        self.status = None;
        if let Some(summary) = summary {
            self.lines(&format!("· {summary}"), Tone::Dim);
        }
    }

    /// The prompt that waits longest is under way.
    pub(super) fn own_turn(&mut self) {
        if let Some(prompt) = self.waiting.pop_front() {
            self.close_texts();
            self.prompt(&prompt, MARK);
        }
    }

    /// Within an answer it stands above the line that streams, which stays in one piece.
    pub(super) fn note(&mut self, text: &str) {
        if !self.answering {
            self.close_texts();
        }
        self.lines(text, Tone::Dim);
    }

    pub(super) fn error(&mut self, text: &str) {
        self.close_texts();
        self.lines(&format!("error: {text}"), Tone::Bad);
    }

    pub(super) fn status(&mut self, text: Option<String>) {
        self.status = text;
    }

    pub(super) fn ask(&mut self, question: Option<&str>) {
        if question.is_some() {
            self.close_texts();
        }
        self.question = question.map(str::to_owned);
    }

    /// The rows that are finished since the last time.
    pub(super) fn take_finished(&mut self) -> Vec<String> {
        std::mem::take(&mut self.finished)
    }

    /// What is not finished, with the prompt being typed below it.
    pub(super) fn frame(&self, editor: &Editor, size: Size) -> Frame {
        // A row is left of what scrolled away.
        let rows_max = size.rows.saturating_sub(1).max(1);
        let View { rows: typed, mut cursor } = editor.view(size.columns, (rows_max / 2).max(1), self.colored);
        let mut low = Vec::new();
        for prompt in self.waiting.iter().take(WAITING_MAX) {
            let text = format!("> {} (waits)", one_line(prompt, size.columns.saturating_sub(11)));
            low.push(Tone::Dim.paint(&cut(&text, size.columns), self.colored));
        }
        if self.waiting.len() > WAITING_MAX {
            let more = format!("and {} more", self.waiting.len() - WAITING_MAX);
            low.push(Tone::Dim.paint(&cut(&more, size.columns), self.colored));
        }
        if let Some(question) = &self.question {
            low.extend(self.styled(question, Tone::Warn, size.columns));
            let end = low.last().map(|row| width(&super::text::bare(row))).unwrap_or_default();
            cursor = if editor.text().is_empty() {
                // It waits where the key is asked for, if there is room.
                (low.len() - 1, if end + 1 < size.columns { end + 1 } else { 0 })
            } else {
                (cursor.0 + low.len(), cursor.1)
            };
        } else {
            if let Some(status) = &self.status {
                low.push(Tone::Dim.paint(&cut(&one_line(status, 400), size.columns), self.colored));
            }
            cursor.0 += low.len();
        }
        low.extend(typed);
        // Where there is no room, what streams gives way, then what waits.
        let mut rows = if self.thought.is_empty() {
            self.markdown.pending(size.columns)
        } else {
            let from = self.thought.len().saturating_sub(PENDING_BYTES_MAX);
            let end = &self.thought[self.thought.ceil_char_boundary(from)..];
            self.styled(end, Tone::Dim, size.columns)
        };
        rows.extend(low.iter().cloned());
        cursor.0 += rows.len() - low.len();
        let over = rows.len().saturating_sub(rows_max);
        let over = over.min(cursor.0);
        rows.drain(..over);
        rows.truncate(rows_max);
        cursor.0 -= over;
        Frame { rows, cursor }
    }

    fn prompt(&mut self, text: &str, mark: &str) {
        if !self.gap {
            self.finish(vec![String::new()]);
        }
        let (text, bytes) = (plain(text), text.len());
        let indent = width(mark);
        let columns = self.columns.saturating_sub(indent + 1).max(2);
        let mut all: Vec<&str> = Vec::new();
        for line in text.split('\n') {
            all.extend(rows(line, columns).into_iter().map(|range| line[range].trim_end()));
        }
        let hidden = all.len().saturating_sub(PROMPT_ROWS_MAX);
        let mut shown: Vec<String> = Vec::new();
        for (at, row) in all.iter().take(all.len() - if hidden > 1 { hidden } else { 0 }).enumerate() {
            let lead = if at == 0 { mark.to_owned() } else { " ".repeat(indent) };
            shown.push(Tone::Head.paint(&format!("{lead}{row}"), self.colored));
        }
        if hidden > 1 {
            let more = format!("{}… {hidden} more rows, {bytes} bytes in all", " ".repeat(indent));
            shown.push(Tone::Dim.paint(&cut(&more, self.columns), self.colored));
        }
        self.finish(shown.into_iter().flat_map(|row| fold(&row, self.columns)).collect());
    }

    /// What streams is complete as it is.
    fn close_texts(&mut self) {
        self.close_thought();
        self.close_answer();
    }

    fn close_thought(&mut self) {
        if !self.thought.is_empty() {
            let thought = std::mem::take(&mut self.thought);
            self.lines(&thought, Tone::Dim);
        }
    }

    fn close_answer(&mut self) {
        if !self.markdown.is_empty() {
            let rows = self.markdown.end(self.columns);
            self.finish(rows);
        }
    }

    /// One row, however much there is of it.
    fn row(&mut self, text: &str, tone: Tone) {
        let row = tone.paint(&cut(&plain(text), self.columns), self.colored);
        self.finish(vec![row]);
    }

    fn lines(&mut self, text: &str, tone: Tone) {
        let rows = self.styled(text, tone, self.columns);
        self.finish(rows);
    }

    fn styled(&self, text: &str, tone: Tone, columns: usize) -> Vec<String> {
        let text = plain(text);
        let mut all = Vec::new();
        for line in text.split('\n') {
            let broken = rows(line, columns).into_iter().map(|range| line[range].trim_end());
            all.extend(broken.map(|row| tone.paint(row, self.colored)));
        }
        all
    }

    fn finish(&mut self, rows: Vec<String>) {
        if let Some(last) = rows.last() {
            self.gap = last.is_empty();
        }
        self.finished.extend(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::super::text::bare;
    use super::*;
    use crate::terminal::is_obeyed;
    use proptest::prelude::*;
    use serde_json::json;

    const SIZE: Size = Size { columns: 40, rows: 10 };

    fn frame(screen: &Screen) -> Vec<String> {
        screen.frame(&Editor::default(), SIZE).rows
    }

    #[test]
    fn an_answer_streams_above_the_prompt_and_scrolls_away_by_lines() {
        let mut screen = Screen::new(false, SIZE);
        screen.typed("hello");
        screen.status(Some("waiting, 3 s".into()));
        assert_eq!(frame(&screen), ["waiting, 3 s", "> "]);
        screen.answer("One line\nand ha");
        assert_eq!(screen.take_finished(), ["> hello", "One line"]);
        assert_eq!(frame(&screen), ["and ha", "waiting, 3 s", "> "]);
        screen.answer("lf");
        screen.tool_call("echo", &json!({"text": "a\nb"}));
        screen.tool_result("x\ny", false);
        screen.end_answer(Some("1.2 s"));
        let done = ["and half", r#"→ echo {"text":"a\nb"}"#, "← x y", "· 1.2 s"];
        assert_eq!(screen.take_finished(), done);
        assert_eq!(frame(&screen), ["> "]);
    }

    #[test]
    fn what_is_sent_meanwhile_waits_for_its_turn() {
        let mut screen = Screen::new(false, SIZE);
        screen.answer("Still talk");
        screen.typed("next");
        assert_eq!(frame(&screen), ["Still talk", "> next (waits)", "> "]);
        screen.answer("ing");
        screen.end_answer(None);
        screen.prompted("theirs", Some("bob"));
        screen.end_answer(None);
        screen.own_turn();
        let finished = screen.take_finished();
        assert_eq!(finished, ["Still talking", "", "bob> theirs", "", "> next"]);
        screen.own_turn();
        assert!(screen.take_finished().is_empty());
        screen.answer("One pie");
        screen.typed("/usage");
        screen.note("3 tokens");
        screen.answer("ce");
        screen.end_answer(None);
        assert_eq!(screen.take_finished(), ["", "> /usage", "3 tokens", "One piece"]);
    }

    #[test]
    fn thoughts_are_told_apart_from_the_answer() {
        let mut screen = Screen::new(true, SIZE);
        screen.thought("Hm,\nwell");
        assert_eq!(screen.take_finished(), ["\u{1b}[2mHm,\u{1b}[0m"]);
        screen.answer("Yes");
        assert_eq!(screen.take_finished(), ["\u{1b}[2mwell\u{1b}[0m"]);
    }

    #[test]
    fn a_long_prompt_is_shown_in_part() {
        let mut screen = Screen::new(false, SIZE);
        screen.typed(&"line\n".repeat(100));
        let rows = screen.take_finished();
        assert_eq!((rows.len(), rows[12].trim()), (13, "… 89 more rows, 500 bytes in all"));
    }

    #[test]
    fn a_question_stands_above_what_is_typed() {
        let mut screen = Screen::new(false, SIZE);
        screen.status(Some("waiting".into()));
        screen.ask(Some("echo {}: run it? y, n, e"));
        let mut editor = Editor::default();
        editor.key(Key::Paste("half".into()));
        let shown = screen.frame(&editor, SIZE);
        assert_eq!(shown.rows, ["echo {}: run it? y, n, e", "> half"]);
        assert_eq!(shown.cursor, (1, 6), "keys are text");
        editor.reset();
        assert_eq!(screen.frame(&editor, SIZE).cursor, (0, 25));
    }

    proptest! {
        #[test]
        fn whatever_is_told_fits_and_nothing_of_it_is_obeyed(
            text in any::<String>(), columns in 20_usize..50, rows in 3_usize..12
        ) {
            let size = Size { columns, rows };
            let mut screen = Screen::new(true, size);
            let mut editor = Editor::default();
            editor.key(Key::Paste(text.clone()));
            let mut shown = Vec::new();
            let steps: [&dyn Fn(&mut Screen); 12] = [
                &|s| s.banner(&text), &|s| s.typed(&text), &|s| s.prompted(&text, Some(&text)),
                &|s| s.thought(&text), &|s| s.status(Some(text.clone())), &|s| s.answer(&text),
                &|s| s.tool_call(&text, &json!(text)), &|s| s.tool_result(&text, true),
                &|s| s.error(&text), &|s| s.ask(Some(&text)), &|s| s.note(&text), &|s| s.end_answer(Some(&text)),
            ];
            for step in steps {
                step(&mut screen);
                let frame = screen.frame(&editor, size);
                prop_assert!(frame.rows.len() < rows.max(2), "{frame:?}");
                prop_assert!(frame.cursor.0 < frame.rows.len() && frame.cursor.1 < columns, "{frame:?}");
                shown.extend(frame.rows);
                shown.extend(screen.take_finished());
            }
            for row in shown {
                prop_assert!(!bare(&row).chars().any(is_obeyed), "{row:?}");
                prop_assert!(width(bare(&row).trim_end()) <= columns, "{row:?}");
                for sequence in row.split('\u{1b}').skip(1) {
                    let end = sequence.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
                    prop_assert!(sequence[end..].starts_with('m'), "{sequence:?}");
                }
            }
        }
    }
}
