//! A small disk for one machine, its server and its daemon, which can be filled.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How large it is: room for what a short trial writes.
const MEGABYTES: u32 = 160;

/// It, mounted; unmounted when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// One for this machine's folders in the folder of the trial, which are not there yet.
    pub fn mount(folder: &Path, machine: usize) -> Self {
        let disk = folder.join(format!("disk{machine}"));
        std::fs::create_dir(&disk).unwrap();
        let size = format!("size={MEGABYTES}m");
        let ended = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&disk).status();
        assert!(ended.unwrap().success(), "a small disk is mounted");
        for of in ["home", "nats"] {
            std::fs::create_dir(disk.join(of)).unwrap();
            std::os::unix::fs::symlink(disk.join(of), folder.join(format!("{of}{machine}"))).unwrap();
        }
        Self(disk)
    }

    /// Leaves no room on it.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        for bytes in [1 << 20, 1 << 12, 1] {
            let full = loop {
                if let Err(error) = ballast.write_all(&vec![0; bytes]) {
                    break error;
                }
            };
            assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
        }
    }

    /// Makes room again.
    pub fn clear(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What is still open of it goes with who has it open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
