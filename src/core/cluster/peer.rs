//! What daemons of one cluster ask each other about the sessions that they own and the files that they have, and what
//! they tell: as JSON, by the names of fields, like records ([`crate::replica`]). Everything here may be lost, late or
//! said twice.
//!
//! ```text
//!   who has the client                          who owns the session
//!     Order     ------------------------------>   as if a client of its own asked
//!     Follow    ------------------------------>   says for a while what is said in the session, as it is said
//!               <------------------------------ Answered: how it went, and up to where the log was applied then
//!               <------------------------------ Said: text, to all who listen
//! ```
//!
//! Deliberately absent: settled events. They come with the records of the log, which every daemon applies.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value as Json;

use crate::conversation::approval::{ApprovalReply, Decided, DecidedCall, Decision, Verdict};
use crate::conversation::event::{Cause, Event, Logged, Streamed};
use crate::conversation::log::record;
use crate::conversation::order::{Cut, Order};
use crate::conversation::reply::{
    Aborted, Accepted, Attached, Cleared, Compacted, Deleted, Detached, Injected, SessionReply, Stopped,
    UnderWay,
};
use crate::conversation::session::Submission;
use crate::error::{Error, ErrorCode};
use crate::ids::{Owner, Seq, SessionKey, Ticket};
use crate::memory::file::FileId;
use crate::principal::Principal;
use crate::prompt::attachment::Attachment;
use crate::prompt::settings::{Assignment, Patch};
use crate::replica::value::{Value, bytes, fields, put, take, text_of, unreadable, variants};
use crate::request::reply::Reply;
use crate::scope::Scopes;

/// What is asked of the owner of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Carry out an order.
    Order(Box<Ordered>),
    /// Say for a while what is said in the session; what was said after this number, once more.
    Follow(SessionKey, Option<Seq>),
    /// Bytes of a file that was uploaded there, from an offset on, at most so many.
    Piece(FileId, u64, usize),
}

impl Ask {
    /// Whether it may be asked again at once where an answer is late: whoever carries it out twice answers alike.
    pub fn is_answered_alike(&self) -> bool {
        match self {
            Self::Order(ordered) => {
                matches!(ordered.order, Order::Submit { .. } | Order::Follow { .. } | Order::Attach { .. })
            }
            Self::Follow(..) | Self::Piece(..) => true,
        }
    }
}

/// An order for a session, as the daemon passes it on that has the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// The session.
    pub session: SessionKey,
    /// On whose behalf.
    pub principal: Principal,
    /// The order; nobody follows what comes of it there.
    pub order: Order,
    /// Whether it was asked before, and nobody knows what came of that.
    pub is_again: bool,
}

/// What came of what was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// Up to where the daemon that answers had applied the log. Who has applied that much can see what it speaks of.
    pub applied: u64,
    /// How it went.
    pub answer: Answer,
}

/// How it went.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The order was carried out.
    Done(Box<SessionReply>),
    /// It was, and the answer is the session as lists show it.
    Row,
    /// A call was decided about.
    Decided(Box<DecidedCall>),
    /// It is said; so far up to this number.
    Follows(Seq),
    /// The session is not owned by who was asked, or the file is not there.
    Elsewhere,
    /// Bytes of a file.
    Piece(Bytes),
    /// It failed.
    Failed(Error),
}

impl Answer {
    /// What an order came to.
    pub fn to_order(reply: Result<Reply, Error>) -> Self {
        match reply {
            Ok(Reply::Session(SessionReply::Settled(_))) => Self::Row,
            Ok(Reply::Session(reply)) => Self::Done(Box::new(reply)),
            Ok(Reply::Approval(ApprovalReply::Decided(decided))) => Self::Decided(decided),
            Ok(_) => {
                Self::Failed(ErrorCode::Internal.error("an order has an answer that can't be passed on"))
            }
            Err(error) => Self::Failed(error),
        }
    }
}

