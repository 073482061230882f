//! What paced answers cost a cluster of three daemons on this machine, its servers included, beside what as many cost a
//! daemon alone.

use std::time::Duration;

use super::{Cluster, ROUNDS, name_of};
use crate::figures::{Contender, Figure, rounds};
use crate::load::dialect::Dialect;
use crate::load::fresh_name;
use crate::load::model::Model;
use crate::load::streams::Streams;
use crate::nats::Server;
use crate::process::Process;
use crate::rows::{Extent, columns, home, on_model};

/// How many times what they take at one daemon.
const PER_CORE: f64 = 1.5;

const TOKENS_A_SECOND: u32 = 50;
/// For how long they stream, in seconds.
const SECONDS: u32 = 3;

/// So many, clients of each daemon in turn.
pub(super) fn streams(name: &str, extent: Extent, streams: usize) -> Vec<Figure> {
    let each = (TOKENS_A_SECOND * SECONDS) as usize;
    let model = &Model::new(each, Duration::from_secs(1) / TOKENS_A_SECOND);
    let cluster = Cluster::start(model);
    let owners = cluster.owners();
    let home = home();
    let alone = Process::daemon(home.path(), &on_model(model));
    let of_cluster: Vec<u32> =
        cluster.daemons.iter().map(Process::pid).chain(cluster.servers.iter().map(Server::pid)).collect();
    let spent = |clients: Vec<(&Process, String)>, pids: &[u32]| {
        let running = Streams::across(Dialect::Exoclaw, clients, pids);
        vec![running.run_steady(model, each * streams).cpu_us]
    };
    let at = |is_its: bool| {
        let places = (0..cluster.daemons.len()).cycle().take(streams);
        let client = |place: usize| (&cluster.daemons[place], cluster.account(&owners, place, is_its));
        spent(places.map(client).collect(), &of_cluster)
    };
    let contenders: Vec<Contender<'_>> = vec![
        Box::new(|| at(true)),
        Box::new(|| at(false)),
        Box::new(|| spent((0..streams).map(|_| (&alone, fresh_name())).collect(), &[alone.pid()])),
    ];
    let [own, elsewhere, alone] =
        columns(rounds(extent.rounds(ROUNDS), contenders)).map(|mut figures| figures.remove(0));
    assert!(owners.iter().all(|owner| (0..3).any(|place| owner == name_of(place))), "all are owned");
    vec![
        Figure::new(name, "CPU a token, where they are", "µs", own).beside("alone", alone.clone(), PER_CORE),
        Figure::new(name, "CPU a token, from elsewhere", "µs", elsewhere).beside("alone", alone, None),
    ]
}
