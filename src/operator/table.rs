//! Columns.
//!
//! On a terminal they fit its width, as far as the columns that may give way make room: free text does,
//! in the order its table says; ids, keys, times, states and every heading are never cut, so a narrow
//! terminal gets longer lines. Into a pipe or a file columns are as wide as they need.

use crate::terminal::{Tone, columns, cut, may_color, one_line, width};

/// The longest cell: a session's key fits.
const CELL_CHARS_MAX: usize = 1024;
/// No column is cut below this, or below its heading.
const COLUMN_MIN: usize = 6;
/// Between two columns.
const GAP: &str = "  ";

/// What stands in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// In this tone.
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// Rows under a head, as stdout takes them. `gives_way` names the columns that may be cut, the first to
/// be cut first. What others wrote is made harmless.
pub(crate) fn table<const N: usize, C: Clone + Into<Cell>>(
    head: [&str; N],
    gives_way: &[&str],
    rows: &[[C; N]],
) -> String {
    table_within(head, gives_way, rows, columns())
}

/// The same for a terminal of so many columns; none where it is none.
pub(crate) fn table_within<const N: usize, C: Clone + Into<Cell>>(
    head: [&str; N],
    gives_way: &[&str],
    rows: &[[C; N]],
    columns: Option<usize>,
) -> String {
    let rows = rows.iter().map(|row| row.clone().map(Into::into)).collect();
    render(head, gives_way, rows, columns, may_color(&std::io::stdout()))
}

fn render<const N: usize>(
    head: [&str; N],
    gives_way: &[&str],
    rows: Vec<[Cell; N]>,
    columns: Option<usize>,
    colored: bool,
) -> String {
    let heading = head.map(|name| Cell::toned(name, Tone::Head));
    let mut rows: Vec<[Cell; N]> = std::iter::once(heading).chain(rows).collect();
    let mut widths = [0; N];
    for row in &mut rows {
        for (cell, widest) in row.iter_mut().zip(&mut widths) {
            cell.text = one_line(&cell.text, CELL_CHARS_MAX);
            *widest = width(&cell.text).max(*widest);
        }
    }
    if let Some(columns) = columns {
        narrow(&mut widths, head, gives_way, columns);
    }
    let line = |row: &[Cell; N]| {
        let mut line = String::new();
        for (at, (cell, width_max)) in row.iter().zip(widths).enumerate() {
            let text = cut(&cell.text, width_max);
            let padding = width_max - width(&text);
            line.push_str(if at == 0 { "" } else { GAP });
            line.push_str(&cell.tone.paint(&text, colored));
            line.extend(std::iter::repeat_n(' ', padding));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Takes from the columns that give way, one after the other, until all fit or nothing can be taken any
/// more.
fn narrow<const N: usize>(widths: &mut [usize; N], head: [&str; N], gives_way: &[&str], columns: usize) {
    let gaps = GAP.len() * N.saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
    for name in gives_way {
        let Some(at) = head.iter().position(|heading| heading == name) else { continue };
        let least = width(name).max(COLUMN_MIN);
        let taken = widths[at].saturating_sub(least).min(over);
        widths[at] -= taken;
        over -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain<const N: usize>(rows: &[[&str; N]]) -> Vec<[Cell; N]> {
        rows.iter().map(|row| row.map(Into::into)).collect()
    }

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let rows = plain(&[["İİİ\u{1b}[2J", "1"], ["a\nb", ""], ["漢字", "2"]]);
        let table = render(["K", "NUMBER"], &["K"], rows, None, false);
        assert_eq!(table, "K       NUMBER\nİİİ[2J  1\na b\n漢字    2");
    }

    #[test]
    fn free_text_gives_way_and_nothing_else_does() {
        let rows =
            || plain(&[["0123456789ab", "a name of many words", "revoked 3d ago", "what it answered"]]);
        let shown = |columns| {
            let head = ["TOKEN", "NAME", "STATE", "ANSWERED"];
            render(head, &["ANSWERED", "NAME"], rows(), Some(columns), false)
        };
        let line = |columns| shown(columns).lines().nth(1).unwrap().to_owned();
        assert_eq!(line(68), "0123456789ab  a name of many words  revoked 3d ago  what it answered");
        assert_eq!(line(62), "0123456789ab  a name of many words  revoked 3d ago  what it a…");
        assert_eq!(line(50), "0123456789ab  a name of…  revoked 3d ago  what it…");
        assert_eq!(line(20), "0123456789ab  a nam…  revoked 3d ago  what it…");
        assert_eq!(shown(20).lines().next().unwrap(), "TOKEN         NAME    STATE           ANSWERED");
    }

    #[test]
    fn colours_take_no_room() {
        let rows = vec![[Cell::toned("bad", Tone::Bad), "x".into()], ["longer".into(), "y".into()]];
        let shown = |colored| render(["A", "B"], &[], rows.clone(), None, colored);
        let (colored, bare) = (shown(true), shown(false));
        assert_eq!(colored.replace("\u{1b}[31m", "").replace("\u{1b}[1m", "").replace("\u{1b}[0m", ""), bare);
        assert!(colored.contains("\u{1b}[31mbad\u{1b}[0m     x"), "{colored:?}");
    }

    proptest! {
        #[test]
        fn every_line_fits(cells in prop::collection::vec(prop::array::uniform3("\\PC{0,60}"), 0..5), columns in 28_usize..120) {
            let rows = cells.into_iter().map(|row| row.map(Cell::from)).collect();
            for line in render(["A", "B", "C"], &["C", "A", "B"], rows, Some(columns), false).lines() {
                prop_assert!(width(line) <= columns, "{line:?}");
            }
        }
    }
}
