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
    /// Whether what others decide does not come.
    cut_off: watch::Receiver<bool>,
}

impl Health {
    pub(super) fn new(figures: &Figures) -> Self {
        let (writer, cluster) = (figures.fault.subscribe(), figures.away.subscribe());
        Self { writer, cluster, cut_off: figures.cut_off.subscribe() }
    }

    /// Why nothing can be written; none where it can.
    pub fn fault(&self) -> Option<Error> {
        self.writer.borrow().clone().or_else(|| self.cluster.borrow().clone())
    }

    /// Whether this daemon is cut off from its cluster: what others decide does not come.
    pub fn is_cut_off(&self) -> bool {
        *self.cut_off.borrow()
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
        Self {
            writer: watch::channel(None).1,
            cluster: watch::channel(None).1,
            cut_off: watch::channel(false).1,
        }
    }
}
