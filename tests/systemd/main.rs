//! Life under systemd: the units, what the daemon tells its service manager, and restarts under
//! clients while somebody else holds the sockets. The tests themselves are that somebody; one boots a
//! real systemd in a container.
//!
//! `CLAWMUX_TEST_RESTARTS` is how often the daemon is started anew (10), and `CLAWMUX_TEST_NSPAWN=1`
//! makes a machine where no container can be booted a failure.

#![allow(clippy::print_stderr, reason = "a failed test shows the journal")]
#![expect(clippy::unwrap_used, reason = "a test says why it failed by failing")]

mod container;
mod notify;
mod parent;
mod restarts;
#[path = "../support/mod.rs"]
mod support;
mod units;
