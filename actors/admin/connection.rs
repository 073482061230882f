//! One connection of the operator's socket, from its first line to its end.
//!
//! One request is answered before the next is read, so a flood waits in the client. Between answers,
//! and while a long method goes on, notifications are written: the events a connection follows, and
//! how far the method has come. When the daemon stops, each connection is told so.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::jsonrpc;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::client::AdminClient;
use super::line::{Line, read_line};
use super::methods::{self, Call};
use super::{AdminSocket, Asked, Daemon, LINE_BYTES_MAX};

/// How long a client may take over one line.
const IDLE: Duration = Duration::from_secs(300);
/// How long a client may take to read one answer.
const WRITE: Duration = Duration::from_secs(10);
/// Notifications of a method under way that may wait; more are left out.
const PROGRESS_MAX: usize = 4;

/// Serves it.
pub(super) async fn serve(
    stream: UnixStream,
    daemon: Arc<Daemon>,
    socket: Addr<AdminSocket>,
    mut stopping: watch::Receiver<bool>,
) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let client = AdminClient::new(&daemon).start();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = tokio::select! {
            read = timeout(IDLE, read_line(&mut read, &mut line)) => read,
            _ = stopping.wait_for(|stopping| *stopping) => {
                let _ = send(&mut write, farewell()).await;
                break;
            }
        };
        match read {
            Ok(Ok(Line::Complete)) => {}
            Ok(Ok(Line::TooLong)) => {
                let why = format!("invalid request: a line is longer than {LINE_BYTES_MAX} bytes");
                let _ =
                    send(&mut write, jsonrpc::failure(&Value::Null, jsonrpc::INVALID_REQUEST, &why, None))
                        .await;
                break;
            }
            Ok(Ok(Line::Ended) | Err(_)) | Err(_) => break,
        }
        // Counting must not hold a request up: a full mailbox only loses a count.
        let _ = socket.try_send(Asked);
        if respond(&line, &daemon, &client, &mut write).await.is_err() {
            break;
        }
    }
    // Ends with the last hold on it; what it follows is let go then.
    drop(client);
}

/// Answers one line; not an empty one, and not a request without an id.
async fn respond(
    line: &[u8],
    daemon: &Arc<Daemon>,
    client: &Addr<AdminClient>,
    write: &mut OwnedWriteHalf,
) -> io::Result<()> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    let request = match jsonrpc::parse(line) {
        Ok(request) => request,
        Err(refusal) => return send(write, refusal).await,
    };
    let (progress, mut notices) = mpsc::channel(PROGRESS_MAX);
    let call = Call { daemon: daemon.clone(), client: client.clone(), params: request.params, progress };
    let outcome = call_method(&request.method, call);
    tokio::pin!(outcome);
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut outcome => break outcome,
            Some((method, params)) = notices.recv() => send(write, notification(method, &params)).await?,
        }
    };
    match request.id {
        Some(id) => send(write, jsonrpc::answer(&id, outcome)).await,
        None => Ok(()),
    }
}

async fn call_method(name: &str, call: Call) -> Result<Value, Error> {
    let method = methods::find(name)?;
    match timeout(method.deadline, (method.run)(call)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let deadline = method.deadline;
            Err(ErrorCode::Timeout.error(format!("{name} took longer than {deadline:?}: is the disk stuck?")))
        }
    }
}

/// The line that tells something nobody waits for.
fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

fn farewell() -> String {
    notification("admin.closing", &json!({ "reason": "the daemon is stopping" }))
}

fn send(write: &mut OwnedWriteHalf, mut line: String) -> impl Future<Output = io::Result<()>> {
    line.push('\n');
    async move {
        match timeout(WRITE, write.write_all(line.as_bytes())).await {
            Ok(written) => written,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
