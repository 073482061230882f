//! How fast the log is, against a plain file in the same run:
//! `cargo run --release -p clawmux-actors --example store_throughput [FOLDER]`.
//!
//! Durable events are compared with an append and an `fdatasync` for each, as a log without group
//! commit would do; text with an append for each, as a log that keeps no promise would do.

#![expect(clippy::print_stdout, reason = "figures for people")]

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clawmux_actors::runtime::observe::Observe;
use clawmux_actors::store::{Append, Backup, Stop, Store};
use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::provider::usage::Usage;
use clawmux_core::time::Timestamp;
use futures::future::try_join_all;

const PIECES: u64 = 200;
/// What an answer has in the last part.
const MIXED_PIECES: u64 = 800;
/// Stands for the end of an answer.
const END: u64 = 4 + PIECES;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = match std::env::args_os().nth(1) {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir_in(".")?,
    };
    let line = [b'x'; 120];
    let mut file = File::create(folder.path().join("plain"))?;
    let synced = rate(300, || file.write_all(&line).and_then(|()| file.sync_data()))?;
    let plain = rate(200_000, || file.write_all(&line))?;
    println!("plain file   {synced:>9.0} synced appends/s   {plain:>9.0} appends/s");

    for sessions in [1, 16, 64, 512] {
        let path = folder.path().join(format!("{sessions}.db"));
        let (durable, text, cpu) = actix::System::new().block_on(async {
            let store = Store::start(path).await?;
            let each = |from: u64, to: u64| {
                let store = store.clone();
                move |i: u64| {
                    let store = store.clone();
                    async move {
                        for seq in from..to {
                            store.send(append(i, seq)).await??;
                        }
                        Ok::<_, Box<dyn Error>>(())
                    }
                }
            };
            let prompts = Instant::now();
            try_join_all((0..sessions).map(each(1, 2))).await?;
            try_join_all((0..sessions).map(each(2, 4))).await?;
            let durable = (3 * sessions) as f64 / prompts.elapsed().as_secs_f64();
            let (pieces, cpu) = (Instant::now(), cpu_time());
            try_join_all((0..sessions).map(each(4, 4 + PIECES))).await?;
            let text = (PIECES * sessions) as f64 / pieces.elapsed().as_secs_f64();
            let cpu = (cpu_time() - cpu).as_secs_f64() * 1e6 / (PIECES * sessions) as f64;
            try_join_all((0..sessions).map(each(4 + PIECES, 5 + PIECES))).await?;
            println!("{}", store.send(Observe).await?.state);
            store.send(Stop).await??;
            Ok::<_, Box<dyn Error>>((durable, text, cpu))
        })?;
        println!(
            "{sessions:>4} sessions {durable:>9.0} durable events/s ({:.2} of the file) {text:>9.0} pieces of text/s ({:.2} of the file), {cpu:.1} us of CPU each",
            durable / synced,
            text / plain,
        );
    }
    let sync_us = 1e6 / synced;
    for (durable, copies) in [(0, false), (8, false), (0, true)] {
        let path = folder.path().join(format!("mixed-{durable}-{copies}.db"));
        let took = actix::System::new().block_on(mixed(path, durable, copies))?;
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
        for (name, us) in [("p50", at(0.5)), ("p99", at(0.99)), ("p99.9", at(0.999)), ("max", at(1.0))] {
            println!(
                "text of 64 streams, {durable} of them durable{}: {name:>6} {us:>8} us until acknowledged, {:.2} of a sync of the file",
                if copies { ", beside copies of the log" } else { "" },
                us as f64 / sync_us,
            );
        }
    }
    Ok(())
}

/// How long text of 64 sessions takes to be acknowledged, in microseconds, sorted. Beside some
/// that write durably all the time, or while one copy of the log after the other is made; all the
/// answers end at once, some times over.
async fn mixed(path: PathBuf, durable: u64, copies: bool) -> Result<Vec<u128>, Box<dyn Error>> {
    let store = Store::start(path.clone()).await?;
    let copying = actix::spawn({
        let store = store.clone();
        async move {
            for number in 0.. {
                let to = path.with_extension(format!("copy-{number}"));
                let Ok(Ok(report)) = store.send(Backup { to: to.clone() }).await else { break };
                println!("{report:?}");
                if std::fs::remove_file(to).is_err() {
                    break;
                }
            }
        }
    });
    if !copies {
        copying.abort();
    }
    let mut took = Vec::new();
    for round in 0..4 {
        let streams = (0..64).map(|i| {
            let store = store.clone();
            async move {
                let (mut took, session) = (Vec::new(), round * 64 + i);
                store.send(append(session, 1)).await??;
                for seq in 2..=4 + MIXED_PIECES {
                    let begin = Instant::now();
                    let mut append = append(session, if seq == 4 + MIXED_PIECES { END } else { seq.min(4) });
                    let logged = Logged { first_seq: Seq(seq), seq: Seq(seq), ..append.events[0].clone() };
                    append.events = [logged].into();
                    store.send(Append { durable: append.durable || i < durable, ..append }).await??;
                    if i >= durable && (4..4 + MIXED_PIECES).contains(&seq) {
                        took.push(begin.elapsed().as_micros());
                    }
                    actix::clock::sleep(Duration::from_millis(5)).await;
                }
                Ok::<_, Box<dyn Error>>(took)
            }
        });
        took.extend(try_join_all(streams).await?.concat());
    }
    println!("{}", store.send(Observe).await?.state);
    took.sort_unstable();
    copying.abort();
    store.send(Stop).await??;
    Ok(took)
}

fn rate(times: u32, mut once: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    let begin = Instant::now();
    (0..times).try_for_each(|_| once())?;
    Ok(f64::from(times) / begin.elapsed().as_secs_f64())
}

/// The process's CPU time so far, of all its threads.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Duration::from_millis(ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}

fn append(session: u64, seq: u64) -> Append {
    let run = Some(RunId::new(format!("r{session}")));
    let (owner, usage) = (Owner::Admins, Usage::default());
    let event = match seq {
        1 => Event::prompted("a prompt of usual length".repeat(3), owner, None),
        2 | 3 => Event::Started,
        END => Event::Ended { outcome: Outcome::Completed, usage },
        _ => Event::Text(" token".into()),
    };
    let durable = event.streamed().is_none();
    let at = Timestamp::from_millis(1_700_000_000_000 + seq);
    Append {
        session: SessionKey::new("main", "bench", &session.to_string(), "main")
            .unwrap_or_else(|_| unreachable!()),
        events: [Logged { first_seq: Seq(seq), seq: Seq(seq), run, at, event }].into(),
        durable,
        reserve: (seq == 1).then_some(Seq(10_000)),
        to_say: Vec::new(),
    }
}
