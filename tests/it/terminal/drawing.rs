//! What is drawn, on terminals of any width, and what never reaches them.

use std::process::Command;

use super::stage::{Stage, is_idle};
use crate::support::daemon::command;
use crate::support::terminal::{Terminal, count};
use crate::support::tools::needs;
use crate::support::upstream::Turn;

const SIZE: (u16, u16) = (80, 24);

/// Every width from 20 to 60, in an order that goes up and down, and some that are wide: each breaks
/// anew what was drawn for another.
fn widths() -> Vec<u16> {
    let mut widths = vec![80];
    for (at, width) in (20..=60).enumerate() {
        widths.push(if at % 2 == 0 { width } else { 80 - width });
        if at % 8 == 0 {
            widths.push(if at % 16 == 0 { 200 } else { 120 });
        }
    }
    widths
}

#[test]
fn a_resize_leaves_nothing_behind_at_any_width() {
    needs!("tmux");
    let stage = Stage::new();
    // For each width a line that ends there and one that begins; every word is another.
    let word = |at: usize| format!("w{at:03}.");
    let widths = widths();
    assert!((20..=60).all(|width| widths.contains(&width)));
    let pieces: Vec<String> = (0..widths.len() * 2)
        .map(|piece| {
            let words: Vec<String> = (0..6).map(|at| word(piece * 6 + at)).collect();
            let end = if piece % 2 == 1 { "\n" } else { " " };
            format!("{}{end}", words.join(" "))
        })
        .collect();
    stage.upstream.then(Turn::Slowly(pieces));
    let terminal = stage.chat(SIZE);
    terminal.enter("talk while I pull at the window");
    terminal.type_in("a line being typed of forty-two characters.");
    for (at, width) in widths.into_iter().enumerate() {
        terminal.resize(width, if at % 3 == 0 { 24 } else { 12 });
        for piece in [at * 2, at * 2 + 1] {
            stage.upstream.go_on(1);
            let last = word(piece * 6 + 5);
            terminal.wait("the next words", |_| count(&terminal.scrolled(), &last) == 1);
        }
        let text = terminal.scrolled();
        for word in (0..(at * 2 + 2) * 6).map(word) {
            assert_eq!(count(&text, &word), 1, "{word} at width {width}:\n{text}");
        }
        let typed = terminal.wait("what is typed", |screen| screen.ends_with("characters."));
        assert_eq!(
            count(&typed, "> a line being typed of forty-two characters."),
            1,
            "at width {width}:\n{typed}"
        );
    }
    terminal.press("C-u");
    terminal.wait("the end of the answer", is_idle);
}

#[test]
fn two_terminals_on_one_session_see_the_same() {
    needs!("tmux");
    let stage = Stage::new();
    stage.upstream.then(Turn::Slowly(vec!["Told ".into(), "to both.".into()]));
    stage.says("And **back**.");
    let (one, other) = (stage.chat(SIZE), stage.chat((60, 24)));
    one.enter("hello from one");
    other.wait("the prompt of the other", |screen| screen.contains("> hello from one"));
    stage.upstream.go_on(1);
    other.wait("the answer as it comes", |screen| screen.contains("Told"));
    stage.upstream.go_on(1);
    for terminal in [&one, &other] {
        terminal.wait("the whole answer", |screen| screen.contains("Told to both.") && is_idle(screen));
    }
    other.enter("hello from the other");
    for terminal in [&one, &other] {
        let screen = terminal.wait("the answer", |screen| screen.contains("And back.") && is_idle(screen));
        for text in ["hello from one", "Told to both.", "hello from the other", "And back."] {
            assert_eq!(count(&screen, text), 1, "{text}:\n{screen}");
        }
    }
    // Who comes later sees it all too.
    let late = stage.chat(SIZE);
    let screen = late.wait("the last turns", |screen| screen.contains("And back."));
    assert!(screen.contains("> hello from one") && screen.contains("Told to both."), "{screen}");
}

