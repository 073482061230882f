//! A session at a terminal: joined in the midst of a run that somebody else began, seen alike from two
//! terminals, left for another one; its approvals, and the commands of the chat.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::stage::{Stage, is_idle};
use crate::support::client::Client;
use crate::support::daemon::{Daemon, command};
use crate::support::eventually;
use crate::support::openclaw;
use crate::support::terminal::{Terminal, count};
use crate::support::tools::needs;
use crate::support::upstream::Turn;

const SIZE: (u16, u16) = (100, 40);

/// Tools that ask first.
const ASKS: &str = "[[plugins]]\nname = \"echo\"\napproval = \"ask\"\n[approvals]\ntimeout_ms = 600000\n";

/// A terminal that chats with the daemon; its tmux lives in `folder`.
fn chat_in(folder: &Path, daemon: &Daemon, args: &[&str]) -> Terminal {
    let mut chat = command(daemon.home());
    chat.arg("chat").args(args).env("TERM", "tmux-256color").env("USER", "ann");
    let terminal = Terminal::start(folder, &chat, SIZE);
    terminal.wait("the banner", |screen| screen.contains("agent main, model offline/offline, session "));
    terminal
}

/// A shell that chats, on a terminal of this name, once a line was read, and then says the exit status:
/// tmux has its own name for a terminal, and does not always know a status.
fn shell(daemon: &Daemon, term: &str, args: &str) -> Terminal {
    let chat = command(daemon.home());
    let words: Vec<_> = std::iter::once(chat.get_program()).chain(chat.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let mut shell = Command::new("/bin/sh");
    shell.args([
        "-c",
        &format!("trap : INT; read line; TERM={term} USER=ann {} {args}; echo status $?", words.join(" ")),
    ]);
    Terminal::start(daemon.home(), &shell, SIZE)
}

fn chat(daemon: &Daemon, args: &[&str]) -> Terminal {
    chat_in(daemon.home(), daemon, args)
}

/// What the daemon's sessions hold of prompts and answers, as its log has it.
fn prompts(daemon: &Daemon, session: &str) -> Vec<String> {
    let log = daemon.stdout_of(&["session", "show", session, "--json"]);
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let prompts = events.filter(|event| event["event"] == "prompt");
    prompts.map(|event| event["content"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_run_begun_over_openclaw_is_joined_in_its_midst() {
    needs!("tmux");
    let daemon = Daemon::start();
    let mut client = openclaw::connect(daemon.address, 4);
    let send = |client: &mut Client, id: &str, message: &str| {
        let params = json!({ "sessionKey": "work", "message": message, "idempotencyKey": id });
        assert_eq!(openclaw::call(client, "chat.send", params)["status"], "started");
    };
    let said = |client: &mut Client, what: &str| loop {
        let frame = client.take_kept().unwrap_or_else(|| client.receive());
        if frame["event"] == "chat" && frame.to_string().contains(what) {
            return;
        }
    };
    send(&mut client, "first", "what was before");
    said(&mut client, "\"state\":\"final\"");
    send(&mut client, "second", "/slow 8");
    said(&mut client, "Slowly: 1");

    let terminal = chat(&daemon, &["--session", "main:openclaw:work:main"]);
    let joined = terminal.wait("the run", |screen| screen.contains("Slowly: 1"));
    assert!(joined.contains("> what was before") && joined.contains("> /slow 8"), "{joined}");
    assert!(!joined.contains(" 8 done."), "in its midst: {joined}");
    let whole = terminal.wait("its end", |screen| screen.contains("Slowly: 1 2 3 4 5 6 7 8 done."));
    assert_eq!(count(&whole, "> /slow 8"), 1, "{whole}");

    // What is said here is heard there.
    terminal.enter("and from here");
    said(&mut client, "and from here");
}

#[test]
fn two_terminals_on_a_session_see_the_same() {
    needs!("tmux");
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (chat(&daemon, &[]), chat_in(folder.path(), &daemon, &[]));
    one.enter("/slow 4");
    other.wait("the prompt of the other", |screen| screen.contains("> /slow 4"));
    one.wait("the answer", |screen| screen.contains("Slowly: 1"));
    // A prompt of each while it is answered: in the order in which they came, on both.
    other.enter("from the second");
    other.wait("a prompt that waits", |screen| screen.contains("> from the second (waits)"));
    one.enter("from the first");
    for terminal in [&one, &other] {
        let screen = terminal.wait("both answers", |screen| {
            screen.contains("You said: \"from the second\"")
                && screen.contains("You said: \"from the first\"")
        });
        terminal.wait("the end", is_idle);
        let at = |text: &str| screen.find(text).unwrap_or_else(|| panic!("{text}:\n{screen}"));
        assert!(at("Slowly: 1 2 3 4 done.") < at("> from the second"), "{screen}");
        assert!(at("> from the second") < at("You said: \"from the second\""), "{screen}");
        assert!(at("You said: \"from the second\"") < at("> from the first"), "{screen}");
        assert!(at("> from the first") < at("You said: \"from the first\""), "{screen}");
    }
}

#[test]
fn a_call_is_approved_denied_and_edited_by_a_key() {
    needs!("tmux");
    let daemon = Daemon::with(ASKS);
    let terminal = chat(&daemon, &[]);
    let asks = |screen: &str| screen.contains("y = yes, n = no, e = edit the input");

    terminal.enter("/tool echo {\"text\":\"first\"}");
    terminal.wait("the question", asks);
    terminal.press("y");
    terminal.wait("the call", |screen| screen.contains("echo answered: \"first\"") && is_idle(screen));

    terminal.enter("/tool echo {\"text\":\"second\"}");
    terminal.wait("the question", asks);
    terminal.type_in("maybe next");
    terminal.wait("text", |screen| screen.ends_with("> maybe next") && asks(screen));
    terminal.press("C-u");
    terminal.wait("no text", is_idle);
    terminal.press("n");
    let screen = terminal.wait("no call", |screen| screen.contains("echo denied") && is_idle(screen));
    assert!(!screen.contains("echo answered: \"second\""), "{screen}");

    terminal.enter("/tool echo {\"text\":\"third\"}");
    terminal.wait("the question", asks);
    terminal.press("e");
    terminal.wait("the input", |screen| {
        screen.contains("edit the input of echo") && screen.contains("\"text\": \"third\"")
    });
    // From the end: the brace, the line end, the quote.
    for _ in 0..3 {
        terminal.press("BSpace");
    }
    terminal.type_in(" edited\"}");
    terminal.press("Enter");
    terminal.wait("the call", |screen| screen.contains("echo answered: \"third edited\"") && is_idle(screen));
    assert_eq!(prompts(&daemon, "main:cli:ann:main").len(), 3, "an input is no prompt");
}

#[test]
fn a_call_that_waits_is_asked_about_by_who_comes_later() {
    needs!("tmux");
    let (daemon, mut client) = Daemon::with(ASKS).and(Client::connect);
    client.prompt("ada", "/tool echo {\"text\":\"hi\"}");
    eventually("the call", || daemon.rows_of(&["approvals"]).pop());
    let terminal = chat(&daemon, &["--session", "main:websocket:ada"]);
    terminal.wait("the question", |screen| screen.contains("y = yes, n = no"));
    terminal.press("y");
    terminal.wait("the call", |screen| screen.contains("echo answered: \"hi\""));
}

#[test]
fn a_call_that_is_decided_elsewhere_is_not_asked_about_any_more() {
    needs!("tmux");
    let daemon = Daemon::with(ASKS);
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (chat(&daemon, &[]), chat_in(folder.path(), &daemon, &[]));
    let asks = |screen: &str| screen.contains("y = yes, n = no");
    let asks_no_more = |screen: &str| screen.contains("echo denied in another terminal") && !asks(screen);

    one.enter("/tool echo {\"text\":\"hi\"}");
    one.wait("the question", asks);
    other.wait("the question", asks);
    other.press("n");
    one.wait("who decided", asks_no_more);
    one.wait("the end", is_idle);

    // Neither at a terminal.
    one.enter("/tool echo {\"text\":\"again\"}");
    one.wait("the question", asks);
    let waiting = daemon.rows_of(&["approvals"]);
    let id = waiting[0]["approval"].as_str().unwrap_or_else(|| panic!("{waiting:?}"));
    daemon.stdout_of(&["approval", "approve", id]);
    for terminal in [&one, &other] {
        terminal.wait("the call", |screen| screen.contains("echo answered: \"again\"") && !asks(screen));
    }
}

#[test]
fn another_session_is_gone_to_and_come_back_from() {
    needs!("tmux");
    let daemon = Daemon::start();
    let terminal = chat(&daemon, &[]);
    let at = |key: &str| {
        let banner = format!("session {key}");
        move |screen: &str| {
            screen
                .lines()
                .rev()
                .find(|line| line.contains("session "))
                .is_some_and(|line| line.contains(&banner))
        }
    };
    terminal.enter("said at home");
    terminal.wait("an answer", |screen| screen.contains("You said: \"said at home\"") && is_idle(screen));
    terminal.enter("/new work");
    terminal.wait("the new one", at("main:cli:ann:work"));
    terminal.enter("said at work");
    terminal.wait("an answer", |screen| screen.contains("You said: \"said at work\"") && is_idle(screen));
    terminal.enter("/new work");
    terminal.wait("a refusal", |screen| screen.contains("is there already: /switch work"));
    terminal.enter("/sessions");
    terminal.wait("the list", |screen| screen.contains("* work ") && screen.contains("  main "));
    terminal.enter("/switch main:cli:ann:ma");
    terminal.wait("another, by its whole key", at("main:cli:ann:ma"));
    terminal.enter("/switch main");
    terminal.wait("home", at("main:cli:ann:main"));
    let screen = terminal.wait("its last turns", |screen| count(screen, "> said at home") == 2);
    assert_eq!(count(&screen, "> said at work"), 1, "{screen}");
    terminal.enter("/switch mian");
    terminal.wait("a word of it", |screen| {
        screen.contains("new session: the first prompt begins it; did you mean /switch main?")
    });
    terminal.enter("/sessions");
    terminal.wait("it to be listed", |screen| {
        screen.lines().any(|line| line.trim_start().starts_with("* mian ") && line.ends_with(" new"))
    });
    terminal.type_in("/sl");
    terminal.press("Tab");
    terminal.wait("the offline model's command", |screen| screen.trim_end().ends_with("> /slow"));
    terminal.press("C-u");
    terminal.wait("an empty line", is_idle);
    terminal.enter("/switch nowhere:");
    terminal.wait("a refusal", |screen| screen.contains("no session begins with nowhere:; there are: "));
    terminal.enter("/agent nobody");
    terminal.wait("a refusal", |screen| screen.contains("there is no agent nobody; there are: main"));
    assert_eq!(prompts(&daemon, "main:cli:ann:main"), ["said at home"]);
    assert_eq!(prompts(&daemon, "main:cli:ann:work"), ["said at work"]);
}

#[test]
fn commands_are_never_sent_and_two_slashes_send_one() {
    needs!("tmux");
    let daemon = Daemon::start();
    let file = daemon.home().join("notes.md");
    std::fs::write(&file, "# notes").unwrap();
    let terminal = shell(&daemon, "tmux-256color", "chat");
    terminal.press("Enter");
    terminal.wait("the banner", |screen| screen.contains("agent main, model offline/offline"));
    for (typed, says) in [
        ("/sesions", "unknown command /sesions, not sent: did you mean /sessions?"),
        ("/exit", "did you mean /quit?"),
        ("/usr/bin/env", "/help lists the commands"),
        ("/help", "/slow SECONDS"),
        ("/usage", "this session"),
        ("/model", "* offline/offline"),
        ("/model nothing/here", "no agent uses a provider nothing"),
        ("/agent", "* main"),
        ("/abort", "nothing to abort"),
        ("/attach nowhere.txt", "nowhere.txt: cannot read it"),
    ] {
        terminal.enter(typed);
        terminal.wait(typed, |screen| screen.contains(says) && is_idle(screen));
    }
    terminal.enter(&format!("/attach {}", file.display()));
    terminal.wait("the file", |screen| screen.contains("goes with the next prompt"));
    terminal.enter("//x");
    let answered = |said: &'static str| move |screen: &str| screen.contains(said) && is_idle(screen);
    terminal.wait(
        "an answer",
        answered("You said: \"/x\" (1 word). You sent notes.md (text/markdown, 7 bytes)."),
    );
    terminal.enter("/slow 1");
    terminal.wait("an answer", answered("Slowly: 1 done."));
    terminal.enter("/fail");
    terminal.wait("a failure", answered("error: provider error: offline: failed, as /fail asks for"));
    assert_eq!(prompts(&daemon, "main:cli:ann:main"), ["/x", "/slow 1", "/fail"]);
    terminal.enter("/quit");
    terminal.wait("the end", |screen| screen.contains("status 0"));
}

#[test]
fn a_session_that_is_deleted_begins_anew() {
    needs!("tmux");
    let daemon = Daemon::start();
    let terminal = chat(&daemon, &[]);
    terminal.enter("hello");
    terminal.wait("an answer", |screen| screen.contains("tokens in"));
    daemon.stdout_of(&["session", "delete", "main:cli:ann:main"]);
    terminal.wait("a word of it", |screen| {
        screen.contains("the session was deleted; the next prompt begins it anew")
    });
    terminal.enter("again");
    terminal.wait("an answer without a memory", |screen| {
        screen.contains("You said: \"again\" (1 word). I am the offline")
    });
}

#[test]
fn an_answer_is_left_for_another_session_and_come_back_to() {
    needs!("tmux");
    let daemon = Daemon::start();
    let terminal = chat(&daemon, &[]);
    terminal.enter("/slow 5");
    terminal.wait("some of the answer", |screen| screen.contains("Slowly: 1"));
    terminal.enter("/switch other");
    terminal.wait("the other", |screen| {
        screen.contains("session main:cli:ann:other") && !screen.contains("answering")
    });
    terminal.enter("meanwhile");
    let screen = terminal.wait("an answer", |screen| screen.contains("You said: \"meanwhile\""));
    assert!(!screen.contains("(waits)"), "{screen}");
    terminal.enter("/switch main");
    terminal.wait("all of it", |screen| screen.contains("Slowly: 1 2 3 4 5 done."));
}

#[test]
fn another_model_answers_where_it_is_chosen() {
    needs!("tmux");
    let stage = Stage::new();
    let terminal = stage.chat(SIZE);
    let model = || stage.upstream.requests().last().map(|request| request.body["model"].clone());
    for (typed, says, answers) in [
        ("/model up/heron-2", "up/heron-2 answers from the next prompt on", "heron-2"),
        ("/model default", "the agent answers with up/heron-1 again", "heron-1"),
    ] {
        terminal.enter(typed);
        terminal.wait("a word of it", |screen| screen.contains(says));
        stage.says(&format!("I am {answers}"));
        terminal.enter(&format!("who is it instead of {typed}?"));
        terminal.wait("the answer", |screen| screen.contains(&format!("I am {answers}")));
        assert_eq!(model(), Some(json!(answers)));
    }
    terminal.enter("/model heron-1");
    terminal.wait("a refusal", |screen| screen.contains("did you mean /model up/heron-1?"));
    terminal.enter("/slow 3");
    terminal.wait("a refusal", |screen| screen.contains("only the offline model knows it"));
    assert_eq!(stage.prompts().len(), 2);
}

#[test]
fn a_daemon_that_comes_back_goes_on_where_it_was() {
    needs!("tmux");
    let daemon = Daemon::start();
    let terminal = chat(&daemon, &[]);
    terminal.enter("/slow 6");
    terminal.wait("some of the answer", |screen| screen.contains("Slowly: 1"));
    let daemon = daemon.kill_and_restart();
    let screen = terminal.wait("the end", |screen| screen.contains("Slowly: 1 2 3 4 5 6 done."));
    assert!(screen.contains("waiting for the daemon, Ctrl-C leaves"), "{screen}");
    assert!(screen.contains("the answer was cut off and goes on"), "{screen}");
    terminal.enter("still there?");
    terminal.wait("an answer", |screen| screen.contains("You said: \"still there?\""));
    assert_eq!(prompts(&daemon, "main:cli:ann:main"), ["/slow 6", "still there?"]);
}

#[test]
fn a_daemon_in_the_chat_is_told_and_joined() {
    needs!("tmux");
    let home = crate::support::daemon::home();
    // Whoever listens where daemons do by default is no matter here.
    std::fs::write(home.path().join("gateway.toml"), "[gateway]\nlisten = [\"127.0.0.1:0\"]\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = |folder: &Path| {
        let mut chat = command(home.path());
        chat.arg("chat").env("TERM", "tmux-256color").env("USER", "ann");
        Terminal::start(folder, &chat, SIZE)
    };
    let first = start(home.path());
    let told = first.wait("the banner", |screen| screen.contains("agent main, model offline/offline"));
    assert!(told.contains("`clawmux serve` keeps sessions running"), "{told}");
    let second = start(folder.path());
    let told = second.wait("the banner", |screen| screen.contains("agent main, model offline/offline"));
    assert!(!told.contains("clawmux serve"), "{told}");
    second.enter("hello");
    first.wait("the prompt of the other", |screen| screen.contains("You said: \"hello\""));
}

#[test]
fn a_single_turn_shows_that_it_waits() {
    needs!("tmux");
    let stage = Stage::new();
    stage.upstream.then(Turn::HangBody("So".into()));
    let terminal = shell(&stage.daemon, "tmux-256color", "chat hi");
    terminal.press("Enter");
    // First nothing is heard, then something.
    terminal.wait("the beginning", |screen| screen.contains("So"));
    terminal.press("C-c");
    terminal.wait("the end", |screen| screen.contains("aborted") && screen.contains("status 130"));

    stage.upstream.then(Turn::HangHead);
    let terminal = shell(&stage.daemon, "tmux-256color", "chat hi");
    terminal.press("Enter");
    terminal.wait("a sign of life", |screen| screen.contains("waiting, 1 s"));
    terminal.press("C-c");
    let screen = terminal.wait("the end", |screen| screen.contains("aborted"));
    assert!(!screen.contains("waiting"), "it is drawn over: {screen}");
}

#[test]
fn an_answer_that_goes_through_a_pipe_is_all_there_is() {
    needs!("tmux");
    let daemon = Daemon::start();
    let terminal = shell(&daemon, "tmux-256color", "chat /slow 2 | cat");
    let record = daemon.home().join("record");
    terminal.record(&record);
    terminal.press("Enter");
    terminal.wait("the end", |screen| screen.contains("Slowly: 1 2 done.") && screen.contains("status 0"));
    let written = std::fs::read_to_string(&record).unwrap();
    for other in ["\u{1b}", "waiting", "answering", "tokens in"] {
        assert!(!written.contains(other), "{other:?} in {written:?}");
    }
}

#[test]
fn a_terminal_that_can_not_be_drawn_on_has_lines() {
    needs!("tmux");
    let daemon = Daemon::with(ASKS);
    let terminal = shell(&daemon, "dumb", "chat");
    let record = daemon.home().join("record");
    terminal.record(&record);
    terminal.press("Enter");
    terminal.wait("a prompt", is_idle);
    terminal.enter("hello");
    terminal.wait("an answer", |screen| screen.contains("You said: \"hello\"") && is_idle(screen));
    terminal.enter("/tool echo {\"text\":\"hi\"}");
    terminal.wait("the question", |screen| screen.contains("y = yes, n = no"));
    terminal.enter("y");
    let screen =
        terminal.wait("the call", |screen| screen.contains("echo answered: \"hi\"") && is_idle(screen));
    let written = std::fs::read_to_string(&record).unwrap();
    assert!(written.contains("echo answered") && !written.contains('\u{1b}'), "{written:?}\n{screen}");
    terminal.enter("/nosuch");
    terminal.wait("a refusal and a prompt", |screen| screen.contains("not sent") && is_idle(screen));
    terminal.press("C-d");
    terminal.wait("the end", |screen| screen.contains("status 0"));
}
