//! How far a command has come, shown on a terminal in a line that changes.

use std::io::{IsTerminal, Write, stderr};

/// Shows the progress, where somebody sees it.
pub(super) struct Progress {
    is_seen: bool,
    shown: String,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { is_seen: stderr().is_terminal(), shown: String::new() }
    }

    /// Shows this in the place of what was shown before.
    pub(super) fn show(&mut self, said: String) {
        if self.is_seen && said != self.shown {
            let _ = write!(stderr().lock(), "\r{said:<24}");
            self.shown = said;
        }
    }

    /// Ends the line.
    pub(super) fn end(&mut self) {
        if !std::mem::take(&mut self.shown).is_empty() {
            let _ = writeln!(stderr().lock());
        }
    }
}

/// Such as `published:  12 %`.
pub(super) fn share(what: &str, done: u64, of: u64) -> String {
    format!("{what}: {:>3} %", done.saturating_mul(100) / of.max(1))
}
