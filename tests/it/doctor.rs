//! `clawmux doctor` against what goes wrong in practice: each is provoked, found, and told with what to do.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::NOBODY;
use crate::support::daemon::{self, Daemon};
use crate::support::tools::{needs, skip};

/// A port that nobody has right now.
const ANY: &str = "[gateway]\nlisten = [\"127.0.0.1:0\"]\n";

/// What was found.
#[derive(Debug)]
struct Found {
    status: i32,
    findings: Vec<Value>,
    text: String,
}

impl Found {
    /// The state of the finding of this part that says so.
    fn state(&self, part: &str, says: &str) -> &str {
        let is_it = |finding: &&Value| {
            finding["part"] == part && finding["what"].as_str().is_some_and(|what| what.contains(says))
        };
        let found = self.findings.iter().find(is_it);
        let found = found.unwrap_or_else(|| panic!("nothing of {part} says {says}: {}", self.text));
        let state = found["state"].as_str().expect("a state");
        assert!(state == "ok" || part == "config" || found["advice"] != "", "with what to do: {found}");
        state
    }

    fn says_nothing_of(&self, part: &str, says: &str) {
        let is_it = |finding: &Value| finding["part"] == part && finding["what"].to_string().contains(says);
        assert!(!self.findings.iter().any(is_it), "{part} says {says}: {}", self.text);
    }
}

/// Runs it on this home, with these arguments and variables.
fn doctor(home: &Path, args: &[&str], env: &[(&str, &str)]) -> Found {
    let mut command = daemon::command(home);
    command.args(["doctor", "--json"]).args(args).envs(env.iter().copied());
    read(command)
}

fn read(mut command: Command) -> Found {
    let output = command.output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let status = output.status.code().expect("it exits by itself");
    assert_eq!(status == 0, told["ok"] == true, "{text}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Found { status, findings: told["findings"].as_array().cloned().expect("a list"), text }
}

/// A private home with this configuration.
fn home_with(config: &str) -> tempfile::TempDir {
    let home = daemon::home();
    set_mode(home.path(), 0o700);
    write(&home.path().join("gateway.toml"), config, 0o600);
    home
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("it is written");
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn files_that_others_may_read_or_change() {
    let home = home_with(&format!("{ANY}[auth]\ntoken_file = \"token\"\n"));
    let token = home.path().join("token");
    write(&token, "a-token-of-more-than-sixteen-bytes", 0o600);
    let found = doctor(home.path(), &[], &[]);
    assert_eq!((found.status, found.state("secret", "token")), (0, "ok"), "{}", found.text);
    set_mode(&token, 0o640);
    assert_eq!(doctor(home.path(), &[], &[]).state("secret", "others may read"), "error");
    set_mode(&token, 0o600);
    set_mode(&home.path().join("gateway.toml"), 0o666);
    let found = doctor(home.path(), &[], &[]);
    assert_eq!((found.status, found.state("secret", "others may change")), (1, "error"));
    assert!(!found.text.contains("a-token-of"), "{}", found.text);
    write(&home.path().join("gateway.toml"), ANY, 0o600);
    fs::create_dir(home.path().join(".xeno")).expect("a folder");
    set_mode(&home.path().join(".xeno"), 0o755);
    assert_eq!(doctor(home.path(), &[], &[]).state("home", "others may reach"), "error");
}

#[test]
fn what_a_fresh_install_has_off_is_told_with_its_key() {
    let home = home_with(ANY);
    let found = doctor(home.path(), &["--offline"], &[]);
    for key in ["scheduler.heartbeat_minutes", "scheduler.new_session_cron", "files.attachment_roots"] {
        assert_eq!(found.state("xeno", key), "ok", "{}", found.text);
    }
    let set = "[scheduler]\nheartbeat_minutes = 30\n";
    write(&home.path().join("gateway.toml"), &format!("{ANY}{set}"), 0o600);
    let found = doctor(home.path(), &["--offline"], &[]);
    found.says_nothing_of("xeno", "scheduler.heartbeat_minutes");
    assert_eq!(found.state("xeno", "scheduler.new_session_cron"), "ok");
}

#[test]
fn a_port_that_somebody_has_and_one_that_everybody_reaches() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let home = home_with(&format!("[gateway]\nlisten = [\"{address}\"]\n"));
    let found = doctor(home.path(), &[], &[]);
    let who = format!("{address} is taken by process {}", std::process::id());
    assert_eq!((found.status, found.state("port", &who)), (1, "error"), "{}", found.text);
    drop(taken);
    assert_eq!(doctor(home.path(), &[], &[]).state("port", "is free"), "ok");

    write(&home.path().join("gateway.toml"), "[gateway]\nlisten = [\"0.0.0.0:0\"]\n", 0o600);
    let found = doctor(home.path(), &[], &[]);
    assert_eq!((found.status, found.state("config", "no credential is configured")), (1, "error"));
    let short = [("CLAWMUX_TOKEN", "short")];
    let found = doctor(home.path(), &[], &short);
    assert_eq!((found.status, found.state("config", "too short off loopback")), (1, "error"));
    assert!(!found.text.contains("short\""), "{}", found.text);
    let found = doctor(home.path(), &[], &[("CLAWMUX_TOKEN", "a-token-of-24-characters")]);
    assert_eq!((found.status, found.state("port", "by plain HTTP")), (0, "warning"), "{}", found.text);
    write(&home.path().join("gateway.toml"), "", 0o600);
    let found = doctor(home.path(), &[], &short);
    assert_eq!(found.state("key", "it can be guessed"), "warning");
    assert_eq!(found.state("port", "only programs of this user and of root get in"), "ok");
    assert!(!found.text.contains("short\""), "{}", found.text);
}

/// The models that such a server has.
const LISTED: &str = r#"{"data":[{"id":"m"},{"id":"n"}]}"#;

/// A server that answers every prompt with this head, so long ago, and lists its models.
fn server(status: &'static str, ago: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut seen = Vec::new();
            let mut byte = [0];
            while !seen.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
                seen.push(byte[0]);
            }
            let seen = String::from_utf8_lossy(&seen).to_lowercase();
            // Closed with something unread, the connection is reset, and the answer may be lost.
            let length = seen.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let _ = stream.read_exact(&mut vec![0; length.unwrap_or(0)]);
            let is_list = seen.starts_with("get /v1/models http/1.1");
            assert!(is_list || seen.starts_with("post /v1/chat/completions http/1.1"), "{seen}");
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970") - ago;
            let date = http_date(since.as_secs());
            let has_key = seen.contains("authorization: bearer the-key");
            let status = if has_key { status } else { "403 No Key" };
            let (status, body) = if is_list && has_key { ("200 OK", LISTED) } else { (status, "{}") };
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nDate: {date}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
        }
    });
    address
}

