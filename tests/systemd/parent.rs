//! Stands for systemd: it holds the sockets, starts the daemon with them, and hears what it tells.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::support::running::Running;
use crate::support::{TIMEOUT, daemon};

/// Passes its standard input and output on as the sockets 3 and 4, as systemd counts them.
const PASS: &str = "exec 3<&0 4<&1 </dev/null >/dev/null; \
                    LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=tcp:unix exec \"$@\"";

/// A service manager of one service.
pub(crate) struct Parent {
    home: tempfile::TempDir,
    tcp: TcpListener,
    unix: UnixListener,
    notify: UnixDatagram,
    config: String,
    env: Vec<(&'static str, String)>,
}

/// The service while it runs; killed when dropped.
pub(crate) struct Service {
    child: Running,
}

impl Parent {
    /// Of a daemon with this `gateway.toml`.
    pub(crate) fn new(config: &str) -> Self {
        let home = daemon::home();
        std::fs::write(home.path().join("gateway.toml"), config).unwrap();
        let notify = UnixDatagram::bind(home.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(TIMEOUT)).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = UnixListener::bind(home.path().join("passed.sock")).unwrap();
        Self { home, tcp, unix, notify, config: config.to_owned(), env: Vec::new() }
    }

    /// With this variable in the daemon's environment besides.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Where clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.tcp.local_addr().unwrap()
    }

    /// Where everybody looks for the Unix socket.
    pub(crate) fn unix_path(&self) -> PathBuf {
        self.home.path().join(".xeno/gateway.sock")
    }

    /// The file of the socket that is passed.
    pub(crate) fn passed_path(&self) -> PathBuf {
        self.home.path().join("passed.sock")
    }

    /// What all daemons have logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("daemon.log")).unwrap_or_default()
    }

    /// Starts the daemon.
    pub(crate) fn start(&self) -> Service {
        let path = self.home.path().join("daemon.log");
        let log = std::fs::File::options().create(true).append(true).open(path).unwrap();
        let mut command = Command::new("sh");
        let serve = daemon::command(self.home.path());
        command
            .args(["-c", PASS, "sh"])
            .arg(serve.get_program())
            .args(serve.get_args())
            .arg("serve")
            .env_clear();
        for (name, value) in serve.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let passed = |socket: OwnedFd| Stdio::from(socket);
        command
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("NOTIFY_SOCKET", self.home.path().join("notify"))
            .stdin(passed(self.tcp.try_clone().unwrap().into()))
            .stdout(passed(self.unix.try_clone().unwrap().into()))
            .stderr(log);
        Service { child: Running::start(&mut command) }
    }

    /// What the daemon tells next, a list of `NAME=VALUE`.
    ///
    /// # Panics
    /// After [`TIMEOUT`].
    pub(crate) fn told(&self) -> Vec<String> {
        self.told_within(TIMEOUT).unwrap_or_else(|| {
            panic!("nothing was told; configuration {:?}, log:\n{}", self.config, self.log())
        })
    }

    /// What it tells within this time.
    pub(crate) fn told_within(&self, time: Duration) -> Option<Vec<String>> {
        self.notify.set_read_timeout(Some(time)).unwrap();
        let mut bytes = [0; 4096];
        let length = loop {
            match self.notify.recv(&mut bytes) {
                // This process was itself stopped for a moment: such a wait is not taken up again.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.ok()?,
            }
        };
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        Some(text.lines().map(str::to_owned).collect())
    }

    /// Waits until it tells this, among whatever else.
    pub(crate) fn hears(&self, state: &str) {
        while !self.told().iter().any(|told| told == state) {}
    }

    /// One request on the Unix socket; gives the answer, or why there is none.
    pub(crate) fn ask(&self, method: &str) -> Result<String, String> {
        let asked = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(self.unix_path())?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            writeln!(stream, "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\"}}")?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        asked().map_err(|error| error.to_string())
    }
}

impl Service {
    /// Sends a signal, by its name without SIG.
    pub(crate) fn signal(&self, name: &str) {
        self.child.signal(name);
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.child.ended()
    }
}
