//! What drives a session, as the daemon's actor does: one unit is being written at a time; what was
//! written is told and published, and only then, but for text, which is shown at once; the model may be asked
//! before, tools may not; work that no longer follows from the state is ended.

use std::collections::VecDeque;
use std::mem;

use clawmux_core::conversation::approval::{ApprovalRequest, Verdict};
use clawmux_core::conversation::event::{Cause, Logged};
use clawmux_core::conversation::follow::{Followers, Missing, Wanted};
use clawmux_core::conversation::session::{Batch, Recovery, Session, Submission, Submitted};
use clawmux_core::conversation::turn::Work;
use clawmux_core::conversation::window::Window;
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::{ApprovalId, CallId, ConnectionId, RunId, Seq, Ticket};
use clawmux_core::principal::Principal;
use clawmux_core::prompt::run_options::RunOptions;
use clawmux_core::prompt::settings::{Patch, Settings};
use clawmux_core::provider::usage::Usage;
use clawmux_core::provider::{ChatMessage, Delta};
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::tools::call::{ToolCall, ToolResult};

use crate::book::Stage;
use crate::clients::{Asker, Way};
use crate::dice::Dice;
use crate::log::Loaded;
use crate::outside::{Outside, Reply, Request, Unit};
use crate::rules::{self, Check};

/// What a session is sent.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Submit { request: usize, asker: Asker },
    Follow { request: usize, asker: Asker, run: RunId, seq: Seq },
    Attach { asker: Asker, after: Option<Seq> },
    Detach { connection: ConnectionId, follow: Ticket },
    More(ConnectionId),
    Gone(ConnectionId),
    Abort(Option<RunId>),
    Decide { run: RunId, call: CallId, verdict: Verdict, by: &'static str },
    Stop,
    Alter(Alteration),
    Drain,
}

/// What is done to a conversation as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alteration {
    Clear,
    /// Forgets what ended before the last numbers, so many.
    Compact {
        back: u64,
    },
    Inject {
        note: u64,
    },
    Configure {
        label: u64,
    },
    Reset,
}

/// The work under way.
#[derive(Debug)]
pub(crate) enum Doing {
    Nothing,
    Asking { run: RunId, step: usize, ear: Ear },
    Acting { run: RunId, step: usize, open: Vec<ToolCall>, begun: Vec<CallId> },
}

/// What is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Nothing,
    /// Text that is shown already.
    Page,
    Unit,
}

/// How far the model is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ear {
    /// The connection is being opened.
    Opening,
    /// The next piece may come.
    Open,
    /// Not before the last piece is shown or on its way to the log.
    Shut,
}

/// What arrives though nobody waits for it any more.
#[derive(Clone, Debug)]
pub(crate) enum Late {
    Answer { run: RunId, step: usize },
    Result { run: RunId, result: ToolResult },
}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Opened,
    Said(Vec<Delta>),
    Failed,
}

/// A read of the log for a follower.
#[derive(Debug)]
pub(crate) struct Read {
    missing: Missing,
    as_of: Seq,
    /// What it found, once it has looked; nothing where it failed.
    found: Option<Option<Vec<Logged>>>,
}

/// A session that is awake.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) session: Session,
    pub(crate) incarnation: u32,
    pub(crate) doing: Doing,
    pub(crate) mailbox: VecDeque<Message>,
    pub(crate) late: Vec<Late>,
    pub(crate) followers: Followers<Way>,
    pub(crate) reads: Vec<Read>,
    /// Whether the log could not be read and is to be read again.
    pub(crate) retrying: bool,
    pub(crate) draining: bool,
    writing: Writing,
    /// The last number that is in the log.
    written: Seq,
    is_page_due: bool,
    next: Vec<Reply>,
    published: Seq,
    /// Prompts that were accepted and are not over: the one under way, and those that wait.
    running: Option<RunId>,
    waiting: VecDeque<RunId>,
    /// The run whose answer a restart cut off, until that is recorded.
    cut_off: Option<RunId>,
    /// The model said calls, or sealed thoughts, which are not in the log before the answer ends.
    heard_early: bool,
}

