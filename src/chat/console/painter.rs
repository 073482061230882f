//! Draws on the terminal: what is finished scrolls away above, and the rows below it (what streams,
//! the status, the prompt being typed) are drawn in place.
//!
//! Nothing asks the terminal where its cursor is. The rows below are known with their widths, so it
//! is also known how many there are when a terminal that became narrower breaks them. They are drawn
//! without wrapping: one that is too long while the terminal shrinks takes one row nevertheless.

use super::text::{bare, cells};
use super::tty::Size;

/// What is drawn in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) rows: Vec<String>,
    /// The row and the column.
    pub(super) cursor: (usize, usize),
}

#[derive(Debug, Default)]
pub(super) struct Painter {
    drawn: Frame,
    size: Size,
}

impl Painter {
    /// What to write so that `finished` stands above and `frame` below it; nothing where all that is
    /// so already.
    pub(super) fn paint(&mut self, finished: &[String], frame: Frame, size: Size) -> Vec<u8> {
        let resized = size != self.size;
        if finished.is_empty() && frame == self.drawn && !resized {
            return Vec::new();
        }
        // Terminals that know it show all of this at once.
        let mut out = String::from("\u{1b}[?2026h\u{1b}[?25l");
        up(&mut out, above_cursor(&self.drawn, size.columns));
        out.push('\r');
        if resized && !self.drawn.rows.is_empty() {
            out.push_str("\u{1b}[J");
            self.drawn.rows.clear();
        }
        for row in finished {
            out.push_str("\u{1b}[2K");
            out.push_str(row);
            out.push_str("\u{1b}[0m\r\n");
        }
        out.push_str("\u{1b}[?7l");
        for (at, row) in frame.rows.iter().enumerate() {
            if at > 0 {
                out.push_str("\r\n");
            }
            if !finished.is_empty() || self.drawn.rows.get(at) != Some(row) {
                out.push_str("\u{1b}[2K");
                out.push_str(row);
                out.push_str("\u{1b}[0m");
            }
        }
        let last = frame.rows.len().saturating_sub(1);
        let left = self.drawn.rows.len().saturating_sub(finished.len() + frame.rows.len().max(1));
        if frame.rows.is_empty() {
            out.push_str("\u{1b}[2K");
        }
        for _ in 0..left {
            out.push_str("\r\n\u{1b}[2K");
        }
        up(&mut out, left + last - frame.cursor.0.min(last));
        out.push('\r');
        if frame.cursor.1 > 0 {
            out.push_str(&format!("\u{1b}[{}C", frame.cursor.1));
        }
        out.push_str("\u{1b}[?7h\u{1b}[?25h\u{1b}[?2026l");
        self.drawn = frame;
        self.size = size;
        out.into_bytes()
    }

    /// What to write so that the screen is empty; the rest is drawn anew.
    pub(super) fn clear(&mut self) -> &'static [u8] {
        self.drawn = Frame::default();
        b"\x1b[H\x1b[2J"
    }
}

fn up(out: &mut String, rows: usize) {
    if rows > 0 {
        out.push_str(&format!("\u{1b}[{rows}A"));
    }
}

/// How many rows of the screen are above the cursor, on a terminal that is so wide now.
fn above_cursor(frame: &Frame, columns: usize) -> usize {
    let (row, column) = frame.cursor;
    let above = frame.rows.iter().take(row).map(|row| height(bare(row).chars().map(cells), columns));
    let text = frame.rows.get(row).map(|row| bare(row)).unwrap_or_default();
    // As far as the character that the cursor stands on, which may be a wide one.
    let mut used = 0;
    let mut to_cursor: Vec<usize> = Vec::new();
    for wide in text.chars().map(cells).chain([1]) {
        to_cursor.push(wide);
        used += wide;
        if used > column {
            break;
        }
    }
    above.sum::<usize>() + height(to_cursor.into_iter(), columns) - 1
}

