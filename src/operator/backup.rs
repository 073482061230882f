//! `clawmux backup`: a consistent copy of the store, made by the daemon while it works, or by this
//! process where none runs.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;

use clawmux_actors::store;
use serde_json::{Value, json};

use super::amount::{counted, file_size, took};
use super::print;
use crate::admin_client::{Link, Refused, home_of};
use crate::answer::Members;
use crate::cli::Global;
use crate::exit::{FAILED, Failure};
use crate::settings;
use crate::terminal::tell;

/// Runs `backup`.
///
/// # Errors
/// Status 1 if no copy could be made; nothing is left of it then.
pub(crate) fn run(global: &Global, file: &Path) -> Result<(), Failure> {
    let home = home_of(global)?;
    let file = std::path::absolute(file)
        .map_err(|error| Failure::new(FAILED, format!("{}: {error}", file.display())))?;
    let report = match Link::open(&home) {
        Ok(mut link) => by_daemon(&mut link, &file)?,
        Err(Refused::Unreachable(_)) => alone(global, &file)?,
        Err(refused) => return Err(refused.into()),
    };
    print::answer(global, &report, |report| {
        format!(
            "wrote {}: {}, {}, {}, in {}\nto put it back: stop the daemon, then `clawmux restore {}`",
            file.display(),
            file_size(report.number("bytes")),
            counted(report.number("sessions"), "session"),
            counted(report.number("runs"), "run"),
            took(report.number("took_ms")),
            file.display(),
        )
    });
    Ok(())
}

fn by_daemon(link: &mut Link, file: &Path) -> Result<Value, Failure> {
    let params = json!({ "file": file.to_str().ok_or_else(|| {
        Failure::new(FAILED, format!("{}: the name of the file is not valid UTF-8", file.display()))
    })? });
    let mut progress = Progress { shown: stderr().is_terminal(), pages: 0, within_line: false };
    let report = link.call("admin.backup", &params, |_, told| progress.show(told["pages_left"].as_u64()));
    progress.end();
    Ok(report?)
}

/// Copies the store directly. Nobody else has it open.
fn alone(global: &Global, file: &Path) -> Result<Value, Failure> {
    let settings = settings::read(global, &[])?;
    tell("no daemon runs on this home: copying its store directly");
    let report = store::copy(&settings.config.store.path, file)?;
    Ok(report.to_json(file))
}

/// Shows the progress on a terminal.
struct Progress {
    shown: bool,
    /// The highest number of pages seen.
    pages: u64,
    within_line: bool,
}

impl Progress {
    fn show(&mut self, left: Option<u64>) {
        let left = left.unwrap_or(0);
        self.pages = self.pages.max(left);
        if !self.shown || self.pages == 0 {
            return;
        }
        let done = 100 - left.saturating_mul(100) / self.pages;
        let what = if left == 0 { "checking the copy" } else { "copied" };
        let _ = write!(stderr().lock(), "\r{what}: {done:>3} %   ");
        self.within_line = true;
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.within_line) {
            let _ = writeln!(stderr().lock());
        }
    }
}
