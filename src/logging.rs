//! Log lines: on stderr or, under systemd, as entries of the journal with their fields; and the latest
//! of them in memory for operators who look from afar.

use std::fmt::{self, Write};
use std::io::{IsTerminal, stderr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use clawmux_actors::runtime::daemon_log::DaemonLog;
use clawmux_actors::runtime::log_filter::LogFilter;
use clawmux_core::config::{Log, LogFormat};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::exit::{CONFIG, Failure};
use crate::journal::{self, Journal};
use crate::terminal::Stderr;

/// What is left out unless the configured filter names it: the server's own life, which the
/// listener tells; that of the connection of the bus, which the bus tells; requests that are not HTTP, since whoever can connect could fill the log with
/// them; guests' texts of any length, which the sandbox tells bounded; what MCP servers say, likewise; and the thoughts of the
/// compiler of plugins, which at `trace` fill a gigabyte and take a minute, and its wish for a lower
/// priority, which a confined service is denied.
const QUIET: &str = "actix_server=warn,async_nats=off,actix_http::h1::dispatcher=off,extism=off,rmcp=off,\
                     cranelift=warn,regalloc2=warn,wasmtime=warn,wasmtime_internal_cache=error";

/// How much of a line is kept for those who look from afar, in bytes.
const KEPT_BYTES_MAX: usize = 8 * 1024;

/// Whether `[log] filter` is one.
///
/// # Errors
/// Status 64, with what is wrong.
pub(crate) fn check(log: &Log) -> Result<EnvFilter, Failure> {
    parse(&log.filter).map_err(|why| Failure::new(CONFIG, format!("log.filter: {why}")))
}

fn parse(directives: &str) -> Result<EnvFilter, String> {
    // A word alone is a level, or else a module of which everything is told and of the rest only errors: who
    // writes "debgu" would see next to nothing, and not why.
    let words = directives.split(',').map(str::trim).filter(|word| !word.is_empty());
    for word in words.filter(|word| !word.contains(['=', '[', ']', ':'])) {
        if word.parse::<tracing_subscriber::filter::LevelFilter>().is_err() {
            return Err(format!(
                "{word:?} is not a level (off, error, warn, info, debug, trace); for one module write {word}=debug"
            ));
        }
    }
    EnvFilter::try_new(format!("{QUIET},{directives}"))
        .map_err(|error| format!("{error}; expected directives such as \"info,clawmux=debug\""))
}

/// The filter of this process's log, once that is written.
static FILTER: OnceLock<Arc<Filter>> = OnceLock::new();

/// The filter of this process's log; none where none is written.
pub(crate) fn filter() -> Option<Arc<dyn LogFilter>> {
    let filter: &Arc<Filter> = FILTER.get()?;
    Some(filter.clone())
}

#[derive(Debug)]
struct Filter {
    handle: reload::Handle<EnvFilter, Registry>,
    directives: Mutex<String>,
}

impl LogFilter for Filter {
    fn directives(&self) -> String {
        self.directives.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check(&self, directives: &str) -> Result<(), String> {
        parse(directives).map(drop)
    }

    fn set(&self, directives: &str) -> Result<(), String> {
        let filter = parse(directives)?;
        let mut known = self.directives.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != directives {
            self.handle.reload(filter).map_err(|error| error.to_string())?;
            directives.clone_into(&mut known);
        }
        Ok(())
    }
}

/// Starts to write them.
pub(crate) fn start(log: &Log) -> Result<(), Failure> {
    let wants_journal = match log.format {
        LogFormat::Journald => true,
        LogFormat::Auto => is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), STDERR),
        LogFormat::Text | LogFormat::Json => false,
    };
    let journal = wants_journal.then(|| Journal::at(Path::new(journal::SOCKET)));
    let (journal, out_of_reach) = match journal.transpose() {
        Ok(journal) => (journal, None),
        Err(error) => (None, Some(error)),
    };
    // A line that can't be written is lost: to complain of it, to the same full disk, would panic.
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(|| Stderr);
    let (filter, handle) = reload::Layer::new(check(log)?);
    let all = tracing_subscriber::registry().with(filter).with(RecentLines(kept()));
    let _ = FILTER.set(Arc::new(Filter { handle, directives: Mutex::new(log.filter.clone()) }));
    // That a subscriber is there already is the case in tests only.
    let _ = match (journal, log.format) {
        (Some(journal), _) => all.with(journal).try_init(),
        (None, LogFormat::Json) => all.with(lines.json().flatten_event(true)).try_init(),
        (None, LogFormat::Auto | LogFormat::Text | LogFormat::Journald) => {
            let colours = stderr().is_terminal();
            let format = Format::default().with_ansi(colours);
            all.with(lines.with_ansi(colours).event_format(OneLine { format, colours })).try_init()
        }
    };
    if let Some(error) = out_of_reach {
        tracing::warn!(%error, "can't reach the journal: the log goes to stderr");
    }
    Ok(())
}

