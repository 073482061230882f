//! Which processes are kept by this daemon's keepers: they run as its user, and are not its operator.
//!
//! A program of somebody else's could connect to the daemon as anybody of its user may, and so do all that an
//! operator can. What connects is therefore held against the processes below the keepers. While there are
//! none, nothing is looked at.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::keeper::Tree;

static KEEPERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A keeper that runs; forgotten when dropped.
#[derive(Debug)]
pub struct Keeper(u32);

impl Keeper {
    /// That with this process id.
    pub fn new(pid: u32) -> Self {
        KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
        Self(pid)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

fn keepers() -> Vec<u32> {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
}

/// Whether any process is kept.
pub fn are_there() -> bool {
    !keepers().is_empty()
}

/// Whether the process with this id is kept, or may have been: of one that has ended nothing is known.
/// Blocks.
pub fn is_kept(pid: u32) -> bool {
    let keepers = keepers();
    if keepers.is_empty() {
        return false;
    }
    !Path::new("/proc").join(pid.to_string()).exists()
        || keepers.into_iter().any(|keeper| keeper == pid || Tree::below(keeper).has(pid))
}

/// Whether a kept process has the socket with this inode. Blocks.
pub fn has_socket(inode: u32) -> bool {
    let wanted = format!("socket:[{inode}]");
    let is_it = |file: fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
    };
    keepers().into_iter().any(|keeper| {
        Tree::below(keeper).ids().any(|pid| {
            let files = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"));
            files.into_iter().flatten().flatten().any(is_it)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    #[test]
    fn what_is_below_a_keeper_is_kept_with_its_sockets() {
        let own = std::process::id();
        assert!(!is_kept(own) && !is_kept(u32::MAX));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", ours.as_raw_fd())).unwrap();
        let inode = link.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        // A child that has it too: standard input, which it gets.
        let stdin: std::os::fd::OwnedFd = ours.into();
        let mut child = Command::new("sh").args(["-c", "sleep 60"]).stdin(stdin).spawn().unwrap();
        assert!(!has_socket(inode) && !is_kept(child.id()));
        let keeper = Keeper::new(own);
        assert!(are_there() && has_socket(inode) && is_kept(child.id()) && is_kept(u32::MAX));
        assert!(!is_kept(1) && !has_socket(0));
        drop(keeper);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