/// As in the header `Date`, from seconds since 1970.
fn http_date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let is_leap =
        |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let weekday =
        ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][usize::try_from(days % 7).expect("small")];
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{weekday}, {:02} {} {year} {hour:02}:{minute:02}:{second:02} GMT", day + 1, months[month])
}

fn with_provider(address: SocketAddr) -> tempfile::TempDir {
    home_with(&format!(
        "{ANY}[providers.lab]\nkind = \"openai\"\nbase_url = \"http://{address}/v1\"\napi_key_env = \"LAB_KEY\"\n\
         [agents.main]\nprovider = \"lab\"\nmodel = \"m\"\n"
    ))
}

#[test]
fn a_provider_that_is_there_refuses_the_key_is_away_or_has_another_time() {
    let key = [("LAB_KEY", "the-key")];
    // That a prompt without a word is wrong is what a good server says.
    let address = server("400 Bad Request", Duration::ZERO);
    let home = with_provider(address);
    let found = doctor(home.path(), &[], &key);
    assert_eq!((found.status, found.state("model", "provider lab answers")), (0, "ok"), "{}", found.text);
    assert_eq!(found.state("model", "provider lab has m (main)"), "ok");
    assert_eq!(found.state("clock", "of that of provider lab"), "ok");
    assert!(!found.text.contains("the-key"), "{}", found.text);
    doctor(home.path(), &["--offline"], &key).says_nothing_of("model", "");

    let lab = format!(
        "{ANY}[providers.lab]\nkind = \"openai\"\nbase_url = \"http://{address}\"\napi_key_env = \"LAB_KEY\"\n"
    );
    let agent = |model: &str| home_with(&format!("{lab}[agents.main]\nprovider = \"lab\"\n{model}"));
    let found = doctor(agent("model = \"gone\"\n").path(), &[], &key);
    let missing = "provider lab does not have gone (main)";
    assert_eq!((found.status, found.state("model", missing)), (1, "error"), "{}", found.text);
    let found = doctor(agent("").path(), &[], &key);
    assert_eq!(found.state("model", "provider lab answers main with m"), "ok", "{}", found.text);
    let found = doctor(with_provider(server("404 Not Found", Duration::ZERO)).path(), &[], &key);
    assert_eq!(
        (found.status, found.state("model", "is not where models are asked")),
        (1, "error"),
        "{}",
        found.text
    );

    let home = with_provider(server("401 Unauthorized", Duration::from_secs(7200)));
    let found = doctor(home.path(), &[], &key);
    assert_eq!((found.status, found.state("model", "with 401")), (1, "error"), "{}", found.text);
    assert_eq!(found.state("clock", "s ahead of that of provider lab"), "error");

    let found = doctor(with_provider(NOBODY).path(), &[], &key);
    assert_eq!(found.state("model", "can't be reached: lab: connection refused"), "error");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let home = with_provider(silent.local_addr().expect("an address"));
    assert_eq!(doctor(home.path(), &[], &key).state("model", "no answer within"), "error");
    let found = doctor(home.path(), &["--offline"], &[("LAB_KEY", "the key")]);
    assert_eq!((found.status, found.state("key", "white space")), (0, "warning"));
}

