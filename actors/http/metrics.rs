//! `/metrics`: how the daemon is, in figures, for Prometheus and whatever reads its text format.
//!
//! A scrape takes what is counted where it is counted ([`Meters`], the log's figures, the table of
//! connections), and asks nobody for it: so it is answered while sessions or the log are stuck, which
//! is when it is wanted most. Actors that keep figures of their own are asked besides, all at once and
//! for [`TIMEOUT`]; one that does not answer is told as such and its figures are left out.
//!
//! Names end in their units. Sessions, users and connections have no series of their own.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use actix::Recipient;
use clawmux_core::time::Timestamp;
use futures::future::join_all;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::connection::registry::Registry as Connections;
use crate::host::process;
use crate::http::{PROTOCOLS, SOCKET};
use crate::runtime::meters::{Labels, Meters};
use crate::runtime::observe::{Observe, Observed};
use crate::session::Approvals;
use crate::store::LogWriter;

/// What the answer is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long an actor may take to say how it is.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Scrapes under way at once; more are refused.
const SCRAPES_MAX: usize = 4;

/// What is told of what actors say of themselves: which actor, its figure, the name it is told under,
/// and what that is.
const OBSERVED: &[(&str, &str, &str, &str)] = &[
    (
        "provider_supervisor",
        "reserved_tokens",
        "budget_reserved_tokens",
        "Tokens reserved by requests under way",
    ),
    ("provider_supervisor", "day_tokens", "budget_day_tokens", "Tokens spent since midnight, UTC"),
    ("provider_supervisor", "month_tokens", "budget_month_tokens", "Tokens spent in this month, UTC"),
    ("sandbox_supervisor", "plugins", "plugins", "Plugins that are configured"),
    ("sandbox_supervisor", "threads_busy", "plugin_threads_busy", "Threads that run plugins"),
    ("sandbox_supervisor", "jobs_waiting", "plugin_calls_waiting", "Calls of plugins that wait for a thread"),
    (
        "hub",
        "announcements_not_taken",
        "announcements_waiting",
        "Announcements that clients have not taken yet",
    ),
    ("nodes", "connected", "nodes_connected", "Clients that offer commands"),
    ("nodes", "under_way", "node_calls_under_way", "Commands that nodes were told to run"),
    ("devices", "paired", "devices_paired", "Devices that are paired"),
    ("devices", "pending", "devices_pending", "Devices that wait for approval"),
    ("tokens", "valid", "credentials_valid", "API keys and JWTs of the store that let in"),
    ("tokens", "expiring", "credentials_expiring", "Those of them that end within a week"),
    ("crew", "running", "agents_running", "Agents that work for sessions"),
    ("scheduler", "jobs", "jobs", "Jobs that are known"),
    ("scheduler", "running", "jobs_running", "Firings of jobs under way"),
    ("admin", "waiting", "admin_requests_waiting", "Requests of operators that wait for their turn"),
    ("files", "files", "files", "Files that are kept for clients"),
    ("files", "uploads", "file_uploads", "Uploads under way"),
];

/// The same of the bus, where there is one; the last says whether it only grows.
const BUS: &[(&str, &str, &str, bool)] = &[
    ("lag", "bus_lag", "Messages in the stream that were not delivered yet", false),
    ("ack_pending", "bus_in_flight", "Messages that were delivered and not acknowledged", false),
    ("held", "bus_held", "Those of them that are held until their peer's turn comes", false),
    ("outbox", "bus_outbox", "Answers that are yet to be published, as far as they are in memory", false),
    ("dead_letters", "bus_dead_letters", "Messages in the stream of dead letters", false),
    ("received_total", "bus_deliveries", "Messages that were delivered", true),
    ("redelivered_total", "bus_redeliveries", "Those of them that were delivered before", true),
    ("prompted_total", "bus_prompts", "Messages whose prompt is durable", true),
    ("refused_total", "bus_refusals", "Messages that were refused", true),
    ("published_total", "bus_answers", "Answers that were published", true),
    ("publish_failures_total", "bus_publish_failures", "Attempts to publish an answer that failed", true),
    ("disconnects_total", "bus_disconnects", "How often the connection was lost", true),
];

