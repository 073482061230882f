//! The user's input: delivered as it comes, kept for later while the chat waits for the daemon.

use std::collections::VecDeque;
use std::future::pending;
use std::io::stdin;

use tokio::sync::mpsc;

use super::console::UserInput;

/// How many lines are read ahead where there is no editor.
const AHEAD: usize = 16;
/// How many inputs are kept while the chat waits for the daemon.
const EARLY_MAX: usize = 64;

/// The input of an interactive chat; never any in others.
#[derive(Debug)]
pub(super) struct Keyboard {
    typed: Option<mpsc::Receiver<UserInput>>,
    early: VecDeque<UserInput>,
}

impl Keyboard {
    /// A keyboard with this input; none if the chat is not interactive.
    pub(super) fn new(typed: Option<mpsc::Receiver<UserInput>>) -> Self {
        Self { typed, early: VecDeque::new() }
    }

    /// Whether somebody types.
    pub(super) fn is_there(&self) -> bool {
        self.typed.is_some()
    }

    /// An input that was kept while the chat waited for the daemon.
    pub(super) fn early(&mut self) -> Option<UserInput> {
        self.early.pop_front()
    }

    /// The next input; none at the end. Never returns if the chat is not interactive. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<UserInput> {
        match &mut self.typed {
            Some(typed) => typed.recv().await,
            None => pending().await,
        }
    }

    /// Waits until the user wants to leave; keeps other input for later.
    pub(super) async fn leave(&mut self) {
        loop {
            match self.next().await {
                Some(UserInput::Interrupt { .. } | UserInput::Leave) | None => return,
                Some(UserInput::Prompt(text)) if text.trim() == "/quit" => return,
                Some(other) if self.early.len() < EARLY_MAX => self.early.push_back(other),
                Some(_) => {}
            }
        }
    }
}

/// The lines typed, where there is no editor. The thread waits for the terminal and so ends with the process.
pub(super) fn lines() -> mpsc::Receiver<UserInput> {
    let (typed, lines) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in stdin().lines() {
            let Ok(line) = line else { break };
            if typed.blocking_send(UserInput::Prompt(line)).is_err() {
                return;
            }
        }
        let _ = typed.blocking_send(UserInput::Leave);
    });
    lines
}
