//! What is counted while the daemon works, for whoever watches it: `/metrics`, mostly.
//!
//! One shared value. Those who do the work count it here, or where they count already (the log's
//! figures, the table of connections); `/metrics` ([`metrics`](crate::http::metrics)) reads all of it
//! without asking anybody who may be stuck. Nothing here is touched for a single token: a session
//! compares two numbers each time it has written, a call or a run counts once, at its end.
//!
//! Labels come from the configuration or from closed sets, and there is an end to them: what would be
//! one too many counts as [`OTHER`]. Deliberately absent: names of sessions and of users.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clawmux_core::error::ErrorCode;
use clawmux_core::provider::usage::Usage;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Stands for what is one too many.
pub const OTHER: &str = "other";

/// The most values of one name that are told apart.
const SERIES_MAX: usize = 256;

/// How often an arbiter shows that it is awake.
const BEAT: Duration = Duration::from_millis(500);

/// From what runs and calls take, to what waits for people; in seconds.
const LONG: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0];

/// From what a commit takes to what a stuck disk does; in seconds.
const SHORT: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Names and values that tell the series of one metric apart.
pub(crate) type Labels<const N: usize> = [(&'static str, String); N];

/// A metric with an end to its series.
#[derive(Debug)]
struct Bounded<const N: usize, M> {
    family: Family<Labels<N>, M, fn() -> M>,
    series: AtomicUsize,
}

/// All of it; cheap to clone, and every clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Meters(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sessions_awake: Gauge,
    runs_under_way: Gauge,
    runs_queued: Gauge,
    tokens: Bounded<3, Counter>,
    provider_calls: Bounded<1, Counter>,
    provider_errors: Bounded<2, Counter>,
    tool_calls: Bounded<2, Counter>,
    tool_seconds: Bounded<1, Histogram>,
    arbiter_lag: Bounded<1, Histogram>,
    beats: Mutex<Vec<Arc<Beat>>>,
    since: Instant,
}

impl<const N: usize, M: Clone> Bounded<N, M> {
    fn of(make: fn() -> M) -> Self {
        Self { family: Family::new_with_constructor(make), series: AtomicUsize::new(0) }
    }

    /// The series of these labels, or of `other` where there are too many.
    fn at(&self, labels: Labels<N>, other: impl FnOnce() -> Labels<N>) -> M {
        let is_known = self.family.get(&labels).is_some();
        // Two that come with the same at once count twice, which is on the safe side.
        let is_room = is_known || self.series.fetch_add(1, Relaxed) < SERIES_MAX;
        self.family.get_or_create_owned(&if is_room { labels } else { other() })
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            sessions_awake: Gauge::default(),
            runs_under_way: Gauge::default(),
            runs_queued: Gauge::default(),
            tokens: Bounded::of(Counter::default),
            provider_calls: Bounded::of(Counter::default),
            provider_errors: Bounded::of(Counter::default),
            tool_calls: Bounded::of(Counter::default),
            tool_seconds: Bounded::of(long),
            arbiter_lag: Bounded::of(short),
            beats: Mutex::default(),
            since: Instant::now(),
        }
    }
}

/// Of what takes from milliseconds to minutes.
pub(crate) fn long() -> Histogram {
    Histogram::new(LONG)
}

/// Of what takes from microseconds to a second.
pub(crate) fn short() -> Histogram {
    Histogram::new(SHORT)
}

/// How a call of a tool ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// With a result.
    Ok,
    /// With an error, which the model is told.
    Error,
    /// It was cut off: the run was aborted, or the daemon stops.
    Cancelled,
}

impl CallEnd {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Meters {
    /// A session is awake, until this is dropped.
    pub fn awake(&self) -> Awake {
        self.0.sessions_awake.inc();
        Awake { meters: self.clone(), under_way: 0, queued: 0 }
    }

    /// A model of a provider was called; it counted so many tokens.
    pub fn spent(&self, provider: &str, model: &str, usage: Usage) {
        for (direction, tokens) in [("input", usage.input_tokens), ("output", usage.output_tokens)] {
            let labels = |provider: &str, model: &str| {
                [
                    ("provider", provider.to_owned()),
                    ("model", model.to_owned()),
                    ("direction", direction.to_owned()),
                ]
            };
            self.0.tokens.at(labels(provider, model), || labels(OTHER, OTHER)).inc_by(tokens);
        }
    }

