//! A daemon of one's own.

use std::io::{Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Arc;

use super::TIMEOUT;
use super::compiled;
use super::running::{Running, bounded};

/// A port of the system's choice.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A running daemon with a home in a temporary folder; killed when dropped.
pub struct Daemon {
    child: Running,
    /// Where it listens.
    pub address: SocketAddr,
    home: Arc<tempfile::TempDir>,
    config: String,
    env: Vec<(String, String)>,
}

impl Daemon {
    /// With no configuration at all.
    pub fn start() -> Self {
        Self::with("")
    }

    /// With this `gateway.toml`.
    pub fn with(config: &str) -> Self {
        Self::with_env(config, &[])
    }

    /// With this `gateway.toml` and these environment variables besides.
    pub fn with_env(config: &str, env: &[(&str, &str)]) -> Self {
        Self::at(home(), config, env)
    }

    /// With people who have a key each ([`key_of`]) and a role or scopes, and these environment variables
    /// besides.
    pub fn shared(config: &str, people: &[(&str, &str)], env: &[(&str, &str)]) -> Self {
        let mut config = format!("{config}\n");
        let mut env: Vec<_> = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        for (name, rights) in people {
            let scopes: Vec<&str> = rights.split(' ').collect();
            let rights = match rights.contains('.') {
                true => format!("scopes = {scopes:?}"),
                false => format!("role = {rights:?}"),
            };
            config += &format!("[[auth.api_keys]]\nname = {name:?}\nkey_env = \"KEY_{name}\"\n{rights}\n");
            env.push((format!("KEY_{name}"), key_of(name)));
        }
        Self::launch(Arc::new(home()), config, env, ANY_PORT)
    }

    /// In this home, with this `gateway.toml` and these environment variables besides.
    pub fn at(home: tempfile::TempDir, config: &str, env: &[(&str, &str)]) -> Self {
        let env = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Self::launch(Arc::new(home), config.to_owned(), env, ANY_PORT)
    }

    /// As [`Self::at`], with an environment that was made.
    pub fn at_with(home: tempfile::TempDir, config: &str, env: Vec<(String, String)>) -> Self {
        Self::launch(Arc::new(home), config.to_owned(), env, ANY_PORT)
    }

    /// It, and a client that `connect` has connected to it.
    pub fn and<C>(self, connect: impl FnOnce(SocketAddr) -> C) -> (Self, C) {
        let client = connect(self.address);
        (self, client)
    }

    fn launch(
        home: Arc<tempfile::TempDir>,
        config: String,
        env: Vec<(String, String)>,
        listen: SocketAddr,
    ) -> Self {
        std::fs::write(home.path().join("gateway.toml"), &config).expect("the configuration is written");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(home.path().join("daemon.log"))
            .expect("the log is opened");
        let mut child = Running::start(
            command(home.path())
                .args(["serve", "--listen", &listen.to_string()])
                .envs(env.iter().map(|(k, v)| (k, v)))
                .stdout(Stdio::piped())
                .stderr(log),
        );
        let ready = child.stdout_lines();
        let mut seen = String::new();
        let address = loop {
            match ready.recv_timeout(TIMEOUT) {
                Ok(line) => match address_in(&line) {
                    Some(address) => break address,
                    None => seen.push_str(&line),
                },
                Err(_) => {
                    child.put_down();
                    let log = std::fs::read_to_string(home.path().join("daemon.log")).unwrap_or_default();
                    panic!("the daemon did not get ready; stdout: {seen:?}; log:\n{log}");
                }
            }
        };
        Self { child, address, home, config, env }
    }

    /// Its home.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home().join("daemon.log")).unwrap_or_default()
    }

    /// SIGKILL, and a new daemon on the same home.
    pub fn kill_and_restart(mut self) -> Self {
        self.child.put_down();
        self.relaunch()
    }

    /// SIGKILL, and a new daemon on the same home and the same port, where clients come back to.
    pub fn kill_and_return(mut self) -> Self {
        self.child.put_down();
        let (home, config, env) = (self.home.clone(), self.config.clone(), self.env.clone());
        let address = self.address;
        drop(self);
        Self::launch(home, config, env, address)
    }

    /// SIGKILL, and a new daemon on the same home that must not get ready: what it said.
    pub fn kill_and_fail_to_restart(mut self) -> (Stopped, String) {
        self.child.put_down();
        let mut child = command(self.home());
        child.args(["serve", "--listen", "127.0.0.1:0"]).envs(self.env.iter().map(|(k, v)| (k, v)));
        let ended = child.output().expect("it runs");
        let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        assert!(!ended.status.success(), "it starts: {said}");
        let stopped = Stopped { home: self.home.clone(), config: self.config.clone(), env: self.env.clone() };
        (stopped, said)
    }

    /// SIGTERM, and a new daemon on the same home.
    pub fn restart(mut self) -> Self {
        let status = self.terminate();
        assert!(status.success(), "a clean stop exits 0: {status}\n{}", self.log());
        self.relaunch()
    }

    /// SIGKILL, and nothing after it.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    pub fn kill(&mut self) {
        self.child.put_down();
    }

    /// Its home, where this one has stopped.
    #[allow(dead_code, reason = "the daemon's tests use it")]
    pub fn stopped(&self) -> Stopped {
        Stopped { home: self.home.clone(), config: self.config.clone(), env: self.env.clone() }
    }

    /// A new daemon on the same home, where this one has stopped.
    pub fn restart_stopped(self) -> Self {
        self.relaunch()
    }

    /// SIGTERM; gives its exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.child.ended()
    }

    /// Sends a signal, by its name without SIG.
    pub fn signal(&self, name: &str) {
        self.child.signal(name);
    }

    fn relaunch(self) -> Self {
        let (home, config, env) = (self.home.clone(), self.config.clone(), self.env.clone());
        drop(self);
        Self::launch(home, config, env, ANY_PORT)
    }

    /// Runs `clawmux` on its home: exit status, stdout, stderr.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        output(command(self.home()).args(args))
    }

    /// Runs `clawmux`, which must exit 0, and takes its stdout.
    pub fn stdout_of(&self, args: &[&str]) -> String {
        let (status, stdout, stderr) = self.run(args);
        assert_eq!(status, 0, "{args:?}: {stdout}{stderr}");
        stdout
    }

    /// Runs `clawmux` with `--json`, which must exit 0 and write one JSON object.
    pub fn json_of(&self, args: &[&str]) -> serde_json::Value {
        let stdout = self.stdout_of(&[args, &["--json"]].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
    }

    /// Runs `clawmux` with `--json`, which must exit 0 and write one JSON object a line.
    pub fn rows_of(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let stdout = self.stdout_of(&[args, &["--json"]].concat());
        let row = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
        };
        stdout.lines().map(row).collect()
    }

    /// A GET over plain HTTP: status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.address, path)
    }
}