/// The same of the cluster, where there is one.
const CLUSTER: &[(&str, &str, &str, bool)] = &[
    ("nodes", "cluster_nodes", "Daemons that are heard, this one among them", false),
    ("slots", "cluster_slots", "Of the 256 slots, those that this daemon owns", false),
    ("behind", "cluster_replica_lag_records", "Records of the log that the store does not have yet", false),
    ("stalled", "cluster_stalled", "Subjects of the log that take no record for 10 s", false),
    ("written", "cluster_records_written", "Records that were written", true),
    ("acks", "cluster_appends", "Appends that the log acknowledged", true),
    ("transient", "cluster_refusals_for_a_moment", "Appends that were refused for a moment", true),
    ("refused", "cluster_refusals", "Appends that were refused because an expectation did not hold", true),
    (
        "unknown",
        "cluster_unknown_outcomes",
        "Appends of which it had to be found out what became of them",
        true,
    ),
    ("followed_anew", "cluster_followed_anew", "How often the log was followed anew", true),
    ("slots_gained", "cluster_slots_gained", "Slots that this daemon took over", true),
    ("slots_lost", "cluster_slots_lost", "Slots that another daemon took", true),
    ("connection_losses", "cluster_disconnects", "How often the connection was lost", true),
];

/// Those who can say how the daemon is.
#[derive(Clone)]
pub struct Metrics(Arc<Sources>);

/// Where figures come from.
pub struct Sources {
    /// What is counted by those who do it.
    pub meters: Meters,
    /// The log.
    pub log_writer: LogWriter,
    /// Which calls wait for approval.
    pub approvals: Approvals,
    /// Actors with figures of their own, by their names.
    pub actors: Vec<(&'static str, Recipient<Observe>)>,
    /// Version of clawmux.
    pub version: &'static str,
    /// When the daemon started.
    pub started: Timestamp,
    /// Scrapes under way.
    pub scrapes: AtomicUsize,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("meters", &self.0.meters).finish_non_exhaustive()
    }
}

/// Counts one scrape while it is there.
struct Scrape(Arc<Sources>);

impl Drop for Scrape {
    fn drop(&mut self) {
        self.0.scrapes.fetch_sub(1, Relaxed);
    }
}

/// What is asked of the connections.
pub(crate) struct Door<'a> {
    pub(crate) connections: &'a Connections,
    pub(crate) ready: bool,
    pub(crate) draining: bool,
}

impl Metrics {
    /// Of these sources.
    pub fn new(sources: Sources) -> Self {
        Self(Arc::new(sources))
    }

    /// All of it as text; none where too many ask at once. Takes [`TIMEOUT`] at most, and a little.
    pub(crate) async fn text(&self, door: Door<'_>) -> Option<String> {
        let before = self.0.scrapes.fetch_add(1, Relaxed);
        let _scrape = Scrape(self.0.clone());
        if before >= SCRAPES_MAX {
            return None;
        }
        let begun = Instant::now();
        let asked = self.0.actors.iter().map(|(name, actor)| async move {
            (*name, within(TIMEOUT, actor.send(Observe)).await.and_then(Result::ok))
        });
        // The folder of descriptors may be long.
        let process = actix_web::web::block(process::look);
        let (observed, process) = futures::join!(join_all(asked), within(TIMEOUT, process));
        let mut registry = Registry::with_prefix("clawmux");
        self.build(&mut registry);
        if let Some(Ok(process)) = process {
            of_process(&process, &mut registry);
        }
        of_connections(&door, &mut registry);
        self.0.meters.register(&mut registry);
        self.0.log_writer.figures().register(&mut registry);
        let waiting = ConstGauge::new(self.0.approvals.len() as u64);
        registry.register("approvals_waiting", "Calls of tools that wait for somebody's approval", waiting);
        of_actors(&observed, &mut registry);
        let took = ConstGauge::new(begun.elapsed().as_secs_f64());
        registry.register_with_unit("scrape_duration", "How long this answer took", Unit::Seconds, took);
        let mut text = String::new();
        // A String takes everything.
        text::encode(&mut text, &registry).ok()?;
        Some(text)
    }

    fn build(&self, registry: &mut Registry) {
        let version = [("version", self.0.version)];
        registry.register("build", "Which clawmux this is", Info::new(version));
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds since 1970 fit for a few hundred thousand years"
        )]
        let started = self.0.started.as_millis() as f64 / 1000.0;
        let help = "When the daemon started, since 1970";
        registry.register_with_unit("start_time", help, Unit::Seconds, ConstGauge::new(started));
    }
}

/// The answer, if it comes in time.
async fn within<T>(patience: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(patience, answer).await.ok()
}