    /// A request goes to a provider.
    pub fn asked(&self, provider: &str) {
        let labels = |provider: &str| [("provider", provider.to_owned())];
        self.0.provider_calls.at(labels(provider), || labels(OTHER)).inc();
    }

    /// A provider did not answer, or not to the end.
    pub fn failed(&self, provider: &str, code: ErrorCode) {
        let labels = |provider: &str| [("provider", provider.to_owned()), ("code", code.name().to_owned())];
        self.0.provider_errors.at(labels(provider), || labels(OTHER)).inc();
    }

    /// A tool was called, which took so long. `tool` is one that its agent is offered.
    pub fn called(&self, tool: &str, end: CallEnd, took: Duration) {
        let labels = |tool: &str| [("tool", tool.to_owned()), ("outcome", end.name().to_owned())];
        self.0.tool_calls.at(labels(tool), || labels(OTHER)).inc();
        let labels = |tool: &str| [("tool", tool.to_owned())];
        self.0.tool_seconds.at(labels(tool), || labels(OTHER)).observe(took.as_secs_f64());
    }

    /// Measures from here on how late the arbiter is woken on which this is called; until it ends, or
    /// nobody has these meters any more.
    pub fn watch_arbiter(&self, name: impl Into<String>) {
        let beat = Arc::new(Beat { arbiter: name.into(), seen_ms: AtomicU64::new(0) });
        let lag =
            self.0.arbiter_lag.at([("arbiter", beat.arbiter.clone())], || [("arbiter", OTHER.to_owned())]);
        let since = self.0.since;
        beat.seen(since);
        self.lock_beats().push(beat.clone());
        let meters = Arc::downgrade(&self.0);
        actix::spawn(async move {
            while meters.strong_count() > 0 {
                let due = tokio::time::Instant::now() + BEAT;
                tokio::time::sleep_until(due).await;
                lag.observe(due.elapsed().as_secs_f64());
                beat.seen(since);
            }
        });
    }

    /// For how long each arbiter has not shown itself, beyond what it may.
    pub fn arbiters_silent(&self) -> Vec<(String, Duration)> {
        let silent = |beat: &Arc<Beat>| (beat.arbiter.clone(), beat.silence(self.0.since));
        self.lock_beats().iter().map(silent).collect()
    }

    fn lock_beats(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Beat>>> {
        self.0.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters all of it.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let all = &*self.0;
        registry.register("sessions_awake", "Sessions in memory", all.sessions_awake.clone());
        registry.register(
            "runs_under_way",
            "Runs whose turn has come and that have not ended",
            all.runs_under_way.clone(),
        );
        registry.register("runs_queued", "Prompts that wait for their turn", all.runs_queued.clone());
        registry.register(
            "tokens",
            "Tokens that providers counted, by provider, model and direction",
            all.tokens.family.clone(),
        );
        registry.register(
            "provider_calls",
            "Requests to providers, tries after a failure included",
            all.provider_calls.family.clone(),
        );
        registry.register(
            "provider_errors",
            "Requests to providers that failed, by what went wrong",
            all.provider_errors.family.clone(),
        );
        registry.register(
            "tool_calls",
            "Calls of tools that are over, by how they ended",
            all.tool_calls.family.clone(),
        );
        registry.register_with_unit(
            "tool_call_duration",
            "How long calls of tools took",
            Unit::Seconds,
            all.tool_seconds.family.clone(),
        );
        registry.register_with_unit(
            "arbiter_lag",
            "How late each arbiter was woken, looked at twice a second",
            Unit::Seconds,
            all.arbiter_lag.family.clone(),
        );
        let silent = Family::<Labels<1>, Gauge<f64, AtomicU64>>::default();
        for (arbiter, silence) in self.arbiters_silent() {
            silent.get_or_create(&[("arbiter", arbiter)]).set(silence.as_secs_f64());
        }
        registry.register_with_unit(
            "arbiter_blocked",
            "For how long each arbiter has not woken when it should have; 0 = it is not blocked",
            Unit::Seconds,
            silent,
        );
    }
}

/// A session that is awake, in the sums of all.
#[derive(Debug)]
pub struct Awake {
    meters: Meters,
    under_way: i64,
    queued: i64,
}

impl Awake {
    /// Whether a run of it is under way, and how many prompts wait.
    pub fn set(&mut self, under_way: bool, queued: usize) {
        let (under_way, queued) = (i64::from(under_way), i64::try_from(queued).unwrap_or(i64::MAX));
        if (self.under_way, self.queued) != (under_way, queued) {
            self.meters.0.runs_under_way.inc_by(under_way - self.under_way);
            self.meters.0.runs_queued.inc_by(queued - self.queued);
            (self.under_way, self.queued) = (under_way, queued);
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.set(false, 0);
        self.meters.0.sessions_awake.dec();
    }
}

/// When an arbiter last showed that it is awake.
#[derive(Debug)]
struct Beat {
    arbiter: String,
    /// Since the meters were made.
    seen_ms: AtomicU64,
}

impl Beat {
    fn seen(&self, since: Instant) {
        self.seen_ms.store(millis(since.elapsed()), Relaxed);
    }

