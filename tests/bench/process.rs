//! A process under measurement.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::daemon;
use super::support::running::Running;

/// A daemon or a limit program, killed when dropped.
pub struct Process {
    child: Running,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Process {
    /// A daemon on this home with this configuration.
    pub fn daemon(home: &Path, config: &str) -> Self {
        std::fs::write(home.join("gateway.toml"), config).expect("the configuration is written");
        let mut command = daemon::command(home);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        Self::spawn(command)
    }

    /// This program again, as a limit program.
    pub fn limit(args: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(args);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address = loop {
            let line = lines.next().expect("it gets ready").expect("a line");
            if let Some(address) = daemon::address_in(&line) {
                break address;
            }
        };
        Self { child, address }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// User and system time so far, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        cpu_us(self.pid())
    }

    /// Resident memory.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid())
    }

    /// SIGTERM, and waits.
    pub fn stop(mut self) {
        self.child.signal("TERM");
        let _ = self.child.wait();
    }
}

/// User and system time of a process so far, in microseconds.
pub fn cpu_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
    // Linux tells user space 100 ticks a second, whatever the kernel's own.
    ticks as f64 * 10_000.0
}

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).expect("kB") * 1024
}
