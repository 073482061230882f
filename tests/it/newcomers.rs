//! The first quarter of an hour: `setup`, `models`, the first credential, reading and restoring a store without
//! a daemon, and each mistake a newcomer makes, by the exact words that answer it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::shim::{Disk, FULL};
use crate::support::daemon::{self, Daemon, output};
use crate::support::eventually;
use crate::support::lines::Lines;
use crate::support::tools::{needs, skip};
use crate::support::upstream::{Turn, Upstream};

/// Runs it on this home: exit status, stdout, stderr. Whoever has a daemon on the usual port is not met.
fn run(home: &Path, args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = daemon::command(home);
    output(command.args(args).env("CLAWMUX__GATEWAY__LISTEN", "127.0.0.1:0").envs(env.iter().copied()))
}

/// A port that nobody listens on, and that the system gives nobody by itself.
const NOBODY: &str = "127.0.0.1:1";

/// What a provider says that does not know the key.
fn wrong_key() -> Turn {
    let body =
        json!({"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}});
    Turn::Status(401, None, body.to_string())
}

fn models(names: &[&str]) -> Turn {
    let data: Vec<Value> = names.iter().map(|name| json!({ "id": name, "object": "model" })).collect();
    Turn::Status(200, None, json!({ "object": "list", "data": data }).to_string())
}

#[test]
fn a_wrong_port_or_address() {
    let home = daemon::home();
    for listen in ["127.0.0.1:99999", "localhost", "8080"] {
        let (status, _, said) = run(home.path(), &["serve", "--listen", listen], &[]);
        let expected = format!(
            "--listen: gateway.listen: expected ADDR:PORT such as \"127.0.0.1:18789\" or \"[::1]:18789\", found {listen:?}\n"
        );
        assert_eq!((status, said), (64, expected));
    }
    let (status, _, said) = run(home.path(), &["chat", "--url", &format!("ws://{NOBODY}/ws"), "hi"], &[]);
    assert_eq!(status, 69, "{said}");
    assert!(said.contains(&format!("no daemon is reachable at ws://{NOBODY}/ws: ")), "{said}");
    let (status, _, said) = run(home.path(), &["status"], &[]);
    let socket = home.path().join(".xeno/gateway.sock").display().to_string();
    let none =
        format!("no daemon is reachable at {socket}: there is no socket; start one with `clawmux serve`\n");
    assert_eq!((status, said), (69, none));
}

#[test]
fn a_second_daemon_on_the_same_home_or_port() {
    let daemon = Daemon::start();
    let home = daemon.home();
    let (status, _, said) = run(home, &["serve", "--listen", "127.0.0.1:0"], &[]);
    let (pid, name) = (daemon.pid(), home.display());
    let expected = format!(
        "a clawmux daemon (pid {pid}) runs on {name} already: stop it, or give this one another --home\n"
    );
    assert_eq!((status, said), (1, expected));
    let (other, address) = (daemon::home(), daemon.address.to_string());
    let (status, _, said) = run(other.path(), &["serve", "--listen", &address], &[]);
    let expected = format!(
        "can't listen on {address}: Address already in use (os error 98): another program listens there; stop it, or \
         give another address with --listen or gateway.listen\n"
    );
    assert_eq!((status, said), (1, expected));
}

#[test]
fn no_home() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clawmux"));
    let (status, _, said) = output(command.env_clear().arg("status").stdin(Stdio::null()));
    let expected = "there is no home: HOME is not set. Give --home DIR, or set CLAWMUX_HOME\n";
    assert_eq!((status, said.as_str()), (1, expected));
}

#[test]
fn a_home_that_can_not_be_written_to() {
    let folder = daemon::home();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let command = |home: &Path| {
        // Root may write anywhere.
        let mut command = Command::new(if is_root { "setpriv" } else { "env" });
        if is_root {
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        }
        command.arg(env!("CARGO_BIN_EXE_clawmux")).arg("--home").arg(home).stdin(Stdio::null());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    };
    if output(command(folder.path()).arg("--version")).0 != 0 {
        return skip("another user can't run the program here");
    }
    let name = folder.path().display();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let (status, _, said) = output(command(folder.path()).args(serve));
    let expected = format!(
        "cannot make the folder {name}/.xeno: Permission denied (os error 13): the home must be writable for this user; \
         --home DIR names another one\n"
    );
    assert_eq!((status, said), (1, expected));
    let (status, _, said) = output(command(&folder.path().join("deep")).args(serve));
    let expected = format!(
        "can't make the home {name}/deep: Permission denied (os error 13): see to the permissions of the folders above \
         it, or choose another home with --home DIR\n"
    );
    assert_eq!((status, said), (1, expected));
    let (status, _, said) = output(command(folder.path()).args(["setup", "--yes"]));
    let expected = format!("can't write into {name}: Permission denied (os error 13)\n");
    assert_eq!((status, said), (1, expected));
}

#[test]
fn a_full_disk() {
    let home = daemon::home();
    let disk = Disk::under(home.path());
    disk.fail("home", "write", FULL, 0);
    let mut serve = daemon::command(home.path());
    let (status, _, said) = output(serve.args(["serve", "--listen", "127.0.0.1:0"]).envs(disk.env()));
    assert_eq!(status, 1, "{said}");
    let lock = home.path().join(".xeno/gateway.lock").display().to_string();
    let full = format!(
        "cannot open the lock {lock}: No space left on device (os error 28): free some space on its disk"
    );
    assert_eq!(said.lines().last(), Some(&*full), "{said}");
    disk.heal();
    // Where a daemon ran before it is the store that finds no room.
    let (status, _, said) =
        run(home.path(), &["token", "create", "--yes", "--name", "a", "--role", "user"], &[]);
    assert_eq!(status, 0, "{said}");
    disk.fail("home", "write", FULL, 0);
    let mut serve = daemon::command(home.path());
    let (status, _, said) = output(serve.args(["serve", "--listen", "127.0.0.1:0"]).envs(disk.env()));
    let store = home.path().join("clawmux.db").display().to_string();
    let full = "the store can't be written: the disk is full: free some space, work is then taken again: \
                clawmux doctor says what to do";
    let full = format!("can't open the store {store}: {full}");
    assert_eq!((status, said.lines().last()), (1, Some(&*full)), "{said}");
    disk.fail("home", "write", FULL, 0);
    let mut setup = daemon::command(home.path());
    let (status, _, said) = output(setup.args(["setup", "--yes"]).envs(disk.env()));
    let file = home.path().join("gateway.toml");
    let words = format!("can't write {}: No space left on device (os error 28)", file.display());
    assert_eq!((status, said.lines().last()), (1, Some(&*words)), "{said}");
    assert!(!file.exists(), "nothing is left half written");
}

#[test]
fn a_wrong_key() {
    let upstream = Upstream::start();
    let (home, url) = (daemon::home(), upstream.base_url());
    let env = [("ANTHROPIC_API_KEY", "sk-ant-wrong"), ("ANTHROPIC_BASE_URL", url.as_str())];
    upstream.then(wrong_key());
    let (status, _, said) = run(home.path(), &["setup", "--yes"], &env);
    let refused = "anthropic answered 401: authentication_error: invalid x-api-key (check its api key)";
    let expected = format!(
        "Looking for model providers ...\n  Anthropic-compatible server: key in ANTHROPIC_API_KEY, at {url} \
         (ANTHROPIC_BASE_URL), the key in ANTHROPIC_API_KEY is not accepted ({refused})\nnone of them answered: \
         nothing was written\n"
    );
    assert_eq!((status, said), (1, expected));
    assert!(!home.path().join("gateway.toml").exists());
    upstream.then(wrong_key());
    let (status, _, said) = run(home.path(), &["models"], &env);
    assert_eq!((status, said), (1, format!("anthropic ({url}): {refused}\nno provider answered\n")));
    upstream.then(wrong_key());
    let (status, _, said) = run(home.path(), &["chat", "hi"], &env);
    assert!(status == 1 && said.contains(refused) && !said.contains("sk-ant"), "{status} {said}");
}

#[test]
fn a_provider_that_is_not_there() {
    let home = daemon::home();
    let model = ("CLAWMUX__AGENTS__MAIN__MODEL", "m");
    let dead = format!("http://{NOBODY}/v1");
    let env = [("OPENAI_BASE_URL", dead.as_str()), model];
    let (status, _, said) = run(home.path(), &["models"], &env);
    let expected = format!(
        "openai ({dead}): connection refused: does the server at {NOBODY} run? check base_url\nno provider answered\n"
    );
    assert_eq!((status, said), (1, expected));
    let (status, _, said) = run(home.path(), &["chat", "hi"], &env);
    assert!(
        status == 1 && said.contains("openai: connection refused: does the server at"),
        "{status} {said}"
    );
    let env = [("OPENAI_BASE_URL", "http://no-such-host.invalid/v1"), model];
    let (status, _, said) = run(home.path(), &["models", "openai"], &env);
    let (first, rest) = said.split_once('\n').unwrap();
    let begins = "openai (http://no-such-host.invalid/v1): host not found (";
    assert!(first.starts_with(begins) && first.ends_with("): check base_url"), "{first}");
    assert_eq!((status, rest), (1, "no provider answered\n"));
    let (status, _, said) = run(home.path(), &["models", "opnai"], &env);
    assert_eq!((status, said.as_str()), (1, "there is no provider \"opnai\"; there are: openai\n"));
    // Another that answers does not hide it.
    let env = [("OPENAI_BASE_URL", dead.as_str()), ("CLAWMUX__PROVIDERS__LOCAL__KIND", "offline"), model];
    let (status, told, said) = run(home.path(), &["models"], &env);
    assert!(told.contains("local"), "{told}{said}");
    assert_eq!((status, said.lines().last()), (1, Some("1 of 2 providers did not answer")), "{said}");
    assert_eq!(run(home.path(), &["models", "local"], &env).0, 0);
}

#[test]
fn setup_with_nothing_there_and_nobody_to_ask() {
    let home = daemon::home();
    let (status, _, said) = run(home.path(), &["setup"], &[]);
    let nobody =
        "there is no terminal to ask on: `clawmux setup --yes` asks nothing and takes what it finds\n";
    assert_eq!((status, said.as_str()), (2, nobody));
    let (status, told, said) = run(home.path(), &["setup", "--yes"], &[]);
    assert_eq!(
        (status, said.as_str()),
        (
            0,
            "Looking for model providers ...\nNo model provider was found: no key of one is set, such as ANTHROPIC_API_KEY \
             or OPENAI_API_KEY (gateway.toml names them all), and neither Ollama nor llama.cpp answers on this machine.\n\
             Agent main runs on the built-in offline model, which needs no network and shows how clawmux works.\nOnce you have a key or a \
             model server: `clawmux setup --force`.\n"
        )
    );
    let (file, name) = (home.path().join("gateway.toml"), home.path().display());
    for command in ["chat", "serve", "doctor"] {
        assert!(told.contains(&format!("\n  clawmux --home {name} {command} ")), "{told}");
    }
    let written = fs::read_to_string(&file).unwrap();
    let (status, told, _) = run(home.path(), &["check"], &[]);
    assert!(status == 0 && told.contains("agent   main: offline/offline"), "{told}");
    let (status, _, said) = run(home.path(), &["setup", "--yes"], &[]);
    let there = format!(
        "{} is there already: nothing was written. --force changes it, and keeps a copy\n",
        file.display()
    );
    assert_eq!((status, said), (1, there));
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
}

#[test]
fn setup_takes_a_server_with_a_model_of_its_own_and_keeps_what_was_there() {
    let upstream = Upstream::start();
    let home = daemon::home();
    let host = upstream.address().to_string();
    let env = [("OLLAMA_HOST", host.as_str())];
    upstream
        .then(models(&["nomic-embed-text:latest", "llama3.2:latest"]))
        .then(Turn::Say(vec!["ready\u{1b}[2J".into()]));
    let (status, told, said) = run(home.path(), &["setup", "--yes"], &env);
    assert_eq!(status, 0, "{told}{said}");
    assert!(said.contains(&format!("  Ollama: at http://{host}/v1 (OLLAMA_HOST), 2 models\n")), "{said}");
    assert!(said.contains("Asking ollama/llama3.2:latest for one word ...\n"), "{said}");
    assert!(said.contains(": ready[2J\n") && !said.contains('\u{1b}'), "{said}");
    let asked = upstream.requests();
    assert_eq!(asked[0].path, "/v1/models");
    assert_eq!(
        (asked[1].path.as_str(), &asked[1].body["model"]),
        ("/v1/chat/completions", &json!("llama3.2:latest"))
    );
    let file = home.path().join("gateway.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# Configuration of clawmux, written by `clawmux setup`."), "{text}");
    assert!(text.contains("model = \"llama3.2:latest\"\n") && !text.contains("gpt-4o"), "{text}");
    let (status, told, _) = run(home.path(), &["check"], &[]);
    assert!(status == 0 && told.contains("agent   main: ollama/llama3.2:latest"), "{told}");

    upstream.then(models(&["llama3.2:latest", "other"]));
    let (status, listed, said) = run(home.path(), &["models", "--json"], &[]);
    assert_eq!(status, 0, "{said}");
    let rows: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0], json!({"provider": "ollama", "model": "llama3.2:latest", "agents": ["main"]}));
    assert_eq!(rows[1], json!({"provider": "ollama", "model": "other", "agents": []}));

    // The embedded daemon of `chat` asks that model.
    upstream.then(Turn::Say(vec!["from the server".into()]));
    let (status, told, said) = run(home.path(), &["chat", "hi"], &[]);
    assert!(status == 0 && told.contains("from the server"), "{told}{said}");

    fs::write(&file, format!("# mine\n[limits]\nqueue = 9\n\n{text}")).unwrap();
    let url = format!("{}/v1", upstream.base_url());
    let env = [("OPENAI_API_KEY", "sk-right"), ("OPENAI_BASE_URL", url.as_str())];
    upstream.then(models(&["big"])).then(Turn::Say(vec!["ready".into()]));
    let (status, told, said) = run(home.path(), &["setup", "--yes", "--force"], &env);
    assert_eq!(status, 0, "{told}{said}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# mine\n[limits]\nqueue = 9\n") && text.contains("model = \"big\""), "{text}");
    assert!(text.contains("api_key_env = \"OPENAI_API_KEY\"") && !text.contains("sk-right"), "{text}");
    let copies = fs::read_dir(home.path()).unwrap().flatten();
    let copies =
        copies.filter(|entry| entry.file_name().to_string_lossy().starts_with("gateway.toml.before-setup-"));
    assert_eq!(copies.count(), 1, "{told}");
    let last = upstream.requests().pop().unwrap();
    assert!(last.head.to_lowercase().contains("authorization: bearer sk-right"), "{}", last.head);
}

