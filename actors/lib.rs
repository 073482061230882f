//! The cast of clawmux: its actors, their messages, and all I/O.
//!
//! | actor | owns |
//! |---|---|
//! | [`Gateway`](gateway) | the supervision tree |
//! | [`Listener`](listener) | the sockets, and how long a connection may live |
//! | [`Connection`](connection) | one socket and one dialect |
//! | [`SessionSupervisor`](session_supervisor) | which sessions are awake, and which one a request is about |
//! | [`Session`](session) | one conversation |
//! | [`ProviderSupervisor`](provider_supervisor) | budgets, and who may call a model; the calls are in [`provider`] |
//! | [`SandboxSupervisor`](sandbox_supervisor) | which plugins are loaded |
//! | [`Plugin`](plugin) | one module and its instances; what confines them is in [`sandbox`] |
//! | [`Hub`](hub) | who is connected, and what concerns all of them |
//! | [`Devices`](devices) | which devices are paired |
//! | [`AgentSupervisor`](crew) | agents that work for sessions, and their teams |
//! | [`Scheduler`](scheduler) | what is done at set times |
//! | [`Files`](files) | what clients put with the daemon and get from it |
//! | [`Tokens`](tokens) | the API keys and JWTs that the daemon gave out |
//! | [`Nodes`](nodes) | clients that offer commands, and what they have been told to do |
//! | [`Store`](store) | the log |
//! | [`Admin`](operator) | what only operators ask for |
//! | [`Daemon`](daemon) | how the daemon is as a whole |
//! | [`Configuration`](configuration) | the configuration files |
//!
//! Messages live with the actor that receives them. What they share: who answers which command
//! ([`dispatch`]), how a client is told ([`deliver`]), how an actor says how it is ([`observe`]), how a parent hears of a child's end
//! ([`supervision`]), what time it is ([`clock`]), what is counted ([`meters`], told by [`metrics`]), which
//! sockets were bound for the daemon ([`activation`]), whose home it is ([`bound`]), who may use its socket
//! ([`group`]), whose sockets lead to it ([`socket_owner`]), what is told of who is not let in ([`strangers`]).

pub mod activation;
pub mod arbiters;
mod ask;
pub mod bound;
pub mod clock;
pub mod configuration;
pub mod connection;
pub mod control_ui;
pub mod crew;
pub mod daemon;
pub mod daemon_log;
pub mod deliver;
pub mod devices;
pub mod dispatch;
pub mod files;
pub mod gateway;
pub mod group;
pub mod http;
pub mod hub;
pub mod lane;
mod line;
pub mod listener;
pub mod log_filter;
mod machine;
pub mod memory;
pub mod meters;
pub mod metrics;
pub mod nodes;
pub mod observe;
pub mod operator;
pub mod plugin;
mod process;
pub mod provider;
pub mod provider_supervisor;
pub mod rates;
pub mod regular_file;
pub mod sandbox;
pub mod sandbox_supervisor;
pub mod scheduler;
pub mod session;
pub mod session_supervisor;
pub mod socket_owner;
pub mod store;
pub mod strangers;
pub mod supervision;
pub mod tokens;
