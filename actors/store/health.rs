//! Whether the log can be written, for those who have to know without asking it.

use clawmux_core::error::Error;
use tokio::sync::watch;

/// Whether the log can be written. Cheap to clone and to look at, from any thread.
#[derive(Clone, Debug)]
pub struct Health(watch::Receiver<Option<Error>>);

impl Health {
    pub(super) fn new(fault: &watch::Sender<Option<Error>>) -> Self {
        Self(fault.subscribe())
    }

    /// Why nothing can be written; none where it can.
    pub fn fault(&self) -> Option<Error> {
        self.0.borrow().clone()
    }

    /// Waits until the log can be written, or is closed.
    pub async fn restored(mut self) {
        // An error means that its store is gone.
        let _ = self.0.wait_for(Option::is_none).await;
    }
}

impl Default for Health {
    /// Of a log that can always be written.
    fn default() -> Self {
        Self(watch::channel(None).1)
    }
}
