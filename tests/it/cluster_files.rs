//! Files that were uploaded to one daemon of a cluster, at another one.

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cluster_sessions::{pair, pair_with};
use crate::files::{begin, end, get, hex, id, put};
use crate::support::eventually;
use crate::support::tools::needs;
use crate::support::wundr::Wundr;

#[test]
fn a_file_of_one_daemon_is_read_shown_to_a_model_and_removed_at_the_other() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (mut at_a, mut at_b) = (Wundr::connect(a.daemon.address), Wundr::connect(b.daemon.address));
    let content = "a walrus is a mammal. ".repeat(30_000).into_bytes();
    let digest = hex(Sha256::digest(&content));
    let file = put(&mut at_a, &id(1), &content).unwrap();
    let file = file["fileId"].clone();
    eventually("the other daemon knows of it", || at_b.call("file.list", json!({}))["total"] == 1);
    let folder = |node: &crate::cluster_sessions::Node| {
        std::fs::read_dir(node.daemon.home().join("files")).unwrap().count()
    };
    assert_eq!((folder(&a), folder(&b)), (1, 0));
    let (there, ..) = get(&mut at_b, &id(2), json!({ "fileId": file }));
    assert_eq!(there, digest);
    let (part, ..) = get(&mut at_b, &id(3), json!({ "fileId": file, "offset": 600_001 }));
    assert_eq!(part, hex(Sha256::digest(&content[600_001..])));

    let task = json!({ "type": "general", "description": "look" });
    let session = at_b.call(
        "session.create",
        json!({ "orchestratorId": "main", "sessionType": "claude-code", "task": task }),
    );
    let attachments = json!([{ "fileId": file }]);
    let prompt =
        json!({ "sessionId": session["id"], "prompt": "what is in it?", "attachments": attachments });
    let prompt = at_b.call("prompt.submit", prompt);
    let (text, end) = at_b.answer_of(prompt["promptId"].as_str().unwrap());
    assert_eq!(end["event"], "stream.end", "{end}");
    assert!(text.contains(&format!("{} bytes", content.len())), "the model was shown it: {text}");

    at_b.call("file.delete", json!({ "fileId": file }));
    eventually("its bytes go where they are", || folder(&a) == 0);
}

#[test]
fn a_file_whose_daemon_is_away_is_listed_and_can_be_read_when_it_is_back() {
    needs!("nats-server");
    let (_server, [a, b]) = pair();
    let (mut at_a, mut at_b) = (Wundr::connect(a.daemon.address), Wundr::connect(b.daemon.address));
    let file = put(&mut at_a, &id(1), b"a walrus").unwrap()["fileId"].clone();
    eventually("the other daemon knows of it", || at_b.call("file.list", json!({}))["total"] == 1);
    a.daemon.signal("STOP");
    at_b.request_as(&id(2), "file.download", json!({ "fileId": file }));
    let refused = at_b.answer(&id(2)).unwrap_err();
    a.daemon.signal("CONT");
    assert!(refused["message"].to_string().contains("at another daemon of the cluster"), "{refused}");
    let (there, ..) = get(&mut at_b, &id(3), json!({ "fileId": file }));
    assert_eq!(there, hex(Sha256::digest(b"a walrus")));
}

#[test]
fn the_quota_is_for_all_daemons_together() {
    needs!("nats-server");
    let (_server, [a, b]) = pair_with("[limits]\nfile_quota_bytes = 1000\nrequests_burst = 0\n", &[]);
    let (mut at_a, mut at_b) = (Wundr::connect(a.daemon.address), Wundr::connect(b.daemon.address));
    let full =
        |error: serde_json::Value| assert_eq!(error["details"]["limit"], "file_quota_bytes", "{error}");
    let first = put(&mut at_a, &id(1), &[b'x'; 600]).unwrap()["fileId"].clone();
    let mut nth = 0;
    let mut is_refused = |client: &mut Wundr, bytes: usize| {
        nth += 1;
        let upload = format!("{nth:08x}-4455-6677-8899-aabbccddeeff");
        match put(client, &upload, &vec![b'y'; bytes]) {
            Ok(file) => {
                client.call("file.delete", json!({ "fileId": file["fileId"] }));
                false
            }
            Err(error) => {
                full(error);
                client.call("file.delete", json!({ "uploadId": upload }));
                true
            }
        }
    };
    eventually("what A has counts at B", || is_refused(&mut at_b, 500));
    let second = put(&mut at_b, &id(2), &[b'z'; 400]).unwrap()["fileId"].clone();
    eventually("and what B has at A", || is_refused(&mut at_a, 1));
    at_b.call("file.delete", json!({ "fileId": first }));
    eventually("what is removed at B is free at A", || !is_refused(&mut at_a, 600));
    assert!(is_refused(&mut at_a, 601), "{second} is still there");
    assert_eq!(at_a.call("file.list", json!({}))["total"], 1);
}

#[test]
fn an_upload_that_another_daemon_removes_is_over_and_its_room_comes_back() {
    needs!("nats-server");
    let (_server, [a, b]) = pair_with("[limits]\nfile_quota_bytes = 1000\nrequests_burst = 0\n", &[]);
    let (mut at_a, mut at_b) = (Wundr::connect(a.daemon.address), Wundr::connect(b.daemon.address));
    begin(&mut at_a, &id(1), 900, &[b'x'; 100]);
    let mut numbers = 0..;
    let mut fits = |client: &mut Wundr, bytes: usize| {
        let upload = format!("{:08x}-4455-6677-8899-aabbccddeeff", numbers.next().unwrap_or(0));
        let is_taken = put(client, &upload, &vec![b'y'; bytes]).is_ok();
        client.call("file.delete", json!({ "uploadId": upload }));
        is_taken
    };
    eventually("what was announced counts at B", || !fits(&mut at_b, 200));
    let refused = put(&mut at_b, &id(1), &[b'x'; 900]).unwrap_err();
    assert!(refused["message"].to_string().contains("begun at another daemon"), "{refused}");
    at_b.call("file.delete", json!({ "uploadId": id(1) }));
    eventually("A has room", || fits(&mut at_a, 1000));
    end(&mut at_a, &id(1), 100, &[b'x'; 800]).unwrap_err();
    assert_eq!(at_b.call("file.list", json!({}))["total"], 0);
}
