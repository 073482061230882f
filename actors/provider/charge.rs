//! What a call costs, however it ends.

use actix::Recipient;
use clawmux_core::error::ErrorCode;
use clawmux_core::event::Usage;
use clawmux_core::ids::{AgentId, RunId, SessionKey};
use clawmux_core::log::usage::UsageRecord;
use clawmux_core::meter::Reservation;
use clawmux_core::provider::estimate_tokens;

use super::account::Account;
use super::purse::{Purse, Purses};
use crate::clock;
use crate::meters::Meters;
use crate::provider_supervisor::Settle;

/// For whom a call is made.
#[derive(Clone, Debug)]
pub(crate) struct Payer {
    pub(crate) session: SessionKey,
    pub(crate) run: RunId,
    pub(crate) agent: AgentId,
    pub(crate) account: Account,
    /// What it may share with others.
    pub(crate) purses: Purses,
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
    purse: Option<Purse>,
    /// What attempts that are over cost.
    records: Vec<UsageRecord>,
    attempt: Option<Attempt>,
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
        let purse = payer.purses.of(&payer.session);
        if let Some(purse) = &purse {
            purse.reserve(reservation.tokens());
        }
        Self {
            supervisor,
            input_estimate: reservation.input(),
            reservation: Some(reservation),
            payer,
            purse,
            records: Vec::new(),
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
    pub(super) fn failed(&self, code: ErrorCode) {
        if let Some(attempt) = &self.attempt {
            self.payer.meters.failed(&attempt.provider, code);
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
            if let Some(purse) = self.payer.purses.of(&self.payer.session) {
                purse.add(usage.total());
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
    fn usage(&self, input_estimate: u64) -> Usage {
        let streamed = estimate_tokens(self.output_bytes);
        match self.wire {
            Some(wire) if self.finished => wire,
            // Of an answer that is not complete the wire tells the input, and little of the output.
            Some(wire) => Usage { output_tokens: wire.output_tokens.max(streamed), ..wire },
            None => Usage { input_tokens: input_estimate, output_tokens: streamed },
        }
    }
}

impl Drop for Charge {
    #[expect(clippy::disallowed_methods, reason = "lifecycle message to the parent, one per permit")]
    fn drop(&mut self) {
        self.end(true);
        if let Some(reservation) = self.reservation.take() {
            if let Some(purse) = &self.purse {
                purse.release(reservation.tokens());
            }
            self.supervisor.do_send(Settle { reservation, records: std::mem::take(&mut self.records) });
        }
    }
}
