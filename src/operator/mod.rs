//! The operator's commands: each asks the running daemon and prints what it answers.
//!
//! | file | command |
//! |---|---|
//! | `status`, `actors`, `usage`, `events`, `models`, `skills` | those |
//! | `memory` | `memory`, `memory search`, `show`, `forget`, `export`, `import` |
//! | `sessions` | `sessions` |
//! | `session`, `tail` | `session show`, `tail`, `abort`, `clear`, `stop`, `delete`, `export` |
//! | `connections` | `connections`, `connection close` |
//! | `plugins` | `plugins`, `plugin load`, `unload`, `reload`, `call` |
//! | `devices` | `devices`, `device approve`, `reject`, `revoke` |
//! | `tokens` | `tokens`, `token create`, `revoke`, `rotate` |
//! | `approvals` | `approvals`, `approval approve`, `deny` |
//! | `jobs` | `jobs`, `job add`, `run`, `remove`, `runs`, `enable`, `disable` |
//! | `config` | `config get`, `set`, `unset`, `reload` |
//! | `backup`, `restore`, `drain`, `log` | those |
//! | `cluster` | `cluster status`, `nodes`, `slots`, `handover`, `init`, `leave`, `rebuild`, `demo` |
//!
//! | file | what they share |
//! |---|---|
//! | `alone` | commands that no daemon may run beside |
//! | `source` | who answers commands that only read: the daemon or, where none runs, the store |
//! | `print` | answers and lists: in words, as a table, as JSON |
//! | `find` | which entry of a list an id or a name means |
//! | `input` | JSON objects from a file or from stdin |
//! | `transcript`, `sentences`, `news` | events in words: of sessions, of streamed text, of the daemon |
//! | `table`, `plot`, `amount` | columns, bars, numbers |

pub(crate) mod actors;
mod alone;
pub(crate) mod amount;
pub(crate) mod approvals;
mod arguments;
pub(crate) mod backup;
pub(crate) mod bus;
mod caches;
pub(crate) mod channels;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod connections;
pub(crate) mod devices;
pub(crate) mod drain;
pub(crate) mod events;
mod find;
mod input;
pub(crate) mod jobs;
pub(crate) mod log;
pub(crate) mod mcp;
pub(crate) mod memory;
pub(crate) mod models;
mod new_plugin;
mod news;
mod plot;
mod plugin_signing;
pub(crate) mod plugins;
mod print;
pub(crate) mod restore;
mod sentences;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod skills;
mod source;
pub(crate) mod status;
mod table;
mod tail;
pub(crate) mod tokens;
mod transcript;
pub(crate) mod usage;