impl Driver {
    /// Begins a session, or reads it back and recovers it. Nothing of its last incarnation may be on
    /// its way to the log by now, else it would not know of it.
    pub(crate) fn wake(
        outside: &mut Outside<'_>,
        loaded: Loaded,
        incarnation: u32,
        recovery: Recovery,
        draining: bool,
        mut followers: Followers<Way>,
    ) -> Check<Self> {
        let (cast, limits) = (outside.cast, outside.limits.clone());
        let key = cast.session.clone();
        let Loaded { events, head, reserved, settings, window } = loaded;
        let mut session = if head == Seq(0) {
            Session::new(key, limits)
        } else {
            Session::restore(key, limits, head, reserved, settings, window, events)
        };
        // To compare whole states is dear: it is done for some.
        if incarnation % 3 == 2 {
            let folded = fold(outside, outside.log.events().to_vec());
            rules::the_state_is_the_fold_of_the_log(&session, &folded, "read back, and the whole log")?;
        }
        followers.fall_behind();
        outside.peers.iter().for_each(|peer| peer.is_known_full.set(false));
        let book = outside.log.book();
        let mut driver = Self {
            incarnation,
            doing: Doing::Nothing,
            mailbox: VecDeque::new(),
            late: Vec::new(),
            followers,
            reads: Vec::new(),
            retrying: false,
            draining,
            writing: Writing::Nothing,
            written: session.head(),
            is_page_due: false,
            next: Vec::new(),
            published: session.head(),
            running: book.running().map(|run| run.id.clone()),
            waiting: book.waiting().map(|run| run.id.clone()).collect(),
            cut_off: book
                .running()
                .filter(|run| run.stage == Stage::Asking && recovery == Recovery::Resume)
                .map(|run| run.id.clone()),
            heard_early: false,
            session: {
                if draining {
                    session.drain();
                }
                session
            },
        };
        if driver.running.is_some() {
            match recovery {
                Recovery::Resume => outside.figures.resumed += 1,
                Recovery::Interrupt => outside.figures.interrupted += 1,
            }
        }
        rules::what_is_under_way_is_read_back(driver.running.as_ref(), &driver.session)?;
        driver.session.recover(outside.now, recovery, |tool| cast.is_idempotent(tool));
        if recovery == Recovery::Resume {
            let waits = outside.log.book().running().into_iter().flat_map(|run| run.waits());
            let is_due = |asked: &&ApprovalRequest| draining || asked.deadline > outside.now;
            let due: Vec<ApprovalRequest> = waits.filter(is_due).cloned().collect();
            outside.figures.waited_over_restart += due.len() as u64;
            rules::what_waits_waits_on(&due, &driver.session)?;
        }
        driver.moved()?;
        Ok(driver)
    }

    /// Whether all that was decided is in the log.
    pub(crate) fn is_written(&self) -> bool {
        self.writing == Writing::Nothing && self.session.is_taken()
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        let nothing_comes = self.mailbox.is_empty() && self.next.is_empty() && self.reads.is_empty();
        self.session.is_idle() && self.is_written() && nothing_comes && !self.retrying
    }

    /// Has what was decided written, and goes to work. Says whether the session stops.
    pub(crate) fn proceed(&mut self, outside: &mut Outside<'_>) -> Check<bool> {
        self.end_stale_work();
        self.let_see(outside)?;
        self.work(outside)?;
        self.catch_up(outside)?;
        let busy = match &self.doing {
            Doing::Nothing => false,
            Doing::Asking { .. } => true,
            Doing::Acting { open, .. } => !open.is_empty(),
        };
        Ok(self.draining && self.is_written() && !busy)
    }

