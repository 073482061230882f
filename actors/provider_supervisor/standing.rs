//! How the models of the providers stand: what went wrong last with each provider, which models and keys are
//! left alone, and what models and their servers can't take.
//!
//! One value, shared by the supervisor and the calls under way: what a call finds out holds for the next one at
//! once, and not only when its answer is over. The lock is held for one look, and never across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawmux_core::error::{Detail, Error};
use clawmux_core::provider::breaker::{Breakers, LeftAlone};
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::time::Timestamp;
use serde_json::{Value, json};

use super::{Candidate, Endpoint};

/// For how long a provider counts as failing that was not asked again.
const FAILING_FOR: Duration = Duration::from_secs(3600);

/// The most models that are remembered to be without something: more than configurations have.
const LACKING_MAX: usize = 1024;

/// How the models stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The providers there are, each with all its keys. Of any other nothing is kept.
    providers: BTreeMap<String, Vec<Arc<Endpoint>>>,
    /// What went wrong last with each provider of whom something did.
    failing: BTreeMap<String, Failing>,
    /// The models and keys that are left alone for a while.
    breakers: Breakers,
    /// The models that can't call tools, as their servers said.
    toolless: BTreeSet<ModelRef>,
    /// Those whose servers refuse the marks of what may be cached.
    markless: BTreeSet<ModelRef>,
}

/// What went wrong last with a provider.
#[derive(Debug)]
struct Failing {
    /// So many of its last calls failed in a row; none once one went well again.
    calls: u64,
    last: Error,
    /// The key it was asked with, where it has several.
    key: Option<String>,
    at: Timestamp,
}

impl Standing {
    /// These are the providers now, with their keys. What is known of those for whom `is_same` does not hold
    /// is forgotten: one that is set otherwise may do better.
    pub(super) fn set_providers(
        &self,
        providers: BTreeMap<String, Vec<Arc<Endpoint>>>,
        is_same: impl Fn(&String) -> bool,
    ) {
        let mut state = self.lock();
        state.failing.retain(|name, _| is_same(name));
        state.breakers.retain(|model| is_same(&model.provider));
        state.toolless.retain(|model| is_same(&model.provider));
        state.markless.retain(|model| is_same(&model.provider));
        state.providers = providers;
    }

    /// A model was asked, and answered.
    pub(super) fn succeeded(&self, candidate: &Candidate) {
        let mut state = self.lock();
        state.breakers.succeeded(&candidate.model_ref(), candidate.endpoint.key_at);
        if let Some(failing) = state.failing.get_mut(&candidate.endpoint.name) {
            failing.calls = 0;
        }
    }

    /// A model was asked, and failed.
    pub(super) fn failed(&self, now: Timestamp, candidate: &Candidate, error: &Error, fault: Fault) {
        let mut state = self.lock();
        let provider = &candidate.endpoint.name;
        // Where the request was at fault that says nothing of the provider, and one that a reload took away is
        // nobody's concern.
        if !fault.fails_over() || !state.providers.contains_key(provider) {
            return;
        }
        let wanted = match error.detail {
            Some(Detail::RetryAfter(wait)) => Some(wait),
            _ => None,
        };
        state.breakers.failed(now, &candidate.model_ref(), candidate.endpoint.key_at, fault, wanted);
        let calls = state.failing.get(provider).map_or(0, |failing| failing.calls) + 1;
        let failing =
            Failing { calls, last: error.clone(), key: candidate.endpoint.key_with_place(), at: now };
        state.failing.insert(provider.clone(), failing);
    }

    /// A model is asked.
    pub(super) fn asked(&self, now: Timestamp, candidate: &Candidate) {
        self.lock().breakers.asked(now, &candidate.model_ref(), candidate.endpoint.key_at);
    }

    /// Whether a model may be asked now, with this key.
    pub(super) fn admits(&self, now: Timestamp, candidate: &Candidate) -> bool {
        let until = self.lock().breakers.until(now, &candidate.model_ref(), candidate.endpoint.key_at);
        until.is_none()
    }

