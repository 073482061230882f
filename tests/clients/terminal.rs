//! A terminal that a program runs in and a test looks at: tmux, on a socket of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::PATIENCE;

/// Lines and columns: whole conversations are seen at once.
const SIZE: (&str, &str) = ("140", "80");

/// How often the screen is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A terminal with one program; both end when dropped.
pub struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Runs `program` with these arguments and this environment, its socket in `folder`.
    ///
    /// # Panics
    /// Where tmux is missing, saying what to do.
    pub fn start(folder: &std::path::Path, command: &Command) -> Self {
        let terminal = Self { socket: folder.join("tmux.sock") };
        let mut tmux = terminal.tmux();
        tmux.args(["-f", "/dev/null", "new-session", "-d", "-x", SIZE.0, "-y", SIZE.1, "-c"]).arg(folder);
        for (name, value) in command.get_envs() {
            let (name, value) = (name.to_string_lossy(), value.unwrap_or_default().to_string_lossy());
            tmux.arg("-e").arg(format!("{name}={value}"));
        }
        tmux.arg("--").arg(command.get_program()).args(command.get_args());
        let output = tmux.output().unwrap_or_else(|error| {
            panic!("tmux: {error}: `apt-get install -qy --no-install-recommends tmux`")
        });
        assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
        terminal.run(&["set-option", "-g", "remain-on-exit", "on"]);
        terminal
    }

    /// Types a line, and Enter. Some read a fast Enter as a part of pasted text, so it comes alone
    /// when the line is seen.
    pub fn enter(&self, line: &str) {
        self.run(&["send-keys", "-l", "--", line]);
        self.wait("what was typed", |screen| screen.contains(line.trim_end()));
        self.press("Enter");
    }

    /// Presses a key, by tmux' name.
    pub fn press(&self, key: &str) {
        self.run(&["send-keys", key]);
    }

    /// What is on the screen, without empty lines.
    pub fn screen(&self) -> String {
        let output = self.tmux().args(["capture-pane", "-p"]).output().expect("tmux runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the screen is as wanted; gives it.
    ///
    /// # Panics
    /// After [`PATIENCE`], with the screen.
    pub fn wait(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}; the screen:\n{screen}");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until this is on the screen, and there once.
    pub fn once(&self, text: &str) -> String {
        self.wait(&format!("{text:?}, once"), |screen| count(screen, text) == 1)
    }

    fn tmux(&self) -> Command {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").arg("-S").arg(&self.socket).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) {
        let output = self.tmux().args(args).output().expect("tmux runs");
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").output();
    }
}

/// How often a text is there, wherever its lines were broken.
pub fn count(screen: &str, text: &str) -> usize {
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    flat(screen).matches(&flat(text)).count()
}
