//! The operator's commands: each asks the running daemon and shows what it says, as a table for
//! people or as JSON for scripts.
//!
//! | file | command |
//! |---|---|
//! | `status` | `status` |
//! | `sessions` | `sessions` |
//! | `session`, `tail` | `session show`, `tail`, `abort`, `clear`, `stop` |
//! | `connections` | `connections`, `connection close` |
//! | `actors`, `usage`, `events` | those |
//! | `plugins` | `plugins`, `plugin load`, `unload`, `reload`, `call` |
//! | `devices` | `devices`, `device approve`, `device revoke` |
//! | `tokens` | `tokens`, `token create`, `token revoke` |
//! | `approvals` | `approvals`, `approval approve`, `approval deny` |
//! | `jobs` | `jobs`, `job add`, `run`, `remove`, `runs`, `enable`, `disable` |
//! | `memory` | `memory` |
//! | `config` | `config get`, `set`, `unset`, `reload` |
//! | `drain`, `backup`, `log` | those |
//! | `transcript` | an event of a session, as people read it |
//! | `table`, `when` | columns; points in time and spans |

pub(crate) mod actors;
pub(crate) mod approvals;
pub(crate) mod backup;
pub(crate) mod config;
pub(crate) mod connections;
pub(crate) mod devices;
pub(crate) mod drain;
pub(crate) mod events;
pub(crate) mod jobs;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod plugins;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod status;
pub(crate) mod table;
mod tail;
pub(crate) mod tokens;
mod transcript;
pub(crate) mod usage;
pub(crate) mod when;
