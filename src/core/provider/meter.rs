//! Metering: reserve before a call, settle after it.
//!
//! A call reserves its estimated input and all the output it may produce before it is made, so that
//! calls under way together can't overshoot what none of them would alone. A reservation never
//! refuses what fits: the output is clamped to what is left, and only an input that does not fit is
//! refused. Days and months are those of the UTC calendar. What a session has spent is the
//! session's own knowledge; the day and the month are known here, by agent and principal.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::budget::{Among, Budget, BudgetRule, Budgets, Caps, Period, Unit, Whose};
use super::price::{Money, Price};
use super::tally::{Spent, SpentBy};
use crate::error::{Error, ErrorCode};
use crate::ids::{AgentId, Owner};
use crate::time::Timestamp;

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

/// The first moment of the day or month after the one that begins at `start`.
fn next(period: Period, start: Timestamp) -> Option<Timestamp> {
    let date = date(start);
    let next = match period {
        Period::Session => return None,
        Period::Daily => date.tomorrow(),
        Period::Monthly => date.last_of_month().tomorrow(),
    };
    next.ok().map(midnight)
}

/// What a call asks to be set aside.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The agent that makes it.
    pub agent: &'a AgentId,
    /// The principal it is made for.
    pub principal: &'a Owner,
    /// What its session has spent and set aside, with the sessions it spends together with.
    pub session: Spent,
    /// How many tokens it will read, estimated.
    pub input: u64,
    /// The least output that makes sense of it; at least 1.
    pub output_min: u32,
    /// The most it may write.
    pub output_max: u32,
    /// What the dearest of its models costs; none where no price is known.
    pub price: Option<Price>,
}

/// Set aside for one call, until it is given back by [`Meter::settle`].
#[must_use = "what is reserved is lost to others until it is settled"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    agent: AgentId,
    principal: Owner,
    spent: Spent,
    input: u64,
}

impl Reservation {
    /// All that is set aside.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The estimated input it was made with.
    pub fn input(&self) -> u64 {
        self.input
    }

    /// Both are for the same call, which is made once more.
    pub fn join(&mut self, other: Self) {
        self.spent = self.spent.plus(other.spent);
    }
}

/// What one agent spent for one principal.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    day: Spent,
    month: Spent,
    /// By calls under way. They count to the day in which they settle, so one number serves both.
    reserved: Spent,
}

/// What is spent and set aside.
#[derive(Debug)]
pub struct Meter {
    session: u64,
    session_cost: Money,
    /// The first is everybody's.
    rules: Vec<BudgetRule>,
    /// The first moments of the day and the month that are counted.
    day: Timestamp,
    month: Timestamp,
    counted: BTreeMap<(AgentId, Owner), Counted>,
    /// Near their end, and nobody was told yet.
    near: Vec<Budget>,
}

impl Meter {
    /// A meter that goes on from what was spent in the day and the month that hold `now`.
    pub fn new(budgets: &Budgets, spent: Vec<SpentBy>, now: Timestamp) -> Self {
        let counted = |SpentBy { agent, principal, day, month }| {
            ((agent, principal), Counted { day, month, ..Counted::default() })
        };
        let mut meter = Self {
            session: 0,
            session_cost: Money::ZERO,
            rules: Vec::new(),
            day: day_start(now),
            month: month_start(now),
            counted: spent.into_iter().map(counted).collect(),
            near: Vec::new(),
        };
        meter.set_limits(budgets);
        meter
    }

    /// From now on these are the budgets. What was spent counts on, and what is set aside stays so.
    pub fn set_limits(&mut self, budgets: &Budgets) {
        self.session = budgets.session;
        self.session_cost = budgets.session_cost;
        self.rules = std::iter::once(BudgetRule::for_all(budgets.all)).chain(budgets.rules.clone()).collect();
        self.near.clear();
    }

