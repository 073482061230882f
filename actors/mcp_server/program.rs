//! The program of an MCP server: started by a keeper, which ends it and all it has started.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use clawmux_core::config::McpCommand;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::host::kept::Keeper;

/// How long the keeper may take to end everything once its input has.
const END_MAX: Duration = Duration::from_secs(15);

/// So much is kept of the end of what it says on its standard error, in bytes.
const SAID_BYTES_MAX: usize = 2048;

/// How long what a program said last may take to arrive once it has ended.
const SAID_WAIT: Duration = Duration::from_millis(200);

/// Where programs look for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program that was started.
pub(super) struct Program {
    keeper: Child,
    _kept: Option<Keeper>,
    said: Rc<RefCell<VecDeque<u8>>>,
}

impl Program {
    /// Starts it by the keeper that `program` is. `folder` is its home, and is made.
    ///
    /// # Errors
    /// Why it can't be started.
    pub(super) fn start(
        keeper: &Path,
        folder: &Path,
        command: &McpCommand,
    ) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let McpCommand { command, env, secrets: _, folders, memory_bytes, processes } = command;
        let temporary = folder.join("tmp");
        std::fs::create_dir_all(&temporary)?;
        let mut start = Command::new(keeper);
        start.arg0("clawmux").arg("keep").arg("--folders");
        start.args(["--memory", &memory_bytes.to_string(), "--processes", &processes.to_string()]);
        start.arg("--write").arg(folder);
        for folder in folders {
            start.arg(if folder.is_writable { "--write" } else { "--read" }).arg(&folder.path);
        }
        start.arg("--").args(command);
        start
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| PATH.into()))
            .env("LANG", "C.UTF-8")
            .env("HOME", folder)
            .env("TMPDIR", &temporary)
            .envs(env.iter().map(|(name, value)| (name, value.expose())))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What a terminal sends the daemon is not for it: it ends when its input does.
            .process_group(0);
        let mut keeper = start.spawn()?;
        let lost = || io::Error::other("it has no standard streams");
        let (stdin, stdout) = keeper.stdin.take().zip(keeper.stdout.take()).ok_or_else(lost)?;
        let said = Rc::default();
        if let Some(stderr) = keeper.stderr.take() {
            spawn_local(listen(stderr, Rc::clone(&said)));
        }
        let kept = keeper.id().map(Keeper::new);
        Ok((Self { keeper, _kept: kept, said }, stdout, stdin))
    }

    /// Its process id; none once it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.keeper.id()
    }

    /// Waits for its end, which follows that of its input, and says how it ended and what it said last.
    pub(super) async fn ended(mut self) -> String {
        let how = match timeout(END_MAX, self.keeper.wait()).await {
            Ok(Ok(status)) => match status.code() {
                Some(code) => format!("it ended with status {code}"),
                None => "it was killed".to_owned(),
            },
            Ok(Err(error)) => format!("how it ended is not known: {error}"),
            Err(_) => {
                let _ = self.keeper.start_kill();
                "it did not end".to_owned()
            }
        };
        tokio::time::sleep(SAID_WAIT).await;
        let said: Vec<u8> = self.said.borrow().iter().copied().collect();
        let said = String::from_utf8_lossy(&said);
        let said = said.trim();
        if said.is_empty() { how } else { format!("{how}: {said}") }
    }
}

/// Keeps the end of what is said; over once nobody can say anything any more.
async fn listen(mut stderr: ChildStderr, said: Rc<RefCell<VecDeque<u8>>>) {
    let mut piece = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut piece).await {
        let mut said = said.borrow_mut();
        said.extend(&piece[..length]);
        let surplus = said.len().saturating_sub(SAID_BYTES_MAX);
        said.drain(..surplus);
    }
}
