//! Schedules over days that are shorter and longer than others, and clocks that jump.

use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    let time: jiff::Timestamp = text.parse().unwrap();
    Timestamp::from_millis(u64::try_from(time.as_millisecond()).unwrap())
}

fn cron(expression: &str, zone: &str) -> Schedule {
    let plan = Plan::Cron { expression: expression.into(), zone: Some(zone.into()) };
    Schedule::new(&plan, at("2026-01-01T00:00:00Z"), "UTC").unwrap()
}

fn every(seconds: u64, anchor: u64) -> Schedule {
    Schedule::Every { every: Duration::from_secs(seconds), anchor: Timestamp::from_millis(anchor) }
}

/// The times after one, as people write them.
fn times(schedule: &Schedule, after: &str, count: usize) -> Vec<String> {
    let mut after = at(after);
    let mut times = Vec::new();
    for _ in 0..count {
        after = schedule.next(after).unwrap();
        times.push(after.to_rfc3339().replace(":00.000Z", "Z"));
    }
    times
}

#[test]
fn the_shortest_gap_is_that_of_the_next_times() {
    let now = at("2026-01-01T00:00:00Z");
    for (schedule, gap) in [
        (every(90, 0), Some(90)),
        (cron("*/10 * * * * *", "UTC"), Some(10)),
        (cron("0,1 9 * * *", "UTC"), Some(60)),
        (cron("0 9 * * *", "UTC"), Some(24 * 3600)),
        (Schedule::At(at("2026-01-02T00:00:00Z")), None),
    ] {
        assert_eq!(schedule.shortest_gap(now, 64), gap.map(Duration::from_secs), "{schedule:?}");
    }
}

#[test]
fn spans_are_counted_from_their_anchor() {
    let schedule = every(10, 5_000);
    let next = |after| schedule.next(Timestamp::from_millis(after)).unwrap().as_millis();
    assert_eq!(
        [0, 4_999, 5_000, 5_001, 14_999, 15_000].map(next),
        [5_000, 5_000, 15_000, 15_000, 15_000, 25_000]
    );
    assert_eq!(schedule.next(Timestamp::from_millis(u64::MAX)), None);
    let now = Timestamp::from_millis(1_000);
    let plan = Plan::Every { every: Duration::from_secs(60), anchor: None };
    let made = Schedule::new(&plan, now, "UTC").unwrap();
    assert_eq!(made.next(now), Some(Timestamp::from_millis(61_000)), "one span from now");
    for bad in [Duration::ZERO, Duration::from_millis(999), EVERY_MAX + Duration::from_secs(1)] {
        let plan = Plan::Every { every: bad, anchor: None };
        assert!(Schedule::new(&plan, now, "UTC").is_err(), "{bad:?}");
    }
}

#[test]
fn a_time_comes_once() {
    let schedule = Schedule::At(Timestamp::from_millis(7));
    assert_eq!(schedule.next(Timestamp::from_millis(6)), Some(Timestamp::from_millis(7)));
    assert_eq!(schedule.next(Timestamp::from_millis(7)), None);
}

/// In Berlin 02:00 became 03:00 on 2026-03-29, at 01:00 UTC.
#[test]
fn what_falls_into_a_gap_is_done_once_right_after_it() {
    let fixed = cron("30 2 * * *", "Europe/Berlin");
    let expected = ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"];
    assert_eq!(times(&fixed, "2026-03-28T00:00:00Z", 3), expected);
    let list = cron("30 2,14 * * *", "Europe/Berlin");
    let expected = ["2026-03-29T01:00Z", "2026-03-29T12:30Z", "2026-03-30T00:30Z"];
    assert_eq!(times(&list, "2026-03-28T20:00:00Z", 3), expected);
    let running = cron("*/30 * * * *", "Europe/Berlin");
    let expected = ["2026-03-29T00:30Z", "2026-03-29T01:00Z", "2026-03-29T01:30Z"];
    assert_eq!(times(&running, "2026-03-29T00:00:00Z", 3), expected, "it knows no gap");
}

