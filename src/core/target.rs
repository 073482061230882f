//! Which session a request is about, before that is decided.

use crate::error::Error;
use crate::ids::SessionKey;
use crate::principal::Principal;

/// Where a message comes from, in the terms bindings are written in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The channel, such as `websocket` or `telegram`.
    pub channel: String,
    /// The account within the channel.
    pub account: String,
    /// The peer within the account.
    pub peer: Option<String>,
    /// The guild or server, for channels that have such.
    pub guild: Option<String>,
    /// The team within the guild.
    pub team: Option<String>,
}

/// Which session a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The one the router finds.
    Route(Route),
    /// The session of this key.
    Session(SessionKey),
    /// The one with this UUID ([`SessionKey::uuid`]), which must be there.
    Uuid(String),
    /// The one of the caller's own whose present conversation has this id
    /// ([`SessionRow::session_id`](crate::conversation::reply::SessionRow::session_id)), which must be there.
    Conversation(String),
}

impl Target {
    /// Has the session that it names be the one that `who` means by that.
    ///
    /// # Errors
    /// As [`Principal::session`].
    pub fn settle(&mut self, who: &Principal) -> Result<(), Error> {
        if let Self::Session(key) = self {
            *key = who.session(key)?;
        }
        Ok(())
    }
}
