//! Writing down what happens in a channel: nothing goes on before it is written.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use clawmux_core::error::Error;
use tokio::time::sleep;

use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::store::{ChannelChange, Store, WriteChannel};

/// The pause after something could not be written; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The part of the store that is a channel's.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) channel: Arc<str>,
    pub(crate) store: Addr<Store>,
}

impl Ledger {
    /// Writes it in one transaction.
    ///
    /// # Errors
    /// As [`WriteChannel`]'s.
    pub(crate) async fn try_write(&self, changes: Vec<ChannelChange>) -> Result<(), Error> {
        let channel = self.channel.to_string();
        ask(&self.store, WriteChannel { channel, now: clock::now(), changes }).await.flatten()
    }

    /// Writes it in one transaction, however often that has to be tried. `failed` is told why it was not written.
    pub(crate) async fn write(&self, changes: Vec<ChannelChange>, failed: impl Fn(&str)) {
        let mut pause = PAUSE;
        while let Err(error) = self.try_write(changes.clone()).await {
            failed(&error.message);
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
