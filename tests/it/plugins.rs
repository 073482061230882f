//! Plugins that misbehave, and plugins that come and go, through the whole daemon.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::daemon::{self, Daemon};
use crate::support::eventually;
use crate::support::guest::guest;
use crate::support::tools::skip;

/// Answers `{}`.
const PLAIN: &str = "call $empty_object i32.const 0";
const SPIN: &str = "(loop $l (br $l)) i32.const 0";
const TRAP: &str = "unreachable";

/// Puts a module into the plugins folder of a home.
fn put(home: &Path, name: &str, module: &[u8]) {
    let folder = home.join("plugins");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.wasm")), module).unwrap();
}

/// The entry of a plugin in the plugins folder.
fn entry(name: &str, timeout_ms: u64) -> String {
    format!(
        "[[plugins]]\nname = \"{name}\"\npath = \"plugins/{name}.wasm\"\ntimeout_ms = {timeout_ms}\n\
         fuel = 100000000000\n"
    )
}

/// A daemon with these plugins besides the two that ship, all of them tools of `main`.
fn start(plugins: &[(&str, Vec<u8>, u64)]) -> Daemon {
    let home = daemon::home();
    let mut names = vec!["echo", "clock"];
    let mut entries = String::new();
    for (name, module, timeout_ms) in plugins {
        put(home.path(), name, module);
        names.push(name);
        entries += &entry(name, *timeout_ms);
    }
    Daemon::at(home, &format!("[agents.main]\ntools = {names:?}\n{entries}"), &[])
}

fn names(client: &mut Client) -> Vec<String> {
    let list = client.call("plugin.list", json!({}));
    let list = list["result"].as_array().unwrap_or_else(|| panic!("{list}"));
    list.iter().map(|plugin| plugin["name"].as_str().unwrap().to_owned()).collect()
}

/// Calls a tool; gives its result's content and whether it is an error, once the run has ended well.
fn call(client: &mut Client, account: &str, tool: &str, input: Value) -> (String, bool) {
    let stream = client.chat(account, &format!("/tool {tool} {input}"));
    assert_eq!((stream.events().last(), stream.error()), (Some(&"done"), ""), "the loop goes on: {stream:?}");
    let result = stream.data("tool_result").next().unwrap_or_else(|| panic!("no result: {stream:?}"));
    (result["content"].as_str().unwrap().to_owned(), result["is_error"] == true)
}

/// The refusal of a request.
fn refused(client: &mut Client, method: &str, params: Value) -> String {
    let reply = client.call(method, params);
    reply["error"].as_str().unwrap_or_else(|| panic!("{method} was not refused: {reply}")).to_owned()
}

#[test]
fn spinning_plugins_on_every_core_disturb_nobody() {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let spinners: Vec<String> = (0..cores).map(|at| format!("spin{at}")).collect();
    let module = guest(SPIN);
    // Far longer than the test takes: they are aborted in the end.
    let plugins: Vec<_> = spinners.iter().map(|name| (name.as_str(), module.clone(), 120_000)).collect();
    let daemon = start(&plugins);
    let mut clients: Vec<(Client, String)> = spinners
        .iter()
        .map(|name| {
            let mut client = Client::connect(daemon.address);
            let id = client.prompt(name, &format!("/tool {name} {{}}"));
            while client.reply(&id)["event"] != "tool_use" {}
            (client, id)
        })
        .collect();

    let mut other = Client::connect(daemon.address);
    assert_eq!(daemon.get("/healthz").0, 200);
    assert_eq!(other.call("ping", Value::Null)["result"], "pong");
    assert_eq!(call(&mut other, "bob", "echo", json!({"text": "calm"})), ("calm".into(), false));
    assert_eq!(daemon.get("/readyz").0, 200);

    for (client, id) in &mut clients {
        assert_eq!(client.call("ping", Value::Null)["result"], "pong", "on their own connections too");
        assert!(client.abort(id), "it was still spinning");
        let ended = client.stream(id);
        assert_eq!(ended.events(), ["usage", "error", "done"], "heard within a tool: {ended:?}");
        assert_eq!(ended.error(), "aborted");
        assert_eq!(client.chat("again", "hello").error(), "");
    }
}

