//! Budgets: how much may be spent, by whom and when, and what one of them leaves.

use crate::error::limit::Limit;
use crate::error::{BudgetMet, Detail, Error, ErrorCode};
use crate::ids::{AgentId, Owner};
use crate::provider::price::Money;
use crate::time::Timestamp;

/// A budget is near its end from here on, in percent of it.
pub const NEAR_PERCENT: u64 = 80;

/// `[budgets]`: tokens and money; 0 = unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Tokens over the life of a session.
    pub session: u64,
    /// Money over the life of a session.
    pub session_cost: Money,
    /// What all spend together.
    pub all: Caps,
    /// `[[budgets.rules]]`: what some of them may spend of that.
    pub rules: Vec<BudgetRule>,
}

impl Budgets {
    /// Whether any of them is in money.
    pub fn is_in_money(&self) -> bool {
        let caps = std::iter::once(&self.all).chain(self.rules.iter().map(|rule| &rule.caps));
        let costs = caps.flat_map(|caps| [caps.daily_cost, caps.monthly_cost]);
        costs.chain([self.session_cost]).any(|cost| cost != Money::ZERO)
    }

    /// The budget in money that prompts to this agent spend from: its key in the configuration, and the principal
    /// whose prompts alone do. One that concerns all comes first.
    pub fn in_money_for(&self, agent: &AgentId) -> Option<(&'static str, Option<&Owner>)> {
        if self.session_cost != Money::ZERO {
            return Some(("session_cost", None));
        }
        if let Some(key) = self.all.in_money() {
            return Some((key, None));
        }
        let rules = self.rules.iter().filter(|rule| rule.agent.concerns(agent));
        let found = rules.filter_map(|rule| {
            let principal = match &rule.principal {
                Among::One(principal) => Some(principal),
                Among::All | Among::Each => None,
            };
            Some((rule.caps.in_money()?, principal))
        });
        found.min_by_key(|(_, principal)| principal.is_some())
    }

    /// What each agent or principal may spend that has a budget of its own, in words, whether it has spent anything
    /// yet or not.
    pub fn words_of_each(&self) -> Vec<String> {
        let is_each =
            |rule: &&BudgetRule| matches!(rule.agent, Among::Each) || matches!(rule.principal, Among::Each);
        self.rules.iter().filter(is_each).map(BudgetRule::words).collect()
    }
}

/// The most that may be spent in a day and a month; 0 = unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Tokens over a calendar day, UTC.
    pub daily: u64,
    /// Money over a calendar day, UTC.
    pub daily_cost: Money,
    /// Tokens over a calendar month, UTC.
    pub monthly: u64,
    /// Money over a calendar month, UTC.
    pub monthly_cost: Money,
}

impl Caps {
    /// The key of the first that is in money.
    fn in_money(&self) -> Option<&'static str> {
        let costs = [("daily_cost", self.daily_cost), ("monthly_cost", self.monthly_cost)];
        costs.into_iter().find(|(_, cost)| *cost != Money::ZERO).map(|(key, _)| key)
    }

    /// All that are set, in words: `$1.50 a day and 9000 tokens a month`.
    fn words(&self) -> String {
        let tokens = |amount: u64, time: &str| (amount > 0).then(|| format!("{amount} tokens a {time}"));
        let money = |amount: Money, time: &str| (amount != Money::ZERO).then(|| format!("{amount} a {time}"));
        let set = [
            tokens(self.daily, "day"),
            money(self.daily_cost, "day"),
            tokens(self.monthly, "month"),
            money(self.monthly_cost, "month"),
        ];
        set.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

/// What an agent or a principal, or each of them, may spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRule {
    /// Whose calls count, by the agent that makes them.
    pub agent: Among<AgentId>,
    /// Whose calls count, by the principal they are made for.
    pub principal: Among<Owner>,
    /// How much that may be.
    pub caps: Caps,
}

/// Who shares a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Among<T> {
    /// All together.
    All,
    /// Nobody: each has one of its own.
    Each,
    /// This one has it alone.
    One(T),
}

