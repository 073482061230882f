//! The bounds that a failure can say it met.

/// A table of bounds with the names that clients and the log know them by.
macro_rules! limits {
    ($($(#[doc = $doc:literal])* $limit:ident = $name:literal,)*) => {
        /// A bound that was met.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $($(#[doc = $doc])* $limit,)*
        }

        impl Limit {
            /// Every bound.
            pub const ALL: &[Self] = &[$(Self::$limit),*];

            /// Its name; that of its key where it can be configured.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$limit => $name,)*
                }
            }
        }
    };
}

limits! {
    /// Tokens of a session.
    SessionTokens = "session",
    /// Tokens of a day.
    DailyTokens = "daily",
    /// Tokens of a month.
    MonthlyTokens = "monthly",
    /// Tokens of an agent that works for a session.
    AgentTokens = "max_tokens",
    /// Prompts that wait in a session.
    Queue = "limits.queue",
    /// Sessions of an owner.
    Sessions = "limits.sessions",
    /// Bytes of an owner's sessions in the store.
    StoreBytes = "limits.store_bytes",
    /// Agents of an owner that work at once.
    Agents = "limits.agents",
    /// Sessions above that of an agent.
    AgentDepth = "limits.agent_depth",
    /// Connections of a principal.
    Connections = "connections",
    /// Sessions that a connection follows.
    Subscriptions = "subscriptions",
    /// Bytes of parameters for a node's command.
    NodeParams = "params",
    /// Attachments of a prompt.
    Attachments = "attachments",
    /// Bytes of one attachment.
    AttachmentBytes = "attachment_bytes",
    /// Bytes of all attachments of a prompt.
    AttachmentsBytes = "attachments_bytes",
    /// Bytes of an owner's files.
    FileQuotaBytes = "file_quota_bytes",
    /// Files of an owner.
    Files = "files",
    /// Uploads of an owner that are not finished.
    Uploads = "uploads",
    /// Bytes of a compressed piece once it is inflated.
    InflatedBytes = "inflated_bytes",
    /// Entries of an owner's memory.
    MemoryEntries = "memory_entries",
    /// Bytes of an owner's memory.
    MemoryBytes = "memory_bytes",
    /// Bytes of what one entry says.
    MemoryContentBytes = "memory_content_bytes",
    /// Bytes of one entry's metadata.
    MemoryMetadataBytes = "memory_metadata_bytes",
    /// Numbers of an entry's vector.
    MemoryDimensions = "memory_dimensions",
    /// Bytes of a provider's answer.
    StreamBytes = "stream_bytes_max",
    /// Bytes of one event of a provider's answer.
    EventBytes = "event_bytes_max",
    /// Lines of a provider's answer that say nothing.
    IdleLines = "idle_lines_max",
}

impl Limit {
    /// The bound of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|limit| limit.name() == name)
    }
}
