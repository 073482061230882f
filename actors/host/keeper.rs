//! A program of somebody else's, kept within bounds and ended with all it has started.
//!
//! The daemon starts its own program as the keeper, and that starts the other one:
//!
//! ```text
//! daemon ──► keeper (clawmux keep) ──► the program, confined ──► whatever it starts
//!    └───────────── standard input and output ──────┘
//! ```
//!
//! The keeper is the reaper of all that is started below it, wherever in that tree it is and whatever it
//! has left behind: once the program ends, or the daemon has closed its standard input (or is gone, which
//! closes it too), or the bounds are overstepped, the keeper ends all of it and then itself.
//!
//! What confines the program can't be undone: a second run of the keeper, in the place of the program, gives
//! up what it may not have and then becomes the program.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, set_child_subreaper, setrlimit, wait, waitpid,
};
use rustix::thread::set_no_new_privs;

/// How often it is looked whether the bounds hold.
const LOOK: Duration = Duration::from_millis(500);

/// How long the program has to end by itself once its input has ended.
const GRACE: Duration = Duration::from_secs(2);

/// How long ending all of it may take.
const END_MAX: Duration = Duration::from_secs(10);

/// The status of a keeper that could not start the program, and of one that has ended it for its bounds.
pub const NOT_STARTED: u8 = 126;
/// See [`NOT_STARTED`].
pub const OVERSTEPPED: u8 = 125;

/// What a program and all it starts may use together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most memory, in bytes, as the system counts what is resident.
    pub memory: u64,
    /// The most processes.
    pub processes: usize,
}

/// What of the system every program reads, such as programs and libraries.
const SYSTEM: [&str; 23] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    // Not all of /proc: the environments of this user's other processes are there.
    "/proc/self",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/stat",
    "/proc/sys",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
];

/// Devices that every program may use.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// What a program may reach of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// Read.
    pub read: Vec<PathBuf>,
    /// Read and write.
    pub write: Vec<PathBuf>,
}

/// How the keeping of a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// With the program, which had this status, or with its input.
    Ended(u8),
    /// It overstepped its bounds, and how.
    Overstepped(String),
}

/// Runs `command` within `bounds` until it ends, its input has ended, or it oversteps them. Nothing that it
/// started is left. This process becomes the reaper of all below it.
///
/// # Errors
/// Why it can't be kept.
pub fn keep(bounds: &Bounds, command: &mut Command) -> io::Result<Kept> {
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut child = command.process_group(0).spawn()?;
    let over = attend(bounds, &mut child);
    end_all()?;
    over
}

fn attend(bounds: &Bounds, child: &mut Child) -> io::Result<Kept> {
    let mut input_ended: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Kept::Ended(code(status)));
        }
        reap(child.id());
        let tree = Tree::below(std::process::id());
        if let Some(why) = tree.oversteps(bounds) {
            return Ok(Kept::Overstepped(why));
        }
        match input_ended {
            Some(since) if since.elapsed() >= GRACE => return Ok(Kept::Ended(0)),
            Some(_) => sleep(Duration::from_millis(50)),
            None if input_has_ended(LOOK)? => input_ended = Some(Instant::now()),
            None => {}
        }
    }
}

