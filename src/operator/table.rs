//! Columns.

use crate::terminal::one_line;

/// The longest cell: a session's key fits.
const CELL_CHARS_MAX: usize = 1024;

/// Rows under a head, each column as wide as it needs. What others wrote is made harmless.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| one_line(cell, CELL_CHARS_MAX))).collect();
    let mut widths = head.map(|name| name.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(head)];
    lines.extend(rows.iter().map(|row| line(row.each_ref().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let rows = [["İİİ\u{1b}[2J".to_owned(), "1".to_owned()], ["a\nb".to_owned(), String::new()]];
        assert_eq!(table(["K", "NUMBER"], &rows), "K       NUMBER\nİİİ[2J  1\na b");
    }
}
