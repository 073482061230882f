//! What was measured, and what it says: medians of the ratios of single rounds, in which ours and the limit programs
//! ran one after the other.

/// A limit program that strays from its own median by more than this says nothing in that round.
const WAVERS: f64 = 0.25;

/// One line of the findings.
pub struct Figure {
    /// What is measured, such as `ping 64x1`.
    pub name: String,
    /// Of which kind: `CPU`, `p50`, `memory`.
    pub kind: &'static str,
    /// What the values are in. Less is better in all of them.
    pub unit: &'static str,
    /// The daemon's, one for each round.
    pub ours: Vec<f64>,
    /// Others in the same rounds.
    pub beside: Vec<Beside>,
    /// What ours shall not be above, where the goal is no ratio.
    pub at_most: Option<f64>,
}

/// Another program in the same rounds.
pub struct Beside {
    /// Which one.
    pub name: &'static str,
    /// One value for each round.
    pub values: Vec<f64>,
    /// How many times its value ours may be.
    pub goal: Option<f64>,
}

/// Of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least.
    pub low: f64,
    /// The one in the middle.
    pub median: f64,
    /// The most.
    pub high: f64,
}

impl Figure {
    /// With nothing beside it.
    pub fn new(name: impl Into<String>, kind: &'static str, unit: &'static str, ours: Vec<f64>) -> Self {
        Self { name: name.into(), kind, unit, ours, beside: Vec::new(), at_most: None }
    }

    /// With a goal in its own unit.
    pub fn at_most(mut self, goal: f64) -> Self {
        self.at_most = Some(goal);
        self
    }

    /// With another program in the same rounds; ours shall take no more than `goal` times what it takes.
    pub fn beside(mut self, name: &'static str, values: Vec<f64>, goal: impl Into<Option<f64>>) -> Self {
        self.beside.push(Beside { name, values, goal: goal.into() });
        self
    }

    /// Its name and kind.
    pub fn title(&self) -> String {
        format!("{}, {}", self.name, self.kind)
    }
}

impl Beside {
    /// Whether it was steady in most of the rounds, so that the ratio says something.
    pub fn is_steady(&self, ours: &[f64]) -> bool {
        2 * self.ratio(ours).1 < self.values.len()
    }

    /// How many times its value ours is, over the rounds in which it was steady; and how many others there were.
    pub fn ratio(&self, ours: &[f64]) -> (Spread, usize) {
        let usual = spread(&self.values).median;
        let rounds = ours.iter().zip(&self.values);
        let kept: Vec<f64> = rounds
            .filter(|(_, value)| (*value / usual - 1.0).abs() <= WAVERS)
            .map(|(ours, value)| ours / value)
            .collect();
        let discarded = self.values.len() - kept.len();
        // Of an even number of rounds that are far apart, none is near the middle.
        if kept.is_empty() {
            (spread(&[spread(ours).median / usual]), discarded)
        } else {
            (spread(&kept), discarded)
        }
    }
}

/// Of all these values.
///
/// # Panics
/// Where there are none.
pub fn spread(values: &[f64]) -> Spread {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Spread { low, median, high }
}

/// The value that so large a share is not above; of no values it is 0.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// What takes part in the rounds of a row: each time it gives a value for each of the row's figures.
pub type Contender<'a> = Box<dyn FnMut() -> Vec<f64> + 'a>;

/// Has all of them go so often, every second time in the other order; gives the values of each contender for each
/// figure, over the rounds.
pub fn rounds(count: usize, mut contenders: Vec<Contender<'_>>) -> Vec<Vec<Vec<f64>>> {
    let mut found: Vec<Vec<Vec<f64>>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..count {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for contender in order {
            let values = contenders[contender]();
            found[contender].resize_with(values.len(), Vec::new);
            for (figure, value) in found[contender].iter_mut().zip(values) {
                figure.push(value);
            }
        }
    }
    found
}