/// In Berlin 03:00 became 02:00 on 2026-10-25, at 01:00 UTC.
#[test]
fn what_comes_twice_is_done_once_but_for_what_runs_with_the_clock() {
    let fixed = cron("30 2 * * *", "Europe/Berlin");
    let expected = ["2026-10-25T00:30Z", "2026-10-26T01:30Z"];
    assert_eq!(times(&fixed, "2026-10-25T00:00:00Z", 2), expected);
    assert_eq!(times(&fixed, "2026-10-25T00:45:00Z", 1), expected[1..], "also asked in between");
    let list = cron("0,30 2 * * *", "Europe/Berlin");
    let expected = ["2026-10-25T00:00Z", "2026-10-25T00:30Z", "2026-10-26T01:00Z"];
    assert_eq!(times(&list, "2026-10-24T12:00:00Z", 3), expected);
    let running = cron("0 * * * *", "Europe/Berlin");
    let expected = ["2026-10-25T00:00Z", "2026-10-25T01:00Z", "2026-10-25T02:00Z"];
    assert_eq!(times(&running, "2026-10-24T23:00:00Z", 3), expected);
}

#[test]
fn a_whole_day_that_a_country_left_out_is_left_out() {
    // Samoa had no 30th of December 2011.
    let schedule = cron("0 9 * * *", "Pacific/Apia");
    let got = times(&schedule, "2011-12-29T20:00:00Z", 2);
    assert_eq!(got, ["2011-12-30T19:00Z", "2011-12-31T19:00Z"]);
}

#[test]
fn zones_and_their_default() {
    let plan = Plan::Cron { expression: "0 9 * * 1-5".into(), zone: None };
    let made = Schedule::new(&plan, at("2026-07-01T00:00:00Z"), "America/New_York").unwrap();
    assert_eq!(times(&made, "2026-07-01T00:00:00Z", 1), ["2026-07-01T13:00Z"]);
    let Plan::Cron { zone, .. } = made.plan() else { panic!("it is a cron expression") };
    assert_eq!(zone.as_deref(), Some("America/New_York"), "and stays there");
    assert_eq!(Schedule::new(&made.plan(), at("2026-07-01T00:00:00Z"), "UTC").unwrap(), made);
}

#[test]
fn what_is_wrong_with_an_expression_is_named() {
    let why = |expression: &str, zone: &str| {
        let plan = Plan::Cron { expression: expression.into(), zone: Some(zone.into()) };
        Schedule::new(&plan, at("2026-01-01T00:00:00Z"), "UTC").unwrap_err().message
    };
    for (expression, expected) in [
        ("", "it is empty"),
        ("* * *", "3 fields"),
        ("61 * * * *", "the minute is 61; expected 0 to 59"),
        ("60 0 0 1 1 *", "the second is 60; expected 0 to 59"),
        ("0 0 1 13 *", "the month is 13; expected 1 to 12"),
        ("* 24 * * *", "the hour is 24; expected 0 to 23"),
        ("* * * * FOO", "FOO"),
        ("0 0 30 2 *", "never"),
        ("@sometimes", "unknown nickname"),
        (&"1,".repeat(200), "longer than"),
    ] {
        let why = why(expression, "UTC");
        assert!(why.starts_with("cron expression"), "{why}");
        assert!(
            why.contains(expected) || why.contains("ever comes") && expected == "never",
            "{expression:?}: {why}"
        );
    }
    let why = why("* * * * *", "Europe/Bärlin");
    assert!(why.contains("unknown time zone") && why.contains("Europe/Berlin"), "{why}");
    for good in ["0 0 * * 1", "*/5 9-17 * * MON-FRI", "30 0 0 1 1 *", "@daily", "0 0 L * *", "0 0 29 2 *"] {
        cron(good, "UTC");
    }
}

fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

#[test]
fn what_was_missed_is_dealt_with_as_the_policy_says() {
    let hour = 3_600_000;
    let schedule = every(3600, 0);
    let now = ms(10 * hour + 120_000);
    let dealt = |misfire| due(&schedule, misfire, ms(3 * hour), now).unwrap();
    assert_eq!(dealt(Misfire::Once), Due { scheduled: ms(10 * hour), missed: 6, is_skipped: false });
    assert_eq!(dealt(Misfire::Skip), Due { scheduled: ms(10 * hour), missed: 6, is_skipped: true });
    assert_eq!(dealt(Misfire::All(3)), Due { scheduled: ms(8 * hour), missed: 4, is_skipped: false });
    assert_eq!(dealt(Misfire::All(100)), Due { scheduled: ms(4 * hour), missed: 0, is_skipped: false });
    // On time is on time under every policy.
    for misfire in [Misfire::Skip, Misfire::Once, Misfire::All(1)] {
        let on_time = due(&schedule, misfire, ms(9 * hour), ms(10 * hour + 5)).unwrap();
        assert_eq!(on_time, Due { scheduled: ms(10 * hour), missed: 0, is_skipped: false });
    }
    assert_eq!(due(&schedule, Misfire::Once, ms(10 * hour), now), None);
}

