//! Checks what could keep a daemon from starting, besides errors in the files of the configuration. Changes
//! nothing.

use std::io::ErrorKind;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use clawmux_actors::host::bound::socket_path;
use clawmux_actors::host::group::Group;
use clawmux_actors::host::regular_file;
use clawmux_actors::plugin;
use clawmux_actors::sandbox::cache::Cache;
use clawmux_actors::sandbox::compiler::Compiler;
use clawmux_actors::sandbox::source;
use clawmux_actors::session::SOUL_BYTES_MAX;
use clawmux_actors::skills;
use clawmux_core::config::unpriced::Unpriced;
use clawmux_core::config::{Agent, Config};
use clawmux_core::provider::estimate_tokens;
use clawmux_core::provider::model::ModelRef;
use clawmux_core::skill::AgentSkills;

use crate::{home, logging};

/// Tries what a start does, without changing anything: whether the home is writable, the operator's socket
/// can be created, and each plugin compiles and describes itself. Takes as long as compiling
/// them.
pub(crate) fn attempt(config: &Config, home: &Path) -> Vec<String> {
    let mut complaints: Vec<String> = home::usable(home).err().into_iter().collect();
    complaints.extend(socket(config, home));
    complaints.extend(plugins(config, home));
    complaints
}

/// Why the operator's socket can't be created.
fn socket(config: &Config, home: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    if let Some(Err(error)) = config.gateway.socket_group.as_deref().map(Group::named) {
        complaints.push(error.message);
    }
    let path = socket_path(home);
    if let Err(error) = SocketAddr::from_pathname(&path) {
        complaints.push(format!("the socket {} can't be made: {error}", path.display()));
    }
    if let Some(folder) = path.parent().filter(|folder| folder.exists()) {
        complaints.extend(home::usable(folder).err());
    }
    complaints
}

/// Why plugins that can be read can't be loaded.
pub(crate) fn plugins(config: &Config, home: &Path) -> Vec<String> {
    let cache = Cache::temporary().compiled_by(Compiler::child());
    plugin::attempt(&config.plugins, &config.sandbox.trusted_keys, home, &cache)
        .into_iter()
        .map(|error| error.message)
        .collect()
}

/// What is wrong with an agent's soul.
fn soul(agent: &Agent, context_tokens: usize) -> Option<String> {
    let said = match regular_file::read_text(&agent.soul, SOUL_BYTES_MAX) {
        Ok(text) => {
            let tokens = estimate_tokens(text.trim().len() as u64);
            let is_long = tokens > context_tokens as u64 / 2;
            is_long.then(|| {
                format!(
                    "has about {tokens} tokens of the {context_tokens} that memory.context_tokens lets the model see: \
                     little is left for the conversation, and what is beyond them is cut"
                )
            })?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => format!("can't be read: {error}"),
    };
    Some(format!("agents.{}.soul: {} {said}", agent.id, agent.soul.display()))
}

/// Checks the configuration against the file system: first complaints, then warnings.
pub(crate) fn look(config: &Config, home: &Path) -> (Vec<String>, Vec<String>) {
    let (mut complaints, mut warnings) = (Vec::new(), Vec::new());
    if let Err(failure) = logging::check(&config.log) {
        complaints.push(failure.message);
    }
    for (name, provider) in &config.providers {
        if let Some(path) = provider.ca_file.as_ref().filter(|path| !path.is_file()) {
            complaints.push(format!("providers.{name}.ca_file: {} is not there", path.display()));
        }
    }
    complaints.extend(
        source::check(&config.plugins, &config.sandbox.trusted_keys, home)
            .into_iter()
            .map(|error| error.message),
    );
    for agent in config.agents.values() {
        if agent.soul.exists() && !agent.soul.is_file() {
            complaints.push(format!("agents.{}.soul: {} is not a file", agent.id, agent.soul.display()));
            continue;
        }
        warnings.extend(soul(agent, config.memory.context_tokens));
        // Nobody has to have a SOUL.md; who names another file means one.
        if !agent.soul.is_file() && !agent.soul.ends_with("SOUL.md") {
            warnings.push(format!("agents.{}.soul: {} is not there", agent.id, agent.soul.display()));
        }
        // Nobody has to have the home's, the last.
        let own = agent.skills.split_last().map(|(_, own)| own).unwrap_or_default();
        for folder in own.iter().filter(|folder| !folder.is_dir()) {
            warnings.push(format!("agents.{}.skills: {} is no folder", agent.id, folder.display()));
        }
    }
    let skills: Vec<AgentSkills> =
        config.agents.values().map(|agent| agent.skills(config.memory.context_tokens)).collect();
    warnings.extend(skills::list(&skills).complaints());
    warnings.extend(config.unpriced(&config.models, ModelRef::clone).iter().map(Unpriced::warning));
    (complaints, warnings)
}

#[cfg(test)]
mod tests {
    use clawmux_core::config::Config;

    use super::soul;

    #[test]
    fn souls_that_are_no_text_or_leave_no_room_are_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::default();
        let mut agent = config.agents.values().next().expect("there is a main agent").clone();
        agent.soul = folder.path().join("SOUL.md");
        assert_eq!(soul(&agent, 5000), None, "nobody has to have one");
        for (bytes, says) in [
            (b"Be kind.".to_vec(), None),
            (vec![b'x'; 30_000], Some("has about 7500 tokens of the 5000")),
            (vec![0xff, 0xfe], Some("it is not UTF-8 text")),
            (vec![b'x'; 2 << 20], Some("can't be read")),
        ] {
            std::fs::write(&agent.soul, bytes).unwrap();
            let said = soul(&agent, 5000);
            assert!(
                said.is_some() == says.is_some()
                    && said.as_deref().unwrap_or_default().contains(says.unwrap_or_default()),
                "{said:?}, not {says:?}"
            );
        }
    }
}