impl<T: PartialEq + Clone> Among<T> {
    /// Whether there is a budget for this one.
    pub fn concerns(&self, who: &T) -> bool {
        !matches!(self, Self::One(one) if one != who)
    }

    /// Whose budget this one spends from; none = all share it.
    pub fn whose(&self, who: &T) -> Option<T> {
        (!matches!(self, Self::All)).then(|| who.clone())
    }
}

impl BudgetRule {
    /// The budget that all share.
    pub fn for_all(caps: Caps) -> Self {
        Self { agent: Among::All, principal: Among::All, caps }
    }

    /// Whose budget a call of this agent for this principal spends from; none where it is not concerned.
    pub fn whose(&self, agent: &AgentId, principal: &Owner) -> Option<Whose> {
        (self.agent.concerns(agent) && self.principal.concerns(principal))
            .then(|| Whose { agent: self.agent.whose(agent), principal: self.principal.whose(principal) })
    }

    /// Who may spend what: `each agent may spend $1.50 a day`.
    fn words(&self) -> String {
        let agent = match &self.agent {
            Among::All => None,
            Among::Each => Some("each agent".to_owned()),
            Among::One(agent) => Some(format!("agent {agent}")),
        };
        let principal = match &self.principal {
            Among::All => None,
            Among::Each => Some("each principal".to_owned()),
            Among::One(owner) => Some(owner.in_words().to_owned()),
        };
        let who: Vec<String> = agent.into_iter().chain(principal).collect();
        format!("{} may spend {}", who.join(" for "), self.caps.words())
    }
}

/// Whose budget it is; without either, everybody's.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// The agent's.
    pub agent: Option<AgentId>,
    /// The principal's.
    pub principal: Option<Owner>,
}

impl Whose {
    /// Whether a call of this agent for this principal spends from it.
    pub fn concerns(&self, agent: &AgentId, principal: &Owner) -> bool {
        self.agent.as_ref().is_none_or(|own| own == agent)
            && self.principal.as_ref().is_none_or(|own| own == principal)
    }

    /// Behind the name of a period: empty, or whose it is.
    pub fn words(&self) -> String {
        let agent = self.agent.as_ref().map(|agent| format!(" of agent {agent}")).unwrap_or_default();
        let principal = match &self.principal {
            None => String::new(),
            Some(Owner::Admins) => " of the operators".to_owned(),
            Some(Owner::Credential(name)) => format!(" of {name}"),
        };
        format!("{agent}{principal}")
    }
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

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Tokens.
    Tokens,
    /// Billionths of a dollar.
    Money,
}

impl Unit {
    /// An amount of it for people.
    pub fn said(self, amount: u64) -> String {
        match self {
            Self::Tokens => amount.to_string(),
            Self::Money => Money::from_nanos(amount).to_string(),
        }
    }
}

/// How one budget stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Whose it is.
    pub whose: Whose,
    /// The period that the budget is for.
    pub period: Period,
    /// What it counts.
    pub unit: Unit,
    /// Used by calls that are settled.
    pub used: u64,
    /// Reserved by calls under way.
    pub reserved: u64,
    /// The bound; 0 = unlimited.
    pub limit: u64,
    /// When it starts at zero again; none for a session's, which never does.
    pub resets: Option<Timestamp>,
}

