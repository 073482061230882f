//! The cast of clawmux: its actors, their messages, and all I/O.
//!
//! | actor | owns |
//! |---|---|
//! | [`Gateway`](gateway) | the supervision tree |
//! | [`Listener`](listener) | the sockets, and how long a connection may live |
//! | [`Connection`](connection) | one socket and one dialect |
//! | [`SessionSupervisor`](session_supervisor) | which sessions are awake, and which one a request is about |
//! | [`Session`](session) | one conversation |
//! | [`Mirror`](mirror) | a session that another daemon of the cluster writes, as far as it is followed here |
//! | [`ProviderSupervisor`](provider_supervisor) | budgets, and who may call a model, and the calls |
//! | [`SandboxSupervisor`](sandbox_supervisor) | which plugins are loaded |
//! | [`Plugin`](plugin) | one module and its instances; what confines them is in [`sandbox`] |
//! | [`Hub`](hub) | who is connected, and what concerns all of them |
//! | [`Devices`](devices) | which devices are paired |
//! | [`AgentSupervisor`](agent_supervisor) | agents that work for sessions, and their teams |
//! | [`Scheduler`](scheduler) | what is done at set times |
//! | [`Files`](files) | what clients put with the daemon and get from it |
//! | [`Tokens`](tokens) | the API keys and JWTs that the daemon gave out |
//! | [`Nodes`](nodes) | clients that offer commands, and what they have been told to do |
//! | [`Bus`](bus) | people who write through adapters on NATS JetStream |
//! | [`Cluster`](cluster) | this daemon's part in a log that several daemons share |
//! | [`Learner`](learner) | facts that are found in what was said |
//! | [`Embedder`](embedder) | vectors of what is remembered, and the search by them |
//! | [`Store`](store) | the log |
//! | [`Admin`](operator) | what only operators ask for |
//! | [`Daemon`](daemon) | how the daemon is as a whole |
//! | [`Configuration`](configuration) | the configuration files |
//!
//! Messages live with the actor that receives them. What serves all actors is in [`runtime`]: who answers
//! which command ([`runtime::dispatch`]), how a client is told ([`runtime::deliver`]), how an actor says how it
//! is ([`runtime::observe`]), how a parent hears of a child's end ([`runtime::supervision`]). What the
//! operating system offers is in [`host`], skills on the disk in [`skills`], the routes of the port in [`http`], requests to other hosts in
//! [`outbound`].

pub mod agent_supervisor;
pub mod bus;
pub mod channel;
pub mod channel_supervisor;
#[cfg(feature = "nats")]
pub mod cluster;
pub mod configuration;
pub mod connection;
pub mod daemon;
pub mod devices;
pub mod embedder;
pub mod files;
pub mod gateway;
pub mod host;
pub mod http;
pub mod hub;
pub mod in_cluster;
pub mod learner;
pub mod listener;
pub mod mcp_server;
pub mod mcp_supervisor;
pub mod mirror;
#[cfg(feature = "nats")]
mod nats;
pub mod nodes;
pub mod operator;
pub mod outbound;
pub mod plugin;
pub mod provider_supervisor;
pub mod runtime;
pub mod sandbox;
pub mod sandbox_supervisor;
pub mod scheduler;
pub mod session;
pub mod session_supervisor;
pub mod skills;
pub mod store;
pub mod tokens;
