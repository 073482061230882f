//! The benchmark: `cargo bench --bench bench`, a few minutes on two idle cores. [`USAGE`] lists its arguments;
//! ceilings are in [`ceilings`], other people's programs in [`peers`].
//!
//! Every row is a ratio against a [limit program](limit) in the same rounds, written for the purpose: it does as little
//! as can be done for the same bytes on the same wires. This process plays the model provider and the
//! clients; the daemon and the limit programs are processes of their own, whose CPU time the kernel counts by the
//! nanosecond. Rounds in which a limit program strays from its own median by over a quarter are discarded.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a program that prints its findings, in several files"
)]

#[allow(dead_code, reason = "tests use the rest of it")]
#[path = "../it/bus/nats.rs"]
mod nats;
#[allow(dead_code, reason = "tests use the rest of it")]
#[path = "../clients/npm.rs"]
mod npm;
#[allow(dead_code, reason = "tests use the rest of it")]
#[path = "../clients/pypi.rs"]
mod pypi;
#[path = "../support/sessions.rs"]
mod sessions;
#[allow(unused, reason = "the crate `it` uses all of it")]
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "tests use the rest of it")]
#[path = "../clients/theirs.rs"]
mod theirs;

mod ceilings;
mod figures;
mod limit;
mod load;
mod peers;
mod process;
mod report;
mod rows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use report::Occasion;
use rows::{Extent, Row};

/// What `--help` says.
const USAGE: &str = "\
cargo bench --bench bench -- [NAME...] [OPTION...]

NAME          only the row of this name, or all with this in their names
--list        say which rows there are
--short       fewer rounds and units
--long        also the rows that take many minutes
--check       only the rows that have a ceiling; fail where one is passed
--json FILE   write every value of every round, for programs
--write       write tests/bench/figures.md and figures.svg, for the README
--peers       other people's programs instead
";

/// How often a row is measured until its ceiling holds.
const CHECKS_MAX: usize = 3;

/// What was asked for.
#[derive(Default)]
struct Asked {
    names: Vec<String>,
    extent: Extent,
    lists: bool,
    checks: bool,
    writes: bool,
    peers: bool,
    helps: bool,
    json: Option<PathBuf>,
}

impl Asked {
    fn read(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let (mut asked, mut args) = (Self::default(), args.into_iter());
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // Cargo says this to every benchmark.
                "--bench" => {}
                "--help" | "-h" => asked.helps = true,
                "--list" => asked.lists = true,
                "--short" => asked.extent.is_short = true,
                "--long" => asked.extent.is_long = true,
                "--check" => asked.checks = true,
                "--write" => asked.writes = true,
                "--peers" | "peers" => asked.peers = true,
                "--json" => asked.json = Some(args.next().ok_or("--json wants the name of a file")?.into()),
                name if !name.starts_with('-') => asked.names.push(name.to_owned()),
                other => return Err(format!("{other}: no such option; --help lists them")),
            }
        }
        Ok(asked)
    }

    /// The rows that are asked for: by their names, or by a part of them.
    ///
    /// # Errors
    /// Says which name is none, or that nothing is left.
    fn rows(&self) -> Result<Vec<Row>, String> {
        let all = rows::all();
        let is_usual = |row: &Row| self.extent.is_long || !row.is_long;
        let is_called = |row: &Row, name: &str| {
            let is_exact = |row: &Row| row.name.eq_ignore_ascii_case(name);
            match all.iter().any(is_exact) {
                true => is_exact(row),
                false => is_usual(row) && row.name.to_lowercase().contains(&name.to_lowercase()),
            }
        };
        if let Some(name) = self.names.iter().find(|name| !all.iter().any(|row| is_called(row, name))) {
            return Err(format!("no row has \"{name}\" in its name; --list names them, with --long all"));
        }
        let is_wanted = |row: &Row| match self.names.is_empty() {
            true => is_usual(row),
            false => self.names.iter().any(|name| is_called(row, name)),
        };
        let may_be = |row: &Row| !self.checks || ceilings::has(&row.name);
        let wanted: Vec<Row> = rows::all().into_iter().filter(|row| is_wanted(row) && may_be(row)).collect();
        if wanted.is_empty() { Err("none of these rows has a ceiling".into()) } else { Ok(wanted) }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if limit::run(&args) {
        return ExitCode::SUCCESS;
    }
    let complain = |complaint: String| {
        eprintln!("{complaint}");
        ExitCode::from(2)
    };
    let asked = match Asked::read(args) {
        Ok(asked) => asked,
        Err(complaint) => return complain(complaint),
    };
    if asked.helps {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if asked.peers {
        peers::compare();
        return ExitCode::SUCCESS;
    }
    let rows = match asked.rows() {
        Ok(rows) => rows,
        Err(complaint) => return complain(complaint),
    };
    if asked.lists {
        rows.iter().for_each(|row| println!("{}", row.name));
        return ExitCode::SUCCESS;
    }
    if let Some(file) = &asked.json
        && let Err(error) = std::fs::write(file, "")
    {
        return complain(format!("{}: {error}", file.display()));
    }
    // Thousands of connections at once, here and in what is started.
    support::process::open_files_max();
    let (occasion, begin) = (Occasion::now(), Instant::now());
    println!("{}", occasion.told());
    if occasion.is_busy() {
        println!("others use this machine: the figures below say little");
    }
    println!("\n{}", report::terminal_head());
    let (mut figures, mut failed) = (Vec::new(), false);
    for row in &rows {
        // What goes wrong in one row leaves the others.
        let Some((measured, holds)) = measure(row, &asked) else {
            println!("{}: failed", row.name);
            failed = true;
            continue;
        };
        failed |= !holds;
        figures.extend(measured);
    }
    println!("\n{} rows in {:.0} s", rows.len(), begin.elapsed().as_secs_f64());
    if let Some(file) = &asked.json {
        let json = report::json(&occasion, &figures);
        std::fs::write(file, format!("{json:#}\n")).expect("the JSON is written");
    }
    if asked.writes {
        write(&occasion, &figures);
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Measures a row and tells what was found, and whether its ceilings hold, where they are asked for; none where that
/// failed. One that passes a ceiling is measured again, in case somebody else had the machine meanwhile.
fn measure(row: &Row, asked: &Asked) -> Option<(Vec<figures::Figure>, bool)> {
    let mut left = CHECKS_MAX;
    loop {
        let measured = catch_unwind(AssertUnwindSafe(|| (row.measure)(&row.name, asked.extent))).ok()?;
        measured.iter().flat_map(report::lines).for_each(|line| println!("{}", report::terminal(&line)));
        left -= 1;
        let holds = !asked.checks || ceilings::hold(&measured);
        if holds || left == 0 {
            return Some((measured, holds));
        }
        println!("{}: measured again, in case others used this machine", row.name);
    }
}

/// The table and the plot that the README shows.
fn write(occasion: &Occasion, figures: &[figures::Figure]) {
    let lines: Vec<report::Line> = figures.iter().flat_map(report::lines).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench");
    let written = std::fs::write(folder.join("figures.md"), report::markdown(occasion, &lines))
        .and_then(|()| std::fs::write(folder.join("figures.svg"), report::plot::svg(occasion, &lines)));
    written.expect("the figures are written");
}
