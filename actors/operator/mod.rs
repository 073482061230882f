//! What operators ask of the daemon.

mod admin;
mod plugins;
mod sessions;
mod unattended;

pub use admin::{Admin, Begin, Daemon, Drain, GetInfo};
pub use unattended::{read_without_daemon, tokens_without_daemon};