    fn silence(&self, since: Instant) -> Duration {
        let last = Duration::from_millis(self.seen_ms.load(Relaxed));
        // Half a beat more is a busy arbiter and no blocked one.
        since.elapsed().checked_sub(last + BEAT + BEAT / 2).unwrap_or_default()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    fn told(meters: &Meters) -> String {
        let mut registry = Registry::with_prefix("clawmux");
        meters.register(&mut registry);
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn sessions_leave_the_sums_when_they_end() {
        let meters = Meters::default();
        let (mut one, mut two) = (meters.awake(), meters.awake());
        one.set(true, 3);
        two.set(true, 1);
        one.set(true, 2);
        let all = told(&meters);
        for line in ["clawmux_sessions_awake 2", "clawmux_runs_under_way 2", "clawmux_runs_queued 3"] {
            assert!(all.lines().any(|told| told == line), "{line}: {all}");
        }
        drop((one, two));
        let all = told(&meters);
        for line in ["clawmux_sessions_awake 0", "clawmux_runs_under_way 0", "clawmux_runs_queued 0"] {
            assert!(all.lines().any(|told| told == line), "{line}: {all}");
        }
    }

    #[test]
    fn there_is_an_end_to_labels_and_they_are_escaped() {
        let meters = Meters::default();
        let usage = Usage::new(2, 3);
        meters.spent("p", "a\"b\\c\nd", usage);
        assert!(told(&meters).contains(r#"model="a\"b\\c\nd",direction="output"} 3"#), "{}", told(&meters));
        for n in 0..SERIES_MAX {
            meters.spent("p", &format!("m{n}"), usage);
        }
        let all = told(&meters);
        let series = all.lines().filter(|line| line.starts_with("clawmux_tokens_total")).count();
        assert!(series <= SERIES_MAX + 2, "{series}");
        let sum: u64 = all
            .lines()
            .filter(|line| line.starts_with("clawmux_tokens_total"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, 5 * (SERIES_MAX as u64 + 1), "what is one too many is counted");
        assert!(all.contains(r#"model="other""#));
    }

    #[actix::test]
    async fn an_arbiter_that_is_blocked_is_seen_while_it_is() {
        let meters = Meters::default();
        let arbiter = actix::Arbiter::new();
        let (block, blocked) = std::sync::mpsc::channel::<()>();
        let of_arbiter = meters.clone();
        arbiter.spawn(async move {
            of_arbiter.watch_arbiter("one");
            actix::spawn(async move { blocked.recv().unwrap_err() });
        });
        let silence = || meters.arbiters_silent().first().map(|(_, silence)| *silence).unwrap_or_default();
        let begun = Instant::now();
        while silence().is_zero() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not seen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(block);
        let late = || {
            told(&meters)
                .lines()
                .any(|line| line.starts_with("clawmux_arbiter_lag_seconds_sum") && !line.ends_with(" 0.0"))
        };
        while !silence().is_zero() || !late() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is seen as blocked for ever");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        arbiter.stop();
    }
}
