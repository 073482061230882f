//! What the system says of a process.

use std::time::Duration;

/// Resident memory, in bytes.
pub fn resident_bytes(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for it");
    line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

/// How many files and sockets it has open.
pub fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count()
}

/// How many files and sockets this process may have open, after asking for as many as it may ask.
pub fn open_files_max() -> usize {
    let limits = || {
        let limits = std::fs::read_to_string("/proc/self/limits").expect("the limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a line");
        let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap_or(usize::MAX));
        (numbers.next().expect("the soft one"), numbers.next().expect("the hard one"))
    };
    let (soft, hard) = limits();
    if soft < hard {
        // From util-linux; where it is missing there are fewer strangers.
        let pid = std::process::id().to_string();
        let _ = std::process::Command::new("prlimit")
            .args(["--pid", &pid, &format!("--nofile={hard}:{hard}")])
            .status();
    }
    limits().0
}

/// The value that so large a share is not above.
pub fn percentile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}
