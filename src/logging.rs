//! Log lines, on stderr.

use std::fmt;
use std::io::{IsTerminal, stderr};

use clawmux_core::config::{Log, LogFormat};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::exit::{CONFIG, Failure};

/// What is left out unless the configured filter names it: the server's own life, which the
/// listener tells; requests that are not HTTP, since whoever can connect could fill the log with
/// them; guests' texts of any length, which the sandbox tells bounded; and the thoughts of the
/// compiler of plugins, which at `trace` fill a gigabyte and take a minute.
const QUIET: &str = "actix_server=warn,actix_http::h1::dispatcher=off,extism=off,\
                     cranelift=warn,regalloc2=warn,wasmtime=warn";

/// Whether `[log] filter` is one.
///
/// # Errors
/// Status 64, with what is wrong.
pub(crate) fn check(log: &Log) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(format!("{QUIET},{}", log.filter)).map_err(|error| {
        Failure::new(
            CONFIG,
            format!("log.filter: {error}; expected directives such as \"info,clawmux=debug\""),
        )
    })
}

/// Starts to write them.
///
/// # Errors
/// As [`check`].
pub(crate) fn start(log: &Log) -> Result<(), Failure> {
    // A line that can't be written is lost: to complain of it, to the same full disk, would panic.
    let lines =
        tracing_subscriber::fmt().with_env_filter(check(log)?).log_internal_errors(false).with_writer(stderr);
    // That a subscriber is there already is the case in tests only.
    let _ = match log.format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Auto | LogFormat::Text | LogFormat::Journald => {
            let colours = stderr().is_terminal();
            let format = Format::default().with_ansi(colours);
            lines.with_ansi(colours).event_format(OneLine { format, colours }).try_init()
        }
    };
    Ok(())
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
    fn colours_are_known_from_commands() {
        assert!(is_colour("[2mtext") && is_colour("[0m") && is_colour("[1;31mx"));
        assert!(!is_colour("[2Jm") && !is_colour("]0;title\u{7}") && !is_colour("") && !is_colour("[31"));
    }
}
