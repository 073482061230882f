//! The rows of the benchmark, in the order in which they run. A goal that is a ratio is told as how many times what
//! the limit program takes ours may take.
//!
//! Left out: a tool call against bare wasmtime, which `cargo run --release -p clawmux-actors --example plugin_calls`
//! measures in one process, without a daemon around it; and one reader that stalls among many, as what the kernel
//! buffers for it takes longer to fill than a row may.

mod bus;
mod cluster;
mod fan;
mod memory;
mod pings;
mod prompts;
mod start;
mod tokens;

use crate::figures::Figure;
use crate::load::model::Model;

/// How much is measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Fewer rounds and units, for a machine that has other things to do.
    pub is_short: bool,
    /// All that takes many minutes, too.
    pub is_long: bool,
}

impl Extent {
    /// So many rounds, in the short form three.
    pub fn rounds(self, usual: usize) -> usize {
        if self.is_short { usual.min(3) } else { usual }
    }

    /// So many units, in the short form a third.
    pub fn units(self, usual: usize) -> usize {
        if self.is_short { usual / 3 } else { usual }
    }
}

/// Gives the figures of a row.
type Measure = Box<dyn Fn(&str, Extent) -> Vec<Figure>>;

/// A row, which may give several figures.
pub struct Row {
    /// What it is asked for by.
    pub name: String,
    /// Only with `--long`.
    pub is_long: bool,
    /// Measures it, under its name.
    pub measure: Measure,
}

impl Row {
    fn new(name: impl Into<String>, measure: impl Fn(&str, Extent) -> Vec<Figure> + 'static) -> Self {
        Self { name: name.into(), is_long: false, measure: Box::new(measure) }
    }

    fn long(mut self) -> Self {
        self.is_long = true;
        self
    }
}

/// All rows.
pub fn all() -> Vec<Row> {
    let mut rows = pings::rows();
    rows.extend(tokens::rows());
    rows.extend(prompts::rows());
    rows.extend(memory::rows());
    rows.extend(start::rows());
    rows.extend(fan::rows());
    rows.extend(bus::rows());
    rows.extend(cluster::rows());
    rows
}

/// An empty home.
pub fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A configuration whose model is this one, without limits that the load would meet.
pub fn on_model(model: &Model) -> String {
    format!(
        "[providers.bench]\nkind = \"openai\"\nbase_url = \"http://{}/v1\"\n\
         [agents.main]\nprovider = \"bench\"\nmodel = \"bench\"\ntools = []\n{NO_LIMITS}",
        model.address
    )
}

/// The limits that are there for strangers.
pub const NO_LIMITS: &str = "[limits]\nrequests_burst = 0\nsessions = 0\n";

/// What each of so many contenders gave.
pub fn columns<const N: usize>(found: Vec<Vec<Vec<f64>>>) -> [Vec<Vec<f64>>; N] {
    found.try_into().unwrap_or_else(|_| panic!("{N} contenders"))
}
