//! Which tool calls wait for approval, in all sessions.
//!
//! What waits is in the logs; this is where it is found by its id and listed. Every session enters what
//! waits in it when it wakes, and from then on what its log says, once it says so. A session in which
//! something waits stays awake, and one that was cut off is woken by the next start: so what is not
//! here does not wait.
//!
//! Of calls that were decided lately it is remembered that they were, for who decides too late by their
//! ids alone, or by the beginnings of them that lists show.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix::Recipient;
use clawmux_core::conversation::approval::{Decided, News, PendingCall, knows_of, may_see};
use clawmux_core::daemon::announcement::Announcement;
use clawmux_core::ids::{ApprovalId, Owner, SessionKey};
use clawmux_core::principal::Principal;
use clawmux_core::time::Timestamp;

use crate::hub::Announce;

/// So many decided ones are remembered.
const DECIDED_MAX: usize = 1024;

/// So many of them are remembered whole, with so many bytes of input together.
const PAST_MAX: usize = 100;
const PAST_BYTES_MAX: usize = 1024 * 1024;

/// The beginning of an id that finds one that was decided.
const PREFIX_CHARS_MIN: usize = 8;

/// A list has at most so many, with so many bytes of input together, but for the first. The others
/// are in it once these are decided.
const LIST_MAX: usize = 256;
const LIST_BYTES_MAX: usize = 256 * 1024;

/// All that wait; shared by the supervisor and its sessions.
#[derive(Clone, Debug, Default)]
pub struct Approvals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<Known>,
    hub: Option<Recipient<Announce>>,
}

#[derive(Debug, Default)]
struct Known {
    waiting: BTreeMap<ApprovalId, Arc<PendingCall>>,
    /// The oldest first.
    decided: VecDeque<Past>,
    /// The latest of them with all that was asked, the oldest first, each with the bytes of its input.
    past: VecDeque<(usize, News)>,
}

impl Known {
    fn keep(&mut self, news: News) {
        let bytes = news.pending().asked.call.input.to_string().len();
        self.past.push_back((bytes, news));
        while self.past.len() > PAST_MAX
            || self.past.iter().map(|(bytes, _)| bytes).sum::<usize>() > PAST_BYTES_MAX
        {
            self.past.pop_front();
        }
    }
}

/// What was decided lately.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// Its id, the whole of it.
    pub id: ApprovalId,
    /// Whose session it was in.
    pub owner: Owner,
    /// Who had prompted its run.
    pub prompted_by: Owner,
    /// What was decided, as [`Decision::word`](clawmux_core::conversation::approval::Decision::word) says it.
    pub what: &'static str,
}

impl Past {
    /// Whether this principal may know of it.
    pub fn is_known_to(&self, principal: &Principal) -> bool {
        knows_of(principal, (&self.owner, &self.prompted_by))
    }
}

/// What is known under an id.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// It waits.
    Waiting(Arc<PendingCall>),
    /// It was decided lately.
    Decided(Past),
    /// Neither.
    Nothing,
}

impl Approvals {
    /// None waits yet; the hub tells those who may decide.
    pub fn new(hub: Recipient<Announce>) -> Self {
        Self(Arc::new(Shared { hub: Some(hub), ..Shared::default() }))
    }

    /// What waits in a session that woke, in place of what was known of it.
    pub(super) fn woke(&self, session: &SessionKey, waiting: Vec<PendingCall>) {
        let mut known = self.lock();
        let before = known.waiting.len();
        known.waiting.retain(|id, pending| {
            pending.session != *session || waiting.iter().any(|waiting| waiting.id == *id)
        });
        if waiting.is_empty() && before == known.waiting.len() {
            return;
        }
        drop(known);
        for pending in waiting {
            self.asked(pending);
        }
    }

    /// This waits from now on: its log says so.
    pub(crate) fn asked(&self, pending: PendingCall) {
        let pending = Arc::new(pending);
        if self.lock().waiting.insert(pending.id.clone(), pending.clone()).is_none() {
            self.announce(News::Requested(pending));
        }
    }

    /// This waits no longer: its log says so.
    pub(crate) fn decided(&self, id: &ApprovalId, decided: &Decided, at: Timestamp) {
        let mut known = self.lock();
        let Some(pending) = known.waiting.remove(id) else { return };
        if known.decided.len() >= DECIDED_MAX {
            known.decided.pop_front();
        }
        let (owner, prompted_by) = (pending.owner.clone(), pending.prompted_by.clone());
        let past = Past { id: id.clone(), owner, prompted_by, what: decided.decision.word() };
        known.decided.push_back(past);
        let news = News::Resolved { pending, decided: decided.clone(), at };
        known.keep(news.clone());
        drop(known);
        self.announce(news);
    }

    /// What was decided lately of what the principal may know of, the latest first.
    pub fn past(&self, principal: &Principal, limit: usize) -> Vec<News> {
        let known = self.lock();
        let seen = known.past.iter().rev().map(|(_, news)| news);
        seen.filter(|news| may_see(principal, news.pending())).take(limit).cloned().collect()
    }

    /// What is known under this id; of what was decided also under the beginning of it.
    pub fn find(&self, id: &ApprovalId) -> Found {
        let known = self.lock();
        if let Some(pending) = known.waiting.get(id) {
            return Found::Waiting(pending.clone());
        }
        let is_enough = id.as_str().len() >= PREFIX_CHARS_MIN;
        let is_meant =
            |past: &&Past| past.id == *id || is_enough && past.id.as_str().starts_with(id.as_str());
        let past = known.decided.iter().rev().find(is_meant);
        past.map_or(Found::Nothing, |past| Found::Decided(past.clone()))
    }

