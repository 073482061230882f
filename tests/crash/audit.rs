//! The last account: what the clients know, the log told anew, the history and the traces of the tools must
//! agree.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::follower::tell_anew;
use crate::line::{Line, Stop};
use crate::plan::{AGAIN, Outcome, content};
use crate::record::Record;
use crate::tool::Effects;

/// What there was to count.
#[derive(Debug, Default)]
pub struct Counts {
    pub prompts: usize,
    pub completed: usize,
    pub aborted: usize,
    pub interrupted_runs: usize,
    pub restarts: usize,
    pub calls: usize,
    pub interrupted_calls: usize,
    /// Calls for which a tool was too busy.
    pub refused_calls: usize,
    /// Calls that were begun, and those of them that were begun again.
    pub effects: usize,
    pub repeated_calls: usize,
}

/// Holds a session's record against what the daemon says now.
pub async fn session(line: &mut Line, record: &Rc<RefCell<Record>>) -> Result<(), Stop> {
    let telling = tell_anew(line, record).await?;
    let params = {
        let mut params = record.borrow().session();
        params["limit"] = json!(1000);
        params
    };
    let history = line.call("chat.history", params).await?;
    let record = record.borrow();
    let Record { account, prompts, followed, .. } = &*record;
    if telling.runs.len() != followed.runs.len() || telling.runs.len() != prompts.len() {
        return Err(format!("{account}: {} runs of {} prompts", telling.runs.len(), prompts.len()).into());
    }
    let mut messages = Vec::new();
    for ((prompt, run), anew) in prompts.iter().zip(&followed.runs).zip(&telling.runs) {
        let name = &prompt.name;
        let Some(told) = &prompt.told else { return Err(format!("{name} has no end").into()) };
        if prompt.accepted.as_ref() != Some(&(run.id.clone(), run.seq)) {
            return Err(
                format!("{name}: accepted as {:?}, run {} at {}", prompt.accepted, run.id, run.seq).into()
            );
        }
        if !run.story.is_like(told)
            || !run.story.is_like(&anew.story)
            || (&anew.id, anew.seq) != (&run.id, run.seq)
        {
            let [told, anew, run] = [told, &anew.story, &run.story];
            return Err(format!("{name}:\nasked {told:?}\nfollowed {run:?}\nanew {anew:?}").into());
        }
        messages.push(("user", content(&run.name), run.id.clone()));
        if !anew.story.text().is_empty() {
            messages.push(("assistant", anew.story.text(), run.id.clone()));
        }
    }
    for (was, is) in followed.lasting().iter().zip(&telling.lasting()) {
        if was != is {
            return Err(format!("{account}: followed {was:?}, and told anew {is:?}").into());
        }
    }
    let kept = history["messages"].as_array().cloned().unwrap_or_default();
    let kept: Vec<_> = kept.iter().map(message).collect();
    let expected = &messages[messages.len().saturating_sub(kept.len())..];
    if kept.is_empty() || kept != expected {
        return Err(format!("{account}: history {kept:?}\ninstead of {expected:?}").into());
    }
    Ok(())
}

fn message(message: &Value) -> (&str, String, String) {
    let text = |field: &str| message[field].as_str().unwrap_or_default();
    (text("role"), text("content").to_owned(), text("run").to_owned())
}

/// Holds all records against the traces that the tools left.
///
/// # Errors
/// Where a tool was called that nobody knows of, or twice.
pub fn tools(records: &[Rc<RefCell<Record>>], effects: &Effects) -> Result<Counts, String> {
    let mut counts = Counts { effects: effects.len(), ..Counts::default() };
    let mut known = BTreeMap::new();
    for record in records {
        let record = record.borrow();
        for (prompt, run) in record.prompts.iter().zip(&record.followed.runs) {
            counts.prompts += 1;
            counts.restarts += run.story.restarts;
            match run.story.error.as_deref() {
                Some("aborted") => counts.aborted += 1,
                Some(_) => counts.interrupted_runs += 1,
                None => counts.completed += 1,
            }
            for (told, step) in run.story.steps.iter().zip(&prompt.script.steps) {
                for (result, call) in told.results.iter().zip(&step.calls) {
                    known.insert(call.id.clone(), (call.tool, *result));
                }
            }
        }
    }
    for (call, lives) in effects {
        let Some((tool, _)) = known.get(call) else {
            return Err(format!("{call} was made and not journaled"));
        };
        // Again means: after the kill that cut it off.
        let mut distinct = lives.clone();
        distinct.dedup();
        if distinct.len() < lives.len() || (lives.len() > 1 && *tool != AGAIN) {
            return Err(format!("{call} of {tool} was made in the lives {lives:?}"));
        }
        counts.repeated_calls += usize::from(lives.len() > 1);
    }
    for (call, (tool, result)) in &known {
        counts.calls += 1;
        counts.interrupted_calls += usize::from(*result == Some(Outcome::Interrupted));
        counts.refused_calls += usize::from(*result == Some(Outcome::Refused));
        let was_made = effects.contains_key(call);
        if let Some(why) = result.and_then(|result| result.contradicts(tool, was_made)) {
            return Err(format!("{call} of {tool} {why}"));
        }
    }
    Ok(counts)
}
