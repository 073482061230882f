//! What somebody types where there is no editor: line by line, as the terminal hands them over.

use std::io::stdin;

use tokio::sync::mpsc;

use super::console::Typed;

/// So many lines are read ahead.
const AHEAD: usize = 16;

/// The lines typed. The thread waits for the terminal and so ends with the process.
pub(super) fn lines() -> mpsc::Receiver<Typed> {
    let (typed, lines) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in stdin().lines() {
            let Ok(line) = line else { break };
            if typed.blocking_send(Typed::Prompt(line)).is_err() {
                return;
            }
        }
        let _ = typed.blocking_send(Typed::Leave);
    });
    lines
}
