//! A daemon among the hostile: what it holds for them stays bounded, what they break is only
//! theirs, and nobody else has to wait.

use serde_json::json;

use crate::support::client::Client;
use crate::support::daemon::Daemon;
use crate::support::process::resident_bytes;

#[test]
fn histories_of_large_prompts_that_nobody_reads_cost_little() {
    const PROMPT_BYTES: usize = 4_000_000;
    let (daemon, mut client) = Daemon::start().and(Client::connect);
    let large = format!("/fail {}", "x".repeat(PROMPT_BYTES));
    for _ in 0..6 {
        assert_eq!(client.chat("large", &large).events().last(), Some(&"done"));
    }
    let before = resident_bytes(daemon.pid());
    let place = json!({ "channel": "websocket", "account": "large", "limit": 1000 });
    let mut deaf: Vec<Client> = (0..4).map(|_| Client::connect(daemon.address)).collect();
    for client in &mut deaf {
        for _ in 0..100 {
            client.request("chat.history", place.clone());
        }
    }
    // What they asked for is over 9 GB. A whole conversation later others have it as before.
    assert_eq!(client.chat("other", "/tool echo {\"text\":\"hi\"}").events().last(), Some(&"done"));
    assert_eq!(daemon.get("/healthz").0, 200);
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    assert!(grown < 200_000_000, "{grown} bytes for four clients that do not read");
    let history = client.call("chat.history", place);
    let messages = history["result"]["messages"].as_array().expect("messages").len();
    assert_eq!(messages, 1, "as many as fit, and at least the newest");
    assert_eq!(client.chat("large", "hello").events().last(), Some(&"done"), "the session goes on");
    drop(deaf);
}

#[test]
fn nobody_writes_lines_of_the_log() {
    let daemon = Daemon::start();
    std::fs::create_dir_all(daemon.home().join("plugins")).expect("the folder is made");
    let mut client = Client::connect(daemon.address);
    for path in ["a\n2026-01-01T00:00:00Z ERROR forged", "b\r\nforged", "c\u{1b}[2Jforged\u{9b}2J"] {
        let reply = client.call("plugin.load", json!({ "name": "x", "path": path }));
        assert!(reply["error"].is_string(), "{reply}");
    }
    let log = daemon.log();
    assert_eq!(log.matches("forged").count(), 3, "{log}");
    assert!(log.lines().all(|line| !line.starts_with("2026-01-01") && !line.starts_with("forged")), "{log}");
    assert!(!log.contains(|c: char| c.is_control() && c != '\n'), "{log:?}");
}