#[test]
fn each_of_several_keys_is_tried_and_the_one_that_is_refused_is_named() {
    let address = server("400 Bad Request", Duration::ZERO);
    let home = home_with(&format!(
        "{ANY}[providers.lab]\nkind = \"openai\"\nbase_url = \"http://{address}/v1\"\n\
         api_key_envs = [\"LAB_OLD\", \"LAB_NEW\"]\n[agents.main]\nprovider = \"lab\"\nmodel = \"m\"\n"
    ));
    let env = [("LAB_OLD", "an-old-key"), ("LAB_NEW", "the-key")];
    let found = doctor(home.path(), &[], &env);
    assert_eq!(
        found.state("model", "provider lab answers with the key LAB_OLD"),
        "warning",
        "{}",
        found.text
    );
    assert_eq!(found.state("model", "provider lab answers with the key LAB_NEW"), "ok", "{}", found.text);
    assert_eq!(
        (found.status, found.state("model", "provider lab has m (main)")),
        (0, "ok"),
        "{}",
        found.text
    );
    let mut models = daemon::command(home.path());
    let output = models.args(["models", "lab"]).envs(env).output().expect("it runs");
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("\nlab "), "{out}{said}");
    assert!(said.contains("lab does not list its models with the key LAB_OLD: "), "{said}");
    assert!(![found.text.as_str(), &out, &said].concat().contains("an-old-key"), "no key is told: {said}");
    // Where none is taken, it is an error.
    let found = doctor(home.path(), &[], &[("LAB_OLD", "an-old-key"), ("LAB_NEW", "a-worse-key")]);
    assert_eq!((found.status, found.state("model", "with the key LAB_NEW")), (1, "error"), "{}", found.text);
}

#[test]
fn a_key_that_is_not_there() {
    let home = home_with(&format!("{ANY}[agents.main]\nprovider = \"anthropic\"\n"));
    let found = doctor(home.path(), &[], &[]);
    assert_eq!((found.status, found.state("key", "provider anthropic wants a key")), (1, "error"));
    found.says_nothing_of("model", "anthropic");
    let found = doctor(home.path(), &["--offline"], &[("ANTHROPIC_API_KEY", "sk-proj-1")]);
    assert_eq!((found.status, found.state("key", "does not begin as keys")), (0, "warning"));
}

#[test]
fn variables_and_keys_that_mean_nothing() {
    let home = home_with(ANY);
    let found = doctor(home.path(), &[], &[("CLAWMUX_PORT", "1234")]);
    assert_eq!((found.status, found.state("config", "CLAWMUX_PORT")), (0, "warning"), "{}", found.text);
    let found = doctor(home.path(), &[], &[("CLAWMUX__GATEWAY__PORT", "1234")]);
    assert_eq!((found.status, found.state("config", "CLAWMUX__GATEWAY__PORT")), (1, "error"));
}

#[test]
fn a_heartbeat_without_anything_to_do() {
    let home = home_with(&format!("{ANY}[scheduler]\nheartbeat_minutes = 5\n"));
    let found = doctor(home.path(), &[], &[]);
    assert_eq!((found.status, found.state("home", "no heartbeat runs")), (0, "warning"), "{}", found.text);
    fs::write(home.path().join("HEARTBEAT.md"), " \n").expect("it is written");
    assert_eq!(doctor(home.path(), &[], &[]).state("home", "is empty"), "warning");
    fs::write(home.path().join("HEARTBEAT.md"), "look after the mail").expect("it is written");
    assert_eq!(doctor(home.path(), &[], &[]).state("home", "says what to do"), "ok");
}

