//! `clawmux unit`: the systemd units of the daemon, confined as far as it can work.
//!
//! The socket unit holds the TCP port and the Unix socket, so that they are there from boot on and
//! through every restart: who connects meanwhile waits. The system's Unix socket is in the folder
//! `/run/clawmux`, because the home of a dynamic user may not be there yet, and the daemon links to it
//! from where everybody looks, `<home>/.xeno/gateway.sock`; a user's is there itself.
//!
//! The system's service runs as a dynamic user: nobody else has that user, nobody can log in as it,
//! and it needs no setup; its files are in `/var/lib/clawmux` and nowhere else.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clawmux_core::config::Config;

use crate::cli::{Global, Unit};
use crate::exit::{FAILED, Failure, USAGE};
use crate::settings;
use crate::terminal::{say, tell, write};

const SERVICE: &str = "clawmux.service";
const SOCKET: &str = "clawmux.socket";
/// Where the system's service has its home.
const SYSTEM_HOME: &str = "/var/lib/clawmux";
/// Folders that the confined service does not see as we do.
const UNSEEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// Where its Unix socket is.
const SYSTEM_SOCKET: &str = "%t/clawmux/gateway.sock";
/// How much longer than the daemon means to take it may take to stop, in seconds.
const STOP_MARGIN_SECS: u64 = 10;

const SYSTEM_USER: &str = "\
# A user of its own that exists while it runs; the home is /var/lib/clawmux. Operate it as root:
#   clawmux --home /var/lib/clawmux status
DynamicUser=yes
StateDirectory=clawmux
StateDirectoryMode=0700
";

const SECRETS: &str = "\
# Secrets, one in each file; %d is where this service alone sees them. LoadCredentialEncrypted= takes
# what `systemd-creds encrypt` made of them.
#LoadCredential=token:/etc/clawmux/token
#Environment=CLAWMUX__AUTH__TOKEN_FILE=%d/token
#LoadCredential=anthropic:/etc/clawmux/anthropic.key
#Environment=CLAWMUX__PROVIDERS__ANTHROPIC__KIND=anthropic
#Environment=CLAWMUX__PROVIDERS__ANTHROPIC__API_KEY_FILE=%d/anthropic
#LoadCredential=openai:/etc/clawmux/openai.key
#Environment=CLAWMUX__PROVIDERS__OPENAI__KIND=openai
#Environment=CLAWMUX__PROVIDERS__OPENAI__API_KEY_FILE=%d/openai
";

const CONFINEMENT: &str = "\
MemoryMax=2G
# Plugins are compiled in processes of their own, which are the first to go where memory runs short.
OOMPolicy=continue
TasksMax=512
# Two for each connection.
LimitNOFILE=65536
LimitCORE=0
UMask=0077

NoNewPrivileges=yes
LockPersonality=yes
# AF_NETLINK tells whose sockets lead here over loopback.
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
# The one exception: plugins are WASM, which is compiled to machine code while the daemon runs.
MemoryDenyWriteExecute=no
";

const SYSTEM_CONFINEMENT: &str = "\
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateDevices=yes
DevicePolicy=closed
PrivateTmp=yes
PrivateIPC=yes
PrivateMounts=yes
RemoveIPC=yes
KeyringMode=private
# With models on this machine alone, cut it off from the network:
#IPAddressDeny=any
#IPAddressAllow=localhost
";

const SEES_USERS: &str = "\
# Members of gateway.socket_group are known by the kernel's credentials, which a user namespace hides.
PrivateUsers=no
";

/// What the units say of this installation.
struct Installation {
    user: bool,
    binary: PathBuf,
    /// The units come with a package, where nobody prints them.
    is_packaged: bool,
    /// Given by name; none = the usual ones.
    config: Option<PathBuf>,
    home: PathBuf,
    listen: Vec<SocketAddr>,
    socket_group: Option<String>,
    /// How long a stop takes at most, in seconds.
    stop_secs: u64,
}

/// Runs the command.
///
/// # Errors
/// Where the binary is not known or the units can't be written.
pub(crate) fn run(global: &Global, options: &Unit) -> Result<(), Failure> {
    let installation = Installation::of(global, options)?;
    let (service, socket) = (installation.service(), installation.socket());
    for text in installation.warnings() {
        tell(&format!("warning: {text}"));
    }
    if let Some(folder) = &options.out {
        for (name, text) in [(SERVICE, service), (SOCKET, socket)] {
            let path = folder.join(name);
            std::fs::write(&path, text)
                .map_err(|error| Failure::new(FAILED, format!("cannot write {}: {error}", path.display())))?;
            say(&path.display().to_string());
        }
        return Ok(());
    }
    // As `systemctl cat` does it: each below its path.
    let folder = installation.folder();
    let text = match (options.service, options.socket) {
        (true, _) => service,
        (_, true) => socket,
        _ => format!("# {folder}/{SERVICE}\n{service}\n# {folder}/{SOCKET}\n{socket}"),
    };
    write(&text).map(drop)
}