    /// Shows what may be seen by now, and has written what must be before.
    fn let_see(&mut self, outside: &mut Outside<'_>) -> Check {
        if self.writing != Writing::Unit {
            let fresh = self.session.show();
            let page = self.session.page();
            for logged in &page[page.len() - fresh..] {
                rules::published_ranges_are_contiguous(self.published, logged)?;
                self.published = logged.seq;
                outside.log.show(logged)?;
                outside.publish(logged)?;
                self.followers.publish(&outside.cast.session, logged, outside.lag_bytes_max);
                outside.figures.shown += 1;
            }
            rules::the_page_is_bounded(&self.session)?;
            outside.look()?;
        }
        let is_due = self.session.has_unseen() || self.is_page_due || self.session.is_page_full();
        if self.writing == Writing::Nothing && is_due {
            let batch = self.session.take();
            if let Some(run) = self.cut_off.take() {
                let first = batch.as_ref().and_then(|batch| batch.events.first());
                rules::an_answer_that_starts_anew_says_so(&run, first)?;
            }
            if let Some(batch) = batch {
                self.is_page_due = false;
                let is_page = batch.unseen().is_empty();
                self.writing = if is_page { Writing::Page } else { Writing::Unit };
                outside.note(|| {
                    let events: Vec<String> = batch.events.iter().map(brief).collect();
                    let durable = if batch.durable { "durably" } else { "as text" };
                    format!("to be written {durable}, {} shown: {}", batch.shown, events.join(", "))
                });
                let replies = if is_page { Vec::new() } else { mem::take(&mut self.next) };
                outside.pipeline.push_back(Unit { incarnation: self.incarnation, batch, replies });
            }
        }
        if self.writing != Writing::Unit && !self.session.has_unseen() {
            if let Some(run) = self.cut_off.take() {
                rules::an_answer_that_starts_anew_says_so(&run, None)?;
            }
            for reply in mem::take(&mut self.next) {
                self.tell(outside, reply)?;
            }
        }
        Ok(())
    }

    /// The page is to be written though it is not full.
    pub(crate) fn want_page(&mut self, outside: &mut Outside<'_>) -> Check {
        if self.session.page().is_empty() {
            return Ok(());
        }
        self.is_page_due = true;
        self.let_see(outside)
    }

    fn tell(&mut self, outside: &mut Outside<'_>, reply: Reply) -> Check {
        let follow = match &reply {
            Reply::Accepted { asker, run, seq, .. } => {
                Some((asker.clone(), Wanted::Run(run.clone()), Seq(seq.0 - 1)))
            }
            Reply::Attached { asker, after } => Some((asker.clone(), Wanted::Session, *after)),
            _ => None,
        };
        outside.tell(reply)?;
        if let Some((asker, wanted, after)) = follow {
            asker.follows(wanted.clone(), after);
            // One that followed nothing any more is tried anew.
            asker.peer.is_known_full.set(false);
            let who = (asker.peer.connection, asker.ticket);
            let road = || Way(asker.peer.clone());
            self.followers.follow(who, (wanted, after), self.published, road);
        }
        Ok(())
    }

    /// Serves followers that fell behind from the log.
    pub(crate) fn catch_up(&mut self, outside: &mut Outside<'_>) -> Check {
        if self.followers.want(self.written, self.published) {
            outside.figures.wanted_pages += 1;
            self.want_page(outside)?;
        }
        let as_of = self.written;
        for missing in self.followers.missing(self.written, self.published) {
            let peer = outside.peers.iter().find(|peer| peer.connection == missing.connection);
            rules::nothing_is_read_for_one_that_is_full(peer.map(|peer| &**peer))?;
            self.reads.push(Read { missing, as_of, found: None });
        }
        Ok(())
    }

