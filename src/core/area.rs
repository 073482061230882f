//! Areas of what can be asked: each has a closed enum of commands and one of replies. [`area!`] makes the
//! commands from a table in which each stands beside its reply.

/// The commands of an area.
pub trait Area {
    /// The replies to them.
    type Reply;
}

/// One thing that an area can be asked.
pub trait Question: Into<Self::Area> {
    /// The area's commands.
    type Area: Area;
    /// The reply to this question alone.
    type Answer;

    /// Its answer among the area's replies; none where that is another's.
    fn pick(reply: <Self::Area as Area>::Reply) -> Option<Self::Answer>;
}

/// It was taken, or came too late to be of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted;

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

        impl $crate::area::Area for $command {
            type Reply = $reply;
        }

        $(
            impl From<$question> for $command {
                fn from(question: $question) -> Self {
                    Self::$asked(question)
                }
            }

            impl $crate::area::Question for $question {
                type Area = $command;
                type Answer = $answer;

                fn pick(reply: $reply) -> Option<$answer> {
                    match reply {
                        $reply::$answered(answer) => Some(answer),
                        _ => None,
                    }
                }
            }
        )*
    };
}

pub(crate) use area;
