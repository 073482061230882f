//! What one call of a plugin may use.

use std::time::Duration;

/// What one call of a plugin may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// How long it may run.
    pub timeout: Duration,
    /// The most memory, in mebibytes, its own and what it is handed.
    pub memory_mb: u32,
    /// The most fuel; about one unit a WASM instruction.
    pub fuel: u64,
    /// The most bytes it may answer with.
    pub output_bytes: usize,
    /// The most calls of functions of the host.
    pub host_calls: u32,
    /// The most bytes that the bodies of its HTTP requests and their answers may have together.
    pub http_bytes: usize,
}

impl CallLimits {
    /// No call gets more fuel than this, whatever is configured: time does not bound a module's
    /// start function, so fuel has to (a minute or two of it).
    pub const FUEL_MAX: u64 = 100_000_000_000;
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            memory_mb: 64,
            fuel: 1_000_000_000,
            output_bytes: 1024 * 1024,
            host_calls: 10_000,
            http_bytes: 4 * 1024 * 1024,
        }
    }
}
