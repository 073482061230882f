//! Looks at a provider from outside of any session: whether it is there and takes the key, which models it
//! has, which both cost nothing, and whether it answers one prompt, which costs a few tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use awc::ClientResponse;
use awc::http::Method;
use awc::http::header::DATE;
use bytes::Bytes;
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::facts::ModelFacts;
use clawmux_core::provider::fault::Fault;
use clawmux_core::provider::{ChatMessage, ChatRequest, Delta, address, encode, http_error, listing};
use futures::StreamExt as _;
use tokio::time::timeout;

use super::client::{self, Failure};
use super::{Deadlines, Endpoint};

/// The most tokens of the answer to one prompt: room for a model that thinks first.
const TRIAL_TOKENS: u32 = 512;

/// So many characters of it are told.
const TOLD_CHARS_MAX: usize = 400;

/// The most that is read of what a provider says to a request that says nothing, in bytes.
const SAID_BYTES_MAX: usize = 64 * 1024;

/// What a provider answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// What that means.
    pub verdict: Verdict,
    /// The address that requests go to.
    pub url: String,
    /// The HTTP status.
    pub status: u16,
    /// What time it is there, in the words of the header `Date`.
    pub date: Option<String>,
    /// How long the head of the answer took.
    pub took: Duration,
}

/// What an answer to a request that asks for nothing means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there, and takes the key.
    Fine,
    /// It does not take the key.
    KeyRefused,
    /// The key's account has no quota or credit left.
    NoQuota,
    /// It is not there that requests go.
    NotThere,
    /// The limits of the account are reached.
    Limited,
    /// Something is out of order there.
    Broken,
}

impl Verdict {
    /// Of a status and what was said with it. That the request is wrong is what a good server says.
    fn of(status: u16, said: &[u8]) -> Self {
        let names_model = || String::from_utf8_lossy(said).to_lowercase().contains("model");
        match (status, Fault::of_status(status, said)) {
            (200..=299, _) => Self::Fine,
            (_, Fault::Quota) => Self::NoQuota,
            (429, _) => Self::Limited,
            (_, Fault::Auth) => Self::KeyRefused,
            // Some miss the model rather than the address.
            (404, _) if names_model() => Self::Fine,
            (300..=399 | 404 | 405 | 410, _) => Self::NotThere,
            // Some servers fail at a request that says nothing.
            (400..=500, _) => Self::Fine,
            _ => Self::Broken,
        }
    }
}

/// Asks where requests go with one that asks for nothing, which costs nothing: whether it is there and takes the
/// key. Takes about `within` at most. None for a provider without a network.
///
/// # Errors
/// Where there is no answer, with why; no key is in it.
pub async fn probe(
    name: &str,
    provider: &config::Provider,
    within: Duration,
) -> Result<Option<Probed>, Error> {
    let endpoint = Endpoint::new(name, provider)?;
    let Some(http) = &endpoint.http else { return Ok(None) };
    let begun = Instant::now();
    let probed = async {
        let asked = ask(&endpoint, Method::POST, &http.url, "{}", within).await;
        let mut answer = asked.map_err(|failure| failure.error)?;
        let took = begun.elapsed();
        let said = answer.body().limit(SAID_BYTES_MAX).await.unwrap_or_default();
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        let status = answer.status().as_u16();
        Ok(Some(Probed { verdict: Verdict::of(status, &said), url: http.url.clone(), status, date, took }))
    };
    timeout(within, probed).await.map_err(|_| late(name, within))?
}

/// The models that a provider says it has, in its order. Takes `within` at most.
///
/// # Errors
/// Where it is not reached, refuses, or answers with something else; no key is in it.
pub async fn models(name: &str, provider: &config::Provider, within: Duration) -> Result<Vec<String>, Error> {
    Ok(described(name, provider, within).await?.into_iter().map(|(model, _)| model).collect())
}

/// The same with what the provider says of each.
///
/// # Errors
/// As [`models`].
pub async fn described(
    name: &str,
    provider: &config::Provider,
    within: Duration,
) -> Result<Vec<(String, ModelFacts)>, Error> {
    let endpoint = Endpoint::new(name, provider)?;
    let listed = timeout(within, list_facts(&endpoint, within)).await.map_err(|_| late(name, within))?;
    listed.map_err(|failure| failure.error)
}

/// The same with the first of its keys that it takes; each may take so long.
///
/// # Errors
/// As [`models`], of the first key.
pub async fn described_with_any_key(
    name: &str,
    provider: &config::Provider,
    within: Duration,
) -> Result<Vec<(String, ModelFacts)>, Error> {
    let mut first = None;
    for (_, provider) in provider.by_key() {
        match described(name, &provider, within).await {
            Ok(models) => return Ok(models),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| ErrorCode::Internal.error(format!("{name} was not asked"))))
}

/// The models that it says it has. Who calls bounds the time.
pub(super) async fn list(endpoint: &Endpoint, within: Duration) -> Result<Vec<String>, Failure> {
    Ok(list_facts(endpoint, within).await?.into_iter().map(|(model, _)| model).collect())
}

