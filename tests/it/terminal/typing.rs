//! What is typed and pasted.

use super::stage::{Stage, is_idle};
use crate::support::tools::needs;
use crate::support::upstream::Turn;

const SIZE: (u16, u16) = (80, 24);

#[test]
fn a_paste_of_100_kb_arrives_whole() {
    needs!("tmux");
    let stage = Stage::new();
    stage.says("Read.");
    let terminal = stage.chat(SIZE);
    let mut text = String::new();
    while text.len() < 100_000 {
        text.push_str(&format!("{} a line of it, with 漢字, \"quotes\"\tand a tab;\n", text.len()));
    }
    text.push_str("the end");
    terminal.paste(&text);
    terminal.wait("the end of the paste", |screen| screen.contains("  the end"));
    terminal.press("Enter");
    assert!(stage.prompted(1) == text, "{} bytes of {} arrived", stage.prompted(1).len(), text.len());
    let screen = terminal.wait("the answer", |screen| screen.contains("Read.") && is_idle(screen));
    assert!(screen.contains("more rows, 100"), "it is shown in part:\n{screen}");
    assert_eq!(stage.upstream.requests().len(), 1);
}

#[test]
fn four_pasted_lines_are_one_prompt_and_so_are_lines_typed_with_alt_enter() {
    needs!("tmux");
    let stage = Stage::new();
    stage.says("First.").says("Second.");
    let terminal = stage.chat(SIZE);
    terminal.paste("one\ntwo\n\nfour");
    terminal.wait("the lines", |screen| screen.ends_with("> one\n  two\n  four"));
    assert_eq!(stage.upstream.requests().len(), 0, "nothing is sent before Enter");
    terminal.press("Enter");
    assert_eq!(stage.prompted(1), "one\ntwo\n\nfour");
    terminal.wait("the answer", |screen| screen.contains("First.") && is_idle(screen));
    terminal.type_in("five");
    terminal.press("M-Enter");
    terminal.enter("six");
    assert_eq!(stage.prompted(2), "five\nsix");
    terminal.wait("the answer", |screen| screen.contains("Second.") && is_idle(screen));
    assert_eq!(stage.upstream.requests().len(), 2);
}

#[test]
fn arrows_edit_and_the_history_outlives_the_chat() {
    needs!("tmux");
    let stage = Stage::new();
    stage.says("1.").says("2.").says("3.").says("4.");
    let terminal = stage.chat(SIZE);
    terminal.type_in("helo 漢x world");
    for key in ["M-b", "Left", "BSpace", "Home", "Right", "Right"] {
        terminal.press(key);
    }
    terminal.type_in("l");
    terminal.wait("the line as edited", |screen| screen.ends_with("> hello 漢 world"));
    terminal.press("Enter");
    assert_eq!(stage.prompted(1), "hello 漢 world");
    terminal.wait("the answer", |screen| screen.contains("1.") && is_idle(screen));
    terminal.enter("second prompt");
    terminal.wait("the answer", |screen| screen.contains("2.") && is_idle(screen));
    terminal.press("C-d");
    crate::support::eventually("the chat to end", || terminal.ended());

    // What was typed is there again, in a file of the owner's alone.
    let terminal = stage.chat(SIZE);
    terminal.type_in("draft");
    terminal.press("Up");
    terminal.press("Up");
    terminal.wait("the older prompt", |screen| screen.ends_with("> hello 漢 world"));
    terminal.press("Down");
    terminal.press("Down");
    terminal.wait("what was being typed", |screen| screen.ends_with("> draft"));
    terminal.press("C-u");
    terminal.press("C-r");
    terminal.type_in("hel");
    terminal.wait("what the search found", |screen| screen.ends_with("search `hel`: hello 漢 world"));
    terminal.press("Enter");
    terminal.wait("it to be edited", |screen| screen.ends_with("> hello 漢 world"));
    terminal.press("Enter");
    assert_eq!(stage.prompted(3), "hello 漢 world");
    let file = stage.daemon.home().join("chat-history");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_is_typed_while_an_answer_streams_stays_apart_from_it() {
    needs!("tmux");
    let stage = Stage::new();
    let pieces = ["One ", "piece ", "after ", "the other.\n", "And ", "one more line."];
    stage.upstream.then(Turn::Slowly(pieces.map(str::to_owned).into()));
    stage.says("Next answer.");
    let terminal = stage.chat(SIZE);
    terminal.enter("talk slowly");
    stage.upstream.go_on(2);
    terminal.wait("two pieces", |screen| screen.contains("One piece"));
    terminal.type_in("typed");
    terminal.wait("what was typed", |screen| screen.ends_with("> typed"));
    stage.upstream.go_on(2);
    terminal.wait("the line", |screen| screen.contains("One piece after the other."));
    terminal.type_in(" ahead");
    let screen = terminal.wait("what was typed", |screen| screen.ends_with("> typed ahead"));
    assert!(screen.contains("One piece after the other.\n"), "{screen}");
    // Sent now, it waits for the end of the answer.
    terminal.press("Enter");
    terminal.wait("the prompt that waits", |screen| screen.contains("> typed ahead (waits)"));
    terminal.type_in("kept");
    stage.upstream.go_on(2);
    let screen = terminal.wait("both answers", |screen| screen.contains("Next answer."));
    let screen = if screen.ends_with("> kept") {
        screen
    } else {
        terminal.wait("what is left", |screen| screen.ends_with("> kept"))
    };
    let at = |text: &str| screen.find(text).unwrap_or_else(|| panic!("{text}:\n{screen}"));
    assert!(at("One piece after the other.\nAnd one more line.") < at("> typed ahead\n"), "{screen}");
    assert!(at("> typed ahead\n") < at("Next answer."), "{screen}");
    assert_eq!(stage.prompted(2), "typed ahead");
}

#[test]
fn tab_completes_commands_sessions_and_files() {
    needs!("tmux");
    let stage = Stage::new();
    std::fs::write(stage.daemon.home().join("notes.txt"), "x").unwrap();
    let terminal = stage.chat(SIZE);
    terminal.type_in("/us");
    terminal.press("Tab");
    terminal.wait("the command", |screen| screen.ends_with("> /usage"));
    terminal.press("C-u");
    terminal.type_in("/s");
    terminal.press("Tab");
    terminal.wait("the choice", |screen| screen.ends_with("> /s\n/sessions  /switch"));
    terminal.press("Escape");
    terminal.wait("the choice to go", |screen| screen.ends_with("> /s"));
    terminal.press("C-u");
    terminal.type_in(&format!("/attach {}/no", stage.daemon.home().display()));
    terminal.press("Tab");
    terminal.wait("the file", |screen| screen.contains("/notes.txt"));
}
