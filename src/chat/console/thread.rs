//! The thread that has the terminal: it takes what is typed and what is to be shown, and draws.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::UserInput;
use super::editor::{EditResult, Editor};
use super::keys::{Key, Keys};
use super::painter::{Frame, Painter};
use super::screen::Screen;
use super::tty::{Size, Tty};

/// How often the screen is drawn at most, for what was not typed.
const DRAW: Duration = Duration::from_millis(50);
/// How long an escape character may wait for the rest of its sequence.
const ESCAPE: Duration = Duration::from_millis(60);
/// After a resize nothing is drawn for so long: some terminals tell of several sizes late, and what
/// is drawn for one that has passed stands in the wrong place.
const SETTLE: Duration = Duration::from_millis(300);

/// What is to be done to the screen.
pub(super) type Step = Box<dyn FnOnce(&mut Screen, &mut Editor) + Send>;

pub(super) struct TerminalThread {
    pub(super) tty: Tty,
    pub(super) steps: Receiver<Step>,
    /// Readable when there are steps or the terminal was resized.
    pub(super) wake: UnixStream,
    pub(super) woken: Arc<AtomicBool>,
    pub(super) typed: Sender<UserInput>,
    pub(super) screen: Screen,
    pub(super) editor: Editor,
    pub(super) painter: Painter,
}

impl TerminalThread {
    /// Until there is nobody left to show anything, or the terminal is gone.
    pub(super) fn run(mut self) {
        let mut keys = Keys::default();
        let mut size = self.tty.size();
        let mut bytes = [0; 4096];
        let mut drawn = Instant::now();
        let mut settled: Option<Instant> = None;
        // Whether something is to be drawn, and at once.
        let (mut dirty, mut now) = (true, true);
        loop {
            let wait = match (dirty, settled) {
                (_, Some(until)) => Some(until.saturating_duration_since(Instant::now())),
                (true, None) if now => Some(Duration::ZERO),
                (true, None) => Some(DRAW.saturating_sub(drawn.elapsed())),
                (false, None) => None,
            };
            let wait = if keys.is_unsure() { Some(wait.unwrap_or(ESCAPE).min(ESCAPE)) } else { wait };
            let Ok(ready) = self.tty.wait(&self.wake, wait) else { break };
            if ready.wake {
                // In this order: who finds it unset writes anew.
                let _ = self.wake.read(&mut bytes);
                self.woken.store(false, Ordering::SeqCst);
            }
            let done = loop {
                match self.steps.try_recv() {
                    Ok(step) => {
                        step(&mut self.screen, &mut self.editor);
                        dirty = true;
                    }
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            let mut pressed = Vec::new();
            if ready.input {
                match self.tty.read(&mut bytes) {
                    Ok(read) if read > 0 => pressed = keys.feed(&bytes[..read]),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // The terminal is gone.
                    _ => {
                        let _ = self.typed.try_send(UserInput::Leave);
                        return;
                    }
                }
            } else if keys.is_unsure() && !ready.wake {
                pressed.extend(keys.give_up());
            }
            for key in pressed {
                (dirty, now) = (true, true);
                self.press(key);
            }
            let is = self.tty.size();
            if is != size {
                size = is;
                self.screen.resize(size);
                settled = Some(Instant::now() + SETTLE);
                dirty = true;
            }
            if done {
                break;
            }
            let due = settled.map_or(now || drawn.elapsed() >= DRAW, |until| Instant::now() >= until);
            if dirty && due {
                if self.draw(size).is_err() {
                    let _ = self.typed.try_send(UserInput::Leave);
                    return;
                }
                (dirty, now, settled, drawn) = (false, false, None, Instant::now());
            }
        }
        // What is finished stays; the prompt goes.
        let finished = self.screen.take_finished();
        let _ = self.tty.write(&self.painter.paint(&finished, Frame::default(), size));
    }

    fn draw(&mut self, size: Size) -> std::io::Result<()> {
        let finished = self.screen.take_finished();
        let frame = self.screen.frame(&self.editor, size);
        let bytes = self.painter.paint(&finished, frame, size);
        if bytes.is_empty() { Ok(()) } else { self.tty.write(&bytes) }
    }

    fn press(&mut self, key: Key) {
        if self.screen.is_asking() && self.editor.text().is_empty() {
            match meant(&key) {
                KeyMeaning::Answer(c) => return self.tell(UserInput::Key(c)),
                KeyMeaning::Interrupt => return self.tell(UserInput::Interrupt { dropped: false }),
                KeyMeaning::Nothing => return,
                KeyMeaning::Text => {}
            }
        }
        match self.editor.key(key) {
            EditResult::Edited => {}
            EditResult::Submitted(text) => match self.typed.try_send(UserInput::Prompt(text.clone())) {
                // What it is the input of, or else, is shown by whoever asked for it.
                Ok(()) if self.editor.is_editing() => self.editor.reset(),
                Ok(()) => {
                    if let Some(trouble) = self.editor.remember(&text) {
                        self.screen.note(&trouble);
                    }
                    self.editor.reset();
                    self.screen.typed(&text);
                }
                Err(TrySendError::Full(_)) => self.screen.note("too many prompts wait: send this one later"),
                Err(TrySendError::Closed(_)) => {}
            },
            EditResult::Interrupted => {
                let may_drop = self.editor.is_editing() || !self.screen.is_busy();
                let dropped = may_drop && self.editor.drop_text();
                self.tell(UserInput::Interrupt { dropped });
            }
            EditResult::Left => self.tell(UserInput::Leave),
            EditResult::Cleared => {
                let clear = self.painter.clear();
                let _ = self.tty.write(clear);
            }
        }
    }

    fn tell(&self, typed: UserInput) {
        // Where so much waits to be taken, one more Ctrl-C says nothing new.
        let _ = self.typed.try_send(typed);
    }
}

/// What a key is while a question is asked and the line is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyMeaning {
    Answer(char),
    Interrupt,
    Nothing,
    /// For the prompt being typed.
    Text,
}

fn meant(key: &Key) -> KeyMeaning {
    match key {
        Key::Char(c @ ('y' | 'a' | 'n' | 'e' | 'Y' | 'A' | 'N' | 'E')) => {
            KeyMeaning::Answer(c.to_ascii_lowercase())
        }
        Key::Esc | Key::Ctrl('c') => KeyMeaning::Interrupt,
        Key::Enter => KeyMeaning::Nothing,
        _ => KeyMeaning::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_answers_and_other_keys_begin_a_prompt() {
        for (key, is) in [
            (Key::Char('y'), KeyMeaning::Answer('y')),
            (Key::Char('N'), KeyMeaning::Answer('n')),
            (Key::Char('x'), KeyMeaning::Text),
            (Key::Enter, KeyMeaning::Nothing),
            (Key::Paste("y".into()), KeyMeaning::Text),
            (Key::Ctrl('c'), KeyMeaning::Interrupt),
            (Key::Esc, KeyMeaning::Interrupt),
            (Key::Ctrl('d'), KeyMeaning::Text),
        ] {
            assert_eq!(meant(&key), is, "{key:?}");
        }
    }
}
