//! The findings as people and programs read them: a table on the terminal, JSON, Markdown and a plot.

pub mod plot;

use serde_json::{Value, json};

use crate::figures::{Figure, Spread, spread};

/// A line of the table: ours beside one other program, or alone.
pub struct Line {
    /// What was measured.
    pub title: String,
    /// In this unit, the median.
    pub ours: f64,
    /// What the values are in.
    pub unit: &'static str,
    /// The other program, and its median.
    pub limit: Option<(&'static str, f64)>,
    /// How many times that ours is; and in how many rounds the other one wavered.
    pub ratio: Option<(Spread, usize)>,
    /// What ours shall not be above.
    pub goal: Option<Goal>,
}

/// A goal, and how far ours is from it.
#[derive(Clone)]
pub struct Goal {
    /// As it is shown.
    pub shown: String,
    /// How many times what it allows ours is.
    pub share: f64,
    /// Whether it is about the ratio, not about ours alone.
    pub is_ratio: bool,
    /// Whether enough rounds were kept to say whether it is met.
    pub is_sure: bool,
}

impl Goal {
    /// Whether it is met, for sure.
    pub fn is_met(&self) -> bool {
        self.is_sure && self.share <= 1.0
    }
}

/// The lines of a figure.
pub fn lines(figure: &Figure) -> Vec<Line> {
    let ours = spread(&figure.ours).median;
    let (title, unit) = (figure.title(), figure.unit);
    let of_its_own = figure.at_most.map(|goal| Goal {
        shown: format!("{} {unit}", number(goal)),
        share: ours / goal,
        is_ratio: false,
        is_sure: true,
    });
    if figure.beside.is_empty() {
        return vec![Line { title, ours, unit, limit: None, ratio: None, goal: of_its_own }];
    }
    let beside = |(place, other): (usize, &crate::figures::Beside)| {
        let (ratio, discarded) = other.ratio(&figure.ours);
        let by_ratio = other.goal.map(|goal| Goal {
            shown: format!("{goal:.2}x"),
            share: ratio.median / goal,
            is_ratio: true,
            is_sure: other.is_steady(&figure.ours),
        });
        Line {
            title: title.clone(),
            ours,
            unit,
            limit: Some((other.name, spread(&other.values).median)),
            ratio: Some((ratio, discarded)),
            goal: by_ratio.or_else(|| if place == 0 { of_its_own.clone() } else { None }),
        }
    };
    figure.beside.iter().enumerate().map(beside).collect()
}

/// Three digits that say something.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Line {
    /// What stands in each column.
    fn cells(&self) -> [String; 6] {
        let (limit, ratio) = match (&self.limit, &self.ratio) {
            (Some((name, value)), Some((ratio, discarded))) => {
                let discarded =
                    if *discarded > 0 { format!(", {discarded} discarded") } else { String::new() };
                let spread = format!("{:.2} ({:.2}..{:.2}{discarded})", ratio.median, ratio.low, ratio.high);
                (format!("{} {name}", number(*value)), spread)
            }
            _ => (String::new(), String::new()),
        };
        let (goal, met) = match &self.goal {
            Some(goal) if !goal.is_sure => (goal.shown.clone(), "unsure"),
            Some(goal) => (goal.shown.clone(), if goal.is_met() { "yes" } else { "no" }),
            None => (String::new(), ""),
        };
        [
            self.title.clone(),
            format!("{} {}", number(self.ours), self.unit),
            limit,
            ratio,
            goal,
            met.to_owned(),
        ]
    }
}

const HEADINGS: [&str; 6] = ["row", "ours", "limit", "ratio (least..most)", "goal", "met"];
const WIDTHS: [usize; 6] = [40, 12, 24, 36, 10, 6];

