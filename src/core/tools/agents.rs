//! The built-in tool `agent_run`: an agent has another one do something, and waits for its answer.
//!
//! The other one works in a session of its own, for the owner of the asking session, and spends from the same
//! budget; `limits.agents` and `limits.agent_depth` bound how many there are. Its id follows from the call, so that a
//! call that a crash cut off waits for the agent it had begun. Where the call ends, so does the agent.

use serde_json::{Value, json};

use crate::agents::registry::ANSWER_BYTES_MAX;
use crate::agents::subagent::{AgentState, AgentStatus, TASK_BYTES_MAX};
use crate::ids::PluginName;
use crate::tools::call::ToolSpec;
use crate::tools::input::Input;

/// The name under which models call the tool.
pub const RUN: &str = "agent_run";

/// The longest name of an agent, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// What a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAgent {
    /// Who is to do it; none = the same agent.
    pub agent: Option<String>,
    /// What is to be done.
    pub prompt: String,
}

/// The tool, as a model is told of it.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: PluginName::from(RUN),
        description:
            "Has another agent do a task in a conversation of its own, waits until it is done, and gives its answer. \
            It knows nothing of this conversation. Several calls at once are done side by side."
                .into(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "prompt": { "type": "string", "description": "The task, with all that it takes to do it." },
                "agent": { "type": "string", "description": "The name of the agent; left out: one like you." },
            },
            "required": ["prompt"],
        }),
    }
}

impl RunAgent {
    /// Reads what a model wrote.
    ///
    /// # Errors
    /// What is wrong with it, for the model.
    pub fn read(input: &Value) -> Result<Self, String> {
        let input = Input::new(input, &["prompt", "agent"])?;
        let prompt = input.required("prompt", TASK_BYTES_MAX)?.to_owned();
        let agent = input.text("agent", NAME_BYTES_MAX)?.map(|name| name.trim().to_owned());
        Ok(Self { agent, prompt })
    }
}

/// What a model is told of an agent that is over.
///
/// # Errors
/// Why it has not done its task.
pub fn answered(status: &AgentStatus) -> Result<String, String> {
    let why = status.why.as_ref().map(ToString::to_string).unwrap_or_default();
    match status.state {
        AgentState::Completed => {}
        AgentState::Failed => return Err(format!("the agent failed: {why}")),
        _ => return Err(format!("the agent was stopped: {why}")),
    }
    let answer = status.answer.clone().unwrap_or_else(|| "(it said nothing)".into());
    let note = match answer.len() > ANSWER_BYTES_MAX {
        true => format!("\n[the rest of it is in session {}]", status.session),
        false => String::new(),
    };
    Ok(answer + &note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_wrote_is_read_or_refused_in_words() {
        let read = |input: Value| RunAgent::read(&input);
        let asked = read(json!({ "prompt": "look", "agent": " work " })).unwrap();
        assert_eq!((asked.prompt.as_str(), asked.agent.as_deref()), ("look", Some("work")));
        for (input, why) in [
            (json!({}), "prompt: missing"),
            (json!({ "prompt": "x".repeat(TASK_BYTES_MAX + 1) }), "prompt: longer than"),
            (json!({ "prompt": "x", "agent": 3 }), "agent: expected text"),
            (json!({ "prompt": "x", "owner": "eve" }), "unknown field \"owner\""),
        ] {
            let error = read(input.clone()).unwrap_err();
            assert!(error.contains(why), "{input}: {error}");
        }
    }
}
