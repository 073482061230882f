//! The cast of clawmux: its actors, their messages, and all I/O.

pub mod admin;
mod ask;
pub mod clock;
pub mod connection;
pub mod deliver;
pub mod gateway;
pub mod http;
pub mod hub;
pub mod listener;
pub mod observe;
pub mod plugin;
pub mod provider;
pub mod provider_supervisor;
pub mod rates;
pub mod sandbox;
pub mod sandbox_supervisor;
pub mod session;
pub mod session_supervisor;
pub mod store;
pub mod supervision;
