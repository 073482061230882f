//! One append: checked whole, then applied whole.

use std::sync::atomic::Ordering::Relaxed;

use clawmux_core::conversation::event::{Event, Forgotten, Logged, Outcome, Streamed};
use clawmux_core::conversation::log::check::{self, refused};
use clawmux_core::conversation::log::segment::Segment;
use clawmux_core::conversation::log::{page, record};
use clawmux_core::conversation::outbox::ToSay;
use clawmux_core::conversation::window::Window;
use clawmux_core::error::ErrorCode;
use clawmux_core::ids::{Owner, RunId, Seq, SessionKey};
use clawmux_core::limits::quota::ROW_BYTES;
use clawmux_core::prompt::answer_to::AnswerTo;
use clawmux_core::prompt::attachment::Attachment;
use clawmux_core::replica::Appended;
use clawmux_core::time::Timestamp;
use rusqlite::{OptionalExtension, params, params_from_iter};

use super::{OpenRun, State, Writer};
use crate::store::columns::{Columns, integer, number, time};
use crate::store::failure::Failure;
use crate::store::live::{Live, NO_PAGE, Place};
use crate::store::log_writer::Deletion;
use crate::store::schema::{HAS_ANSWER, Progress};
use crate::store::{Append, Saying, Words};

/// How many characters of the first prompt and of the last message lists have.
const TITLE_CHARS: usize = 120;
const PREVIEW_CHARS: usize = 240;

/// Room for a record that is kept for the next one.
const BODY_BYTES_KEPT: usize = 1 << 20;

const INSERT_EVENT: &str =
    "INSERT INTO events (session, seq, first, run, at, kind, body) VALUES (?, ?, ?, ?, ?, ?, ?)";

const PROGRESS: &str = "UPDATE runs SET progress = ?1 WHERE id = ?2 AND progress < ?1";

/// What a step had streamed.
#[derive(Clone, Copy, Debug, Default)]
struct Settled {
    any: bool,
    text: bool,
}

impl Writer {
    /// Checks first and applies then, so that a refused append leaves no trace.
    pub(in crate::store) fn append(&mut self, live: &mut Live, append: &Append) -> Result<(), Failure> {
        let Append { session, events, reserve, to_say, .. } = append;
        let known = self.session(session, live.head(session))?;
        let is_new = known.is_none();
        let mut state = known.unwrap_or_else(|| State::new(session, self.opened));
        let was_current = state.opened == self.opened;
        // After a start numbers above the head may have been seen, but only where a run was under way whose last
        // text did not reach the disk.
        let may_be_seen = || !was_current && self.runs.values().any(|open| open.session == state.row);
        check::can_reserve(*reserve)?;
        if is_new && events.is_empty() {
            return Err(refused("a session begins with an event").into());
        }
        check::numbers_follow(session, events, state.reached(), may_be_seen)?;
        check::runs_agree(session, events, &Known { writer: self, session: state.row })?;
        self.grown = 0;
        let Some(last) = events.last() else {
            if let Some(reserve) = reserve {
                state.reserved = state.reserved.max(reserve.0);
                self.advance(session, state, false)?;
            }
            return Ok(());
        };
        if is_new {
            state.row = self.insert_session(session, events)?;
        }
        let mut is_text = true;
        for logged in events.iter() {
            match (logged.event.streamed(), &logged.run) {
                (Some(piece), Some(run)) => self.stream(live, session, run, logged, piece)?,
                _ => {
                    is_text = false;
                    self.insert_event(live, session, state.row, logged)?;
                }
            }
        }
        self.say_all(to_say, last.at)?;
        state.head = last.seq.0;
        state.reserved = state.reserved.max(reserve.map_or(0, |reserve| reserve.0));
        state.opened = self.opened;
        self.advance(session, state, is_text && was_current && reserve.is_none())?;
        self.appended(events.len());
        Ok(())
    }

