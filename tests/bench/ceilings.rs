//! What CI holds the daemon to: how many times the CPU time of a limit program it may take. For a release build that is a
//! third to a half more than it took when that was last written down, and ratios of CPU time differ little between
//! machines. Without optimization, on a machine that others use too, they do: one and the same build took from 4.3 to 9.2
//! times as much as the relay for paced tokens, where the processor sleeps between any two, and from 13 to 22.5 times for
//! a chat of one token. There every ceiling is twice what was measured at least: they find what doubles the work and no
//! more. What goes to many of OpenClaw's clients is gathered the more, the less time the daemon has, so that a delivery
//! costs any multiple there (5 to 62 times, of one and the same build): it has no ceiling without optimization.

use crate::figures::Figure;

/// A figure, and how far it may go.
struct Ceiling {
    title: &'static str,
    /// The program beside it.
    beside: &'static str,
    /// The ratio that may not be passed by a release build.
    release: f64,
    /// The same without optimization, as CI builds it.
    dev: f64,
}

/// No ceiling.
const NONE: f64 = f64::INFINITY;

const CEILINGS: [Ceiling; 11] = [
    ceiling("ping 64x1, CPU", "epoll echo", 2.0, 5.0),
    ceiling("ping 64x1, CPU", "actix echo", 1.5, 2.5),
    ceiling("ping 64x16, CPU", "epoll echo", 3.2, 8.0),
    ceiling("ping wundr 64x1, CPU", "epoll echo", 2.2, 6.5),
    ceiling("ping xeno 64x1, CPU", "epoll echo", 7.2, 28.0),
    ceiling("token flat 16, CPU", "awc relay", 3.6, 4.0),
    ceiling("token paced 64@100, CPU", "relay", 2.7, 12.0),
    ceiling("one-token chat, CPU", "relay", 11.0, 42.0),
    ceiling("fan exoclaw 1000, CPU a delivery", "fan", 2.1, 6.5),
    ceiling("fan wundr 1000, CPU a delivery", "fan", 2.9, 8.0),
    ceiling("fan openclaw 1000, CPU a delivery", "fan", 1.4, NONE),
];

const fn ceiling(title: &'static str, beside: &'static str, release: f64, dev: f64) -> Ceiling {
    Ceiling { title, beside, release, dev }
}

impl Ceiling {
    /// That of this build.
    fn ratio(&self) -> f64 {
        if cfg!(debug_assertions) { self.dev } else { self.release }
    }
}

/// Whether a row of this name has any.
pub fn has(row: &str) -> bool {
    let is_of_row = |ceiling: &&Ceiling| ceiling.title.split(',').next() == Some(row);
    CEILINGS.iter().filter(is_of_row).any(|ceiling| ceiling.ratio() < NONE)
}

/// Whether all hold; says of each that does not.
pub fn hold(figures: &[Figure]) -> bool {
    let mut holds = true;
    for of_build in CEILINGS {
        let (Ceiling { title, beside, .. }, ceiling) = (&of_build, of_build.ratio());
        let figure = figures.iter().find(|figure| figure.title() == *title);
        let other = figure
            .and_then(|figure| Some((figure, figure.beside.iter().find(|other| other.name == *beside)?)));
        // Rows that were not asked for.
        let Some((figure, other)) = other else { continue };
        let (ratio, _) = other.ratio(&figure.ours);
        if ratio.median > ceiling {
            println!(
                "{title}: {:.2} times that of {beside}, and no more than {ceiling} is allowed",
                ratio.median
            );
            holds = false;
        }
    }
    holds
}
