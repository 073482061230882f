//! Whether the log can be written, for those who have to know without asking it.

use clawmux_core::error::Error;
use tokio::sync::watch;

use super::Figures;

/// Whether the log can be written. Cheap to clone and to look at, from any thread.
#[derive(Clone, Debug)]
pub struct Health {
    /// Why the writer can't write.
    writer: watch::Receiver<Option<Error>>,
    /// Why the cluster can't.
    cluster: watch::Receiver<Option<Error>>,
}

impl Health {
    pub(super) fn new(figures: &Figures) -> Self {
        Self { writer: figures.fault.subscribe(), cluster: figures.away.subscribe() }
    }

    /// Why nothing can be written; none where it can.
    pub fn fault(&self) -> Option<Error> {
        self.writer.borrow().clone().or_else(|| self.cluster.borrow().clone())
    }

    /// Waits until the log can be written, or is closed.
    pub async fn restored(mut self) {
        while self.fault().is_some() {
            let writer = self.writer.wait_for(Option::is_none).await.is_err();
            let cluster = self.cluster.wait_for(Option::is_none).await.is_err();
            // Its store is gone.
            if writer || cluster {
                return;
            }
        }
    }
}

impl Default for Health {
    /// Of a log that can always be written.
    fn default() -> Self {
        Self { writer: watch::channel(None).1, cluster: watch::channel(None).1 }
    }
}