impl Budget {
    /// Its key in the configuration, where it is not one of a rule: `daily`, `daily_cost`, ..
    pub const fn name(&self) -> &'static str {
        self.bound().name()
    }

    /// Used and reserved together.
    pub fn taken(&self) -> u64 {
        self.used.saturating_add(self.reserved)
    }

    /// Whether what is used is near its end, or beyond.
    pub fn is_near(&self) -> bool {
        self.is_near_with(self.used)
    }

    /// Whether it would be near its end if so much were used.
    pub fn is_near_with(&self, used: u64) -> bool {
        self.limit > 0 && u128::from(used) * 100 >= u128::from(self.limit) * u128::from(NEAR_PERCENT)
    }

    /// What is told once it is near its end.
    pub fn near_words(&self) -> String {
        let percent = u128::from(self.used) * 100 / u128::from(self.limit.max(1));
        let what = match self.unit {
            Unit::Tokens => "token",
            Unit::Money => "cost",
        };
        format!(
            "{percent} % of the {what} budget is used ({}){}",
            self.figures(self.used),
            self.resets_words()
        )
    }

    /// That it does not hold what is asked for, which needs about so much. What a session's clients know of it
    /// stands first.
    pub fn exceeded(&self, needs: u64) -> Error {
        let what = match self.unit {
            Unit::Tokens => "token",
            Unit::Money => "cost",
        };
        let taken = self.taken();
        let mut message = format!("{what} budget exceeded ({})", self.figures(taken));
        if taken < self.limit {
            let (taken, limit, needs) =
                (self.unit.said(taken), self.unit.said(self.limit), self.unit.said(needs));
            let used = if self.reserved > 0 { "used or held for what runs" } else { "used" };
            message += &format!(": {taken} of {limit} are {used}, and this prompt needs about {needs}");
        }
        message += &match self.period {
            Period::Session => "; /new begins another conversation".to_owned(),
            Period::Daily | Period::Monthly => self.resets_words(),
        };
        ErrorCode::BudgetExceeded.error(message).with(Detail::Budget(Box::new(BudgetMet {
            name: self.bound(),
            used: taken,
            limit: self.limit,
            resets: self.resets,
        })))
    }

    /// That prompts are refused since nothing of it is left; none where something is, and for one session's.
    pub fn refusal_words(&self) -> Option<String> {
        let is_spent = self.limit > 0 && self.used >= self.limit && self.period != Period::Session;
        is_spent.then(|| {
            let (who, whose) = match (&self.whose.principal, &self.whose.agent) {
                (None, None) => ("all prompts".to_owned(), "the"),
                (None, Some(agent)) => (format!("prompts to agent {agent}"), "its"),
                (Some(principal), agent) => {
                    let of = principal.in_words();
                    let to = agent.as_ref().map(|agent| format!(" to agent {agent}")).unwrap_or_default();
                    (format!("prompts of {of}{to}"), "their")
                }
            };
            let (period, resets) = (self.period.name(), self.resets_words());
            let what = if self.unit == Unit::Money { " cost" } else { "" };
            format!("{who} are refused: {whose} {period}{what} budget is spent{resets}")
        })
    }

    fn figures(&self, used: u64) -> String {
        let (used, limit) = (self.unit.said(used), self.unit.said(self.limit));
        format!("{}{}: {used}/{limit}", self.period.name(), self.whose.words())
    }

    fn resets_words(&self) -> String {
        self.resets
            .map(|at| format!("; it resets at {}", at.to_rfc3339().replace(".000Z", "Z")))
            .unwrap_or_default()
    }

    /// The bound that it is.
    const fn bound(&self) -> Limit {
        match (self.period, self.unit) {
            (Period::Session, Unit::Tokens) => Limit::SessionTokens,
            (Period::Session, Unit::Money) => Limit::SessionCost,
            (Period::Daily, Unit::Tokens) => Limit::DailyTokens,
            (Period::Daily, Unit::Money) => Limit::DailyCost,
            (Period::Monthly, Unit::Tokens) => Limit::MonthlyTokens,
            (Period::Monthly, Unit::Money) => Limit::MonthlyCost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_may_spend_is_said_whether_anybody_did_or_not() {
        let caps = |daily, monthly_cost| Caps {
            daily,
            monthly_cost: Money::from_nanos(monthly_cost),
            ..Caps::default()
        };
        let rule = |agent, principal, caps| BudgetRule { agent, principal, caps };
        let rules = vec![
            rule(Among::Each, Among::All, caps(9, 1_500_000_000)),
            rule(Among::One("main".into()), Among::Each, caps(7, 0)),
            rule(Among::One("main".into()), Among::All, caps(5, 0)),
        ];
        let budgets = Budgets { rules, ..Budgets::default() };
        assert_eq!(
            budgets.words_of_each(),
            [
                "each agent may spend 9 tokens a day and $1.50 a month",
                "agent main for each principal may spend 7 tokens a day",
            ]
        );
        assert_eq!(budgets.in_money_for(&"main".into()), Some(("monthly_cost", None)));
    }
}
