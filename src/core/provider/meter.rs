//! Budgets: reserve before a call, settle after it.
//!
//! A call reserves its estimated input and all the output it may produce before it is made, so that
//! calls under way together can't overshoot what none of them would alone. A reservation never
//! refuses what fits: the output is clamped to what is left, and only an input that does not fit is
//! refused. Days and months are those of the UTC calendar. What a session has spent is the
//! session's own knowledge, since its runs are serialized; the day and the month are known here.
//!
//! Deliberately absent: prices. Tokens are what the wire counts.

use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::error::limit::Limit;
use crate::error::{Detail, Error, ErrorCode};
use crate::provider::usage::{Usage, UsageTotals};
use crate::time::Timestamp;

/// `[budgets]`: tokens; 0 = unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Over the life of a session.
    pub session: u64,
    /// Over a calendar day, UTC.
    pub daily: u64,
    /// Over a calendar month, UTC.
    pub monthly: u64,
}

/// The span of time a budget counts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// The life of a session.
    Session,
    /// The calendar day, UTC.
    Daily,
    /// The calendar month, UTC.
    Monthly,
}

impl Period {
    /// Its name in the configuration and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Daily => "daily",
            Self::Monthly => "monthly",
        }
    }
}

/// What one budget leaves, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The period that the budget is for.
    pub period: Period,
    /// Used by calls that are settled, in tokens.
    pub used: u64,
    /// Reserved by calls under way.
    pub reserved: u64,
    /// The bound; 0 = unlimited.
    pub limit: u64,
}

/// The first moment of the UTC day that holds `at`.
pub fn day_start(at: Timestamp) -> Timestamp {
    midnight(date(at))
}

/// The first moment of the UTC month that holds `at`.
pub fn month_start(at: Timestamp) -> Timestamp {
    midnight(date(at).first_of_month())
}

fn date(at: Timestamp) -> Date {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let instant = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    TimeZone::UTC.to_datetime(instant).date()
}

fn midnight(date: Date) -> Timestamp {
    let millis = TimeZone::UTC
        .to_timestamp(date.to_datetime(jiff::civil::Time::midnight()))
        .map(|at| at.as_millisecond());
    Timestamp::from_millis(millis.ok().and_then(|millis| u64::try_from(millis).ok()).unwrap_or_default())
}

/// Tokens set aside for one call, until they are given back by [`Meter::settle`].
#[must_use = "what is reserved is lost to others until it is settled"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    tokens: u64,
    input: u64,
}

impl Reservation {
    /// All that is set aside.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The estimated input it was made with.
    pub fn input(&self) -> u64 {
        self.input
    }
}

/// What is spent and set aside.
#[derive(Debug)]
pub struct Meter {
    limits: Budgets,
    /// The first moments of the day and the month that are counted.
    day: Timestamp,
    month: Timestamp,
    used_day: u64,
    used_month: u64,
    /// By calls under way. They count to the day in which they settle, so one number serves both.
    reserved: u64,
}

impl Meter {
    /// A meter that goes on from what was spent in the day and the month that hold `now`.
    pub fn new(limits: Budgets, totals: UsageTotals, now: Timestamp) -> Self {
        Self {
            limits,
            day: day_start(now),
            month: month_start(now),
            used_day: totals.day.total(),
            used_month: totals.month.total(),
            reserved: 0,
        }
    }

    /// From now on these are the budgets. What was spent counts on, and what is set aside stays so.
    pub fn set_limits(&mut self, limits: Budgets) {
        self.limits = limits;
    }

    /// Sets tokens aside for a call of `input` tokens (estimated) that may produce `output_max`, in a
    /// session that has spent `session_spent`. Gives the reservation and how many tokens of output
    /// the call may produce: at least 1, at most `output_max` (or 1 where that is 0).
    ///
    /// # Errors
    /// `BudgetExceeded` where what is left of a budget does not hold the input and one token more.
    pub fn reserve(
        &mut self,
        now: Timestamp,
        session_spent: u64,
        input: u64,
        output_max: u32,
    ) -> Result<(Reservation, u32), Error> {
        self.roll(now);
        let mut output = output_max.max(1);
        for budget in self.budgets(Some(session_spent)) {
            if budget.limit == 0 {
                continue;
            }
            let taken = budget.used.saturating_add(budget.reserved);
            let left = budget.limit.saturating_sub(taken);
            let room = left.saturating_sub(input);
            if room == 0 {
                let (name, limit) = (budget.period.name(), budget.limit);
                return Err(ErrorCode::BudgetExceeded
                    .error(format!("token budget exceeded ({name}: {taken}/{limit})"))
                    .with(Detail::Limit { name: bound(budget.period), limit }));
            }
            output = output.min(u32::try_from(room).unwrap_or(u32::MAX));
        }
        let tokens = input.saturating_add(output.into());
        self.reserved = self.reserved.saturating_add(tokens);
        Ok((Reservation { tokens, input }, output))
    }

