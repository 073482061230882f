//! The terminal of a chat: an editor for prompts at the bottom, the conversation above it.
//!
//! A thread has the terminal ([`desk`]); [`Console`] tells it what to show, and what is typed comes
//! out of a channel. The terminal is as it was when the console is dropped, on a panic, and when
//! the process is told to end. Stdin and stdout are the same terminal here: what goes through pipes
//! is not for this.
//!
//! Nothing that others wrote reaches the terminal but as characters that show something.

mod completions;
mod desk;
mod editor;
mod history;
mod keys;
mod markdown;
mod painter;
mod screen;
mod text;
mod tty;

use std::io::{Write, stdout};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(super) use self::completions::{Arguments, Completions};
use self::desk::{Desk, Step};
use self::editor::Editor;
use self::history::History;
use self::painter::Painter;
use self::screen::Screen;
use self::tty::Tty;
use crate::exit::{FAILED, Failure};
use crate::terminal::{may_color, show_instead};

/// Prompts and keys that were typed and not taken yet.
const TYPED_MAX: usize = 64;
/// Things to be shown that the terminal has not taken yet; then whoever tells more waits.
const STEPS_MAX: usize = 1024;
/// How long a terminal may take to show the last of it.
const CLOSE: Duration = Duration::from_secs(2);

/// What somebody at the terminal did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A whole prompt, of any number of lines. It is on the screen already, or will be when the
    /// answer under way is complete.
    Prompt(String),
    /// `y`, `n` or `e`, while a question is asked.
    Key(char),
    /// Ctrl-C, and Escape while a question is asked.
    Interrupt {
        /// It dropped a line that was being typed, or a text that was put there to be edited. Prompts
        /// stay while a run is under way: it is the run that is interrupted then.
        dropped: bool,
    },
    /// Ctrl-D on an empty line, the end of the terminal, or a signal to end.
    Leave,
}

/// The terminal of a chat. Dropped, it gives the terminal back as it was.
#[derive(Debug)]
pub(super) struct Console {
    /// None once it is closed.
    steps: Option<SyncSender<Step>>,
    wake: UnixStream,
    woken: Arc<AtomicBool>,
    /// Says when the thread has ended.
    ended: Receiver<()>,
    signals: JoinHandle<()>,
}

impl Console {
    /// Takes the terminal. Prompts typed are kept in `history`; Tab completes from `completions`.
    /// To be called within a runtime.
    ///
    /// # Errors
    /// Status 1 where stdin is no terminal, or a thread or a signal can't be had.
    pub(super) fn open(
        history: Option<PathBuf>,
        completions: Completions,
    ) -> Result<(Self, mpsc::Receiver<Typed>), Failure> {
        let failed =
            |error: std::io::Error| Failure::new(FAILED, format!("cannot use the terminal: {error}"));
        let (history, trouble) = History::open(history);
        let (typed, typed_by) = mpsc::channel(TYPED_MAX);
        let (steps, steps_of) = sync_channel::<Step>(STEPS_MAX);
        let (wake, woken_by) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        woken_by.set_nonblocking(true).map_err(failed)?;
        let woken = Arc::new(AtomicBool::new(false));
        let signals = signals(wake.try_clone().map_err(failed)?, typed.clone()).map_err(failed)?;
        let tty = Tty::open().map_err(failed)?;
        let mut screen = Screen::new(may_color(&stdout()), tty.size());
        if let Some(trouble) = trouble {
            screen.note(&trouble);
        }
        let editor = Editor::new(history, completions);
        let painter = Painter::default();
        let desk = Desk {
            tty,
            steps: steps_of,
            wake: woken_by,
            woken: woken.clone(),
            typed,
            screen,
            editor,
            painter,
        };
        let (end, ended) = sync_channel(1);
        let thread = std::thread::Builder::new().name("terminal".into()).spawn(move || {
            desk.run();
            let _ = end.send(());
        });
        if let Err(error) = thread {
            tty::restore();
            return Err(failed(error));
        }
        let console = Self { steps: Some(steps), wake, woken, ended, signals };
        console.show_stderr().map_err(failed)?;
        Ok((console, typed_by))
    }

    /// Log lines and complaints of this process stand above the prompt and not across it.
    fn show_stderr(&self) -> std::io::Result<()> {
        let (steps, wake) = (self.steps.clone(), self.wake.try_clone()?);
        show_instead(Some(Box::new(move |lines| {
            let lines = text::bare(lines.trim_end());
            let shown =
                steps.as_ref().map(|steps| steps.try_send(Box::new(move |screen, _| screen.note(&lines))));
            // What the terminal has no time for is lost, and nobody waits for it.
            if let Some(Ok(())) = shown {
                let _ = (&wake).write(&[0]);
            }
        })));
        Ok(())
    }

