//! The daemon and its commands from outside, as they ship: over real sockets, in every protocol, on a
//! terminal, on disks that fail. Each module says what it asks.
//!
//! Tests that need a program beyond a Rust and a C compiler ask [`support::tools`] for it.

#![allow(unreachable_pub, reason = "a test exports nothing")]
#![allow(clippy::unwrap_used, reason = "a test says why it failed by failing")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "some tests print what they measured")]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod agent_tools;
mod allocations;
mod approvals;
mod attach;
mod budgets;
mod built_in;
#[cfg(feature = "nats")]
mod bus;
mod channels;
mod chat;
mod cli;
#[cfg(feature = "nats")]
mod cluster;
#[cfg(feature = "nats")]
mod cluster_agents;
#[cfg(feature = "nats")]
mod cluster_commands;
#[cfg(feature = "nats")]
mod cluster_cut_off;
#[cfg(feature = "nats")]
mod cluster_doctor;
#[cfg(feature = "nats")]
mod cluster_files;
#[cfg(feature = "nats")]
mod cluster_jobs;
#[cfg(feature = "nats")]
mod cluster_large;
#[cfg(feature = "nats")]
mod cluster_majority;
#[cfg(feature = "nats")]
mod cluster_power;
#[cfg(feature = "nats")]
mod cluster_sessions;
#[cfg(feature = "nats")]
mod cluster_verify;
#[cfg(feature = "nats")]
mod cluster_wire;
mod commands;
mod conformance;
mod context;
mod control_ui;
mod credentials;
mod crossing;
mod devices;
mod dialects;
mod disk;
mod doctor;
mod doors;
mod embeddings;
mod faults;
mod files;
mod flood;
mod health;
mod hostile;
mod jobs;
mod keeper;
mod learning;
mod limits;
mod mcp;
mod memory;
mod metrics;
mod newcomers;
mod nodes;
mod openclaw;
mod operator;
mod outside;
mod owners;
mod peers;
mod plugins;
mod power;
mod provider_kinds;
mod provider_places;
mod providers;
mod quotas;
mod reference;
mod reload;
mod root;
mod shim;
mod skills;
mod slow;
mod socket;
mod story;
mod teams;
mod terminal;
mod tidy;
mod transport;
mod unfinished;
mod upgrade;
#[cfg(not(feature = "nats"))]
mod without_nats;
mod wundr;
mod xeno;