#[test]
fn a_guest_that_fails_is_a_result_and_harms_nobody_else() {
    let daemon =
        start(&[("spin", guest(SPIN), 300), ("trap", guest(TRAP), 5000), ("plain", guest(PLAIN), 5000)]);
    let mut client = Client::connect(daemon.address);
    // Within one answer: the loop strikes only the one that loops.
    let mut other = Client::connect(daemon.address);
    let spinning = client.prompt("ada", "/tool spin {}");
    while client.reply(&spinning)["event"] != "tool_use" {}
    assert_eq!(call(&mut other, "bob", "plain", json!({})), ("{}".into(), false));
    let ended = client.stream(&spinning);
    let result = ended.data("tool_result").next().expect("a result");
    assert_eq!(result["is_error"], true, "{result}");
    assert_eq!(result["content"], "plugin spin took longer than 300 ms");
    assert_eq!((ended.events().last(), ended.error()), (Some(&"done"), ""), "{ended:?}");

    for _ in 0..2 {
        let (why, is_error) = call(&mut client, "ada", "trap", json!({}));
        assert!(is_error && why.starts_with("plugin trap crashed"), "{why}");
    }
    let (why, is_error) = call(&mut client, "ada", "spin", json!({}));
    assert!(is_error && why.contains("300 ms"), "{why}");
    assert_eq!(call(&mut client, "ada", "plain", json!({})), ("{}".into(), false));
    assert_eq!(names(&mut client), ["clock", "echo", "plain", "spin", "trap"]);
}

#[test]
fn a_stop_does_not_wait_for_a_guest_that_spins_and_the_run_goes_on_without_it() {
    let home = daemon::home();
    put(home.path(), "spin", &guest(SPIN));
    let config = "[gateway]\ndrain_timeout_ms = 200\n[agents.main]\ntools = [\"spin\"]\n".to_owned();
    let (mut daemon, mut client) =
        Daemon::at(home, &(config + &entry("spin", 120_000)), &[]).and(Client::connect);
    let id = client.prompt("ada", "/tool spin {}");
    while client.reply(&id)["event"] != "tool_use" {}
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.log());
    let said = client.receive();
    assert_eq!(said, json!({"error": "draining", "code": 1001}));

    let (_daemon, mut client) = daemon.kill_and_restart().and(Client::connect);
    let session = json!({"channel": "websocket", "account": "ada"});
    let history = eventually("the run to end", || {
        let history = client.call("chat.history", session.clone());
        (history["result"]["messages"].as_array()?.len() == 2).then_some(history)
    });
    let answer = history["result"]["messages"][1]["content"].as_str().unwrap();
    assert!(
        answer.contains("interrupted"),
        "a call that may have had its effect is not made again: {history}"
    );
    assert_eq!(client.chat("ada", "hello").error(), "");
}

#[test]
fn a_bad_module_is_refused_by_name_and_the_rest_works() {
    let home = daemon::home();
    put(home.path(), "garbage", b"not a module");
    put(home.path(), "wasi", &{
        let import = "(module (import \"wasi_snapshot_preview1\" \"fd_write\" (func)))";
        wat::parse_str(import).unwrap()
    });
    put(home.path(), "empty", &wat::parse_str("(module)").unwrap());
    let config =
        [entry("garbage", 100), entry("wasi", 100), entry("empty", 100), entry("gone", 100)].concat();
    std::fs::write(home.path().join("gateway.toml"), &config).unwrap();

    let checked = daemon::command(home.path()).arg("check").output().unwrap();
    let stderr = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(64), "{stderr}");
    let says = [
        ("garbage", "not a WebAssembly module"),
        ("wasi", "imports wasi_snapshot_preview1 and has no memory of its own"),
        ("empty", "does not export describe"),
        ("gone", "gone.wasm"),
    ];
    for (name, why) in says {
        let said =
            stderr.lines().any(|line| line.contains(&format!("plugin {name}: ")) && line.contains(why));
        assert!(said, "{name}: {why} in {stderr}");
    }

    let (daemon, mut client) = Daemon::at(home, &config, &[]).and(Client::connect);
    assert_eq!(names(&mut client), ["clock", "echo"], "what can't be loaded is not listed");
    assert_eq!(client.call("status", json!({}))["result"]["plugins"], 2);
    assert_eq!(call(&mut client, "ada", "echo", json!({"text": "hi"})), ("hi".into(), false));
    for (name, why) in says {
        eventually("the log to say so", || {
            let log = daemon.log();
            log.lines().any(|line| line.contains(&format!("plugin {name}: ")) && line.contains(why))
        });
    }
}