macro_rules! in_bytes {
    ($($type:ty),+) => {$(
        impl $type {
            /// It as bytes.
            pub fn to_bytes(&self) -> Bytes {
                self.to_json().to_string().into()
            }

            /// What these bytes say.
            ///
            /// # Errors
            /// `InvalidRequest` where they say nothing.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
                Self::from_json(serde_json::from_slice(bytes).map_err(unreadable)?)
            }
        }
    )+};
}

in_bytes!(Ask, Answered);

/// Pieces of text of a session as bytes, as its owner says them; of other events nothing.
pub fn said_to_bytes(events: &[Logged]) -> Bytes {
    let said = events.iter().filter(|logged| text_in(&logged.event).is_some());
    said.map(Value::to_json).collect::<Json>().to_string().into()
}

/// The pieces of text that these bytes say.
///
/// # Errors
/// `InvalidRequest` where they say none.
pub fn said_from_bytes(bytes: &[u8]) -> Result<Vec<Logged>, Error> {
    Value::from_json(serde_json::from_slice(bytes).map_err(unreadable)?)
}

fn text_in(event: &Event) -> Option<(Streamed, &str)> {
    match event {
        Event::Text(text) => Some((Streamed::Text, text)),
        Event::Thought(text) => Some((Streamed::Thought, text)),
        _ => None,
    }
}

/// A piece of text.
impl Value for Logged {
    fn to_json(&self) -> Json {
        let Self { first_seq, seq, run, at, event } = self;
        let mut object = serde_json::Map::new();
        if let Some((of, text)) = text_in(event) {
            object.insert(record::streamed_kind(of).to_owned(), text.into());
        }
        put(&mut object, "first", first_seq);
        put(&mut object, "seq", seq);
        put(&mut object, "run", run);
        put(&mut object, "at", at);
        Json::Object(object)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let mut object = crate::replica::value::object(json)?;
        let mut text = |of| object.remove(record::streamed_kind(of)).map(String::from_json);
        let event = match (text(Streamed::Text), text(Streamed::Thought)) {
            (Some(text), None) => Event::Text(text?),
            (None, Some(text)) => Event::Thought(text?),
            _ => return Err(unreadable("expected a piece of text")),
        };
        Ok(Self {
            first_seq: take(&mut object, "first")?,
            seq: take(&mut object, "seq")?,
            run: take(&mut object, "run")?,
            at: take(&mut object, "at")?,
            event,
        })
    }
}

fields! {
    Ordered { session, principal, order, is_again }
    Answered { applied, answer }
    Submission { run, content, owner, idempotency_key, attachments, run_options }
    Cut { up_to, kept, forgotten }
    Assignment { lead, kind, task, description, priority, metadata }
    Accepted { session, run, seq, repeated, is_over, ahead }
    Aborted { run }
    Cleared { session }
    Attached { session, after, head, under_way, queued, model }
    UnderWay { run, idempotency_key, text, step_at, seq, started, is_anew, calls }
    Detached { found }
    Compacted { kept, forgotten }
    Deleted { found }
    Injected { message, seq }
    Stopped { session, runs }
    DecidedCall { id, session, run, decided }
    Decided { call, tool, decision, by }
}

variants! {
    Ask { "order" => Order(ordered), "follow" => Follow(session, after), "piece" => Piece(file, offset, bytes_max) }
    Order {
        "submit" => Submit { submission, follow }, "follow" => Follow { run, seq, follow },
        "attach" => Attach { after, follow }, "detach" => Detach { follow }, "stop" => Stop(cause),
        "close" => Close { reason }, "abort" => Abort { run }, "clear" => Clear, "create" => Create(patch),
        "configure" => Configure(patch), "reset" => Reset, "renew" => Renew, "compact" => Compact(cut),
        "inject" => Inject { content, id }, "decide" => Decide { id, verdict }, "delete" => Delete
    }
    Verdict { "approve" => Approve { input }, "approve_for_session" => ApproveForSession, "deny" => Deny { reason } }
    Decision {
        "approved" => Approved { input }, "denied" => Denied { reason }, "timed_out" => TimedOut,
        "withdrawn" => Withdrawn
    }
    Answer {
        "done" => Done(reply), "row" => Row, "decided" => Decided(decided), "follows" => Follows(after),
        "elsewhere" => Elsewhere, "piece" => Piece(data), "failed" => Failed(error)
    }
}

