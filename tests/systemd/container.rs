//! The units under a real systemd, in a container over a copy-on-write view of this machine's root:
//! start, a tool in its sandbox, a credential, reload, a crash, the watchdog, a restart and a stop.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::eventually;
use crate::support::tools::{missing, needs};

const TOKEN: &str = "the-operators-token-of-the-container";

/// A booted container; shut down when dropped.
struct Container {
    folder: tempfile::TempDir,
    nspawn: Option<Child>,
    /// The process that is its systemd.
    leader: String,
}

fn run(command: &mut Command) -> Result<(), String> {
    let what = format!("{command:?}");
    match command.stdin(Stdio::null()).output() {
        Ok(ran) if ran.status.success() => Ok(()),
        Ok(ran) => Err(format!("{what}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr).trim())),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

impl Container {
    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Mounts its root, with the daemon in it.
    fn prepare() -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("clawmux-container-").tempdir().unwrap();
        let container = Self { folder, nspawn: None, leader: String::new() };
        let (layers, root) = (container.folder.path().join("layers"), container.root());
        std::fs::create_dir(&layers).unwrap();
        std::fs::create_dir(&root).unwrap();
        // A file system of its own, since one overlay can't lie on another.
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=2g", "tmpfs"]).arg(&layers))?;
        std::fs::create_dir(layers.join("upper")).unwrap();
        std::fs::create_dir(layers.join("work")).unwrap();
        let options = format!("lowerdir=/,upperdir={0}/upper,workdir={0}/work", layers.display());
        run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&root))?;
        // Nothing of this machine's starts in it, and it is a machine of its own.
        File::create(root.join("etc/machine-id")).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_clawmux"), root.join("usr/local/bin/clawmux")).unwrap();
        Ok(container)
    }

    fn boot(&mut self) -> Result<(), String> {
        let log = File::create(self.folder.path().join("boot.log")).unwrap();
        let nspawn = Command::new("systemd-nspawn")
            .args([
                "--quiet",
                "--register=no",
                "--keep-unit",
                "--private-network",
                "--console=pipe",
                "--directory",
            ])
            .arg(self.root())
            .args(["--boot", "systemd.unit=basic.target"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .map_err(|error| error.to_string())?;
        let parent = nspawn.id();
        self.nspawn = Some(nspawn);
        let children = format!("/proc/{parent}/task/{parent}/children");
        let boot_log = self.folder.path().join("boot.log");
        let said = || std::fs::read_to_string(&boot_log).unwrap_or_default();
        // Its end, or a systemd in it that answers.
        let booted = eventually(&format!("the container to boot: {}", said()), || {
            if let Some(status) = self.nspawn.as_mut()?.try_wait().unwrap() {
                return Some(Err(format!("systemd-nspawn: {status}: {}", said())));
            }
            let leader = std::fs::read_to_string(&children).ok()?.split_whitespace().next()?.to_owned();
            let state = inside(&leader, &["systemctl", "is-active", "basic.target"]).ok()?;
            (text(&state).trim() == "active").then_some(Ok(leader))
        });
        self.leader = booted?;
        Ok(())
    }

    /// Runs a command in it; gives its output.
    fn sh(&self, script: &str) -> String {
        let ran = inside(&self.leader, &["sh", "-c", script]).unwrap();
        let said = text(&ran);
        assert!(ran.status.success(), "{script}: {}: {said}\n{}", ran.status, self.journal());
        said.trim().to_owned()
    }

    fn journal(&self) -> String {
        inside(&self.leader, &["journalctl", "--no-pager", "-u", "clawmux.service"])
            .map_or_else(|e| e.to_string(), |ran| text(&ran))
    }

    fn show(&self, property: &str) -> String {
        self.sh(&format!("systemctl show clawmux.service --value -p {property}"))
    }

    /// Waits until the service is up for the so manyth time since it was started by hand.
    fn restarted(&self, times: &str) {
        eventually(&format!("restart {times}"), || {
            self.show("NRestarts") == times && self.show("ActiveState") == "active"
        });
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.leader.is_empty() {
            eprintln!("--- the journal in the container ---\n{}", self.journal());
        }
        if let Some(mut nspawn) = self.nspawn.take() {
            // Its systemd ends with the namespaces of its processes.
            let _ = Command::new("kill").args(["-TERM", &nspawn.id().to_string()]).status();
            if !self.leader.is_empty() {
                let _ = Command::new("kill").args(["-KILL", &self.leader]).status();
            }
            let _ = nspawn.wait();
        }
        for mount in ["root", "layers"] {
            let _ = Command::new("umount").arg("-l").arg(self.folder.path().join(mount)).output();
        }
    }
}

fn inside(leader: &str, command: &[&str]) -> std::io::Result<Output> {
    Command::new("nsenter").args(["-t", leader, "-a"]).args(command).stdin(Stdio::null()).output()
}

fn text(ran: &Output) -> String {
    [&ran.stdout, &ran.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_life_under_a_real_systemd() {
    needs!("root", "mounts", "systemd-nspawn");
    let booted = Container::prepare().and_then(|mut container| container.boot().map(|()| container));
    let container = match booted {
        Ok(container) => container,
        Err(why) => return missing("a container that boots", &why),
    };

    // As an operator does it: the units, a secret, one line uncommented for it.
    write(&container.root().join("etc/clawmux/token"), TOKEN);
    container.sh("chmod 600 /etc/clawmux/token; clawmux unit --out /etc/systemd/system");
    container.sh("sed -i -E 's/^#(LoadCredential=token:|Environment=CLAWMUX__AUTH)/\\1/' /etc/systemd/system/clawmux.service");
    write(
        &container.root().join("etc/systemd/system/clawmux.service.d/test.conf"),
        "[Service]\nWatchdogSec=2\nRestartSec=100ms\n",
    );
    container.sh("systemctl daemon-reload && systemctl enable --now clawmux.socket clawmux.service");
    assert_eq!(container.show("ActiveState"), "active");
    assert!(container.show("StatusText").starts_with("ready"));
    let mode = container.sh("stat -c '%a %U' /run/clawmux/gateway.sock");
    assert_eq!(mode, "600 root");

    // The secret is in force, the plugins are compiled and called, the log is written.
    let clawmux = |args: &str| format!("USER=root clawmux --home /var/lib/clawmux {args}");
    let stranger = ["clawmux", "chat", "--url", "ws://127.0.0.1:18789/ws", "hello"];
    let refused = inside(&container.leader, &stranger).unwrap();
    assert!(!refused.status.success() && text(&refused).contains("wants a credential"), "{refused:?}");
    let said = container.sh(&clawmux("chat '/tool echo {\"text\":\"Kranich\"}'"));
    assert!(said.contains("Kranich"), "{said}");
    let said = container.sh(&clawmux("chat '/tool clock {}'"));
    assert!(said.contains("clock answered"), "{said}");
    let status = container.sh(&clawmux("status --json"));
    assert!(status.contains("127.0.0.1:18789"), "{status}");

    // The journal has fields, and no secret.
    let entries = container
        .sh("journalctl --no-pager -o json -u clawmux.service SYSLOG_IDENTIFIER=clawmux _TRANSPORT=journal");
    let entry = entries
        .lines()
        .find(|line| line.contains("plugin loaded plugin="))
        .unwrap_or_else(|| panic!("{entries}"));
    let entry: serde_json::Value = serde_json::from_str(entry).unwrap();
    assert_eq!(
        (entry["PRIORITY"].as_str(), entry["TARGET"].as_str()),
        (Some("6"), Some("clawmux_actors::plugin"))
    );
    assert!(entry["CLAWMUX_PLUGIN"].is_string(), "{entry}");
    assert!(!container.journal().contains(TOKEN));

    let pid = container.show("MainPID");
    container.sh("systemctl reload clawmux.service");
    assert_eq!((container.show("ActiveState"), container.show("MainPID")), ("active".into(), pid.clone()));

    // A crash, and what stands still: both are started anew.
    container.sh(&format!("kill -KILL {pid}"));
    container.restarted("1");
    let pid = container.show("MainPID");
    container.sh(&format!("kill -STOP {pid}"));
    container.restarted("2");
    assert!(container.journal().contains("Watchdog timeout"), "{}", container.journal());

    // What was said before is still there.
    let log = container.sh(&clawmux("session show main:cli:root:main"));
    assert!(log.contains("Kranich"), "{log}");

    container.sh("systemctl restart clawmux.service");
    container.sh("systemctl stop clawmux.service");
    assert_eq!(container.show("Result"), "success");
    assert_eq!(container.show("ExecMainStatus"), "0");
    // Who comes now has it started.
    let status = container.sh(&clawmux("status --json"));
    assert!(status.contains("127.0.0.1:18789"), "{status}");
    assert_eq!(container.show("ActiveState"), "active");
}
