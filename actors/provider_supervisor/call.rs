//! What a call of a model is made of: where it goes, and how long each part of it may take.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use clawmux_core::access::Secret;
use clawmux_core::config::{self, Patience};
use clawmux_core::error::Error;
use clawmux_core::ids::SessionKey;
use clawmux_core::prompt::thinking::Thinking;
use clawmux_core::provider::facts::ModelFacts;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::provider::notice::Notice;
use clawmux_core::provider::proxy::Proxy;
use clawmux_core::provider::{ChatRequest, Decoder, HttpRequest, ProviderKind, hide};
use rustls::ClientConfig;

use super::answer_room::AnswerRoom;
use super::default_model::Chosen;
use super::output_bound::OutputBound;
use super::places::Places;
use super::standing::Standing;
use crate::outbound::proxy;
use crate::outbound::tls::client_config;

/// How long each part of a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// To resolve the host, connect, and again for the TLS handshake.
    pub connect: Duration,
    /// Until the head of the response.
    pub first_byte: Duration,
    /// Between two events of the answer. What leads to none, such as a comment, does not count.
    pub idle: Duration,
    /// The pause before a model is asked again for the first time.
    pub retry: Duration,
    /// For everything, other models tried included.
    pub total: Duration,
    /// How long connections are kept that nobody uses.
    pub keep_alive: Duration,
    /// How long a place at the provider is waited for.
    pub place: Duration,
    /// After how much of a wait whoever waits is told why.
    pub notice: Duration,
}

/// How many times as long a model that thinks may be silent: some providers send nothing meanwhile.
const THINKING_TIMEOUT: u32 = 5;

impl Deadlines {
    /// For a request that asks for so much thinking.
    #[must_use]
    pub(crate) fn for_thinking(self, thinking: Thinking) -> Self {
        let patience = if thinking == Thinking::Off { 1 } else { THINKING_TIMEOUT };
        Self { first_byte: self.first_byte * patience, idle: self.idle * patience, ..self }
    }
}

impl From<Patience> for Deadlines {
    fn from(patience: Patience) -> Self {
        let Patience { connect, first_byte, silence, total, retries: _ } = patience;
        Self {
            connect,
            first_byte,
            idle: silence,
            retry: Duration::from_secs(1),
            total,
            // Providers close theirs after a minute or more.
            keep_alive: Duration::from_secs(45),
            // One who has a place may keep it for as long.
            place: total,
            notice: Duration::from_secs(2),
        }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Patience::default().into()
    }
}

/// The value of a header that is shorter is no secret: every text has it somewhere.
const HIDDEN_BYTES_MIN: usize = 8;

/// One configured provider with one of its keys, ready to be called.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) kind: ProviderKind,
    pub(crate) base_url: String,
    pub(super) key: Option<Secret>,
    /// The values of headers that are long enough to be secrets.
    hidden: Vec<Secret>,
    /// The place of the key among those of the provider, from 0, and how many it has.
    pub(super) key_at: usize,
    keys: usize,
    /// The variable or file that it is in, where that is known.
    key_place: Option<String>,
    pub(super) patience: Patience,
    /// None for a provider without a network.
    pub(super) http: Option<HttpRequest>,
    /// None where it is not reached by https.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// None where it is reached directly.
    pub(super) proxy: Option<Proxy>,
}

impl Endpoint {
    /// With the first of its keys. Reads the certificate authority's file, so it belongs to the start of the
    /// daemon.
    ///
    /// # Errors
    /// `InvalidRequest` where that file can't be read or holds no certificate, or where the environment names a
    /// proxy for it that can't be used.
    pub(crate) fn new(name: &str, provider: &config::Provider) -> Result<Self, Error> {
        let https = provider.base_url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let named = |mut error: Error| {
            error.message = format!("provider {name}: {}", error.message);
            error
        };
        let tls = if https && provider.kind != ProviderKind::Offline {
            Some(client_config(provider.ca_file.as_deref()).map_err(named)?)
        } else {
            None
        };
        let endpoint = Self {
            name: name.to_owned(),
            kind: provider.kind,
            base_url: provider.base_url.clone(),
            key: None,
            key_at: 0,
            keys: provider.keys().count(),
            key_place: None,
            hidden: provider
                .headers
                .values()
                .filter(|value| value.expose().len() >= HIDDEN_BYTES_MIN)
                .cloned()
                .collect(),
            patience: provider.patience,
            http: None,
            tls,
            proxy: proxy::of_environment().of(&provider.base_url).map_err(named)?,
        };
        Ok(endpoint.with_key(0, provider.keys().next(), provider))
    }

