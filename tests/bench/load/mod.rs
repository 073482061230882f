//! The load: a model provider, and clients of every protocol. Both are this process, on few threads, so that the
//! cores are left to what is measured.

pub mod dialect;
pub mod model;
pub mod pings;
pub mod poll;
pub mod streams;
pub mod wire;

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::Instant;

/// Microseconds since the first call.
pub fn clock_us() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

/// A name that was not given before.
pub fn fresh_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    format!("s{}", GIVEN.fetch_add(1, Ordering::Relaxed))
}

/// A port at which as many may come at once as any row has coming.
pub fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // SAFETY: listen(2) on a socket that is open takes no memory.
    let longer = unsafe { libc::listen(listener.as_raw_fd(), 4096) };
    assert_eq!(longer, 0, "it listens");
    listener
}
