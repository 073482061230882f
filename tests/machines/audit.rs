//! The last account: what the clients know, what each machine tells of each session, and the traces of the tools
//! must agree.

use std::collections::{BTreeMap, HashMap};

use super::book::{Book, Prompt};
use super::plan::{AGAIN, Outcome, content};
use super::telling::{Run, Telling};
use super::tool::Effects;

/// A message of a conversation: who, what, and of which run.
pub type Said = (String, String, String);

/// What a machine tells of a session.
pub struct Told {
    pub telling: Telling,
    pub history: Vec<Said>,
}

/// What there was to count.
#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    pub prompts: usize,
    /// Those that were asked in two sessions at once.
    pub shared: usize,
    pub restarts: usize,
    pub calls: usize,
    pub interrupted_calls: usize,
    /// Calls for which a tool was too busy.
    pub refused_calls: usize,
    /// Calls that were made, and those of them that were made again, by the tool for which that is no harm.
    pub effects: usize,
    pub repeated_calls: usize,
}

/// Holds what the clients know against what each machine tells of each session, by session and machine.
///
/// # Errors
/// The first thing that does not agree.
pub fn sessions(book: &Book, told: &[Vec<Told>]) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut runs = HashMap::<&str, &Run>::new();
    for (session, told) in told.iter().enumerate() {
        let name = format!("s{session}");
        let (first, others) = told.split_first().ok_or("no machine told anything")?;
        for (machine, other) in (1..).zip(others) {
            same_telling(&first.telling, &other.telling)
                .map_err(|why| format!("{name}: machines 0 and {machine} tell {why}"))?;
            if first.history != other.history {
                let (ours, theirs) = (&first.history, &other.history);
                return Err(format!("{name}: histories of machines 0 and {machine}:\n{ours:?}\n{theirs:?}"));
            }
        }
        history(&first.telling, &first.history).map_err(|why| format!("{name}: {why}"))?;
        for run in &first.telling.runs {
            let is_known = book.of_session[session]
                .iter()
                .any(|prompt| book.prompts[*prompt].accepted.as_ref() == Some(&(run.id.clone(), run.seq)));
            if !is_known {
                return Err(format!("{name}: run {} at {} was acknowledged to nobody", run.id, run.seq));
            }
            if runs.insert(&run.id, run).is_some() {
                return Err(format!("{name}: run {} is there twice", run.id));
            }
        }
    }
    for prompt in &book.prompts {
        let Prompt { name, accepted, told, sessions, .. } = prompt;
        let (run, _) = accepted.as_ref().ok_or_else(|| format!("{name} was not acknowledged"))?;
        let told = told.as_ref().ok_or_else(|| format!("{name} has no end"))?;
        let run = runs.remove(run.as_str()).ok_or_else(|| format!("{name} is lost: run {run}"))?;
        if !run.story.done || !run.story.is_like(told) {
            return Err(format!("{name}:\nasked {told:?}\nanew {:?}", run.story));
        }
        counts.prompts += 1;
        counts.shared += usize::from(sessions.len() > 1);
        counts.restarts += run.story.restarts;
    }
    match runs.keys().next() {
        Some(run) => Err(format!("run {run} is one that nobody asked for, or the second one of a prompt")),
        None => Ok(counts),
    }
}

fn same_telling(ours: &Telling, theirs: &Telling) -> Result<(), String> {
    if let Some((ours, theirs)) = ours.events.iter().zip(&theirs.events).find(|(a, b)| a != b) {
        return Err(format!("{ours:?}\nand {theirs:?}"));
    }
    let ends = [ours, theirs].map(|telling| (telling.events.len(), telling.last));
    if ends[0] == ends[1] {
        Ok(())
    } else {
        Err(format!("{} events up to {}, and {} up to {}", ends[0].0, ends[0].1, ends[1].0, ends[1].1))
    }
}

