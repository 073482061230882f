//! The terminal of a chat: an editor for prompts at the bottom, the conversation above it.
//!
//! A thread has the terminal ([`thread`]); [`Console`] tells it what to show, and what is typed comes
//! out of a channel. The terminal is as it was when the console is dropped, on a panic, and when
//! the process is told to end. Stdin and stdout are the same terminal here: what goes through pipes
//! is not for this.
//!
//! Nothing that others wrote reaches the terminal but as characters that show something.

mod completions;
mod editor;
mod history;
mod keys;
mod markdown;
mod painter;
mod screen;
mod text;
mod thread;
mod tty;

use std::io::{Write, stdout};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(super) use self::completions::{Arguments, Completions};
use self::editor::Editor;
use self::history::History;
use self::painter::Painter;
use self::screen::Screen;
use self::thread::{Step, TerminalThread};
use self::tty::Tty;
use super::renderer::{Call, Decision, End, Outcome, Renderer};
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
pub(super) enum UserInput {
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
    /// Status 1 if stdin is no terminal, or a thread or a signal can't be had.
    pub(super) fn open(
        history: Option<PathBuf>,
        completions: Completions,
    ) -> Result<(Self, mpsc::Receiver<UserInput>), Failure> {
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
        let thread = TerminalThread {
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
            thread.run();
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

    fn step(&mut self, step: impl FnOnce(&mut Screen, &mut Editor) + Send + 'static) {
        // Where the terminal is gone, whoever reads what is typed has been told.
        if self.steps.as_ref().is_some_and(|steps| steps.send(Box::new(step)).is_ok())
            && !self.woken.swap(true, Ordering::SeqCst)
        {
            let _ = (&self.wake).write(&[0]);
        }
    }
}

impl Renderer for Console {
    fn banner(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |screen, _| screen.banner(&text));
    }

    fn prompted(&mut self, text: &str, by: Option<&str>) {
        let (text, by) = (text.to_owned(), by.map(str::to_owned));
        self.step(move |screen, _| screen.prompted(&text, by.as_deref()));
    }

    fn answer(&mut self, piece: &str) {
        let piece = piece.to_owned();
        self.step(move |screen, _| screen.answer(&piece));
    }

    fn thought(&mut self, piece: &str) {
        let piece = piece.to_owned();
        self.step(move |screen, _| screen.thought(&piece));
    }

    fn void_step(&mut self) {
        self.step(|screen, _| screen.void_step());
    }

    fn tool_call(&mut self, call: &Call) {
        let (name, input) = (call.name.clone(), call.input.clone());
        self.step(move |screen, _| screen.tool_call(&name, &input));
    }

    fn tool_result(&mut self, content: &str, is_error: bool) {
        let content = content.to_owned();
        self.step(move |screen, _| screen.tool_result(&content, is_error));
    }

    fn decided(&mut self, decision: &Decision) {
        self.note(&decision.words());
    }

    fn end_answer(&mut self, end: &End) {
        let summary = match (&end.outcome, end.summary()) {
            (Outcome::Aborted, Some(summary)) => Some(format!("aborted, {summary}")),
            (Outcome::Aborted, None) => Some("aborted".to_owned()),
            (_, summary) => summary,
        };
        if let Outcome::Failed(why) = &end.outcome {
            self.error(why);
        }
        self.step(move |screen, _| screen.end_answer(summary.as_deref()));
    }

    fn own_turn(&mut self) {
        self.step(|screen, _| screen.own_turn());
    }

    fn note(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |screen, _| screen.note(&text));
    }

    fn error(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |screen, _| screen.error(&text));
    }

    /// While there is one, a run is under way.
    fn status(&mut self, text: Option<String>) {
        self.step(move |screen, _| screen.status(text));
    }

    /// What is being typed stays, and whoever is typing answers nothing by accident: with text in it the
    /// line is a prompt.
    fn ask(&mut self, question: Option<&str>) {
        let question = question.map(|question| format!("{question} (while the line is empty)"));
        self.step(move |screen, _| screen.ask(question.as_deref()));
    }

    /// It comes back as a prompt; what was being typed is there again afterwards.
    fn edit(&mut self, text: &str) {
        let text = text.to_owned();
        self.step(move |_, editor| editor.edit(&text));
    }

    /// As dropping it does.
    fn close(self: Box<Self>) {}
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
fn signals(wake: UnixStream, typed: mpsc::Sender<UserInput>) -> std::io::Result<JoinHandle<()>> {
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
        let _ = typed.send(UserInput::Leave).await;
    }))
}
