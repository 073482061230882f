//! A way to call off a tool call.

use std::sync::Arc;

use tokio::sync::watch;

/// Calls off the tool call it was given to. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// One that has not been used.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Calls it off. The call is answered at once; again does nothing.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was called off.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is called off, possibly for ever.
    pub async fn cancelled(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|cancelled| *cancelled).await;
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn every_clone_hears_it_before_and_after() {
        let cancel = Cancel::new();
        let heard = actix::spawn({
            let cancel = cancel.clone();
            async move { cancel.cancelled().await }
        });
        assert!(!cancel.is_cancelled());
        cancel.cancel();
        heard.await.unwrap();
        cancel.cancelled().await;
        assert!(cancel.is_cancelled());
    }
}