    /// Whether calls of this agent for this principal can't be counted without knowing what they cost.
    pub fn needs_price(&self, agent: &AgentId, principal: &Owner) -> bool {
        let caps = self.rules.iter().filter(|rule| rule.whose(agent, principal).is_some());
        let costs = caps.flat_map(|rule| [rule.caps.daily_cost, rule.caps.monthly_cost]);
        costs.chain([self.session_cost]).any(|limit| limit != Money::ZERO)
    }

    /// Sets aside what a call may come to. Gives the reservation and how many tokens of output the call may
    /// produce: at least `output_min`, at most `output_max` (or 1 where that is 0).
    ///
    /// # Errors
    /// `BudgetExceeded` where what is left of a budget does not hold the input and the least output, or
    /// where a budget is in money and the price is not known.
    pub fn reserve(&mut self, now: Timestamp, ask: &Ask<'_>) -> Result<(Reservation, u32), Error> {
        self.roll(now);
        let mut output = ask.output_max.max(1);
        for budget in self.of_session(ask.session).into_iter().chain(self.of_call(ask.agent, ask.principal)) {
            if budget.limit > 0 {
                output = output.min(room(&budget, ask)?);
            }
        }
        let cost = ask.price.map(|price| price.at_most(ask.input, output.into())).unwrap_or_default();
        let spent = Spent { tokens: ask.input.saturating_add(output.into()), cost };
        let (agent, principal) = (ask.agent.clone(), ask.principal.clone());
        let counted = self.counted.entry((agent.clone(), principal.clone())).or_default();
        counted.reserved = counted.reserved.plus(spent);
        Ok((Reservation { agent, principal, spent, input: ask.input }, output))
    }

    /// The budgets that calls of this agent for this principal spend from and that came near their end since
    /// somebody was told so by this.
    pub fn news(&mut self, agent: &AgentId, principal: &Owner) -> Vec<Budget> {
        let concerns = |budget: &mut Budget| budget.whose.concerns(agent, principal);
        self.near.extract_if(.., concerns).collect()
    }

    /// The budgets of a session near their end that has spent this.
    pub fn near_of_session(&self, spent: Spent) -> Vec<Budget> {
        let mut near = self.of_session(spent);
        near.retain(Budget::is_near);
        near
    }

    /// Whether there is any bound to what calls of this agent for this principal may spend.
    pub fn is_bounded(&self, agent: &AgentId, principal: &Owner) -> bool {
        let session = self.of_session(Spent::default());
        session.iter().chain(&self.of_call(agent, principal)).any(|budget| budget.limit > 0)
    }

    /// Gives a reservation back and counts what was spent instead. Says which budgets came near their end by
    /// that.
    pub fn settle(&mut self, now: Timestamp, reservation: Reservation, spent: Spent) -> Vec<Budget> {
        self.roll(now);
        let Reservation { agent, principal, spent: reserved, .. } = reservation;
        let counted = self.counted.entry((agent.clone(), principal.clone())).or_default();
        counted.reserved = counted.reserved.minus(reserved);
        counted.day = counted.day.plus(spent);
        counted.month = counted.month.plus(spent);
        let before = |budget: &Budget| match budget.unit {
            Unit::Tokens => budget.used.saturating_sub(spent.tokens),
            Unit::Money => budget.used.saturating_sub(spent.cost.nanos()),
        };
        let mut near = self.of_call(&agent, &principal);
        near.retain(|budget| budget.is_near() && !budget.is_near_with(before(budget)));
        self.near.extend(near.iter().cloned());
        near
    }

    /// Counts what was spent elsewhere, by an agent for a principal.
    pub fn add(&mut self, now: Timestamp, agent: &AgentId, principal: &Owner, spent: Spent) {
        self.roll(now);
        let counted = self.counted.entry((agent.clone(), principal.clone())).or_default();
        counted.day = counted.day.plus(spent);
        counted.month = counted.month.plus(spent);
    }

