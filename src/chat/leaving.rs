//! The end of a chat with an embedded daemon: running steps may finish, unless the user wants to leave
//! at once.

use std::future::pending;
use std::io::{IsTerminal, Read, stdin};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::signals::Signals;
use crate::daemon::Embedded;
use crate::terminal::tell;

/// How long stopping may take before the user is told.
const SHORT: Duration = Duration::from_millis(300);

/// Stops the daemon. Ctrl-C, Ctrl-D on a terminal, or a signal leaves at once, as in a crash: what is
/// running is stored and continues at the next start.
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
