//! Requests that ask the daemon, once or several times in turn, before they are answered.
//!
//! A method answers at once, or says what to ask and what to do with the reply: answer, or ask on
//! ([`Call`]). What a request costs is spent with its first question, also where its parameters are
//! refused: a rate that is used up is said first. What a dialect asks for itself
//! ([`Calling::aside`]) costs nothing, and nobody is answered.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Turn;
use crate::error::{Error, ErrorCode};
use crate::ids::Ticket;
use crate::request::ask::Ask;
pub(super) use crate::request::ask::misfit;
use crate::request::command::Command;
use crate::request::reply::Reply;
use crate::scope::Scope;

/// How many requests of one connection may wait for an answer at once.
const IN_FLIGHT_MAX: usize = 256;

/// What becomes of a request to the dialect `D`.
pub(super) enum Call<D> {
    /// This is the answer.
    Answer(Value),
    /// The daemon is to be asked, and then this done.
    Ask(Box<Command>, Then<D>),
    /// It is answered elsewhere, once.
    Elsewhere,
}

/// What to do with the reply to a command.
pub(super) type Then<D> =
    Box<dyn FnOnce(&mut D, Result<Reply, Error>, &mut Turn<'_>) -> Result<Call<D>, Error>>;

impl<D> Call<D> {
    /// Asks the daemon; `told` makes the answer of its reply.
    pub(super) fn ask<C: Ask + 'static>(
        question: C,
        told: impl FnOnce(&mut D, C::Reply, &mut Turn<'_>) -> Value + 'static,
    ) -> Result<Self, Error> {
        Self::ask_on(question, |dialect, reply, turn| Ok(Self::Answer(told(dialect, reply, turn))))
    }

    /// Asks the daemon; `then` makes the answer of its reply, or asks on.
    pub(super) fn ask_on<C: Ask + 'static>(
        question: C,
        then: impl FnOnce(&mut D, C::Reply, &mut Turn<'_>) -> Result<Self, Error> + 'static,
    ) -> Result<Self, Error> {
        Self::ask_either(question, |dialect, reply, turn| then(dialect, reply?, turn))
    }

    /// The same, where `then` is told of a refusal, too.
    pub(super) fn ask_either<C: Ask + 'static>(
        question: C,
        then: impl FnOnce(&mut D, Result<C::Reply, Error>, &mut Turn<'_>) -> Result<Self, Error> + 'static,
    ) -> Result<Self, Error> {
        let then: Then<D> = Box::new(|dialect, reply, turn| then(dialect, C::answer(reply), turn));
        Ok(Self::Ask(Box::new(question.into()), then))
    }
}

/// A question whose reply is awaited.
struct Pending<D: Calling> {
    /// Who is answered in the end; none where the dialect asked for itself, or that was answered already.
    asker: Option<D::Asker>,
    then: Then<D>,
}

/// The questions of one connection.
pub(super) struct Calls<D: Calling> {
    pending: BTreeMap<Ticket, Pending<D>>,
    /// The question whose reply is being taken: what it asked to follow comes under its ticket.
    replying: Ticket,
}

impl<D: Calling> Default for Calls<D> {
    fn default() -> Self {
        Self { pending: BTreeMap::new(), replying: Ticket(0) }
    }
}

impl<D: Calling> std::fmt::Debug for Calls<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("pending", &self.pending.keys()).finish_non_exhaustive()
    }
}

impl<D: Calling> Calls<D> {
    /// How many questions wait for their replies.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether this question waits for its reply.
    pub(super) fn has(&self, ticket: Ticket) -> bool {
        self.pending.contains_key(&ticket)
    }

    /// The question whose reply is being taken.
    pub(super) fn replying(&self) -> Ticket {
        self.replying
    }

    /// Those that wait for an answer, in the order in which their questions were asked.
    pub(super) fn askers(&self) -> impl Iterator<Item = &D::Asker> {
        self.pending.values().filter_map(|pending| pending.asker.as_ref())
    }