#[test]
fn a_clock_that_went_back_and_few_open_files() {
    let home = home_with(ANY);
    let made = daemon::command(home.path())
        .args(["token", "create", "--yes", "--name", "a", "--role", "user"])
        .output();
    assert!(made.expect("it runs").status.success(), "a log is there");
    doctor(home.path(), &[], &[]).says_nothing_of("clock", "went back");
    let log = fs::File::options().append(true).open(home.path().join("clawmux.db")).expect("it is there");
    log.set_modified(SystemTime::now() + Duration::from_secs(86_400)).expect("it is ours");
    let found = doctor(home.path(), &[], &[]);
    assert_eq!((found.status, found.state("clock", "the clock went back")), (1, "error"));

    let home = home_with(ANY);
    let limited = |limit: &str| {
        let mut command = Command::new("sh");
        command
            .env_clear()
            .env("HOME", home.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let line = "ulimit -n \"$1\" && shift && exec \"$@\"";
        command.args(["-c", line, "sh", limit, env!("CARGO_BIN_EXE_clawmux"), "--home"]);
        command.arg(home.path()).args(["doctor", "--json"]);
        read(command)
    };
    assert_eq!(limited("512").state("limits", "of 512 files open"), "warning");
    assert_eq!(limited("4096").state("limits", "of 4096 files open"), "ok");
}

/// What is in a folder, but for the memory that those share who look into a log.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(folder)
        .expect("it is there")
        .flatten()
        .filter(|entry| entry.path().is_file() && !entry.path().ends_with("clawmux.db-shm"))
        .map(|entry| {
            let bytes = fs::read(entry.path()).expect("it can be read");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_daemon_that_runs_what_waits_for_its_operator_and_one_that_died() {
    let home = home_with("");
    let daemon = Daemon::at(home, "", &[]);
    set_mode(&daemon.home().join("gateway.toml"), 0o600);
    let found = doctor(daemon.home(), &[], &[]);
    assert_eq!(found.status, 0, "{}", found.text);
    assert_eq!(found.state("port", &format!("{} answers and takes work", daemon.address)), "ok");
    let args = ["token", "create", "--yes", "--name", "brief", "--role", "user", "--expires", "2d"];
    daemon.stdout_of(&args);
    let found = doctor(daemon.home(), &[], &[]);
    assert_eq!((found.status, found.state("token", "of brief expires in 1d 23h")), (0, "warning"));
    daemon.stdout_of(&["drain"]);
    assert_eq!(doctor(daemon.home(), &[], &[]).state("port", "takes no work"), "warning");

    daemon.signal("KILL");
    crate::support::eventually("it to be dead", || {
        let found = doctor(daemon.home(), &[], &[]);
        found.text.contains("none runs")
    });
    let before = contents(daemon.home());
    let found = doctor(daemon.home(), &[], &[]);
    assert_eq!(found.state("daemon", "was left by one that died"), "warning");
    assert_eq!(contents(daemon.home()), before, "nothing is changed");
}

#[test]
fn another_user_than_the_daemons_gets_no_harmful_advice() {
    needs!("root", "setpriv");
    let home = home_with(ANY);
    let args = ["token", "create", "--yes", "--name", "a", "--role", "user"];
    assert!(daemon::command(home.path()).args(args).output().expect("it runs").status.success());
    set_mode(home.path(), 0o755);
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        env!("CARGO_BIN_EXE_clawmux"),
        "--home",
    ]);
    command.arg(home.path()).args(["doctor", "--json", "--offline"]).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    if command.output().is_ok_and(|ended| ended.stdout.is_empty()) {
        return skip("another user can't run the program here");
    }
    let found = read(command);
    assert_eq!(found.state("home", "belongs to user 0, this is user 65534"), "error", "{}", found.text);
    assert_eq!(found.state("store", "was not looked into: it is the daemon's user's"), "warning");
    assert!(!found.text.contains("chown") && !found.text.contains("damaged"), "{}", found.text);

    // A file that is not the daemon's user's is told, with what that user needs.
    set_mode(home.path(), 0o700);
    std::os::unix::fs::chown(home.path().join("clawmux.db"), Some(65534), None).expect("root may");
    let found = doctor(home.path(), &["--offline"], &[]);
    assert_eq!(found.state("store", "belongs to user 65534, and its folder to user 0"), "error");
    assert!(found.text.contains("as root: chown 0 "), "{}", found.text);
}