    /// Gives a reservation back and counts what was used instead.
    pub fn settle(&mut self, now: Timestamp, reservation: Reservation, usage: Usage) {
        self.roll(now);
        self.reserved = self.reserved.saturating_sub(reservation.tokens);
        self.used_day = self.used_day.saturating_add(usage.total());
        self.used_month = self.used_month.saturating_add(usage.total());
    }

    /// How the budgets stand; the session's where what it has spent is given.
    pub fn status(&mut self, now: Timestamp, session_spent: Option<u64>) -> Vec<Budget> {
        self.roll(now);
        self.budgets(session_spent).collect()
    }

    /// Tokens set aside by calls under way.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    fn budgets(&self, session_spent: Option<u64>) -> impl Iterator<Item = Budget> + use<> {
        // A session has one call at a time, and asks before it.
        let session = session_spent.map(|used| (Period::Session, used, 0, self.limits.session));
        let shared = [
            (Period::Daily, self.used_day, self.reserved, self.limits.daily),
            (Period::Monthly, self.used_month, self.reserved, self.limits.monthly),
        ];
        session.into_iter().chain(shared).map(|(period, used, reserved, limit)| Budget {
            period,
            used,
            reserved,
            limit,
        })
    }

    /// A new day or month starts at zero. Time that goes back changes nothing.
    fn roll(&mut self, now: Timestamp) {
        if day_start(now) > self.day {
            self.day = day_start(now);
            self.used_day = 0;
        }
        if month_start(now) > self.month {
            self.month = month_start(now);
            self.used_month = 0;
        }
    }
}

