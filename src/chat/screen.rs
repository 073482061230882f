//! What a chat looks like: the answer on stdout, everything around it on stderr.

use std::io::{IsTerminal, Write, stderr, stdout};

use serde_json::Value;

use crate::terminal::{harmless, may_color, one_line};

/// How much of a tool's input or result is shown.
const TOOL_CHARS_MAX: usize = 200;

/// An approval's id is a UUID.
const APPROVAL_CHARS: usize = 36;

pub(super) struct Screen {
    /// Whether stdout is a terminal, which obeys control characters.
    answers_shown: bool,
    /// Whether stderr is a terminal that may be coloured.
    colored: bool,
    /// Whether the answer so far ends within a line.
    within_line: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { answers_shown: stdout().is_terminal(), colored: may_color(&stderr()), within_line: false }
    }

    /// A piece of the answer, as it comes. Into a pipe or a file it goes byte by byte.
    pub(super) fn answer(&mut self, text: &str) {
        let mut out = stdout().lock();
        let _ = if self.answers_shown {
            out.write_all(harmless(text).as_bytes())
        } else {
            out.write_all(text.as_bytes())
        };
        let _ = out.flush();
        if !text.is_empty() {
            self.within_line = !text.ends_with('\n');
        }
    }

    /// The answer anew, in place of what is there of it.
    pub(super) fn answer_instead(&mut self, text: &str) {
        self.end_answer();
        self.answer(text);
    }

    /// The answer is complete: it ends with a line end.
    pub(super) fn end_answer(&mut self) {
        if self.within_line {
            let _ = writeln!(stdout().lock());
            self.within_line = false;
        }
    }

    pub(super) fn tool_call(&mut self, name: &str, input: &Value) {
        let (name, input) = (one_line(name, 64), one_line(&input.to_string(), TOOL_CHARS_MAX));
        self.aside(&format!("→ {name} {input}"));
    }

    /// The call that was shown last is not made before somebody approves it.
    pub(super) fn waits(&mut self, name: &str, approval: &str) {
        let (name, id) = (one_line(name, 64), one_line(approval, APPROVAL_CHARS));
        self.note(&format!("{name} waits for approval: clawmux approval approve {id} (or deny)"));
    }

    pub(super) fn tool_result(&mut self, content: &str, is_error: bool) {
        let mark = if is_error { "✗" } else { "←" };
        self.aside(&format!("{mark} {}", one_line(content, TOOL_CHARS_MAX)));
    }

    /// Something about the conversation.
    pub(super) fn note(&mut self, text: &str) {
        self.aside(&one_line(text, 400));
    }

    pub(super) fn error(&mut self, text: &str) {
        self.break_line();
        let _ = writeln!(stderr().lock(), "error: {}", self.quoted(text));
    }

    /// Text of the daemon's, fit for one line of stderr.
    pub(super) fn quoted(&self, text: &str) -> String {
        one_line(text, 1000)
    }

    pub(super) fn prompt(&self) {
        let mut err = stderr().lock();
        let _ = err.write_all(b"> ");
        let _ = err.flush();
    }

    /// Leaves the line of the prompt.
    pub(super) fn end_line(&self) {
        let _ = writeln!(stderr().lock());
    }

    fn aside(&mut self, text: &str) {
        self.break_line();
        let (dim, plain) = if self.colored { ("\u{1b}[2m", "\u{1b}[0m") } else { ("", "") };
        let _ = writeln!(stderr().lock(), "{dim}{text}{plain}");
    }

    /// On a screen that shows both, what is said beside the answer starts on a line of its own.
    fn break_line(&mut self) {
        if self.within_line && self.answers_shown && stderr().is_terminal() {
            let _ = writeln!(stderr().lock());
            self.within_line = false;
        }
    }
}
