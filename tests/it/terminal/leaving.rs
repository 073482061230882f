//! Ctrl-C, Ctrl-D, and the end of the terminal: everything is left as it was found.

use std::process::Command;

use super::stage::{Stage, is_idle};
use crate::support::daemon::command;
use crate::support::eventually;
use crate::support::terminal::Terminal;
use crate::support::tools::needs;
use crate::support::upstream::Turn;

const SIZE: (u16, u16) = (80, 24);

/// A shell that chats and then says how the terminal is set.
fn shell(stage: &Stage) -> Terminal {
    let chat = command(stage.daemon.home());
    let words: Vec<_> = std::iter::once(chat.get_program()).chain(chat.get_args()).collect();
    let chat: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let script = format!(
        "echo $$ > shell.pid; {} chat; echo status $?; stty -a; read line; echo got $line",
        chat.join(" ")
    );
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().env("HOME", stage.daemon.home()).env("PATH", std::env::var_os("PATH").unwrap());
    shell.env("TERM", "tmux-256color").env("USER", "ann").args(["-c", &script]);
    let terminal = Terminal::start(stage.daemon.home(), &shell, SIZE);
    terminal.wait("the prompt", is_idle);
    terminal
}

/// The terminal echoes, breaks lines and obeys Ctrl-C, and pastes come without marks.
fn is_restored(terminal: &Terminal) {
    let screen = terminal.wait("the settings", |screen| screen.contains("extproc"));
    for setting in ["icanon", "echo", "isig", "icrnl", "opost", "ixon"] {
        assert!(screen.split_whitespace().any(|word| word == setting), "{setting}:\n{screen}");
    }
    terminal.paste("plain");
    terminal.press("Enter");
    terminal.wait("a paste without marks", |screen| screen.contains("got plain"));
}

#[test]
fn ctrl_c_drops_the_line_and_then_leaves_and_ctrl_d_leaves() {
    needs!("tmux");
    let stage = Stage::new();
    let terminal = shell(&stage);
    terminal.type_in("half a");
    terminal.wait("the line", |screen| screen.ends_with("> half a"));
    terminal.press("C-d");
    terminal.wait("nothing to come of it", |screen| screen.ends_with("> half a"));
    terminal.press("C-c");
    let is_told = |screen: &str| screen.contains("Ctrl-C once more leaves") && is_idle(screen);
    terminal.wait("the line to be dropped", is_told);
    terminal.press("C-c");
    terminal.wait("the end", |screen| screen.contains("status 0"));
    is_restored(&terminal);

    let terminal = shell(&stage);
    terminal.press("C-c");
    terminal.wait("a word about it", is_told);
    terminal.press("C-c");
    terminal.wait("the end", |screen| screen.contains("status 0"));
    is_restored(&terminal);
    assert_eq!(stage.upstream.requests().len(), 0);

    let terminal = shell(&stage);
    terminal.press("C-d");
    terminal.wait("the end", |screen| screen.contains("status 0"));
    is_restored(&terminal);
}

#[test]
fn ctrl_c_aborts_a_run_and_leaves_what_is_typed() {
    needs!("tmux");
    let stage = Stage::new();
    stage.upstream.then(Turn::HangBody("The beginning".into()));
    stage.says("Well again.");
    let terminal = stage.chat(SIZE);
    terminal.enter("go on forever");
    terminal.wait("some of the answer", |screen| screen.contains("The beginning"));
    terminal.type_in("typed meanwhile");
    terminal.wait("what was typed", |screen| screen.ends_with("> typed meanwhile"));
    terminal.press("C-c");
    let screen = terminal.wait("the abort", |screen| screen.contains("aborted"));
    assert!(screen.contains("The beginning"), "{screen}");
    terminal.wait("what was typed", |screen| screen.ends_with("> typed meanwhile"));
    terminal.press("Enter");
    terminal.wait("the next answer", |screen| screen.contains("Well again.") && is_idle(screen));
    assert_eq!(terminal.ended(), None);
}

#[test]
fn a_signal_to_end_gives_the_terminal_back() {
    needs!("tmux");
    let stage = Stage::new();
    let terminal = shell(&stage);
    let shell = std::fs::read_to_string(stage.daemon.home().join("shell.pid")).unwrap();
    let sent = Command::new("pkill").args(["-TERM", "-P", shell.trim(), "clawmux"]).status().unwrap();
    assert!(sent.success(), "SIGTERM is sent");
    terminal.wait("the end", |screen| screen.contains("status"));
    is_restored(&terminal);
}

#[test]
fn a_terminal_that_goes_ends_the_chat_and_not_the_session() {
    needs!("tmux");
    let stage = Stage::new();
    stage.says("Still here.");
    let terminal = stage.chat(SIZE);
    let pid = terminal.pid();
    terminal.hang_up();
    let process = format!("/proc/{pid}");
    eventually("the chat to end", || !std::path::Path::new(&process).exists());
    let terminal = stage.chat(SIZE);
    terminal.enter("still there?");
    terminal.wait("the answer", |screen| screen.contains("Still here."));
}

#[test]
fn a_daemon_in_the_chat_finishes_what_runs_unless_one_is_in_a_hurry() {
    needs!("tmux");
    let home = crate::support::daemon::home();
    std::fs::write(home.path().join("gateway.toml"), "[gateway]\nlisten = [\"127.0.0.1:0\"]\n").unwrap();
    let begin = || {
        let chat = command(home.path());
        let words: Vec<_> = std::iter::once(chat.get_program()).chain(chat.get_args()).collect();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let mut shell = Command::new("/bin/sh");
        shell.args([
            "-c",
            &format!("trap : INT; TERM=tmux-256color USER=ann {} chat; echo status $?", words.join(" ")),
        ]);
        Terminal::start(home.path(), &shell, SIZE)
    };
    let mut terminal = begin();
    terminal.wait("the prompt", is_idle);
    terminal.enter("/slow 300");
    terminal.wait("some of the answer", |screen| screen.contains("Slowly: 1"));
    for key in ["C-c", "C-d"] {
        terminal.press("C-d");
        terminal.wait("a word about it", |screen| screen.contains("finishing what runs; Ctrl-C leaves now"));
        terminal.press(key);
        terminal.wait("the end", |screen| screen.contains("status 0"));
        drop(terminal);
        terminal = begin();
        // It goes on.
        terminal.wait("the answer", |screen| screen.contains("> /slow 300") && screen.contains("Slowly: 1"));
    }
}

#[test]
fn a_damaged_history_is_said_and_set_aside() {
    needs!("tmux");
    let stage = Stage::new();
    std::fs::write(stage.daemon.home().join("chat-history"), "\"kept\"\nnot JSON\n").unwrap();
    let terminal = stage.chat((200, 24));
    terminal.wait("a word about it", |screen| screen.contains("was damaged: it is set aside as"));
    terminal.press("Up");
    terminal.wait("what could be read", |screen| screen.ends_with("> kept"));
    assert!(stage.daemon.home().join("chat-history.broken").exists());
}