#[test]
fn a_grant_that_is_not_understood_refuses_the_plugin() {
    let home = daemon::home();
    put(home.path(), "net", &guest(PLAIN));
    for (grant, status) in
        [("ftp:api.example.com", 64), ("store:a b", 64), ("wings", 64), ("secret:key@x", 64), ("http:*", 0)]
    {
        let config = format!("{}capabilities = [\"{grant}\"]\n", entry("net", 100));
        std::fs::write(home.path().join("gateway.toml"), config).unwrap();
        let checked = daemon::command(home.path()).arg("check").output().unwrap();
        let stderr = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert_eq!(checked.status.code(), Some(status), "{grant}: {stderr}");
        assert!(status == 0 || (stderr.contains("net") && stderr.contains(grant)), "{grant}: {stderr}");
    }
}

#[test]
fn plugins_are_loaded_from_the_home_and_unloaded_at_run_time() {
    let home = daemon::home();
    put(home.path(), "late", &guest(PLAIN));
    put(home.path(), "bad", b"\0asm, not quite");
    let (_daemon, mut client) =
        Daemon::at(home, "[agents.main]\ntools = [\"echo\", \"late\"]\n", &[]).and(Client::connect);
    let absent = "There is no tool late. Tools offered to me: echo.";
    assert_eq!(client.chat("ada", "/tool late {}").text(), absent);

    let loaded = client.call("plugin.load", json!({"name": "late", "path": "late.wasm"}));
    assert_eq!(loaded["result"]["name"], "late", "{loaded}");
    assert_eq!(names(&mut client), ["clock", "echo", "late"]);
    assert_eq!(call(&mut client, "ada", "late", json!({})), ("{}".into(), false));
    let why = refused(&mut client, "plugin.load", json!({"name": "late", "path": "late.wasm"}));
    assert!(why.contains("loaded already"), "{why}");

    let unloaded = client.call("plugin.unload", json!({"name": "late"}));
    assert_eq!(unloaded["result"], json!({"name": "late", "unloaded": true}), "{unloaded}");
    assert_eq!(names(&mut client), ["clock", "echo"]);
    assert_eq!(client.chat("ada", "/tool late {}").text(), absent, "it is not offered any more");
    assert!(refused(&mut client, "plugin.unload", json!({"name": "late"})).contains("late"));

    let bad = refused(&mut client, "plugin.load", json!({"name": "bad", "path": "bad.wasm"}));
    assert!(bad.contains("plugin bad: the module is not valid"), "{bad}");
    let missing = refused(&mut client, "plugin.load", json!({"name": "no", "path": "no.wasm"}));
    assert!(missing.contains("plugin no: there is no file"), "{missing}");
    let unknown = refused(&mut client, "plugin.load", json!({"name": "nobody"}));
    assert!(unknown.contains("nobody"), "{unknown}");
    for params in [json!({}), json!({"name": " "}), json!({"name": 1}), Value::Null] {
        let why = refused(&mut client, "plugin.load", params);
        assert!(why.starts_with("invalid plugin.load params: "), "{why}");
    }
    assert_eq!(names(&mut client), ["clock", "echo"], "what failed leaves nothing behind");

    // The two that ship can go and come as well.
    client.call("plugin.unload", json!({"name": "echo"}));
    let back = client.call("plugin.load", json!({"name": "echo"}));
    assert_eq!(back["result"]["name"], "echo", "{back}");
    assert_eq!(call(&mut client, "ada", "echo", json!({"text": "back"})), ("back".into(), false));
}

