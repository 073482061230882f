//! The tools that need no plugin, and the groups by which agents are granted them.
//!
//! An agent has those that its `tools` name by their group. `read_result` needs no grant: it is offered where
//! there is something to read on in. `send_message` is offered in every run over xeno's socket besides.

use super::call::ToolSpec;
use super::{agents, jobs, long_result, memory, messenger, sessions, skills};

/// Built-in tools that are granted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToolGroup {
    /// What is remembered for the owner of the session: search it, and add to it.
    Memory,
    /// The other conversations of that owner.
    Sessions,
    /// What is done at set times for that owner.
    Jobs,
    /// Other agents, which work for the session.
    Agents,
    /// The skills in the agent's folders: it is told which there are, and reads them.
    Skills,
}

impl ToolGroup {
    /// All groups.
    pub const ALL: [Self; 5] = [Self::Memory, Self::Sessions, Self::Jobs, Self::Agents, Self::Skills];

    /// Its name among the tools of an agent.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sessions => "sessions",
            Self::Jobs => "jobs",
            Self::Agents => "agents",
            Self::Skills => "skills",
        }
    }

    /// The group of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// The names of its tools.
    pub const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &[memory::SEARCH, memory::SAVE],
            Self::Sessions => &[messenger::NAME, sessions::LIST, sessions::READ],
            Self::Jobs => &[jobs::ADD, jobs::LIST, jobs::REMOVE],
            Self::Agents => &[agents::RUN],
            Self::Skills => &[skills::READ],
        }
    }

    /// Its tools, as a model is told of them that may speak over these channels.
    pub fn specs(self, channels: &[String]) -> Vec<ToolSpec> {
        match self {
            Self::Memory => vec![memory::search_spec(), memory::save_spec()],
            Self::Sessions => std::iter::once(messenger::spec(channels)).chain(sessions::specs()).collect(),
            Self::Jobs => jobs::specs(),
            Self::Agents => vec![agents::spec()],
            Self::Skills => vec![skills::spec()],
        }
    }
}

/// The names of all tools that are built in.
pub fn names<'a>() -> impl Iterator<Item = &'a str> {
    let granted = ToolGroup::ALL.into_iter().flat_map(|group| group.tools().iter().map(|name| *name as &str));
    granted.chain([long_result::NAME])
}

/// Whether this is the name of a tool that is built in: no plugin has it.
pub fn is_built_in(name: &str) -> bool {
    names().any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_of_its_own_and_says_all_of_its_tools() {
        for group in ToolGroup::ALL {
            assert_eq!(ToolGroup::from_name(group.name()), Some(group));
            assert!(!is_built_in(group.name()), "{} is a tool", group.name());
            let specs = group.specs(&[]);
            let told: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!(told, group.tools());
            for spec in &specs {
                assert_eq!(spec.input_schema["type"], "object", "{}", spec.name);
                assert!(spec.description.len() > 20, "{}", spec.name);
            }
        }
        assert!(is_built_in(long_result::NAME) && !is_built_in("echo"));
    }
}
