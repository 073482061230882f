//! What the operating system allows a process: open files and memory; and whether the clock went back.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::Findings;

/// With fewer open files than this there are few connections.
const FILES_MIN: u64 = 1024;
/// With less memory than this the daemon is ended before long.
const MEMORY_MIN: u64 = 128 << 20;
/// How much of what there may be is worth a word, in percent.
const FULL: u64 = 85;
/// How far ahead a file's time may be.
const AHEAD: Duration = Duration::from_secs(60);

/// The limits of a process, by its id or `self`.
pub(super) fn limits(process: &str, found: &mut Findings) {
    let folder = Path::new("/proc").join(process);
    let limits = fs::read_to_string(folder.join("limits")).unwrap_or_default();
    // The daemon raises the soft limit to the hard one.
    let Some(most) = hard_limit(&limits) else { return };
    let open = fs::read_dir(folder.join("fd")).map_or(0, |files| files.count() as u64);
    let what = format!("{open} of {most} files open");
    if most < FILES_MIN {
        let advice = "LimitNOFILE=65536 in the unit, or `ulimit -Hn`: each connection takes two";
        found.warning("limits", what, advice);
    } else if open.saturating_mul(100) / most >= FULL {
        let advice = "raise LimitNOFILE in the unit, or see who connects so often: clawmux connections";
        found.warning("limits", what, advice);
    } else {
        found.fine("limits", what);
    }
    let group = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
    let Some(group) = group.lines().find_map(|line| line.strip_prefix("0::/")) else { return };
    let group = Path::new("/sys/fs/cgroup").join(group);
    let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    if let Some(most) = read("memory.max") {
        memory(read("memory.current").unwrap_or(0), most, found);
    }
}

fn memory(used: u64, most: u64, found: &mut Findings) {
    let what = format!("{} of {} MiB of memory in use", used >> 20, most >> 20);
    if most < MEMORY_MIN || used.saturating_mul(100) / most.max(1) >= FULL {
        let advice = "raise MemoryMax in the unit: what needs more is ended, and goes on from its log";
        found.warning("limits", what, advice);
    } else {
        found.fine("limits", what);
    }
}

/// The hard limit on open files; unlimited counts as very many.
fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let hard = line.split_whitespace().nth(1)?;
    if hard == "unlimited" { Some(u64::MAX) } else { hard.parse().ok() }
}

/// Whether the log was written at a time that is yet to come.
pub(super) fn clock(store: &Path, found: &mut Findings) {
    let Ok(written) = fs::metadata(store).and_then(|meta| meta.modified()) else { return };
    if let Ok(ahead) = written.duration_since(SystemTime::now())
        && ahead > AHEAD
    {
        found.error(
            "clock",
            format!("the store was written {} s ahead of now: the clock went back", ahead.as_secs()),
            "set the time right; what is dated by it, such as the end of credentials, is wrong until then",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_actors::store::Severity;

    #[test]
    fn limits_that_are_near_are_told() {
        let mut found = Findings::default();
        memory(90 << 20, 1 << 30, &mut found);
        memory(900 << 20, 1 << 30, &mut found);
        memory(1, 64 << 20, &mut found);
        let told: Vec<_> = found.0.iter().map(|finding| finding.severity).collect();
        assert_eq!(told, [Severity::Fine, Severity::Warning, Severity::Warning]);
        assert_eq!(
            hard_limit("Max open files            1024                 4096                 files"),
            Some(4096)
        );
        assert_eq!(hard_limit("Max open files  unlimited unlimited files"), Some(u64::MAX));
        assert_eq!(hard_limit(""), None);
        let mut found = Findings::default();
        limits("self", &mut found);
        assert!(found.0[0].what.contains("files open"), "{}", found.0[0].what);
    }

    #[test]
    fn a_clock_that_went_back_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut found = Findings::default();
        clock(file.path(), &mut found);
        assert!(found.0.is_empty());
        file.as_file().set_modified(SystemTime::now() + Duration::from_secs(7200)).unwrap();
        clock(file.path(), &mut found);
        assert_eq!(found.0[0].severity, Severity::Error);
    }
}