    /// Those that the principal may know of, the longest waiting first.
    pub fn list(&self, principal: &Principal) -> Vec<Arc<PendingCall>> {
        let known = self.lock();
        let seen = known.waiting.values().filter(|pending| may_see(principal, pending));
        let mut list: Vec<_> = seen.cloned().collect();
        drop(known);
        list.sort_by(|a, b| (a.asked.asked, &a.id).cmp(&(b.asked.asked, &b.id)));
        list.truncate(LIST_MAX);
        let mut left = LIST_BYTES_MAX;
        let fitting = list.iter().enumerate().take_while(|(index, pending)| {
            let bytes = pending.asked.call.input.to_string().len();
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits || *index == 0
        });
        let fitting = fitting.count();
        list.truncate(fitting);
        list
    }

    /// Whether one of this session waits.
    pub(crate) fn wait_in(&self, session: &SessionKey) -> bool {
        self.lock().waiting.values().any(|pending| pending.session == *session)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lost where the hub is busy: what waits can be asked for.
    fn announce(&self, news: News) {
        if let Some(hub) = &self.0.hub {
            let _ = hub.try_send(Announce(Arc::new(Announcement::Approval(Arc::new(news)))));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing that can panic runs under it.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::conversation::approval::{ApprovalRequest, Decision};
    use clawmux_core::scope::{Scope, Scopes};
    use clawmux_core::tools::call::ToolCall;
    use serde_json::json;

    fn pending(session: &str, call: &str, at: u64, bytes: usize) -> PendingCall {
        let asked = Timestamp::from_millis(at);
        let input = json!({ "x": "x".repeat(bytes) });
        let call = ToolCall { id: call.into(), name: "rm".into(), input };
        let (run, owner) = (session.into(), Owner::Credential(session.into()));
        PendingCall {
            id: ApprovalId::of(&run, &call.id),
            session: SessionKey::new("main", "test", session, "main").unwrap(),
            prompted_by: owner.clone(),
            owner,
            run,
            asked: ApprovalRequest { call, asked, deadline: asked },
        }
    }

    fn who(name: &str, scope: Scope) -> Principal {
        Principal { owner: Owner::Credential(name.into()), ..Principal::new(name, Scopes::of(&[scope])) }
    }

    fn ids(list: &[Arc<PendingCall>]) -> Vec<&str> {
        list.iter().map(|pending| pending.asked.call.id.as_str()).collect()
    }

    #[test]
    fn everybody_is_listed_what_he_may_know_of_the_longest_waiting_first() {
        let approvals = Approvals::default();
        for pending in [pending("ada", "a", 3, 0), pending("ada", "b", 1, 0), pending("bob", "c", 2, 0)] {
            approvals.asked(pending);
        }
        assert_eq!(ids(&approvals.list(&who("ada", Scope::Read))), ["b", "a"]);
        assert_eq!(ids(&approvals.list(&who("eve", Scope::Approve))), ["b", "c", "a"]);
        assert!(approvals.list(&who("eve", Scope::Write)).is_empty());
    }

    #[test]
    fn a_list_is_bounded_and_the_first_is_in_it_however_large() {
        let approvals = Approvals::default();
        (0..LIST_MAX + 1).for_each(|n| approvals.asked(pending("ada", &n.to_string(), n as u64, 8)));
        assert_eq!(approvals.list(&Principal::local()).len(), LIST_MAX);
        let large = pending("bob", "large", 0, LIST_BYTES_MAX);
        approvals.asked(large);
        assert_eq!(ids(&approvals.list(&Principal::local())), ["large"]);
    }

    #[test]
    fn what_was_decided_is_remembered_for_a_while() {
        let approvals = Approvals::default();
        let decide = |pending: &PendingCall| {
            let (call, tool) = (pending.asked.call.id.clone(), pending.asked.call.name.clone());
            let decided = Decided { call, tool, decision: Decision::TimedOut, by: None };
            approvals.decided(&pending.id, &decided, Timestamp::default());
        };
        let first = pending("ada", "first", 0, 0);
        decide(&first);
        assert_eq!(approvals.find(&first.id), Found::Nothing, "it never waited here");
        approvals.asked(first.clone());
        assert_eq!(approvals.find(&first.id), Found::Waiting(Arc::new(first.clone())));
        decide(&first);
        let (owner, prompted_by) = (first.owner.clone(), first.prompted_by.clone());
        let past = Past { id: first.id.clone(), owner, prompted_by, what: "nobody decided in time" };
        let begin = ApprovalId::new(&first.id.as_str()[..12]);
        for id in [&first.id, &begin] {
            assert_eq!((approvals.find(id), approvals.len()), (Found::Decided(past.clone()), 0));
        }
        assert_eq!(approvals.find(&ApprovalId::new(&first.id.as_str()[..4])), Found::Nothing);
        for n in 0..DECIDED_MAX {
            let next = pending("ada", &n.to_string(), 0, 0);
            approvals.asked(next.clone());
            decide(&next);
        }
        assert_eq!(approvals.find(&first.id), Found::Nothing);
    }

    #[test]
    fn a_session_that_wakes_says_what_waits_in_it() {
        let approvals = Approvals::default();
        let (one, two, other) =
            (pending("ada", "1", 0, 0), pending("ada", "2", 1, 0), pending("bob", "3", 2, 0));
        approvals.asked(one.clone());
        approvals.asked(other);
        approvals.woke(&one.session, vec![two]);
        assert_eq!(ids(&approvals.list(&Principal::local())), ["2", "3"]);
        approvals.woke(&one.session, Vec::new());
        assert_eq!(ids(&approvals.list(&Principal::local())), ["3"]);
    }
}