/// Replies to orders: there are no others.
macro_rules! replies {
    ($($name:literal => $variant:ident),+ $(,)?) => {
        impl Value for SessionReply {
            fn to_json(&self) -> Json {
                match self {
                    $(Self::$variant(reply) => crate::replica::value::named($name, reply.to_json()),)+
                    _ => Json::Null,
                }
            }

            fn from_json(json: Json) -> Result<Self, Error> {
                let (name, reply) = crate::replica::value::variant(json)?;
                Ok(match &*name {
                    $($name => Self::$variant(Value::from_json(reply)?),)+
                    _ => return Err(unreadable(format_args!("there is no reply {name:?}"))),
                })
            }
        }
    };
}

replies! {
    "accepted" => Accepted, "aborted" => Aborted, "cleared" => Cleared, "attached" => Attached,
    "detached" => Detached, "compacted" => Compacted, "deleted" => Deleted, "injected" => Injected,
    "stopped" => Stopped,
}

const CAUSES: [(&str, Cause); 3] =
    [("asked", Cause::Asked), ("stopped", Cause::Stopped), ("timed_out", Cause::TimedOut)];

impl Value for Cause {
    fn to_json(&self) -> Json {
        CAUSES.iter().find(|(_, cause)| cause == self).map_or(Json::Null, |(name, _)| (*name).into())
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let name = String::from_json(json)?;
        let cause = CAUSES.iter().find(|(known, _)| *known == name);
        cause.map(|(_, cause)| *cause).ok_or_else(|| unreadable(format_args!("there is no cause {name:?}")))
    }
}

impl Value for Bytes {
    fn to_json(&self) -> Json {
        text_of(self)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        bytes(&String::from_json(json)?).map(Self::from)
    }
}

impl Value for Ticket {
    fn to_json(&self) -> Json {
        self.0.into()
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        u64::from_json(json).map(Self)
    }
}

/// Whoever is let in by one daemon may do the same by all; why it was let in stays there, as does the connection that
/// ends with that.
impl Value for Principal {
    fn to_json(&self) -> Json {
        let Self { name, scopes, owner, unlimited, grounds: _, expires } = self;
        let mut object = serde_json::Map::new();
        put(&mut object, "name", name);
        put(&mut object, "scopes", scopes);
        put(&mut object, "owner", owner);
        put(&mut object, "unlimited", unlimited);
        put(&mut object, "expires", expires);
        Json::Object(object)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let mut object = crate::replica::value::object(json)?;
        let name: Arc<str> = take(&mut object, "name")?;
        let scopes: Scopes = take(&mut object, "scopes")?;
        let owner: Owner = take(&mut object, "owner")?;
        Ok(Self {
            owner,
            unlimited: take(&mut object, "unlimited")?,
            expires: take(&mut object, "expires")?,
            ..Self::new(name, scopes)
        })
    }
}

/// What is removed is an empty list, what is set a list of one.
impl Value for Patch {
    fn to_json(&self) -> Json {
        fn list<T: Clone>(change: &Option<Option<T>>) -> Option<Vec<T>> {
            change.as_ref().map(|to| to.iter().cloned().collect())
        }
        let Self { label, model, thinking, assignment, closed, display } = self;
        let mut object = serde_json::Map::new();
        put(&mut object, "label", &list(label));
        put(&mut object, "model", &list(model));
        put(&mut object, "thinking", &list(thinking));
        put(&mut object, "assignment", &list(assignment));
        put(&mut object, "closed", &list(closed));
        put(&mut object, "display", display);
        Json::Object(object)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        fn change<T: Value>(
            object: &mut serde_json::Map<String, Json>,
            name: &str,
        ) -> Result<Option<Option<T>>, Error> {
            let list: Option<Vec<T>> = take(object, name)?;
            Ok(list.map(|list| list.into_iter().next()))
        }
        let mut object = crate::replica::value::object(json)?;
        Ok(Self {
            label: change(&mut object, "label")?,
            model: change(&mut object, "model")?,
            thinking: change(&mut object, "thinking")?,
            assignment: change(&mut object, "assignment")?,
            closed: change(&mut object, "closed")?,
            display: take(&mut object, "display")?,
        })
    }
}

