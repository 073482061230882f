//! Servers are killed while several write and others follow: nothing is lost, doubled or out of order.

use std::cell::Cell;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use bytes::Bytes;
use clawmux_actors::cluster::engine::{Engine, LogRecord, Published};
use futures::StreamExt as _;
use futures::future::{join, join_all};
use tokio::time::{sleep, timeout};

use super::servers::{LOOK, PATIENCE, SYNCS, Server, settings};
use super::{NONE, answered, log_of, open, run, session, text};

/// Writes numbered records until it is over, as an owner does: what is unsettled is read, and the same again
/// where nothing came. Says how many there are, and how often one was unsettled.
async fn write(engine: &Engine, name: &str, is_over: &Cell<bool>) -> (usize, usize) {
    let (subject, mut last, mut count, mut unsettled) = (session(engine, name), NONE, 0, 0);
    while !is_over.get() {
        let record = text(&format!("{name} {count}"));
        loop {
            if let Published::Acked(sequence) = engine.publish(&subject, last, record.clone()).await {
                last = sequence;
                break;
            }
            unsettled += 1;
            let since = answered(async || engine.read_since(&subject, last, 10).await).await;
            if let Some((sequence, first)) = since.first() {
                assert_eq!((first, since.len()), (&record, 1));
                last = *sequence;
                break;
            }
            sleep(LOOK).await;
        }
        count += 1;
    }
    (count, unsettled)
}