#[test]
fn a_clock_that_is_put_back_does_nothing_again() {
    let hour = 3_600_000;
    let schedule = every(3600, 0);
    // Done up to 10 o'clock, and it is half past seven again.
    let now = ms(7 * hour + hour / 2);
    assert_eq!(due(&schedule, Misfire::Once, ms(10 * hour), now), None);
    assert_eq!(put_back(ms(10 * hour), None, now), None);
    assert_eq!(schedule.next(ms(10 * hour)), Some(ms(11 * hour)));
}

#[test]
fn a_clock_that_was_far_ahead_is_not_waited_for() {
    let hour = 3_600_000;
    let (ahead, now) = (ms(31 * 24 * hour), ms(7 * hour));
    assert_eq!(put_back(ahead, None, now), Some(now));
    // Looked at again it is still since then, also where the clock is put back by a little more.
    assert_eq!(put_back(ahead, Some(now), ms(9 * hour)), Some(now));
    assert_eq!(put_back(ahead, Some(now), ms(5 * hour)), Some(now));
    // Back by far once more, and right after all.
    let later = ms(5 * 24 * hour);
    assert_eq!(put_back(ahead, Some(later), now), Some(now));
    assert_eq!(put_back(ahead, Some(now), ahead), None);
}

/// What keeps the marks of a job, as the scheduler does: a row for each firing, the mark that is kept
/// with the job, and since when the clock is right.
#[derive(Default)]
struct Keeper {
    settled: Timestamp,
    noticed: Option<Timestamp>,
    rows: std::collections::BTreeSet<Timestamp>,
}

impl Keeper {
    /// Looks once; how many were done.
    fn look(&mut self, schedule: &Schedule, now: Timestamp) -> usize {
        let mut done = 0;
        loop {
            self.noticed = put_back(self.settled, self.noticed, now);
            let settled = self.noticed.unwrap_or(self.settled);
            let Some(due) = due(schedule, Misfire::Once, settled, now) else { return done };
            self.settled = due.scheduled;
            done += usize::from(self.rows.insert(due.scheduled));
        }
    }
}

#[test]
fn after_a_clock_that_was_years_ahead_what_is_due_is_done_and_none_twice() {
    for schedule in [every(2, START), cron("* * * * * *", "Europe/Berlin")] {
        let mut keeper = Keeper { settled: ms(START), ..Keeper::default() };
        let watch = |keeper: &mut Keeper, from: u64| -> usize {
            (0..100).map(|step| keeper.look(&schedule, ms(from + step * 700))).sum()
        };
        let per_watch = watch(&mut keeper, START);
        assert!(per_watch >= 30, "{per_watch}");
        assert!(watch(&mut keeper, START + 3650 * DAY) >= 30);
        let again = watch(&mut keeper, START + 100_000);
        assert!(again.abs_diff(per_watch) <= 1, "{again}");
        // The same with a new start in between, which knows only what is kept.
        watch(&mut keeper, START + 3650 * DAY + 100_000);
        keeper.noticed = None;
        let again = watch(&mut keeper, START + 200_000);
        assert!(again.abs_diff(per_watch) <= 1, "{again}");
        // What has a row is not done again, though the clock shows its time once more.
        assert_eq!(watch(&mut keeper, START + 200_000), 0);
        assert_eq!(watch(&mut keeper, START + 3650 * DAY), 0);
    }
}

