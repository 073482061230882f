//! What a call costs, however it ends.

use actix::Recipient;
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::error::Error;
use clawmux_core::ids::{AgentId, RunId, SessionKey};
use clawmux_core::provider::estimate_tokens;
use clawmux_core::provider::meter::Reservation;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::prefix::Changed;
use clawmux_core::provider::price::{Money, Price};
use clawmux_core::provider::tally::Spent;
use clawmux_core::provider::usage::Usage;

use super::account::Account;
use super::shared_budget::{SharedBudget, SharedBudgets};
use super::shared_meter::{CallSize, SetAside, SharedMeter};
use super::{Candidate, Settle};
use crate::runtime::clock;
use crate::runtime::meters::Meters;

/// For whom a call is made.
#[derive(Clone, Debug)]
pub(crate) struct Payer {
    pub(crate) session: SessionKey,
    pub(crate) run: RunId,
    pub(crate) agent: AgentId,
    pub(crate) account: Account,
    /// What it may share with others.
    pub(crate) shared_budgets: SharedBudgets,
    /// Where calls are counted.
    pub(crate) meters: Meters,
}

/// A reservation that is settled when this is dropped, with what is known by then: the usage the
/// wire told; else, once a request may have reached a provider, the estimated input and the output
/// that was streamed.
#[derive(Debug)]
pub(crate) struct Charge {
    supervisor: Recipient<Settle>,
    /// The number of the call.
    call: u64,
    meter: SharedMeter,
    reservation: Option<Reservation>,
    /// What each time costs at most that a model is asked.
    size: CallSize,
    payer: Payer,
    /// Where the reservation counts besides, and how much of it.
    in_purse: Option<(SharedBudget, Spent)>,
    /// How the request differs from the session's last one.
    changed: Option<Changed>,
    /// What attempts that are over cost.
    records: Vec<UsageRecord>,
    attempt: Option<Attempt>,
}

/// One call of one model.
#[derive(Debug)]
struct Attempt {
    model: ModelRef,
    price: Option<Price>,
    /// What the wire said.
    wire: Option<Usage>,
    output_bytes: u64,
    /// Whether the wire's figures are final.
    finished: bool,
    /// Whether the wire said what can't be.
    disbelieved: bool,
}

impl Charge {
    pub(super) fn new(
        supervisor: Recipient<Settle>,
        call: u64,
        meter: SharedMeter,
        (set_aside, size): (SetAside, CallSize),
        payer: Payer,
        changed: Option<Changed>,
    ) -> Self {
        let SetAside { reservation, output, shared_budget } = set_aside;
        let reserved = reservation.spent();
        Self {
            supervisor,
            call,
            meter,
            reservation: Some(reservation),
            // Once it is asked for, no less will do.
            size: CallSize { output_min: output, output_max: output, ..size },
            payer,
            in_purse: shared_budget.map(|shared_budget| (shared_budget, reserved)),
            changed,
            records: Vec::new(),
            attempt: None,
        }
    }

    /// The most that the call may come to, as a record of `model`.
    pub(super) fn reserved(&self, model: ModelRef) -> UsageRecord {
        let (input, output) = (self.size.input, self.size.output_max.into());
        let cost = self.size.price.map(|price| price.at_most(input, output));
        self.payer.record(model, Usage::new(input, output), cost, self.changed)
    }

    /// A request goes to this model. What an attempt before it was billed is no longer set aside for it.
    ///
    /// # Errors
    /// `BudgetExceeded` where the budgets hold no further attempt.
    pub(super) fn begin(&mut self, candidate: &Candidate) -> Result<(), Error> {
        self.end(true);
        if !self.records.is_empty() {
            let SetAside { reservation, shared_budget, .. } = self.meter.reserve(&self.payer, self.size)?;
            if let Some(shared_budget) = shared_budget {
                let purse = self.in_purse.get_or_insert((shared_budget, Spent::default()));
                purse.1 = purse.1.plus(reservation.spent());
            }
            match &mut self.reservation {
                Some(own) => own.join(reservation),
                none => *none = Some(reservation),
            }
        }
        let model = candidate.model_ref();
        self.payer.meters.asked(&model.provider);
        let price = candidate.facts.price;
        self.attempt =
            Some(Attempt { model, price, wire: None, output_bytes: 0, finished: false, disbelieved: false });
        Ok(())
    }