    /// A read looks into the log, or, if it has looked, comes back with what it found.
    pub(crate) fn read(
        &mut self,
        outside: &mut Outside<'_>,
        index: usize,
        fails: bool,
        dice: &mut Dice,
    ) -> Check {
        let read = &mut self.reads[index];
        if read.found.is_none() {
            let Missing { run, after, .. } = &read.missing;
            read.found = Some((!fails).then(|| outside.log.read(run.as_ref(), *after, dice)));
            return Ok(());
        }
        let Read { missing, as_of, found } = self.reads.swap_remove(index);
        let found = found.flatten();
        let failed = found.is_none();
        let events = found.unwrap_or_default();
        let was_last = events.last().is_none_or(|logged| logged.seq >= as_of);
        let is_all = !failed && was_last && as_of == self.published;
        outside.figures.caught_up += u64::from(is_all);
        outside.figures.unreadable += u64::from(failed);
        outside.note(|| {
            let events: Vec<String> = events.iter().map(brief).collect();
            format!("read for {missing:?}: {}, all: {is_all}", events.join(", "))
        });
        self.followers.caught(&outside.cast.session, &missing, events, is_all);
        outside.look()?;
        if failed {
            self.retrying = true;
        } else {
            self.catch_up(outside)?;
        }
        Ok(())
    }

    /// A unit is in the log: it may be seen.
    pub(crate) fn written(&mut self, outside: &mut Outside<'_>, batch: &Batch, replies: Vec<Reply>) -> Check {
        self.writing = Writing::Nothing;
        self.written = batch.events.last().map_or(self.written, |logged| logged.seq);
        self.session.reserved(batch.reserve.unwrap_or_default());
        for reply in replies {
            self.tell(outside, reply)?;
        }
        for logged in batch.unseen() {
            rules::published_ranges_are_contiguous(self.published, logged)?;
            self.published = logged.seq;
            outside.publish(logged)?;
            self.followers.publish(&outside.cast.session, logged, outside.lag_bytes_max);
        }
        outside.look()?;
        if self.is_written()
            && let Some((run, Work::Ask { .. })) = self.session.work()
        {
            let messages = self.session.conversation();
            rules::the_model_sees_every_call_with_its_result(&messages)?;
            if outside.limits.context_tokens > 1000 {
                let (book, turns) = (outside.log.book(), outside.limits.clone());
                rules::the_model_sees_what_the_log_says(book, &turns, run, &messages)?;
                rules::the_model_has_its_thoughts_back(book, run, &messages)?;
                let thought = |message: &ChatMessage| matches!(message, ChatMessage::Assistant { thoughts, .. } if !thoughts.is_empty());
                outside.figures.asked_with_thoughts += u64::from(messages.iter().any(thought));
            }
        }
        Ok(())
    }

    fn end_stale_work(&mut self) {
        let wanted = match (&self.doing, self.session.work()) {
            (Doing::Nothing, _) => true,
            (Doing::Asking { run, step, .. }, Some((now, Work::Ask { step: at })))
            | (Doing::Acting { run, step, .. }, Some((now, Work::Act { step: at, .. }))) => {
                run == now && *step == at
            }
            _ => false,
        };
        if !wanted {
            self.end_work();
        }
    }

