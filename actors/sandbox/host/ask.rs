//! The functions that are granted by name, and those of the store: JSON in, JSON out.

use std::sync::Arc;

use clawmux_core::tools::plugin::{
    GetValue, HOST_CALL_BYTES_MAX, HostFunction, ListKeys, Rights, SearchMemory, SetValue,
};
use extism::{CurrentPlugin, Error, Function, ValType};
use serde_json::{Value as Json, json};

use super::call::{CallState, HostCall};
use super::{NAMESPACE, function, guest_memory};
use crate::runtime::clock;

/// The most random bytes of one call of `random`.
const RANDOM_BYTES_MAX: u64 = 64 * 1024;

pub(super) fn functions(rights: &Arc<Rights>, state: &Arc<CallState>) -> Vec<Function> {
    let mut functions = Vec::new();
    for granted in &rights.functions {
        let name = granted.name();
        let handle = Some(ValType::I64);
        functions.push(match granted {
            // Logging is there for everybody; the grant lifts its lines to where they are seen.
            HostFunction::Log => continue,
            HostFunction::Clock => {
                function(NAMESPACE, name, (0, handle), state, |_, _, _| Ok(clock::now().as_millis()))
            }
            HostFunction::Random => function(NAMESPACE, name, (1, handle), state, |guest, _, inputs| {
                if inputs[0] > RANDOM_BYTES_MAX {
                    return Err(Error::msg(format!("random: at most {RANDOM_BYTES_MAX} bytes at once")));
                }
                random(guest, inputs[0])
            }),
            HostFunction::SessionInfo => function(NAMESPACE, name, (0, handle), state, |guest, state, _| {
                let origin = state.origin()?;
                let about = json!({
                    "session": origin.session.as_str(),
                    "agent": origin.session.agent(),
                    "channel": origin.session.channel(),
                    "account": origin.session.account(),
                    "peer": origin.session.peer(),
                    "owner": origin.session.owner().as_str(),
                    "run": origin.run.as_str(),
                    "call": origin.call.as_str(),
                });
                answer(guest, &about)
            }),
            HostFunction::MemorySearch => {
                function(NAMESPACE, name, (1, handle), state, |guest, state, inputs| {
                    let search = SearchMemory::read(&taken(guest, inputs)?).map_err(Error::msg)?;
                    let found = state.ask(|reply| HostCall::Search(search, reply))?;
                    let found: Vec<Json> = found
                        .into_iter()
                        .map(|one| {
                            json!({ "id": one.id, "content": one.content, "score": one.score,
                                "metadata": one.metadata, "created_ms": one.created.as_millis() })
                        })
                        .collect();
                    answer(guest, &Json::Array(found))
                })
            }
        });
    }
    if !rights.stores.is_empty() {
        functions.extend(store(rights, state));
    }
    functions
}

fn store(rights: &Arc<Rights>, state: &Arc<CallState>) -> [Function; 3] {
    let handle = || (1, Some(ValType::I64));
    let (get_of, set_of, list_of) = (Arc::clone(rights), Arc::clone(rights), Arc::clone(rights));
    let get = move |guest: &mut CurrentPlugin, state: &CallState, inputs: &[u64]| {
        let get = GetValue::read(&taken(guest, inputs)?, &get_of.stores).map_err(Error::msg)?;
        state.used(format!("store:{}", get.namespace));
        let value = state.ask(|reply| HostCall::Get(get, reply))?;
        // JSON already, as it was kept.
        let value = value.unwrap_or_else(|| "null".to_owned());
        guest_memory::store(guest, format!("{{\"value\":{value}}}").as_bytes())
    };
    let set = move |guest: &mut CurrentPlugin, state: &CallState, inputs: &[u64]| {
        let set = SetValue::read(&taken(guest, inputs)?, &set_of.stores).map_err(Error::msg)?;
        state.used(format!("store:{}", set.namespace));
        state.ask(|reply| HostCall::Set(set, reply))?;
        answer(guest, &json!({}))
    };
    let list = move |guest: &mut CurrentPlugin, state: &CallState, inputs: &[u64]| {
        let list = ListKeys::read(&taken(guest, inputs)?, &list_of.stores).map_err(Error::msg)?;
        state.used(format!("store:{}", list.namespace));
        let (keys, more) = state.ask(|reply| HostCall::List(list, reply))?;
        answer(guest, &json!({ "keys": keys, "more": more }))
    };
    [
        function(NAMESPACE, "store_get", handle(), state, get),
        function(NAMESPACE, "store_set", handle(), state, set),
        function(NAMESPACE, "store_list", handle(), state, list),
    ]
}

/// Hands over so many random bytes.
pub(super) fn random(guest: &mut CurrentPlugin, count: u64) -> Result<u64, Error> {
    let mut bytes = vec![0; usize::try_from(count)?];
    getrandom::fill(&mut bytes).map_err(|error| Error::msg(format!("random: {error}")))?;
    guest_memory::store(guest, &bytes)
}

/// The JSON that a guest hands over.
fn taken(guest: &mut CurrentPlugin, inputs: &[u64]) -> Result<Vec<u8>, Error> {
    guest_memory::take(guest, inputs[0], HOST_CALL_BYTES_MAX)
}

fn answer(guest: &mut CurrentPlugin, json: &Json) -> Result<u64, Error> {
    guest_memory::store(guest, json.to_string().as_bytes())
}
