//! Handing over what was said to be learned from, once it is in the log.

use clawmux_core::conversation::event::{Event, Logged, Outcome};
use clawmux_core::ids::RunId;
use clawmux_core::learning::{Finder, may_be_learned_from};

use super::Session;
use crate::learner::{Asked, LearnFrom};

impl Session {
    /// Hands over the runs that were answered.
    pub(super) fn learn_from(&self, events: &[Logged]) {
        let Some(finder) = self.profile.finder else { return };
        for logged in events {
            if let (Some(run), Event::Ended { outcome: Outcome::Completed, .. }) =
                (&logged.run, &logged.event)
            {
                self.hand_over(run, finder);
            }
        }
    }

    fn hand_over(&self, run: &RunId, finder: Finder) {
        let (session, learning) = (self.conversation.key(), &self.agent_configs.learning);
        if !may_be_learned_from(session, &learning.foreign) {
            return;
        }
        let Some(exchange) = self.conversation.exchange(run) else { return };
        let asked = || Asked {
            agent: self.profile.id.clone(),
            models: self.profile.models.clone(),
            account: self.account.clone(),
            tokens_a_day: learning.tokens_a_day,
            timeout: learning.timeout,
        };
        let model = (finder == Finder::Model).then(asked);
        let from = LearnFrom { session: session.clone(), run: run.clone(), exchange, model };
        if self.deps.learner.try_send(from).is_err() {
            tracing::warn!(%session, %run, "the learner is busy: nothing is learned from a run");
        }
    }
}
