//! All skills there are, for people: who is offered each, and what is wrong with it.

use std::path::{Path, PathBuf};

use super::{AgentSkills, Found, Problem, Skill, block, usable};
use crate::ids::AgentId;

/// All skills that some agent has in its folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillList {
    /// By folder, each once.
    pub skills: Vec<SkillRow>,
}

/// A skill, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillRow {
    /// Its name; that of its folder where it says none that can be used.
    pub name: String,
    /// Its folder; none where that is not for the caller to know.
    pub folder: Option<PathBuf>,
    /// What it says of itself; none where it can't be used.
    pub skill: Option<Skill>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
    /// The agents that have it in their folders.
    pub agents: Vec<SkillOfAgent>,
}

/// How an agent has a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillOfAgent {
    /// The agent.
    pub agent: AgentId,
    /// Whether it is told of it, and else why not.
    pub standing: Standing,
}

/// Whether an agent is told of a skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is.
    Offered,
    /// There is no room for it among the others.
    LeftOut,
    /// One of the same name counts instead.
    Hidden,
    /// Its tools don't name `skills`.
    NotGranted,
    /// It can't be used.
    Broken,
}

impl Standing {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::LeftOut => "left out",
            Self::Hidden => "hidden",
            Self::NotGranted => "not granted",
            Self::Broken => "broken",
        }
    }
}

impl SkillRow {
    /// How it fares with the agent with which it fares best.
    pub fn standing(&self) -> Standing {
        if self.skill.is_none() {
            return Standing::Broken;
        }
        let best = self.agents.iter().map(|of| of.standing).min();
        best.unwrap_or(Standing::NotGranted)
    }
}

impl SkillList {
    /// It for whoever may read, but is no operator: nothing of the disk, and of what is wrong nothing.
    #[must_use]
    pub fn for_anybody(mut self) -> Self {
        self.skills.retain(|row| row.skill.is_some());
        for row in &mut self.skills {
            row.folder = None;
            row.problems.clear();
        }
        self
    }

    /// What keeps skills from being used that some agent is granted, each with its folder.
    pub fn complaints(&self) -> Vec<String> {
        let is_granted = |row: &&SkillRow| row.agents.iter().any(|of| of.standing != Standing::NotGranted);
        let told = |row: &SkillRow| {
            let folder = row.folder.as_deref().unwrap_or(Path::new(&row.name)).display().to_string();
            let fatal = row.problems.iter().filter(|problem| problem.is_fatal);
            fatal.map(|problem| format!("skill {folder}: {}", problem.in_words())).collect::<Vec<_>>()
        };
        self.skills.iter().filter(is_granted).flat_map(told).collect()
    }
}

/// The list of what was found for each agent.
pub fn list<'a>(agents: impl IntoIterator<Item = (&'a AgentSkills, &'a [Found])>) -> SkillList {
    let mut rows: Vec<SkillRow> = Vec::new();
    for (agent, all) in agents {
        let usable = usable(all);
        let left_out = block(usable.iter().map(|(skill, _)| *skill), agent.bytes_max).left_out;
        for found in all {
            let standing = match &found.skill {
                _ if !agent.is_granted => Standing::NotGranted,
                None => Standing::Broken,
                Some(_) if !usable.iter().any(|(_, used)| std::ptr::eq(*used, found)) => Standing::Hidden,
                Some(skill) if left_out.contains(&skill.name.as_str()) => Standing::LeftOut,
                Some(_) => Standing::Offered,
            };
            let of = SkillOfAgent { agent: agent.agent.clone(), standing };
            match rows.iter_mut().find(|row| row.folder.as_ref() == Some(&found.folder)) {
                Some(row) => row.agents.push(of),
                None => rows.push(SkillRow {
                    name: found.skill.as_ref().map_or(found.folder_name(), |skill| &skill.name).to_owned(),
                    folder: Some(found.folder.clone()),
                    skill: found.skill.clone(),
                    problems: found.problems.clone(),
                    agents: vec![of],
                }),
            }
        }
    }
    rows.sort_by(|a, b| (&a.name, &a.folder).cmp(&(&b.name, &b.folder)));
    SkillList { skills: rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(folder: &str, text: &str) -> Found {
        let folder = PathBuf::from(folder);
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let (skill, problems) = super::super::examine(&name, text);
        Found { folder, skill, problems }
    }

    fn agent(name: &str, is_granted: bool) -> AgentSkills {
        AgentSkills { agent: name.into(), folders: Vec::new(), is_granted, bytes_max: 1024 }
    }

    #[test]
    fn each_is_listed_once_with_how_every_agent_has_it() {
        let text = |name: &str| format!("---\nname: {name}\ndescription: d\n---\nx");
        let long = format!("---\nname: long\ndescription: {}\n---\nx", "d".repeat(1000));
        let all = [
            found("/own/pdf", &text("pdf")),
            found("/home/pdf", &text("pdf")),
            found("/home/bad", "x"),
            found("/home/long", &long),
        ];
        let (main, other) = (agent("main", true), agent("other", false));
        let listed = list([(&main, &all[..]), (&other, &all[1..])]);
        let standings: Vec<(&str, Standing, usize)> =
            listed.skills.iter().map(|row| (&*row.name, row.standing(), row.agents.len())).collect();
        assert_eq!(
            standings,
            [
                ("bad", Standing::Broken, 2),
                ("long", Standing::LeftOut, 2),
                ("pdf", Standing::Hidden, 2),
                ("pdf", Standing::Offered, 1),
            ]
        );
        let complaints = listed.complaints();
        assert!(
            complaints.len() == 1 && complaints[0].starts_with("skill /home/bad: SKILL.md:1: "),
            "{complaints:?}"
        );
        let seen = listed.for_anybody();
        assert!(seen.skills.iter().all(|row| row.folder.is_none() && row.skill.is_some()));
        assert_eq!(seen.skills.len(), 3);
    }
}