/// How many rows so many cells take.
fn height(cells: impl Iterator<Item = usize>, columns: usize) -> usize {
    let (mut rows, mut used) = (1, 0);
    for wide in cells {
        if used + wide > columns.max(2) {
            rows += 1;
            used = 0;
        }
        used += wide;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::text::rows;
    use super::*;
    use proptest::prelude::*;

    const ROWS: usize = 40;

    /// A terminal that breaks its lines anew when it becomes narrower or wider, as most do.
    struct Terminal {
        columns: usize,
        /// Characters, with a blank after each wide one; whether the line goes on in the next.
        lines: Vec<(Vec<char>, bool)>,
        row: usize,
        column: usize,
        wraps: bool,
    }

    impl Terminal {
        fn new(columns: usize) -> Self {
            Self { columns, lines: vec![(Vec::new(), false)], row: 0, column: 0, wraps: true }
        }

        fn write(&mut self, bytes: &[u8]) {
            let text = std::str::from_utf8(bytes).unwrap();
            let mut chars = text.chars();
            while let Some(c) = chars.next() {
                match c {
                    '\r' => self.column = 0,
                    '\n' => self.down(),
                    '\u{1b}' => {
                        let sequence: String =
                            chars.by_ref().skip(1).take_while(|c| !c.is_ascii_alphabetic()).collect();
                        // The letter was taken as well: it is told by its place in the text.
                        let rest = chars.as_str();
                        let letter = text[..text.len() - rest.len()].chars().last().unwrap();
                        self.obey(&sequence, letter);
                    }
                    c => self.put(c),
                }
            }
        }

        fn obey(&mut self, sequence: &str, letter: char) {
            let top = self.lines.len().saturating_sub(ROWS);
            match (sequence, letter) {
                ("?7", letter) => self.wraps = letter == 'h',
                (up, 'A') => self.row = self.row.saturating_sub(up.parse().unwrap()).max(top),
                (right, 'C') => {
                    self.column = (self.column + right.parse::<usize>().unwrap()).min(self.columns - 1)
                }
                ("2", 'K') => self.lines[self.row] = (Vec::new(), false),
                ("", 'J') => {
                    self.lines.truncate(self.row + 1);
                    self.lines[self.row].0.truncate(self.column);
                    self.lines[self.row].1 = false;
                }
                (_, 'm') | ("?25" | "?2026", 'h' | 'l') => {}
                unknown => panic!("{unknown:?}"),
            }
        }

        fn put(&mut self, c: char) {
            let wide = cells(c);
            if self.column + wide > self.columns {
                if self.wraps {
                    self.lines[self.row].1 = true;
                    self.down();
                    self.column = 0;
                } else {
                    self.column = self.columns - wide;
                }
            }
            let line = &mut self.lines[self.row].0;
            let end = self.column + wide;
            line.resize(line.len().max(end), ' ');
            line[self.column..end].fill('\0');
            line[self.column] = c;
            self.column = end;
        }

        fn down(&mut self) {
            self.row += 1;
            if self.row == self.lines.len() {
                self.lines.push((Vec::new(), false));
            }
        }

        fn resize(&mut self, columns: usize) {
            let old = std::mem::take(&mut self.lines);
            let (row, column) = (self.row, self.column);
            self.columns = columns;
            let mut goes_on = false;
            for (at, (line, wrapped)) in old.into_iter().enumerate() {
                if !goes_on {
                    self.lines.push((Vec::new(), false));
                }
                goes_on = wrapped;
                for (place, c) in line.iter().chain([&' ']).enumerate() {
                    let is_end = place == line.len();
                    let wide = if is_end { 1 } else { cells(*c) };
                    let last = self.lines.len() - 1;
                    if self.lines[last].0.len() + wide > columns
                        && *c != '\0'
                        && (!is_end || at == row && column == place)
                    {
                        self.lines[last].1 = true;
                        self.lines.push((Vec::new(), false));
                    }
                    let last = self.lines.len() - 1;
                    if (at, place) == (row, column) {
                        (self.row, self.column) = (last, self.lines[last].0.len());
                    }
                    if !is_end {
                        self.lines[last].0.push(*c);
                    }
                }
            }
        }

        /// The lines as they were written, however they are broken now.
        fn text(&self) -> Vec<String> {
            let (mut all, mut line) = (Vec::new(), String::new());
            for (part, goes_on) in &self.lines {
                line.extend(part.iter().filter(|c| **c != '\0'));
                if !goes_on {
                    all.push(std::mem::take(&mut line).trim_end().to_owned());
                }
            }
            all
        }
    }

    fn broken(text: &str, columns: usize) -> Vec<String> {
        rows(text, columns).into_iter().map(|range| text[range].trim_end().to_owned()).collect()
    }

    proptest! {
        #[test]
        fn what_is_finished_stands_above_what_is_not_at_any_width(
            steps in proptest::collection::vec(
                ("[a-c 漢]{0,90}", "[d-f 漢]{0,90}", 0_usize..3, 20_usize..60, any::<bool>()), 1..12)
        ) {
            let mut terminal = Terminal::new(60);
            let mut painter = Painter::default();
            let (mut columns, mut all) = (60, Vec::new());
            for (finished, pending, cursor, width, resizes) in steps {
                if resizes {
                    columns = width;
                    terminal.resize(columns);
                }
                let size = Size { columns, rows: ROWS };
                let finished = if finished.is_empty() { vec![] } else { broken(&finished, columns) };
                let rows = broken(&pending, columns);
                let row = cursor.min(rows.len() - 1);
                // Never within a wide character, and on the screen.
                let ends = rows[row].chars().scan(0, |end, c| { *end += cells(c); Some(*end) });
                let column = ends.take_while(|end| *end < columns).last().unwrap_or(0);
                let frame = Frame { rows: rows.clone(), cursor: (row, column) };
                terminal.write(&painter.paint(&finished, frame, size));
                all.extend(finished);
                let wanted: Vec<String> = all.iter().chain(&rows).cloned().collect();
                let mut text = terminal.text();
                while text.len() > wanted.len() && text.last().is_some_and(String::is_empty) {
                    text.pop();
                }
                prop_assert_eq!(text, wanted);
                prop_assert_eq!(terminal.column, column);
            }
        }
    }
}
