//! A look at a provider that costs nothing: whether it is there, and takes the key.

use std::time::{Duration, Instant};

use awc::http::header::{DATE, HeaderName};
use clawmux_core::config;
use clawmux_core::error::Error;
use clawmux_core::provider::ProviderKind;
use tokio::time::timeout;

use super::{Deadlines, Endpoint, client, dial};

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
    let Some(http) = &endpoint.http else { return Ok(None) };
    let path = match provider.kind {
        ProviderKind::Anthropic => "/v1/models",
        ProviderKind::OpenAi | ProviderKind::Offline => "/models",
    };
    let url = format!("{}{path}", provider.base_url);
    let url = if endpoint.tls.is_some() { dial::below_tls(&url) } else { url };
    // To connect takes two steps, of which each may take so long.
    let deadlines = Deadlines { connect: within / 3, ..Deadlines::default() };
    let mut request = client::client(endpoint.tls.as_ref(), deadlines.connect).get(url).no_decompress();
    for (header, value) in http.headers.iter().filter(|(name, _)| !["content-type", "accept"].contains(name))
    {
        request = request.insert_header((HeaderName::from_static(header), value.expose()));
    }
    let begun = Instant::now();
    let answer = match timeout(within, request.send()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(client::refused(&endpoint, error, deadlines).error),
        Err(_) => {
            let why = format!("{name}: no answer within {within:?}");
            return Err(clawmux_core::error::ErrorCode::Timeout.error(why));
        }
    };
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    Ok(Some(Probed { status: answer.status().as_u16(), date, took: begun.elapsed() }))
}