    /// How the budgets stand: the session's where what it has spent is given, everybody's, and those of the
    /// rules for whom they are known to concern. Those in money where there is a limit, tokens of everybody
    /// always.
    pub fn status(&mut self, now: Timestamp, session: Option<Spent>) -> Vec<Budget> {
        self.roll(now);
        let mut all = session.map(|spent| self.of_session(spent)).unwrap_or_default();
        for rule in &self.rules {
            let fixed = match (&rule.agent, &rule.principal) {
                (Among::Each, _) | (_, Among::Each) => None,
                (agent, principal) => Some(Whose { agent: one(agent), principal: one(principal) }),
            };
            let known = self.counted.keys().filter_map(|(agent, principal)| rule.whose(agent, principal));
            let mut whose: Vec<Whose> = known.chain(fixed).collect();
            whose.sort();
            whose.dedup();
            all.extend(whose.iter().flat_map(|whose| self.of_rule(rule, whose)));
        }
        let is_everybodys = |budget: &Budget| {
            budget.unit == Unit::Tokens
                && (budget.whose == Whose::default() || budget.period == Period::Session)
        };
        all.retain(|budget| budget.limit > 0 || is_everybodys(budget));
        all
    }

    /// What is set aside by calls under way.
    pub fn reserved(&self) -> Spent {
        self.counted.values().fold(Spent::default(), |sum, counted| sum.plus(counted.reserved))
    }

    /// The budgets that a call of this agent for this principal spends from, but for its session's.
    fn of_call(&self, agent: &AgentId, principal: &Owner) -> Vec<Budget> {
        let whose = |rule: &BudgetRule| rule.whose(agent, principal);
        let rules = self.rules.iter().filter_map(|rule| Some((rule, whose(rule)?)));
        rules.flat_map(|(rule, whose)| self.of_rule(rule, &whose)).collect()
    }

    fn of_rule(&self, rule: &BudgetRule, whose: &Whose) -> [Budget; 4] {
        let mut sum = Counted::default();
        for ((agent, principal), counted) in &self.counted {
            if whose.concerns(agent, principal) {
                sum.day = sum.day.plus(counted.day);
                sum.month = sum.month.plus(counted.month);
                sum.reserved = sum.reserved.plus(counted.reserved);
            }
        }
        let Caps { daily, daily_cost, monthly, monthly_cost } = rule.caps;
        let (day, month) = ((Period::Daily, sum.day, self.day), (Period::Monthly, sum.month, self.month));
        [
            (day, Unit::Tokens, daily),
            (month, Unit::Tokens, monthly),
            (day, Unit::Money, daily_cost.nanos()),
            (month, Unit::Money, monthly_cost.nanos()),
        ]
        .map(|((period, used, start), unit, limit)| Budget {
            whose: whose.clone(),
            period,
            unit,
            used: amount(used, unit),
            reserved: amount(sum.reserved, unit),
            limit,
            resets: next(period, start),
        })
    }

    fn of_session(&self, taken: Spent) -> Vec<Budget> {
        let limits = [(Unit::Tokens, self.session), (Unit::Money, self.session_cost.nanos())];
        let budget = |(unit, limit)| Budget {
            whose: Whose::default(),
            period: Period::Session,
            unit,
            used: amount(taken, unit),
            reserved: 0,
            limit,
            resets: None,
        };
        limits.map(budget).into()
    }

    /// A new day or month starts at zero. Time that goes back changes nothing.
    fn roll(&mut self, now: Timestamp) {
        let (is_new_day, is_new_month) = (day_start(now) > self.day, month_start(now) > self.month);
        if is_new_month {
            self.month = month_start(now);
        }
        if is_new_day {
            self.day = day_start(now);
            self.near.retain(|budget| budget.resets.is_some_and(|at| at > now));
            for counted in self.counted.values_mut() {
                counted.day = Spent::default();
                if is_new_month {
                    counted.month = Spent::default();
                }
            }
            self.counted.retain(|_, counted| {
                counted.month != Spent::default() || counted.reserved != Spent::default()
            });
        }
    }
}

fn amount(spent: Spent, unit: Unit) -> u64 {
    match unit {
        Unit::Tokens => spent.tokens,
        Unit::Money => spent.cost.nanos(),
    }
}