    /// The attempt failed; [`end`](Self::end) follows.
    pub(super) fn failed(&mut self, error: &Error) {
        if let Some(attempt) = &self.attempt {
            self.payer.meters.failed(&attempt.model.provider, error.code);
        }
    }

    /// The attempt is over. `billed` is false where the provider certainly counted nothing.
    pub(super) fn end(&mut self, billed: bool) {
        if let Some(attempt) = self.attempt.take()
            && billed
        {
            let usage = attempt.usage(self.size.input);
            self.record(attempt, usage);
        }
    }

    /// So much output was streamed, and this is what the wire says so far.
    pub(super) fn add(&mut self, output_bytes: u64, wire: Option<Usage>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.output_bytes += output_bytes;
            attempt.hear(wire, self.size);
        }
    }

    /// The answer is complete. Gives what it cost: estimated where the wire does not say.
    pub(super) fn finish(&mut self, wire: Option<Usage>) -> Usage {
        let Some(attempt) = &mut self.attempt else { return Usage::default() };
        attempt.hear(wire, self.size);
        attempt.finished = true;
        attempt.usage(self.size.input)
    }

    /// What the attempt under way would cost if it were cut now: no less than what was streamed.
    pub(super) fn cut(&self) -> Usage {
        self.attempt.as_ref().map(|attempt| attempt.usage(self.size.input)).unwrap_or_default()
    }

    /// What it would be settled with now.
    pub(super) fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for record in &self.records {
            sum += record.usage;
        }
        sum += self.cut();
        sum
    }

    fn record(&mut self, attempt: Attempt, usage: Usage) {
        if usage.total() > 0 {
            let cost = attempt.price.map(|price| price.of(usage));
            let spent = Spent { tokens: usage.total(), cost: cost.unwrap_or_default() };
            self.payer.account.add(usage, spent.cost);
            self.payer.meters.spent(&attempt.model.provider, &attempt.model.model, usage);
            // It may share one only since the call began.
            if let Some(shared_budget) = self.payer.shared_budgets.of(&self.payer.session) {
                shared_budget.add(spent);
            }
            self.records.push(self.payer.record(attempt.model, usage, cost, self.changed));
        }
    }
}

impl Payer {
    fn record(
        &self,
        model: ModelRef,
        usage: Usage,
        cost: Option<Money>,
        changed: Option<Changed>,
    ) -> UsageRecord {
        UsageRecord {
            session: self.session.clone(),
            run: self.run.clone(),
            agent: self.agent.clone(),
            provider: model.provider,
            model: model.model,
            usage,
            cost,
            changed,
            at: clock::now(),
        }
    }
}

/// How many times more than was estimated or asked for a provider may count, and so many tokens more, to be
/// believed: of pictures and of other tokenizers it counts more than is estimated.
const BELIEVED_TIMES: u64 = 10;
const BELIEVED_MORE: u64 = 100_000;

impl Attempt {
    /// The wire says this. What can't be is not believed: it would close a budget for a month.
    fn hear(&mut self, wire: Option<Usage>, size: CallSize) {
        let Some(wire) = wire else { return };
        let most = |of: u64| of.saturating_mul(BELIEVED_TIMES).saturating_add(BELIEVED_MORE);
        let input = wire.input_tokens;
        if input <= most(size.input) && wire.output_tokens <= most(size.output_max.into()) {
            self.wire = Some(wire);
        } else if !self.disbelieved {
            self.disbelieved = true;
            tracing::warn!(
                model = %self.model, input, output = wire.output_tokens, sent = size.input, "the provider's count is \
                 not believed: what is estimated counts"
            );
        }
    }

    fn usage(&self, input_estimate: u64) -> Usage {
        let streamed = estimate_tokens(self.output_bytes);
        match self.wire {
            Some(wire) if self.finished => wire,
            // Of an answer that is not complete the wire tells the input, and little of the output.
            Some(wire) => Usage { output_tokens: wire.output_tokens.max(streamed), ..wire },
            None => Usage::new(input_estimate, streamed),
        }
    }
}

impl Drop for Charge {
    #[expect(clippy::disallowed_methods, reason = "lifecycle message to the parent, one per call")]
    fn drop(&mut self) {
        self.end(true);
        if let Some(reservation) = self.reservation.take() {
            self.payer.account.release(reservation.spent());
            if let Some((shared_budget, reserved)) = self.in_purse.take() {
                shared_budget.release(reserved);
            }
            let records = std::mem::take(&mut self.records);
            self.supervisor.do_send(Settle { call: self.call, reservation, records });
        }
    }
}
