//! Skills: folders with instructions for special tasks, in the open Agent Skills format.
//!
//! A skill is a folder with a `SKILL.md`: YAML between two lines `---` says its name and what it is for, the
//! Markdown behind it what to do; other files may stand beside it. The name and the description of each stand
//! in what a model is told first ([`block()`]); the rest it reads with the tool `read_skill`
//! ([`tools::skills`](crate::tools::skills)) when a task fits.
//!
//! What `allowed-tools` names is shown to people and grants nothing: an agent has the tools of its configuration.
//!
//! Deliberately absent: where skills are and how they are read.

mod block;
mod list;
mod parse;
mod yaml;

use std::path::PathBuf;

pub use block::{Block, block, bytes_max};
pub use list::{SkillList, SkillOfAgent, SkillRow, Standing, list};
pub use parse::{body, examine};

use crate::ids::AgentId;

/// The file that makes a folder a skill.
pub const FILE: &str = "SKILL.md";

/// The longest text of a skill that a model is given, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The most bytes from the beginning of a `SKILL.md` to the end of what stands before its instructions.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The most folders of a folder that are looked at.
pub const SKILLS_MAX: usize = 200;

/// What a skill says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// Its name, which is that of its folder.
    pub name: String,
    /// What it does, and when to use it.
    pub description: String,
    /// Under which terms it may be used.
    pub license: Option<String>,
    /// What it needs where it is used.
    pub compatibility: Option<String>,
    /// The tools it would use.
    pub allowed_tools: Option<String>,
}

/// Something that is wrong with a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line of `SKILL.md`, from 1; none where it is about the whole.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub message: String,
    /// Whether the skill can't be used for it.
    pub is_fatal: bool,
}

/// A folder that is or should be a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The folder.
    pub folder: PathBuf,
    /// The skill; none where it can't be used.
    pub skill: Option<Skill>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

/// Where the skills of an agent are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSkills {
    /// The agent.
    pub agent: AgentId,
    /// Folders of skills and single skills; of two of one name the first counts.
    pub folders: Vec<PathBuf>,
    /// Whether its tools name `skills`: it knows of none otherwise.
    pub is_granted: bool,
    /// The longest [`block()`] that it is told.
    pub bytes_max: usize,
}

impl Problem {
    /// What keeps a skill from being used.
    pub fn fatal(line: Option<usize>, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), is_fatal: true }
    }

    /// In words, with the file and the line it is about.
    pub fn in_words(&self) -> String {
        match self.line {
            Some(line) => format!("{FILE}:{line}: {}", self.message),
            None => self.message.clone(),
        }
    }
}

impl Found {
    /// The name of its folder.
    pub fn folder_name(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// The skills that can be used, by name: of several of one name the first.
pub fn usable(found: &[Found]) -> Vec<(&Skill, &Found)> {
    let mut usable: Vec<(&Skill, &Found)> = Vec::new();
    for (skill, found) in found.iter().filter_map(|found| Some((found.skill.as_ref()?, found))) {
        if !usable.iter().any(|(known, _)| known.name == skill.name) {
            usable.push((skill, found));
        }
    }
    usable.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    usable
}