    /// With each of its keys, in order: one at least, which is none where it has none.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn all(name: &str, provider: &config::Provider) -> Result<Vec<Arc<Self>>, Error> {
        let first = Self::new(name, provider)?;
        let others = provider.keys().enumerate().skip(1);
        let others: Vec<_> =
            others.map(|(at, key)| Arc::new(first.clone().with_key(at, Some(key), provider))).collect();
        Ok(std::iter::once(Arc::new(first)).chain(others).collect())
    }

    fn with_key(self, at: usize, key: Option<&Secret>, provider: &config::Provider) -> Self {
        let http = HttpRequest::new(self.kind, &self.base_url, key, &provider.headers);
        let key_place = provider.key_places.get(at).cloned();
        Self { key: key.cloned(), key_at: at, key_place, http, ..self }
    }
}

impl Endpoint {
    /// Its key as people are told of it: by its position; nothing where there is but one.
    pub(super) fn key_name(&self) -> Option<String> {
        (self.keys > 1).then(|| format!("key {} of {}", self.key_at + 1, self.keys))
    }

    /// Its key as operators are told of it: with the variable or file that it is in. Nothing where there is but one.
    pub(super) fn key_with_place(&self) -> Option<String> {
        let name = self.key_name()?;
        Some(match &self.key_place {
            Some(place) => format!("{name} ({place})"),
            None => name,
        })
    }

    /// What of its requests nobody is told, should the provider repeat it.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.key.iter().chain(&self.hidden)
    }

    /// An error without what nobody is told.
    pub(super) fn hide(&self, error: Error) -> Error {
        Error { message: hide(error.message, self.secrets()), ..error }
    }

    /// Who reads an answer of it; none where it has no network.
    pub(super) fn decoder(&self) -> Option<Decoder> {
        Some(Decoder::new(self.kind, &self.name)?.hiding(self.secrets().cloned().collect()))
    }
}

/// A model and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Empty where its server has yet to be asked for one.
    pub(crate) model: String,
    /// Whether the agent names none.
    pub(crate) by_default: bool,
    pub(crate) deadlines: Deadlines,
    /// What is known of the model.
    pub(crate) facts: ModelFacts,
    /// Who calls its provider.
    pub(crate) places: Places,
}

impl Candidate {
    /// Its name in the configuration.
    pub(super) fn model_ref(&self) -> ModelRef {
        ModelRef { provider: self.endpoint.name.clone(), model: self.model.clone() }
    }

    /// Whether it is the same model, with whichever key.
    pub(super) fn is_model_of(&self, other: &Self) -> bool {
        self.endpoint.name == other.endpoint.name && self.model == other.model
    }

    /// Its key as people are told of it, by its position; nothing where there is but one.
    pub(super) fn key_name(&self) -> Option<String> {
        self.endpoint.key_name()
    }
}

/// A provider call that was granted.
#[derive(Debug)]
pub(crate) struct Call {
    /// For which session.
    pub(crate) session: SessionKey,
    /// Tried in order; never empty.
    pub(crate) candidates: VecDeque<Candidate>,
    pub(crate) request: ChatRequest,
    /// What bounds its answer.
    pub(crate) bound: OutputBound,
    /// Whether it is cut where a provider goes on beyond that: a budget would not hold.
    pub(crate) keeps_bound: bool,
    /// What is told before the answer.
    pub(crate) notices: Vec<Notice>,
    /// The request as the first candidate's provider wants it.
    pub(crate) body: Vec<u8>,
    /// Who is told of a model that the call has to choose.
    pub(crate) chosen: Recipient<Chosen>,
    /// Where it is kept how the models answer.
    pub(crate) standing: Standing,
    /// Where there is room for the answer.
    pub(crate) room: AnswerRoom,
}
