//! A process that a test starts, and that does not outlive it.

use std::io::{BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;

use super::eventually;

/// How long a process of a test may run, in seconds. What is still there then hangs.
const LONGEST: libc::c_uint = 15 * 60;

/// Has SIGALRM end it should it hang, so that its test fails instead of waiting for ever.
pub fn bounded(command: &mut Command) -> &mut Command {
    // SAFETY: alarm(2) is async-signal-safe and takes no memory.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(LONGEST);
            Ok(())
        })
    }
}

/// A process under way; killed when dropped.
pub struct Running(Child);

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }

    /// The lines it writes, from now on and until its end; its stdout is piped.
    pub fn stdout_lines(&mut self) -> mpsc::Receiver<String> {
        lines_of(self.stdout.take().expect("stdout is piped"))
    }

    /// What it complains about, line by line; its stderr is piped.
    pub fn stderr_lines(&mut self) -> mpsc::Receiver<String> {
        lines_of(self.stderr.take().expect("stderr is piped"))
    }

    /// Sends a signal, by its name without SIG.
    pub fn signal(&self, name: &str) {
        let pid = self.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill runs");
        assert!(sent.success(), "SIG{name} is sent");
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        eventually("the process to end", || self.try_wait().expect("it can be waited for"))
    }

    /// SIGKILL, where it still runs.
    pub fn put_down(&mut self) {
        let _ = self.kill();
        let _ = self.wait();
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.put_down();
    }
}

fn lines_of(from: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}
