//! MCP servers that people use, unmodified: two from npm, by standard streams and by HTTP, and one from PyPI.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::npm::{Generation, mcp_servers};
use crate::pypi;
use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::running::Running;
use crate::support::tools::needs;

/// What is installed from PyPI.
const PACKAGE: &str = "mcp-server-time==2026.10.19";

/// Calls a tool as an agent does.
fn call(client: &mut Client, tool: &str, input: Value) -> (String, bool) {
    let stream = client.chat("bob", &format!("/tool {tool} {input}"));
    let result = stream.data("tool_result").next().unwrap_or_else(|| panic!("no result: {stream:?}"));
    (result["content"].as_str().unwrap().to_owned(), result["is_error"] == true)
}

fn is_ready(daemon: &Daemon, name: &str) {
    eventually(&format!("{name} to be ready"), || {
        let servers = daemon.rows_of(&["mcp", "list"]);
        servers.into_iter().any(|server| server["server"] == name && server["state"] == "ready")
    });
}

/// A text as TOML has it.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// The entry of a server from npm.
fn from_npm(name: &str, package: &str, arguments: &[String], folders: &[String]) -> String {
    let modules = mcp_servers();
    let entry = modules.join("@modelcontextprotocol").join(package).join("dist/index.js");
    let node = Generation::OpenClaw.node();
    let command = [vec![quoted(&node), quoted(&entry)], arguments.to_vec()].concat().join(", ");
    let own =
        [modules, node.parent().unwrap().parent().unwrap()].map(|path| format!("\"{}:ro\"", path.display()));
    let folders = [&own[..], folders].concat().join(", ");
    format!("[[mcp]]\nname = \"{name}\"\ncommand = [{command}]\nfolders = [{folders}]\n")
}

#[test]
fn files_are_read_where_the_server_may_and_nowhere_else() {
    needs!("clients", "npm", "landlock");
    let notes = tempfile::tempdir().unwrap();
    fs::write(notes.path().join("a.txt"), "three herons").unwrap();
    let folder = quoted(notes.path());
    let entry =
        from_npm("files", "server-filesystem", std::slice::from_ref(&folder), std::slice::from_ref(&folder));
    let daemon = Daemon::with(&format!("[agents.main]\ntools = [\"mcp:files/*\"]\n{entry}"));
    is_ready(&daemon, "files");
    let mut client = Client::connect(daemon.address);
    let path = |name: &str| json!({ "path": notes.path().join(name).display().to_string() });
    assert_eq!(call(&mut client, "mcp_files_read_text_file", path("a.txt")), ("three herons".into(), false));
    let mut written = path("b.txt");
    written["content"] = "four".into();
    assert!(!call(&mut client, "mcp_files_write_file", written).1);
    assert_eq!(fs::read_to_string(notes.path().join("b.txt")).unwrap(), "four");
    let outside = json!({ "path": daemon.home().join("gateway.toml").display().to_string() });
    let (told, is_error) = call(&mut client, "mcp_files_read_text_file", outside);
    assert!(is_error && told.contains("Access denied"), "{told}");
    let (told, is_error) = call(&mut client, "mcp_files_read_text_file", json!({ "path": 7 }));
    assert!(is_error && told.contains("/path: 7 is not of type"), "{told}");
}

/// A port that nobody has just now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn one_server_by_standard_streams_and_by_http() {
    needs!("clients", "npm");
    let port = free_port();
    let entry = mcp_servers().join("@modelcontextprotocol/server-everything/dist/index.js");
    let mut remote = Command::new(Generation::OpenClaw.node());
    remote.arg(&entry).arg("streamableHttp").env("PORT", port.to_string());
    remote.stdout(Stdio::null()).stderr(Stdio::null());
    let _remote = Running::start(&mut remote);
    let local = from_npm("local", "server-everything", &[], &[]);
    let daemon = Daemon::with(&format!(
        "[agents.main]\ntools = [\"mcp:local/*\", \"mcp:remote/*\"]\n{local}\
         [[mcp]]\nname = \"remote\"\nurl = \"http://127.0.0.1:{port}/mcp\"\n"
    ));
    let mut client = Client::connect(daemon.address);
    for server in ["local", "remote"] {
        is_ready(&daemon, server);
        let tool = |name: &str| format!("mcp_{server}_{name}");
        let told = call(&mut client, &tool("get-sum"), json!({ "a": 2, "b": 40 }));
        assert_eq!(told, ("The sum of 2 and 40 is 42.".into(), false), "{server}");
        let told =
            call(&mut client, &tool("trigger-long-running-operation"), json!({ "duration": 1, "steps": 2 }));
        assert!(told.0.contains("completed") && !told.1, "{server}: {told:?}");
        let (told, _) = call(&mut client, &tool("get-tiny-image"), json!({}));
        assert!(told.contains("[image/png, ") && told.len() < 500, "{server}: {told}");
        let (told, is_error) =
            call(&mut client, &tool("get-structured-content"), json!({ "location": "New York" }));
        assert!(!is_error && told.contains("temperature"), "{server}: {told}");
    }
    let (told, _) = call(&mut client, "mcp_local_get-env", json!({}));
    assert!(told.contains("\"HOME\"") && !told.contains("CARGO"), "{told}");
}

#[test]
fn a_server_from_pypi() {
    needs!("clients", "venv");
    let python = pypi::with(PACKAGE);
    // Where the Python is that it was made of.
    let prefix = Command::new(&python).args(["-c", "import sys; print(sys.base_prefix)"]).output().unwrap();
    let prefix = String::from_utf8(prefix.stdout).unwrap();
    let folder = python.parent().unwrap().parent().unwrap();
    let daemon = Daemon::with(&format!(
        "[agents.main]\ntools = [\"mcp:time/convert_time\"]\n[[mcp]]\nname = \"time\"\n\
         command = [{}, \"-m\", \"mcp_server_time\"]\nfolders = [\"{}:ro\", \"{}:ro\"]\n",
        quoted(&python),
        folder.display(),
        prefix.trim()
    ));
    is_ready(&daemon, "time");
    let mut client = Client::connect(daemon.address);
    let input = json!({ "source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Tokyo" });
    let (told, is_error) = call(&mut client, "mcp_time_convert_time", input);
    assert!(!is_error && told.contains("21:00"), "{told}");
    let bad = json!({ "source_timezone": "Nowhere/X", "time": "12:00", "target_timezone": "Asia/Tokyo" });
    assert!(call(&mut client, "mcp_time_convert_time", bad).1);
}
