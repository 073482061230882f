//! The adapter of a channel: a plugin that knows its platform's words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix::Addr;
use clawmux_core::channel::{Answered, Incoming, Outgoing, typing};
use clawmux_core::ids::{CallId, Owner, PluginName, RunId, SessionKey};
use clawmux_core::tools::plugin::Rights;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::plugin::{AdapterCall, Kind, Loaded};
use crate::sandbox::host::call::Origin;
use crate::sandbox::module::AdapterExports;
use crate::sandbox_supervisor::{CallAdapter, SandboxSupervisor, Tools};

/// The most updates that an adapter may fetch at once.
const UPDATES_MAX: usize = 100;

/// How often an adapter is asked about one thing that it fails at, and the pause after each, times how often it
/// was.
const ATTEMPTS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// An adapter, for one channel.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) channel: Arc<str>,
    pub(super) name: PluginName,
    pub(super) owner: Owner,
    pub(super) answer_url: Option<Arc<str>>,
    pub(super) sandbox: Addr<SandboxSupervisor>,
    pub(super) tools: Tools,
}

/// What an adapter has fetched.
#[derive(Debug, Deserialize)]
pub(super) struct Fetched {
    /// What its platform said, in order.
    #[serde(default)]
    pub(super) updates: Vec<Value>,
    /// How far it has asked, for the next time.
    #[serde(default)]
    pub(super) cursor: Value,
}

/// Asks an adapter about one thing, a few times where it fails at that.
///
/// # Errors
/// Why it failed the last time.
pub(super) async fn patiently<T>(ask: impl AsyncFn() -> Result<T, String>) -> Result<T, String> {
    let mut attempt = 1;
    loop {
        match ask().await {
            Err(_) if attempt < ATTEMPTS_MAX => sleep(PAUSE * attempt).await,
            asked => return asked,
        }
        attempt += 1;
    }
}

impl Adapter {
    /// The plugin, once it is loaded, and what it can do.
    ///
    /// # Errors
    /// Why it can't be used.
    pub(super) async fn loaded(&self) -> Result<(Arc<Loaded>, AdapterExports), String> {
        let loaded = self.tools.named(&self.name).await.map_err(|error| error.message)?;
        match loaded.kind {
            Kind::Adapter(exports) => Ok((loaded, exports)),
            Kind::Tool { .. } => Err(format!("plugin {} is a tool, no channel adapter", self.name)),
        }
    }

    /// What it may reach.
    ///
    /// # Errors
    /// As [`Self::loaded`]'s.
    pub(super) async fn rights(&self) -> Result<Arc<Rights>, String> {
        Ok(Arc::clone(&self.loaded().await?.0.package.rights))
    }

    /// The messages in what its platform said.
    ///
    /// # Errors
    /// What it says is wrong, or what is wrong with it.
    pub(super) async fn parse(&self, body: &str) -> Result<Vec<Incoming>, String> {
        let output = self.call(AdapterCall::ParseIncoming, body.as_bytes().to_vec()).await?;
        Incoming::read(&output).map_err(|why| format!("plugin {}: {why}", self.name))
    }

    /// The requests of an answer to `message`.
    ///
    /// # Errors
    /// As [`Self::parse`]'s.
    pub(super) async fn format(&self, message: &Incoming, answer: &Answered) -> Result<Outgoing, String> {
        let answer_url = self.answer_url.as_deref();
        let input = answer.to_json(message, answer_url).into_bytes();
        let output = self.call(AdapterCall::FormatOutgoing, input).await?;
        Outgoing::read(&output, answer_url).map_err(|why| format!("plugin {}: {why}", self.name))
    }

    /// The requests that say that an answer to `message` is under way; none where its platform has no such thing.
    ///
    /// # Errors
    /// As [`Self::parse`]'s.
    pub(super) async fn typing(&self, message: &Incoming) -> Result<Option<Outgoing>, String> {
        if !self.loaded().await?.1.format_typing {
            return Ok(None);
        }
        let output = self.call(AdapterCall::FormatTyping, typing(message).into_bytes()).await?;
        Outgoing::read(&output, None).map(|all| Some(all).filter(|all| !all.is_empty()))
    }

    /// What its platform has to say that came after `cursor`.
    ///
    /// # Errors
    /// As [`Self::parse`]'s.
    pub(super) async fn poll(&self, cursor: Option<&str>) -> Result<Fetched, String> {
        let (loaded, exports) = self.loaded().await?;
        if !exports.poll {
            return Err(format!("plugin {} can't be polled: set mode = \"webhook\"", self.name));
        }
        let cursor: Value = cursor.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        // So that it is back before its time is over.
        let timeout_s = loaded.package.limits.timeout.as_secs().saturating_sub(2);
        let input = json!({ "cursor": cursor, "timeout_s": timeout_s }).to_string();
        let output = self.call(AdapterCall::Poll, input.into_bytes()).await?;
        let fetched: Fetched = serde_json::from_str(&output)
            .map_err(|error| format!("plugin {}: poll answered with {error}", self.name))?;
        match fetched.updates.len() {
            0..=UPDATES_MAX => Ok(fetched),
            many => Err(format!(
                "plugin {}: poll answered with {many} updates, more than {UPDATES_MAX}",
                self.name
            )),
        }
    }

    async fn call(&self, what: AdapterCall, input: Vec<u8>) -> Result<String, String> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let session =
            SessionKey::new("main", &self.channel, "adapter", "main").map_err(|error| error.message)?;
        let call = LAST.fetch_add(1, Relaxed).to_string();
        let origin = Origin {
            session: session.in_space(&self.owner),
            run: RunId::new(call.as_str()),
            call: CallId::new(call),
        };
        let call = CallAdapter { adapter: self.name.clone(), origin, what, input };
        let calling = self.sandbox.send(call).await.map_err(|_| "the sandbox is gone".to_owned())?;
        let (result, _) = calling.result().await;
        if result.is_error { Err(result.content) } else { Ok(result.content) }
    }
}
