//! One connection of the operator's socket, from its first line to its end.
//!
//! One request is answered before the next is read, so a flood waits in the client. Notifications are
//! written between answers (`admin.session.event`: what the connection follows) and while a method goes
//! on (how far it has come). The last line of a connection that the daemon ends is `admin.closing`, with
//! its `reason`.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::event::Published;
use clawmux_core::ids::Ticket;
use clawmux_core::jsonrpc;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::client::{AdminClient, Events, Leave};
use super::event;
use super::line::{Line, read_line};
use super::methods::{self, Call};
use super::{AdminSocket, Asked, Daemon, LINE_BYTES_MAX};

/// How long a client may take over one line, unless it follows something.
const IDLE: Duration = Duration::from_secs(300);
/// How long a client may take nothing of what is written.
const WRITE: Duration = Duration::from_secs(30);
/// Notifications of a method under way that may wait; more are left out.
const PROGRESS_MAX: usize = 4;

/// Serves it.
pub(super) async fn serve(
    stream: UnixStream,
    daemon: Arc<Daemon>,
    socket: Addr<AdminSocket>,
    mut stopping: watch::Receiver<bool>,
) {
    let (read, write) = stream.into_split();
    let mut read = BufReader::new(read);
    let (client, events) = AdminClient::new(&daemon);
    let client = client.start();
    let mut connection = Connection { daemon, client, events, write, follows: Rc::default() };
    let mut line = Vec::new();
    loop {
        let idle = if connection.follows.get() == 0 { IDLE } else { Duration::MAX };
        let next = tokio::select! {
            read = timeout(idle, read_line(&mut read, &mut line)) => Next::Line(read),
            event = connection.events.next() => Next::Event(event),
            _ = stopping.wait_for(|stopping| *stopping) => Next::Stop,
        };
        let done = match next {
            Next::Line(Ok(Ok(Line::Complete))) => {
                // Counting must not hold a request up: a full mailbox only loses a count.
                let _ = socket.try_send(Asked);
                let done = connection.respond(&line).await;
                line.clear();
                done
            }
            Next::Line(Ok(Ok(Line::TooLong))) => {
                let why = format!("invalid request: a line is longer than {LINE_BYTES_MAX} bytes");
                let refusal = jsonrpc::failure(&Value::Null, jsonrpc::INVALID_REQUEST, &why, None);
                let _ = connection.send(refusal).await;
                return;
            }
            Next::Line(_) => return,
            Next::Event(Some((follow, event))) => connection.tell(follow, &event).await,
            Next::Event(None) => {
                tracing::info!("admin socket: a connection is too slow: closing");
                let reason = "too slow: it fell too far behind the log; go on after the last number seen";
                return connection.close(reason).await;
            }
            Next::Stop => return connection.close("the daemon is stopping").await,
        };
        if done.is_err() {
            return;
        }
    }
}

/// What there is to do.
enum Next {
    Line(Result<io::Result<Line>, Elapsed>),
    Event(Option<(Ticket, Arc<Published>)>),
    Stop,
}

struct Connection {
    daemon: Arc<Daemon>,
    client: Addr<AdminClient>,
    events: Events,
    write: OwnedWriteHalf,
    follows: Rc<Cell<usize>>,
}

impl Drop for Connection {
    #[expect(clippy::disallowed_methods, reason = "a lifecycle message, once per connection")]
    fn drop(&mut self) {
        self.client.do_send(Leave);
    }
}

impl Connection {
    /// Answers one line; not an empty one, and not a request without an id.
    async fn respond(&mut self, line: &[u8]) -> io::Result<()> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let request = match jsonrpc::parse(line) {
            Ok(request) => request,
            Err(refusal) => return self.send(refusal).await,
        };
        let (progress, mut notices) = mpsc::channel(PROGRESS_MAX);
        let call = Call {
            daemon: self.daemon.clone(),
            client: self.client.clone(),
            follows: self.follows.clone(),
            params: request.params,
            progress,
        };
        let outcome = call_method(&request.method, call);
        tokio::pin!(outcome);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut outcome => break outcome,
                Some((method, params)) = notices.recv() => self.send(notification(method, &params)).await?,
            }
        };
        match request.id {
            Some(id) => self.send(jsonrpc::answer(&id, outcome)).await,
            None => Ok(()),
        }
    }

    /// Tells an event of what the request with this ticket follows.
    async fn tell(&mut self, follow: Ticket, event: &Published) -> io::Result<()> {
        let mut params = event::to_json(&event.logged);
        params["session"] = json!(event.session.as_str());
        params["follow"] = json!(follow.0);
        self.send(notification("admin.session.event", &params)).await?;
        self.events.written(event);
        Ok(())
    }

    async fn close(&mut self, reason: &str) {
        let _ = self.send(notification("admin.closing", &json!({ "reason": reason }))).await;
    }

    /// Writes a line, as long as the client takes some of it now and then.
    async fn send(&mut self, mut line: String) -> io::Result<()> {
        line.push('\n');
        let mut left = line.as_bytes();
        while !left.is_empty() {
            match timeout(WRITE, self.write.write(left)).await {
                Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written?..],
                Err(_) => {
                    tracing::info!("admin socket: a connection took nothing for {WRITE:?}: closing");
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
        Ok(())
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