/// Whether nobody can write to standard input any more; waits for so long at most.
fn input_has_ended(within: Duration) -> io::Result<bool> {
    let input = io::stdin();
    // Nothing is asked for: that the other end is gone is told all the same.
    let mut fds = [PollFd::new(&input, PollFlags::empty())];
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&within)) {
        Ok(_) => Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes note of the ends of processes that were left to this one, but for the one that is waited for.
fn reap(but: u32) {
    for pid in Tree::below(std::process::id()).children(std::process::id()) {
        if pid != but
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// Ends everything below this process.
fn end_all() -> io::Result<()> {
    let began = Instant::now();
    loop {
        let tree = Tree::below(std::process::id());
        if tree.processes.is_empty() {
            return Ok(());
        }
        for pid in tree.processes.keys() {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if began.elapsed() > END_MAX {
            return Err(io::Error::other("processes below it do not end"));
        }
        sleep(Duration::from_millis(2));
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The processes below one.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// By id: whose child each is, and the bytes that it has in memory.
    processes: BTreeMap<u32, (u32, u64)>,
}

impl Tree {
    pub(super) fn below(root: u32) -> Self {
        let mut all: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(found) =
                fs::read_to_string(entry.path().join("stat")).ok().and_then(|stat| parse(&stat))
            {
                all.insert(pid, found);
            }
        }
        let mut tree = Self::default();
        let mut parents = vec![root];
        while let Some(parent) = parents.pop() {
            for (pid, process) in all.iter().filter(|(_, (of, _))| *of == parent) {
                if tree.processes.insert(*pid, *process).is_none() {
                    parents.push(*pid);
                }
            }
        }
        tree
    }

    /// Whether this process is among them.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Their ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }

    fn children(&self, of: u32) -> Vec<u32> {
        self.processes.iter().filter(|(_, (parent, _))| *parent == of).map(|(pid, _)| *pid).collect()
    }

    fn oversteps(&self, bounds: &Bounds) -> Option<String> {
        let memory: u64 = self.processes.values().map(|(_, memory)| memory).sum();
        if self.processes.len() > bounds.processes {
            return Some(format!("{} processes (limit {})", self.processes.len(), bounds.processes));
        }
        let mib = |bytes: u64| bytes >> 20;
        (memory > bounds.memory)
            .then(|| format!("{} MiB of memory (limit {})", mib(memory), mib(bounds.memory)))
    }
}

/// The parent of a process and its memory, of what `/proc/PID/stat` says.
fn parse(stat: &str) -> Option<(u32, u64)> {
    // The name may hold anything, and ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    let pages: u64 = fields.get(21)?.parse().ok()?;
    Some((parent, pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// Whether this kernel can confine a program to folders.
pub fn has_landlock() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        // What a thread gives up, it alone has given up.
        let probed = std::thread::spawn(|| {
            let rules = Ruleset::default().handle_access(AccessFs::Execute).and_then(Ruleset::create);
            let status = rules.and_then(RulesetCreated::restrict_self);
            status.is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
        });
        probed.join().unwrap_or(false)
    });
    *HAS
}

/// Gives up, for good, what the program may not have, and becomes the program. Without `folders`, or where
/// the kernel has no Landlock, it may reach what this user may. Comes back only where that fails.
pub fn become_confined(folders: Option<&Folders>, bounds: &Bounds, command: &mut Command) -> io::Error {
    match confine(folders, bounds) {
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

fn confine(folders: Option<&Folders>, bounds: &Bounds) -> io::Result<()> {
    set_no_new_privs(true)?;
    let limit = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    // What one process alone takes ends there; the keeper looks at all of them together.
    setrlimit(Resource::Data, limit(bounds.memory))?;
    setrlimit(Resource::Core, limit(0))?;
    let Some(folders) = folders else { return Ok(()) };
    let abi = ABI::V3;
    let reads = AccessFs::from_read(abi);
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let mut rules = ruleset
        .handle_access(AccessFs::from_all(abi))
        // It may not end its keeper.
        .and_then(|rules| rules.scope(Scope::Signal | Scope::AbstractUnixSocket))
        .and_then(landlock::Ruleset::create)
        .map_err(io::Error::other)?;
    let system = SYSTEM.iter().chain(&DEVICES[1..]).map(|path| (Path::new(path), reads));
    let read = folders.read.iter().map(|path| (path.as_path(), reads));
    let write = folders.write.iter().map(|path| (path.as_path(), AccessFs::from_all(abi)));
    let null = [(Path::new(DEVICES[0]), AccessFs::from_all(abi))];
    for (path, access) in system.chain(read).chain(write).chain(null) {
        let folder = match PathFd::new(path) {
            Ok(folder) => folder,
            // Not every system has all of them; of those that were named, a missing one is a mistake.
            Err(_) if path.starts_with("/dev") || SYSTEM.iter().any(|known| Path::new(known) == path) => {
                continue;
            }
            Err(error) => {
                let why = format!("folders has {}, which can't be opened: {error}", path.display());
                return Err(io::Error::other(why));
            }
        };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
        rules = rules.add_rule(PathBeneath::new(folder, access)).map_err(io::Error::other)?;
    }
    rules.restrict_self().map_err(io::Error::other)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_it_is_called() {
        let stat = format!("7 (a) b) (c) S 3 {} 50 {}", "0 ".repeat(19).trim(), "0 0");
        let page = rustix::param::page_size() as u64;
        assert_eq!(parse(&stat), Some((3, 50 * page)));
        for bad in ["", "7", "7 (x) S", "7 (x) S x"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn bounds_are_of_all_processes_together() {
        let tree = Tree { processes: BTreeMap::from([(2, (1, 10 << 20)), (3, (2, 30 << 20))]) };
        let bounds = |memory_mb: u64, processes| Bounds { memory: memory_mb << 20, processes };
        assert_eq!(tree.oversteps(&bounds(40, 2)), None);
        assert_eq!(tree.oversteps(&bounds(39, 2)).unwrap(), "40 MiB of memory (limit 39)");
        assert_eq!(tree.oversteps(&bounds(40, 1)).unwrap(), "2 processes (limit 1)");
        assert_eq!(tree.children(2), [3]);
    }

    #[test]
    fn the_tree_of_this_process_has_its_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let tree = Tree::below(std::process::id());
        assert!(tree.processes.contains_key(&child.id()), "{tree:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
