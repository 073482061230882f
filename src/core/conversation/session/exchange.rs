//! What was said in a run that is over, to be learned from.

use super::Session;
use super::fold::Past;
use crate::ids::RunId;
use crate::learning::Exchange;

/// How the idempotency keys of prompts begin that the daemon itself sends: for jobs, for agents that work for a
/// session, and for messages of channels.
const OF_THE_DAEMON: [&str; 3] = ["job:", "agent:", "inbox "];

impl Session {
    /// What was said in this run, as far as something may be learned from it: its prompt, where whom the session
    /// belongs to sent it, and its answer, where no tool was called and nothing attached: an answer may repeat what
    /// those say.
    pub fn exchange(&self, run: &RunId) -> Option<Exchange> {
        let of = |past: &&Past| past.prompt.as_ref().is_some_and(|prompt| prompt.run == *run);
        let past = self.past.iter().rev().find(of)?;
        let prompt = past.prompt.as_ref()?;
        let is_told = |key: &String| OF_THE_DAEMON.iter().any(|start| key.starts_with(start));
        if prompt.owner != self.owner || prompt.idempotency_key.as_ref().is_some_and(is_told) {
            return None;
        }
        let (said, _) = past.turn.text();
        let is_of_others = !prompt.attachments.is_empty() || past.turn.calls().next().is_some();
        let answer = if is_of_others { "" } else { said.as_str() };
        Some(Exchange::new(&prompt.content, answer))
    }
}
