//! How much longer the first prompt takes that wakes a session with a long history, at a daemon that has had nothing to
//! do with it, than the next one takes.

use std::time::{Duration, Instant};

use super::{Cluster, PATIENCE, has, name_of, prompt, until_end};
use crate::figures::{Figure, percentile};
use crate::load::dialect::Dialect;
use crate::load::model::Model;
use crate::rows::Extent;
use crate::support::daemon;

/// How much longer it may take, in milliseconds.
const WAKE_MS: f64 = 5.0;

/// So many sessions, each with so many prompts, which are 200 events at least: a prompt, a call, a text, an end of each.
const SESSIONS: usize = 60;
const PROMPTS: usize = 50;

pub(super) fn waking(name: &str, extent: Extent) -> Vec<Figure> {
    let model = Model::new(1, Duration::ZERO);
    let cluster = Cluster::start(&model);
    let owners = cluster.owners();
    let accounts: Vec<String> =
        (0..extent.units(SESSIONS)).map(|_| cluster.account(&owners, 0, true)).collect();
    super::times_of(&cluster.daemons[0], &accounts, PROMPTS, Duration::ZERO);
    let mut drained = daemon::command(cluster.homes[0].path());
    let (code, said, why) = daemon::output(drained.arg("drain"));
    assert_eq!(code, 0, "{said}{why}");
    let begin = Instant::now();
    let owners = loop {
        let owners = cluster.owners_seen_by(1);
        if owners.iter().all(|owner| owner == name_of(1) || owner == name_of(2)) {
            break owners;
        }
        assert!(begin.elapsed() < PATIENCE, "{} does not give all away: {owners:?}", name_of(0));
    };
    let mut longer = Vec::new();
    for account in &accounts {
        let place = if cluster.owns(&owners, 1, account) { 1 } else { 2 };
        let mut wire = Dialect::Exoclaw.connect(&cluster.daemons[place]);
        let mut took = |id: &str| {
            let begin = Instant::now();
            wire.send(&prompt(account, &format!("{account} {id}")));
            while !has(wire.next().as_bytes(), b"\"accepted\"") {}
            let took = begin.elapsed().as_secs_f64() * 1e3;
            until_end(&mut wire);
            took
        };
        longer.push(took("wakes it") - took("again"));
    }
    vec![Figure::new(name, "longer", "ms", vec![percentile(&longer, 0.5)]).at_most(WAKE_MS)]
}
