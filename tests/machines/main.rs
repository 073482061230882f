//! Machines in networks of their own, on each a nats-server and a daemon, under load and under faults.
//!
//! Each machine is a network namespace; all of them are on one bridge. 200 sessions, an idempotency key for every
//! prompt, some keys in two sessions at once; clients connect to any machine, others follow. What befalls the
//! machines comes from a seed: daemons and servers are killed and stopped in their tracks, one by one and all at
//! once, links are cut in both directions and in one. After each fault it is waited until everybody has the answer
//! he waited for; it may take 30 s. In the end what was asked and answered, what every machine tells of every
//! session, the traces of the tools and the databases must agree.
//!
//! `CLAWMUX_CLUSTER_SEED`, `CLAWMUX_CLUSTER_FAULTS` and `CLAWMUX_CLUSTER_SESSIONS` say which seed, how many faults, and
//! sessions other than 200: with fewer there is less under way, and more faults an hour. How far anything gets
//! between two faults is the machine's that runs this. `CLAWMUX_CLUSTER_ONLY` names one kind of fault. The clocks of
//! the daemons are minutes apart; each goes by another one whenever it is started anew, and some jump meanwhile. With
//! `CLAWMUX_CLUSTER_OLD_BIN` the first life of every daemon is that of this program: an update, one after the other.

#![cfg(feature = "nats")]
#![allow(unreachable_pub, reason = "a test exports nothing")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tests print their figures")]
#![allow(clippy::unwrap_used, reason = "a test says why it failed by failing")]

#[allow(unused, reason = "the crate `it` uses all of it")]
#[path = "../support/mod.rs"]
mod support;
#[allow(unused, reason = "the actors' tests use all of it")]
#[path = "../../actors/tests/support/tables.rs"]
mod tables;

// What a model says, what clients make of it, and the tools that leave traces are those of the crate `crash`.
#[path = "../crash/database.rs"]
mod database;
#[allow(unused, reason = "the crate `crash` uses all of it")]
#[path = "../crash/line.rs"]
mod line;
#[allow(unused, reason = "the crate `crash` uses all of it")]
#[path = "../crash/model.rs"]
mod model;
#[path = "../crash/plan.rs"]
mod plan;
#[path = "../crash/story.rs"]
mod story;
#[path = "../crash/telling.rs"]
mod telling;
#[path = "../crash/tool.rs"]
mod tool;

mod audit;
mod away;
mod book;
mod clock;
mod company;
mod disk;
mod faults;
mod findings;
mod follower;
mod handover;
mod log;
mod machines;
mod namespace;
mod network;
mod program;
mod replicas;
mod speaker;
mod tell;
mod trial;

use faults::{Faults, Kind, Recoveries};
use support::tools::needs;
use trial::{ANSWERED_WITHIN, Size, Trial};

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

#[test]
fn a_daemon_on_its_own_passes_the_same_trial() {
    needs!("nats-server", "networks");
    let size = Size { machines: 1, is_cluster: false, ..Size::cluster(1, 40) };
    befall(size, &[Kind::KillDaemon, Kind::FreezeDaemon], 4);
}

#[test]
fn whatever_befalls_the_machines_nothing_is_lost_and_nothing_happens_twice() {
    needs!("nats-server", "networks");
    let seed = number("CLAWMUX_CLUSTER_SEED").unwrap_or(1);
    let sessions = number("CLAWMUX_CLUSTER_SESSIONS").map_or(200, |sessions| sessions as usize);
    let size = Size::cluster(seed, sessions);
    befall(size, &Kind::ALL, number("CLAWMUX_CLUSTER_FAULTS").unwrap_or(4));
}

#[test]
fn daemons_that_hand_over_and_come_back_refuse_nobody() {
    needs!("nats-server", "networks");
    let size = Size::cluster(2, 40);
    Trial::run(size, async |trial| {
        // Who loses a key to another daemon begins anew, and so are his calls interrupted.
        trial.company.book.borrow_mut().shares = false;
        trial.company.pause_max_ms.set(200);
        trial.speak().await?;
        handover::roll(trial).await?;
        let enough = async || trial.answered() >= 1000;
        trial.machines.until("1,000 prompts are answered", enough).await?;
        let counts = trial.close().await?;
        trial.report(&counts);
        assert_eq!(counts.interrupted_calls, 0);
        let book = trial.company.book.borrow();
        // Who comes to a daemon that has handed over and stops is told that it stops.
        let stops = |why: &&String| why.contains("stopping") || why.contains("draining");
        let refusals: Vec<&String> = book.refusals.keys().filter(|why| !stops(why)).collect();
        assert!(refusals.is_empty(), "{:?}", book.refusals);
        Ok(())
    });
}

#[test]
fn a_daemon_that_was_away_for_long_has_all_of_it_in_the_end() {
    needs!("nats-server", "networks");
    let size = Size::cluster(3, 40);
    Trial::run(size, async |trial| {
        trial.company.pause_max_ms.set(200);
        trial.speak().await?;
        away::miss(trial, 2, 150).await?;
        let counts = trial.close().await?;
        trial.report(&counts);
        Ok(())
    });
}

#[test]
fn a_machine_whose_disk_is_full_is_done_without_and_comes_back() {
    needs!("nats-server", "networks", "mounts");
    let size = Size { small_disk: Some(1), ..Size::cluster(5, 40) };
    Trial::run(size, async |trial| {
        trial.company.pause_max_ms.set(200);
        trial.speak().await?;
        away::full(trial, 1, 100).await?;
        let counts = trial.close().await?;
        trial.report(&counts);
        Ok(())
    });
}

#[test]
fn a_replica_that_differs_is_noticed() {
    needs!("nats-server", "networks");
    let size = Size::cluster(4, 4);
    Trial::run(size, async |trial| {
        trial.speak().await?;
        away::differ(trial, 1).await
    });
}

/// So many faults, and in the end all there is to look at.
fn befall(size: Size, kinds: &'static [Kind], faults: u64) {
    Trial::run(size, async |trial| {
        trial.speak().await?;
        let mut recoveries = Recoveries::default();
        let only = std::env::var("CLAWMUX_CLUSTER_ONLY").ok();
        let wanted = |kind: &Kind| only.as_ref().is_none_or(|only| format!("{kind:?}") == *only);
        let kinds: Vec<Kind> = kinds.iter().copied().filter(wanted).collect();
        let mut coming = Faults::new(size.seed, kinds, size.machines);
        for nth in 1..=faults {
            let mut fault = coming.next();
            fault.befall(&trial.machines).await;
            let recovered = trial.company.settle(ANSWERED_WITHIN).await;
            let took = recovered.map_err(|why| format!("fault {nth}, {}: {why}", fault.says()))?;
            println!("fault {nth}, {}: answered after {took:.1?}", fault.says());
            recoveries.add(fault.kind, took);
        }
        let counts = trial.close().await?;
        trial.report(&counts);
        recoveries.report();
        println!("the longest that anybody waited after a fault: {:.1?}", recoveries.longest());
        Ok(())
    });
}
