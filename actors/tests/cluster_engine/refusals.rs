//! What an engine refuses to work with, and what it says then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use clawmux_actors::cluster::engine::{Durability, Engine, EngineSettings, Published, Unusable};
use tokio::time::sleep;

use super::servers::{LOOK, PATIENCE, SYNCS, Server, free_ports, settings};
use super::{NONE, begin, log_of, open, run, session};

async fn refused(settings: &EngineSettings) -> String {
    match Engine::open(settings).await {
        Ok(_) => panic!("it is not refused"),
        Err(Unusable { why, is_refused }) => {
            assert!(is_refused, "{why}");
            why
        }
    }
}

#[test]
fn servers_that_may_lose_what_they_acknowledge_are_refused() {
    let (Some(lazy), Some(syncs)) = (Server::start(""), Server::start(SYNCS)) else { return };
    run(async {
        let why = refused(&lazy.settings()).await;
        assert!(why.contains("sync_interval: always") && why.contains("unchecked"), "{why}");
        open(&EngineSettings { durability: Durability::Unchecked, ..lazy.settings() }).await;
        let with = |monitor: &[String]| EngineSettings { monitor: monitor.to_vec(), ..syncs.settings() };
        let why = refused(&with(&[])).await;
        assert!(why.contains("cluster.monitor names 0 servers, and there are 1 replicas"), "{why}");
        let two = [with(&[]).servers[0].clone(), syncs.settings().monitor[0].clone()];
        assert!(refused(&with(&two[..1])).await.contains("no http:// URL"));
        let of_clients = two[0].replace("nats", "http");
        assert!(refused(&with(&[of_clients])).await.contains("does not speak HTTP"));
        let why =
            Engine::open(&with(&[format!("http://127.0.0.1:{}", free_ports::<1>()[0])])).await.unwrap_err();
        assert!(!why.is_refused && why.why.contains("is not known of a majority"), "{why:?}");
        let other = Server::start(SYNCS).unwrap();
        assert!(refused(&with(&other.settings().monitor)).await.contains("does not name the server that is"));
        let one = &two[1];
        let thrice = [one.clone(), format!("{one}/"), one.replace("127.0.0.1", "localhost")];
        let why = refused(&EngineSettings { replicas: 3, ..with(&thrice) }).await;
        assert!(why.contains("names a server twice"), "{why}");
        open(&syncs.settings()).await;
    });
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (Some(server), Some(pair)) = (Server::start(SYNCS), Server::cluster::<2>()) else { return };
    run(async {
        let unchecked = EngineSettings { durability: Durability::Unchecked, ..server.settings() };
        for name in ["", "a.b", "a b"] {
            let why = refused(&EngineSettings { name: name.to_owned(), ..unchecked.clone() }).await;
            assert!(why.starts_with("cluster.name: "), "{why}");
        }
        for replicas in [0, 2, 4] {
            let why = refused(&EngineSettings { replicas, ..unchecked.clone() }).await;
            assert!(why.starts_with("cluster.replicas: ") && why.contains("3 or 5"), "{why}");
        }
        let why = refused(&unchecked).await;
        assert!(
            why.contains("there is no cluster \"test\"") && why.contains("clawmux cluster init"),
            "{why}"
        );
        let Unusable { why, is_refused } =
            begin(&EngineSettings { replicas: 3, ..unchecked.clone() }).await.unwrap_err();
        assert!(is_refused && why.contains("needs 3 NATS servers that are one cluster"), "{why}");
        let of_two = EngineSettings { replicas: 3, servers: settings(&pair).servers, ..unchecked.clone() };
        let at = Instant::now();
        loop {
            let made = begin(&of_two).await;
            match &made {
                Err(Unusable { is_refused: true, why }) if why.contains("needs 3 NATS servers") => break,
                _ => assert!(at.elapsed() < PATIENCE, "{made:?}"),
            }
            sleep(LOOK).await;
        }

        let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
        let log = log_of(&open(&unchecked).await);
        let fits = context.get_stream(&log).await.unwrap().cached_info().config.clone();
        use jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
        let day = Duration::from_secs(86_400);
        let of_another = HashMap::from([("clawmux-cluster".to_owned(), "x".to_owned())]);
        let wrong: [(Config, &str); 8] = [
            (Config { storage: StorageType::Memory, ..fits.clone() }, "memory as its storage"),
            (
                Config { subjects: vec!["another.log.*".to_owned()], ..fits.clone() },
                "has the subjects another.log.*, not",
            ),
            (Config { metadata: of_another, ..fits.clone() }, "does not belong to the base"),
            (Config { retention: RetentionPolicy::WorkQueue, ..fits.clone() }, "retention WorkQueue"),
            (Config { discard: DiscardPolicy::Old, ..fits.clone() }, "discard old"),
            (Config { max_age: day, duplicate_window: Duration::ZERO, ..fits.clone() }, "max_age 86400 s"),
            (Config { allow_atomic_publish: false, ..fits.clone() }, "allow_atomic off"),
            (Config { max_messages_per_subject: 5, ..fits.clone() }, "max_msgs_per_subject 5"),
        ];
        for (config, what) in wrong {
            context.delete_stream(&log).await.unwrap();
            context.create_stream(config).await.unwrap();
            let why = refused(&unchecked).await;
            assert!(why.starts_with(&format!("the stream {log} ")) && why.contains(what), "{why}");
        }
        context.delete_stream(&log).await.unwrap();
        let why = refused(&unchecked).await;
        assert!(why.starts_with(&format!("the stream {log} is gone")) && why.contains("rebuild"), "{why}");
        begin(&EngineSettings { max_log_bytes: Some(1 << 20), ..unchecked.clone() }).await.unwrap();
        let engine = open(&unchecked).await;
        // What has no room is refused, and what is there stays.
        let (subject, mut last) = (session(&engine, "ada"), NONE);
        let full = loop {
            match engine.publish(&subject, last, vec![0; 256 * 1024].into()).await {
                Published::Acked(sequence) => last = sequence,
                other => break other,
            }
        };
        assert!(matches!(&full, Published::Unknown(why) if why.contains("maximum bytes")), "{full:?}");
        assert_eq!(engine.read_since(&subject, NONE, 10).await.unwrap().len() as u64, last.0);
        let plain = Server::with("").unwrap();
        let plain = EngineSettings { servers: vec![plain.url()], ..unchecked };
        assert!(refused(&plain).await.contains("no JetStream"));
    });
}
