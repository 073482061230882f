//! The cluster of the configuration, where no daemon says how it is: its servers, what they have of it, and whether the
//! store of this home goes with that.

use std::time::Duration;

/// How long servers may take to say all that is asked.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// How long looking takes at most.
pub(super) const PATIENCE: Duration = ANSWERED_WITHIN.saturating_add(Duration::from_secs(10));

#[cfg(not(feature = "nats"))]
pub(super) fn look(
    _: &clawmux_core::config::Cluster,
    _: Option<&std::path::Path>,
    _: bool,
    found: &mut super::Findings,
) {
    found.error(
        "cluster",
        "this clawmux was built without NATS (cargo feature `nats`): it can't be in a cluster",
        "take one that was built with it, or remove [cluster] from the configuration",
    );
}

#[cfg(feature = "nats")]
pub(super) use self::with_nats::look;

#[cfg(feature = "nats")]
mod with_nats {
    use std::path::Path;
    use std::time::Duration;

    use clawmux_actors::cluster::engine::{
        Durability, Engine, EngineSettings, Extent, LogServers, Site, Unusable,
    };
    use clawmux_actors::store::membership::{held_beside, knows};
    use clawmux_core::cluster::base::{Held, Manifest, Reach, Way, way};
    use clawmux_core::config;
    use futures::future::join_all;
    use tokio::time::timeout;

    use super::super::Findings;
    use super::ANSWERED_WITHIN;
    use crate::operator::amount::{counted, file_size, grouped};

    /// How long daemons are listened for: several heartbeats.
    const HEARD_WITHIN: Duration = Duration::from_secs(2);

    /// What a daemon does meanwhile, where what is wrong says what to do.
    const UNTIL_DONE: &str = "the daemon does not start until that is done; --offline leaves this out";

    /// The same where a daemon holds the home already.
    const STARTED_ANEW: &str =
        "a daemon that is started does not join the cluster until that is done; --offline leaves this out";

    /// What to do where servers do not say what is asked.
    const ASKED_AGAIN: &str = "see to the NATS servers, their monitoring ports and the network. A daemon that is started asks \
                               for half a minute, and ends where nothing changes; --offline leaves this out";

    /// Asks the servers, and compares the store of this home with what they say, where it is ours to look into. Where a
    /// daemon holds the home, it may be the one that is heard as this node. Blocks.
    pub(in super::super) fn look(
        config: &config::Cluster,
        store: Option<&Path>,
        is_held: bool,
        found: &mut Findings,
    ) {
        let looked = async { timeout(ANSWERED_WITHIN, ask(config, store, is_held, found)).await };
        if actix::System::new().block_on(looked).is_err() {
            let what = format!(
                "the NATS servers did not say within {} s how the cluster {:?} is",
                ANSWERED_WITHIN.as_secs(),
                config.name
            );
            found.error("cluster", what, "see to the servers and the network; --offline leaves this out");
        }
    }

    async fn ask(config: &config::Cluster, path: Option<&Path>, is_held: bool, found: &mut Findings) {
        let Some(site) = reach(config, found).await else { return };
        syncs(config, &site, is_held, found).await;
        let base = match site.base().await {
            Ok(base) => base,
            Err(unusable) => return is_unusable(unusable, is_held, found),
        };
        let held = path.map(held_beside);
        let Some(base) = base else { return not_begun(config, held.and_then(Result::ok), found) };
        let engine = match site.open().await {
            Ok(engine) => engine,
            Err(unusable) => return is_unusable(unusable, is_held, found),
        };
        let extent = log(config, &engine, found).await;
        // A store that can't be read is told with what else is wrong with it.
        if let (Some(extent), Some(Ok(held))) = (extent, held) {
            store(&held, &base, &extent, until_done(is_held), found);
        }
        nodes(config, &site, (base.generation, is_held), found).await;
    }

    /// Each of the servers; gives the first that can be asked.
    async fn reach(config: &config::Cluster, found: &mut Findings) -> Option<Site> {
        let settings = EngineSettings::from(config);
        let of_one = |server: &String| EngineSettings { servers: vec![server.clone()], ..settings.clone() };
        let all: Vec<EngineSettings> = settings.servers.iter().map(of_one).collect();
        let reached = join_all(all.iter().map(Site::reach)).await;
        let answering = reached.iter().filter(|site| site.is_ok()).count();
        let mut first = None;
        for (server, site) in settings.servers.iter().zip(reached) {
            match site {
                Ok(site) => {
                    let (name, version) = site.server();
                    found.fine("cluster", format!("{server} answers: NATS server {name}, version {version}"));
                    first = first.or(Some(site));
                }
                Err(unusable) if answering > 0 => {
                    let advice = "see to that server, or to cluster.servers; the daemon takes another one meanwhile";
                    found.warning("cluster", unusable.why, advice);
                }
                Err(unusable) => found.error(
                    "cluster",
                    unusable.why,
                    "see to the NATS servers, the network and cluster.servers: without them the daemon does not start; \
                     --offline leaves this out",
                ),
            }
        }
        first
    }

    /// What is wrong with the servers: until somebody changes that, or for the moment.
    fn is_unusable(Unusable { why, is_refused }: Unusable, is_held: bool, found: &mut Findings) {
        found.error("cluster", why, if is_refused { until_done(is_held) } else { ASKED_AGAIN });
    }