/// All of them write until it is over; then comes the last record.
async fn write_all(engines: &[Engine], names: &[&str], is_over: &Cell<bool>) -> Vec<(usize, usize)> {
    let writers = names.iter().zip(engines.iter().cycle());
    let written = join_all(writers.map(|(name, engine)| write(engine, name, is_over))).await;
    let end = session(&engines[0], "end");
    answered(async || match engines[0].publish(&end, NONE, text("end")).await {
        Published::Acked(_) | Published::Refused => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    written
}

/// Follows to the last record, anew where it is over, and says how often that was.
async fn follow(engine: &Engine, at: impl Fn(usize)) -> (Vec<LogRecord>, usize) {
    let (mut came, mut anew): (Vec<LogRecord>, _) = (Vec::new(), 0);
    loop {
        let last = came.last().map_or(NONE, |record| record.sequence);
        let mut followed = answered(async || engine.follow(last).await).await;
        while let Ok(record) = timeout(PATIENCE, followed.next())
            .await
            .expect("it never only waits")
            .expect("an error comes first")
        {
            came.push(record);
            at(came.len());
            if came.last().is_some_and(|last| last.record == "end") {
                return (came, anew);
            }
        }
        assert!(followed.next().await.is_none());
        anew += 1;
    }
}

/// Every record of every writer is there once, in order, and the last one.
fn check(came: &[LogRecord], names: &[&str], written: &[(usize, usize)]) {
    assert!(came.is_sorted_by(|one, next| one.sequence < next.sequence));
    for (name, (count, _)) in names.iter().zip(written) {
        let of = came.iter().filter(|record| record.record.starts_with(name.as_bytes()));
        let of: Vec<Bytes> = of.map(|record| record.record.clone()).collect();
        assert_eq!(of, (0..*count).map(|nth| text(&format!("{name} {nth}"))).collect::<Vec<_>>());
    }
    assert_eq!(came.len(), written.iter().map(|(count, _)| count).sum::<usize>() + 1);
}

#[test]
fn over_the_death_of_its_server_nothing_is_lost_or_doubled() {
    let Some(mut server) = Server::start(SYNCS) else { return };
    run(async {
        let settings = server.settings();
        let (writing, following) = join(open(&settings), open(&settings)).await;
        // A publish that is on its way when the server ends.
        let subject = session(&writing, "x");
        server.halt();
        let publish = writing.publish(&subject, NONE, text("x 0"));
        let (published, ()) = join(publish, async {
            tokio::task::yield_now().await;
            server.kill();
        })
        .await;
        assert!(matches!(published, Published::Unknown(_)), "{published:?}");
        // Without a server that is said at once.
        let begin = Instant::now();
        assert!(matches!(writing.publish(&subject, NONE, text("x 0")).await, Published::Unknown(_)));
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        assert!(writing.extent().await.unwrap_err().contains("no NATS server is connected"));
        server = server.start_again().await;

        let (names, is_over) = (["x", "ada", "bob"], Cell::new(false));
        let (count, counted) = tokio::sync::watch::channel(0);
        let engines = [writing];
        let written = write_all(&engines, &names, &is_over);
        let followed = follow(&following, |came| count.send(came).unwrap());
        let faults = async {
            for at in [200, 400] {
                counted.clone().wait_for(|count| *count >= at).await.unwrap();
                server.kill();
                server = server.start_again().await;
            }
            counted.clone().wait_for(|count| *count >= 600).await.unwrap();
            is_over.set(true);
            server
        };
        let (written, ((came, anew), _server)) = join(written, join(followed, faults)).await;
        check(&came, &names, &written);
        assert!(written.iter().any(|(_, unsettled)| *unsettled > 0) && anew > 0, "{written:?} {anew}");
        assert_eq!(following.extent().await.unwrap().records, came.len() as u64);
        assert!(following.losses() >= 2 && following.is_connected());
    });
}

#[test]
fn over_the_death_of_the_leader_nothing_is_lost_or_doubled() {
    let Some(servers) = Server::cluster::<3>() else { return };
    run(async {
        let mut servers = Vec::from(servers);
        let settings = settings(&servers);
        // All of them make the streams at once; each prefers a server of its own.
        let opened = (0..3).map(|nth| {
            let mut settings = settings.clone();
            settings.servers.rotate_left(nth);
            async move { open(&settings).await }
        });
        let engines = join_all(opened).await;
        let (names, is_over) = (["ada", "bob", "eve"], Cell::new(false));
        let (count, counted) = tokio::sync::watch::channel(0);
        let written = write_all(&engines, &names, &is_over);
        let followed =
            join(follow(&engines[0], |came| count.send(came).unwrap()), follow(&engines[1], |_| {}));
        let faults = async {
            counted.clone().wait_for(|count| *count >= 200).await.unwrap();
            let leader = leader(&settings.servers, &log_of(&engines[0])).await;
            let led = servers.iter().position(|server| server.name == leader).unwrap();
            let mut server = servers.remove(led);
            let before = *counted.borrow();
            server.kill();
            // It goes on under another leader, which acknowledges what was on its way, too, where it has it.
            counted.clone().wait_for(|count| *count >= before + 200).await.unwrap();
            servers.push(server.start_again().await);
            let before = *counted.borrow();
            counted.clone().wait_for(|count| *count >= before + 200).await.unwrap();
            is_over.set(true);
        };
        let (written, ((one, two), ())) = join(written, join(followed, faults)).await;
        check(&one.0, &names, &written);
        let places = |came: &[LogRecord]| {
            came.iter().map(|record| (record.sequence, record.record.clone())).collect::<Vec<_>>()
        };
        assert_eq!(places(&one.0), places(&two.0));
        let extent = answered(async || engines[2].extent().await).await;
        assert_eq!(extent.records, one.0.len() as u64);
        // Without a majority nothing is acknowledged, and that is said in time.
        servers.truncate(1);
        let (begin, late) = (Instant::now(), session(&engines[0], "late"));
        let published =
            join_all(engines.iter().map(|engine| engine.publish(&late, NONE, text("late 0")))).await;
        let is_acked = |published: &Published| matches!(published, Published::Acked(_));
        assert!(!published.iter().any(is_acked), "{published:?}");
        assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
    });
}

/// The name of the server that leads the log.
async fn leader(servers: &[String], log: &str) -> String {
    let servers: Vec<async_nats::ServerAddr> = servers.iter().map(|server| server.parse().unwrap()).collect();
    let context = jetstream::new(async_nats::connect(servers).await.unwrap());
    answered(async || {
        let log = context.get_stream(log).await.map_err(|error| error.to_string())?;
        let cluster = log.cached_info().cluster.clone();
        cluster.and_then(|cluster| cluster.leader).ok_or_else(|| "nobody leads".to_owned())
    })
    .await
}
