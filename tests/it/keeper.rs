//! Programs of somebody else's, kept within bounds: `clawmux keep`, as the daemon starts it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use crate::support::eventually;
use crate::support::process::has_argument;
use crate::support::tools::needs;

/// A keeper of a shell script, its standard input and output piped.
fn keep(args: &[&str], script: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_clawmux"))
        .arg("keep")
        .args(args)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a keeper")
}

const BOUNDS: [&str; 4] = ["--memory", "200000000", "--processes", "8"];

/// Its status and what it said, once it has ended.
fn ended(keeper: Child) -> (i32, String, String) {
    let output = keeper.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("a status"), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_program_speaks_for_itself_and_its_status_is_the_keepers() {
    let keeper = keep(&BOUNDS, "echo out; echo err >&2; exit 7");
    assert_eq!(ended(keeper), (7, "out\n".into(), "err\n".into()));
    let keeper = Command::new(env!("CARGO_BIN_EXE_clawmux"))
        .args(["keep", "--processes", "8", "--memory", "200000000", "--", "/nowhere/program"])
        .stdin(Stdio::piped())
        .output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&keeper.stderr).into_owned();
    assert!(keeper.status.code() == Some(126) && said.contains("can't start /nowhere/program"), "{said}");
}

#[test]
fn nothing_is_left_of_it_once_it_ends_or_its_input_does() {
    for (nth, script) in [
        // It ends, and what it left behind goes with it.
        "setsid sleep 98765001 & (sleep 98765001 &) ; echo ready",
        // It does not care that its input has ended, and neither do those it has started.
        "trap '' TERM HUP INT; setsid sleep 98765002 & (setsid sh -c 'sleep 98765002 & wait' &) ; echo ready; wait; sleep 98765002",
    ]
    .into_iter()
    .enumerate()
    {
        let argument = format!("9876500{}", nth + 1);
        let mut keeper = keep(&BOUNDS, script);
        let mut line = String::new();
        BufReader::new(keeper.stdout.as_mut().expect("output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        if nth == 1 {
            eventually("all of them to run", || has_argument(&argument));
        }
        drop(keeper.stdin.take());
        keeper.wait().expect("it ends");
        assert!(!has_argument(&argument), "{script}");
    }
}

#[test]
fn bounds_hold_for_all_it_starts_together() {
    let many = "for n in 1 2 3 4 5 6 7 8 9; do sleep 98765003 & done; wait";
    let (status, _, said) = ended(keep(&BOUNDS, many));
    assert!(status == 125 && said.contains("processes (limit 8)"), "{status} {said}");
    assert!(!has_argument("98765003"));

    let hold = "hold() { (head -c 90000000 /dev/zero; sleep 98765004) | tail; }; hold & hold & hold & wait";
    let (status, _, said) = ended(keep(&["--memory", "150000000", "--processes", "30"], hold));
    assert!(status == 125 && said.contains("MiB of memory (limit 143)"), "{status} {said}");

    let alone = "head -c 400000000 /dev/zero | tail >/dev/null; echo went on";
    let (status, out, said) = ended(keep(&BOUNDS, alone));
    assert!(
        status == 125 || (out == "went on\n" && said.contains("memory exhausted")),
        "{status} {out} {said}"
    );
}

#[test]
fn only_the_folders_that_are_named_are_reached() {
    needs!("landlock");
    let (open, shut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(open.path().join("a"), "open").unwrap();
    std::fs::write(shut.path().join("a"), "shut").unwrap();
    let (open, shut) = (open.path().display().to_string(), shut.path().display().to_string());
    let pid = std::process::id();
    let script = format!(
        "cat {open}/a; echo; cat {shut}/a /proc/{pid}/environ /etc/fstab; ls /; echo x > {open}/b && echo wrote; \
         echo x > {shut}/b; ls /usr >/dev/null && echo fine"
    );
    let args = |write: &'static str| [&BOUNDS[..], &["--folders", write]].concat();
    let mut reads = args("--read");
    reads.push(&open);
    let (_, out, said) = ended(keep(&reads, &script));
    assert_eq!(out, "open\nfine\n", "{said}");
    assert_eq!(said.matches("ermission denied").count(), 6, "{said}");
    let mut writes = args("--write");
    writes.push(&open);
    let (_, out, said) = ended(keep(&writes, &script));
    assert_eq!(out, "open\nwrote\nfine\n", "{said}");

    let (status, _, said) =
        ended(keep(&[&BOUNDS[..], &["--folders", "--read", "/nowhere"]].concat(), "true"));
    assert!(status == 126 && said.contains("/nowhere"), "{said}");
}

#[test]
fn a_keeper_ends_with_what_it_keeps_when_nobody_is_left_to_speak_to_it() {
    // The shell is killed outright: its end of the pipe is all that the keeper sees of that.
    let script = format!(
        "mkfifo \"$0\"; {} keep --memory 200000000 --processes 8 -- sleep 98765005 < \"$0\" & exec 3> \"$0\"; echo ready; sleep 100 3>&-",
        env!("CARGO_BIN_EXE_clawmux")
    );
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .arg(folder.path().join("pipe"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    shell.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    eventually("the program to run", || has_argument("98765005"));
    shell.kill().unwrap();
    shell.wait().unwrap();
    eventually("nothing to be left", || !has_argument("98765005"));
}
