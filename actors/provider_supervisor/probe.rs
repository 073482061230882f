//! Looks at a provider from outside of any session: whether it is there and takes the key, which models it
//! has, which both cost nothing, and whether it answers one prompt, which costs a few tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use awc::ClientResponse;
use awc::error::PayloadError;
use awc::http::header::{DATE, HeaderName};
use bytes::Bytes;
use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::{ChatMessage, ChatRequest, Decoder, Delta, encode, http_error, listing};
use futures::{Stream, StreamExt as _};
use tokio::time::timeout;

use super::{Deadlines, Endpoint, client};
use crate::outbound::dial;

/// The most tokens of the answer to one prompt: room for a model that thinks first.
const TRIAL_TOKENS: u32 = 512;

/// So many characters of it are told.
const TOLD_CHARS_MAX: usize = 400;

/// What a provider answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The HTTP status.
    pub status: u16,
    /// What time it is there, in the words of the header `Date`.
    pub date: Option<String>,
    /// How long the head of the answer took.
    pub took: Duration,
}

/// Asks which models there are, and looks at the head of the answer. Takes about `within` at most. None
/// for a provider without a network.
///
/// # Errors
/// Where there is no answer, with why; no key is in it.
pub async fn probe(
    name: &str,
    provider: &config::Provider,
    within: Duration,
) -> Result<Option<Probed>, Error> {
    let endpoint = Endpoint::new(name, provider)?;
    let begun = Instant::now();
    let asked = timeout(within, ask(&endpoint, within)).await.map_err(|_| late(name, within))??;
    let Some(answer) = asked else { return Ok(None) };
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    Ok(Some(Probed { status: answer.status().as_u16(), date, took: begun.elapsed() }))
}

/// The models that a provider says it has, in its order. Takes `within` at most.
///
/// # Errors
/// Where it is not reached, refuses, or answers with something else; no key is in it.
pub async fn models(name: &str, provider: &config::Provider, within: Duration) -> Result<Vec<String>, Error> {
    let endpoint = Endpoint::new(name, provider)?;
    let listed = async {
        let Some(mut answer) = ask(&endpoint, within).await? else {
            let own = config::default_model(endpoint.kind, &endpoint.base_url);
            return Ok(own.map(str::to_owned).into_iter().collect());
        };
        let status = answer.status();
        let body = answer.body().limit(listing::BYTES_MAX).await;
        if !status.is_success() {
            let said = body.unwrap_or_default();
            return Err(http_error(name, status.as_u16(), None, &said, endpoint.key.as_ref()));
        }
        let body =
            body.map_err(|why| ErrorCode::Provider.error(format!("{name}: its list of models: {why}")))?;
        listing::read(name, &body)
    };
    timeout(within, listed).await.map_err(|_| late(name, within))?
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
    let Some(mut decoder) = Decoder::new(endpoint.kind, name) else { return Ok(String::new()) };
    let request = ChatRequest {
        model: model.to_owned(),
        system: String::new(),
        messages: vec![ChatMessage::user(text)],
        tools: Vec::new(),
        max_tokens: TRIAL_TOKENS,
        thinking: Thinking::Off,
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

/// Asks which models there are; none for a provider without a network.
async fn ask(
    endpoint: &Endpoint,
    within: Duration,
) -> Result<Option<ClientResponse<impl Stream<Item = Result<Bytes, PayloadError>> + Unpin + use<>>>, Error> {
    let (Some(http), Some(url)) = (&endpoint.http, listing::url(endpoint.kind, &endpoint.base_url)) else {
        return Ok(None);
    };
    let url = if endpoint.tls.is_some() { dial::below_tls(&url) } else { url };
    // To connect takes two steps, of which each may take so long.
    let deadlines = Deadlines { connect: within / 3, ..Deadlines::default() };
    let client = client::client(endpoint, deadlines);
    let mut request = client.http().get(url).no_decompress();
    for (header, value) in http.headers.iter().filter(|(name, _)| !["content-type", "accept"].contains(name))
    {
        request = request.insert_header((HeaderName::from_static(header), value.expose()));
    }
    let answer = request.send().await.map_err(|error| client::refused(endpoint, error, deadlines).error)?;
    Ok(Some(answer))
}

fn late(name: &str, within: Duration) -> Error {
    ErrorCode::Timeout.error(format!("{name}: no answer within {within:?}"))
}
