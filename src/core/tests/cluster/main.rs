//! The cluster's ownership, simulated: a hundred thousand short histories of two and three nodes over one stream, with
//! answers that are late, lost or stale, clocks that lie and nodes that crash, stand still or never look at what they
//! lost. Each follows from its seed alone.
//!
//! | module | what it is |
//! |---|---|
//! | [`dice`] | chance, from a seed |
//! | [`breach`] | a rule that does not hold |
//! | [`world`] | what happens, and in which order |
//! | [`daemon`] | what drives the machines of a node, as the daemon's actors do |
//! | [`engine`] | the stream with compare-and-set, and the buckets |
//! | [`replica`] | what a node has of the stream |
//! | [`toy`] | a session as small as can be |
//! | [`table`] | what is kept beside sessions, which all nodes write |
//! | [`outside`] | what outlives a daemon: what is on its way, what clients were told, which effects there were |
//! | [`rules`] | what must hold |
//!
//! `CLAWMUX_SIM_SEEDS=n` plays as many seeds; `CLAWMUX_SIM_SEED=n` plays one and prints it. A seed
//! that fails is printed the same way. Rules prove nothing that can't be broken: with each [`Flaw`] of a driver some
//! seed breaks one.
//!
//! Deliberately absent: the real engine, its elections and its disks; purges; and sessions as they are, which the other
//! simulation has.

#![expect(clippy::print_stdout, reason = "a history is printed, and the figures")]

#[path = "../seeds/breach.rs"]
mod breach;
mod daemon;
#[path = "../seeds/dice.rs"]
mod dice;
mod engine;
mod outside;
mod replica;
mod rules;
mod table;
mod toy;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outside::{Figures, Flaw, Trace};
use rules::Broken;

/// How many seeds are played where nobody says otherwise.
const SEEDS: u64 = 100_000;

/// How many threads play them.
const THREADS: u64 = 2;

/// From so many seeds on everything has to have happened.
const ENOUGH: u64 = 20_000;

/// Within so many seeds every flaw is found.
const FLAWED_SEEDS: u64 = 10_000;

/// Plays a seed; a panic is a breach like any other.
fn play(seed: u64, flaw: Option<Flaw>, trace: Option<&Trace>) -> Result<Figures, Broken> {
    catch_unwind(AssertUnwindSafe(|| world::play(seed, flaw, trace))).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        let why = why.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Broken { rule: "nothing panics", why: why.unwrap_or_default() })
    })
}

/// Plays a seed and gives its history, with the breach at its end if there is one.
fn history(seed: u64, flaw: Option<Flaw>) -> (Vec<String>, Option<Broken>) {
    let trace = Trace::default();
    let broken = play(seed, flaw, Some(&trace)).err();
    (trace.into_inner(), broken)
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn replay(seed: u64) {
    let (steps, broken) = history(seed, None);
    for step in &steps {
        println!("{step}");
    }
    if let Some(Broken { rule, why }) = broken {
        panic!("seed {seed} breaks a rule: {rule}\n{why}\nit replays with CLAWMUX_SIM_SEED={seed}");
    }
}

#[test]
fn whatever_happens_the_promises_hold() {
    if let Some(seed) = setting("CLAWMUX_SIM_SEED") {
        return replay(seed);
    }
    let seeds = setting("CLAWMUX_SIM_SEEDS").unwrap_or(SEEDS);
    let failing = AtomicU64::new(u64::MAX);
    let mut figures = Figures::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let failing = &failing;
                scope.spawn(move || {
                    let mut figures = Figures::default();
                    for seed in (thread..seeds).step_by(THREADS as usize) {
                        if seed > failing.load(Relaxed) {
                            break;
                        }
                        match play(seed, None, None) {
                            Ok(played) => figures += played,
                            Err(_) => {
                                failing.fetch_min(seed, Relaxed);
                            }
                        }
                    }
                    figures
                })
            })
            .collect();
        for thread in threads {
            figures += thread.join().expect("a thread that plays does not panic");
        }
    });
    let failing = failing.into_inner();
    if failing != u64::MAX {
        replay(failing);
        panic!("seed {failing} failed once and not again: something is not deterministic");
    }
    println!("{seeds} seeds: {figures:#?}");
    if seeds >= ENOUGH {
        let never = figures.never();
        assert!(never.is_empty(), "never happened, so nothing is proved about it: {never:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..200 {
        let (first, second) = (history(seed, None), history(seed, None));
        assert_eq!(first.0, second.0, "seed {seed}");
        assert!(first.0.len() > 15, "seed {seed} has a history: {:?}", first.0);
        let (watched, unwatched) = (play(seed, None, Some(&Trace::default())), play(seed, None, None));
        assert_eq!(watched.ok(), unwatched.ok(), "seed {seed}");
    }
}

#[test]
fn every_flaw_is_found() {
    for flaw in Flaw::ALL {
        let found = (0..FLAWED_SEEDS).find_map(|seed| Some((seed, play(seed, Some(flaw), None).err()?)));
        let (seed, Broken { rule, .. }) = found.unwrap_or_else(|| panic!("no seed finds {flaw:?}"));
        println!("{flaw:?}: seed {seed}: {rule}");
    }
}
