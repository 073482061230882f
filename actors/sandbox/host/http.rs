//! HTTP, as extism's development kits call it: a request as JSON and its body, then the response's body, its
//! status and its headers.

use std::sync::Arc;

use clawmux_core::tools::plugin::{HttpRequest, Rights};
use extism::{Error, Function, ValType};

use super::call::{CallState, HostCall};
use super::{function, guest_memory};

/// The most bytes of a request's JSON: URL and headers, each byte of them escaped.
const HEAD_BYTES_MAX: usize = 256 * 1024;

const ENV: &str = extism::EXTISM_ENV_MODULE;

pub(super) fn functions(rights: &Arc<Rights>, state: &Arc<CallState>) -> Vec<Function> {
    let is_granted = !rights.http.is_empty();
    let request = move |guest: &mut _, state: &CallState, inputs: &[u64]| {
        state.call().response = None;
        let head = guest_memory::take(guest, inputs[0], HEAD_BYTES_MAX)?;
        let left = state.call().http_bytes_left;
        let body = guest_memory::take(guest, inputs[1], left)?;
        let request = HttpRequest::read(&head, body).map_err(|why| Error::msg(format!("http: {why}")))?;
        if !is_granted {
            let why = "no grant of http; capabilities = [\"http:HOST\"] lets it send requests to HOST";
            return Err(Error::msg(format!("http: {why}")));
        }
        let left = left - request.body.len();
        let fetched = state.ask(|reply| HostCall::Fetch(request, left, reply))?;
        let body = guest_memory::store(guest, &fetched.body)?;
        fetched.grants.into_iter().for_each(|grant| state.used(grant));
        let mut call = state.call();
        call.http_bytes_left = left.saturating_sub(fetched.body.len());
        call.response = Some((fetched.status, fetched.headers));
        Ok(body)
    };
    let status = |_: &mut _, state: &CallState, _: &[u64]| {
        Ok(state.call().response.as_ref().map_or(0, |(status, _)| u64::from(*status)))
    };
    let headers = |guest: &mut _, state: &CallState, _: &[u64]| {
        let headers = match &state.call().response {
            Some((_, headers)) => serde_json::to_vec(headers)?,
            None => return Ok(0),
        };
        guest_memory::store(guest, &headers)
    };
    vec![
        function(ENV, "http_request", (2, Some(ValType::I64)), state, request),
        function(ENV, "http_status_code", (0, Some(ValType::I32)), state, status),
        function(ENV, "http_headers", (0, Some(ValType::I64)), state, headers),
    ]
}
