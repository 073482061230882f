//! What a client makes of the events of one run.
//!
//! Every event is held against the run's script as it comes: a text that is not the next of its
//! step, a call that was told twice, a result of no open call, anything behind the end.

use serde_json::Value;

use super::plan::{AGAIN, Call, Outcome, Script};

/// One run, as told so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    pub steps: Vec<Told>,
    /// How often a step started anew.
    pub restarts: usize,
    usages: usize,
    pub error: Option<String>,
    pub done: bool,
}

/// One step, as told so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub text: String,
    pub calls: Vec<String>,
    /// The outcomes of its calls, in the order of the calls.
    pub results: Vec<Option<Outcome>>,
}

impl Told {
    fn is_over(&self) -> bool {
        !self.calls.is_empty() && self.results.iter().all(Option::is_some)
    }

    /// What the next answer is told of.
    fn heard(&self) -> Vec<Outcome> {
        self.results.iter().flatten().copied().collect()
    }
}

impl Story {
    /// Takes in the next event.
    ///
    /// # Errors
    /// Why it can't be.
    pub fn take(&mut self, script: &Script, event: &str, data: &Value) -> Result<(), String> {
        if self.done {
            return Err("an event after done".into());
        }
        match event {
            "text" | "tool_use" | "restart" if self.usages > 0 || self.error.is_some() => {
                Err("more of the answer after its end".into())
            }
            "text" => {
                let text = data.as_str().ok_or("no text")?;
                self.step()?.text.push_str(text);
                let at = self.steps.len() - 1;
                let expected = self.expected(script, at)?;
                let said = &self.steps[at].text;
                if expected.starts_with(said) {
                    Ok(())
                } else {
                    Err(format!("step {at} says {said:?} instead of {expected:?}"))
                }
            }
            "tool_use" => {
                if self.steps.last().is_none_or(Told::is_over) {
                    self.step()?;
                }
                let at = self.steps.len() - 1;
                let (expected, wanted) = (self.expected(script, at)?, &script.steps[at].calls);
                let told = &mut self.steps[at];
                let call = wanted.get(told.calls.len()).ok_or("a call too many")?;
                if told.text != expected {
                    return Err(format!("a call after {:?} instead of {expected:?}", told.text));
                }
                if data["id"] != *call.id || data["name"] != call.tool || !is_input(&data["input"], call) {
                    return Err(format!("not the call {call:?}"));
                }
                told.calls.push(call.id.clone());
                told.results.push(None);
                Ok(())
            }
            "tool_result" => {
                let step = self.steps.len().checked_sub(1).ok_or("a result of nothing")?;
                let told = &mut self.steps[step];
                let open =
                    |(at, id): &(usize, &String)| data["tool_use_id"] == **id && told.results[*at].is_none();
                let at = told.calls.iter().enumerate().find(open).ok_or("a result of no open call")?.0;
                let result = outcome(&script.steps[step].calls[at], data)?;
                if told.calls.len() < script.steps[step].calls.len() {
                    return Err("a result before all calls of the answer".into());
                }
                told.results[at] = Some(result);
                Ok(())
            }
            "restart" => {
                self.restarts += 1;
                match self.steps.last_mut() {
                    Some(told) if told.calls.is_empty() => {
                        self.steps.pop();
                        Ok(())
                    }
                    Some(told) if !told.is_over() => Err("a restart within calls".into()),
                    _ => Ok(()),
                }
            }
            "usage" => {
                self.usages += 1;
                if self.usages == 1 { Ok(()) } else { Err("a second usage".into()) }
            }
            "error" => {
                let error = data.as_str().unwrap_or_default().to_owned();
                let before = self.error.replace(error);
                if self.usages == 1 && before.is_none() {
                    Ok(())
                } else {
                    Err("an error out of place".into())
                }
            }
            "done" => {
                self.done = true;
                if self.usages != 1 {
                    return Err("done without usage".into());
                }
                let last = self.steps.len().saturating_sub(1);
                let is_whole = self.steps.len() == script.steps.len()
                    && script.steps[last].calls.is_empty()
                    && self.steps[last].text == self.expected(script, last)?;
                if self.error.is_some() || is_whole {
                    Ok(())
                } else {
                    Err(format!("done before its end, at step {last}"))
                }
            }
            // The conversation has outgrown its context: what is asked from here on has a summary before it.
            "notice" if data["kind"] == "compacted" && self.usages == 0 => Ok(()),
            _ => Err(format!("an unknown event {event}: {data}")),
        }
    }

    /// Whether both are the same run: but for the last text of one that was interrupted, of which a client may
    /// have seen more than was kept.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_interrupted = self.error.as_deref().is_some_and(|error| error.starts_with("interrupted"));
        if self.error != other.error || !is_interrupted {
            return (&self.steps, &self.error) == (&other.steps, &other.error);
        }
        let none = Told::default();
        let count = self.steps.len().max(other.steps.len());
        (0..count).all(|at| {
            let of = |story: &'_ Self| story.steps.get(at).unwrap_or(&none).clone();
            let (one, two) = (of(self), of(other));
            let is_last = at + 1 == count && one.calls.is_empty() && two.calls.is_empty();
            one == two || (is_last && (one.text.starts_with(&two.text) || two.text.starts_with(&one.text)))
        })
    }

    /// The text that all of it amounts to, as the conversation keeps it: a blank line between steps.
    pub fn text(&self) -> String {
        let said = self.steps.iter().map(|told| told.text.as_str()).filter(|text| !text.is_empty());
        said.collect::<Vec<_>>().join("\n\n")
    }

    /// The step that text belongs to now.
    fn step(&mut self) -> Result<&mut Told, String> {
        match self.steps.last() {
            Some(told) if told.calls.is_empty() => {}
            Some(told) if !told.is_over() => return Err("the model speaks while calls are open".into()),
            _ => self.steps.push(Told::default()),
        }
        self.steps.last_mut().ok_or_else(|| "no step".into())
    }

    /// All that the model says in this step.
    fn expected(&self, script: &Script, step: usize) -> Result<String, String> {
        if step >= script.steps.len() {
            return Err(format!("a step too many: {step}"));
        }
        let heard = step.checked_sub(1).map(|before| self.steps[before].heard()).unwrap_or_default();
        Ok(script.says(step, &heard).concat())
    }
}

fn is_input(told: &Value, call: &Call) -> bool {
    serde_json::from_str::<Value>(&call.input).is_ok_and(|input| input == *told)
}

fn outcome(call: &Call, data: &Value) -> Result<Outcome, String> {
    let content = data["content"].as_str().unwrap_or_default();
    if data["is_error"] == true {
        return match Outcome::of_error(content) {
            Some(Outcome::Interrupted) if call.tool == AGAIN => {
                Err("what may be called again was not".into())
            }
            Some(outcome) => Ok(outcome),
            None => Err("the tool failed".into()),
        };
    }
    match serde_json::from_str::<Value>(content) {
        Ok(content) if is_input(&content, call) => Ok(Outcome::Counted),
        _ => Err("not the result of this call".into()),
    }
}
