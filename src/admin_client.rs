//! Asks the running daemon over its Unix socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clawmux_actors::host::bound::socket_path;
use clawmux_core::dialect::jsonrpc;
use clawmux_core::error::{Error, ErrorCode};
use serde_json::{Value, json};

use crate::cli::Global;
use crate::exit::{FAILED, Failure, UNREACHABLE};
use crate::home;
use crate::terminal::one_line;

/// How long the daemon may take to answer.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The longest line of the daemon, in bytes.
const BYTES_MAX: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Refused {
    /// No daemon is reachable, or it went away: the message for people.
    Unreachable(String),
    /// The daemon says no.
    Error(Error),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unreachable(why) => Self::new(UNREACHABLE, why),
            // What others wrote may be in it.
            Refused::Error(error) => Self::new(FAILED, one_line(&error.message, 2000)),
        }
    }
}

/// A connection to the daemon. Blocks.
#[derive(Debug)]
pub(crate) struct Link {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
    last_id: u64,
    /// The beginning of a line that is not complete yet.
    begun: Vec<u8>,
}

/// The outcome of waiting for a notification.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A notification: its method and its parameters.
    Of(String, Value),
    /// None came in time.
    Nothing,
    /// The daemon closed the connection.
    Closed,
}

impl Link {
    /// Connects to the daemon of `home`.
    ///
    /// # Errors
    /// If none is reachable.
    pub(crate) fn open(home: &Path) -> Result<Self, Refused> {
        let socket = socket_path(home);
        let stream = UnixStream::connect(&socket).map_err(|error| match error.kind() {
            ErrorKind::NotFound => unreachable(&socket, "there is no socket"),
            ErrorKind::ConnectionRefused => unreachable(&socket, "nobody listens there"),
            ErrorKind::PermissionDenied => Refused::Unreachable(format!(
                "this user may not use the socket {}: run it as the user whose home it is, as root, or as a \
                 member of gateway.socket_group",
                socket.display()
            )),
            _ => unreachable(&socket, &error.to_string()),
        })?;
        Self::over(socket, stream)
    }

    /// Connects to the daemon of `home`; none if there is none.
    ///
    /// # Errors
    /// If one may run and is not reachable.
    pub(crate) fn open_if_there(home: &Path) -> Result<Option<Self>, Refused> {
        let socket = socket_path(home);
        match UnixStream::connect(&socket) {
            Ok(stream) => Self::over(socket, stream).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(unreachable(&socket, &error.to_string())),
        }
    }

    fn over(socket: PathBuf, stream: UnixStream) -> Result<Self, Refused> {
        stream
            .set_read_timeout(Some(TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))
            .map_err(|error| unreachable(&socket, &error.to_string()))?;
        Ok(Self { socket, stream: BufReader::new(stream), last_id: 0, begun: Vec::new() })
    }

    /// Sends a request and waits for its answer; passes notifications (method and parameters) to `told`.
    ///
    /// # Errors
    /// If the daemon refuses or goes away.
    pub(crate) fn call(
        &mut self,
        method: &str,
        params: &Value,
        mut told: impl FnMut(&str, &Value),
    ) -> Result<Value, Refused> {
        self.last_id += 1;
        let request = jsonrpc::request(self.last_id, method, params) + "\n";
        let asked = self.stream.get_mut().write_all(request.as_bytes());
        loop {
            // What refuses us may have said why before it closed, so read in any case.
            let Some(line) = self.read()? else {
                asked.map_err(|error| self.broken(&error))?;
                return Err(unreachable(&self.socket, "it closed the connection"));
            };
            if let Some((method, params)) = notification(&line) {
                told(&method, &params);
                continue;
            }
            return jsonrpc::read_answer(&line).map_err(|error| match error.code {
                ErrorCode::UnknownMethod => Refused::Error(ErrorCode::UnknownMethod.error(format!(
                    "the running daemon does not know {method} ({}): it is of another version than this \
                     clawmux, {}; restart it",
                    error.message,
                    env!("CARGO_PKG_VERSION")
                ))),
                _ => Refused::Error(error),
            });
        }
    }

    /// Sets how long the daemon may be silent from now on; none for no limit.
    ///
    /// # Errors
    /// If the connection is gone.
    pub(crate) fn wait_for(&mut self, patience: Option<Duration>) -> Result<(), Refused> {
        self.stream.get_ref().set_read_timeout(patience).map_err(|error| self.broken(&error))
    }

    /// The next notification within `patience`; none for no limit.
    ///
    /// # Errors
    /// If the connection breaks.
    pub(crate) fn next_within(&mut self, patience: Option<Duration>) -> Result<Notice, Refused> {
        self.wait_for(patience)?;
        loop {
            match self.line() {
                Ok(Some(line)) => {
                    if let Some((method, params)) = notification(&line) {
                        return Ok(Notice::Of(method, params));
                    }
                }
                Ok(None) => return Ok(Notice::Closed),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Notice::Nothing);
                }
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>, Refused> {
        self.line().map_err(|error| self.broken(&error))
    }

    /// The next line; none at the end. After a timeout the part that came is kept.
    fn line(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        match self.stream.by_ref().take(BYTES_MAX).read_until(b'\n', &mut self.begun) {
            Ok(_) if self.begun.ends_with(b"\n") => Ok(Some(std::mem::take(&mut self.begun))),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn broken(&self, error: &std::io::Error) -> Refused {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                unreachable(&self.socket, "no answer in time; see its log")
            }
            _ => unreachable(&self.socket, &error.to_string()),
        }
    }
}

fn unreachable(socket: &Path, why: &str) -> Refused {
    let advice = if why.contains("no answer") { "" } else { "; start one with `clawmux serve`" };
    Refused::Unreachable(format!("no daemon is reachable at {}: {why}{advice}", socket.display()))
}

/// The notification in this line, if it is one.
fn notification(line: &[u8]) -> Option<(String, Value)> {
    let mut value: Value = serde_json::from_slice(line).ok()?;
    if value.get("id").is_some() {
        return None;
    }
    let method = value.get("method")?.as_str()?.to_owned();
    Some((method, value.get_mut("params").map(Value::take).unwrap_or_else(|| json!({}))))
}

/// Sends the daemon one request. Blocks.
pub(crate) fn ask(global: &Global, method: &str, params: &Value) -> Result<Value, Failure> {
    call(&home_of(global)?, method, params)
}

/// Sends the daemon of `home` one request. Blocks.
///
/// # Errors
/// Status 69 if none is reachable, 1 if it refuses or fails.
pub(crate) fn call(home: &Path, method: &str, params: &Value) -> Result<Value, Failure> {
    Ok(Link::open(home)?.call(method, params, |_, _| {})?)
}

/// Where the daemon's home is.
///
/// # Errors
/// If nothing says so.
pub(crate) fn home_of(global: &Global) -> Result<PathBuf, Failure> {
    home::resolve(global.home.as_deref(), |name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_daemon_is_said_with_its_status() {
        let home = tempfile::tempdir().unwrap();
        let failure = call(home.path(), "admin.status", &json!({})).unwrap_err();
        assert_eq!(failure.status, UNREACHABLE);
        assert!(failure.message.contains("clawmux serve"), "{}", failure.message);
    }

    #[test]
    fn what_answers_nothing_is_told_apart() {
        let told = notification(br#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#);
        assert_eq!(told, Some(("m".to_owned(), json!({"a": 1}))));
        for answer in [r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, r#"{"id":null,"error":{}}"#, "[", "{}"] {
            assert_eq!(notification(answer.as_bytes()), None, "{answer}");
        }
    }
}
