//! The picture in README: a chat as it stands on a real terminal, in SVG. `CLAWMUX_PICTURE=1` draws
//! it anew; otherwise it is asked whether it still shows what there is to see.

use std::fmt::Write;

use super::stage::{Stage, is_idle};
use crate::support::tools::needs;
use crate::support::upstream::Turn;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/chat/picture.svg");
const SIZE: (u16, u16) = (84, 24);

const CYAN: &str = "#39c5cf";
/// Pixels of a cell.
const CELL: (f32, f32) = (8.4, 18.0);

#[test]
fn the_picture_shows_the_chat_of_today() {
    needs!("tmux");
    let stage = Stage::new();
    let call = ("clock".to_owned(), "{}".to_owned());
    stage.upstream.then(Turn::Call(String::new(), vec![call]));
    stage.says(
        "# Good morning\nYou asked for **three** things to do before noon:\n\n- read the mail of the night\n\
         - water the plants\n- `cargo test`, and then a walk\n\n| when | what |\n|---|---|\n| 9:00 | mail |\n| 10:00 | tests |",
    );
    let terminal = stage.chat(SIZE);
    terminal.enter("What time is it, and what should I do today?");
    terminal
        .wait("the answer", |screen| screen.contains("tests") && screen.contains("· ") && is_idle(screen));
    terminal.type_in("and after lun");
    terminal.wait("what is typed", |screen| screen.ends_with("> and after lun"));
    let drawn = svg(&terminal.picture());
    if std::env::var_os("CLAWMUX_PICTURE").is_some_and(|value| value == "1") {
        std::fs::write(FILE, &drawn).unwrap();
    }
    let kept =
        std::fs::read_to_string(FILE).expect("CLAWMUX_PICTURE=1 cargo test --test terminal picture draws it");
    assert!(kept.starts_with("<svg ") && kept.ends_with("</svg>\n"));
    assert_eq!(words(&kept), words(&drawn), "it is out of date: CLAWMUX_PICTURE=1 draws it anew");
}

/// The words of a picture, without the numbers in them: times differ from day to day.
fn words(svg: &str) -> String {
    let texts = svg.split('<').filter_map(|tag| tag.split_once('>').map(|(_, text)| text));
    let text: String = texts.collect::<Vec<_>>().concat();
    text.chars()
        .filter(|c| c.is_alphabetic() || *c == ' ')
        .collect::<String>()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// How a run of characters looks.
#[derive(Clone, Copy, Default, PartialEq)]
struct Look {
    bold: bool,
    dim: bool,
    color: Option<&'static str>,
}

/// A screen with its colours as an SVG.
fn svg(screen: &str) -> String {
    let lines: Vec<&str> = screen.trim_end().lines().collect();
    let (width, height) = (f32::from(SIZE.0) * CELL.0 + 24.0, lines.len() as f32 * CELL.1 + 48.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"ui-monospace, \
         SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <circle cx=\"18\" cy=\"16\" r=\"5\" fill=\"#ec6a5e\"/><circle cx=\"36\" cy=\"16\" r=\"5\" fill=\"#f4bf4f\"/>\
         <circle cx=\"54\" cy=\"16\" r=\"5\" fill=\"#61c554\"/>\n"
    );
    let mut look = Look::default();
    for (row, line) in lines.iter().enumerate() {
        let y = 46.0 + row as f32 * CELL.1;
        let (mut column, mut run, mut start) = (0, String::new(), 0);
        let mut rest = *line;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("\u{1b}[") {
                let (codes, after) = after.split_once('m').expect("only colours are captured");
                put(&mut svg, &mut run, look, start, y);
                start = column;
                match codes {
                    "38;5;6" => look.color = Some(CYAN),
                    codes => codes.split(';').for_each(|code| apply(&mut look, code)),
                }
                rest = after;
                continue;
            }
            let c = rest.chars().next().unwrap();
            rest = &rest[c.len_utf8()..];
            run.push(c);
            column += 1;
        }
        put(&mut svg, &mut run, look, start, y);
    }
    svg.push_str("</svg>\n");
    svg
}

fn apply(look: &mut Look, code: &str) {
    match code {
        "" | "0" => *look = Look::default(),
        "1" => look.bold = true,
        "2" => look.dim = true,
        "31" => look.color = Some("#f47067"),
        "32" => look.color = Some("#57ab5a"),
        "33" => look.color = Some("#c69026"),
        "36" => look.color = Some(CYAN),
        "39" => look.color = None,
        _ => {}
    }
}

/// A run of characters, each at its own place: fonts differ in how wide they are.
fn put(svg: &mut String, run: &mut String, look: Look, start: usize, y: f32) {
    let text = std::mem::take(run);
    if text.trim().is_empty() {
        return;
    }
    let lead = text.len() - text.trim_start().len();
    let x = 12.0 + (start + lead) as f32 * CELL.0;
    let text = text.trim();
    let length = text.chars().count() as f32 * CELL.0;
    let fill = look.color.unwrap_or("#e6edf3");
    let weight = if look.bold { " font-weight=\"bold\"" } else { "" };
    let opacity = if look.dim { " opacity=\"0.6\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.0}\" textLength=\"{length:.1}\" xml:space=\"preserve\" fill=\"{fill}\"{weight}{opacity}>{text}</text>"
    )
    .unwrap();
}
