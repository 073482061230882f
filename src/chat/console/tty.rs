//! The terminal itself: raw while the chat has it, as it was afterwards, whatever happens.

use std::fs::File;
use std::io::{self, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Text pasted comes between marks.
const ENTER: &[u8] = b"\x1b[?2004h";
/// No marks around pastes, long lines wrap, the cursor is seen, no colour.
const LEAVE: &[u8] = b"\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[0m";

/// How the terminal was set before; none while it is set so.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// How large it is, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

pub(super) struct Tty {
    input: File,
    output: File,
}

/// What there is to read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ready {
    pub(super) input: bool,
    pub(super) wake: bool,
}

impl Tty {
    /// Takes the terminal behind stdin and stdout, and makes it raw.
    ///
    /// # Errors
    /// Where stdin is no terminal.
    pub(super) fn open() -> io::Result<Self> {
        let input = File::from(stdin().as_fd().try_clone_to_owned()?);
        let output = File::from(stdout().as_fd().try_clone_to_owned()?);
        let before = tcgetattr(&input)?;
        let mut raw = before.clone();
        raw.make_raw();
        restore_on_panic();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        tcsetattr(&input, OptionalActions::Now, &raw)?;
        let mut tty = Self { input, output };
        tty.write(ENTER)?;
        Ok(tty)
    }

    pub(super) fn size(&self) -> Size {
        let size = tcgetwinsize(&self.output).ok();
        size.filter(|size| size.ws_col > 0 && size.ws_row > 0).map_or_else(Size::default, |size| Size {
            columns: usize::from(size.ws_col),
            rows: usize::from(size.ws_row),
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    /// What was typed; nothing where the terminal is gone.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }

    /// Waits until something was typed, `wake` has something, or the time is up.
    pub(super) fn wait(&self, wake: &UnixStream, timeout: Option<Duration>) -> io::Result<Ready> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.input, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(Ready { input: !fds[0].revents().is_empty(), wake: !fds[1].revents().is_empty() }),
            Err(rustix::io::Errno::INTR) => Ok(Ready::default()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sets the terminal as it was before. Once is enough, and more does no harm.
pub(super) fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // Where nobody reads what is written, nobody waits for it either.
        if takes_more() {
            let _ = stdout().write_all(LEAVE).and_then(|()| stdout().flush());
        }
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// Whether what is written goes on to the terminal, soon.
fn takes_more() -> bool {
    let stdout = stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
    let soon = Timespec::try_from(Duration::from_millis(200)).ok();
    matches!(poll(&mut fds, soon.as_ref()), Ok(ready) if ready > 0)
}

/// A panic is told on a terminal that shows it as it should be.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}