    /// The same of a record that all daemons of a cluster have, with the text of the steps that end in it. What this
    /// daemon has of that itself plays no part.
    pub(in crate::store) fn append_record(
        &mut self,
        live: &mut Live,
        appended: &Appended,
    ) -> Result<(), Failure> {
        let Appended { session, settled, events, reserve, to_say } = appended;
        let known = self.session(session, 0)?;
        let is_new = known.is_none();
        let mut state = known.unwrap_or_else(|| State::new(session, self.opened));
        check::can_reserve(*reserve)?;
        if is_new && events.is_empty() {
            return Err(refused("a session begins with an event").into());
        }
        check::numbers_rise(session, events, state.reached())?;
        check::runs_agree(session, events, &Known { writer: self, session: state.row })?;
        check::text_is_due(session, settled, events, &Known { writer: self, session: state.row })?;
        self.grown = 0;
        if is_new {
            state.row = self.insert_session(session, events)?;
        }
        let mut settled: Vec<_> = settled.iter().collect();
        let ends_step = |run: &RunId| {
            events.iter().any(|logged| logged.event.settles() && logged.run.as_ref() == Some(run))
        };
        // Of a step that goes on, what was said so far.
        for (run, text) in settled.extract_if(.., |(run, _)| !ends_step(run)) {
            let row = self.open_run(run)?.row;
            live.replace(session, (row, run), Some(text.clone()));
            self.settle(live, session, state.row, row, false)?;
        }
        for logged in events.iter() {
            if let Some(run) = logged.run.as_ref().filter(|_| logged.event.settles()) {
                let row = self.open_run(run)?.row;
                let text = settled.extract_if(.., |(of, _)| of == run).next();
                live.replace(session, (row, run), text.map(|(_, text)| text.clone()));
            }
            self.insert_event(live, session, state.row, logged)?;
        }
        if let Some(last) = events.last() {
            self.say_all(to_say, last.at)?;
            state.head = last.seq.0;
            state.opened = self.opened;
        }
        state.reserved = state.reserved.max(reserve.map_or(0, |reserve| reserve.0));
        self.advance(session, state, false)?;
        self.appended(events.len());
        Ok(())
    }

    /// Shows text that no record has yet. It is on no page: what a daemon of a cluster leaves unfinished, another one
    /// says anew.
    pub(in crate::store) fn show(
        &mut self,
        live: &mut Live,
        session: &SessionKey,
        events: &[Logged],
    ) -> Result<(), Failure> {
        for logged in events {
            let (Some(run), Some(piece)) = (&logged.run, logged.event.streamed()) else {
                return Err(refused(format_args!("number {} of {session} is no text", logged.seq)).into());
            };
            let row = self.open_run(run)?.row;
            live.push(Place { session, row, run, page: NO_PAGE }, (logged.seq, logged.at), piece);
        }
        self.figures.events.fetch_add(events.len() as u64, Relaxed);
        Ok(())
    }

    fn say_all(&mut self, to_say: &[ToSay], at: Timestamp) -> Result<(), Failure> {
        to_say.iter().try_for_each(|ToSay { to, answer }| {
            let AnswerTo { channel, conversation, address } = to.clone();
            let saying = Saying { conversation, address, words: Words::Answer(answer.to_json()) };
            self.say(&channel, at, &saying)
        })
    }

    fn appended(&mut self, events: usize) {
        self.figures.events.fetch_add(events as u64, Relaxed);
        if self.body.capacity() > BODY_BYTES_KEPT {
            self.body = Vec::new();
        }
    }

    fn stream(
        &mut self,
        live: &mut Live,
        session: &SessionKey,
        run: &RunId,
        logged: &Logged,
        (of, text): (Streamed, &str),
    ) -> Result<(), Failure> {
        let open = self.open_run(run)?;
        let (seq, at) = (logged.seq, logged.at);
        let piece = page::Piece { session: number(open.session), run: number(open.row), seq, at, of, text };
        page::write(&mut self.page, piece);
        let place = Place { session, row: open.row, run, page: self.page_id };
        if live.push(place, (seq, at), (of, text)) {
            *self.pages.entry(self.page_id).or_default() += 1;
        }
        Ok(())
    }

