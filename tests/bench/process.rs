//! A process under measurement, and what the kernel counts for it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::support::daemon;
use super::support::running::Running;

/// A daemon or a limit program, killed when dropped.
pub struct Process {
    child: Running,
    /// Where it listens.
    pub address: SocketAddr,
    /// The home of a daemon.
    home: PathBuf,
}

impl Process {
    /// A daemon on this home with this configuration.
    pub fn daemon(home: &Path, config: &str) -> Self {
        Self::spawn(Self::command(home, config), home)
    }

    /// The same on the first core alone.
    pub fn daemon_on_one_core(home: &Path, config: &str) -> Self {
        Self::spawn(on_one_core(Self::command(home, config)), home)
    }

    /// What starts a daemon.
    pub fn command(home: &Path, config: &str) -> Command {
        std::fs::write(home.join("gateway.toml"), config).expect("the configuration is written");
        let mut command = daemon::command(home);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command
    }

    /// This program again, as a limit program.
    pub fn limit(args: &[&str]) -> Self {
        Self::spawn(Self::limit_command(args), Path::new(""))
    }

    /// The same on the first core alone.
    pub fn limit_on_one_core(args: &[&str]) -> Self {
        Self::spawn(on_one_core(Self::limit_command(args)), Path::new(""))
    }

    /// The same in the place of a daemon on this home.
    pub fn limit_at(args: &[&str], home: &Path) -> Self {
        Self::spawn(Self::limit_command(args), home)
    }

    fn limit_command(args: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(args);
        command
    }

    /// Any program that prints `http://ADDRESS` once it listens.
    pub fn spawn(mut command: Command, home: &Path) -> Self {
        let mut child = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address = loop {
            let line = lines.next().expect("it gets ready").expect("a line");
            if let Some(address) = daemon::address_in(&line) {
                break address;
            }
        };
        Self { child, address, home: home.to_owned() }
    }

    /// Any program that is told to listen there.
    pub fn at(mut command: Command, address: SocketAddr) -> Self {
        let child = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        Self { child, address, home: PathBuf::new() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The Unix socket of a daemon.
    pub fn socket(&self) -> PathBuf {
        self.home.join(".xeno").join("gateway.sock")
    }

    /// Resident memory, in bytes.
    pub fn resident_bytes(&self) -> f64 {
        resident_bytes(self.pid())
    }

    /// SIGTERM, and waits.
    pub fn stop(mut self) {
        self.child.signal("TERM");
        let _ = self.child.wait();
    }

    /// SIGKILL, and waits.
    pub fn kill(mut self) {
        self.child.put_down();
    }
}

fn on_one_core(mut command: Command) -> Command {
    // SAFETY: sched_setaffinity(2) is a plain system call.
    unsafe {
        command.pre_exec(|| {
            let mut first = CpuSet::new();
            first.set(0);
            Ok(sched_setaffinity(None, &first)?)
        });
    }
    command
}

/// The time that a process has been on a CPU, from some moment on.
pub struct Cpu {
    pids: Vec<u32>,
    before: HashMap<(u32, String), u64>,
}

impl Cpu {
    /// Of this process, from now on.
    pub fn of(pid: u32) -> Self {
        Self::of_all(&[pid])
    }

    /// Of all these together.
    pub fn of_all(pids: &[u32]) -> Self {
        Self { pids: pids.to_vec(), before: threads(pids) }
    }

    /// Microseconds since then, over all threads. What a thread used that has ended since is not in it:
    /// the kernel forgets it. Those that serve live as long as their process.
    pub fn spent_us(&self) -> f64 {
        let spent = |(thread, now)| now - self.before.get(&thread).copied().unwrap_or(0);
        threads(&self.pids).into_iter().map(spent).sum::<u64>() as f64 / 1e3
    }
}

/// Nanoseconds on a CPU, of each thread of these processes.
fn threads(pids: &[u32]) -> HashMap<(u32, String), u64> {
    let tasks = |pid: &u32| {
        let pid = *pid;
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        tasks.flatten().map(move |task| (pid, task))
    };
    let on_cpu = |(pid, task): (u32, std::fs::DirEntry)| {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanoseconds = stat.split_whitespace().next()?.parse().ok()?;
        Some(((pid, task.file_name().to_string_lossy().into_owned()), nanoseconds))
    };
    pids.iter().flat_map(tasks).filter_map(on_cpu).collect()
}

/// Resident memory of a process, in bytes.
pub fn resident_bytes(pid: u32) -> f64 {
    super::support::process::resident_bytes(pid) as f64
}
