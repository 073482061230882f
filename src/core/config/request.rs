//! What can be asked about the configuration and the files that belong to it, and what is answered.

use std::path::PathBuf;

use serde_json::Value as Json;

use crate::area::area;
use crate::ids::AgentId;
use crate::time::Timestamp;

area! {
    /// What can be asked about the configuration.
    Config(ConfigCommand => ConfigReply) {
        /// Look at it, or change it.
        Config(ConfigRequest) => Config(Box<ConfigSnapshot>),
        /// The file of an agent's soul, or another text for it.
        Soul(SoulRequest) => Soul(Box<SoulFile>),
    }
}

/// The answer to a [`ConfigCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigReply {
    /// To `Config`: as it is now.
    Config(Box<ConfigSnapshot>),
    /// To `Soul`: as it is now.
    Soul(Box<SoulFile>),
}

impl ConfigCommand {
    /// Whether it is for operators alone: the rest concerns everybody.
    pub fn is_for_operators(&self) -> bool {
        *self != Self::Config(ConfigRequest::Look)
    }
}

/// What is asked of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigRequest {
    /// Read the configuration.
    Get,
    /// How it is, for anybody who may read: who is no operator is told of the sections that concern
    /// everybody ([`COMMON_SECTIONS`](super::COMMON_SECTIONS)).
    Look,
    /// Have its file say this at some places, if that is a configuration to run on.
    Place {
        /// Places, as `section.key` or as a section, and what they shall say; null takes a place away.
        values: Vec<(String, Json)>,
        /// Whether what an object does not name is kept, rather than gone.
        merge: bool,
    },
    /// Have its file say this, if that is a configuration to run on.
    Set {
        /// What it shall say, in the words of [`ConfigSnapshot::file`].
        asked: Json,
        /// Whether it is a merge patch (RFC 7386) rather than all of it.
        is_patch: bool,
        /// The hash of what the caller has seen of it.
        base_hash: String,
    },
}

/// The file of an agent's soul, or another text for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoulRequest {
    /// The agent whose soul it is.
    pub agent: AgentId,
    /// What it shall say; none = it is only looked at.
    pub text: Option<String>,
}

/// The file of an agent's soul.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoulFile {
    /// The path of the file.
    pub path: PathBuf,
    /// What it says; none where it is not there.
    pub text: Option<String>,
    /// When it was last written to.
    pub updated: Option<Timestamp>,
}

/// How the configuration is. Secrets are not in it: neither those of the environment and of files,
/// which it only names, nor what should not be written in it and is.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigSnapshot {
    /// The file that changes are written to.
    pub path: String,
    /// Whether the file exists.
    pub exists: bool,
    /// A hash of the file's contents.
    pub hash: String,
    /// What it says; null where it is not TOML.
    pub file: Json,
    /// What all keys say: of files, environment, command line and by default.
    pub effective: Json,
    /// Why one can't run on it.
    pub complaints: Vec<ConfigIssue>,
    /// What has no effect or is probably not meant.
    pub warnings: Vec<ConfigIssue>,
    /// Whether anything of it takes effect with the next start alone.
    pub needs_restart: bool,
    /// The keys, as `section.key`, that take effect with the next start.
    pub pending: Vec<String>,
}

impl ConfigSnapshot {
    /// What somebody is told of it who is no operator.
    #[must_use]
    pub fn in_common(mut self) -> Self {
        let is_common =
            |path: &str| super::COMMON_SECTIONS.contains(&path.split('.').next().unwrap_or_default());
        for document in [&mut self.file, &mut self.effective] {
            if let Json::Object(sections) = document {
                sections.retain(|name, _| is_common(name));
            }
        }
        self.pending.retain(|path| is_common(path));
        Self {
            path: String::new(),
            hash: String::new(),
            complaints: Vec::new(),
            warnings: Vec::new(),
            ..self
        }
    }
}

/// Something about the configuration that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigIssue {
    /// The key it is about, as `section.key`; empty where it is about no single one.
    pub path: String,
    /// The complaint, for people.
    pub message: String,
}
