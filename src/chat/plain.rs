//! A chat without a terminal to draw on: the answer on stdout and nothing else, so that it can be
//! piped; prompts, tool calls and complaints as lines on stderr.

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};

use serde_json::Value;

use super::conversation::QUEUED;
use super::renderer::{Call, Decision, End, Outcome, Renderer};
use super::replay::{self, Replay};
use crate::exit::FAILED;
use crate::terminal::{Tone, columns, cut, harmless, may_color, one_line};

/// How much of a tool's name, and of its input or result, is shown, in characters.
const NAME_CHARS_MAX: usize = 64;
const TOOL_CHARS_MAX: usize = 200;
/// How much of a line of a note, in characters.
const NOTE_CHARS_MAX: usize = 400;
/// How many characters of an error are shown.
const ERROR_CHARS_MAX: usize = 1000;
/// Back to the first column, and empty from there on.
const CLEAR: &str = "\r\x1b[K";
/// The width of a terminal that does not tell it.
const COLUMNS: usize = 80;
/// An approval's id is a UUID.
const APPROVAL_CHARS: usize = 36;

/// Renders a chat as lines.
#[derive(Debug)]
pub(super) struct Plain {
    /// Whether stdout is a terminal, which obeys control characters.
    is_answer_shown: bool,
    /// Whether stderr is a terminal that may be coloured.
    is_colored: bool,
    /// Whether the chat is interactive.
    is_typed: bool,
    /// Whether the input prompt is shown.
    is_prompted: bool,
    /// Whether the status may be shown on a line that is drawn over.
    is_drawn: bool,
    /// Whether that line is shown.
    is_status_shown: bool,
    /// Whether the answer so far ends within a line.
    is_within_line: bool,
    replay: Replay,
    /// The exit status, once stdout can't be written to.
    gone: Option<u8>,
}

impl Plain {
    /// For one answer, or for an interactive chat without an editor.
    pub(super) fn new(is_typed: bool) -> Self {
        Self {
            is_answer_shown: stdout().is_terminal(),
            is_colored: may_color(&stderr()),
            is_typed,
            is_prompted: false,
            is_drawn: !is_typed
                && stdout().is_terminal()
                && stderr().is_terminal()
                && std::env::var_os("TERM").is_some_and(|term| term != "dumb"),
            is_status_shown: false,
            is_within_line: false,
            replay: Replay::default(),
            gone: None,
        }
    }

    /// Writes a piece of the answer; unchanged into a pipe or a file.
    fn write(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.leave_prompt();
        self.clear_status();
        let mut out = stdout().lock();
        let written = if self.is_answer_shown {
            out.write_all(harmless(text).as_bytes())
        } else {
            out.write_all(text.as_bytes())
        };
        let written = written.and_then(|()| out.flush());
        drop(out);
        self.is_within_line = !text.ends_with('\n');
        if let Err(error) = written
            && self.gone.is_none()
        {
            self.gone = Some(0);
            if error.kind() != ErrorKind::BrokenPipe {
                self.gone = Some(FAILED);
                self.error(&format!("cannot write the answer: {error}"));
            }
        }
    }

    fn aside(&mut self, text: &str) {
        self.break_line();
        for line in text.lines() {
            let line = Tone::Dim.paint(&one_line(line, NOTE_CHARS_MAX), self.is_colored);
            write_stderr(&format!("{line}\n"));
        }
    }

    /// Begins a new line, if stdout and stderr are the same terminal.
    fn break_line(&mut self) {
        self.leave_prompt();
        self.clear_status();
        if self.is_within_line && self.is_answer_shown && stderr().is_terminal() {
            write_stderr("\n");
            self.is_within_line = false;
        }
    }

    fn clear_status(&mut self) {
        if std::mem::take(&mut self.is_status_shown) {
            write_stderr(CLEAR);
        }
    }

    fn end_line(&mut self) {
        if self.is_within_line && self.gone.is_none() {
            self.write("\n");
        }
    }

    /// Shows the input prompt.
    fn prompt(&mut self) {
        if self.is_typed && !self.is_prompted {
            write_stderr("> ");
            self.is_prompted = true;
        }
    }