    /// Puts those that are left alone for now behind the others, the one first that is for the shortest time.
    pub(super) fn order(&self, now: Timestamp, candidates: &mut [Candidate]) {
        let breakers = &self.lock().breakers;
        candidates
            .sort_by_key(|candidate| breakers.until(now, &candidate.model_ref(), candidate.endpoint.key_at));
    }

    /// A model answered once it was asked without tools, so it can't call any.
    pub(super) fn is_without_tools(&self, model: ModelRef) {
        let mut state = self.lock();
        if state.toolless.len() < LACKING_MAX && state.providers.contains_key(&model.provider) {
            state.toolless.insert(model);
        }
    }

    /// A model answered once it was asked without the marks of what may be cached, so its server refuses them.
    pub(super) fn is_without_cache_marks(&self, model: ModelRef) {
        let mut state = self.lock();
        if state.markless.len() < LACKING_MAX && state.providers.contains_key(&model.provider) {
            state.markless.insert(model);
        }
    }

    /// Whether a model's server takes the marks of what may be cached, as far as is known.
    pub(super) fn takes_cache_marks(&self, model: &ModelRef) -> bool {
        !self.lock().markless.contains(model)
    }

    /// Whether a model can call tools, as far as is known.
    pub(super) fn has_tools(&self, model: &ModelRef) -> bool {
        !self.lock().toolless.contains(model)
    }

    /// What is wrong with providers, models and keys, in nobody's words but ours.
    pub(super) fn wrong(&self, now: Timestamp) -> Vec<String> {
        let state = self.lock();
        let told = |(name, Failing { calls, last, at, .. }): (&String, &Failing)| {
            let (last, at) = (last.code.name(), at.to_rfc3339());
            let calls = if *calls == 1 { "last call".to_owned() } else { format!("last {calls} calls") };
            format!("provider {name}: the {calls} failed ({last}), at {at}")
        };
        let failing = state.recent(now).filter(|(_, failing)| failing.calls > 0).map(told);
        let left_alone = state.breakers.open(now).map(|LeftAlone { model, key, fault, until }| {
            let key = state
                .endpoint(model, key)
                .and_then(Endpoint::key_name)
                .map(|key| format!(" ({key})"))
                .unwrap_or_default();
            let (words, until) = (fault.words(), until.to_rfc3339());
            format!("model {model} {words}{key}: it is left alone until {until}")
        });
        failing.chain(left_alone).collect()
    }

    /// What went wrong last with each provider, in its own words: for operators alone.
    pub(super) fn last_errors(&self, now: Timestamp) -> Vec<Value> {
        let told = |(name, Failing { calls, last, key, at }): (&String, &Failing)| {
            json!({ "provider": name, "key": key, "calls_failed": calls, "at_ms": at.as_millis(),
                    "code": last.code.name(), "message": last.message })
        };
        self.lock().recent(now).map(told).collect()
    }

    /// The models and keys that are left alone.
    pub(super) fn left_alone(&self, now: Timestamp) -> Vec<Value> {
        let state = self.lock();
        let told = |LeftAlone { model, key, fault, until }: LeftAlone<'_>| {
            json!({ "provider": model.provider, "model": model.model, "key": state.endpoint(model, key).and_then(Endpoint::key_with_place),
                    "fault": fault.name(), "until_ms": until.as_millis() })
        };
        state.breakers.open(now).map(told).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn recent(&self, now: Timestamp) -> impl Iterator<Item = (&String, &Failing)> {
        self.failing.iter().filter(move |(_, failing)| now.since(failing.at) < FAILING_FOR)
    }

    fn endpoint(&self, model: &ModelRef, key: Option<usize>) -> Option<&Endpoint> {
        Some(self.providers.get(&model.provider)?.get(key?)?)
    }
}
