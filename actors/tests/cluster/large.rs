//! Records that are too large for the log: parts beside it, and an envelope in it.

use async_nats::jetstream::{self, stream::Stream};
use bytes::Bytes;
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::prompt::run_options::RunOptions;
use futures::StreamExt as _;

use super::*;

const MB: usize = 1 << 20;

/// Bytes that no compression makes fewer, others for each name.
fn noise(name: &str, bytes: usize) -> Bytes {
    let mut state = name.bytes().fold(7_u64, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
    let text = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b'a' + (state >> 33) as u8 % 26
    });
    text.take(bytes).collect::<Vec<u8>>().into()
}

/// A prompt with files of so many megabytes.
fn with_files(seq: u64, run: &str, megabytes: &[usize]) -> Logged {
    let file = |(nth, megabytes): (usize, &usize)| {
        let content = noise(&format!("{run} {nth}"), megabytes * MB);
        Attachment::new(Some("noise.txt"), None, content).unwrap()
    };
    let prompt = Event::Prompted {
        content: "what is this?".into(),
        owner: Owner::Admins,
        idempotency_key: Some(format!("key of {run}")),
        attachments: megabytes.iter().enumerate().map(file).collect(),
        run_options: RunOptions::default(),
    };
    logged(seq, run, prompt)
}

/// The stream of the blobs.
async fn blobs(server: &NatsServer) -> Stream {
    let client = async_nats::connect(server.url()).await.unwrap();
    jetstream::new(client).get_stream("test_BLOBS").await.unwrap()
}

/// The subjects of all parts that are there, in order.
async fn parts(server: &NatsServer) -> Vec<String> {
    let subjects = blobs(server).await.info_with_subjects("test.blob.>").await.unwrap();
    let mut subjects: Vec<String> = subjects.map(|subject| subject.unwrap().0).collect().await;
    subjects.sort();
    subjects
}

#[actix::test]
async fn a_record_of_20_mb_is_applied_and_so_it_is_by_a_daemon_that_comes_later() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let session = key("x");
    daemon.append(&session, vec![with_files(1, "r", &[10, 10])]).await.unwrap();
    daemon.append(&session, vec![ended(2, "r")]).await.unwrap();
    // Together more than may be here at once, and what is not in parts between them.
    for nth in 0..10 {
        let name = nth.to_string();
        daemon.append(&key(&name), vec![with_files(1, &name, &[9])]).await.unwrap();
        daemon.append(&key(&name), vec![ended(2, &name)]).await.unwrap();
    }
    // A large result of a step is no attachment.
    let huge = "x".repeat(3 * MB);
    let long = vec![prompt(3, "long"), text(4, "long", &huge), ended(5, "long")];
    daemon.append(&session, long).await.unwrap();

    let other = Daemon::start(&server, "b").await;
    let last = daemon.applied().await;
    other.until("the whole log", |says| says["applied"].as_u64() >= Some(last)).await;
    assert_eq!(other.events(&session).await, daemon.events(&session).await);
    let (ours, theirs) = (daemon.path(), other.path());
    let homes = (daemon.end().await, other.end().await);
    assert_same(&ours, &theirs, "a daemon that came later");
    drop(homes);
}

#[actix::test]
async fn a_daemon_that_ends_between_the_parts_and_the_record_leaves_nothing_wrong() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let session = key("x");
    daemon.append(&session, vec![prompt(1, "first")]).await.unwrap();
    let stream = blobs(&server).await;
    let cut = async {
        while stream.get_info().await.unwrap().state.messages == 0 {
            actix::clock::sleep(Duration::from_millis(1)).await;
        }
        daemon.cluster.send(Leave).await.unwrap();
    };
    let (appended, ()) = futures::join!(daemon.append(&session, vec![with_files(2, "cut", &[10, 6])]), cut);
    assert!(appended.is_err(), "nobody says that it was written");
    daemon.store.send(Stop).await.unwrap().unwrap();
    let home = daemon.home;
    assert!(!parts(&server).await.is_empty());

    let daemon = Daemon::start_in(&server, "a", home).await;
    daemon.has_all_slots().await;
    assert_eq!(daemon.events(&session).await.len(), 1, "it was not written");
    daemon.append(&session, vec![with_files(2, "again", &[2])]).await.unwrap();
    let other = Daemon::start(&server, "b").await;
    let last = daemon.applied().await;
    other.until("the whole log", |says| says["applied"].as_u64() >= Some(last)).await;
    let (ours, theirs) = (daemon.path(), other.path());
    let homes = (daemon.end().await, other.end().await);
    assert_same(&ours, &theirs, "after what was cut");
    drop(homes);
}

