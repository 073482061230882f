//! What a call costs, however it ends.

use actix::Recipient;
use clawmux_core::conversation::log::usage::UsageRecord;
use clawmux_core::error::Error;
use clawmux_core::ids::{AgentId, RunId, SessionKey};
use clawmux_core::provider::estimate_tokens;
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::meter::Reservation;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::usage::Usage;
use clawmux_core::time::Timestamp;

use super::Settle;
use super::account::Account;
use super::shared_budget::{SharedBudget, SharedBudgets};
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
    reservation: Option<Reservation>,
    input_estimate: u64,
    payer: Payer,
    /// Where the reservation counts besides.
    shared_budget: Option<SharedBudget>,
    /// What attempts that are over cost.
    records: Vec<UsageRecord>,
    /// How they came out.
    outcomes: Vec<Outcome>,
    attempt: Option<Attempt>,
}

/// How a call of a provider came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The model.
    pub(crate) model: ModelRef,
    /// When it was over.
    pub(crate) at: Timestamp,
    /// What went wrong.
    pub(crate) failed: Option<(Error, Fault)>,
}

/// One call of one model.
#[derive(Debug)]
struct Attempt {
    provider: String,
    model: String,
    /// What the wire said.
    wire: Option<Usage>,
    output_bytes: u64,
    /// Whether the wire's figures are final.
    finished: bool,
}

impl Charge {
    pub(crate) fn new(supervisor: Recipient<Settle>, reservation: Reservation, payer: Payer) -> Self {
        let shared_budget = payer.shared_budgets.of(&payer.session);
        if let Some(shared_budget) = &shared_budget {
            shared_budget.reserve(reservation.tokens());
        }
        Self {
            supervisor,
            input_estimate: reservation.input(),
            reservation: Some(reservation),
            payer,
            shared_budget,
            records: Vec::new(),
            outcomes: Vec::new(),
            attempt: None,
        }
    }

    /// A request goes to this model.
    pub(super) fn begin(&mut self, provider: &str, model: &str) {
        self.end(true);
        self.payer.meters.asked(provider);
        self.attempt = Some(Attempt {
            provider: provider.to_owned(),
            model: model.to_owned(),
            wire: None,
            output_bytes: 0,
            finished: false,
        });
    }

    /// The attempt failed; [`end`](Self::end) follows.
    pub(super) fn failed(&mut self, error: &Error, fault: Fault) {
        if let Some(attempt) = &self.attempt {
            self.payer.meters.failed(&attempt.provider, error.code);
            self.outcomes.push(attempt.outcome(Some((error.clone(), fault))));
        }
    }

    /// The attempt is over. `billed` is false where the provider certainly counted nothing.
    pub(super) fn end(&mut self, billed: bool) {
        if let Some(attempt) = self.attempt.take()
            && billed
        {
            let usage = attempt.usage(self.input_estimate);
            self.record(attempt, usage);
        }
    }

    /// So much output was streamed, and this is what the wire says so far.
    pub(super) fn add(&mut self, output_bytes: u64, wire: Option<Usage>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.output_bytes += output_bytes;
            attempt.wire = wire.or(attempt.wire);
        }
    }

    /// The answer is complete. Gives what it cost: estimated where the wire does not say.
    pub(super) fn finish(&mut self, wire: Option<Usage>) -> Usage {
        let Some(attempt) = &mut self.attempt else { return Usage::default() };
        attempt.wire = wire.or(attempt.wire);
        attempt.finished = true;
        self.outcomes.push(attempt.outcome(None));
        attempt.usage(self.input_estimate)
    }

    /// What it would be settled with now.
    pub(super) fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for record in &self.records {
            sum += record.usage;
        }
        if let Some(attempt) = &self.attempt {
            sum += attempt.usage(self.input_estimate);
        }
        sum
    }

    fn record(&mut self, attempt: Attempt, usage: Usage) {
        if usage.total() > 0 {
            self.payer.account.add(usage);
            self.payer.meters.spent(&attempt.provider, &attempt.model, usage);
            // It may share one only since the call began.
            if let Some(shared_budget) = self.payer.shared_budgets.of(&self.payer.session) {
                shared_budget.add(usage.total());
            }
            self.records.push(UsageRecord {
                session: self.payer.session.clone(),
                run: self.payer.run.clone(),
                agent: self.payer.agent.clone(),
                provider: attempt.provider,
                model: attempt.model,
                usage,
                at: clock::now(),
            });
        }
    }
}

impl Attempt {
    fn outcome(&self, failed: Option<(Error, Fault)>) -> Outcome {
        let model = ModelRef { provider: self.provider.clone(), model: self.model.clone() };
        Outcome { model, at: clock::now(), failed }
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
            if let Some(shared_budget) = &self.shared_budget {
                shared_budget.release(reservation.tokens());
            }
            let (records, outcomes) = (std::mem::take(&mut self.records), std::mem::take(&mut self.outcomes));
            self.supervisor.do_send(Settle { reservation, records, outcomes });
        }
    }
}
