//! A clock that is wrong: `clock.c`, compiled and preloaded into a daemon, which goes by what a file says.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How far clocks are ahead, in seconds: that of a machine is another one in each life of its daemon.
const AHEAD_S: [i64; 3] = [0, 600, -600];

/// Compiles it into this folder.
pub fn install(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines/clock.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o"])
        .args([&folder.join("clock.so"), &source])
        .output()
        .expect("a C compiler, which the bundled SQLite needs too");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// Has a daemon go by it, in one of its lives.
pub fn mislead(command: &mut Command, folder: &Path, machine: usize, life: u32) {
    set(folder, machine, AHEAD_S[(machine + life as usize) % AHEAD_S.len()]);
    command.env("LD_PRELOAD", folder.join("clock.so")).env("CLAWMUX_CLOCK", file(folder, machine));
}

/// Sets the clock of a machine, so many seconds ahead of the time.
pub fn set(folder: &Path, machine: usize, ahead_s: i64) {
    // In place: who goes by it has it mapped.
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(file(folder, machine));
    file.unwrap().write_all_at(&ahead_s.to_ne_bytes(), 0).unwrap();
}

fn file(folder: &Path, machine: usize) -> PathBuf {
    folder.join(format!("clock{machine}"))
}
