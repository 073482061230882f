//! Whether the log's threads answer at all.

use actix::{Handler, Message, ResponseFuture};
use clawmux_core::error::{Error, ErrorCode};

use super::Store;
use super::change::{Change, MadeBy};
use super::failure::Failure;
use super::live::Live;
use super::writer::Writer;

/// Asks both threads of the log for an answer, of whatever kind: that a full disk refuses writes is
/// one, that a disk never comes back is none. It waits its turn behind what waits already.
///
/// Errors: `Timeout` where one does not answer, `Unavailable` where too much waits or it is closed.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct Probe;

/// Changes nothing.
impl Change for Probe {
    fn bytes(&self) -> usize {
        0
    }

    fn made_by(&self) -> MadeBy<'_> {
        MadeBy::ThisDaemon
    }

    fn is_durable(&self, _: &Writer) -> bool {
        false
    }

    fn apply(&self, _: &mut Writer, _: &mut Live) -> Result<(), Failure> {
        Ok(())
    }
}

impl Handler<Probe> for Store {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, _: Probe, _: &mut Self::Context) -> Self::Result {
        let (writer, reader) = (self.log_writer.write(Probe), self.ask(None, |_| Ok(())));
        let health = self.log_writer.health();
        Box::pin(async move {
            let (written, read) = futures::join!(writer, reader);
            match written {
                // The writer itself says that it can't write now.
                Err(error) if error.code != ErrorCode::Timeout && health.fault().is_some() => {}
                written => written?,
            }
            read
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use actix::Actor;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    /// Has the writer stand still until the sender is dropped.
    #[derive(Debug, Message)]
    #[rtype(result = "()")]
    pub(crate) struct Stick(pub(crate) Receiver<()>);

    impl Handler<Stick> for Store {
        type Result = ();

        fn handle(&mut self, Stick(until): Stick, _: &mut Self::Context) {
            drop(self.log_writer.write(Stuck(Mutex::new(until))));
        }
    }

    /// A disk that does not answer until the sender is dropped.
    #[derive(Debug)]
    struct Stuck(Mutex<Receiver<()>>);

    impl Change for Stuck {
        fn bytes(&self) -> usize {
            0
        }

        fn made_by(&self) -> MadeBy<'_> {
            MadeBy::ThisDaemon
        }

        fn is_durable(&self, _: &Writer) -> bool {
            false
        }

        fn apply(&self, _: &mut Writer, _: &mut Live) -> Result<(), Failure> {
            let _ = self.0.lock().map(|until| until.recv());
            Ok(())
        }
    }

    #[actix::test]
    async fn a_log_that_stands_still_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("clawmux.db")).await.unwrap().start();
        store.send(Probe).await.unwrap().unwrap();
        let (go_on, until) = channel();
        store.send(Stick(until)).await.unwrap();
        let asked = store.send(Probe);
        tokio::pin!(asked);
        let early = tokio::time::timeout(Duration::from_millis(200), &mut asked).await;
        assert!(early.is_err(), "{early:?}");
        drop(go_on);
        asked.await.unwrap().unwrap();
    }
}