    /// Leaves the line of the input prompt, so that something can be shown.
    fn leave_prompt(&mut self) {
        if std::mem::take(&mut self.is_prompted) {
            write_stderr("\n");
        }
    }
}

/// Writes to stderr at once. There is nobody to tell if that fails.
fn write_stderr(text: &str) {
    let mut err = stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

impl Renderer for Plain {
    fn banner(&mut self, text: &str) {
        self.aside(text);
    }

    fn prompted(&mut self, text: &str, by: Option<&str>) {
        let by = by.map(|by| format!("{}: ", one_line(by, NAME_CHARS_MAX))).unwrap_or_default();
        self.aside(&format!("> {by}{}", one_line(text, NOTE_CHARS_MAX)));
    }

    fn answer(&mut self, piece: &str) {
        match self.replay.text(piece) {
            replay::Write::Nothing => {}
            replay::Write::Text(text) => self.write(&text),
            replay::Write::Instead(text) => {
                self.end_line();
                self.write(&text);
            }
        }
    }

    fn thought(&mut self, _piece: &str) {}

    fn wants_thoughts(&self) -> bool {
        false
    }

    fn void_step(&mut self) {
        self.replay.void();
    }

    fn tool_call(&mut self, call: &Call) {
        self.replay.begin();
        let name = one_line(&call.name, NAME_CHARS_MAX);
        self.aside(&format!("→ {name} {}", one_line(&call.input.to_string(), TOOL_CHARS_MAX)));
        if let Some(id) = &call.approval
            && !self.is_typed
        {
            let id = one_line(id, APPROVAL_CHARS);
            self.aside(&format!(
                "{name} waits for approval: `clawmux approval approve {id}` or `clawmux approval deny {id}`"
            ));
        }
    }

    fn tool_result(&mut self, content: &str, is_error: bool) {
        self.replay.begin();
        let mark = if is_error { "✗" } else { "←" };
        self.aside(&format!("{mark} {}", one_line(content, TOOL_CHARS_MAX)));
    }

    fn decided(&mut self, decision: &Decision) {
        self.aside(&decision.words());
    }

    fn end_answer(&mut self, end: &End) {
        self.replay.begin();
        self.end_line();
        if self.is_typed {
            match &end.outcome {
                Outcome::Completed => {}
                Outcome::Aborted => self.aside("aborted"),
                Outcome::Failed(why) => self.error(why),
            }
        }
        // Where both are seen; what reads the answer through a pipe shows it at its own pace.
        if self.is_answer_shown
            && stderr().is_terminal()
            && let Some(summary) = end.summary()
        {
            self.aside(&summary);
        }
    }

    fn queued(&mut self) {
        // Else the status tells.
        if !self.is_drawn {
            self.aside(QUEUED);
        }
    }

    fn ready(&mut self) {
        self.prompt();
    }

    fn entered(&mut self) {
        self.is_prompted = false;
    }

    fn note(&mut self, text: &str) {
        self.aside(text);
    }

    fn error(&mut self, text: &str) {
        self.break_line();
        // Some end with lines to be copied.
        let lines: Vec<String> = text.lines().map(|line| one_line(line, ERROR_CHARS_MAX)).collect();
        write_stderr(&format!("error: {}\n", lines.join("\n")));
    }

    fn status(&mut self, text: Option<String>) {
        self.clear_status();
        // What streams is a sign of life itself, where it is seen.
        let Some(text) = text.filter(|_| self.is_drawn && !self.is_within_line) else { return };
        let wide = columns().unwrap_or(COLUMNS).saturating_sub(1);
        write_stderr(&cut(&one_line(&text, NOTE_CHARS_MAX), wide));
        self.is_status_shown = true;
    }

    fn ask(&mut self, question: Option<&str>) {
        if let Some(question) = question {
            self.aside(question);
            self.prompt();
        }
    }

    fn edit(&mut self, text: &str) {
        self.aside("type the input as JSON, on one line; now it is:");
        let compact =
            serde_json::from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| value.to_string());
        self.aside(&compact);
        self.prompt();
    }

    fn gone(&self) -> Option<u8> {
        self.gone
    }

    fn close(mut self: Box<Self>) {
        self.clear_status();
        self.leave_prompt();
    }
}
