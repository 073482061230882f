//! Channels: conversations that come in from elsewhere, such as Telegram or Slack, through an adapter.
//!
//! An adapter is a plugin. It turns what a platform says into messages ([`Incoming`]) and answers into requests
//! to the platform ([`Outgoing`]); what it may reach, and with which secrets, its grants say. Who may write is
//! nobody until the configuration or an operator lets them in ([`admission`]), and a webhook's requests are
//! checked as the adapter's manifest says ([`check`]).

pub mod admission;
pub mod change;
pub mod check;
mod incoming;
mod outgoing;

pub use incoming::{IMAGES_MAX, Image, Incoming, MESSAGES_MAX, Sender};
pub use outgoing::{Answered, Outgoing, REQUESTS_MAX, Refused, Status, Verdict, typing, verdict};

/// The longest channel name, in bytes.
pub const NAME_BYTES_MAX: usize = 32;

/// The most bytes of what a platform sends in one request, or an adapter fetches as one update.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