fn of_process(process: &process::Process, registry: &mut Registry) {
    let memory = ConstGauge::new(process.resident_bytes);
    registry.register_with_unit("process_resident_memory", "Memory in use", Unit::Bytes, memory);
    let cpu = ConstCounter::new(process.cpu.as_secs_f64());
    registry.register_with_unit("process_cpu", "Time the processors worked for it", Unit::Seconds, cpu);
    registry.register("process_open_fds", "Open file descriptors", ConstGauge::new(process.open_fds));
    registry.register("process_max_fds", "The most of them there may be", ConstGauge::new(process.max_fds));
    registry.register("process_threads", "Threads", ConstGauge::new(process.threads));
}

fn of_connections(door: &Door<'_>, registry: &mut Registry) {
    let links = door.connections.links();
    let by_protocol = Family::<Labels<1>, Gauge>::default();
    for protocol in PROTOCOLS.iter().chain([&SOCKET]) {
        by_protocol.get_or_create(&[("protocol", protocol.name.to_owned())]).set(0);
    }
    for link in &links {
        // One without has not upgraded yet.
        let protocol = link.dialect().unwrap_or("http");
        by_protocol.get_or_create(&[("protocol", protocol.to_owned())]).inc();
    }
    registry.register("connections", "Connections, by protocol", by_protocol);
    let closed = Family::<Labels<1>, Counter>::default();
    for (cause, count) in door.connections.closed() {
        closed.get_or_create(&[("cause", cause.to_owned())]).inc_by(count);
    }
    registry.register("connections_closed", "Connections that the daemon closed, by why", closed);
    let accepted = ConstCounter::new(door.connections.accepted());
    registry.register("connections_accepted", "Connections that were accepted", accepted);
    let mut gauge = |name: &str, help: &str, value: usize| {
        registry.register(name, help, ConstGauge::new(value as u64));
    };
    let before = door.connections.unauthenticated();
    gauge("connections_unauthenticated", "Connections before the end of their handshake", before);
    gauge("connections_max", "The most connections there may be", door.connections.max());
    gauge("ready", "1 = connections are taken", usize::from(door.ready));
    gauge("draining", "1 = new work is refused", usize::from(door.draining));
    let unsent: usize = links.iter().map(|link| link.buffered_bytes()).sum();
    let help = "What was written to connections and not taken by their sockets yet";
    registry.register_with_unit("connections_unsent", help, Unit::Bytes, ConstGauge::new(unsent as u64));
}

