//! What CI holds the daemon to: how many times the CPU time of a limit program it may take, a third more than it took
//! when that was last written down. Ratios of CPU time differ little between machines.

use crate::figures::Figure;

/// A figure's title, the program beside it, and the ratio that may not be passed.
const CEILINGS: [(&str, &str, f64); 11] = [
    ("ping 64x1, CPU", "epoll echo", 1.8),
    ("ping 64x1, CPU", "actix echo", 1.4),
    ("ping 64x16, CPU", "epoll echo", 3.4),
    ("ping wundr 64x1, CPU", "epoll echo", 2.1),
    ("ping xeno 64x1, CPU", "epoll echo", 7.0),
    ("token flat 16, CPU", "awc relay", 5.2),
    ("token paced 64@100, CPU", "relay", 5.4),
    ("one-token chat, CPU", "relay", 12.0),
    ("fan exoclaw 1000, CPU a delivery", "fan", 2.4),
    ("fan wundr 1000, CPU a delivery", "fan", 2.9),
    ("fan openclaw 1000, CPU a delivery", "fan", 1.6),
];

/// Whether a row of this name has any.
pub fn has(row: &str) -> bool {
    CEILINGS.iter().any(|(title, ..)| title.split(',').next() == Some(row))
}

/// Whether all hold; says of each that does not.
pub fn hold(figures: &[Figure]) -> bool {
    let mut holds = true;
    for (title, beside, ceiling) in CEILINGS {
        let figure = figures.iter().find(|figure| figure.title() == title);
        let other = figure
            .and_then(|figure| Some((figure, figure.beside.iter().find(|other| other.name == beside)?)));
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
