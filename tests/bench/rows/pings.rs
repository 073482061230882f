//! What the smallest request costs, in each protocol.

use super::{Extent, NO_LIMITS, Row, home};
use crate::figures::{Figure, rounds};
use crate::load::dialect::Dialect;
use crate::load::pings::Pings;
use crate::process::Process;

/// The shares of a limit program's pings that the daemon shall answer with the same CPU time.
const OF_EPOLL: f64 = 1.0 / 0.75;
const OF_EPOLL_DEEP: f64 = 1.0 / 0.65;
const OF_ACTIX: f64 = 1.0 / 0.95;

const CONNECTIONS: usize = 64;
const ROUNDS: usize = 7;
/// In one round.
const PINGS: usize = 40_000;
const PINGS_DEEP: usize = 200_000;

/// The rows of this topic.
pub(super) fn rows() -> Vec<Row> {
    let of = |name: &str, dialect, depth| {
        Row::new(name, move |name, extent| measure(name, extent, dialect, depth, false))
    };
    vec![
        of("ping 64x1", Dialect::Exoclaw, 1),
        of("ping 64x16", Dialect::Exoclaw, 16),
        of("ping wundr 64x1", Dialect::Wundr, 1),
        of("ping openclaw 64x1", Dialect::OpenClaw, 1),
        of("ping xeno 64x1", Dialect::Xeno, 1),
        Row::new("ping 64x1 one core", |name, extent| measure(name, extent, Dialect::Exoclaw, 1, true)),
    ]
}

fn measure(name: &str, extent: Extent, dialect: Dialect, depth: usize, is_one_core: bool) -> Vec<Figure> {
    let (home, limit_home) = (home(), home());
    let limit = if is_one_core { Process::limit_on_one_core } else { Process::limit };
    let daemon = if is_one_core { Process::daemon_on_one_core } else { Process::daemon };
    let daemon = daemon(home.path(), NO_LIMITS);
    let is_web = dialect != Dialect::Xeno;
    let lines = limit_home.path().display().to_string();
    let (epoll, heard) = match is_web {
        true => (limit(&["limit-echo"]), Dialect::Bare),
        false => (Process::limit_at(&["limit-lines", &lines], limit_home.path()), Dialect::Xeno),
    };
    let actix = is_web.then(|| limit(&["limit-actix-echo"]));
    let count = extent.units(if depth == 1 { PINGS } else { PINGS_DEEP });
    let contender = |process: &Process, hears| {
        let mut pings = Pings::connect(process, CONNECTIONS, hears, dialect);
        // Once to warm up.
        pings.cpu_us(count / 10, depth);
        Box::new(move || vec![pings.cpu_us(count, depth)]) as Box<dyn FnMut() -> Vec<f64>>
    };
    let mut contenders = vec![contender(&daemon, dialect), contender(&epoll, heard)];
    contenders.extend(actix.as_ref().map(|actix| contender(actix, Dialect::Bare)));
    let mut found =
        rounds(extent.rounds(ROUNDS), contenders).into_iter().map(|mut figures| figures.remove(0));
    let mut next = || found.next().unwrap_or_default();
    let of_epoll = if depth == 1 { OF_EPOLL } else { OF_EPOLL_DEEP };
    let mut figure = Figure::new(name, "CPU", "µs", next()).beside("epoll echo", next(), of_epoll);
    if actix.is_some() {
        figure = figure.beside("actix echo", next(), (depth == 1).then_some(OF_ACTIX));
    }
    vec![figure]
}
