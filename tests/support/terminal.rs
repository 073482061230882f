//! A terminal that a program runs in and a test types at and looks at: tmux, on a socket of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::TIMEOUT;

/// How often the screen is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A terminal with one program; both end when dropped.
pub struct Terminal {
    socket: PathBuf,
    /// The process id of its server.
    server: String,
}

impl Terminal {
    /// Runs `command` with its arguments and its environment on so many columns and lines; the terminal's
    /// socket is in `folder`.
    pub fn start(folder: &Path, command: &Command, (columns, lines): (u16, u16)) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut terminal = Self { socket: folder.join(format!("tmux-{number}.sock")), server: String::new() };
        let mut tmux = terminal.tmux();
        tmux.args(["-f", "/dev/null", "new-session", "-d", "-x", &columns.to_string()]);
        tmux.args(["-y", &lines.to_string(), "-c"]).arg(folder);
        for (name, value) in command.get_envs() {
            let (name, value) = (name.to_string_lossy(), value.unwrap_or_default().to_string_lossy());
            tmux.arg("-e").arg(format!("{name}={value}"));
        }
        tmux.arg("--").arg(command.get_program()).args(command.get_args());
        let output = tmux.output().expect("tmux runs");
        assert!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr));
        terminal.run(&["set-option", "-g", "remain-on-exit", "on"]);
        terminal.server = terminal.output(&["display-message", "-p", "#{pid}"]).trim().to_owned();
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

    /// Types text as it is.
    pub fn type_in(&self, text: &str) {
        self.run(&["send-keys", "-l", "--", text]);
    }

    /// Pastes text, between marks where the program wants them.
    pub fn paste(&self, text: &str) {
        let file = self.socket.with_extension("paste");
        std::fs::write(&file, text).expect("the text is written");
        self.run(&["load-buffer", &file.to_string_lossy()]);
        self.run(&["paste-buffer", "-p", "-d"]);
    }

    /// Makes it so large, as somebody who pulls at its window.
    pub fn resize(&self, columns: u16, lines: u16) {
        self.run(&["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }

    /// What is on the screen, without empty lines.
    pub fn screen(&self) -> String {
        let text = self.output(&["capture-pane", "-p"]);
        text.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// The screen with its empty lines and its colours.
    pub fn picture(&self) -> String {
        self.output(&["capture-pane", "-p", "-e"])
    }

    /// What is on the screen and what scrolled off it, lines that the terminal broke in one piece.
    pub fn scrolled(&self) -> String {
        self.output(&["capture-pane", "-p", "-J", "-S", "-"])
    }

    /// Has every byte that the program writes from now on written to this file as well.
    pub fn record(&self, file: &Path) {
        self.run(&["pipe-pane", "-o", &format!("cat >> {}", file.display())]);
    }

    /// The exit status of its program, once that has ended.
    pub fn ended(&self) -> Option<i32> {
        let told = self.output(&["display-message", "-p", "#{pane_dead} #{pane_dead_status}"]);
        let (dead, status) = told.trim().split_once(' ').unwrap_or((told.trim(), ""));
        (dead == "1").then(|| status.parse().unwrap_or(-1))
    }

    /// The process id of its program.
    pub fn pid(&self) -> String {
        self.output(&["display-message", "-p", "#{pane_pid}"]).trim().to_owned()
    }

    /// The terminal goes, as when its window is closed.
    pub fn hang_up(&self) {
        self.run(&["kill-server"]);
    }

    fn output(&self, args: &[&str]) -> String {
        let output = self.tmux().args(args).output().expect("tmux runs");
        assert!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the screen is as wanted; gives it.
    ///
    /// # Panics
    /// After [`TIMEOUT`], with the screen.
    pub fn wait(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}; the screen:\n{screen}");
            std::thread::sleep(LOOK);
        }
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
        let is_over = self.tmux().arg("kill-server").output().is_ok_and(|output| output.status.success());
        // Where the folder with its socket went first, it can't be told any more.
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.server)).unwrap_or_default();
        if !is_over && name.starts_with("tmux") {
            let _ = Command::new("kill").arg(&self.server).output();
        }
    }
}

/// How often a text is there, wherever its lines were broken.
pub fn count(screen: &str, text: &str) -> usize {
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    flat(screen).matches(&flat(text)).count()
}
