//! What guest code runs in.
//!
//! Nothing here is an actor: the actors are [`SandboxSupervisor`](crate::sandbox_supervisor) and
//! [`Plugin`](crate::plugin). Guest code is hostile until proven otherwise, so it passes four
//! gates:
//!
//! | gate | keeps out |
//! |---|---|
//! | [`source`] | files from elsewhere than the operator said; grants for another module than the one they were written for |
//! | [`module`] | what can't be bounded at run time: unknown imports, huge tables, exotic features |
//! | [`host`] | whatever was not granted |
//! | [`compiler`] | what would take the compiler gigabytes or minutes |
//! | [`cache`] | code that this daemon did not compile |
//! | [`engine`] | more fuel, memory, time or output than a call may have |
//!
//! Guests run on the threads of a [`pool`], never on an arbiter. WASI is off for good.

pub mod cache;
pub mod compiler;
pub mod engine;
pub mod host;
pub mod module;
pub mod pool;
pub mod source;

use std::time::Duration;

/// What one call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may run.
    pub timeout: Duration,
    /// The most memory, in mebibytes, its own and what it is handed.
    pub memory_mb: u32,
    /// The most fuel; about one unit a WASM instruction.
    pub fuel: u64,
}

impl Limits {
    /// No call gets more fuel than this, whatever is configured: time does not bound a module's
    /// start function, so fuel has to (a minute or two of it).
    pub const FUEL_MAX: u64 = 100_000_000_000;
}

impl Default for Limits {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5), memory_mb: 64, fuel: 1_000_000_000 }
    }
}