/// Holds a history against the log: every message is there, once, in its place.
fn history(telling: &Telling, history: &[Said]) -> Result<(), String> {
    let mut expected: Vec<Said> = Vec::new();
    for run in &telling.runs {
        expected.push(("user".into(), content(&run.name), run.id.clone()));
        if !run.story.text().is_empty() {
            expected.push(("assistant".into(), run.story.text(), run.id.clone()));
        }
    }
    let place = |said: &[Said]| {
        let mut runs: Vec<Said> = said.to_vec();
        // An answer stands where it ended, which may be after the next prompt.
        runs.sort_by_key(|(_, _, run)| telling.runs.iter().position(|known| known.id == *run));
        runs
    };
    let newest = &expected[expected.len().saturating_sub(history.len())..];
    if history.is_empty() != expected.is_empty() || place(history) != newest {
        return Err(format!("history {history:?}\ninstead of {newest:?}"));
    }
    Ok(())
}

/// Holds what the clients were told of calls against the traces that the tools left.
///
/// # Errors
/// Where a tool was called that nobody knows of, or twice.
pub fn tools(book: &Book, effects: &Effects, counts: &mut Counts) -> Result<(), String> {
    let mut known = BTreeMap::new();
    for prompt in &book.prompts {
        let steps = prompt.told.iter().flat_map(|story| &story.steps);
        for (told, step) in steps.zip(&prompt.script.steps) {
            for (result, call) in told.results.iter().zip(&step.calls) {
                known.insert(call.id.as_str(), (call.tool, *result));
            }
        }
    }
    counts.effects = effects.len();
    for (call, lives) in effects {
        let Some((tool, _)) = known.get(call.as_str()) else {
            return Err(format!("{call} was made and not journaled"));
        };
        if lives.len() > 1 && *tool != AGAIN {
            return Err(format!("{call} of {tool} was made in the lives {lives:?}"));
        }
        counts.repeated_calls += usize::from(lives.len() > 1);
    }
    for (call, (tool, result)) in &known {
        counts.calls += 1;
        counts.interrupted_calls += usize::from(*result == Some(Outcome::Interrupted));
        counts.refused_calls += usize::from(*result == Some(Outcome::Refused));
        let was_made = effects.contains_key(*call);
        if let Some(why) = result.and_then(|result| result.contradicts(tool, was_made)) {
            return Err(format!("{call} of {tool} {why}"));
        }
    }
    Ok(())
}