#[test]
fn no_path_leads_out_of_the_plugins_folder() {
    let home = daemon::home();
    put(home.path(), "inside", &guest(PLAIN));
    let outside = home.path().join("outside.wasm");
    std::fs::write(&outside, guest(PLAIN)).unwrap();
    std::os::unix::fs::symlink(&outside, home.path().join("plugins/link.wasm")).unwrap();
    let absolute = outside.to_str().unwrap().to_owned();
    let (_daemon, mut client) = Daemon::at(home, "", &[]).and(Client::connect);
    let paths =
        ["../outside.wasm", "../not-there.wasm", "./../outside.wasm", "x/../../outside.wasm", &absolute];
    let paths = paths.into_iter().chain(["/etc/passwd", "/nowhere", "link.wasm"]);
    for path in paths {
        let why = refused(&mut client, "plugin.load", json!({"name": "p", "path": path}));
        assert!(why.contains("plugin p: ") && why.contains("is not in "), "{path}: {why}");
    }
    for path in ["", ".", "inside.wasm/", "\0", "İİİİ"] {
        let why = refused(&mut client, "plugin.load", json!({"name": "p", "path": path}));
        assert!(why.contains("plugin p"), "{path:?}: {why}");
    }
    for name in ["../p", "İİİİ", "a b", &"n".repeat(65)] {
        let why = refused(&mut client, "plugin.load", json!({"name": name, "path": "inside.wasm"}));
        assert!(why.contains("a name is"), "{name:?}: {why}");
    }
    assert_eq!(names(&mut client), ["clock", "echo"]);
    let loaded = client.call("plugin.load", json!({"name": "p", "path": "inside.wasm"}));
    assert_eq!(loaded["result"]["name"], "p", "{loaded}");
}

/// A module of 366 KB that takes the compiler more than half a gigabyte: many locals, written in many branches.
fn bomb() -> Vec<u8> {
    const LOCALS: usize = 120;
    let mut body = format!("(local{}) ", " i32".repeat(LOCALS));
    for at in 0..24_000 {
        let (asked, read, written) = (at % LOCALS, (at * 7 + 1) % LOCALS, (at * 13 + 5) % LOCALS);
        body += &format!(
            "(if (local.get {asked}) (then (local.set {written} (i32.add (local.get {read}) (i32.const 1)))))"
        );
    }
    guest(&format!("{body} i32.const 0"))
}

/// The most memory a process ever had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_module_made_to_exhaust_the_compiler_costs_the_daemon_nothing_and_holds_up_no_other() {
    let bomb = bomb();
    assert!(bomb.len() < 400_000, "{}", bomb.len());
    let (daemon, mut client) =
        start(&[("bomb", bomb, 5000), ("plain", guest(PLAIN), 5000)]).and(Client::connect);
    assert_eq!(call(&mut client, "a", "plain", json!({})), ("{}".to_owned(), false));
    let why = eventually("the bomb is refused", || {
        let told = daemon.json_of(&["plugins", "bomb"]);
        told.to_string().split("\"error\":\"").nth(1).map(|rest| rest.split('"').next().unwrap().to_owned())
    });
    let limits = [
        "compiling it takes more than 512 MiB of memory, the limit",
        "compiling it takes longer than 20000 ms",
    ];
    assert!(limits.iter().any(|limit| why.contains(limit)), "{why}");
    assert!(peak_kib(daemon.pid()) < 300_000, "{} KiB", peak_kib(daemon.pid()));
    // What it was compiled in has gone, and left nothing.
    let kept = std::fs::read_dir(daemon.home().join("cache/compiled")).unwrap();
    let names: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "echo, clock and plain: {names:?}");
    let (status, stdout, _) = daemon.run(&["doctor", "--offline"]);
    assert!(status == 1 && stdout.contains("compiling it takes "), "{stdout}");
    let (status, _, stderr) = daemon.run(&["check"]);
    assert!(status == 64 && stderr.contains("bomb.wasm: plugin bomb: compiling it takes "), "{stderr}");
}