    /// Takes out those askers: what the replies bring about is still done.
    pub(super) fn take_askers(&mut self, is_taken: impl Fn(&D::Asker) -> bool) -> Vec<D::Asker> {
        let askers = self.pending.values_mut().map(|pending| &mut pending.asker);
        askers.filter_map(|asker| asker.take_if(|asker| is_taken(asker))).collect()
    }

    /// Room for one more request, besides `held` that wait elsewhere.
    ///
    /// # Errors
    /// `RateLimited` where there is none.
    pub(super) fn room(&self, held: usize) -> Result<(), Error> {
        if self.len() + held < IN_FLIGHT_MAX {
            return Ok(());
        }
        let why = format!("too many requests in flight ({IN_FLIGHT_MAX}): wait for one to be answered");
        Err(ErrorCode::RateLimited.error(why))
    }
}

/// A dialect whose requests ask the daemon.
pub(super) trait Calling: Sized + 'static {
    /// Who is to be answered, and how.
    type Asker;

    /// Its questions.
    fn calls(&mut self) -> &mut Calls<Self>;

    /// The scope under which something is asked for this asker, or for the dialect itself.
    fn scope(&self, asker: Option<&mut Self::Asker>) -> Scope;

    /// Sends the answer to a request.
    fn answer(&mut self, asker: Self::Asker, outcome: Result<Value, Error>, turn: &mut Turn<'_>);

    /// Answers, or asks on; what it `costs` is spent where the daemon is asked.
    fn proceed(
        &mut self,
        asker: Option<Self::Asker>,
        cost: u32,
        call: Result<Call<Self>, Error>,
        turn: &mut Turn<'_>,
    ) {
        let (mut asker, command, then): (_, _, Then<Self>) = match (call, asker) {
            (Ok(Call::Ask(command, then)), asker) => (asker, Ok(*command), then),
            (Err(error), asker @ Some(_)) if cost > 0 => {
                (asker, Err(error), Box::new(|_, reply, _| reply.map(|_| Call::Elsewhere)))
            }
            (Ok(Call::Answer(payload)), Some(asker)) => return self.answer(asker, Ok(payload), turn),
            (Err(error), Some(asker)) => return self.answer(asker, Err(error), turn),
            (Ok(Call::Elsewhere), _) | (Ok(Call::Answer(_)) | Err(_), None) => return,
        };
        let needs = self.scope(asker.as_mut());
        let ticket = turn.execute(needs, cost, command);
        self.calls().pending.insert(ticket, Pending { asker, then });
    }

    /// Asks the daemon for something no client waits for.
    fn aside<C: Ask + 'static>(
        &mut self,
        question: C,
        turn: &mut Turn<'_>,
        then: impl FnOnce(&mut Self, Result<C::Reply, Error>, &mut Turn<'_>) + 'static,
    ) -> Ticket {
        let needs = self.scope(None);
        self.under((needs, 0), question, turn, then)
    }

    /// The same under this scope, and at this cost.
    fn under<C: Ask + 'static>(
        &mut self,
        (needs, cost): (Scope, u32),
        question: C,
        turn: &mut Turn<'_>,
        then: impl FnOnce(&mut Self, Result<C::Reply, Error>, &mut Turn<'_>) + 'static,
    ) -> Ticket {
        let ticket = turn.execute(needs, cost, Ok(question.into()));
        let then: Then<Self> = Box::new(|dialect, reply, turn| {
            then(dialect, C::answer(reply), turn);
            Ok(Call::Elsewhere)
        });
        self.calls().pending.insert(ticket, Pending { asker: None, then });
        ticket
    }

    /// Does what was to be done with the reply to a question.
    fn take_reply(&mut self, ticket: Ticket, reply: Result<Reply, Error>, turn: &mut Turn<'_>) {
        let calls = self.calls();
        let Some(Pending { asker, then }) = calls.pending.remove(&ticket) else { return };
        calls.replying = ticket;
        let call = then(self, reply, turn);
        self.proceed(asker, 0, call, turn);
    }

    /// Answers whoever waits, since no reply will come.
    fn give_up(&mut self, error: &Error, turn: &mut Turn<'_>) {
        for asker in std::mem::take(self.calls()).pending.into_values().filter_map(|pending| pending.asker) {
            self.answer(asker, Err(error.clone()), turn);
        }
    }
}