    fn insert_event(
        &mut self,
        live: &mut Live,
        session: &SessionKey,
        session_row: i64,
        logged: &Logged,
    ) -> Result<(), Failure> {
        let at = time(logged.at);
        let seq = integer(logged.seq.0);
        let mut run_row = None;
        if let (Some(run), Event::Injected { .. }) = (&logged.run, &logged.event) {
            self.cached(
                "INSERT INTO runs (run, session, prompted, settled, ended, progress) VALUES (?1, ?2, ?3, ?3, ?3, ?4)",
            )?
            .execute(params![run.as_str(), session_row, seq, Progress::Injected as i64])?;
            run_row = Some(self.db.last_insert_rowid());
        } else if let Some(run) = &logged.run {
            if let Event::Prompted { owner, idempotency_key, attachments, .. } = &logged.event {
                self.cached("INSERT INTO runs (run, session, prompted, settled) VALUES (?, ?, ?, ?)")?
                    .execute(params![run.as_str(), session_row, seq, seq])?;
                let row = self.db.last_insert_rowid();
                let asked = Some(logged.at);
                self.runs.insert(run.clone(), OpenRun { row, session: session_row, prompted: seq, asked });
                if let Some(key) = idempotency_key {
                    self.cached("INSERT INTO idempotency (owner, key, run) VALUES (?, ?, ?)")?
                        .execute(params![owner.as_str(), key, row])?;
                }
                self.attach(session_row, seq, attachments)?;
            }
            let OpenRun { row, prompted, asked, .. } = self.open_run(run)?;
            run_row = Some(row);
            let is_over = matches!(logged.event, Event::Ended { .. });
            if logged.event.settles() {
                let is_void = matches!(logged.event, Event::Restarted);
                let settled = self.settle(live, session, session_row, row, is_void)?;
                if is_over {
                    // A run that failed says so in its answer.
                    let failed = matches!(&logged.event, Event::Ended { outcome: Outcome::Failed(_), .. });
                    let has_answer: i64 = self
                        .cached(HAS_ANSWER)?
                        .query_row(params![session_row, prompted, seq, row], |row| row.get(0))
                        .map(|has_text: bool| i64::from(has_text || failed))?;
                    self.cached(
                        "UPDATE runs SET settled = ?1, ended = ?1, messages = messages + ?3 WHERE id = ?2",
                    )?
                    .execute(params![seq, row, has_answer])?;
                    self.count_messages(session_row, has_answer)?;
                    self.runs.remove(run);
                    if let Event::Ended { outcome, .. } = &logged.event {
                        self.figures.run_ended(outcome, asked, logged.at);
                    }
                } else if settled.any {
                    self.cached("UPDATE runs SET settled = ?1 WHERE id = ?2")?.execute(params![seq, row])?;
                }
                // What a restart made void is no answer.
                if !is_void && (settled.text || self.has_spoken(row, seq)?) {
                    self.cached(PROGRESS)?.execute([Progress::Answered as i64, row])?;
                }
            }
            match logged.event {
                Event::Started => {
                    self.figures.runs_started.fetch_add(1, Relaxed);
                    self.cached("UPDATE runs SET progress = max(progress, ?1), started = ?2 WHERE id = ?3")?
                        .execute([Progress::Begun as i64, seq, row])?
                }
                Event::ToolReturned(_) => {
                    self.count_messages(session_row, 1)?;
                    self.cached("UPDATE runs SET messages = messages + 1 WHERE id = ?")?.execute([row])?
                }
                Event::ToolCalled(_) => self.cached(PROGRESS)?.execute([Progress::Answered as i64, row])?,
                Event::ApprovalAsked(_) => {
                    self.cached(PROGRESS)?.execute([Progress::Answered as i64, row])?;
                    self.cached("UPDATE runs SET waits = waits + 1 WHERE id = ?")?.execute([row])?
                }
                Event::ApprovalDecided(_) => {
                    self.cached("UPDATE runs SET waits = max(waits - 1, 0) WHERE id = ?")?.execute([row])?
                }
                _ => 0,
            };
        }
        self.body.clear();
        let kind = record::write(&logged.event, &mut self.body);
        self.grown += row_bytes(self.body.len());
        let body = &self.body;
        self.cached(INSERT_EVENT)?.execute(params![
            session_row,
            seq,
            integer(logged.first_seq.0),
            run_row,
            at,
            kind,
            body
        ])?;
        match &logged.event {
            Event::Cleared(forgotten) => {
                self.move_window(session_row, logged)?;
                self.forget((session, session_row), seq, at, *forgotten)?;
            }
            Event::Compacted(_) => self.move_window(session_row, logged)?,
            Event::Configured(settings) => {
                self.body.clear();
                record::write_settings(settings, &mut self.body);
                let closed = settings.closed.is_some();
                self.cached("UPDATE sessions SET settings = ?1, label = ?2, closed = ?3 WHERE id = ?4")?
                    .execute(params![self.body, settings.label, closed, session_row])?;
            }
            Event::Prompted { content, .. } | Event::Injected { content } => {
                let is_prompt = matches!(logged.event, Event::Prompted { .. });
                let title =
                    if is_prompt { beginning([content.as_str()], TITLE_CHARS) } else { String::new() };
                self.cached(
                    "UPDATE sessions SET updated = max(updated, ?1), messages = messages + 1, preview = ?2,
                         title = CASE title WHEN '' THEN ?3 ELSE title END
                     WHERE id = ?4",
                )?
                .execute(params![
                    at,
                    beginning([content.as_str()], PREVIEW_CHARS),
                    title,
                    session_row
                ])?;
            }
            Event::Ended { outcome, .. } => {
                let outcome = if matches!(outcome, Outcome::Failed(_)) { 2 } else { 1 };
                self.cached("UPDATE sessions SET updated = max(updated, ?1), outcome = ?2 WHERE id = ?3")?
                    .execute([at, outcome, session_row])?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Keeps what a prompt brought along.
    fn attach(&mut self, session_row: i64, seq: i64, attachments: &[Attachment]) -> rusqlite::Result<()> {
        for (place, attachment) in (0_i64..).zip(attachments) {
            self.grown += row_bytes(attachment.data().len());
            self.cached("INSERT INTO attachments (session, seq, place, data) VALUES (?, ?, ?, ?)")?
                .execute(params![session_row, seq, place, &attachment.data()[..]])?;
        }
        Ok(())
    }

    /// Whether some text of the step that ends with this number is in the log already, as it may be in a cluster.
    fn has_spoken(&self, row: i64, seq: i64) -> rusqlite::Result<bool> {
        if !self.is_replaying {
            return Ok(false);
        }
        self.cached(
            "SELECT EXISTS (SELECT 1 FROM events e JOIN runs r ON r.id = e.run
             WHERE r.id = ?1 AND e.session = r.session AND e.seq > r.settled AND e.seq < ?2 AND e.kind = 'text')",
        )?
        .query_row([row, seq], |row| row.get(0))
    }

    /// Writes a run's text and thoughts down once, now that its step is over (in a cluster also before that, where
    /// another event comes), and lets go of their pages. Says what there was.
    fn settle(
        &mut self,
        live: &mut Live,
        session: &SessionKey,
        session_row: i64,
        row: i64,
        is_void: bool,
    ) -> rusqlite::Result<Settled> {
        let Some(run) = live.take(session, row) else { return Ok(Settled::default()) };
        for segment in &run.segments {
            self.body.clear();
            segment.write(&mut self.body);
            self.grown += row_bytes(self.body.len());
            let (first, last) = (integer(segment.first_seq().0), integer(segment.seq().0));
            let (at, body) = (time(segment.at()), &self.body);
            let kind = record::streamed_kind(segment.of());
            let values = params![session_row, last, first, row, at, kind, body];
            self.cached(INSERT_EVENT)?.execute(values)?;
        }
        let has_text = run.segments.iter().any(|segment| segment.of() == Streamed::Text);
        if has_text && !is_void {
            let text = run.segments.iter().filter(|segment| segment.of() == Streamed::Text);
            let preview = beginning(text.map(Segment::text), PREVIEW_CHARS);
            self.cached("UPDATE sessions SET preview = ?1 WHERE id = ?2")?
                .execute(params![preview, session_row])?;
        }
        for page in run.pages {
            if let Some(steps) = self.pages.get_mut(&page) {
                *steps -= 1;
                if *steps == 0 {
                    self.pages.remove(&page);
                    // The present group's page is not there yet and need not be written then.
                    if page != self.page_id {
                        self.dead.insert(page);
                    }
                }
            }
        }
        Ok(Settled { any: true, text: has_text })
    }

    /// So many messages more can be told of a session.
    fn count_messages(&self, session_row: i64, more: i64) -> rusqlite::Result<()> {
        if more > 0 {
            self.cached("UPDATE sessions SET messages = messages + ?1 WHERE id = ?2")?
                .execute([more, session_row])?;
        }
        Ok(())
    }

    /// Notes what of its past a conversation shows its model from here on.
    fn move_window(&self, session_row: i64, logged: &Logged) -> rusqlite::Result<()> {
        let mut window = self
            .cached("SELECT window_seq, window_from, window_named, summary FROM sessions WHERE id = ?")?
            .query_row([session_row], |row| row.window(0))?;
        window.apply(logged.seq, &logged.event);
        let Window { seq, from, named, summary } = window;
        let [seq, from, named] = [seq, from, named].map(|seq| integer(seq.0));
        self.cached(
            "UPDATE sessions SET window_seq = ?1, window_from = ?2, window_named = ?3, summary = ?4 WHERE id = ?5",
        )?
        .execute(params![seq, from, named, summary, session_row])?;
        Ok(())
    }

    /// Forgets a conversation, or its beginning.
    fn forget(
        &self,
        (session, row): (&SessionKey, i64),
        seq: i64,
        at: i64,
        forgotten: Forgotten,
    ) -> rusqlite::Result<()> {
        let up_to = match forgotten {
            Forgotten::Past | Forgotten::Conversation => seq,
            Forgotten::UpTo(up_to) => integer(up_to.0).min(seq),
        };
        self.cached(
            "UPDATE sessions SET cleared = max(cleared, ?1), updated = max(updated, ?2) WHERE id = ?3",
        )?
        .execute([up_to, at, row])?;
        // What is remembered is what ended after `cleared` or has not; where that begins spares a look
        // at all that was forgotten.
        self.cached(
            "UPDATE sessions SET kept_from = max(kept_from, min(
                 (SELECT coalesce(min(prompted), ?1) FROM runs INDEXED BY runs_unfinished
                  WHERE session = ?2 AND ended IS NULL),
                 (SELECT coalesce(min(prompted), ?1) FROM runs INDEXED BY runs_past
                  WHERE session = ?2 AND progress IN (0, 1, 2, 3) AND ended > sessions.cleared)))
             WHERE id = ?2",
        )?
        .execute([seq, row])?;
        self.cached(
            "UPDATE sessions SET messages = (SELECT coalesce(sum(r.messages), 0) FROM runs r
                 WHERE r.session = ?1 AND r.prompted >= sessions.kept_from
                     AND (r.ended IS NULL OR r.ended > sessions.cleared))
             WHERE id = ?1",
        )?
        .execute([row])?;
        if !matches!(forgotten, Forgotten::UpTo(_)) {
            self.cached("UPDATE sessions SET title = '', preview = '' WHERE id = ?")?.execute([row])?;
        }
        if forgotten == Forgotten::Conversation {
            self.cached(
                "UPDATE sessions SET reset = ?1, outcome = 0,
                     input_before = input_tokens, output_before = output_tokens,
                     cache_read_before = cache_read_tokens, cache_write_before = cache_write_tokens,
                     cost_before = cost
                 WHERE id = ?2",
            )?
            .execute([seq, row])?;
            let created = self
                .cached("SELECT created FROM sessions WHERE id = ?")?
                .query_row([row], |row| row.number(0))?;
            self.cached("UPDATE sessions SET conversation = ? WHERE id = ?")?
                .execute(params![session.conversation_id(created, Seq(number(seq))), row])?;
        }
        Ok(())
    }

    /// Removes a session with its log, its runs and their idempotency keys; what it cost stays. The rows
    /// of its log go a few at a time, after this. Where `unused_since` is given it must not have been used
    /// after that.
    pub(in crate::store) fn delete(
        &mut self,
        Deletion { session, unused_since }: &Deletion,
    ) -> Result<(), Failure> {
        let Some(state) = self.session(session, 0)? else {
            return Err(ErrorCode::NotFound.error(format!("no such session: {session}")).into());
        };
        if self.runs.values().any(|open| open.session == state.row) {
            return Err(ErrorCode::Conflict.error(format!("session {session} has runs that go on")).into());
        }
        if let Some(since) = *unused_since {
            let updated: i64 = self
                .cached("SELECT updated FROM sessions WHERE id = ?")?
                .query_row([state.row], |row| row.get(0))?;
            if updated > time(since) {
                return Err(ErrorCode::Conflict.error(format!("session {session} was used")).into());
            }
        }
        for sql in [
            "INSERT INTO deleted_sessions (session) VALUES (?)",
            "DELETE FROM idempotency WHERE run IN (SELECT id FROM runs WHERE session = ?)",
            "DELETE FROM runs WHERE session = ?",
            "DELETE FROM sessions WHERE id = ?",
        ] {
            self.cached(sql)?.execute([state.row])?;
        }
        self.forget_scratchpads(state.row)?;
        self.sessions.remove(session);
        self.touched.insert(state.owner);
        self.room.has_deleted = true;
        self.figures.deletes.store(true, Relaxed);
        Ok(())
    }

    /// Remembers how far a session is; in the database only where `only_text` does not spare it:
    /// the head is then found from the text.
    fn advance(&mut self, session: &SessionKey, state: State, only_text: bool) -> rusqlite::Result<()> {
        if !only_text {
            let (head, reserved) = (integer(state.head), integer(state.reserved));
            // A session that only reserved numbers was not written to: the reserve still holds.
            let opened = if state.opened == self.opened { state.opened } else { 0 };
            self.cached(
                "UPDATE sessions SET head = ?, reserved = ?, opened = ?, bytes = bytes + ? WHERE id = ?",
            )?
            .execute(params![head, reserved, opened, self.grown, state.row])?;
            if self.grown > 0 {
                self.touched.insert(state.owner.clone());
            }
        }
        match self.sessions.get_mut(session) {
            Some(known) => *known = state,
            None => {
                self.sessions.insert(session.clone(), state);
            }
        }
        Ok(())
    }

    fn insert_session(&mut self, key: &SessionKey, events: &[Logged]) -> Result<i64, Failure> {
        let owner = key.owner();
        let uuid = key.uuid();
        // Its owner could ask for one of another agent under it. By the index of owners all of theirs would be read.
        let taken = "SELECT 1 FROM sessions WHERE (uuid = ?1 OR uuid_before = ?1) AND +owner = ?2";
        if self.exists(taken, &[&uuid, owner.as_str()])? {
            let message = format!("no session can be made under {}: use another name", key.local());
            return Err(ErrorCode::Conflict.error(message).into());
        }
        let created = events.first().map_or(Timestamp::default(), |logged| logged.at);
        let conversation = key.conversation_id(created.as_millis(), Seq(0));
        // No number is given twice: there may be rows of it yet.
        let row: i64 = self
            .cached("UPDATE meta SET sessions = sessions + 1 RETURNING sessions")?
            .query_row([], |row| row.get(0))?;
        self.cached(
            "INSERT INTO sessions (id, key, owner, agent, created, updated, head, reserved, cleared, opened, uuid,
                 conversation)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5, 0, 0, 0, ?6, ?7, ?8)",
        )?
        .execute(params![
            row,
            key.as_str(),
            owner.as_str(),
            key.agent(),
            time(created),
            self.opened,
            uuid,
            conversation
        ])?;
        self.figures.sessions_made.fetch_add(1, Relaxed);
        Ok(row)
    }

    /// The session, from memory or from the database; `said` is the last number of its text that is under way, which
    /// the database does not know.
    fn session(&mut self, key: &SessionKey, said: u64) -> rusqlite::Result<Option<State>> {
        if let Some(state) = self.sessions.get(key) {
            return Ok(Some(state.clone()));
        }
        let found = self
            .cached("SELECT id, head, reserved, opened, owner FROM sessions WHERE key = ?")?
            .query_row([key.as_str()], |row| {
                Ok(State {
                    row: row.get(0)?,
                    owner: row.owner(4)?,
                    head: row.number(1)?.max(said),
                    reserved: row.number(2)?,
                    opened: row.get(3)?,
                })
            })
            .optional()?;
        if let Some(state) = &found {
            self.sessions.insert(key.clone(), state.clone());
        }
        Ok(found)
    }

    fn open_run(&self, run: &RunId) -> Result<OpenRun, Failure> {
        let open = self.runs.get(run).copied();
        open.ok_or_else(|| Failure::Refused(refused(format_args!("run {run} is not open"))))
    }

    fn exists(&self, sql: &str, values: &[&str]) -> rusqlite::Result<bool> {
        self.cached(sql)?.exists(params_from_iter(values))
    }
}