fn of_actors(observed: &[(&'static str, Option<Observed>)], registry: &mut Registry) {
    let answers = Family::<Labels<1>, Gauge>::default();
    for (actor, told) in observed {
        answers.get_or_create(&[("actor", (*actor).to_owned())]).set(i64::from(told.is_some()));
    }
    registry.register("actor_answers", "1 = the actor says how it is, 0 = it is stuck or gone", answers);
    for (of, figure, name, help) in OBSERVED {
        let told = observed.iter().find(|(actor, _)| actor == of).and_then(|(_, told)| told.as_ref());
        if let Some(value) = told.and_then(|told| told.state[*figure].as_u64()) {
            registry.register(*name, *help, ConstGauge::new(value));
        }
    }
    of_providers(observed, registry);
    of_bus(observed, registry);
    of_cluster(observed, registry);
}

fn of_cluster(observed: &[(&'static str, Option<Observed>)], registry: &mut Registry) {
    let told = observed.iter().find(|(actor, _)| *actor == "cluster");
    let Some(Observed { state, .. }) = told.and_then(|(_, told)| told.as_ref()) else { return };
    figures(CLUSTER, state, registry);
    let is_up = u64::from(state["connected"] == true);
    registry.register("cluster_connected", "1 = a server is connected", ConstGauge::new(is_up));
    if let Some(bytes) = state["log_bytes"].as_u64() {
        let help = "Size of the log on each server";
        registry.register_with_unit("cluster_log", help, Unit::Bytes, ConstGauge::new(bytes));
    }
    if let Some(took) = state["ack_us"].as_u64() {
        let took = ConstCounter::new(Duration::from_micros(took).as_secs_f64());
        let help = "How long acknowledged appends took in all";
        registry.register_with_unit("cluster_appends_duration", help, Unit::Seconds, took);
    }
}

/// Enters what an actor says of itself.
fn figures(of: &'static [(&str, &str, &str, bool)], state: &serde_json::Value, registry: &mut Registry) {
    for (figure, name, help, is_counter) in of {
        match state[*figure].as_u64() {
            Some(value) if *is_counter => registry.register(*name, *help, ConstCounter::new(value)),
            Some(value) => registry.register(*name, *help, ConstGauge::new(value)),
            None => {}
        }
    }
}

fn of_bus(observed: &[(&'static str, Option<Observed>)], registry: &mut Registry) {
    let told = observed.iter().find(|(actor, _)| *actor == "channel_supervisor");
    let Some(told) = told.and_then(|(_, told)| told.as_ref()) else { return };
    let Some(bus) = told.children.iter().find(|child| child.state.get("bus").is_some()) else { return };
    let is_up = u64::from(bus.state["bus"] == "running");
    registry.register("bus_up", "1 = messages of the bus are taken", ConstGauge::new(is_up));
    figures(BUS, &bus.state, registry);
}

/// The calls of each provider. There are as many as the configuration names.
fn of_providers(observed: &[(&'static str, Option<Observed>)], registry: &mut Registry) {
    let told = observed.iter().find(|(actor, _)| *actor == "provider_supervisor");
    let Some(told) = told.and_then(|(_, told)| told.as_ref()) else { return };
    let list = |name: &str| told.state[name].as_array().into_iter().flatten();
    for (figure, name, help) in [
        ("running", "provider_calls_running", "Requests to providers that are under way"),
        ("waiting", "provider_calls_waiting", "Requests that wait for a place at their provider"),
        ("max", "provider_calls_max", "Requests to providers that may be under way at once"),
    ] {
        let by_provider = Family::<Labels<1>, Gauge>::default();
        for calls in list("calls") {
            let (provider, value) = (calls["provider"].as_str().unwrap_or_default(), calls[figure].as_i64());
            let gauge = by_provider.get_or_create(&[("provider", provider.to_owned())]);
            gauge.set(value.unwrap_or(0));
        }
        registry.register(name, help, by_provider);
    }
    let left_alone = Family::<Labels<1>, Gauge>::default();
    for calls in list("calls") {
        let provider = calls["provider"].as_str().unwrap_or_default();
        let count = list("left_alone").filter(|of| of["provider"] == provider).count();
        let gauge = left_alone.get_or_create(&[("provider", provider.to_owned())]);
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let help = "Models and keys of a provider that are left alone because they fail";
    registry.register("provider_left_alone", help, left_alone);
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix::{Actor, Context, Handler, ResponseFuture};

    use crate::store::Store;

    /// An actor that is asked and does not answer.
    struct Stuck;

    impl Actor for Stuck {
        type Context = Context<Self>;
    }

    impl Handler<Observe> for Stuck {
        type Result = ResponseFuture<Observed>;

        fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Self::Result {
            Box::pin(std::future::pending())
        }
    }

    /// An actor that answers.
    struct Well;

    impl Actor for Well {
        type Context = Context<Self>;
    }

    impl Handler<Observe> for Well {
        type Result = Observed;

        fn handle(&mut self, _: Observe, _: &mut Self::Context) -> Observed {
            Observed::leaf("hub", serde_json::json!({ "announcements_not_taken": 7 }))
        }
    }

    #[actix::test]
    async fn a_scrape_is_answered_while_actors_are_stuck() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path().join("clawmux.db")).await.unwrap();
        let metrics = Metrics::new(Sources {
            meters: Meters::default(),
            log_writer: store.log_writer(),
            approvals: Approvals::default(),
            actors: vec![
                ("store", Stuck.start().recipient()),
                ("crew", Stuck.start().recipient()),
                ("hub", Well.start().recipient()),
            ],
            version: "1",
            started: Timestamp::from_millis(1500),
            scrapes: AtomicUsize::new(0),
        });
        let connections = Connections::new(1, 1);
        let door = || Door { connections: &connections, ready: true, draining: false };
        let scrapes: Vec<_> = (0..=SCRAPES_MAX).map(|_| metrics.text(door())).collect();
        let all = tokio::time::timeout(Duration::from_secs(60), join_all(scrapes)).await.unwrap();
        let told: Vec<String> = all.into_iter().flatten().collect();
        assert_eq!(told.len(), SCRAPES_MAX, "and not more at once");
        for line in [
            r#"clawmux_actor_answers{actor="store"} 0"#,
            r#"clawmux_actor_answers{actor="hub"} 1"#,
            "clawmux_announcements_waiting 7",
            "clawmux_log_writable 1",
            "clawmux_start_time_seconds 1.5",
        ] {
            assert!(told[0].lines().any(|told| told == line), "{line}: {}", told[0]);
        }
        assert!(!told[0].contains("clawmux_agents_running"), "of one that is stuck nothing is known");
        assert!(metrics.text(door()).await.is_some(), "those that are over make room");
    }
}