#[actix::test]
async fn a_part_that_is_missing_or_damaged_holds_a_replica_up_until_it_is_there() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    daemon.append(&key("x"), vec![prompt(1, "before")]).await.unwrap();
    let before = daemon.applied().await;
    daemon.append(&key("x"), vec![with_files(2, "r", &[2])]).await.unwrap();
    daemon.append(&key("y"), vec![prompt(1, "after")]).await.unwrap();
    let last = daemon.applied().await;
    let (stream, parts) = (blobs(&server).await, parts(&server).await);
    let part = stream.get_last_raw_message_by_subject(&parts[1]).await.unwrap().payload;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());

    stream.purge().filter(&parts[1]).await.unwrap();
    let other = Daemon::start(&server, "b").await;
    let says = |word: &'static str| move |says: &Json| says["fault"].to_string().contains(word);
    other.until("that a part is missing", says("is missing")).await;
    let mut damaged = part.to_vec();
    damaged[7] ^= 1;
    context.publish(parts[1].clone(), damaged.into()).await.unwrap().await.unwrap();
    other.until("that it is another one", says("its digest is another one")).await;
    context.publish(parts[1].clone(), "short".into()).await.unwrap().await.unwrap();
    other.until("that it is too short", says("has 5 bytes, not")).await;
    assert_eq!(other.says().await["applied"], before, "it is not passed over");
    let fault = other.says().await["fault"].to_string();
    // The guard of its key comes before it.
    let record = format!("record {} of the log", before + 2);
    assert!(
        [&*record, "the blob ", "clawmux cluster rebuild"].iter().all(|word| fault.contains(word)),
        "{fault}"
    );

    context.publish(parts[1].clone(), part).await.unwrap().await.unwrap();
    other.until("the whole log", |says| says["applied"].as_u64() >= Some(last)).await;
    assert!(other.says().await["fault"].is_null());
    let (ours, theirs) = (daemon.path(), other.path());
    let homes = (daemon.end().await, other.end().await);
    assert_same(&ours, &theirs, "after a part was damaged");
    drop(homes);
}

#[actix::test]
async fn what_a_record_would_have_had_is_removed_where_its_key_is_taken() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    daemon.append(&key("x"), vec![with_files(1, "r", &[2])]).await.unwrap();
    let before = parts(&server).await;
    let refused = daemon.append(&key("y"), vec![with_files(1, "r", &[3])]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused}");
    let begin = Instant::now();
    while parts(&server).await != before {
        assert!(begin.elapsed() < PATIENCE, "the parts of a record that there is not are left");
        actix::clock::sleep(Duration::from_millis(20)).await;
    }
    daemon.append(&key("y"), vec![with_files(1, "other", &[3])]).await.unwrap();
    daemon.end().await;
}

#[actix::test]
async fn a_record_whose_parts_have_no_room_is_refused_and_holds_nothing_up() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let mut config = blobs(&server).await.cached_info().config.clone();
    config.max_bytes = 2 << 20;
    context.update_stream(config).await.unwrap();
    let refused = daemon.append(&key("x"), vec![with_files(1, "r", &[5])]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    assert!(refused.message.contains("raise the limit"), "{refused}");
    assert_eq!(parts(&server).await, Vec::<String>::new());
    daemon.append(&key("x"), vec![with_files(1, "r", &[1])]).await.unwrap();
    daemon.end().await;
}

#[actix::test]
async fn a_cluster_that_has_no_room_for_blobs_yet_gets_it_with_the_next_daemon() {
    let Some(server) = NatsServer::start() else { return };
    let daemon = Daemon::start(&server, "a").await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    context.delete_stream("test_BLOBS").await.unwrap();
    let home = daemon.end().await;
    let daemon = Daemon::start_in(&server, "a", home).await;
    daemon.append(&key("x"), vec![with_files(1, "r", &[2])]).await.unwrap();
    daemon.end().await;
}
