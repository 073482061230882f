//! What tests of the whole daemon share: a daemon of their own, and clients with a deadline.
//!
//! Every daemon has its own home and its own port; every wait ends after [`TIMEOUT`] with what was
//! seen until then. Nothing here sleeps to wait, but for polling a condition that has no event.

pub mod circles;
pub mod client;
pub mod compiled;
pub mod daemon;
pub mod guest;
pub mod lines;
#[cfg(feature = "nats")]
pub mod nats_wire;
pub mod openclaw;
pub mod pace;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod recaller;
pub mod running;
pub mod socket;
pub mod terminal;
pub mod tools;
pub mod upstream;
pub mod wundr;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: far longer than it ever takes.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// What is waited for: that something holds, or that there is something.
pub trait Condition {
    /// What there is then.
    type Found;

    /// It, once it is so.
    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Where nobody listens. A port of 127.0.0.1 that was free a moment ago may be another test's by now.
pub const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 99)), 9);

/// Polls until `condition` holds or gives something.
///
/// # Panics
/// After [`TIMEOUT`], naming `what`.
pub fn eventually<C: Condition>(what: &str, mut condition: impl FnMut() -> C) -> C::Found {
    let start = Instant::now();
    loop {
        if let Some(found) = condition().found() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for what another thread makes happen.
///
/// # Panics
/// After [`TIMEOUT`], naming `what`.
pub fn wait_for<T>(what: &str, future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    match runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await }) {
        Ok(output) => output,
        Err(_) => panic!("waited {TIMEOUT:?} for {what}"),
    }
}
