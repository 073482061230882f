//! The calls of the run under way that wait for approval, and who decides.

use super::{Prompt, Session};
use crate::conversation::approval::{self, Decided, Decision, PendingCall, Verdict};
use crate::conversation::event::Event;
use crate::error::{Error, ErrorCode};
use crate::ids::{ApprovalId, CallId, Owner, RunId};
use crate::principal::Principal;
use crate::prompt::settings::Patch;
use crate::time::Timestamp;

impl Session {
    /// The calls that wait for approval.
    pub fn pending(&self) -> Vec<PendingCall> {
        let Some((prompt, turn)) = &self.run else { return Vec::new() };
        let pending = turn.waiting().map(|asked| PendingCall {
            id: ApprovalId::of(&prompt.run, &asked.call.id),
            session: self.key.clone(),
            owner: self.owner.clone(),
            run: prompt.run.clone(),
            prompted_by: prompt.owner.clone(),
            asked,
        });
        pending.collect()
    }

    /// Who prompted this run; the session's owner where that is forgotten.
    pub fn prompted_by(&self, run: &RunId) -> &Owner {
        let past = self.past.iter().rev().filter_map(|past| past.prompt.as_ref());
        let mut prompts = self.run.iter().map(|(prompt, _)| prompt).chain(past);
        prompts.find(|prompt| prompt.run == *run).map_or(&self.owner, |prompt| &prompt.owner)
    }

    /// When [`Self::expire`] or [`Self::time_out`] has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.undecided().into_iter().chain(self.open().filter_map(Prompt::deadline)).min()
    }

    /// When it is decided about a call that waits for approval.
    fn undecided(&self) -> Option<Timestamp> {
        self.run.as_ref().and_then(|(_, turn)| turn.deadline())
    }

    /// Decides about calls for which nobody did in time. While the session is stopping they wait: the
    /// next start finds them.
    pub fn expire(&mut self, now: Timestamp) {
        if self.draining || self.undecided().is_none_or(|deadline| deadline > now) {
            return;
        }
        for PendingCall { asked, .. } in self.pending() {
            if asked.deadline <= now {
                self.decided(now, &asked.call.id, Decision::TimedOut, None);
            }
        }
    }

    /// Takes a decision about a call that waits for approval. Gives its run and what is recorded.
    ///
    /// # Errors
    /// `NotFound` where there is no such call, `Conflict` where it was decided before or its time is
    /// over, `InvalidRequest` as [`Verdict::check`]'s, `Unavailable` where the daemon is stopping.
    pub fn decide(
        &mut self,
        now: Timestamp,
        id: &ApprovalId,
        verdict: Verdict,
        by: &Principal,
    ) -> Result<(RunId, Decided), Error> {
        verdict.check()?;
        if self.draining {
            return Err(ErrorCode::Unavailable
                .error("the daemon is stopping: the call keeps waiting; decide once it runs again"));
        }
        self.expire(now);
        let Some(pending) = self.pending().into_iter().find(|pending| pending.id == *id) else {
            return Err(match self.is_call(id) {
                true if by.sees(&self.owner) || approval::decides_all(by) => {
                    approval::decided_already(id, None)
                }
                _ => approval::no_such(id),
            });
        };
        if !approval::may_decide(by, &pending.prompted_by) {
            return Err(match approval::may_see(by, &pending) {
                true => approval::not_yours(id),
                false => approval::no_such(id),
            });
        }
        let PendingCall { run, asked, .. } = pending;
        let (call, tool) = (asked.call.id, asked.call.name);
        if verdict == Verdict::ApproveForSession && !self.settings.allowed.contains(&tool) {
            let mut settings = self.settings.clone();
            settings.allowed.push(tool.clone());
            // What can't be kept is not allowed: the call of now is no exception.
            let settings = settings.patched(&Patch::default())?;
            self.emit(now, None, Event::Configured(Box::new(settings)));
        }
        let decision = Decision::from(verdict);
        self.decided(now, &call, decision.clone(), Some(&by.name));
        Ok((run, Decided { call, tool, decision, by: Some(by.name.to_string()) }))
    }

    fn decided(&mut self, now: Timestamp, call: &CallId, decision: Decision, by: Option<&str>) {
        let Some((_, turn)) = &self.run else { return };
        for event in turn.decided(call, decision, by) {
            self.emit_run(now, event);
        }
    }

    /// Whether this is the id of a call of a run that is not forgotten.
    fn is_call(&self, id: &ApprovalId) -> bool {
        let past = self.past.iter().filter_map(|past| Some((past.prompt.as_ref()?, &past.turn)));
        let mut runs = past.chain(self.run.iter().map(|(prompt, turn)| (prompt, turn)));
        runs.any(|(prompt, turn)| turn.calls().any(|call| ApprovalId::of(&prompt.run, &call.id) == *id))
    }
}
