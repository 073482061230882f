//! The cast of clawmux: its actors, their messages, and all I/O.

pub mod admin;
pub mod clock;
pub mod deliver;
pub mod observe;
pub mod provider;
pub mod provider_supervisor;
pub mod store;
