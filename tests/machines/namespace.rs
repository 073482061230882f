//! Network namespaces: each machine has its own, and so has the wire between them. They are nowhere but in
//! descriptors of this process, so that whatever ends it takes them along.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::process::Command;

/// The namespace in which this thread is.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace.
pub struct Namespace(File);

impl Namespace {
    /// A new one, with nothing in it but a loopback interface that is up.
    pub fn new() -> Self {
        let before = Return(File::open(OWN).unwrap());
        // SAFETY: the call looks at no memory.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(unshared, 0, "a network namespace: {}", io::Error::last_os_error());
        let new = Self(File::open(OWN).unwrap());
        drop(before);
        new.ip("link set lo up");
        new
    }

    /// Does something within it: sockets that are made there and processes that are started there stay in it.
    pub fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        let before = Return(File::open(OWN).unwrap());
        enter(&self.0);
        let done = act();
        drop(before);
        done
    }

    /// Runs `ip` within it.
    pub fn ip(&self, arguments: &str) {
        let ended = self.within(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "ip {arguments}: {said}");
    }

    /// How `ip` names it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// The namespace to which this thread returns.
struct Return(File);

impl Drop for Return {
    fn drop(&mut self) {
        enter(&self.0);
    }
}

fn enter(namespace: &File) {
    // SAFETY: the call looks at no memory.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "entering a network namespace: {}", io::Error::last_os_error());
}
