//! What can be written to the store: a change that says how the writer applies it.

use std::fmt::Debug;

use actix::{Handler, ResponseFuture};
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::replica::Write;

use super::failure::Failure;
use super::live::Live;
use super::writer::Writer;
use super::{
    AgreeToTools, Append, BeginCall, Forget, ForgetAll, KeepVectors, RecordCall, RecordUsage,
    SpendOnLearning, Store, WriteAgents, WriteChannel, WriteDevices, WriteFile, WriteJobs, WritePluginValue,
    WriteTokens,
};

/// Who makes a change, in a cluster.
#[derive(Debug)]
pub(super) enum MadeBy<'a> {
    /// This daemon alone.
    ThisDaemon,
    /// All of them; of text, which waits for the end of its step, this one until then.
    AllButText(&'a Append),
    /// All of them.
    All(Write),
}

/// A change, which stands beside the table it is about.
pub(super) trait Change: Debug + Send + 'static {
    /// What it counts of the room for changes that wait.
    fn bytes(&self) -> usize;

    /// Who makes it in a cluster, all of whose daemons have the same store.
    fn made_by(&self) -> MadeBy<'_>;

    /// Whether it has to be on the disk before it is acknowledged.
    fn is_durable(&self, _: &Writer) -> bool {
        true
    }

    /// The session among whose changes it keeps its place.
    fn session(&self) -> Option<&SessionKey> {
        None
    }

    /// Whether it is tried once more after it failed alone, and not because of the disk.
    fn is_tried_again(&self) -> bool {
        false
    }

    /// Applies it in the transaction that is open.
    fn apply(&self, writer: &mut Writer, live: &mut Live) -> Result<(), Failure>;
}

/// Changes that are messages to the store.
macro_rules! written {
    ($($change:ty),*) => {$(
        impl Handler<$change> for Store {
            type Result = ResponseFuture<Result<(), Error>>;

            fn handle(&mut self, change: $change, _: &mut Self::Context) -> Self::Result {
                self.log_writer.write(change)
            }
        }
    )*};
}

written!(
    AgreeToTools,
    Append,
    Forget,
    ForgetAll,
    KeepVectors,
    RecordCall,
    RecordUsage,
    BeginCall,
    SpendOnLearning,
    WriteAgents,
    WriteChannel,
    WriteDevices,
    WriteFile,
    WriteJobs,
    WritePluginValue,
    WriteTokens
);
