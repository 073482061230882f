//! Wundr's protocol v2, judged by Wundr: every frame of a tour of all its methods and events is shown to
//! the validators of its own package, and files go through its own codec.
//!
//! The tour is `judge.mjs`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::npm;
use crate::support::daemon::Daemon;
use crate::support::running::bounded;
use crate::support::tools::needs;

const BOSS_KEY: &str = "boss-sees-all-and-has-32-characters";
const JWT_SECRET: &str = "a-secret-of-at-least-thirty-two-characters";

/// Heartbeats come soon, calls wait for approval but not for long, somebody can ask too much, and an agent
/// has to fall back on another model.
const CONFIG: &str = "[gateway]\nheartbeat_interval_ms = 1000\n\
    [auth]\nloopback = \"required\"\n\
    [[auth.api_keys]]\nname = \"boss\"\nkey_env = \"BOSS_KEY\"\nrole = \"admin\"\n\
    [limits]\nrequests_burst = 500\n\
    [approvals]\ntimeout_ms = 10000\n\
    [providers.gone]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1\"\nretries = 0\n\
    [agents.hasty]\nprovider = \"gone\"\nmodel = \"none\"\nfallback = [\"offline/echo\"]\n\
    [[plugins]]\nname = \"echo\"\napproval = \"ask\"\n";

/// Every error code that a request can bring about; what is left are our own faults.
const ERRORS: [&str; 8] = [
    "CONFLICT",
    "FORBIDDEN",
    "INVALID_REQUEST",
    "NOT_FOUND",
    "PROTOCOL_MISMATCH",
    "RATE_LIMITED",
    "UNAUTHORIZED",
    "UNAVAILABLE",
];

const TOOL_RESULTS: [&str; 4] = ["completed", "denied", "failed", "timeout"];

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn every_frame_is_one_of_theirs() {
    needs!("clients", "npm");
    let modules = npm::wundr();
    let daemon = Daemon::with_env(CONFIG, &[("BOSS_KEY", BOSS_KEY), ("CLAWMUX_JWT_SECRET", JWT_SECRET)]);
    let output = bounded(&mut Command::new("node"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/judge.mjs"))
        .arg(format!("ws://{}", daemon.address))
        .args([modules, Path::new(env!("CARGO_BIN_EXE_clawmux")), daemon.home()])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs([("BOSS_KEY", BOSS_KEY), ("JWT_SECRET", JWT_SECRET)])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("node, which npm needs too: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let told: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    let bad = names(&told["bad"]);
    assert!(bad.is_empty(), "{} of {} frames:\n{}", bad.len(), told["frames"], bad.join("\n"));
    assert!(output.status.success(), "{}\n{stderr}\n{told:#}", told["error"].as_str().unwrap_or_default());

    assert_eq!(names(&told["missing"]["methods"]), [""; 0], "hello does not name all of their methods");
    assert_eq!(names(&told["missing"]["events"]), [""; 0], "hello does not name their events");
    let seen = |what: &str, wanted: &[&str]| {
        let not = |name: &&&str| told[what][**name].as_u64().is_none_or(|times| times == 0);
        let unseen: Vec<_> = wanted.iter().filter(not).collect();
        assert!(unseen.is_empty(), "{what} that did not come: {unseen:?}; {:#}", told[what]);
    };
    seen("methods", &names(&told["claimed"]["methods"]));
    seen("events", &names(&told["claimed"]["events"]));
    seen("results", &names(&told["judged"]));
    seen("errors", &ERRORS);
    seen("tools", &TOOL_RESULTS);
    let capabilities = names(&told["claimed"]["capabilities"]);
    for shown in ["streaming", "binary", "tool-approval", "teams", "batching", "discovery"] {
        assert!(capabilities.contains(&shown), "{shown} works and is not said: {capabilities:?}");
    }
    assert!(told["binary"].as_u64().is_some_and(|frames| frames > 0), "{told:#}");
}