/// Standard error, by a name whose metadata are its own.
const STDERR: &str = "/proc/self/fd/2";

/// Whether this file is the stream to the journal that systemd names: `DEVICE:INODE`.
fn is_journal(stream: Option<&str>, file: impl AsRef<Path>) -> bool {
    let Ok(file) = std::fs::metadata(file) else { return false };
    stream.is_some_and(|stream| stream == format!("{}:{}", file.dev(), file.ino()))
}

/// The latest lines of this process.
pub(crate) fn kept() -> Arc<DaemonLog> {
    static RECENT: LazyLock<Arc<DaemonLog>> = LazyLock::new(Arc::default);
    RECENT.clone()
}

/// Keeps the latest log lines, each a JSON object in the format of OpenClaw's log files.
struct RecentLines(Arc<DaemonLog>);

impl<S: Subscriber> Layer<S> for RecentLines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = EventText::default();
        event.record(&mut said);
        let at = jiff::Timestamp::now();
        let time = at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        let source = json!({ "subsystem": event.metadata().target() }).to_string();
        let meta = json!({ "date": time, "logLevelName": event.metadata().level().as_str(), "name": source });
        self.0.push(&json!({ "1": said.line(), "time": time, "_meta": meta }).to_string());
    }
}

/// The text of an event: its message, then its fields.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn line(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message.truncate(self.message.floor_char_boundary(KEPT_BYTES_MAX));
        self.message
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Each event on a line of its own, without what a terminal would obey: what others wrote, such as
/// a provider's error or a path, must not look like another line of the log.
struct OneLine<F> {
    format: F,
    /// Whether colours are written.
    colours: bool,
}

/// Whether what follows an escape character only changes colours, which is harmless.
fn is_colour(rest: &str) -> bool {
    let after =
        rest.strip_prefix('[').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
    after.is_some_and(|after| after.starts_with('m'))
}

impl<S, N, F> FormatEvent<S, N> for OneLine<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        for (at, c) in line.trim_end().char_indices() {
            let colours = self.colours && c == '\u{1b}' && is_colour(&line[at + 1..]);
            if c.is_control() && !colours {
                write!(writer, "{}", c.escape_default())?;
            } else {
                writer.write_char(c)?;
            }
        }
        writer.write_char('\n')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_json_that_readers_of_log_files_know() {
        let log = Arc::new(DaemonLog::default());
        let subscriber = tracing_subscriber::registry().with(RecentLines(log.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(peer = "me", count = 3, "a\nline {}", "x".repeat(KEPT_BYTES_MAX));
            tracing::info!("short");
        });
        let lines = log.tail(None, 10, usize::MAX).lines;
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(line["1"].as_str().unwrap().len(), KEPT_BYTES_MAX);
        assert_eq!(line["_meta"]["logLevelName"], "WARN");
        assert!(line["_meta"]["name"].as_str().unwrap().contains("\"subsystem\":\"clawmux::logging"));
        assert!(line["time"].as_str().unwrap().ends_with('Z') && !lines[0].contains('\n'));
        assert!(lines[1].contains("\"1\":\"short\""), "{}", lines[1]);
    }

    #[test]
    fn a_word_that_is_no_level_is_no_filter() {
        for good in ["", "info", "WARN", "off", "info,clawmux=debug", "clawmux_actors::store", "[run]=debug"]
        {
            assert!(parse(good).is_ok(), "{good}: {:?}", parse(good));
        }
        for bad in ["debgu", "info,clawmux=debgu", "verbose,clawmux=debug", "a=b=c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("debgu").unwrap_err().starts_with("\"debgu\" is not a level"));
    }

    #[test]
    fn the_stream_to_the_journal_is_known_by_its_inode() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let about = file.as_file().metadata().unwrap();
        let named = format!("{}:{}", about.dev(), about.ino());
        assert!(is_journal(Some(&named), file.path()));
        // As where stderr was led elsewhere, but the variable inherited.
        let other = format!("{}:{}", about.dev(), about.ino() + 1);
        assert!(!is_journal(Some(&other), file.path()) && !is_journal(Some(""), file.path()));
        assert!(!is_journal(None, file.path()) && !is_journal(Some(&named), "/nowhere"));
    }

    #[test]
    fn colours_are_known_from_commands() {
        assert!(is_colour("[2mtext") && is_colour("[0m") && is_colour("[1;31mx"));
        assert!(!is_colour("[2Jm") && !is_colour("]0;title\u{7}") && !is_colour("") && !is_colour("[31"));
    }
}