/// Turns one bit of every file of compiled code.
fn flip(folder: &Path) -> usize {
    let mut flipped = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            flipped += flip(&path);
        } else if !path.file_name().unwrap().to_str().unwrap().contains('.') {
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).unwrap();
            flipped += 1;
        }
    }
    flipped
}

#[test]
fn compiled_code_that_is_not_as_it_was_written_is_compiled_anew() {
    let mut daemon = start(&[]);
    daemon.json_of(&["plugin", "call", "echo", r#"{"text":"hi"}"#]);
    daemon.json_of(&["plugin", "call", "clock", "{}"]);
    daemon.terminate();
    let kept = daemon.home().join("cache/compiled");
    assert!(flip(&kept) >= 6, "of two plugins");
    let (_, stdout, _) = daemon.run(&["doctor", "--offline"]);
    assert!(stdout.contains("it is not as it was written"), "{stdout}");
    let mut daemon = daemon.restart_stopped();
    daemon.json_of(&["plugin", "call", "echo", r#"{"text":"hi"}"#]);
    daemon.json_of(&["plugin", "call", "clock", "{}"]);
    let cache = cache_of(&daemon);
    assert_eq!((&cache["rejected_total"], &cache["compiled_total"]), (&json!(2), &json!(2)), "{cache}");
    daemon.terminate();
    // As one that died while it loaded leaves it.
    std::fs::write(daemon.home().join("cache/loading-7-0"), "").unwrap();
    let daemon = daemon.restart_stopped();
    daemon.json_of(&["plugin", "call", "echo", r#"{"text":"hi"}"#]);
    daemon.json_of(&["plugin", "call", "clock", "{}"]);
    let cache = cache_of(&daemon);
    assert_eq!((&cache["cleared_at_start"], &cache["found_total"]), (&json!(true), &json!(0)), "{cache}");
}

/// What the daemon says of the compiled code it keeps.
fn cache_of(daemon: &Daemon) -> Value {
    let tree = daemon.json_of(&["actors"]);
    let children = tree["children"].as_array().unwrap();
    let sandbox = children.iter().find(|child| child["actor"] == "sandbox supervisor");
    sandbox.unwrap_or_else(|| panic!("{tree}"))["state"]["cache"].clone()
}

/// A page server, and what it was asked.
fn page_server(body: &'static str) -> (std::net::SocketAddr, std::sync::mpsc::Receiver<String>) {
    use std::io::{BufRead as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let _ = sender.send(head.join("\n"));
            let head = format!("content-type: text/html\r\ncontent-length: {}\r\n", body.len());
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}").as_bytes());
        }
    });
    (address, asked)
}

#[test]
fn an_agent_fetches_a_page_keeps_notes_and_calculates() {
    let (page, asked) = page_server("<html><body><h1>Tea</h1><p>Steep it 3 minutes.</p></body></html>");
    let config = format!(
        "[agents.main]\ntools = [\"fetch\", \"notes\", \"calc\", \"clock\", \"echo\"]\n\
         [secrets.tea]\nvalue_env = \"TEA_KEY\"\nprefix = \"Bearer \"\n\
         [[plugins]]\nname = \"fetch\"\ncapabilities = [\"http:http://{page}/\", \"secret:tea@http://{page}/\"]\n"
    );
    let home = daemon::home();
    let env = [("TEA_KEY", "geheim-tee")];
    let (daemon, mut client) = Daemon::at(home, &config, &env).and(Client::connect);
    let (text, is_error) = call(&mut client, "ada", "fetch", json!({ "url": format!("http://{page}/tea") }));
    assert!(!is_error && text.contains("Tea") && text.contains("Steep it 3 minutes."), "{text}");
    assert!(asked.recv().unwrap().contains("authorization: Bearer geheim-tee"));
    let (text, is_error) = call(&mut client, "ada", "fetch", json!({ "url": "http://127.0.0.1:1/" }));
    assert!(is_error && text.contains("no grant for http://127.0.0.1:1/"), "{text}");
    let note = json!({ "action": "save", "name": "tea", "text": "3 minutes" });
    assert_eq!(call(&mut client, "ada", "notes", note), ("saved \"tea\"".into(), false));
    let read = json!({ "action": "read", "name": "tea" });
    assert_eq!(
        call(&mut client, "bob", "notes", read.clone()),
        ("3 minutes".into(), false),
        "another session"
    );
    let sum = json!({ "expression": "3 * 60 / 7", "digits": 2 });
    assert_eq!(call(&mut client, "ada", "calc", sum), ("25.71".into(), false));
    let (why, is_error) = call(&mut client, "ada", "notes", json!({ "action": "burn" }));
    assert!(
        is_error
            && why.contains(
                "plugin notes does not take that input: /action: expected one of \"save\", \"read\""
            ),
        "{why}"
    );

    let fetch = daemon.stdout_of(&["plugins", "fetch"]);
    assert!(
        fetch.contains("asks for    http:*") && fetch.contains(&format!("http:http://{page}/")),
        "{fetch}"
    );
    for said in
        [daemon.log(), fetch, daemon.stdout_of(&["config", "get"]), daemon.stdout_of(&["plugins", "--json"])]
    {
        assert!(!said.contains("geheim"), "{said}");
    }
    let mut daemon = daemon.kill_and_restart();
    let (status, stdout, stderr) = daemon.run(&["plugin", "call", "notes", &read.to_string()]);
    assert_eq!((status, stdout.as_str()), (0, "3 minutes\n"));
    assert!(stderr.contains(" fuel; it used store:notes)"), "{stderr}");

    // Every call is on record, and a record that is not as it was written is found.
    let audit = daemon.json_of(&["doctor", "--audit"]);
    assert!(
        audit["findings"][0]["what"].as_str().unwrap().starts_with("7 tool calls are on record"),
        "{audit}"
    );
    daemon.terminate();
    let db = rusqlite::Connection::open(daemon.home().join("clawmux.db")).unwrap();
    let about: String =
        db.query_row("SELECT record FROM audit WHERE number = 1", [], |row| row.get(0)).unwrap();
    let about: Value = serde_json::from_str(&about).unwrap();
    assert_eq!(
        (&about["tool"], &about["is_error"], &about["grants"][0]),
        (&json!("fetch"), &json!(false), &json!(format!("http:http://{page}/")))
    );
    assert!(about["fuel"].as_u64() > Some(1000) && !about.to_string().contains("geheim"), "{about}");
    db.execute("UPDATE audit SET record = replace(record, 'fetch', 'echo') WHERE number = 1", []).unwrap();
    let checked = daemon::command(daemon.home()).args(["doctor", "--audit"]).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.code() == Some(1) && said.contains("call 1 was changed"), "{said}");
}

#[test]
fn a_plugin_is_signed_verified_and_refused_once_changed() {
    let home = daemon::home();
    put(home.path(), "net", &guest(PLAIN));
    let run = |args: &[&str]| {
        let output = daemon::command(home.path()).args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (status, _, stderr) = run(&["plugin", "verify", "net"]);
    assert!(status == 1 && stderr.contains("nobody has signed it"), "{stderr}");
    let (status, stdout, stderr) = run(&["plugin", "sign", "net"]);
    assert!(status == 0 && stdout.contains("trusted_keys = [\""), "{stdout}{stderr}");
    let key = stdout.split('"').nth(1).unwrap();
    assert_eq!(run(&["plugin", "verify", "net", "--key", key]).0, 0);
    let other = "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=";
    let (status, _, stderr) = run(&["plugin", "verify", "net", "--key", other]);
    assert!(status == 1 && stderr.contains("not by iojj"), "{stderr}");
    assert_eq!(run(&["plugin", "verify", "net", "--key", "x"]).0, 2);

    let config = |key: &str| format!("[sandbox]\ntrusted_keys = [\"{key}\"]\n{}", entry("net", 100));
    std::fs::write(home.path().join("gateway.toml"), config(key)).unwrap();
    let (status, stdout, stderr) = run(&["check"]);
    assert_eq!(status, 0, "{stdout}{stderr}");
    std::fs::write(home.path().join("gateway.toml"), config(other)).unwrap();
    let (status, _, stderr) = run(&["check"]);
    assert!(status == 64 && stderr.contains("not by one of sandbox.trusted_keys"), "{stderr}");
    std::fs::write(home.path().join("gateway.toml"), config(key)).unwrap();
    put(home.path(), "net", &guest(SPIN));
    let (status, _, stderr) = run(&["check"]);
    assert!(status == 64 && stderr.contains("its manifest is for"), "{stderr}");
}

#[test]
fn a_new_plugin_is_written_once_and_under_a_name_that_it_can_have() {
    let daemon = Daemon::start();
    let folder = daemon.home().join("greeter");
    let into = folder.display().to_string();
    let said = daemon.stdout_of(&["plugin", "new", "greeter", "--into", &into]);
    assert!(said.contains("cargo test") && said.contains("clawmux plugin call greeter"), "{said}");
    for file in ["Cargo.toml", "greeter.toml", "src/lib.rs", ".gitignore"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        assert!(!text.contains("{{"), "{file}: {text}");
    }
    let (status, _, said) = daemon.run(&["plugin", "new", "greeter", "--into", &into]);
    assert!(status == 1 && said.contains("is there already"), "{said}");
    for name in ["", "Greeter", "-x", "a b", "../x", "1x", &"x".repeat(65)] {
        let (status, _, said) = daemon.run(&["plugin", "new", "--into", "/nowhere/x", "--", name]);
        assert!(status == 2 && said.contains("begins with a lowercase letter"), "{name:?}: {said}");
    }
    let (status, _, said) = daemon.run(&["plugin", "new", "--into", "/nowhere/x", "--", "test"]);
    assert!(status == 2 && said.contains("no Rust crate can be called test"), "{said}");
}

#[test]
fn what_a_new_plugin_builds_to_is_loaded_and_called() {
    let Some(built) = std::env::var_os("CLAWMUX_TEST_NEW_PLUGINS").map(std::path::PathBuf::from) else {
        skip("CLAWMUX_TEST_NEW_PLUGINS names no folder with what `.ci/run` builds of new plugins");
        return;
    };
    let home = daemon::home();
    for kind in ["new-tool", "new-adapter"] {
        put(home.path(), kind, &std::fs::read(built.join(format!("{kind}.wasm"))).unwrap());
    }
    let daemon = Daemon::at(home, "", &[]);
    daemon.stdout_of(&["plugin", "load", "new-tool"]);
    assert_eq!(daemon.stdout_of(&["plugin", "call", "new-tool", r#"{"name":"Ada"}"#]), "Hello, Ada!\n");
    daemon.stdout_of(&["plugin", "load", "new-adapter"]);
    let (status, said, _) = daemon.run(&["plugin", "call", "new-adapter", "{}"]);
    assert!(status == 1 && said.contains("is a channel adapter, no tool"), "{said}");
}

#[test]
fn a_call_that_a_crash_cuts_off_is_on_record() {
    let daemon = start(&[("spin", guest(SPIN), 600_000)]);
    let mut client = Client::connect(daemon.address);
    let prompt = client.prompt("ada", "/tool spin {}");
    while client.reply(&prompt)["event"] != "tool_use" {}
    let daemon = daemon.kill_and_restart();
    let recorded = || {
        let audit = daemon.json_of(&["doctor", "--audit"]);
        let what = audit["findings"][0]["what"].as_str().unwrap_or_default().to_owned();
        what.starts_with("1 tool call").then_some(what)
    };
    eventually("the call to be on record", recorded);
    let db = rusqlite::Connection::open(daemon.home().join("clawmux.db")).unwrap();
    let record: String = db.query_row("SELECT record FROM audit", [], |row| row.get(0)).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!((&record["tool"], &record["is_error"]), (&json!("spin"), &json!(true)), "{record}");
}
