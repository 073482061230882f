//! Asks the user at the terminal. Questions go to stderr, so that stdout can be redirected; answers are read
//! line by line, secrets without echo.

use std::io::{self, BufRead, IsTerminal, Read, Write, stderr, stdin};
use std::os::fd::AsFd;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use crate::exit::{FAILED, Failure, INTERRUPTED, USAGE};
use crate::terminal::tell;

/// The longest line that is taken, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Whether there is a terminal to ask on.
pub(crate) fn is_possible() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Asks for a line and returns it trimmed; empty for Enter alone.
///
/// # Errors
/// Status 1 if the terminal is gone.
pub(crate) fn line(question: &str) -> Result<String, Failure> {
    write(question)?;
    let mut typed = String::new();
    let read = stdin().lock().take(LINE_BYTES_MAX).read_line(&mut typed).map_err(|error| gone(&error))?;
    if read == 0 {
        write("\n")?;
        return Err(Failure::new(FAILED, "no answer: nothing was changed"));
    }
    Ok(typed.trim().to_owned())
}

/// Asks a yes-or-no question; Enter alone is no.
///
/// # Errors
/// As [`line()`].
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    loop {
        match line(&format!("{question} [y/N] "))?.to_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "" | "n" | "no" => return Ok(false),
            _ => write("Please answer y or n.\n")?,
        }
    }
}

/// Tells what would happen and asks whether it shall; Enter alone is no. `option` is what to give where
/// nobody can be asked, `no` what the failure says where the answer is no.
///
/// # Errors
/// Status 2 if nobody can be asked, 1 if the answer is no.
pub(crate) fn agree(what: &str, question: &str, option: &str, no: &str) -> Result<(), Failure> {
    if !is_possible() {
        let why = format!("{what}\nthere is no terminal to ask on. {option}");
        return Err(Failure::new(USAGE, why));
    }
    tell(what);
    if confirm(question)? { Ok(()) } else { Err(Failure::new(FAILED, no)) }
}

/// Asks for a secret without echo; empty for Enter alone.
///
/// # Errors
/// Status 130 on Ctrl-C, 1 if the terminal is gone.
pub(crate) fn secret(question: &str) -> Result<String, Failure> {
    write(question)?;
    let typed = EchoOff::begin().map_err(|error| gone(&error)).and_then(|_echo_off| typed());
    write("\n")?;
    typed
}

/// Reads until Enter, key by key, so that Ctrl-C leaves the terminal as it was.
fn typed() -> Result<String, Failure> {
    const ETX: u8 = 3;
    const EOT: u8 = 4;
    const BACKSPACE: [u8; 2] = [8, 127];
    let mut typed = Vec::new();
    for byte in stdin().lock().bytes().take(LINE_BYTES_MAX as usize) {
        match byte.map_err(|error| gone(&error))? {
            b'\r' | b'\n' | EOT => break,
            ETX => return Err(Failure::new(INTERRUPTED, "interrupted: nothing was changed")),
            byte if BACKSPACE.contains(&byte) => _ = typed.pop(),
            byte => typed.push(byte),
        }
    }
    let text = String::from_utf8(typed).map_err(|_| Failure::new(FAILED, "what was typed is no text"))?;
    Ok(text.trim().to_owned())
}

/// The terminal without echo; restored when dropped.
struct EchoOff(Termios);

impl EchoOff {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(stdin().as_fd())?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        unseen.special_codes[SpecialCodeIndex::VMIN] = 1;
        unseen.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin().as_fd(), OptionalActions::Now, &unseen)?;
        Ok(Self(before))
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin().as_fd(), OptionalActions::Now, &self.0);
    }
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = stderr().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| gone(&error))
}

fn gone(error: &io::Error) -> Failure {
    Failure::new(FAILED, format!("the terminal can't be used: {error}"))
}