fn one<T: Clone>(among: &Among<T>) -> Option<T> {
    match among {
        Among::One(one) => Some(one.clone()),
        Among::All | Among::Each => None,
    }
}

/// How much output what is left of a budget holds besides the input.
fn room(budget: &Budget, ask: &Ask<'_>) -> Result<u32, Error> {
    let left = budget.limit.saturating_sub(budget.taken());
    let tokens = match (budget.unit, ask.price) {
        (Unit::Tokens, _) => left.saturating_sub(ask.input),
        (Unit::Money, None) => {
            let (name, whose) = (budget.name(), budget.whose.words());
            return Err(ErrorCode::BudgetExceeded.error(format!(
                "the budget {name}{whose} is in money, and what the model costs is not known"
            )));
        }
        (Unit::Money, Some(price)) => {
            let (left, input) = (Money::from_nanos(left), price.input_at_most(ask.input));
            match price.output_for(left.minus(input)) {
                _ if input > left => 0,
                Some(tokens) => tokens,
                // What costs nothing is held by any budget.
                None => u64::MAX,
            }
        }
    };
    let least = ask.output_min.max(1).into();
    if tokens < least {
        let needs = match (budget.unit, ask.price) {
            (Unit::Money, Some(price)) => price.at_most(ask.input, least).nanos(),
            _ => ask.input.saturating_add(least),
        };
        return Err(budget.exceeded(needs));
    }
    Ok(u32::try_from(tokens).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::price::Rate;
    use proptest::prelude::*;

    /// 2026-01-31T23:59:59.999Z
    const JANUARY: Timestamp = Timestamp::from_millis(1_769_903_999_999);
    const FEBRUARY: Timestamp = Timestamp::from_millis(1_769_904_000_000);

    const NOBODY: Spent = Spent { tokens: 0, cost: Money::ZERO };

    fn meter(session: u64, daily: u64, monthly: u64) -> Meter {
        let all = Caps { daily, monthly, ..Caps::default() };
        Meter::new(&Budgets { session, all, ..Budgets::default() }, Vec::new(), JANUARY)
    }

    fn tokens(tokens: u64) -> Spent {
        Spent { tokens, ..NOBODY }
    }

    fn dollars(dollars: f64) -> Money {
        Money::from_dollars(dollars).unwrap()
    }

    /// A dollar for a million tokens read, ten for a million written.
    fn price() -> Price {
        let rate = |dollars| Rate::per_million(dollars).unwrap();
        Price { input: rate(1.0), output: rate(10.0), ..Price::default() }
    }

    /// Somebody's calls.
    struct Caller(AgentId, Owner);

    impl Caller {
        fn new(agent: &str, principal: &str) -> Self {
            Self(agent.into(), Owner::from_name(principal))
        }

        fn ask(&self, session: u64, input: u64, output_max: u32) -> Ask<'_> {
            let (agent, principal, session) = (&self.0, &self.1, tokens(session));
            Ask { agent, principal, session, input, output_min: 1, output_max, price: Some(price()) }
        }
    }

    fn main() -> Caller {
        Caller::new("main", "")
    }

    /// Used and reserved of the day and the month.
    fn standing(meter: &mut Meter, now: Timestamp) -> [(u64, u64); 2] {
        let status = meter.status(now, None);
        [0, 1].map(|at| (status[at].used, status[at].reserved))
    }

    #[test]
    fn what_is_spent_elsewhere_counts_and_ends_with_its_day() {
        let mut meter = meter(0, 1000, 5000);
        let Caller(agent, principal) = main();
        meter.add(JANUARY, &agent, &principal, tokens(900));
        assert_eq!(standing(&mut meter, JANUARY), [(900, 0), (900, 0)]);
        assert!(meter.reserve(JANUARY, &main().ask(0, 200, 1)).is_err());
        meter.add(FEBRUARY, &agent, &principal, tokens(5));
        assert_eq!(standing(&mut meter, FEBRUARY), [(5, 0), (5, 0)]);
    }

    #[test]
    fn the_refusal_says_what_the_protocol_wants_and_when_it_is_over() {
        let mut meter = meter(10_000, 0, 0);
        let error = meter.reserve(JANUARY, &main().ask(9_500, 500, 100)).unwrap_err();
        assert_eq!(
            error.message,
            "token budget exceeded (session: 9500/10000): 9500 of 10000 are used, and this prompt needs about 501; \
             /new begins another conversation"
        );
        assert_eq!(error.code, ErrorCode::BudgetExceeded);
        assert_eq!(meter.reserved(), NOBODY, "a refusal reserves nothing");
        let mut meter = self::meter(0, 10, 0);
        let error = meter.reserve(JANUARY, &main().ask(0, 10, 1)).unwrap_err();
        assert_eq!(
            error.message,
            "token budget exceeded (daily: 0/10): 0 of 10 are used, and this prompt needs about 11; it resets at \
             2026-02-01T00:00:00Z"
        );
    }

    #[test]
    fn what_was_spent_and_set_aside_counts_on_under_other_budgets() {
        let mut meter = meter(0, 1_000, 0);
        let (one, _) = meter.reserve(JANUARY, &main().ask(0, 100, 300)).unwrap();
        let (other, _) = meter.reserve(JANUARY, &main().ask(0, 50, 50)).unwrap();
        meter.settle(JANUARY, one, tokens(300));
        let all = Caps { daily: 400, ..Caps::default() };
        meter.set_limits(&Budgets { all, ..Budgets::default() });
        let error = meter.reserve(JANUARY, &main().ask(0, 1, 1)).unwrap_err();
        assert!(error.message.starts_with("token budget exceeded (daily: 400/400)"), "{error}");
        meter.settle(JANUARY, other, NOBODY);
        let (_reservation, output) = meter.reserve(JANUARY, &main().ask(0, 50, 4096)).unwrap();
        assert_eq!(output, 50);
    }

    #[test]
    fn output_is_clamped_to_what_is_left_down_to_the_last_token() {
        let mut meter = meter(10_000, 600, 0);
        let (_reservation, output) = meter.reserve(JANUARY, &main().ask(9_000, 400, 4_096)).unwrap();
        assert_eq!(output, 200, "the day leaves less than the session");
        let mut meter = self::meter(100, 0, 0);
        let needs = |output_min| Ask { output_min, ..main_ask() };
        assert!(meter.reserve(JANUARY, &needs(2)).is_err(), "what needs more than one is refused");
        let (_reservation, output) = meter.reserve(JANUARY, &needs(1)).unwrap();
        assert_eq!(output, 1);
        assert!(meter.reserve(JANUARY, &main().ask(500, 0, 50)).is_err(), "overspent");
    }

    /// Of a session with room for one token more than the input.
    fn main_ask() -> Ask<'static> {
        static MAIN: std::sync::LazyLock<Caller> = std::sync::LazyLock::new(main);
        MAIN.ask(89, 10, 50)
    }

    #[test]
    fn without_limits_nothing_is_refused() {
        let mut meter = meter(0, 0, 0);
        let ask = Ask { price: None, ..main_ask() };
        assert!(!meter.is_bounded(ask.agent, ask.principal) && !meter.needs_price(ask.agent, ask.principal));
        let (reservation, output) =
            meter.reserve(JANUARY, &Ask { input: u64::MAX, output_max: u32::MAX, ..ask }).unwrap();
        assert_eq!(output, u32::MAX);
        meter.settle(JANUARY, reservation, tokens(u64::MAX));
        assert_eq!(meter.reserved(), NOBODY);
    }

    #[test]
    fn days_and_months_start_at_zero() {
        let mut meter = meter(0, 1_000, 2_000);
        let (first, _) = meter.reserve(JANUARY, &main().ask(0, 100, 100)).unwrap();
        let (second, _) = meter.reserve(JANUARY, &main().ask(0, 100, 100)).unwrap();
        meter.settle(JANUARY, first, tokens(150));
        assert_eq!(standing(&mut meter, JANUARY), [(150, 200), (150, 200)]);
        assert_eq!(
            standing(&mut meter, FEBRUARY),
            [(0, 200), (0, 200)],
            "what is under way counts to the day it ends in"
        );
        meter.settle(FEBRUARY, second, tokens(101));
        assert_eq!(
            standing(&mut meter, JANUARY),
            [(101, 0), (101, 0)],
            "a clock that goes back does not reset anything"
        );
    }

    #[test]
    fn it_goes_on_from_what_was_spent_before() {
        let all = Caps { daily: 100, ..Caps::default() };
        let before =
            SpentBy { agent: "main".into(), principal: Owner::Admins, day: tokens(90), month: tokens(900) };
        let mut meter = Meter::new(&Budgets { all, ..Budgets::default() }, vec![before], JANUARY);
        let error = meter.reserve(JANUARY, &main().ask(0, 10, 1)).unwrap_err();
        assert!(error.message.starts_with("token budget exceeded (daily: 90/100)"), "{error}");
        assert_eq!(standing(&mut meter, JANUARY)[1].0, 900);
        assert!(meter.reserve(FEBRUARY, &main().ask(0, 10, 1)).is_ok());
    }

    #[test]
    fn money_is_bounded_like_tokens_and_needs_a_price() {
        let all = Caps { daily_cost: dollars(0.01), ..Caps::default() };
        let mut meter = Meter::new(&Budgets { all, ..Budgets::default() }, Vec::new(), JANUARY);
        // 1000 tokens read are a tenth of a cent: the rest buys 900 written ones.
        let (reservation, output) = meter.reserve(JANUARY, &main().ask(0, 1000, 4096)).unwrap();
        assert_eq!((output, reservation.spent().cost), (900, dollars(0.01)));
        let error = meter.reserve(JANUARY, &main().ask(0, 1, 1)).unwrap_err();
        assert_eq!(
            error.message,
            "cost budget exceeded (daily: $0.01/$0.01); it resets at 2026-02-01T00:00:00Z"
        );
        meter.settle(JANUARY, reservation, Spent { tokens: 1100, cost: dollars(0.002) });
        let unpriced = Ask { price: None, ..main_ask() };
        let error = meter.reserve(JANUARY, &unpriced).unwrap_err();
        assert!(error.message.contains("daily_cost is in money"), "{error}");
        let free = Ask { price: Some(Price::default()), ..main_ask() };
        assert!(meter.reserve(JANUARY, &free).is_ok());
    }

    #[test]
    fn agents_and_principals_have_budgets_of_their_own() {
        let caps = |daily| Caps { daily, ..Caps::default() };
        let rules = vec![
            BudgetRule { agent: Among::One("work".into()), principal: Among::All, caps: caps(100) },
            BudgetRule { agent: Among::All, principal: Among::Each, caps: caps(150) },
        ];
        let mut meter = Meter::new(&Budgets { rules, ..Budgets::default() }, Vec::new(), JANUARY);
        let mut spend = |agent: &str, principal: &str, input| {
            let caller = Caller::new(agent, principal);
            let (reservation, _) = meter.reserve(JANUARY, &caller.ask(0, input, 1)).map_err(|e| e.message)?;
            meter.settle(JANUARY, reservation, tokens(input + 1));
            Ok::<(), String>(())
        };
        spend("work", "ada", 89).unwrap();
        let refused = spend("work", "bob", 20).unwrap_err();
        assert!(refused.starts_with("token budget exceeded (daily of agent work: 90/100)"), "{refused}");
        spend("main", "ada", 49).unwrap();
        let refused = spend("main", "ada", 20).unwrap_err();
        assert!(refused.starts_with("token budget exceeded (daily of ada: 140/150)"), "{refused}");
        spend("main", "bob", 100).unwrap();
        let known: Vec<_> =
            meter.status(JANUARY, None).into_iter().filter(|budget| budget.limit > 0).collect();
        let said: Vec<String> =
            known.iter().map(|b| format!("{} {}", b.whose.words().trim(), b.used)).collect();
        assert_eq!(said, ["of agent work 90", "of ada 140", "of bob 101"]);
    }

    #[test]
    fn it_is_told_once_that_a_budget_is_near_its_end() {
        let mut meter = meter(0, 100, 0);
        let caller = main();
        let spend = |meter: &mut Meter, amount| {
            let (reservation, _) = meter.reserve(JANUARY, &caller.ask(0, 1, 1)).unwrap();
            meter.settle(JANUARY, reservation, tokens(amount)).len()
        };
        assert_eq!((spend(&mut meter, 79), meter.news(&caller.0, &caller.1).len()), (0, 0));
        assert_eq!(spend(&mut meter, 1), 1);
        let news = meter.news(&caller.0, &caller.1);
        assert_eq!(
            news[0].near_words(),
            "80 % of the token budget is used (daily: 80/100); it resets at 2026-02-01T00:00:00Z"
        );
        assert_eq!((spend(&mut meter, 10), meter.news(&caller.0, &caller.1).len()), (0, 0), "once a day");
    }

    #[test]
    fn starts_of_days_and_months() {
        assert_eq!(day_start(FEBRUARY), FEBRUARY);
        assert_eq!(day_start(JANUARY), Timestamp::from_millis(FEBRUARY.as_millis() - 86_400_000));
        assert_eq!(month_start(FEBRUARY), FEBRUARY);
        assert_eq!(month_start(JANUARY), Timestamp::from_millis(FEBRUARY.as_millis() - 31 * 86_400_000));
        assert_eq!(next(Period::Daily, day_start(JANUARY)), Some(FEBRUARY));
        assert_eq!(next(Period::Monthly, month_start(JANUARY)), Some(FEBRUARY));
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
            part: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..400, 0u32..400).prop_map(|(input, output_max)| Step::Reserve { input, output_max }),
            (any::<prop::sample::Index>(), 0u64..=100).prop_map(|(which, part)| Step::Settle { which, part }),
        ]
    }

    proptest! {
        #[test]
        fn no_interleaving_overshoots(
            steps in proptest::collection::vec(step(), 0..60), daily in 1u64..2_000, micros in 1u64..20_000,
        ) {
            let daily_cost = Money::from_nanos(micros * 1000);
            let all = Caps { daily, daily_cost, monthly: daily * 2, ..Caps::default() };
            let mut meter = Meter::new(&Budgets { all, ..Budgets::default() }, Vec::new(), JANUARY);
            let mut under_way = Vec::new();
            for step in steps {
                match step {
                    Step::Reserve { input, output_max } => {
                        let budgets = meter.status(JANUARY, None);
                        let least = price().at_most(input, 1).nanos();
                        let fits = budgets.iter().all(|budget| match budget.unit {
                            Unit::Tokens => budget.limit == 0 || budget.taken() + input < budget.limit,
                            Unit::Money => budget.taken() + least <= budget.limit,
                        });
                        let reserved = meter.reserve(JANUARY, &main().ask(0, input, output_max));
                        prop_assert_eq!(reserved.is_ok(), fits, "only what does not fit is refused");
                        if let Ok((reservation, output)) = reserved {
                            prop_assert!(output >= 1 && output <= output_max.max(1));
                            under_way.push((reservation, input, u64::from(output)));
                        }
                    }
                    Step::Settle { which, part } => {
                        if !under_way.is_empty() {
                            let (reservation, input, output) = under_way.swap_remove(which.index(under_way.len()));
                            let output = output * part / 100;
                            let spent = Spent { tokens: input + output, cost: price().at_most(input, output) };
                            meter.settle(JANUARY, reservation, spent);
                        }
                    }
                }
                for budget in meter.status(JANUARY, None) {
                    prop_assert!(budget.limit == 0 || budget.taken() <= budget.limit, "{:?}", budget);
                }
            }
        }
    }
}
