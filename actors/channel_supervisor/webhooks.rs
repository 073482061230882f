//! What platforms send to `/webhook/NAME`: who may, and where it goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use clawmux_core::access::Secret;
use clawmux_core::channel::BODY_BYTES_MAX;
use clawmux_core::channel::check::{Checked, WebhookCheck};
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::PluginName;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::channel::{Channel, Receive};
use crate::runtime::ask::ask;
use crate::runtime::clock;
use crate::sandbox_supervisor::Tools;

/// Requests whose bodies are read at once, of all channels and of one.
const READING_MAX: usize = 128;
pub(super) const READING_OF_CHANNEL_MAX: usize = 32;

/// How long a body may take; the second, once half of the channel's places are taken: slow ones of strangers then
/// make room for the next.
const BODY_MAX: Duration = Duration::from_secs(10);
const BODY_OF_MANY_MAX: Duration = Duration::from_secs(1);

/// The channels that take webhook requests: one value, which the supervisor swaps when one comes or goes.
#[derive(Clone, Debug)]
pub struct Webhooks {
    doors: watch::Receiver<Option<Arc<Doors>>>,
    tools: Tools,
    reading: Arc<Semaphore>,
}

pub(super) type Doors = BTreeMap<String, Door>;

/// A channel, as its platform sees it.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) to: Addr<Channel>,
    pub(super) adapter: PluginName,
    pub(super) secret: Secret,
    /// Its places for requests whose bodies are read.
    pub(super) reading: Arc<Semaphore>,
}

/// What became of a webhook request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It is kept, and will be answered.
    Kept,
    /// It asked for this.
    Challenge(String),
    /// There is no such channel.
    Unknown,
    /// It does not come from whom it says, and why.
    Refused(String),
    /// It is larger than [`BODY_BYTES_MAX`], or no text.
    Malformed(&'static str),
    /// It can't be taken now, and why.
    Later(String),
}

impl Webhooks {
    pub(super) fn new(doors: watch::Receiver<Option<Arc<Doors>>>, tools: Tools) -> Self {
        Self { doors, tools, reading: Arc::new(Semaphore::new(READING_MAX)) }
    }

    /// Takes a request for a channel. `header` gives its headers by name; `body` is read no further than it has
    /// to be, and not at all where the headers say enough.
    pub async fn deliver<'a>(
        &self,
        channel: &str,
        header: impl Fn(&str) -> Option<&'a str>,
        body: impl Future<Output = Option<Vec<u8>>>,
    ) -> Delivered {
        let Some(doors) = self.doors.borrow().clone() else {
            return Delivered::Later("another daemon of the cluster has the channels".to_owned());
        };
        let Some(door) = doors.get(channel).cloned() else { return Delivered::Unknown };
        let loaded = match self.tools.named(&door.adapter).await {
            Ok(loaded) => loaded,
            Err(error) => return Delivered::Later(error.message),
        };
        let usual = WebhookCheck::default();
        let check = loaded.package.manifest.webhook.as_ref().unwrap_or(&usual);
        if let Some(Err(why)) = check.by_header(&door.secret, &header) {
            return Delivered::Refused(why);
        }
        // A stranger's body is held for a moment, to see whether it is signed: few at a time.
        let (Ok(_of_all), Ok(_of_channel)) = (self.reading.try_acquire(), door.reading.try_acquire()) else {
            return Delivered::Later("too many requests are being read".to_owned());
        };
        let is_busy = door.reading.available_permits() < READING_OF_CHANNEL_MAX / 2;
        let body = match timeout(if is_busy { BODY_OF_MANY_MAX } else { BODY_MAX }, body).await {
            Ok(Some(body)) => body,
            Ok(None) => return Delivered::Malformed(TOO_LARGE),
            Err(_) => return Delivered::Malformed("the body did not come in time"),
        };
        match check.admit(&door.secret, &header, &body, clock::wall()) {
            Err(why) => return Delivered::Refused(why),
            Ok(Checked::Challenge(answer)) => return Delivered::Challenge(answer),
            Ok(Checked::Update) => {}
        }
        let Ok(body) = String::from_utf8(body) else {
            return Delivered::Malformed("the body is not UTF-8 text");
        };
        match ask(&door.to, Receive(body)).await.flatten() {
            Ok(()) => Delivered::Kept,
            Err(error) if error.code == ErrorCode::TooLarge => Delivered::Malformed(TOO_LARGE),
            Err(error) => Delivered::Later(error.message),
        }
    }
}

const TOO_LARGE: &str = "the body is cut off, or larger than 1 MiB";
const _: () = assert!(BODY_BYTES_MAX == 1024 * 1024);