/// What a follower was told must be what the log tells, but for text that was never kept.
///
/// # Errors
/// Where it is not.
pub fn followed(followed: &Telling, anew: &Telling) -> Result<(), String> {
    let (was, is) = (followed.lasting(), anew.lasting());
    match was.iter().zip(&is).find(|(was, is)| was != is) {
        Some((was, is)) => Err(format!("followed {was:?}, and told anew {is:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan::{ONCE, Script};
    use super::*;

    const SEED: u64 = 5;

    /// What is kept of one session, as a machine would tell it.
    #[derive(Clone, Default)]
    struct Log(Vec<Value>);

    impl Log {
        fn add(&mut self, run: &str, event: &str, data: Value) {
            let seq = self.0.len() + 1;
            self.0.push(json!({"run": run, "event": event, "data": data, "seq": seq}));
        }

        /// A whole run of a prompt.
        fn run(&mut self, name: &str, run: &str) -> (String, u64) {
            let script = Script::of(SEED, name);
            self.add(run, "prompt", json!(content(name)));
            let seq = self.0.len() as u64;
            let mut heard = Vec::new();
            for (at, step) in script.steps.iter().enumerate() {
                let text = script.says(at, &heard).concat();
                if !text.is_empty() {
                    self.add(run, "text", json!(text));
                }
                for call in &step.calls {
                    let input: Value = serde_json::from_str(&call.input).unwrap();
                    self.add(run, "tool_use", json!({"id": call.id, "name": call.tool, "input": input}));
                }
                for call in &step.calls {
                    self.add(run, "tool_result", json!({"tool_use_id": call.id, "content": call.input}));
                }
                heard = vec![Outcome::Counted; step.calls.len()];
            }
            self.add(run, "usage", json!({}));
            self.add(run, "done", Value::Null);
            (run.to_owned(), seq)
        }

        fn telling(&self) -> Result<Telling, String> {
            let mut telling = Telling::default();
            for frame in &self.0 {
                telling.take(SEED, |_, _| true, frame)?;
            }
            Ok(telling)
        }

        fn told(&self) -> Told {
            let telling = self.telling().unwrap();
            let mut history = Vec::new();
            for run in &telling.runs {
                history.push(("user".into(), content(&run.name), run.id.clone()));
                history.push(("assistant".into(), run.story.text(), run.id.clone()));
            }
            Told { telling, history }
        }
    }

    /// Two sessions with two prompts of their own each and one that was asked in both, on two machines.
    fn world() -> (Book, Vec<Log>) {
        let mut book = Book::new(SEED, 2);
        let mut logs = vec![Log::default(); 2];
        for (name, sessions) in
            [("a", vec![0]), ("b", vec![1]), ("c", vec![0, 1]), ("d", vec![0]), ("e", vec![1])]
        {
            let kept_in = sessions[0];
            let prompt = book.add(name.to_owned(), sessions);
            let (run, seq) = logs[kept_in].run(name, &format!("run of {name}"));
            book.accept(prompt, &run, seq).unwrap();
            let story = logs[kept_in].telling().unwrap().runs.pop().unwrap().story;
            book.tell(prompt, story).unwrap();
        }
        (book, logs)
    }

    fn told(logs: &[Log]) -> Vec<Vec<Told>> {
        logs.iter().map(|log| vec![log.told(), log.told()]).collect()
    }

    fn effects(book: &Book) -> Effects {
        let steps = book.prompts.iter().flat_map(|prompt| &prompt.script.steps);
        steps.flat_map(|step| &step.calls).map(|call| (call.id.clone(), vec![1])).collect()
    }

    #[test]
    fn what_is_right_passes() {
        let (book, logs) = world();
        let mut counts = sessions(&book, &told(&logs)).unwrap();
        assert_eq!((counts.prompts, counts.shared), (5, 1));
        tools(&book, &effects(&book), &mut counts).unwrap();
        assert!(counts.calls > 2, "{counts:?}");
    }

    #[test]
    fn a_prompt_that_is_lost_is_noticed() {
        let (mut book, mut logs) = world();
        logs[1] = Log::default();
        logs[1].run("b", "run of b");
        let why = sessions(&book, &told(&logs)).err().unwrap();
        assert!(why.contains("e is lost"), "{why}");
        book.prompts[4].accepted = None;
        let why = sessions(&book, &told(&logs)).err().unwrap();
        assert!(why.contains("not acknowledged"), "{why}");
    }

    #[test]
    fn a_prompt_that_has_no_end_is_noticed() {
        let (mut book, logs) = world();
        book.prompts[2].told = None;
        assert!(sessions(&book, &told(&logs)).err().unwrap().contains("no end"));
        let (book, mut logs) = world();
        logs[0].0.pop();
        assert!(sessions(&book, &told(&logs)).is_err());
    }

    #[test]
    fn a_prompt_that_is_there_twice_is_noticed() {
        let (book, mut logs) = world();
        logs[1].run("c", "another run of c");
        let why = sessions(&book, &told(&logs)).err().unwrap();
        assert!(why.contains("acknowledged to nobody"), "{why}");
        let (book, mut logs) = world();
        logs[1].0.clear();
        logs[1].run("c", "run of c");
        assert!(sessions(&book, &told(&logs)).is_err());
    }

    #[test]
    fn numbers_with_a_gap_or_twice_are_noticed() {
        let (_, logs) = world();
        let mut gap = logs[0].clone();
        gap.0.remove(2);
        gap.telling().err().unwrap();
        let mut double = logs[0].clone();
        double.0.insert(2, double.0[1].clone());
        double.telling().err().unwrap();
    }

    #[test]
    fn an_answer_that_is_not_the_prompts_is_noticed() {
        let (_, mut logs) = world();
        let text = logs[0].0.iter_mut().find(|frame| frame["event"] == "text").unwrap();
        text["data"] = json!("something else");
        logs[0].telling().err().unwrap();
    }

    #[test]
    fn machines_that_differ_are_noticed() {
        let (book, logs) = world();
        let mut all = told(&logs);
        all[1][1].telling.last += 1;
        assert!(sessions(&book, &all).err().unwrap().contains("machines 0 and 1"));
        let mut all = told(&logs);
        all[0][1].telling.events[1].data = json!("other");
        assert!(sessions(&book, &all).err().unwrap().contains("machines 0 and 1"));
        let mut all = told(&logs);
        all[0][1].history.pop();
        assert!(sessions(&book, &all).err().unwrap().contains("histories"));
    }

    #[test]
    fn a_history_without_a_message_or_with_one_twice_is_noticed() {
        let (book, logs) = world();
        let with = |change: fn(&mut Vec<Said>)| {
            let mut all = told(&logs);
            all[0].iter_mut().for_each(|told| change(&mut told.history));
            sessions(&book, &all)
        };
        with(|_| ()).unwrap();
        with(|history| drop(history.remove(2))).err().unwrap();
        with(|history| history.insert(2, history[2].clone())).err().unwrap();
        with(Vec::clear).err().unwrap();
    }

    #[test]
    fn a_call_that_was_made_twice_or_never_is_noticed() {
        let (book, _) = world();
        let all = effects(&book);
        let of = |tool: &str| {
            let steps = book.prompts.iter().flat_map(|prompt| &prompt.script.steps);
            steps.flat_map(|step| &step.calls).find(|call| call.tool == tool).unwrap().id.clone()
        };
        let with = |change: &dyn Fn(&mut Effects)| {
            let mut effects = all.clone();
            change(&mut effects);
            tools(&book, &effects, &mut Counts::default())
        };
        with(&|effects| effects.get_mut(&of(ONCE)).unwrap().push(1)).unwrap_err();
        with(&|effects| effects.get_mut(&of(ONCE)).unwrap().push(2)).unwrap_err();
        with(&|effects| effects.get_mut(&of(AGAIN)).unwrap().push(2)).unwrap();
        with(&|effects| drop(effects.remove(&of(ONCE)))).unwrap_err();
        with(&|effects| drop(effects.insert("unknown".to_owned(), vec![1]))).unwrap_err();
    }

    #[test]
    fn a_call_that_was_refused_and_made_is_noticed() {
        let (mut book, _) = world();
        let all = effects(&book);
        let once = book.prompts.iter_mut().find_map(|Prompt { script, told, .. }| {
            let mut steps = script.steps.iter().zip(&mut told.as_mut()?.steps);
            steps.find_map(|(step, told)| {
                let at = step.calls.iter().position(|call| call.tool == ONCE)?;
                Some((step.calls[at].id.clone(), &mut told.results[at]))
            })
        });
        let (call, result) = once.unwrap();
        *result = Some(Outcome::Refused);
        let mut counts = Counts::default();
        tools(&book, &all, &mut counts).unwrap_err();
        let without = all.into_iter().filter(|(made, _)| *made != call).collect();
        let mut counts = Counts::default();
        tools(&book, &without, &mut counts).unwrap();
        assert_eq!(counts.refused_calls, 1);
    }

    #[test]
    fn a_follower_who_was_told_otherwise_is_noticed() {
        let (_, logs) = world();
        let anew = logs[0].telling().unwrap();
        followed(&logs[0].telling().unwrap(), &anew).unwrap();
        let mut other = logs[0].telling().unwrap();
        other.events[1].data = json!("other");
        followed(&other, &anew).unwrap_err();
    }
}