    fn until_done(is_held: bool) -> &'static str {
        if is_held { STARTED_ANEW } else { UNTIL_DONE }
    }

    async fn syncs(config: &config::Cluster, site: &Site, is_held: bool, found: &mut Findings) {
        if config.durability == Durability::Unchecked {
            let what = "whether the servers sync what they acknowledge is not looked at: cluster.durability is \"unchecked\"";
            return found.fine("cluster", what);
        }
        match site.syncs().await {
            Ok(None) => found.fine("cluster", "the servers sync what they acknowledge"),
            Ok(Some(silent)) => found.warning(
                "cluster",
                format!(
                    "it is not known of all NATS servers whether they sync what they acknowledge: {silent}"
                ),
                "see to these servers, or to cluster.monitor",
            ),
            Err(unusable) => is_unusable(unusable, is_held, found),
        }
    }

    fn not_begun(config: &config::Cluster, held: Option<Held>, found: &mut Findings) {
        let what = format!("there is no cluster {:?} on these servers", config.name);
        match held {
            Some(Held::Replica(replica)) => found.error(
                "cluster",
                format!("{what}, and the store of this home is of the cluster {}", replica.cluster),
                "see to cluster.servers and cluster.name; or `clawmux cluster rebuild`, where the servers have lost it; or \
                 `clawmux cluster leave`",
            ),
            _ => found.error(
                "cluster",
                what,
                "run `clawmux cluster init` on the node whose sessions it is to begin with",
            ),
        }
    }

    /// The log, and which servers have it.
    async fn log(config: &config::Cluster, engine: &Engine, found: &mut Findings) -> Option<Extent> {
        let (extent, LogServers { leader, followers }) = match engine.look().await {
            Ok(looked) => looked,
            Err(why) => {
                let what = format!("the log of the cluster {:?} can't be asked: {why}", config.name);
                let advice = "see to the NATS servers: most of those that have it have to be there";
                found.error("cluster", what, advice);
                return None;
            }
        };
        let there = format!(
            "the cluster {:?} is there (generation {}): its log has {}",
            config.name,
            engine.base().generation,
            counted(extent.records, "record")
        );
        let Some(leader) = leader.filter(|_| !followers.is_empty()) else {
            found.fine("cluster", format!("{there}, on one server"));
            return Some(extent);
        };
        let missing: Vec<&str> = followers
            .iter()
            .filter(|server| server.is_offline || !server.is_current)
            .map(|server| server.name.as_str())
            .collect();
        let servers = followers.len() + 1;
        let led =
            format!("{there}, led by {leader}, whole on {} of {servers} servers", servers - missing.len());
        if missing.is_empty() {
            found.fine("cluster", led);
        } else {
            let advice = "see to these servers: where one more is lost, nothing may be written";
            found.warning("cluster", format!("{led}, but not on {}", missing.join(", ")), advice);
        }
        Some(extent)
    }

    /// Whether the store goes with the log.
    fn store(held: &Held, base: &Manifest, extent: &Extent, until_done: &str, found: &mut Findings) {
        if let Err(error) = knows(base) {
            return found.error("cluster", error.message, until_done);
        }
        let reach = Reach { first: extent.first.0, last: extent.last.0 };
        match (way(held, base, reach), held) {
            (Err(why), _) => found.error("cluster", why, until_done),
            (Ok(Way::Follow), Held::Replica(replica)) => {
                let behind = match reach.last.saturating_sub(replica.at.applied) {
                    0 => "has all its records".to_owned(),
                    behind => {
                        format!("is {} behind, which the daemon catches up with", counted(behind, "record"))
                    }
                };
                let at = grouped(replica.at.applied);
                found.fine(
                    "cluster",
                    format!("the store of this home is of it, at record {at}, and {behind}"),
                );
            }
            (Ok(_), Held::Replica(replica)) => {
                let what = format!(
                    "the store of this home is of generation {} of it: the daemon takes the base of the present one when it \
                     starts",
                    replica.at.generation
                );
                found.fine("cluster", what);
            }
            (Ok(_), _) => {
                let bytes = file_size(base.bytes);
                let what = format!(
                    "the store of this home is empty: the daemon takes the base of the cluster ({bytes}) when it starts"
                );
                found.fine("cluster", what);
            }
        }
    }

    /// Who is heard, and whether this node's name is free.
    async fn nodes(
        config: &config::Cluster,
        site: &Site,
        (generation, is_held): (u64, bool),
        found: &mut Findings,
    ) {
        match site.who_is_there(generation, HEARD_WITHIN).await {
            Ok(heard) if heard.contains(&config.node) && !is_held => found.error(
                "cluster",
                format!("another daemon is there as node {}", config.node),
                "stop that one, or give this one another name by cluster.node",
            ),
            Ok(heard) => {
                let others: Vec<&str> =
                    heard.iter().filter(|node| **node != config.node).map(|node| node.as_str()).collect();
                found.fine(
                    "cluster",
                    match others[..] {
                        [] => "no other daemon of it is heard".to_owned(),
                        _ => format!("daemons of it that are heard: {}", others.join(", ")),
                    },
                );
            }
            Err(why) => found.warning(
                "cluster",
                format!("whether other daemons are there can't be heard: {why}"),
                "see to the NATS servers",
            ),
        }
    }
}