    /// What the chat is with, in a line.
    pub(super) fn banner(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |screen, _| screen.banner(&text));
    }

    /// A prompt of another terminal (whose, where that is known) or of an earlier turn.
    pub(super) fn prompted(&mut self, text: &str, by: Option<&str>) {
        let (text, by) = (text.to_owned(), by.map(str::to_owned));
        self.step(move |screen, _| screen.prompted(&text, by.as_deref()));
    }

    /// A piece of the answer, in Markdown.
    pub(super) fn answer(&mut self, piece: &str) {
        let piece = piece.to_owned();
        self.step(move |screen, _| screen.answer(&piece));
    }

    /// A piece of what the model thinks.
    pub(super) fn thought(&mut self, piece: &str) {
        let piece = piece.to_owned();
        self.step(move |screen, _| screen.thought(&piece));
    }

    /// What there is of this step of the answer comes anew.
    pub(super) fn void_step(&mut self) {
        self.step(|screen, _| screen.void_step());
    }

    /// A tool is called: one row.
    pub(super) fn tool_call(&mut self, name: &str, input: &Value) {
        let (name, input) = (name.to_owned(), input.clone());
        self.step(move |screen, _| screen.tool_call(&name, &input));
    }

    /// What a tool gave: one row.
    pub(super) fn tool_result(&mut self, content: &str, is_error: bool) {
        let content = content.to_owned();
        self.step(move |screen, _| screen.tool_result(&content, is_error));
    }

    /// The answer is complete; what is to be said of it, such as "12.3 s, 456 tokens". The status
    /// is gone with it.
    pub(super) fn end_answer(&mut self, summary: Option<&str>) {
        let summary = summary.map(str::to_owned);
        self.step(move |screen, _| screen.end_answer(summary.as_deref()));
    }

    /// The turn of the prompt that was typed here and waits longest has come: it is shown.
    pub(super) fn own_turn(&mut self) {
        self.step(|screen, _| screen.own_turn());
    }

    /// Something about the conversation, of any number of lines.
    pub(super) fn note(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |screen, _| screen.note(&text));
    }

    /// What went wrong.
    pub(super) fn error(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |screen, _| screen.error(&text));
    }

    /// The live line above the prompt, such as "waiting, 3 s"; drawn in place. While there is one,
    /// a run is under way.
    pub(super) fn status(&mut self, text: Option<String>) {
        self.step(move |screen, _| screen.status(text));
    }

    /// Asks something that y, n or e answers while the line is empty. What is being typed stays, and whoever is typing
    /// answers nothing by accident.
    pub(super) fn ask(&mut self, question: Option<&str>) {
        let question = question.map(str::to_owned);
        self.step(move |screen, _| screen.ask(question.as_deref()));
    }

    /// Puts a text into the editor, such as the input of a call; it comes back as a prompt. What
    /// was being typed is there again afterwards.
    pub(super) fn edit(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |_, editor| editor.edit(&text));
    }

    /// Gives the terminal back as it was.
    pub(super) fn close(self) {
        drop(self);
    }

    fn step(&mut self, step: impl FnOnce(&mut Screen, &mut Editor) + Send + 'static) {
        // Where the terminal is gone, whoever reads what is typed has been told.
        if self.steps.as_ref().is_some_and(|steps| steps.send(Box::new(step)).is_ok())
            && !self.woken.swap(true, Ordering::SeqCst)
        {
            let _ = (&self.wake).write(&[0]);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        show_instead(None);
        self.steps = None;
        let _ = (&self.wake).write(&[0]);
        let _ = self.ended.recv_timeout(CLOSE);
        self.signals.abort();
        tty::restore();
    }
}

/// Wakes the thread when the terminal was resized; on a signal to end, gives the terminal back and
/// says so.
fn signals(wake: UnixStream, typed: mpsc::Sender<Typed>) -> std::io::Result<JoinHandle<()>> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut ended = signal(SignalKind::terminate())?;
    let mut gone = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        loop {
            tokio::select! {
                told = resized.recv() => if told.is_none() { return },
                _ = ended.recv() => break,
                _ = gone.recv() => break,
            }
            let _ = (&wake).write(&[0]);
        }
        tty::restore();
        let _ = typed.send(Typed::Leave).await;
    }))
}