/// What the writer knows of the runs of the session in this row.
struct Known<'a> {
    writer: &'a Writer,
    session: i64,
}

impl check::Known for Known<'_> {
    type Error = Failure;

    fn is_open(&self, run: &RunId) -> bool {
        self.writer.runs.get(run).is_some_and(|open| open.session == self.session)
    }

    fn exists(&self, run: &RunId) -> Result<bool, Failure> {
        Ok(self.writer.exists("SELECT 1 FROM runs WHERE run = ?", &[run.as_str()])?)
    }

    fn has_key(&self, owner: &Owner, key: &str) -> Result<bool, Failure> {
        let sql = "SELECT 1 FROM idempotency WHERE owner = ? AND key = ?";
        Ok(self.writer.exists(sql, &[owner.as_str(), key])?)
    }

    fn has_number(&self, first: Seq, up_to: Seq) -> Result<bool, Failure> {
        // No two have the same numbers: the first that ends there or after it begins earliest.
        let found: Option<u64> = self
            .writer
            .cached("SELECT first FROM events WHERE session = ? AND seq >= ? ORDER BY seq LIMIT 1")?
            .query_row(params![self.session, integer(first.0)], |row| row.number(0))
            .optional()?;
        Ok(found.is_some_and(|found| found <= up_to.0))
    }
}

/// What a row counts that holds so many bytes.
fn row_bytes(held: usize) -> i64 {
    integer(ROW_BYTES + held as u64)
}

/// The beginning of what these texts say together, in one line.
fn beginning<'a>(texts: impl IntoIterator<Item = &'a str>, chars_max: usize) -> String {
    // More than enough, unless it begins with a desert.
    let some: String = texts.into_iter().flat_map(str::chars).take(4 * chars_max).collect();
    let mut line = some.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(chars_max) {
        line.truncate(end);
        line.push('…');
    }
    line
}
