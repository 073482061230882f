//! The bounds that a failure can say it met.

/// A table of bounds with the names that clients and event logs know them by.
macro_rules! limits {
    ($($limit:ident = $name:literal, $doc:literal;)*) => {
        /// A bound that was met.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $(#[doc = $doc] $limit,)*
        }

        impl Limit {
            /// All bounds.
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
    SessionTokens = "session", "Tokens of a session.";
    SessionCost = "session_cost", "Money of a session, in billionths of a dollar.";
    DailyTokens = "daily", "Tokens of a day.";
    DailyCost = "daily_cost", "Money of a day, in billionths of a dollar.";
    MonthlyTokens = "monthly", "Tokens of a month.";
    MonthlyCost = "monthly_cost", "Money of a month, in billionths of a dollar.";
    AgentTokens = "max_tokens", "Tokens of an agent that works for a session.";
    Queue = "limits.queue", "Prompts that wait in a session.";
    Sessions = "limits.sessions", "Sessions of an owner.";
    StoreBytes = "limits.store_bytes", "Bytes of an owner's sessions in the store.";
    Agents = "limits.agents", "Agents of an owner that work at once.";
    AgentDepth = "limits.agent_depth", "Sessions above that of an agent.";
    Connections = "connections", "Connections of a principal.";
    Subscriptions = "subscriptions", "Sessions that a connection follows.";
    NodeParams = "params", "Bytes of parameters for a node's command.";
    Attachments = "attachments", "Attachments of a prompt.";
    AttachmentBytes = "attachment_bytes", "Bytes of one attachment.";
    AttachmentsBytes = "attachments_bytes", "Bytes of all attachments of a prompt.";
    FileQuotaBytes = "file_quota_bytes", "Bytes of an owner's files.";
    Files = "files", "Files of an owner.";
    Uploads = "uploads", "Uploads of an owner that are not finished.";
    InflatedBytes = "inflated_bytes", "Bytes of a compressed piece once it is inflated.";
    MemoryEntries = "memory_entries", "Entries of an owner's memory.";
    MemoryBytes = "memory_bytes", "Bytes of an owner's memory.";
    MemoryContentBytes = "memory_content_bytes", "Bytes of what one entry says.";
    MemoryMetadataBytes = "memory_metadata_bytes", "Bytes of one entry's metadata.";
    MemoryDimensions = "memory_dimensions", "Numbers of an entry's vector.";
    StreamBytes = "stream_bytes_max", "Bytes of a provider's answer.";
    EventBytes = "event_bytes_max", "Bytes of one event of a provider's answer.";
    IdleLines = "idle_lines_max", "Lines of a provider's answer that say nothing.";
}

impl Limit {
    /// The bound of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|limit| limit.name() == name)
    }
}