impl Installation {
    fn of(global: &Global, options: &Unit) -> Result<Self, Failure> {
        let user = options.user;
        if global.home.is_some() && !user {
            let why =
                format!("the system service has its home in {SYSTEM_HOME}: leave out --home, or add --user");
            return Err(Failure::new(USAGE, why));
        }
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map_err(|error| Failure::new(FAILED, format!("{}: {error}", path.display())))
        };
        let config =
            global.config.as_deref().filter(|path| !path.as_os_str().is_empty()).map(absolute).transpose()?;
        let binary = match &options.binary {
            Some(path) => absolute(path)?,
            None => std::env::current_exe().map_err(|error| {
                Failure::new(FAILED, format!("the path of this binary is not known: {error}"))
            })?,
        };
        let home = if user { global.home.clone() } else { Some(SYSTEM_HOME.into()) };
        let (home, config_there) = match settings::read(&Global { home, ..global.clone() }, &[]) {
            Ok(settings) => (settings.home, settings.config),
            // What it refers to, such as credentials, may be there under systemd only.
            Err(failure) => {
                tell(&format!(
                    "warning: these units are for the built-in configuration, because yours is refused here:\n{}",
                    failure.message
                ));
                let variable = |name: &str| std::env::var(name).ok();
                let home = if user { global.home.as_deref() } else { Some(Path::new(SYSTEM_HOME)) };
                (crate::home::resolve(home, variable)?, Config::default())
            }
        };
        Ok(Self {
            user,
            binary,
            is_packaged: options.binary.is_some(),
            config,
            home,
            listen: config_there.gateway.listen.clone(),
            socket_group: config_there.gateway.socket_group.clone().filter(|group| !group.is_empty()),
            stop_secs: clawmux_actors::gateway::stops_within(&config_there).as_secs(),
        })
    }

    fn folder(&self) -> &'static str {
        if self.user { "~/.config/systemd/user" } else { "/etc/systemd/system" }
    }

    fn systemctl(&self) -> &'static str {
        if self.user { "systemctl --user" } else { "systemctl" }
    }

    /// What keeps the service from working as it is.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for path in [Some(&self.binary), self.config.as_ref()].into_iter().flatten().filter(|_| !self.user) {
            if let Some(folder) = UNSEEN.iter().find(|folder| path.starts_with(folder)) {
                warnings.push(format!(
                    "the service can't see {folder}: move {} elsewhere, such as below /usr/local or /etc",
                    path.display()
                ));
            }
        }
        warnings
    }

    fn service(&self) -> String {
        let mut exec = quoted(&self.binary);
        if let Some(config) = &self.config {
            let _ = write!(exec, " --config {}", quoted(config));
        }
        let (folder, systemctl) = (self.folder(), self.systemctl());
        let install = match (self.is_packaged, self.user) {
            (true, _) => String::new(),
            (false, true) => format!("#   clawmux unit --user --out {folder}\n"),
            (false, false) => format!("#   clawmux unit --out {folder}\n"),
        };
        let (version, stop_secs) = (env!("CARGO_PKG_VERSION"), self.stop_secs + STOP_MARGIN_SECS);
        let home = match self.user {
            true => format!("Environment=CLAWMUX_HOME={}\n", quoted(&self.home)),
            false => SYSTEM_USER.to_owned(),
        };
        let more = match (self.user, &self.socket_group) {
            (true, _) => String::new(),
            (false, None) => format!("{SYSTEM_CONFINEMENT}PrivateUsers=yes\n"),
            (false, Some(_)) => format!("{SYSTEM_CONFINEMENT}{SEES_USERS}"),
        };
        let wanted_by = if self.user { "default.target" } else { "multi-user.target" };
        format!(
            "\
# clawmux {version}: one daemon for the AI-agent clients of four protocols.
# To start it now and at every boot:
{install}#   {systemctl} daemon-reload && {systemctl} enable --now {SOCKET} {SERVICE}
[Unit]
Description=clawmux, a daemon for AI-agent clients
After=network-online.target {SOCKET}
Wants=network-online.target
Requires={SOCKET}
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={exec} serve
ExecReload=/bin/kill -HUP $MAINPID
# Fed only while every thread that serves clients and the log answer.
WatchdogSec=60
Restart=on-failure
RestartSec=1
# Wrong usage and a bad configuration do not get better by themselves.
RestartPreventExitStatus=2 64
# A large log of an older version is converted at the start.
TimeoutStartSec=600
# The drain (gateway.drain_timeout_ms), then the farewell; the daemon asks for more where it needs it.
TimeoutStopSec={stop_secs}

{home}
{SECRETS}
{CONFINEMENT}{more}
[Install]
Also={SOCKET}
WantedBy={wanted_by}
"
        )
    }

    fn socket(&self) -> String {
        let addresses = self.listen.iter().filter(|address| address.port() != 0);
        let listen: String = addresses.map(|address| format!("ListenStream={address}\n")).collect();
        let path = if self.user { self.unix_path() } else { SYSTEM_SOCKET.to_owned() };
        let group =
            self.socket_group.as_ref().map(|group| format!("SocketGroup={group}\n")).unwrap_or_default();
        let (mode, folder_mode) = match (self.user, &self.socket_group) {
            (true, None) => ("0600", "0700"),
            (true, Some(_)) => ("0660", "0750"),
            (false, None) => ("0600", "0755"),
            (false, Some(_)) => ("0660", "0755"),
        };
        format!(
            "\
# Holds what clients connect to while the daemon is away, too: they wait until it is back.
# These win over gateway.listen, --listen and --socket.
[Unit]
Description=clawmux, its sockets

[Socket]
{listen}BindIPv6Only=ipv6-only
NoDelay=yes
Backlog=4096
ListenStream={path}
SocketMode={mode}
{group}DirectoryMode={folder_mode}
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"
        )
    }

    fn unix_path(&self) -> String {
        specified(&clawmux_actors::host::bound::socket_path(&self.home))
    }
}

