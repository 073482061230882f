//! Life under systemd: the units, what the daemon tells its service manager, and restarts under
//! clients while somebody else holds the sockets. The tests themselves are that somebody; one boots a
//! real systemd in a container.
//!
//! `CLAWMUX_TEST_RESTARTS` is how often the daemon is started anew (10).

#![allow(unreachable_pub, reason = "a test exports nothing")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a failed test shows the journal")]
#![allow(clippy::unwrap_used, reason = "a test says why it failed by failing")]

mod container;
mod notify;
mod parent;
mod restarts;
#[allow(unused, reason = "the crate `it` uses all of it")]
#[path = "../support/mod.rs"]
mod support;
mod units;
