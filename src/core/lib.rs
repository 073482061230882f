//! The pure half of clawmux.
//!
//! Everything here is a function of its arguments: no actor, no socket, no file, no clock and no
//! source of randomness. What time it is and which random bytes to use come in as arguments, so
//! that every rule of the product can be tested without waiting and replayed exactly.
//!
//! | module | what it knows |
//! |---|---|
//! | [`ids`], [`time`], [`error`], [`scope`], [`principal`], [`target`], [`area`], [`swappable`], [`hex`] | the words everything else is said in |
//! | [`prompt`] | what a prompt brings along, and how it is to be answered |
//! | [`tools`] | manifests and grants of plugins, commands of nodes, what is built in |
//! | [`limits`] | what bounds things, and who gives way |
//! | [`memory`] | what is remembered and kept for an owner, apart from conversations |
//! | [`learning`] | what of a conversation is remembered |
//! | [`access`] | who is let in, and with which scopes |
//! | [`provider`] | the wire formats of model providers, and budgets |
//! | [`conversation`] | one conversation: its event log, its queue, its run, who follows it |
//! | [`bus`] | messages and answers on the bus, and the order of a peer's |
//! | [`replica`] | the changes of a store as records, which several daemons apply alike |
//! | [`cluster`] | several daemons over one log: who owns a session, and how that is fenced |
//! | [`schedule`] | what is done without anybody asking, and when it is due |
//! | [`agents`] | agents put to work for a session, alone and together |
//! | [`config`] | the configuration: raw, then validated |
//! | [`daemon`] | the daemon as a whole |
//! | [`request`] | what a client can ask, what it is answered, and how both are tied |
//! | [`dialect`] | the protocols: frames in, actions out |

#![forbid(unsafe_code)]

pub mod access;
pub mod agents;
pub mod area;
pub mod bus;
pub mod channel;
pub mod cluster;
pub mod config;
pub mod conversation;
pub mod daemon;
pub mod dialect;
pub mod error;
pub mod glob;
pub mod hex;
pub mod ids;
pub mod learning;
pub mod limits;
pub mod memory;
pub mod principal;
pub mod prompt;
pub mod provider;
pub mod replica;
pub mod request;
pub mod schedule;
pub mod scope;
pub mod skill;
pub mod swappable;
pub mod target;
pub mod time;
pub mod tools;
