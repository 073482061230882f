//! The terminal UIs, typed at in a terminal.

use crate::npm::Generation;
use crate::stage::{Auth, Stage, says};
use crate::support::terminal::{Terminal, count};
use crate::support::tools::needs;
use crate::support::upstream::Turn;

/// Columns and lines: whole conversations are seen at once.
const SIZE: (u16, u16) = (140, 80);

/// Waits until this is on the screen, and there once.
fn once(terminal: &Terminal, text: &str) -> String {
    terminal.wait(&format!("{text:?}, once"), |screen| count(screen, text) == 1)
}

fn start(stage: &Stage) -> Terminal {
    let terminal = Terminal::start(stage.home.path(), &stage.command(&["tui"]), SIZE);
    terminal.wait("a terminal UI that is connected and idle", idle);
    terminal
}

/// Asks a question to which the model answers this, once the terminal UI knows that it was accepted.
///
/// Where it reads the acceptance and the whole run at once, its newer generation looks at the acceptance last, and
/// waits for ever for an end that it was told before. No model answers that fast.
fn ask(stage: &Stage, terminal: &Terminal, question: &str, answer: Turn) {
    stage.upstream.then(Turn::Held(Box::new(answer)));
    terminal.enter(question);
    terminal.wait("a question that is accepted", |screen| {
        screen.lines().any(|line| line.contains(" | connected") && !line.contains("sending"))
    });
    stage.upstream.go_on(1);
}

/// Its status line says that nothing runs and that it is connected.
fn idle(screen: &str) -> bool {
    let ends = ["connected | idle", "connected | aborted", "connected | error"];
    screen.lines().any(|line| ends.iter().any(|end| line.contains(end)))
}

#[test]
fn clawdbots_with_a_token() {
    needs!("clients", "npm", "tmux");
    a_day_in_the_terminal(Generation::Clawdbot);
}

#[test]
fn openclaws_with_a_token() {
    needs!("clients", "npm", "tmux");
    a_day_in_the_terminal(Generation::OpenClaw);
}

#[test]
fn clawdbots_without_a_credential() {
    needs!("clients", "npm", "tmux");
    a_word_without_a_credential(Generation::Clawdbot);
}

#[test]
fn openclaws_without_a_credential() {
    needs!("clients", "npm", "tmux");
    a_word_without_a_credential(Generation::OpenClaw);
}

fn a_word_without_a_credential(generation: Generation) {
    let stage = Stage::new(generation, Auth::Open);
    let terminal = start(&stage);
    ask(&stage, &terminal, "may I come in", says(&["No ", "credential ", "needed."]));
    once(&terminal, "No credential needed.");
}

fn a_day_in_the_terminal(generation: Generation) {
    let mut stage = Stage::new(generation, Auth::Token);
    let terminal = start(&stage);

    ask(&stage, &terminal, "what do herons do", says(&["Herons ", "wade ", "slowly."]));
    once(&terminal, "Herons wade slowly.");
    terminal.wait("the end of the run", idle);

    // What streams is seen while it streams, and an abort ends it.
    stage.will_hang_after("They stand and wait");
    terminal.enter("and when there is no fish");
    once(&terminal, "They stand and wait");
    assert!(!idle(&terminal.screen()), "it does not say that it streams:\n{}", terminal.screen());
    terminal.press("Escape");
    terminal.wait("the abort", |screen| screen.contains("run aborted") && idle(screen));

    // A provider that refuses is no silence. (Theirs has words of its own for it, or none.)
    if stage.daemon().is_some() {
        let refusal = Turn::Status(400, None, r#"{"error":{"message":"no such lake"}}"#.into());
        ask(&stage, &terminal, "ask another lake", refusal);
        terminal.wait("the error", |screen| screen.contains("no such lake"));
        terminal.wait("the end of the failed run", idle);
    }

    settings(&stage, &terminal);
    once(&terminal, "Herons wade slowly.");

    if stage.daemon().is_some() {
        stage.will_hang_after("Before the storm");
        terminal.enter("is it going to rain");
        once(&terminal, "Before the storm");
        stage.will_say(&["It rains, ", "and the answer ", "is whole."]);
        stage.crash();
        once(&terminal, "It rains, and the answer is whole.");
        let screen = terminal.wait("the end of the run", idle);
        assert_eq!(count(&screen, "is it going to rain"), 1, "the question is there once:\n{screen}");
        ask(&stage, &terminal, "and now", says(&["Dry ", "again."]));
        once(&terminal, "Dry again.");
        terminal.wait("the end of the run", idle);
    }

    terminal.enter("/new");
    terminal.wait("an empty conversation", |screen| !screen.contains("Herons") && screen.contains("session"));
    ask(&stage, &terminal, "hello again", says(&["A fresh ", "start."]));
    let screen = once(&terminal, "A fresh start.");
    assert!(!screen.contains("Herons"), "the old conversation is back:\n{screen}");
}

/// The commands that ask and set.
fn settings(stage: &Stage, terminal: &Terminal) {
    let status = match stage.generation {
        Generation::Clawdbot => "/status",
        Generation::OpenClaw => "/gateway-status",
    };
    terminal.enter(status);
    terminal.wait("the status", |screen| {
        screen.contains("Gateway status")
            && screen.contains("test-model")
            && (screen.contains("Active sessions") || screen.contains("Stored sessions"))
    });

    terminal.enter("/models");
    terminal.wait("the list of models", |screen| {
        // Theirs lists what it knows by itself first.
        screen.contains("search:") && (screen.contains("/test-model") || stage.daemon().is_none())
    });
    terminal.press("Escape");
    terminal.wait("the list of models to close", |screen| !screen.contains("search:"));

    terminal.enter("/sessions");
    terminal.wait("the list of sessions", |screen| screen.contains("Filter:") && screen.contains("just now"));
    terminal.press("Escape");
    terminal.wait("the list of sessions to close", |screen| !screen.contains("Filter:"));

    // Before Enter, the older editor's list of levels has to be gone: it would take it for a choice.
    terminal.enter(match stage.generation {
        Generation::Clawdbot => "/think low ",
        Generation::OpenClaw => "/think low",
    });
    terminal.wait("the thinking level", |screen| screen.contains("thinking set to low"));
}
