//! The end of a chat that has the daemon in it: what runs may finish its step, unless whoever leaves is
//! in a hurry.

use std::future::pending;
use std::io::{IsTerminal, Read, stdin};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::signals::Signals;
use crate::daemon::Embedded;
use crate::terminal::tell;

/// So long nobody is told that it takes time.
const SHORT: Duration = Duration::from_millis(300);

/// Stops it. Ctrl-C, Ctrl-D on a terminal, or a signal to end has it left as a crash would leave it: what
/// runs is stored and goes on at the next start.
pub(super) async fn stop(embedded: Embedded) {
    let stopped = embedded.stop();
    tokio::pin!(stopped);
    tokio::select! {
        stopped = timeout(SHORT, &mut stopped) => if stopped.is_ok() { return },
        () = hurry() => return,
    }
    tell("finishing what runs; Ctrl-C leaves now");
    tokio::select! {
        () = stopped => {}
        () = hurry() => {}
        () = no_more_input() => {}
    }
}

/// Waits for a signal to end.
async fn hurry() {
    match Signals::new() {
        Ok(mut signals) => _ = signals.next().await,
        Err(_) => pending().await,
    }
}

/// Waits for Ctrl-D at a terminal.
async fn no_more_input() {
    if !stdin().is_terminal() {
        return pending().await;
    }
    let (tell, ended) = oneshot::channel();
    // The thread waits for the terminal and so ends with the process.
    std::thread::spawn(move || {
        let mut bytes = [0; 256];
        while stdin().lock().read(&mut bytes).is_ok_and(|read| read > 0) {}
        let _ = tell.send(());
    });
    let _ = ended.await;
}
