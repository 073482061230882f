//! What is spoken on the Unix socket: xeno's `gateway.*` and the operator's `admin.*` on one connection,
//! told apart per message by the method's prefix.
//!
//! Who gets through to the socket is the operator as far as the daemon knows (peer credentials are
//! checked by who accepts), so the peer is let in when the connection opens, and both protocols
//! are open from then on. What is no request of `admin.*` is xeno's, junk too.
//!
//! Tickets are one counter: a reply or an event that is none of the operator's protocol is xeno's. At a
//! fault xeno says its words and the operator's protocol has the last line. A peer that closed its half is
//! told what both still owe it, and the connection is closed then.

use std::borrow::Cow;

use serde::Deserialize;

use super::admin::{self, Admin};
use super::xeno::Xeno;
use super::{Dialect, Fault, Frame, Input, Setup, Turn};
use crate::time::Timestamp;

/// Close code of a connection that has come to its end.
const DONE: u16 = 1000;

/// The dialect of a connection on the Unix socket.
#[derive(Debug)]
pub struct Socket {
    admin: Admin,
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
    xeno: bool,
}

impl Socket {
    /// For a connection that is about to open. A credential is never required on it.
    pub fn new(setup: Setup) -> Self {
        let setup = Setup { credentials_required: false, ..setup };
        Self {
            admin: Admin::new(setup.clone()),
            xeno: Xeno::new(setup),
            has_spoken: Spoken::default(),
            has_ended: false,
            is_closed: false,
        }
    }

    fn on_frame(&mut self, frame: Frame, turn: &mut Turn<'_>) {
        match &frame {
            Frame::Binary(_) => turn.send(admin::not_text()),
            Frame::Text(text) if is_for_admin(text) => {
                self.has_spoken.admin = true;
                self.admin.handle(Input::Frame(frame), turn);
            }
            Frame::Text(_) => {
                self.has_spoken.xeno = true;
                self.xeno.handle(Input::Frame(frame), turn);
            }
        }
    }

    fn on_fault(&mut self, fault: Fault, turn: &mut Turn<'_>) {
        self.xeno.handle(Input::Fault(fault), turn);
        self.admin.give_up(turn);
        let (reason, code) = admin::words(fault);
        if let Fault::Oversize { limit } = fault {
            turn.send(admin::oversize(limit));
        }
        // Who speaks xeno alone knows no such notification.
        if self.has_spoken.admin || !self.has_spoken.xeno {
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
            Input::Authenticated(_) => self.admin.handle(input, turn),
            Input::Frame(frame) => self.on_frame(frame, turn),
            Input::Reply(ticket, _) | Input::Progress(ticket, _) | Input::Event { ticket, .. }
                if self.admin.knows(ticket) =>
            {
                self.admin.handle(input, turn);
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
        if self.has_ended && !self.is_closed && self.admin.is_idle() && self.xeno.is_idle() {
            self.close(DONE, String::new(), turn);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let deadlines = [self.admin.deadline(), self.xeno.deadline()];
        deadlines.into_iter().flatten().min()
    }
}

/// Whether a line is a request of the operator's protocol.
fn is_for_admin(line: &str) -> bool {
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
    }
    // A struct's derived reader also takes an array.
    line.starts_with('{')
        && serde_json::from_str::<Asked<'_>>(line).is_ok_and(|asked| asked.method.starts_with("admin."))
}