fn columns(cells: [String; 6]) -> String {
    let padded = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:<width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// The headings on a terminal.
pub fn terminal_head() -> String {
    columns(HEADINGS.map(str::to_owned))
}

/// A line on a terminal.
pub fn terminal(line: &Line) -> String {
    columns(line.cells())
}

/// When, of what and where it was measured.
pub struct Occasion {
    /// The day.
    pub date: String,
    /// The commit, with a mark where the tree was changed.
    pub commit: String,
    /// The number of cores.
    pub cores: usize,
    /// How many programs already ran or waited for one of them, on the average of the minute before.
    pub load: String,
}

impl Occasion {
    /// Now and here.
    pub fn now() -> Self {
        let git = |args: &[&str]| {
            let output =
                std::process::Command::new("git").args(args).output().ok().filter(|git| git.status.success());
            output.map(|git| String::from_utf8_lossy(&git.stdout).trim().to_owned()).unwrap_or_default()
        };
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let changed = if git(&["status", "--porcelain", "-uno"]).is_empty() { "" } else { ", changed" };
        Self {
            date: jiff::Zoned::now().date().to_string(),
            commit: git(&["rev-parse", "--short", "HEAD"]) + changed,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    /// Whether others seem to use the machine.
    pub fn is_busy(&self) -> bool {
        self.load.parse::<f64>().is_ok_and(|load| load > self.cores as f64 * 0.75)
    }

    /// In a sentence.
    pub fn told(&self) -> String {
        format!("{}, commit {}, {} cores, load {} before", self.date, self.commit, self.cores, self.load)
    }
}

/// What the rows and columns mean.
const LEGEND: &str = "\
Every row puts the daemon beside a *limit program* of this repository (`tests/bench/limit/`), which moves the same bytes \
over the same wires and does nothing else: `epoll echo` and `actix echo` answer every frame with itself; `relay` and \
`awc relay` hand the bytes of a provider's stream on, without reading them; `append+sync` appends to a file and waits for \
the disk; `fan` writes one frame to all. They authenticate, parse, store and remember nothing, so a ratio says what all of \
that costs. Less is better everywhere.

- `ping AxB`: A connections with B requests under way each; CPU time of one.
- `token flat N`: N answers at once, as fast as they come; `token paced N@R`: R tokens a second each; `mixed`: in the \
three protocols that are spoken over WebSockets. CPU time of one token. `age`: how old a token is when the client has it.
- `one-token chat`: a prompt in a new session, from beginning to end. `first token N`: N such at once, until the first \
token comes, less what the disk takes to sync once.
- `prompts N`: how long N sessions take to acknowledge a prompt, each prompt by itself on the disk.
- `idle connection`, `session awake`: memory of one. `wake`: from a request for a session that sleeps to its answer.
- `start`: to the first answered ping, in an empty home, a used one, and one with 100,000 sessions. `kill`: from \
`kill -9` with 10,000 sessions to the first resumed frame.
- `fan N`: N connections follow one session; CPU time of one delivery.

`ratio` is the median over rounds of ours to the limit program in the same round, with the least and the most; it is not \
the quotient of the two medians beside it. Rounds in which the limit program strayed from its own median by over a \
quarter are discarded; where most were, it is `unsure` whether the goal is met. Rows without a goal are there to compare.
";

/// How many goals are met, in a sentence.
fn met(lines: &[Line]) -> String {
    let goals: Vec<&Goal> = lines.iter().filter_map(|line| line.goal.as_ref()).collect();
    let met = goals.iter().filter(|goal| goal.is_met()).count();
    format!("{met} of {} goals are met.", goals.len())
}

/// For the README.
pub fn markdown(occasion: &Occasion, lines: &[Line]) -> String {
    let row = |cells: [String; 6]| format!("| {} |\n", cells.join(" | "));
    let head = row(HEADINGS.map(str::to_owned)) + "|---|---|---|---|---|---|\n";
    let rows: String = lines.iter().map(|line| row(line.cells())).collect();
    format!(
        "# Figures\n\nMeasured {}, with `cargo bench --bench bench -- --write`. {}\n\n{LEGEND}\n{head}{rows}",
        occasion.told(),
        met(lines)
    )
}

/// For programs: every value of every round.
pub fn json(occasion: &Occasion, figures: &[Figure]) -> Value {
    let figure = |figure: &Figure| {
        let beside = figure.beside.iter().map(|other| {
            let (ratio, discarded) = other.ratio(&figure.ours);
            json!({
                "name": other.name, "values": other.values, "goal": other.goal, "ratio": ratio.median,
                "least": ratio.low, "most": ratio.high, "discarded": discarded,
            })
        });
        json!({
            "name": figure.name, "kind": figure.kind, "unit": figure.unit, "ours": figure.ours,
            "at_most": figure.at_most, "beside": beside.collect::<Vec<_>>(),
        })
    };
    json!({
        "date": occasion.date, "commit": occasion.commit, "cores": occasion.cores, "load": occasion.load,
        "figures": figures.iter().map(figure).collect::<Vec<_>>(),
    })
}
