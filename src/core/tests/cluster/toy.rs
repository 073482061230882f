//! A session as small as can be: prompts in a queue, runs that make calls, and a number for every event.

use std::collections::VecDeque;

/// What can be in a session's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Prompted {
        key: u32,
        run: u32,
    },
    /// The intent of a call: accepted before it is made.
    Called {
        call: u32,
    },
    Returned {
        call: u32,
    },
    /// Nobody knows what came of the call.
    Interrupted {
        call: u32,
    },
    Ended {
        run: u32,
    },
}

/// A record: one event or two, with the number of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) first: u32,
    pub(crate) event: Event,
    pub(crate) then: Option<Event>,
}

/// The fold of a session's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// How many events there are.
    pub(crate) head: u32,
    runs: VecDeque<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    id: u32,
    /// How many calls are over.
    calls: u32,
    call: Option<u32>,
}

/// How many calls a run makes: it follows from its number.
fn calls_of(run: u32) -> u32 {
    run % 3
}

impl Conversation {
    /// Whether every run has ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }

    /// The call under way.
    pub(crate) fn open_call(&self) -> Option<u32> {
        self.runs.front()?.call
    }

    /// What the run under way does next; nothing while a call is open.
    pub(crate) fn next(&self) -> Option<Event> {
        let run = self.runs.front().filter(|run| run.call.is_none())?;
        let call = run.id * 4 + run.calls;
        Some(if run.calls < calls_of(run.id) { Event::Called { call } } else { Event::Ended { run: run.id } })
    }

    /// What is written once a call returned: its result, and the end with the last one.
    pub(crate) fn result(&self, call: u32) -> (Event, Option<Event>) {
        let ends = self.runs.front().filter(|run| run.calls + 1 == calls_of(run.id));
        (Event::Returned { call }, ends.map(|run| Event::Ended { run: run.id }))
    }

    /// Takes in a record, or says why it makes no sense.
    pub(crate) fn apply(&mut self, body: &Body) -> Result<(), &'static str> {
        if body.first != self.head + 1 {
            return Err("it does not follow the last number");
        }
        self.take(body.event)?;
        body.then.map_or(Ok(()), |event| self.take(event))
    }

    fn take(&mut self, event: Event) -> Result<(), &'static str> {
        self.head += 1;
        match (event, self.runs.front_mut()) {
            (Event::Prompted { run, .. }, _) => {
                self.runs.push_back(Run { id: run, calls: 0, call: None });
                Ok(())
            }
            (Event::Called { call }, Some(run)) if run.call.is_none() && call == run.id * 4 + run.calls => {
                run.call = Some(call);
                Ok(())
            }
            (Event::Returned { call } | Event::Interrupted { call }, Some(run)) if run.call == Some(call) => {
                (run.call, run.calls) = (None, run.calls + 1);
                Ok(())
            }
            (Event::Ended { run: id }, Some(run)) if run.id == id && run.calls == calls_of(id) => {
                self.runs.pop_front();
                Ok(())
            }
            _ => Err("its event does not follow from the state"),
        }
    }
}