async fn list_facts(endpoint: &Endpoint, within: Duration) -> Result<Vec<(String, ModelFacts)>, Failure> {
    let name = &endpoint.name;
    let Some(url) = address::models(endpoint.kind.format(), &endpoint.base_url) else {
        let own = endpoint.kind.preset().default_model;
        return Ok(own.map(|own| (own.to_owned(), ModelFacts::default())).into_iter().collect());
    };
    let failed = |error, fault| Failure { error, fault, billed: false };
    let mut answer = ask(endpoint, Method::GET, &url, "", within).await?;
    let status = answer.status();
    let body = answer.body().limit(listing::BYTES_MAX).await;
    if !status.is_success() {
        let (status, said) = (status.as_u16(), body.unwrap_or_default());
        let error = http_error(name, status, None, &said, endpoint.secrets());
        return Err(failed(error, Fault::of_status(status, &said)));
    }
    let body = body.map_err(|why| {
        failed(ErrorCode::Provider.error(format!("{name}: its list of models: {why}")), Fault::Cut)
    })?;
    listing::read_facts(name, &body).map_err(|error| failed(endpoint.hide(error), Fault::Misconfigured))
}

/// Has a model answer one prompt, and gives the beginning of what it says. It may be empty: some think for
/// as long as they are let. Takes `within` at most. A provider without a network has nothing to say.
///
/// # Errors
/// Where it is not reached, refuses, or does not answer properly; no key is in it.
pub async fn prompt(
    name: &str,
    provider: &config::Provider,
    model: &str,
    text: &str,
    within: Duration,
) -> Result<String, Error> {
    let endpoint = Arc::new(Endpoint::new(name, provider)?);
    let Some(mut decoder) = endpoint.decoder() else { return Ok(String::new()) };
    let request = ChatRequest {
        model: model.to_owned(),
        system: String::new(),
        messages: vec![ChatMessage::user(text)],
        tools: Vec::new(),
        max_tokens: TRIAL_TOKENS,
        thinking: Thinking::Off,
        cache_marks: false,
    };
    let body = encode(endpoint.kind, &endpoint.base_url, &request);
    let deadlines = Deadlines { first_byte: within, idle: within, total: within, ..Deadlines::default() };
    let answered = async {
        let called = client::call(endpoint.clone(), body.into(), deadlines).await;
        let mut stream = called.map_err(|failure| failure.error)?;
        let (mut said, mut deltas) = (String::new(), Vec::new());
        loop {
            match stream.next().await {
                Some(Ok(bytes)) => decoder.push(&bytes, &mut deltas)?,
                Some(Err(why)) => {
                    return Err(ErrorCode::Provider.error(format!("{name}: the answer was cut: {why}")));
                }
                None => decoder.finish(&mut deltas)?,
            }
            for delta in deltas.drain(..) {
                match delta {
                    Delta::Text(text) => {
                        let room = TOLD_CHARS_MAX.saturating_sub(said.chars().count());
                        said.extend(text.chars().take(room));
                    }
                    Delta::Finished { .. } => return Ok(said),
                    Delta::Thinking(_) | Delta::Sealed(_) | Delta::ToolCall(_) | Delta::Notice(_) => {}
                }
            }
        }
    };
    timeout(within, answered).await.map_err(|_| late(name, within))?
}

/// Sends a request with the headers of the provider, and waits for the head of the answer.
async fn ask(
    endpoint: &Endpoint,
    method: Method,
    url: &str,
    body: &'static str,
    within: Duration,
) -> Result<ClientResponse, Failure> {
    // To connect takes two steps, of which each may take so long.
    let deadlines = Deadlines { connect: within / 3, ..Deadlines::default() };
    let mut headers = endpoint.http.as_ref().map(|http| http.headers.clone()).unwrap_or_default();
    headers.retain(|(name, _)| name != "accept" && !(body.is_empty() && name == "content-type"));
    let sent = client::send(endpoint, method, url, &headers, Bytes::from_static(body.as_bytes()), deadlines);
    sent.await.map(|(answer, _)| answer)
}

pub(super) fn late(name: &str, within: Duration) -> Error {
    ErrorCode::Timeout.error(format!("{name}: no answer within {within:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_request_is_wrong_is_what_a_good_server_says() {
        for (status, said, verdict) in [
            (400, r#"{"error":{"message":"you must provide a model parameter"}}"#, Verdict::Fine),
            (422, r#"{"detail":[{"msg":"Field required"}]}"#, Verdict::Fine),
            (500, r#"{"error":{"message":"'messages' is required"}}"#, Verdict::Fine),
            (404, r#"{"error":"model \"\" not found"}"#, Verdict::Fine),
            (404, r#"{"detail":"Not Found"}"#, Verdict::NotThere),
            (405, "", Verdict::NotThere),
            (301, "", Verdict::NotThere),
            (401, "", Verdict::KeyRefused),
            (400, "API key not valid. Please pass a valid API key.", Verdict::KeyRefused),
            (429, "", Verdict::Limited),
            (429, r#"{"error":{"code":"insufficient_quota"}}"#, Verdict::NoQuota),
            (503, "Loading model", Verdict::Broken),
        ] {
            assert_eq!(Verdict::of(status, said.as_bytes()), verdict, "{status} {said}");
        }
    }
}
