//! The daemons of a test, as its clients know them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::line::{Line, Stop};
use crate::support::daemon::get;

/// How long a connection may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// All of them: names and addresses.
pub struct Machines(pub Vec<(&'static str, SocketAddr)>);

impl Machines {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// What one is called.
    pub fn name(&self, machine: usize) -> &str {
        self.0[machine].0
    }

    /// A connection of a client to one.
    pub async fn line(&self, machine: usize) -> Result<Line, Stop> {
        let open = Line::open(self.0[machine].1);
        timeout(ANSWER_MAX, open).await.unwrap_or_else(|_| Err(Stop::Lost("no hello".to_owned())))
    }

    /// Whether one says that it is ready.
    pub async fn ready(&self, machine: usize) -> bool {
        let address = self.0[machine].1;
        // The model speaks on this thread.
        let asked = tokio::task::spawn_blocking(move || get(address, "/readyz").0 == 200);
        asked.await.unwrap_or(false)
    }

    /// Whether all of them do.
    pub async fn are_ready(&self) -> bool {
        for machine in 0..self.count() {
            if !self.ready(machine).await {
                return false;
            }
        }
        true
    }
}
