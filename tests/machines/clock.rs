//! A clock that is wrong: `clock.c`, compiled and preloaded into a daemon.

use std::path::Path;
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
    let ahead = AHEAD_S[(machine + life as usize) % AHEAD_S.len()];
    command.env("LD_PRELOAD", folder.join("clock.so")).env("CLAWMUX_CLOCK_AHEAD_S", ahead.to_string());
}