/// A path in a unit file: no `%` begins a specifier.
fn specified(path: &Path) -> String {
    path.display().to_string().replace('%', "%%")
}

/// A path as one word of a command line in a unit file.
fn quoted(path: &Path) -> String {
    let text = specified(path).replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$");
    if text.chars().any(|c| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '\\')) {
        format!("\"{text}\"")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation(user: bool) -> Installation {
        Installation {
            user,
            binary: "/opt/my tools/clawmux".into(),
            is_packaged: false,
            config: Some("/etc/100%.toml".into()),
            home: "/home/me/.clawmux".into(),
            listen: vec!["127.0.0.1:18789".parse().unwrap(), "[::1]:1".parse().unwrap()],
            socket_group: None,
            stop_secs: 20,
        }
    }

    #[test]
    fn the_units_name_this_installation() {
        let system = installation(false);
        let service = system.service();
        assert!(
            service.contains("\nExecStart=\"/opt/my tools/clawmux\" --config /etc/100%%.toml serve\n"),
            "{service}"
        );
        assert!(
            service.contains("\nTimeoutStopSec=30\n") && service.contains("\nPrivateUsers=yes\n"),
            "{service}"
        );
        assert!(service.contains("#   clawmux unit --out /etc/systemd/system\n#   systemctl daemon-reload"));
        let packaged = Installation { is_packaged: true, ..installation(false) }.service();
        assert!(!packaged.contains("unit --out") && packaged.contains("#   systemctl daemon-reload"));
        let socket = system.socket();
        assert!(socket.contains("ListenStream=127.0.0.1:18789\nListenStream=[::1]:1\n"), "{socket}");
        assert!(socket.contains("%t/clawmux/gateway.sock\nSocketMode=0600\n"), "{socket}");
        let grouped = Installation { socket_group: Some("ops".into()), ..installation(false) };
        assert!(grouped.socket().contains("SocketMode=0660") && grouped.socket().contains("SocketGroup=ops"));
        assert!(grouped.service().contains("PrivateUsers=no"));

        let user = installation(true);
        assert!(
            user.socket().contains("\nListenStream=/home/me/.clawmux/.xeno/gateway.sock\n"),
            "{}",
            user.socket()
        );
        assert!(
            user.service().contains("\nEnvironment=CLAWMUX_HOME=/home/me/.clawmux\n"),
            "{}",
            user.service()
        );
    }

    #[test]
    fn a_binary_that_the_service_would_not_see_is_warned_of() {
        let hidden = Installation { binary: "/root/clawmux".into(), ..installation(false) };
        assert!(hidden.warnings()[0].contains("/root"), "{:?}", hidden.warnings());
        assert!(installation(false).warnings().is_empty() && installation(true).warnings().is_empty());
    }
}
