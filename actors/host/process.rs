//! What the operating system says of this process.

use std::fs;
use std::time::Duration;

/// What the operating system says of this process; 0 where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Memory in use.
    pub(crate) resident_bytes: u64,
    /// How long processors have worked for it.
    pub(crate) cpu: Duration,
    /// Open file descriptors.
    pub(crate) open_fds: u64,
    /// The most of them there may be.
    pub(crate) max_fds: u64,
    /// Threads.
    pub(crate) threads: u64,
}

/// Looks. Blocks for as long as it takes to read a few files of `/proc`.
pub(crate) fn look() -> Process {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fds = fs::read_dir("/proc/self/fd").map_or(0, |folder| folder.count() as u64);
    Process {
        // The one that reads them is among them.
        open_fds: fds.saturating_sub(1),
        max_fds: max_fds(&limits).unwrap_or(0),
        resident_bytes: field(&status, "VmRSS:").unwrap_or(0) * 1024,
        threads: field(&status, "Threads:").unwrap_or(0),
        cpu: cpu(&stat).unwrap_or_default(),
    }
}

/// The number behind a name.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The soft limit.
fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time. They are counted in hundredths of a second on every Linux there is.
fn cpu(stat: &str) -> Option<Duration> {
    // The name of the program may hold anything, and ends with the last bracket.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there() {
        let now = look();
        assert!(now.resident_bytes > 1 << 20 && now.threads > 0, "{now:?}");
        assert!(now.open_fds > 2 && now.max_fds >= now.open_fds, "{now:?}");
    }

    #[test]
    fn what_the_system_says_is_read() {
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(max_fds("Limit Soft\nMax open files            1024 4096 files\n"), Some(1024));
        assert_eq!(field("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        for nothing in ["", "(", "1 (x) S 1"] {
            assert_eq!((cpu(nothing), max_fds(nothing), field(nothing, "Threads:")), (None, None, None));
        }
    }
}
