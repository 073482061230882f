//! What is spoken on the Unix socket: xeno's `gateway.*`, the operator's `admin.*` and exoclaw's requests on
//! one connection, told apart per line.
//!
//! | line | is |
//! |---|---|
//! | an object whose `method` begins with `admin.` | the operator's |
//! | an object with a `method` and no `jsonrpc`, unless it begins with `gateway.` | exoclaw's |
//! | anything else, junk too | xeno's |
//!
//! Who gets through to the socket is the operator as far as the daemon knows (peer credentials are
//! checked by who accepts), so the peer is let in when the connection opens, and all three protocols
//! are open from then on; exoclaw says no hello.
//!
//! Tickets are one counter: a reply or an event that is none of the two others' is xeno's. At a
//! fault each says its words where it was spoken, and the operator's protocol has the last line. A peer that
//! closed its half is told what all still owe it, and the connection is closed then.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::admin::{self, Admin};
use super::calls::Calling;
use super::exoclaw::Exoclaw;
use super::json::even_null;
use super::xeno::Xeno;
use super::{Dialect, DialectSetup, Fault, Frame, Input, Turn};
use crate::time::Timestamp;

/// Close code of a connection that has come to its end.
const DONE: u16 = 1000;

/// The dialect of a connection on the Unix socket.
#[derive(Debug)]
pub struct Socket {
    admin: Admin,
    exoclaw: Exoclaw,
    xeno: Xeno,
    /// Which protocols were spoken.
    has_spoken: Spoken,
    /// Whether the peer has closed its half.
    has_ended: bool,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spoken {
    admin: bool,
    exoclaw: bool,
    xeno: bool,
}

/// Whose a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tongue {
    Admin,
    Exoclaw,
    Xeno,
}

impl Socket {
    /// For a connection that is about to open. A credential is never required on it.
    pub fn new(setup: DialectSetup) -> Self {
        let setup = DialectSetup { credentials_required: false, ..setup };
        Self {
            admin: Admin::new(setup.clone()),
            exoclaw: Exoclaw::new(setup.clone()),
            xeno: Xeno::new(setup),
            has_spoken: Spoken::default(),
            has_ended: false,
            is_closed: false,
        }
    }

    fn on_frame(&mut self, frame: Frame, turn: &mut Turn<'_>) {
        let Frame::Text(text) = &frame else { return turn.send(admin::not_text()) };
        match tongue(text) {
            Tongue::Admin => {
                self.has_spoken.admin = true;
                self.admin.handle(Input::Frame(frame), turn);
            }
            Tongue::Exoclaw => {
                self.has_spoken.exoclaw = true;
                self.exoclaw.handle(Input::Frame(frame), turn);
            }
            Tongue::Xeno => {
                self.has_spoken.xeno = true;
                self.xeno.handle(Input::Frame(frame), turn);
            }
        }
    }

    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        let Spoken { admin, exoclaw, xeno } = self.has_spoken;
        self.xeno.handle(Input::Fault(fault), turn);
        if exoclaw {
            self.exoclaw.give_up(fault, turn);
        }
        self.admin.give_up(&admin::unanswered(), turn);
        let (reason, code) = admin::words(fault);
        if let Fault::Oversize { limit } = fault
            && (admin || xeno || !exoclaw)
        {
            turn.send(admin::oversize(limit));
        }
        // Who speaks another protocol alone knows no such notification.
        if admin || !(xeno || exoclaw) {
            turn.send(admin::closing(&reason));
        }
        self.close(code, reason, turn);
    }

    fn close(&mut self, code: u16, reason: String, turn: &mut Turn<'_>) {
        self.is_closed = true;
        turn.close(code, reason);
    }
}

impl Dialect for Socket {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        if self.is_closed {
            return;
        }
        match input {
            Input::Opened => self.admin.handle(input, turn),
            Input::Authenticated(answer) => {
                if let Ok(admitted) = &answer {
                    self.exoclaw.admit(&admitted.principal);
                }
                self.admin.handle(Input::Authenticated(answer), turn);
            }
            Input::Frame(frame) => self.on_frame(frame, turn),
            Input::Reply(ticket, _) | Input::Progress(ticket, _) | Input::Event { ticket, .. }
                if self.admin.knows(ticket) =>
            {
                self.admin.handle(input, turn);
            }
            Input::Reply(ticket, _) | Input::Event { ticket, .. } if self.exoclaw.knows(ticket) => {
                self.exoclaw.handle(input, turn);
            }
            Input::Reply(..) | Input::Progress(..) | Input::Event { .. } => self.xeno.handle(input, turn),
            Input::Announced(_) => self.admin.handle(input, turn),
            Input::Invoked(_) => {}
            Input::Fault(fault) => self.on_fault(fault, turn),
            Input::Drained => {
                self.xeno.handle(Input::Drained, turn);
                self.admin.handle(Input::Drained, turn);
            }
            Input::Tick => {
                self.xeno.handle(Input::Tick, turn);
                self.admin.handle(Input::Tick, turn);
            }
            Input::Ended => {
                self.has_ended = true;
                self.xeno.handle(Input::Ended, turn);
            }
        }
        let is_idle = || self.admin.is_idle() && self.exoclaw.is_idle() && self.xeno.is_idle();
        if self.has_ended && !self.is_closed && is_idle() {
            self.close(DONE, String::new(), turn);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let deadlines = [self.admin.deadline(), self.xeno.deadline()];
        deadlines.into_iter().flatten().min()
    }
}

/// Whose a line is.
fn tongue(line: &str) -> Tongue {
    #[derive(Deserialize)]
    struct FirstLine<'a> {
        #[serde(borrow, default, deserialize_with = "even_null")]
        jsonrpc: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "even_null")]
        method: Option<&'a RawValue>,
    }
    // A struct's derived reader also takes an array.
    let is_object = line.trim_start().starts_with('{');
    let asked = if is_object { serde_json::from_str::<FirstLine<'_>>(line).ok() } else { None };
    let Some(FirstLine { jsonrpc, method: Some(method) }) = asked else { return Tongue::Xeno };
    let name = serde_json::from_str::<Cow<'_, str>>(method.get()).unwrap_or_default();
    if name.starts_with("admin.") && line.starts_with('{') {
        Tongue::Admin
    } else if jsonrpc.is_none() && !name.starts_with("gateway.") {
        Tongue::Exoclaw
    } else {
        Tongue::Xeno
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_one_protocol() {
        for (line, of) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"admin.status"}"#, Tongue::Admin),
            (r#"{"id":1,"method":"admin.status"}"#, Tongue::Admin),
            (r#"{"id":1,"method":"ping"}"#, Tongue::Exoclaw),
            (r#" {"method":"chat.send","params":{"jsonrpc":"2.0"}}"#, Tongue::Exoclaw),
            (r#"{"id":1,"method":"nothing.that.is"}"#, Tongue::Exoclaw),
            (r#"{"id":1,"method":7}"#, Tongue::Exoclaw),
            (r#"{"jsonrpc":"2.0","id":1,"method":"gateway.query"}"#, Tongue::Xeno),
            (r#"{"id":1,"method":"gateway.query"}"#, Tongue::Xeno),
            (r#"{"jsonrpc":null,"id":1,"method":"ping"}"#, Tongue::Xeno),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Tongue::Xeno),
            (r#"{"token":"x"}"#, Tongue::Xeno),
            (r#"[null,"ping"]"#, Tongue::Xeno),
            (r#"{"method":"ping""#, Tongue::Xeno),
            ("", Tongue::Xeno),
        ] {
            assert_eq!(tongue(line), of, "{line}");
        }
    }
}
