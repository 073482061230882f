//! Running the daemon: in the foreground, or inside another command.
//!
//! Not wired to the `Gateway` actor yet: both say so.

use crate::exit::{FAILED, Failure};
use crate::settings::Settings;

/// `clawmux serve`: runs until SIGTERM or Ctrl-C.
///
/// # Errors
/// Where it can't start.
pub(crate) fn serve(_settings: Settings) -> Result<(), Failure> {
    Err(Failure::new(FAILED, "serve is not there yet"))
}

/// A daemon inside this process.
#[derive(Debug)]
pub(crate) struct Embedded {
    /// Its exoclaw WebSocket.
    pub(crate) url: String,
}

impl Embedded {
    /// Starts one on a free port of loopback. Called within the actix system of the command.
    ///
    /// # Errors
    /// Where it can't start.
    pub(crate) async fn start(_settings: &Settings) -> Result<Self, Failure> {
        Err(Failure::new(
            FAILED,
            "no daemon runs (start one with `clawmux serve`), and an embedded one is not there yet",
        ))
    }

    /// Stops it: what it acknowledged is on disk afterwards.
    pub(crate) async fn stop(self) {}
}
