//! The meter, shared by the supervisor and the calls under way: a call that asks a second time, since its
//! first model failed after it had counted something, needs as much again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawmux_core::error::Error;
use clawmux_core::provider::meter::{Ask, Meter, Reservation};
use clawmux_core::provider::price::Price;
use clawmux_core::provider::tally::Spent;

use super::charge::Payer;
use super::shared_budget::SharedBudget;
use crate::runtime::clock;

/// What is spent and set aside.
#[derive(Clone, Debug)]
pub(crate) struct SharedMeter(Arc<Mutex<Meter>>);

/// What is set aside for one call.
#[derive(Debug)]
pub(super) struct SetAside {
    pub(super) reservation: Reservation,
    /// The output that is in it.
    pub(super) output: u32,
    /// The purse that it is set aside in as well.
    pub(super) shared_budget: Option<SharedBudget>,
}

/// What a call may come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSize {
    /// In tokens, estimated.
    pub(super) input: u64,
    /// No less would do.
    pub(super) output_min: u32,
    pub(super) output_max: u32,
    /// The dearest of its models; none where no price is known.
    pub(super) price: Option<Price>,
}

impl SharedMeter {
    pub(super) fn new(meter: Meter) -> Self {
        Self(Arc::new(Mutex::new(meter)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Meter> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets aside for a call, in its session's account and the purse it shares too.
    ///
    /// # Errors
    /// `BudgetExceeded` where one of its budgets does not hold it.
    pub(super) fn reserve(&self, payer: &Payer, size: CallSize) -> Result<SetAside, Error> {
        let mut meter = self.lock();
        let shared_budget = payer.shared_budgets.of(&payer.session);
        let own = payer.account.taken();
        let (mut session, mut output_max) = (own, size.output_max);
        if let Some(shared_budget) = &shared_budget {
            let family = shared_budget.taken();
            session = Spent { tokens: own.tokens.max(family.tokens), cost: own.cost.max(family.cost) };
            output_max = shared_budget.clamp(own.tokens, size.input, size.output_min, output_max)?;
        }
        let ask = Ask {
            agent: &payer.agent,
            principal: &payer.session.owner(),
            session,
            input: size.input,
            output_min: size.output_min,
            output_max,
            price: size.price,
        };
        let (reservation, output) = meter.reserve(clock::now(), &ask)?;
        payer.account.reserve(reservation.spent());
        if let Some(shared_budget) = &shared_budget {
            shared_budget.add(reservation.spent());
        }
        Ok(SetAside { reservation, output, shared_budget })
    }
}
