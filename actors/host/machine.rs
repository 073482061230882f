//! How the machine is that the daemon runs on, as far as the kernel tells.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;

use clawmux_core::daemon::command::Machine;

/// It, as it is now. Blocks for as long as the kernel takes to write a page.
pub(crate) fn look() -> Machine {
    let said = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (memory_bytes, memory_free_bytes) = memory(&said("/proc/meminfo"));
    Machine {
        host: host(),
        platform: std::env::consts::OS.to_owned(),
        kernel: said("/proc/sys/kernel/osrelease").trim().to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        system: system(&said("/etc/os-release")),
        pid: std::process::id(),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        load: load(),
        memory_bytes,
        memory_free_bytes,
    }
}

/// The name of this machine, for operators who see several.
pub(crate) fn host() -> String {
    // Not from /proc, of which a confined service sees processes only (ProcSubset=pid).
    let mut name = [0_u8; 256];
    // SAFETY: the kernel writes at most so many bytes there as the array has.
    let known = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } == 0;
    let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
    name.filter(|name| known && !name.is_empty()).unwrap_or("localhost").to_owned()
}

/// How many tasks wanted a processor, on average over 1, 5 and 15 minutes.
fn load() -> [f64; 3] {
    let mut load = [0.0; 3];
    // SAFETY: it writes at most as many numbers there as the array has.
    let known = unsafe { libc::getloadavg(load.as_mut_ptr(), 3) } == 3;
    if known { load } else { [0.0; 3] }
}

/// All memory, and what can be had of it without swapping, in bytes.
fn memory(meminfo: &str) -> (u64, u64) {
    let lines = meminfo.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some((name, kibibytes.saturating_mul(1024)))
    });
    let found: HashMap<_, _> = lines.collect();
    let of = |name| found.get(name).copied().unwrap_or(0);
    (of("MemTotal"), of("MemAvailable"))
}

/// What the system calls itself.
fn system(os_release: &str) -> String {
    let named = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    named.map_or_else(|| "Linux".to_owned(), |name| name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        assert_eq!(memory("MemTotal:       2048 kB\nMemAvailable:  1024 kB\nOdd\n"), (2 << 20, 1 << 20));
        assert_eq!(memory(""), (0, 0));
        assert_eq!(system("ID=x\nPRETTY_NAME=\"X 1\"\n"), "X 1");
        let machine = look();
        assert!(machine.processors > 0 && !machine.host.is_empty(), "{machine:?}");
        assert_eq!(machine.pid, std::process::id());
    }
}