/// The key of somebody on a [`Daemon::shared`].
pub fn key_of(name: &str) -> String {
    format!("key-of-{name}-0123456789012345678901234567890")
}

/// Runs it: exit status, stdout, stderr.
pub fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (status.code().expect("it exits by itself"), text(stdout), text(stderr))
}

/// Runs it with this piped in; one that refuses reads nothing.
pub fn output_of(command: &mut Command, input: &[u8]) -> (i32, String, String) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(input).expect("it is written");
    file.rewind().expect("it is read from its beginning");
    output(command.stdin(file))
}

/// A home whose daemon is not running.
pub struct Stopped {
    home: Arc<tempfile::TempDir>,
    config: String,
    env: Vec<(String, String)>,
}

impl Stopped {
    /// A new daemon on it.
    pub fn start_again(self) -> Daemon {
        Daemon::launch(self.home, self.config, self.env, ANY_PORT)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.put_down();
        if std::thread::panicking() {
            eprintln!("--- the daemon's log ---\n{}", self.log());
        }
    }
}

/// A home that nothing was done in. What comes with the binary is compiled.
pub fn home() -> tempfile::TempDir {
    let home = tempfile::Builder::new().prefix("clawmux-test-").tempdir().expect("a temporary folder");
    compiled::give(home.path());
    home
}

/// The binary that is tested: that of `CLAWMUX_TEST_BIN`, such as one that was built to be packaged,
/// else the one built with the tests.
pub fn binary() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_clawmux").into();
    std::env::var_os("CLAWMUX_TEST_BIN").map_or_else(built, PathBuf::from)
}

/// `clawmux` with this home, and an environment without anybody's keys.
pub fn command(home: &Path) -> Command {
    command_of(&binary(), home)
}

/// The same of this program.
pub fn command_of(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    bounded(command.arg("--home").arg(home).stdin(Stdio::null()));
    command
}

/// A GET over plain HTTP: status and body.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    use std::io::Write;
    let mut socket = std::net::TcpStream::connect(address).expect("it accepts");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a deadline is set");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .expect("it is sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

/// The address in a line that says where something listens.
pub fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split("http://").nth(1)?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:[]".contains(c))).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