    /// Ends what is under way; something of it may arrive all the same.
    fn end_work(&mut self) {
        self.heard_early = false;
        match mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => {}
            Doing::Asking { run, step, .. } => self.late.push(Late::Answer { run, step }),
            Doing::Acting { run, open, .. } => self.late.extend(
                open.into_iter().map(|call| Late::Result { run: run.clone(), result: result(&call) }),
            ),
        }
    }

    fn work(&mut self, outside: &mut Outside<'_>) -> Check {
        if let Doing::Asking { ear, .. } = &mut self.doing {
            if *ear == Ear::Shut && !self.session.has_unseen() {
                *ear = Ear::Open;
            }
            return Ok(());
        }
        if self.draining {
            return Ok(());
        }
        match self.session.work() {
            Some((run, Work::Ask { step })) if matches!(self.doing, Doing::Nothing) => {
                let run = run.clone();
                // As good as anything that is remembered: some prompts have notes and some have none.
                if run.as_str().len() % 2 == 0 {
                    self.session.recalled(outside.now, &run, format!("noted for {run}"));
                }
                if let Some(compaction) = self.session.compaction("") {
                    let summary = compaction.summary(None);
                    rules::a_compaction_makes_room(&compaction, &summary)?;
                    self.session.compacted(outside.now, &run, &compaction, summary);
                    outside.figures.compacted += 1;
                    rules::a_compaction_is_enough(self.session.compaction("").is_none())?;
                }
                outside.ask(&run, step, self.incarnation)?;
                self.doing = Doing::Asking { run, step, ear: Ear::Opening };
            }
            Some((run, Work::Act { step, calls })) if self.is_written() => {
                let run = run.clone();
                let (mut open, mut begun) = match mem::replace(&mut self.doing, Doing::Nothing) {
                    Doing::Acting { open, begun, .. } => (open, begun),
                    Doing::Nothing | Doing::Asking { .. } => Default::default(),
                };
                for call in calls {
                    if !begun.contains(&call.id) {
                        outside.call(&run, step, &call, self.incarnation)?;
                        begun.push(call.id.clone());
                        open.push(call);
                    }
                }
                self.doing = Doing::Acting { run, step, open, begun };
            }
            _ => {}
        }
        Ok(())
    }

    /// A piece of the answer, or its end.
    pub(crate) fn heard(&mut self, outside: &mut Outside<'_>, piece: Piece) -> Check<bool> {
        let Doing::Asking { run, step, ear } = &mut self.doing else { return Ok(false) };
        let (run, step) = (run.clone(), *step);
        match piece {
            Piece::Opened => {
                *ear = Ear::Open;
                return Ok(false);
            }
            Piece::Said(deltas) => {
                *ear = Ear::Shut;
                let is_early = |delta: &Delta| matches!(delta, Delta::ToolCall(_) | Delta::Sealed(_));
                let early = deltas.iter().any(is_early);
                let finished = deltas.iter().any(|delta| matches!(delta, Delta::Finished { .. }));
                self.heard_early = (self.heard_early || early) && !finished;
                self.session.said(outside.now, &run, step, deltas, &outside.cast.toolbox);
            }
            Piece::Failed => {
                self.end_work();
                let error = ErrorCode::Provider.error("away");
                self.session.failed(outside.now, &run, step, error, Usage::default());
            }
        }
        self.moved()?;
        self.proceed(outside)
    }

    /// A tool returns; `again`: and will do so once more.
    pub(crate) fn returned(&mut self, outside: &mut Outside<'_>, index: usize, again: bool) -> Check<bool> {
        let Doing::Acting { run, open, .. } = &mut self.doing else { return Ok(false) };
        let call = open.swap_remove(index);
        let (run, result) = (run.clone(), result(&call));
        outside.note(|| format!("tool returns: {} of {run}", result.call));
        if again {
            self.late.push(Late::Result { run: run.clone(), result: result.clone() });
        }
        self.session.returned(outside.now, &run, result);
        self.moved()?;
        self.proceed(outside)
    }

    /// Somebody decides about a call that waits, or waited.
    fn decide(
        &mut self,
        outside: &mut Outside<'_>,
        (run, call): (RunId, CallId),
        verdict: Verdict,
        by: &str,
    ) -> Check {
        let id = ApprovalId::of(&run, &call);
        let waits = self.session.pending().into_iter().find(|pending| pending.id == id);
        let by = Principal::new(by, Scopes::of(&[Scope::Approve]));
        match self.session.decide(outside.now, &id, verdict, &by) {
            Ok((run, decided)) => self.next.push(Reply::Decided { run, decided }),
            Err(error) => {
                outside.figures.decided_too_late += 1;
                let waits = waits.map(|pending| pending.asked);
                rules::a_decision_is_refused_for_a_reason(
                    &error,
                    waits.as_ref(),
                    outside.now,
                    self.draining,
                )?;
            }
        }
        Ok(())
    }

    /// It is time to decide about calls that nobody decides about.
    pub(crate) fn expire(&mut self, outside: &mut Outside<'_>) -> Check<bool> {
        self.session.expire(outside.now);
        self.moved()?;
        self.proceed(outside)
    }

    /// Something arrives that nobody waits for.
    pub(crate) fn too_late(&mut self, outside: &mut Outside<'_>, late: Late, piece: Piece) -> Check {
        outside.figures.too_late += 1;
        outside.note(|| format!("too late: {late:?}"));
        let before = self.session.head();
        match late.clone() {
            Late::Answer { run, step } => match piece {
                Piece::Said(deltas) => {
                    self.session.said(outside.now, &run, step, deltas, &outside.cast.toolbox);
                }
                Piece::Opened | Piece::Failed => {
                    let error = ErrorCode::Provider.error("away");
                    self.session.failed(outside.now, &run, step, error, Usage::default());
                }
            },
            Late::Result { run, result } => self.session.returned(outside.now, &run, result),
        }
        rules::what_comes_too_late_changes_nothing(before, &self.session, &late)
    }

    /// The next message is taken from the mailbox.
    pub(crate) fn receive(&mut self, outside: &mut Outside<'_>) -> Check<bool> {
        let Some(message) = self.mailbox.pop_front() else { return Ok(false) };
        outside.note(|| format!("session receives {message:?}"));
        match message {
            Message::Submit { request, asker } => return self.submit(outside, request, asker),
            Message::Follow { request, asker, run, seq } => {
                self.next.push(Reply::Accepted { request, asker, run, seq, repeated: true });
            }
            Message::Attach { asker, after } => {
                let after = after.unwrap_or(self.session.head());
                rules::who_comes_back_is_let_in(&self.session, after)?;
                self.next.push(Reply::Attached { asker, after });
            }
            Message::Detach { connection, follow } => {
                outside.figures.detached += u64::from(self.followers.unfollow(connection, follow));
            }
            Message::More(connection) => {
                let peer = outside.peers.iter().find(|peer| peer.connection == connection);
                peer.iter().for_each(|peer| peer.is_known_full.set(false));
                self.followers.room(connection);
                self.catch_up(outside)?;
                return Ok(false);
            }
            Message::Gone(connection) => {
                self.followers.forget(connection);
                return Ok(false);
            }
            Message::Stop => {
                self.end_work();
                let due: Vec<RunId> = self.running.iter().chain(&self.waiting).cloned().collect();
                let runs = self.session.stop(outside.now, Cause::Stopped, Usage::default());
                rules::stop_ends_all(&due, &runs, &self.session)?;
                self.waiting.clear();
                self.next.push(Reply::Stopped(runs));
            }
            Message::Abort(run) => self.abort(outside, run)?,
            Message::Decide { run, call, verdict, by } => self.decide(outside, (run, call), verdict, by)?,
            Message::Alter(alteration) => {
                let now = outside.now;
                match alteration {
                    Alteration::Clear => self.session.clear(now),
                    Alteration::Compact { back } => {
                        let up_to = Seq(self.session.head().0.saturating_sub(back));
                        self.session.compact(now, up_to);
                    }
                    Alteration::Inject { note } => {
                        let id = RunId::new(format!("inject-{note}"));
                        self.session.inject(now, id, format!("note {note}"));
                    }
                    Alteration::Configure { label } => {
                        let patch = Patch { label: Some(Some(label.to_string())), ..Patch::default() };
                        if self.session.configure(now, &patch).is_err() {
                            unreachable!("a short label is fine");
                        }
                    }
                    Alteration::Reset => {
                        self.end_work();
                        self.session.reset(now, Usage::default());
                        self.waiting.clear();
                    }
                }
                self.next.push(Reply::Altered);
            }
            Message::Drain => {
                self.draining = true;
                self.session.drain();
            }
        }
        self.moved()?;
        self.proceed(outside)
    }

    fn submit(&mut self, outside: &mut Outside<'_>, request: usize, asker: Asker) -> Check<bool> {
        let Request { run, content, owner, key } = outside.requests[request].clone();
        let limit = outside.limits.queue;
        let full = self.waiting.len() >= limit;
        // A run that is under way or waits is known by its key.
        let known = key.as_ref().and_then(|key| {
            let mut here = self.running.iter().chain(&self.waiting);
            here.find(|here| {
                outside
                    .requests
                    .iter()
                    .any(|r| r.run == **here && r.owner == owner && r.key.as_ref() == Some(key))
            })
        });
        let known = known.cloned();
        let submission = Submission {
            run: run.clone(),
            content,
            owner,
            idempotency_key: key.clone(),
            attachments: Vec::new(),
            run_options: RunOptions::default(),
        };
        match self.session.submit(outside.now, submission) {
            Ok(Submitted { run: given, seq, repeated }) => {
                if let (Some(known), Some(key)) = (&known, &key) {
                    rules::the_same_key_is_the_same_run(key, known, &given)?;
                }
                if !repeated {
                    outside.figures.prompts += 1;
                    self.waiting.push_back(run);
                    self.moved()?;
                    rules::the_queue_is_bounded(self.waiting.len(), limit, self.draining)?;
                }
                self.next.push(Reply::Accepted { request, asker, run: given, seq, repeated });
                self.proceed(outside)
            }
            Err(error) => {
                rules::a_refusal_is_typed_and_has_a_reason(&error, full, self.draining)?;
                outside.figures.refused += 1;
                outside.note(|| format!("client is refused: {error}"));
                Ok(false)
            }
        }
    }

    fn abort(&mut self, outside: &mut Outside<'_>, run: Option<RunId>) -> Check {
        let wanted = run.as_ref().or(self.running.as_ref()).cloned();
        let due = wanted.filter(|w| self.running.as_ref() == Some(w) || self.waiting.contains(w));
        if run.is_none() || run == self.running {
            self.end_work();
        }
        let given = self.session.abort(outside.now, run.as_ref(), Usage::default());
        rules::abort_is_heard(run.as_ref(), due.as_ref(), given.as_ref(), self.session.running())?;
        if let Some(given) = &given {
            self.waiting.retain(|waiting| waiting != given);
        }
        self.next.push(Reply::Aborted(given));
        Ok(())
    }

    /// Follows what the session did: the run under way may have ended, the next may have begun.
    fn moved(&mut self) -> Check {
        let now = self.session.running();
        if now != self.running.as_ref() {
            if let Some(now) = now {
                rules::prompts_run_in_their_order(self.waiting.front(), now)?;
                self.waiting.pop_front();
            }
            self.running = now.cloned();
        }
        rules::the_queue_holds_what_was_accepted(&self.session, self.waiting.len())?;
        rules::the_next_prompt_begins(&self.session, self.draining)
    }

    /// The session ends here, however it does: what it knows is what its log will say.
    pub(crate) fn end(mut self, outside: &Outside<'_>) -> Check {
        if self.heard_early || self.incarnation % 3 != 1 {
            return Ok(());
        }
        let mut events = outside.log.events().to_vec();
        for unit in &outside.pipeline {
            events.extend(unit.batch.events.iter().cloned());
        }
        events.extend(self.session.take().into_iter().flat_map(|batch| batch.events));
        rules::the_state_is_the_fold_of_the_log(&self.session, &fold(outside, events), "live, and its log")
    }
}

fn fold(outside: &Outside<'_>, events: Vec<Logged>) -> Session {
    let key = outside.cast.session.clone();
    let head = events.last().map_or(Seq(0), |logged| logged.seq);
    let settings = Settings::default();
    Session::restore(
        key,
        outside.limits.clone(),
        head,
        outside.log.reserved(),
        settings,
        Window::default(),
        events,
    )
}

fn result(call: &ToolCall) -> ToolResult {
    ToolResult { call: call.id.clone(), content: "done".into(), is_error: false }
}

/// An event in a line of the history.
fn brief(logged: &Logged) -> String {
    let run = logged.run.as_ref().map_or("-", RunId::as_str);
    let numbers = if logged.first_seq == logged.seq {
        logged.seq.to_string()
    } else {
        format!("{}..={}", logged.first_seq, logged.seq)
    };
    format!("[{numbers} {run} {:?}]", logged.event)
}
