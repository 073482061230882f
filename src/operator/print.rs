//! How commands print: in words for people, or as JSON for scripts, where a list is one object a line
//! and everything else one object.

use serde_json::Value;

use super::table::{Cell, table};
use crate::admin_client::ask;
use crate::cli::Global;
use crate::exit::Failure;
use crate::terminal::{json_line, one_line, put, say, tell};
use crate::when::now_ms;

/// Prints one answer.
pub(super) fn answer(global: &Global, answer: &Value, words: impl FnOnce(&Value) -> String) {
    say(&if global.json { json_line(answer) } else { words(answer) });
}

/// What is known of one thing, a line each: its name in a column of this width, and its value.
pub(super) fn details<'a>(
    width: usize,
    rows: impl IntoIterator<Item = (&'a str, Option<String>)>,
) -> Vec<String> {
    let known = rows.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| format!("{name:<width$}{}", one_line(&value, 2000))).collect()
}

/// Asks the daemon to do something and prints its answer.
pub(super) fn done(
    global: &Global,
    method: &str,
    params: &Value,
    words: impl FnOnce(&Value) -> String,
) -> Result<(), Failure> {
    answer(global, &ask(global, method, params)?, words);
    Ok(())
}

/// Prints a list for scripts: one object a line.
///
/// # Errors
/// Status 1 if it can't be written.
pub(super) fn objects<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Result<(), Failure> {
    for row in rows {
        if !put(&json_line(row))? {
            // Nobody reads any more.
            break;
        }
    }
    Ok(())
}

/// A list, and how its table looks.
pub(super) struct List<'a, const N: usize, C> {
    pub(super) rows: &'a [Value],
    /// The headings of the columns.
    pub(super) head: [&'a str; N],
    /// The columns that may be cut, the first to be cut first.
    pub(super) gives_way: &'a [&'a str],
    /// The cells of a row; the number is the present time in milliseconds.
    pub(super) cells: fn(&Value, u64) -> [C; N],
    /// What to tell where the list is empty.
    pub(super) none: &'a str,
}

impl<const N: usize, C: Clone + Into<Cell>> List<'_, N, C> {
    /// Prints the list; says whether people got a table.
    pub(super) fn print(&self, global: &Global) -> Result<bool, Failure> {
        if global.json {
            objects(self.rows)?;
        } else if self.rows.is_empty() {
            tell(self.none);
        } else {
            self.print_table();
        }
        Ok(!global.json && !self.rows.is_empty())
    }

    /// Prints the table alone.
    pub(super) fn print_table(&self) {
        let now_ms = now_ms();
        let rows: Vec<_> = self.rows.iter().map(|row| (self.cells)(row, now_ms)).collect();
        say(&table(self.head, self.gives_way, &rows));
    }
}
