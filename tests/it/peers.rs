//! Who may use the Unix socket: peers of other users and groups, and where the socket is.
//!
//! Other users need root to become them, and `setpriv` and `perl`, which every Debian has: without
//! these the tests about them say so and prove nothing.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::daemon::{self, Daemon};
use crate::support::lines::Lines;
use crate::support::tools::{needs, skip};

/// A user and a group of nobody's, and a group that every system has.
const NOBODY: &str = "65534";
const USERS: (&str, &str) = ("users", "100");

/// Connects to a socket, asks for the status and prints what comes.
const ASK: &str = r#"
use Socket;
$SIG{PIPE} = 'IGNORE';
socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
connect($s, sockaddr_un($ARGV[0])) or do { print "connect: $!\n"; exit };
syswrite($s, qq({"jsonrpc":"2.0","id":1,"method":"admin.status"}\n));
shutdown($s, 1);
while (sysread($s, my $piece, 65536)) { print $piece }
"#;

/// What somebody of these user, group and supplementary groups is told at the socket.
fn told(path: &Path, user: &str, group: &str, groups: &str) -> String {
    let groups = if groups.is_empty() { vec!["--clear-groups"] } else { vec!["--groups", groups] };
    let output = Command::new("setpriv")
        .args(["--reuid", user, "--regid", group])
        .args(groups)
        .args(["perl", "-e", ASK])
        .arg(path)
        .output()
        .expect("setpriv runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn socket_of(home: &Path) -> PathBuf {
    home.join(".xeno/gateway.sock")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").mode() & 0o777
}

/// Opens every door on the way to the socket, so that only the daemon keeps anybody out.
fn open_doors(path: &Path) {
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    set(path, 0o666);
    for folder in path.ancestors().skip(1).take(2) {
        set(folder, 0o755);
    }
}

fn is_answered(told: &str) -> bool {
    serde_json::from_str::<Value>(told).is_ok_and(|answer| answer["result"]["pid"].is_u64())
}

#[test]
fn another_user_is_kept_out_whatever_the_files_say() {
    needs!("root", "setpriv", "perl");
    let daemon = Daemon::start();
    let path = socket_of(daemon.home());
    assert!(told(&path, NOBODY, NOBODY, "").starts_with("connect: Permission denied"));
    open_doors(&path);
    let refused = told(&path, NOBODY, NOBODY, USERS.1);
    assert!(refused.contains("user 65534 may not use this socket\""), "{refused}");
    assert!(is_answered(&told(&path, "0", "0", "")), "root may");
}

#[test]
fn the_daemons_own_user_may_and_so_may_root() {
    needs!("root", "setpriv", "perl");
    // The home of nobody, who runs the daemon.
    let home = daemon::home();
    let chown = Command::new("chown").args(["-R", NOBODY]).arg(home.path()).status().expect("chown runs");
    assert!(chown.success());
    let passage = Command::new("setpriv")
        .args([
            "--reuid",
            NOBODY,
            "--regid",
            NOBODY,
            "--clear-groups",
            env!("CARGO_BIN_EXE_clawmux"),
            "--version",
        ])
        .output()
        .expect("setpriv runs");
    if !passage.status.success() {
        return skip(concat!("nobody may not run ", env!("CARGO_BIN_EXE_clawmux")));
    }
    let command = daemon::command(home.path());
    let mut child = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(command.get_program())
        .args(command.get_args())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let path = socket_of(home.path());
    crate::support::eventually("its socket", || path.exists());
    open_doors(&path);
    let answers =
        [told(&path, NOBODY, NOBODY, ""), told(&path, "0", "0", ""), told(&path, "65533", NOBODY, "")];
    child.kill().expect("it is killed");
    child.wait().expect("it is reaped");
    let answered: Vec<bool> = answers.iter().map(|told| is_answered(told)).collect();
    assert_eq!(answered, [true, true, false], "{answers:?}");
}

#[test]
fn members_of_the_group_are_let_in_and_nobody_else() {
    needs!("root", "setpriv", "perl");
    let (name, id) = USERS;
    let home = daemon::home();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
    let daemon = Daemon::at(home, &format!("[gateway]\nsocket_group = \"{name}\"\n"), &[]);
    let path = socket_of(daemon.home());
    assert_eq!((mode(&path), mode(path.parent().expect("a folder"))), (0o660, 0o750));
    assert_eq!(std::fs::metadata(&path).expect("it is there").gid().to_string(), id);
    assert!(daemon.log().contains("lets them not pass"), "the home is private: {}", daemon.log());
    std::fs::set_permissions(daemon.home(), std::fs::Permissions::from_mode(0o711)).expect("it is ours");
    assert!(is_answered(&told(&path, NOBODY, id, "")), "by the primary group");
    assert!(is_answered(&told(&path, NOBODY, NOBODY, &format!("50,{id},1000"))), "by another group");
    assert!(told(&path, NOBODY, NOBODY, "").starts_with("connect: Permission denied"));
    open_doors(&path);
    let refused = told(&path, NOBODY, NOBODY, "50,1000");
    assert!(refused.contains("may not use this socket: it is for members of the group users"), "{refused}");
}

#[test]
fn an_unknown_group_is_an_error_of_the_start() {
    let home = daemon::home();
    std::fs::write(home.path().join("gateway.toml"), "[gateway]\nsocket_group = \"no-such-group\"\n")
        .expect("it is written");
    let output =
        daemon::command(home.path()).args(["serve", "--listen", "127.0.0.1:0"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("gateway.socket_group: there is no group \"no-such-group\""), "{said}");
}

/// Both protocols are spoken there.
fn speaks_both(home: &Path) {
    let mut lines = Lines::connect(home);
    assert!(lines.call("admin.status", json!({}))["pid"].is_u64());
    let id = lines.request("gateway.initialize", json!({}));
    lines.find("an answer", |message| message["id"] == json!(id));
}

#[test]
fn xenos_clients_find_their_socket_in_their_home() {
    let theirs = daemon::home();
    let daemon = Daemon::with(&format!("[xeno]\nhome = {:?}\n", theirs.path()));
    for home in [daemon.home(), theirs.path()] {
        speaks_both(home);
        assert_eq!(mode(&socket_of(home)), 0o600);
    }
    // Another daemon can't have it, and says what it is about.
    let other = daemon::home();
    std::fs::write(other.path().join("gateway.toml"), format!("[xeno]\nhome = {:?}\n", theirs.path()))
        .expect("it is written");
    let output =
        daemon::command(other.path()).args(["serve", "--listen", "127.0.0.1:0"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("xeno.home: a clawmux daemon (pid "), "{said}");

    let mut daemon = daemon;
    assert!(daemon.terminate().success());
    assert!(!socket_of(theirs.path()).exists() && !socket_of(daemon.home()).exists());
}

#[test]
fn xenos_own_configuration_is_looked_at_and_never_in_the_way() {
    let (home, theirs) = (daemon::home(), daemon::home());
    let folder = home.path().join(".config/xeno");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("config.json");
    std::fs::write(&file, json!({ "default_home": theirs.path() }).to_string()).expect("it is written");
    let mut daemon = Daemon::at(home, "", &[]);
    speaks_both(theirs.path());
    speaks_both(daemon.home());
    assert!(daemon.terminate().success());

    for (broken, says) in [
        ("{".to_owned(), "config.json: EOF"),
        (json!({"default_home": "/nowhere/at/all"}).to_string(), "cannot find the home"),
    ] {
        std::fs::write(&file, broken).expect("it is written");
        daemon = daemon.restart_stopped();
        speaks_both(daemon.home());
        assert!(daemon.log().contains(says), "{says}: {}", daemon.log());
        assert!(daemon.terminate().success());
    }
}
