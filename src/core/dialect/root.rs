//! What is spoken at `/`: OpenClaw's protocol, unless the first frame is Wundr's `auth.connect`.
//!
//! Until then the connection is told what OpenClaw's clients wait for; Wundr's read past it.

use super::openclaw::OpenClaw;
use super::wundr::{Wundr, is_greeting};
use super::{Dialect, DialectSetup, Input, Turn};
use crate::time::Timestamp;

/// The dialect of a connection at `/`.
#[derive(Debug)]
pub struct Root {
    /// What a change of mind takes; none once the first frame came.
    setup: Option<DialectSetup>,
    spoken: Spoken,
}

#[derive(Debug)]
enum Spoken {
    OpenClaw(Box<OpenClaw>),
    Wundr(Box<Wundr>),
}

impl Root {
    /// For a connection that is about to open.
    pub fn new(setup: DialectSetup) -> Self {
        Self { setup: Some(setup.clone()), spoken: Spoken::OpenClaw(Box::new(OpenClaw::new(setup))) }
    }
}

impl Dialect for Root {
    fn handle(&mut self, input: Input<'_>, turn: &mut Turn<'_>) {
        if let Input::Frame(frame) = &input
            && let Some(setup) = self.setup.take()
            && is_greeting(frame)
        {
            let mut wundr = Box::new(Wundr::new(setup));
            wundr.handle(Input::Opened, turn);
            self.spoken = Spoken::Wundr(wundr);
        }
        match &mut self.spoken {
            Spoken::OpenClaw(dialect) => dialect.handle(input, turn),
            Spoken::Wundr(dialect) => dialect.handle(input, turn),
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        match &self.spoken {
            Spoken::OpenClaw(dialect) => dialect.deadline(),
            Spoken::Wundr(dialect) => dialect.deadline(),
        }
    }
}