#[test]
fn a_server_is_never_asked_for_a_model_of_openai() {
    let home = daemon::home();
    let config = "[providers.lab]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:11434/v1\"\n[agents.main]\nprovider = \"lab\"\n";
    fs::write(home.path().join("gateway.toml"), config).unwrap();
    let (status, told, _) = run(home.path(), &["check"], &[]);
    assert!(status == 0 && told.contains("agent   main: the first model that lab lists\n"), "{told}");
    let upstream = Upstream::start();
    let config = config.replace("http://127.0.0.1:11434/v1", &upstream.base_url());
    fs::write(home.path().join("gateway.toml"), config).unwrap();
    upstream.then(models(&["embed-1", "small", "big"]));
    let (_, told, _) = run(home.path(), &["models"], &[]);
    assert!(told.lines().any(|line| line.contains("small") && line.ends_with("main")), "{told}");
    upstream.then(models(&["embed-1", "small", "big"])).then(Turn::Say(vec!["from the server".into()]));
    let (status, told, said) = run(home.path(), &["chat", "hi"], &[]);
    assert!(status == 0 && told.contains("from the server"), "{told}{said}");
    assert_eq!(upstream.requests().last().unwrap().body["model"], "small");
}

/// A command on a terminal of its own.
struct Terminal {
    child: Child,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    fn run(home: &Path, args: &str) -> Self {
        let command = format!("{} --home {} {args}", env!("CARGO_BIN_EXE_clawmux"), home.display());
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env_clear()
            .envs([("HOME", home.as_os_str()), ("TERM", "xterm".as_ref()), ("SHELL", "/bin/sh".as_ref())])
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let seen = Arc::<Mutex<String>>::default();
        let (mut stdout, told) = (child.stdout.take().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut bytes) {
                told.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self { child, seen }
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until it has asked this, and answers.
    fn answer(&mut self, question: &str, typed: &str) {
        eventually(question, || self.seen().contains(question));
        self.child.stdin.as_mut().unwrap().write_all(format!("{typed}\n").as_bytes()).unwrap();
    }

    fn ended(mut self) -> (i32, String) {
        let status = eventually("it to end", || self.child.try_wait().unwrap());
        let seen = eventually("all it said", || Some(self.seen()));
        (status.code().unwrap(), seen)
    }
}

#[test]
fn setup_asks_on_a_terminal_and_shows_no_key() {
    needs!("script");
    let upstream = Upstream::start();
    let home = daemon::home();
    let mut terminal = Terminal::run(home.path(), "setup");
    let number = eventually("the menu", || {
        let seen = terminal.seen();
        let line = seen.lines().find(|line| line.contains("Another server with"))?.to_owned();
        seen.contains("Number [1]: ").then(|| line.trim().split('.').next().unwrap().to_owned())
    });
    terminal.answer("Number [1]: ", &number);
    terminal.answer("Its address, such as", &format!("{}/v1", upstream.base_url()));
    upstream.then(models(&["first", "second"])).then(Turn::Say(vec!["ready".into()]));
    terminal.answer("Its key, if it wants one", "sk-pasted");
    terminal.answer("Model [first]: ", "2");
    let (status, seen) = terminal.ended();
    assert_eq!(status, 0, "{seen}");
    assert!(!seen.contains("sk-pasted") && seen.contains("It answered in"), "{seen}");
    let last = upstream.requests().pop().unwrap();
    assert!(last.head.to_lowercase().contains("authorization: bearer sk-pasted"), "{}", last.head);
    assert_eq!(last.body["model"], "second");
    let key = home.path().join("server.key");
    assert_eq!(fs::read_to_string(&key).unwrap(), "sk-pasted\n");
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
    let text = fs::read_to_string(home.path().join("gateway.toml")).unwrap();
    assert!(text.contains("api_key_file = \"server.key\"") && !text.contains("sk-pasted"), "{text}");
    assert_eq!(run(home.path(), &["check"], &[]).0, 0);

    let mut again = Terminal::run(home.path(), "setup");
    again.answer("Change its provider and model? A copy of it is kept. [y/N] ", "");
    let (status, seen) = again.ended();
    assert!(status == 1 && seen.contains("nothing was written"), "{status} {seen}");
    assert_eq!(fs::read_to_string(home.path().join("gateway.toml")).unwrap(), text);
}

#[test]
fn the_first_credential_says_what_closes_and_asks() {
    let daemon = Daemon::start();
    let home = daemon.home();
    let create = ["token", "create", "--name", "phone", "--role", "user"];
    let first = "This is the first credential. With it, every client that connects over TCP needs one, also from this \
                 machine: OpenClaw (/), exoclaw (/ws), Wundr (/v2) and the admin RPC (/admin). Clients that are \
                 connected without one are disconnected.\nNothing changes for you: clawmux chat, the other clawmux \
                 commands and xeno's clients use the Unix socket and need no credential.\n";
    for json in [&[][..], &["--json"]] {
        let (status, told, said) = run(home, &[&create, json].concat(), &[]);
        let expected = format!("{first}there is no terminal to ask on. Give --yes to create it\n");
        assert_eq!((status, told.as_str(), said), (2, "", expected));
    }
    let is_open = || Lines::connect(home).call("admin.tokens", Value::Null)["loopback_open"] == true;
    let mut terminal = Terminal::run(home, "token create --name phone --role user");
    terminal.answer("Create it? [y/N] ", "n");
    let (status, seen) = terminal.ended();
    assert!(status == 1 && seen.contains("no credential was created"), "{status} {seen}");
    assert!(is_open());
    let mut terminal = Terminal::run(home, "token create --name phone --role user");
    terminal.answer("Create it? [y/N] ", "y");
    let (status, seen) = terminal.ended();
    assert!(status == 0 && seen.contains("cmxkey_") && !is_open(), "{status} {seen}");
    // The next one asks nothing.
    let (status, told, said) = run(home, &["token", "create", "--name", "tv", "--role", "user"], &[]);
    assert!(status == 0 && told.starts_with("cmxkey_"), "{told}{said}");
    assert!(said.contains("It does not expire; clawmux token revoke ends it.\nCopy it now"), "{said}");
    assert!(!said.contains("first credential"), "{said}");
}

#[test]
fn doctor_names_a_locked_door_and_the_way_back() {
    let daemon = Daemon::start();
    let home = daemon.home().to_owned();
    let create = ["token", "create", "--yes", "--json", "--name", "phone", "--role", "user"];
    let made: Value = serde_json::from_str(&daemon.stdout_of(&create)).unwrap();
    daemon.stdout_of(&["token", "revoke", made["token"].as_str().unwrap()]);
    let locked = |home: &Path| {
        let (status, told, _) = run(home, &["doctor", "--offline", "--json"], &[]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let found = told["findings"].as_array().unwrap();
        let about = |found: &&Value| found["what"].as_str().unwrap().contains("credential has expired");
        assert_eq!(found.iter().find(about), None, "it is told once");
        (status, found.iter().find(|found| found["part"] == "token").cloned())
    };
    let what = "clients need a credential, and none is valid: there is no shared token, and the one that was created \
                is revoked or expired. Nobody gets in over TCP";
    let (status, found) = locked(&home);
    let found = found.expect("it is found while the daemon runs");
    assert_eq!((status, &found["what"], &found["state"]), (1, &json!(what), &json!("error")));
    let advice = found["advice"].as_str().unwrap();
    assert!(advice.starts_with("clawmux token create --name NAME --role admin makes one"), "{advice}");
    let mut daemon = daemon;
    daemon.terminate();
    assert_eq!(locked(&home).1.expect("and without one")["what"], what);
    let (status, _, said) = run(&home, &["token", "create", "--name", "new", "--role", "admin"], &[]);
    assert_eq!(status, 0, "it is not the first, so it asks nothing: {said}");
    assert_eq!(locked(&home).1, None, "the door has a key again");
}

#[test]
fn what_only_reads_needs_no_daemon_and_changes_nothing() {
    let mut daemon = Daemon::start();
    let home = daemon.home().to_owned();
    daemon.stdout_of(&["chat", "what is a walrus?"]);
    let read = |home: &Path| {
        [
            &["sessions", "--json"][..],
            &["session", "show", "main:", "--json"],
            &["session", "export", "main:"],
        ]
        .map(|args| run(home, args, &[]))
    };
    let live = read(&home);
    daemon.terminate();
    let note = format!("no daemon runs on this home: read from the store {}/clawmux.db\n", home.display());
    let before = fs::read(home.join("clawmux.db")).unwrap();
    for ((status, told, said), (_, live, _)) in read(&home).into_iter().zip(live) {
        assert_eq!((status, said), (0, note.clone()), "{told}");
        let lines = |text: &str| text.lines().count();
        assert!(lines(&told) == lines(&live) && told.contains("main:cli:") || told == live, "{told}\n{live}");
    }
    let (status, told, said) = run(&home, &["usage"], &[]);
    assert!(status == 0 && said.starts_with(&note) && told.contains("this month"), "{told}{said}");
    let (status, _, said) = run(&home, &["session", "show", "nothing"], &[]);
    assert!(status == 1 && said.contains("no session begins with \"nothing\""), "{said}");
    let (status, _, said) = run(&home, &["session", "abort", "main:"], &[]);
    assert!(status == 69 && said.contains("start one with `clawmux serve`"), "{said}");
    assert_eq!(fs::read(home.join("clawmux.db")).unwrap(), before, "nothing was changed");

    let db = rusqlite::Connection::open(home.join("clawmux.db")).unwrap();
    let present: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    db.pragma_update(None, "user_version", present - 1).unwrap();
    drop(db);
    let (status, _, said) = run(&home, &["sessions"], &[]);
    let older = format!(
        "has format {}, of an older clawmux, and is not read before it has format {present}",
        present - 1
    );
    assert!(status == 1 && said.contains(&older), "{said}");
    let db = rusqlite::Connection::open(home.join("clawmux.db")).unwrap();
    let kept: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(kept, present - 1, "and not migrated");
}

#[test]
fn a_backup_is_put_back_where_no_daemon_runs() {
    let daemon = Daemon::start();
    let home = daemon.home().to_owned();
    let saved = home.join("saved.db").display().to_string();
    daemon.stdout_of(&["chat", "before"]);
    let told = daemon.stdout_of(&["backup", &saved]);
    assert!(
        told.ends_with(&format!("to put it back: stop the daemon, then `clawmux restore {saved}`\n")),
        "{told}"
    );
    daemon.stdout_of(&["chat", "after"]);
    let (status, _, said) = daemon.run(&["restore", &saved]);
    let runs = format!(
        "a daemon (process {}) runs on {}: stop it first. Nothing was changed\n",
        daemon.pid(),
        home.display()
    );
    assert_eq!((status, said), (1, runs));
    daemon.signal("KILL");
    eventually("it to be dead", || run(&home, &["status"], &[]).0 == 69);
    let prompts = || {
        let (_, told, _) = run(&home, &["sessions", "--json"], &[]);
        serde_json::from_str::<Value>(&told).unwrap()["prompts"].as_u64().unwrap()
    };
    assert_eq!(prompts(), 2);
    let garbage = home.join("garbage");
    fs::write(&garbage, "no store").unwrap();
    let (status, _, said) = run(&home, &["restore", garbage.to_str().unwrap()], &[]);
    let words =
        format!("{} is not a clawmux store: name a file that `clawmux backup` wrote\n", garbage.display());
    assert_eq!((status, said, prompts()), (1, words, 2));
    let (status, told, said) = run(&home, &["restore", "--json", &saved], &[]);
    assert_eq!(status, 0, "{told}{said}");
    let told: Value = serde_json::from_str(&told).unwrap();
    let kept = told["kept"].as_str().unwrap();
    assert!(kept.contains("clawmux.db.before-restore-") && Path::new(kept).is_file(), "{told}");
    assert_eq!((told["sessions"].as_u64(), told["runs"].as_u64(), prompts()), (Some(1), Some(1), 1));
    let restarted = daemon.restart_stopped();
    assert_eq!(restarted.rows_of(&["sessions"])[0]["prompts"], 1);
    // What was kept is a store as good as another.
    let mut restarted = restarted;
    restarted.terminate();
    let (status, _, said) = run(&home, &["restore", kept], &[]);
    assert_eq!((status, prompts()), (0, 2), "{said}");
}

#[test]
fn a_restore_says_whom_it_lets_in_and_asks_where_that_opens_a_door() {
    let daemon = Daemon::start();
    let home = daemon.home().to_owned();
    let save = |name: &str| {
        let file = home.join(name).display().to_string();
        daemon.stdout_of(&["backup", &file]);
        file
    };
    let create = |name: &str| {
        let made =
            daemon.stdout_of(&["token", "create", "--name", name, "--role", "admin", "--yes", "--json"]);
        let made: Value = serde_json::from_str(&made).unwrap();
        made["token"].as_str().unwrap().to_owned()
    };
    let open = save("open.db");
    let leaked = create("leaked");
    let closed = save("closed.db");
    daemon.stdout_of(&["token", "revoke", &leaked]);
    let later = create("later");
    let mut daemon = daemon;
    daemon.terminate();
    let known = || {
        let (_, told, _) = run(&home, &["tokens", "--json"], &[]);
        told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };

    let (status, told, said) = run(&home, &["restore", &closed], &[]);
    let words = format!(
        "No longer valid with the copy, as they are not in it:\n  {later} of later\nValid again with the copy, \
         though now revoked, removed or about to expire:\n  {leaked} of leaked\nthere is no terminal to ask on. \
         Give --yes to restore it. Nothing was changed\n"
    );
    assert_eq!((status, &*told, said), (2, "", words));
    assert_eq!(known().len(), 2, "nothing was changed");

    let (status, _, said) = run(&home, &["restore", &open], &[]);
    assert!(status == 2 && said.contains("loopback is open again") && said.contains(&later), "{said}");
    assert!(!said.contains(&leaked), "{said}");
    assert_eq!(known().len(), 2, "nothing was changed");
    // A token of the configuration keeps it closed.
    let shared = [("CLAWMUX_TOKEN", "0123456789abcdef0123456789abcdef")];
    let (status, _, said) = run(&home, &["restore", &open], &shared);
    assert!(status == 0 && said.contains(&later) && !said.contains("loopback"), "{said}");
    assert!(known().is_empty());

    // Nothing that was revoked comes back now, so nothing is asked.
    let (status, _, said) = run(&home, &["restore", &closed], &[]);
    assert!(
        status == 0 && said.contains("unknown to the present store:\n") && said.contains(&leaked),
        "{said}"
    );
    let (status, told, said) = run(&home, &["restore", "--yes", "--json", &open], &[]);
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{status} {told}{said}"));
    assert_eq!(
        (&told["credentials"]["lost"], &told["credentials"]["forgets_all"]),
        (&json!([leaked]), &json!(true))
    );
}

#[test]
fn a_session_is_named_as_in_the_chat() {
    let daemon = Daemon::start();
    daemon.stdout_of(&["chat", "--session", "plan", "of the plan"]);
    daemon.stdout_of(&["chat", "in the main one"]);
    for (name, says) in
        [("plan", "of the plan"), ("main", "in the main one"), ("main:cli:", "several sessions")]
    {
        let (_, told, said) = daemon.run(&["session", "show", name]);
        assert!(format!("{told}{said}").contains(says), "{name}: {told}{said}");
    }
    daemon.stdout_of(&["session", "clear", "plan"]);
    let (status, _, said) = daemon.run(&["session", "show", "plane"]);
    assert!(status == 1 && said.contains("no session begins with \"plane\""), "{said}");
}