/// The bound that a period's budget is.
const fn bound(period: Period) -> Limit {
    match period {
        Period::Session => Limit::SessionTokens,
        Period::Daily => Limit::DailyTokens,
        Period::Monthly => Limit::MonthlyTokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-01-31T23:59:59.999Z
    const JANUARY: Timestamp = Timestamp::from_millis(1_769_903_999_999);
    const FEBRUARY: Timestamp = Timestamp::from_millis(1_769_904_000_000);

    fn meter(session: u64, daily: u64, monthly: u64) -> Meter {
        Meter::new(Budgets { session, daily, monthly }, UsageTotals::default(), JANUARY)
    }

    fn used(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage::new(input_tokens, output_tokens)
    }

    #[test]
    fn the_refusal_says_what_the_protocol_wants() {
        let mut meter = meter(10_000, 0, 0);
        let error = meter.reserve(JANUARY, 9_500, 500, 100).unwrap_err();
        assert_eq!(error.message, "token budget exceeded (session: 9500/10000)");
        assert_eq!(error.code, ErrorCode::BudgetExceeded);
        assert_eq!(meter.reserved(), 0, "a refusal reserves nothing");
    }

    #[test]
    fn what_was_spent_and_set_aside_counts_on_under_other_budgets() {
        let mut meter = meter(0, 1_000, 0);
        let (one, _) = meter.reserve(JANUARY, 0, 100, 300).unwrap();
        let (other, _) = meter.reserve(JANUARY, 0, 50, 50).unwrap();
        meter.settle(JANUARY, one, used(100, 200));
        meter.set_limits(Budgets { session: 0, daily: 400, monthly: 0 });
        let error = meter.reserve(JANUARY, 0, 1, 1).unwrap_err();
        assert_eq!(error.message, "token budget exceeded (daily: 400/400)");
        meter.settle(JANUARY, other, used(0, 0));
        let (_, output) = meter.reserve(JANUARY, 0, 50, 4096).unwrap();
        assert_eq!(output, 50);
    }

    #[test]
    fn output_is_clamped_to_what_is_left() {
        let mut meter = meter(10_000, 600, 0);
        let (_reservation, output) = meter.reserve(JANUARY, 9_000, 400, 4_096).unwrap();
        assert_eq!(output, 200, "the day leaves less than the session");
        let error = meter.reserve(JANUARY, 0, 1, 1).unwrap_err();
        assert_eq!(error.message, "token budget exceeded (daily: 600/600)");
    }

    #[test]
    fn the_last_token_can_be_spent() {
        let mut meter = meter(100, 0, 0);
        let (_reservation, output) = meter.reserve(JANUARY, 89, 10, 50).unwrap();
        assert_eq!(output, 1);
        assert!(meter.reserve(JANUARY, 90, 10, 50).is_err());
        assert!(meter.reserve(JANUARY, 500, 0, 50).is_err(), "overspent");
    }

    #[test]
    fn without_limits_nothing_is_refused() {
        let mut meter = meter(0, 0, 0);
        let (reservation, output) = meter.reserve(JANUARY, u64::MAX, u64::MAX, u32::MAX).unwrap();
        assert_eq!(output, u32::MAX);
        meter.settle(JANUARY, reservation, used(u64::MAX, 1));
        assert_eq!(meter.reserved(), 0);
    }

    #[test]
    fn days_and_months_start_at_zero() {
        let mut meter = meter(0, 1_000, 2_000);
        let (first, _) = meter.reserve(JANUARY, 0, 100, 100).unwrap();
        let (second, _) = meter.reserve(JANUARY, 0, 100, 100).unwrap();
        meter.settle(JANUARY, first, used(100, 50));
        let [day, month] = <[Budget; 2]>::try_from(meter.status(JANUARY, None)).unwrap();
        assert_eq!((day.used, day.reserved, month.used), (150, 200, 150));

        let [day, month] = <[Budget; 2]>::try_from(meter.status(FEBRUARY, None)).unwrap();
        assert_eq!((day.used, day.reserved), (0, 200), "what is under way counts to the day it ends in");
        assert_eq!((month.used, month.reserved), (0, 200));
        meter.settle(FEBRUARY, second, used(100, 1));
        let [day, month] = <[Budget; 2]>::try_from(meter.status(JANUARY, None)).unwrap();
        assert_eq!((day.used, month.used), (101, 101), "a clock that goes back does not reset anything");
    }

    #[test]
    fn it_goes_on_from_what_was_spent_before() {
        let limits = Budgets { daily: 100, ..Budgets::default() };
        let mut meter = Meter::new(limits, UsageTotals { day: used(60, 30), month: used(600, 300) }, JANUARY);
        let error = meter.reserve(JANUARY, 0, 10, 1).unwrap_err();
        assert_eq!(error.message, "token budget exceeded (daily: 90/100)");
        let [_, month] = <[Budget; 2]>::try_from(meter.status(JANUARY, None)).unwrap();
        assert_eq!(month.used, 900);
        assert!(meter.reserve(FEBRUARY, 0, 10, 1).is_ok());
    }

    #[test]
    fn starts_of_days_and_months() {
        assert_eq!(day_start(FEBRUARY), FEBRUARY);
        assert_eq!(day_start(JANUARY), Timestamp::from_millis(FEBRUARY.as_millis() - 86_400_000));
        assert_eq!(month_start(FEBRUARY), FEBRUARY);
        assert_eq!(month_start(JANUARY), Timestamp::from_millis(FEBRUARY.as_millis() - 31 * 86_400_000));
        let _ = month_start(Timestamp::from_millis(u64::MAX));
    }

    /// What callers may do, in any order.
    #[derive(Clone, Debug)]
    enum Step {
        Reserve {
            input: u64,
            output_max: u32,
        },
        /// Settles one of those under way, having used a part of what it was granted.
        Settle {
            which: prop::sample::Index,
            input_part: u64,
            output_part: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..400, 0u32..400).prop_map(|(input, output_max)| Step::Reserve { input, output_max }),
            (any::<prop::sample::Index>(), 0u64..=100, 0u64..=100)
                .prop_map(|(which, input_part, output_part)| Step::Settle { which, input_part, output_part }),
        ]
    }

    proptest! {
        #[test]
        fn no_interleaving_overshoots(steps in proptest::collection::vec(step(), 0..60), daily in 1u64..2_000) {
            let mut meter = meter(0, daily, daily * 2);
            let mut under_way = Vec::new();
            for step in steps {
                match step {
                    Step::Reserve { input, output_max } => {
                        let [day, _] = <[Budget; 2]>::try_from(meter.status(JANUARY, None)).unwrap();
                        let fits = day.used + day.reserved + input < daily;
                        let reserved = meter.reserve(JANUARY, 0, input, output_max);
                        prop_assert_eq!(reserved.is_ok(), fits, "only what does not fit is refused");
                        if let Ok((reservation, output)) = reserved {
                            prop_assert!(output <= output_max.max(1));
                            under_way.push((reservation, u64::from(output)));
                        }
                    }
                    Step::Settle { which, input_part, output_part } if !under_way.is_empty() => {
                        let (reservation, output) = under_way.swap_remove(which.index(under_way.len()));
                        let usage = used(reservation.input() * input_part / 100, output * output_part / 100);
                        meter.settle(JANUARY, reservation, usage);
                    }
                    Step::Settle { .. } => {}
                }
                for budget in meter.status(JANUARY, None) {
                    prop_assert!(budget.used + budget.reserved <= budget.limit, "{:?}", budget);
                }
            }
            for (reservation, _) in under_way {
                meter.settle(JANUARY, reservation, Usage::default());
            }
            prop_assert_eq!(meter.reserved(), 0);
        }
    }
}
