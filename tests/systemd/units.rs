//! The units, as systemd's own tools read them.

use std::path::Path;
use std::process::Command;

use crate::support::daemon;
use crate::support::tools::needs;

fn units(home: &Path, args: &[&str], config: &str) -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let file = home.join("asked.toml");
    std::fs::write(&file, config).unwrap();
    // Without the home of `daemon::command`, which the system's service has elsewhere.
    let mut command = Command::new(env!("CARGO_BIN_EXE_clawmux"));
    command.env_clear().env("HOME", home).arg("--config").arg(file);
    let ran = command.arg("unit").args(args).arg("--out").arg(out.path()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    out
}

fn verified(folder: &Path, more: &[&str]) -> (bool, String) {
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]).args(more);
    let units = ["clawmux.service", "clawmux.socket"].map(|name| folder.join(name));
    let ran = command.args(units).output().unwrap();
    // It exits 0 on unknown keys too; what it says is what counts.
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (ran.status.success(), said)
}

#[test]
fn the_units_are_what_systemd_takes() {
    needs!("systemd");
    let home = daemon::home();
    for (args, config) in [
        (&[][..], ""),
        (&[], "[gateway]\nlisten = [\"127.0.0.1:1\", \"[::1]:1\"]\nsocket_group = \"daemon\"\n"),
        (&["--user"], ""),
    ] {
        let out = units(home.path(), args, config);
        assert_eq!(verified(out.path(), &[]), (true, String::new()), "{args:?} {config}");
        // The judge is awake: a key it does not know is told.
        let service = out.path().join("clawmux.service");
        let text = std::fs::read_to_string(&service).unwrap();
        std::fs::write(&service, text.replace("RestartSec=", "RestartSecs=")).unwrap();
        let (_, said) = verified(out.path(), &[]);
        assert!(said.contains("RestartSecs"), "{said}");
    }
}

#[test]
fn the_service_is_as_confined_as_it_can_be() {
    needs!("systemd");
    let home = daemon::home();
    for config in ["", "[gateway]\nsocket_group = \"daemon\"\n"] {
        let out = units(home.path(), &[], config);
        let ran = Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true", "--threshold=15"])
            .arg(out.path().join("clawmux.service"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        let exposure =
            said.lines().rfind(|line| line.contains("Overall exposure")).unwrap_or_default().trim();
        assert!(ran.status.success(), "{config}: {said}");
        println!("{exposure}");
    }
}

#[test]
fn both_units_are_printed_below_their_paths() {
    let home = daemon::home();
    let print = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clawmux"));
        let ran = command.env_clear().env("HOME", home.path()).arg("unit").args(args).output().unwrap();
        (
            ran.status.code().unwrap(),
            String::from_utf8(ran.stdout).unwrap(),
            String::from_utf8(ran.stderr).unwrap(),
        )
    };
    let (_, service, _) = print(&["--service"]);
    let (_, socket, _) = print(&["--socket"]);
    let (status, both, _) = print(&[]);
    assert_eq!(status, 0);
    let expected = format!(
        "# /etc/systemd/system/clawmux.service\n{service}\n# /etc/systemd/system/clawmux.socket\n{socket}"
    );
    assert_eq!(both, expected);
    let user = print(&["--user"]).1;
    assert!(user.starts_with("# ~/.config/systemd/user/clawmux.service\n"), "{user}");
    let usual = home.path().join(".clawmux/.xeno/gateway.sock");
    assert!(user.contains(&format!("ListenStream={}\n", usual.display())), "{user}");
    assert_eq!(print(&["--home", "/x"]).0, 2, "the system's service has a home of its own");
    // A configuration that is good under systemd alone is no reason for having no units.
    std::fs::write(home.path().join("c.toml"), "[auth]\ntoken_file = \"/run/credentials/none\"\n").unwrap();
    let config = home.path().join("c.toml").display().to_string();
    let (status, units, said) = print(&["--config", &config]);
    assert!(status == 0 && units.contains("[Socket]") && said.contains("warning: "), "{said}");
}
