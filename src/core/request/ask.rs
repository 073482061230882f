//! What can be asked, tied to what it is answered.
//!
//! An area has a closed enum of commands and one of replies. [`area!`] makes the commands from a table in
//! which each stands beside its reply, so that who asks one thing gets that thing's answer.

use crate::error::{Error, ErrorCode};
use crate::request::command::Command;
use crate::request::reply::Reply;

/// Something that can be asked of the daemon.
pub trait Ask: Into<Command> {
    /// What it is answered.
    type Reply;

    /// Its answer, as it was carried; none where it answers something else.
    fn take(reply: Reply) -> Option<Self::Reply>;

    /// Its answer.
    ///
    /// # Errors
    /// The refusal; `Internal` where something else was answered, which is a fault of clawmux.
    fn answer(reply: Result<Reply, Error>) -> Result<Self::Reply, Error> {
        Self::take(reply?).ok_or_else(misfit)
    }
}

/// The reply is to another question: a fault of clawmux.
pub(crate) fn misfit() -> Error {
    ErrorCode::Internal.error("internal error: the reply does not fit the request")
}

/// The commands of an area, each with its variant of the area's replies.
macro_rules! area {
    (
        $(#[$doc:meta])*
        $area:ident($command:ident => $reply:ident) {
            $($(#[$row_doc:meta])* $asked:ident($question:ty) => $answered:ident($answer:ty),)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $command {
            $($(#[$row_doc])* $asked($question),)*
        }

        impl From<$reply> for $crate::request::reply::Reply {
            fn from(reply: $reply) -> Self {
                Self::$area(reply)
            }
        }

        impl From<$command> for $crate::request::command::Command {
            fn from(command: $command) -> Self {
                Self::$area(command)
            }
        }

        $(
            impl From<$question> for $crate::request::command::Command {
                fn from(question: $question) -> Self {
                    Self::$area($command::$asked(question))
                }
            }

            impl $crate::request::ask::Ask for $question {
                type Reply = $answer;

                fn take(reply: $crate::request::reply::Reply) -> Option<$answer> {
                    match reply {
                        $crate::request::reply::Reply::$area($reply::$answered(answer)) => Some(answer),
                        _ => None,
                    }
                }
            }
        )*
    };
}

pub(crate) use area;