#[test]
fn markdown_is_drawn_and_nothing_of_it_lost() {
    needs!("tmux");
    let stage = Stage::new();
    stage.says("# Herons\nThey are **grey** and `patient`.\n\n- fish\n- frogs\n\n| a | b |\n|---|---|\n| 2 * 3 | 6 |\n\n```sh\nls *.txt\n```\nDone.");
    let terminal = stage.chat(SIZE);
    terminal.enter("tell me about herons");
    let screen = terminal.wait("the answer", |screen| screen.contains("Done."));
    for text in ["Herons", "They are grey and patient.", "• fish", "2 * 3", "```sh", "ls *.txt"] {
        assert!(screen.contains(text), "{text}:\n{screen}");
    }
    assert!(!screen.contains("**") && !screen.contains("# Herons"), "{screen}");
    assert!(terminal.picture().contains("\u{1b}[1mgrey"), "bold is bold:\n{:?}", terminal.picture());

    let plain = stage.chat_with(SIZE, &[("NO_COLOR", "1")]);
    plain.wait("the answer", |screen| screen.contains("Done."));
    assert!(!plain.picture().contains('\u{1b}'), "without colours:\n{:?}", plain.picture());
}

#[test]
fn nothing_that_a_model_a_tool_or_another_terminal_says_is_obeyed() {
    needs!("tmux");
    let stage = Stage::new();
    let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}[31m\u{9b}5n\u{90}q\u{9c}\u{202e}\u{2066}\u{200b}\u{200d}\u{feff}\u{2060}\u{e0041}\u{8}\r\u{1b}P+q\u{1b}\\";
    let input = serde_json::json!({ "text": format!("tool {evil} said") }).to_string();
    stage.upstream.then(Turn::Think(
        vec![format!("thought {evil} thought")],
        Turn::Call(format!("before {evil} after"), vec![("echo".into(), input)]).into(),
    ));
    stage.says(&format!(
        "# head {evil} head\n| cell {evil} cell |\n|---|\n\n```\ncode {evil} code\n```\nthe end"
    ));
    let (terminal, other) = (stage.chat(SIZE), stage.chat(SIZE));
    let record = stage.daemon.home().join("written");
    terminal.record(&record);
    other.paste(&format!("pasted {evil} pasted"));
    other.press("Enter");
    for terminal in [&terminal, &other] {
        terminal.wait("the answer", |screen| screen.contains("the end") && is_idle(screen));
    }
    let screen = terminal.screen();
    for text in ["pasted", "thought", "before", "tool", "head", "cell", "code"] {
        assert!(count(&screen, text) >= 1, "{text}:\n{screen}");
    }
    // The bytes: characters that show something, and the few sequences that drawing takes.
    let written = String::from_utf8(std::fs::read(record).unwrap()).expect("text is written");
    assert!(written.contains("the end"));
    let mut rest = written.as_str();
    let mut shown = String::new();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        shown.push_str(before);
        let end = after.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(after.len() - 1) + 1;
        let sequence = &after[..end];
        let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == ';');
        let is_drawing = match sequence.as_bytes() {
            [b'[', .., b'A' | b'C' | b'm'] => digits(&sequence[1..end - 1]),
            _ => {
                matches!(sequence, "[2K" | "[J" | "[?25l" | "[?25h" | "[?7l" | "[?7h" | "[?2026h" | "[?2026l")
            }
        };
        assert!(is_drawing, "{sequence:?} is written");
        rest = &after[end..];
    }
    shown.push_str(rest);
    let hidden = |c: &char| {
        c.is_control() && !matches!(c, '\r' | '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    let found: Vec<char> = shown.chars().filter(hidden).collect();
    assert!(found.is_empty(), "{found:?} are written");
}

#[test]
fn a_dumb_terminal_has_lines_instead() {
    needs!("tmux");
    let stage = Stage::new();
    stage.says("Plain **words**.");
    // tmux has its own word for what it is.
    let chat = command(stage.daemon.home());
    let words: Vec<_> = std::iter::once(chat.get_program()).chain(chat.get_args()).collect();
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().env("HOME", stage.daemon.home()).env("USER", "ann");
    shell.args(["-c", &format!("TERM=dumb exec {} chat", words.join(" "))]);
    let terminal = Terminal::start(stage.daemon.home(), &shell, SIZE);
    terminal.wait("the prompt", |screen| screen.contains('>'));
    terminal.type_in("hello");
    terminal.press("Enter");
    terminal.wait("the answer as it is", |screen| screen.contains("Plain **words**."));
    assert!(!terminal.picture().contains('\u{1b}'), "{:?}", terminal.picture());
}
