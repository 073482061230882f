//! What bounds the length of an answer: told where it was cut there, so that it is known what to change.

use clawmux_core::ids::AgentId;

/// What allows an answer no more tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputBound {
    /// The configuration of its agent.
    Agent(AgentId),
    /// The model writes no more, or no more fits beside what it reads.
    Model,
    /// What the budgets leave.
    Budgets,
}

impl OutputBound {
    /// That the answer was cut at so many tokens.
    pub(super) fn cut(&self, tokens: u32) -> String {
        let why = match self {
            Self::Agent(agent) => format!("agents.{agent}.max_tokens"),
            Self::Model => "the model's own limit".to_owned(),
            Self::Budgets => "the budgets leave no more".to_owned(),
        };
        format!("the answer was cut at {tokens} tokens, the most it may have ({why})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cut_an_answer_is_named() {
        for (bound, why) in [
            (OutputBound::Agent("main".into()), "agents.main.max_tokens"),
            (OutputBound::Model, "the model's own limit"),
            (OutputBound::Budgets, "the budgets leave no more"),
        ] {
            let said = format!("the answer was cut at 7 tokens, the most it may have ({why})");
            assert_eq!(bound.cut(7), said);
        }
    }
}
