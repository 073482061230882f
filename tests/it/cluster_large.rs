//! What is too large for the log of a cluster, as clients of its daemons have it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::bus::nats::Adapter;
use crate::cluster::{begun, server, status};
use crate::cluster_sessions::{accounts, pair};
use crate::support::client::{Client, Stream};
use crate::support::daemon::{Daemon, command, home};
use crate::support::eventually;
use crate::support::process::{peak_bytes, peak_bytes_if_any};
use crate::support::running::Running;
use crate::support::tools::needs;

/// Records that a daemon finds when it joins: more than it may hold.
const RECORDS: usize = 32;

/// Prompts with a file.
pub(crate) fn ask(
    client: &mut Client,
    account: &str,
    (name, media_type): (&str, &str),
    data: &str,
) -> Stream {
    let prompt = client.request(
        "chat.send",
        json!({
            "channel": "websocket", "account": account, "content": "what is it?", "model": "offline/offline",
            "attachments": [{ "name": name, "media_type": media_type, "data": data }],
        }),
    );
    client.stream(&prompt)
}

#[test]
fn a_prompt_with_a_file_of_3_mb_is_answered_wherever_it_came_and_read_at_both() {
    needs!("nats-server");
    let (server, [a, b]) = pair();
    let (of_a, of_b) = accounts(&a);
    let data = STANDARD.encode("heron ".repeat(500_000));
    for (account, at) in [(&of_a[0], &a), (&of_b[0], &a), (&of_a[1], &b)] {
        let mut client = Client::connect(at.daemon.address);
        let stream = ask(&mut client, account, ("heron.txt", "text/plain"), &data);
        assert_eq!(stream.events().last(), Some(&"done"), "{account}: {:?}", stream.events());
        assert!(stream.text().contains("heron.txt"), "{account}: {}", stream.text());
        let key = format!("main:websocket:{account}:main");
        let exported = at.daemon.stdout_of(&["session", "export", &key, "--json"]);
        assert!(exported.contains(&data), "{account}: its bytes are in what was exported");
        for node in [&a, &b] {
            eventually("the other daemon has it, too", || {
                node.daemon.stdout_of(&["session", "export", &key, "--json"]) == exported
            });
        }
    }
    // Of what was asked from daemon to daemon nothing is left: six parts of 512 KB are a record.
    let adapter = Adapter::new(&[server.url()]);
    eventually("only the records' parts are there", || adapter.count("clawmux_BLOBS") == 3 * 6);
}

#[test]
fn nothing_is_written_that_a_daemon_of_an_earlier_version_can_not_read() {
    needs!("nats-server");
    let (server, config) = server();
    let a = Daemon::at(begun(&config), &config, &[]);
    eventually("every slot is owned", || status(&a)["nodes"][0]["slots"] == 256);
    let data = STANDARD.encode("heron ".repeat(500_000));
    let mut client = Client::connect(a.address);
    // As those say it that know of no versions, and as those do that know this one.
    let hears = |says: &str| {
        let beat = format!("{{\"node\":\"old\",\"epoch\":9000,\"state\":\"joining\"{says}}}");
        server.publish_raw("clawmux.alive.old", b"NATS/1.0\r\n\r\n", beat.as_bytes());
    };
    let refused = eventually("a record that is too large for it is refused", || {
        hears("");
        let stream = ask(&mut client, "ada", ("heron.txt", "text/plain"), &data);
        Some(stream.error().to_owned()).filter(|error| !error.is_empty())
    });
    assert!(refused.contains("node old") && refused.contains("update that node"), "{refused}");
    assert_eq!(client.chat("ada", "hello").error(), "", "what it can read is written");
    eventually("it is written once the node is updated", || {
        hears(",\"reads\":2");
        ask(&mut client, "ada", ("heron.txt", "text/plain"), &data).error().is_empty()
    });
}

#[test]
fn who_joins_or_compares_a_store_holds_little_of_many_large_records_at_once() {
    needs!("nats-server");
    let (_server, config) = server();
    let a = Daemon::at(begun(&config), &config, &[]);
    eventually("every slot is owned", || status(&a)["nodes"][0]["slots"] == 256);
    let image: Vec<u8> =
        b"\x89PNG\r\n\x1a\n".iter().copied().chain((0..7 << 20).map(|nth| nth as u8)).collect();
    let data = STANDARD.encode(image);
    let mut client = Client::connect(a.address);
    for nth in 0..RECORDS {
        let stream = ask(&mut client, &format!("ada{nth}"), ("heron.png", "image/png"), &data);
        assert_eq!(stream.events().last(), Some(&"done"), "{nth}: {:?}", stream.events());
    }
    let config = config.replace("node = \"a\"", "node = \"b\"");
    let b = Daemon::at(home(), &config, &[]);
    let peak = peak_bytes(b.pid());
    assert!(peak < 160 << 20, "{RECORDS} records of 7 MB took {peak} bytes");

    a.signal("KILL");
    eventually("it to be dead", || a.run(&["status"]).0 == 69);
    let mut verifying =
        Running::start(command(a.home()).args(["cluster", "verify"]).stdout(std::process::Stdio::null()));
    let mut peak = 0;
    let ended = eventually("the store to be compared", || {
        peak = peak.max(peak_bytes_if_any(verifying.id()).unwrap_or_default());
        verifying.try_wait().unwrap()
    });
    assert!(ended.success() && peak > 0, "{ended}");
    assert!(peak < 160 << 20, "to compare {RECORDS} records of 7 MB took {peak} bytes");
}
