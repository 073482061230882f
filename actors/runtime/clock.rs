//! What time it is: the one place that asks the operating system.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clawmux_core::time::Timestamp;

/// Now, as milliseconds since the epoch. Follows the monotonic clock from the first call on, so
/// that deadlines hold when the wall clock is set.
pub fn now() -> Timestamp {
    static START: OnceLock<(Instant, Timestamp)> = OnceLock::new();
    let (instant, wall) = START.get_or_init(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), Timestamp::default().after(wall))
    });
    wall.after(instant.elapsed())
}

/// The time of the wall clock, which may be set: for what others date by theirs, such as the end of
/// a JWT.
pub fn wall() -> Timestamp {
    Timestamp::default().after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The time zone of this host, by its IANA name; UTC where it names none.
pub fn zone() -> String {
    jiff::tz::TimeZone::system().iana_name().unwrap_or("UTC").to_owned()
}

/// Fresh random bytes from the operating system.
///
/// # Panics
/// Where the operating system has no randomness to give; nothing safe can be done then.
pub fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
