//! Skills on the disk: which there are in the folders of an agent, and their files.
//!
//! Whoever asks looks anew, so that a skill that is added, changed or taken away is seen without a restart;
//! looking reads the beginning of each `SKILL.md` and nothing else. Everything here blocks, but
//! [`off_the_arbiter`]. Folders that the configuration names may be links; within a skill no link is followed
//! ([`beneath`]).

mod beneath;
mod files;
mod look;

use std::time::Duration;

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::skill::{AgentSkills, SkillList, block, usable};

pub use files::read;
pub use look::look;

/// How long a look at the folders may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What an agent is told of its skills. Blocks.
pub fn told(agent: &AgentSkills) -> String {
    if !agent.is_granted {
        return String::new();
    }
    let found = look(&agent.folders);
    block(usable(&found).into_iter().map(|(skill, _)| skill), agent.bytes_max).text
}

/// The skills of these agents. Blocks.
pub fn list(agents: &[AgentSkills]) -> SkillList {
    let found: Vec<_> = agents.iter().map(|agent| look(&agent.folders)).collect();
    clawmux_core::skill::list(agents.iter().zip(found.iter().map(Vec::as_slice)))
}

/// Has something of this done where nobody else waits for it.
///
/// # Errors
/// `Timeout` where the file system does not answer, `Internal` where it panicked.
pub async fn off_the_arbiter<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let lost = |_| ErrorCode::Internal.error("the skills could not be read");
    let late = |_| {
        let seconds = TIMEOUT.as_secs();
        ErrorCode::Timeout
            .error(format!("the folders of skills do not answer for {seconds} s: is the disk stuck?"))
    };
    tokio::time::timeout(TIMEOUT, tokio::task::spawn_blocking(work)).await.map_err(late)?.map_err(lost)
}