#[test]
fn policies_are_read_and_written() {
    for policy in [Misfire::Skip, Misfire::Once, Misfire::All(1), Misfire::All(100)] {
        assert_eq!(Misfire::from_name(&policy.name()), Some(policy));
    }
    assert_eq!(Misfire::from_name("all"), Some(Misfire::All(Misfire::ALL_MAX)));
    for bad in ["", "all:0", "all:101", "all:", "run", "ONCE"] {
        assert_eq!(Misfire::from_name(bad), None, "{bad}");
    }
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let zone =
        proptest::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]);
    let expression = proptest::sample::select(vec![
        "*/7 * * * *",
        "30 2 * * *",
        "0,30 1-3 * * *",
        "0 * * * *",
        "15 2,14 * * 0",
        "*/20 2 * * *",
        "@daily",
    ]);
    prop_oneof![
        (1u64..100_000, 0u64..10_000_000).prop_map(|(seconds, anchor)| every(seconds, START + anchor)),
        (0u64..400 * DAY).prop_map(|at| Schedule::At(ms(START + at))),
        (expression, zone).prop_map(|(expression, zone)| cron(expression, zone)),
    ]
}

/// 2026-01-01 and a day, in milliseconds.
const START: u64 = 1_767_225_600_000;
const DAY: u64 = 24 * 60 * 60 * 1000;

/// How long a daemon does not look at a clock, or by how much that is put forward or back.
fn any_walk() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![
        8 => 1_000i64..3_600_000,
        2 => 3_600_000i64..(3 * DAY as i64),
        1 => -(20 * 3_600_000i64)..0,
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn the_next_is_later_and_none_is_between(schedule in any_schedule(), after in START..START + 400 * DAY, inside in 0.0f64..1.0) {
        let after = ms(after);
        if let Some(next) = schedule.next(after) {
            prop_assert!(next > after);
            let between = after.after(Duration::from_millis((next.millis_since(after) as f64 * inside) as u64));
            if between < next {
                prop_assert_eq!(schedule.next(between), Some(next), "asked from {:?}", between);
            }
            prop_assert_eq!(schedule.last(after, next), Some(next));
        }
    }

    #[test]
    fn the_last_is_the_end_of_the_walk(schedule in any_schedule(), from in START..START + 300 * DAY, span in 0..3 * DAY) {
        let (from, until) = (ms(from), ms(from + span));
        let mut walked = None;
        let mut at = from;
        for _ in 0..2000 {
            match schedule.next(at).filter(|next| *next <= until) {
                Some(next) => (walked, at) = (Some(next), next),
                None => {
                    prop_assert_eq!(schedule.last(from, until), walked);
                    return Ok(());
                }
            }
        }
    }

    /// Over any walk of the clock, forwards and back by less than a day: no time is done twice, they
    /// are done in order, and each that passed was done or is counted as missed.
    #[test]
    fn none_is_done_twice_and_none_silently_missed(
        schedule in any_schedule(),
        policy in prop_oneof![Just(Misfire::Skip), Just(Misfire::Once), (1u32..5).prop_map(Misfire::All)],
        walk in any_walk(),
    ) {
        let begun = ms(START + 85 * DAY);
        let (mut now, mut latest, mut settled) = (begun, begun, begun);
        let (mut done, mut accounted) = (Vec::new(), 0);
        for step in walk {
            now = ms(now.as_millis().saturating_add_signed(step).max(latest.as_millis().saturating_sub(DAY)));
            latest = latest.max(now);
            while let Some(due) = due(&schedule, policy, settled, now) {
                prop_assert!(due.scheduled > settled && due.scheduled <= now, "in order, and not early");
                settled = due.scheduled;
                accounted += due.missed + 1;
                if !due.is_skipped {
                    done.push(due.scheduled);
                }
                if due.missed >= MISSED_MAX {
                    return Ok(());
                }
            }
        }
        prop_assert!(done.windows(2).all(|pair| pair[0] < pair[1]), "none twice: {:?}", done);
        let (mut passed, mut at) = (0, begun);
        while let Some(next) = schedule.next(at).filter(|next| *next <= latest) {
            (passed, at) = (passed + 1, next);
        }
        prop_assert_eq!(accounted, passed, "each is done or counted");
    }

    #[test]
    fn no_expression_panics(expression in any::<String>(), zone in "[ -~]{0,12}") {
        let _ = Cron::new(&expression, &zone);
        let _ = Cron::new(&expression, "UTC");
    }
}
