//! What guest code runs in.
//!
//! Nothing here is an actor: the actors are [`SandboxSupervisor`](crate::sandbox_supervisor) and
//! [`Plugin`](crate::plugin). Guest code is hostile until proven otherwise, so it passes these
//! gates:
//!
//! | gate | keeps out |
//! |---|---|
//! | [`source`] | files from elsewhere than the operator said; grants for another module than the one they were written for |
//! | [`module`] | what can't be bounded at run time: unknown imports, huge tables, exotic features |
//! | [`host`] | whatever was not granted |
//! | [`prepare`] | what the runtime would run or make outside of a call |
//! | [`compiler`] | what would take the compiler gigabytes or minutes |
//! | [`cache`] | code that this daemon did not compile |
//! | [`engine`] | more fuel, memory, time or output than a call may have |
//!
//! Guests run on the threads of a [`pool`], never on an arbiter. Those that were made for WASI find as much of it
//! as their runtimes need to start ([`wasi`]).

pub mod cache;
pub mod compiler;
pub mod engine;
pub mod host;
pub mod module;
pub mod pool;
pub mod prepare;
pub mod signing;
pub mod source;
pub mod wasi;

pub use clawmux_core::tools::plugin::CallLimits as Limits;
