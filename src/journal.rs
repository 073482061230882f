//! Entries of systemd's journal: one for each event, with its fields.
//!
//! `MESSAGE` is the whole line, fields included, because that is all that `journalctl` shows unless it
//! is asked for more; each field is there by itself too, as `CLAWMUX_<NAME>`, to be searched for. It
//! never waits for the journal: what that does not take at once is lost, and no client waits for a log
//! line. What an event has is bounded, so an entry always fits into one datagram.

use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where the journal listens.
pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";

/// The longest value of a field, and the longest message, in bytes.
const VALUE_BYTES_MAX: usize = 8 * 1024;
/// The most bytes of an entry.
const ENTRY_BYTES_MAX: usize = 64 * 1024;

/// Writes each event to the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Journal {
    /// The journal that listens at `path`.
    ///
    /// # Errors
    /// Where nobody does.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let journal = Self { socket, address: SocketAddr::from_pathname(path)? };
        // The journal ignores an empty datagram, and where there is none this fails.
        journal.send(&[])?;
        Ok(journal)
    }

    /// Not over a connection, so that it goes on when the journal was started anew.
    fn send(&self, entry: &[u8]) -> io::Result<()> {
        self.socket.send_to_addr(entry, &self.address).map(drop)
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // There is nobody left to complain to.
        let _ = self.send(&entry(event));
    }
}

/// An event in the journal's own format.
fn entry(event: &Event<'_>) -> Vec<u8> {
    let about = event.metadata();
    let mut said = EventFields::default();
    event.record(&mut said);
    let mut entry = Vec::with_capacity(256);
    let line = said.message + &said.line;
    put(&mut entry, "MESSAGE", &line);
    put(&mut entry, "PRIORITY", priority(about.level()));
    put(&mut entry, "SYSLOG_IDENTIFIER", "clawmux");
    put(&mut entry, "TARGET", about.target());
    if let (Some(file), Some(line)) = (about.file(), about.line()) {
        put(&mut entry, "CODE_FILE", file);
        put(&mut entry, "CODE_LINE", &line.to_string());
    }
    for (name, value) in &said.fields {
        if entry.len() + value.len() < ENTRY_BYTES_MAX {
            put(&mut entry, name, value);
        }
    }
    entry
}

/// Syslog's priority.
fn priority(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// A field of an entry: its name on a line, how long it is, and its bytes, whatever they are.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value[..value.floor_char_boundary(VALUE_BYTES_MAX)];
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    entry.extend_from_slice(value.as_bytes());
    entry.push(b'\n');
}

/// The text and the fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    /// The fields, as they follow the message.
    line: String,
    fields: Vec<(String, String)>,
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.message = value;
            return;
        }
        // Writing to a text can't fail.
        let _ = write!(self.line, " {}={value}", field.name());
        let letters = field.name().bytes().filter(|c| c.is_ascii_alphanumeric() || *c == b'_');
        let name = letters.map(|c| char::from(c.to_ascii_uppercase()));
        self.fields.push(("CLAWMUX_".chars().chain(name).take(64).collect(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tracing_subscriber::layer::SubscriberExt;

    /// The fields of an entry, as the journal reads them.
    fn read(mut entry: &[u8]) -> HashMap<String, String> {
        let mut fields = HashMap::new();
        while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
            let name = String::from_utf8(entry[..end].to_vec()).unwrap();
            let (length, rest) = entry[end + 1..].split_first_chunk::<8>().unwrap();
            let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
            fields.insert(name, String::from_utf8(value.to_vec()).unwrap());
            entry = rest.strip_prefix(b"\n").unwrap();
        }
        assert!(entry.is_empty());
        fields
    }

    #[test]
    fn an_event_is_an_entry_with_its_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        assert!(Journal::at(&path).is_err(), "nobody listens");
        let listener = UnixDatagram::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journal::at(&path).unwrap());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(peer = "me", load_ms = 3, "one\nPRIORITY=0\n{}", "x".repeat(100_000));
            tracing::info!(error = %"broken", "short");
            // More than it takes: these are lost, and nobody waits.
            for _ in 0..10_000 {
                tracing::debug!("again");
            }
        });
        let next = || {
            let mut bytes = vec![0; 1 << 20];
            let length = listener.recv(&mut bytes).unwrap();
            read(&bytes[..length])
        };
        assert!(next().is_empty(), "the question whether somebody listens");
        let long = next();
        assert_eq!((long["PRIORITY"].as_str(), long["SYSLOG_IDENTIFIER"].as_str()), ("4", "clawmux"));
        assert_eq!((long["CLAWMUX_PEER"].as_str(), long["CLAWMUX_LOAD_MS"].as_str()), ("me", "3"));
        assert_eq!(long["MESSAGE"].len(), VALUE_BYTES_MAX);
        let short = next();
        assert_eq!((short["MESSAGE"].as_str(), short["PRIORITY"].as_str()), ("short error=broken", "6"));
        assert!(short["TARGET"].ends_with("journal::tests") && short["CODE_FILE"].ends_with("journal.rs"));
        assert_eq!(next()["PRIORITY"], "7");
    }
}