impl Value for Attachment {
    fn to_json(&self) -> Json {
        let mut object = serde_json::Map::new();
        put(&mut object, "name", &self.name().map(str::to_owned));
        put(&mut object, "media_type", &self.media_type().to_owned());
        put(&mut object, "caption", &self.caption().map(str::to_owned));
        object.insert("data".to_owned(), text_of(self.data()));
        Json::Object(object)
    }

    fn from_json(json: Json) -> Result<Self, Error> {
        let mut object = crate::replica::value::object(json)?;
        let data: Bytes = bytes(&take::<String>(&mut object, "data")?)?.into();
        let media_type: String = take(&mut object, "media_type")?;
        let known = Self::remembered(take(&mut object, "name")?, &media_type, data.len());
        let known = known.ok_or_else(|| unreadable(format_args!("an attachment of type {media_type:?}")))?;
        let mut known = known.with_caption(take(&mut object, "caption")?);
        known.restore(data);
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{ApprovalId, CallId, LaneName, PluginName, RunId};
    use crate::prompt::run_options::RunOptions;
    use crate::prompt::thinking::Thinking;
    use crate::provider::model::ModelRef;
    use crate::time::Timestamp;

    fn principal() -> Principal {
        let mut principal = Principal::new("ada", Scopes::of(&[crate::scope::Scope::Read]));
        principal.expires = Some(Timestamp::from_millis(7));
        principal
    }

    fn session() -> SessionKey {
        SessionKey::parse("main:websocket:ada:main").unwrap()
    }

    fn orders() -> Vec<Order> {
        let attachment =
            Attachment::new(Some("a.txt"), Some("text/plain"), Bytes::from_static(b"said")).unwrap();
        let run_options = RunOptions {
            thinking: Some(Thinking::ALL[1]),
            model: Some("m".into()),
            max_tokens: Some(3),
            lane: Some(LaneName::from("l")),
            ..RunOptions::default()
        };
        let submission = Submission {
            run: RunId::from("r"),
            content: "hello".into(),
            owner: principal().owner,
            idempotency_key: Some("k".into()),
            attachments: vec![attachment.with_caption(Some("c".into()))],
            run_options,
        };
        let patch = Patch {
            label: Some(Some("x".into())),
            model: Some(None),
            display: [("a".to_owned(), Json::Null)].into(),
            ..Patch::default()
        };
        vec![
            Order::Submit { submission, follow: true },
            Order::Follow { run: RunId::from("r"), seq: Seq(9), follow: false },
            Order::Attach { after: Some(Seq(0)), follow: true },
            Order::Attach { after: None, follow: false },
            Order::Detach { follow: Ticket(3) },
            Order::Stop(Cause::TimedOut),
            Order::Close { reason: "done".into() },
            Order::Abort { run: None },
            Order::Clear,
            Order::Create(patch.clone()),
            Order::Configure(patch),
            Order::Reset,
            Order::Renew,
            Order::Compact(Cut { up_to: Seq(4), kept: 1, forgotten: 2 }),
            Order::Inject { content: "i".into(), id: Some(RunId::from("i")) },
            Order::Decide { id: ApprovalId::from("a"), verdict: Verdict::Approve { input: None } },
            Order::Decide { id: ApprovalId::from("a"), verdict: Verdict::ApproveForSession },
            Order::Delete,
        ]
    }

    #[test]
    fn what_is_asked_is_read_as_it_was_said() {
        for order in orders() {
            let ordered = Ordered { session: session(), principal: principal(), order, is_again: true };
            let ask = Ask::Order(Box::new(ordered));
            assert_eq!(Ask::from_bytes(&ask.to_bytes()).unwrap(), ask);
        }
        for ask in [Ask::Follow(session(), None), Ask::Follow(session(), Some(Seq(3)))] {
            assert_eq!(Ask::from_bytes(&ask.to_bytes()).unwrap(), ask);
        }
    }

    #[test]
    fn what_is_answered_is_read_as_it_was_said() {
        let run = RunId::from("r");
        let under_way = UnderWay {
            run: run.clone(),
            idempotency_key: None,
            text: "so far".into(),
            step_at: 2,
            seq: Seq(5),
            started: Timestamp::from_millis(4),
            is_anew: true,
            calls: vec![(CallId::from("c"), PluginName::from("p"))],
        };
        let attached = Attached {
            session: session(),
            after: Seq(5),
            head: Seq(5),
            under_way: Some(Box::new(under_way)),
            queued: vec![(run.clone(), Some("k".into()))],
            model: Some(ModelRef { provider: "p".into(), model: "m".into() }),
        };
        let accepted = Accepted {
            session: session(),
            run: run.clone(),
            seq: Seq(1),
            repeated: true,
            is_over: false,
            ahead: 2,
        };
        let decided = Decided {
            call: CallId::from("c"),
            tool: PluginName::from("p"),
            decision: Decision::Denied { reason: Some("no".into()) },
            by: Some("ada".into()),
        };
        let limit = crate::error::Detail::RetryAfter(std::time::Duration::from_millis(20));
        for answer in [
            Answer::Done(Box::new(SessionReply::Attached(attached))),
            Answer::Done(Box::new(SessionReply::Accepted(accepted))),
            Answer::Done(Box::new(SessionReply::Stopped(Stopped {
                session: session(),
                runs: vec![run.clone()],
            }))),
            Answer::Row,
            Answer::Decided(Box::new(DecidedCall {
                id: ApprovalId::from("a"),
                session: session(),
                run,
                decided,
            })),
            Answer::Follows(Seq(8)),
            Answer::Elsewhere,
            Answer::Piece(Bytes::from_static(b"\0a \xff")),
            Answer::Failed(ErrorCode::RateLimited.error("slowly").with(limit)),
            Answer::Failed(ErrorCode::NotFound.error("nothing")),
        ] {
            let answered = Answered { applied: 12, answer };
            assert_eq!(Answered::from_bytes(&answered.to_bytes()).unwrap(), answered);
        }
    }

    #[test]
    fn of_events_text_alone_is_said() {
        let logged = |seq, event| Logged {
            first_seq: Seq(seq),
            seq: Seq(seq),
            run: Some(RunId::from("r")),
            at: Timestamp::from_millis(1),
            event,
        };
        let said = [
            logged(1, Event::Text("a".into())),
            logged(2, Event::Started),
            logged(3, Event::Thought("b".into())),
        ];
        let read = said_from_bytes(&said_to_bytes(&said)).unwrap();
        assert_eq!(read, [said[0].clone(), said[2].clone()]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Ask::from_bytes(&bytes), Answered::from_bytes(&bytes), said_from_bytes(&bytes));
        }

        #[test]
        fn what_is_cut_off_or_changed_is_refused_or_another(
            which in 0..18_usize,
            at in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let order = orders().swap_remove(which);
            let ordered = Ordered { session: session(), principal: principal(), order, is_again: false };
            let mut bytes = Ask::Order(Box::new(ordered)).to_bytes().to_vec();
            let at = at.index(bytes.len());
            prop_assert!(Ask::from_bytes(&bytes[..at]).is_err());
            bytes[at] = to;
            let _ = Ask::from_bytes(&bytes);
        }
    }
}
