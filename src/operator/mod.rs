//! The operator's commands: each asks the running daemon and shows what it says, as a table for
//! people or as JSON for scripts: a list is one object a line ([`objects`]), everything else one object.
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
//! | `models` | `models` |
//! | `backup`, `restore` | those |
//! | `config` | `config get`, `set`, `unset`, `reload` |
//! | `drain`, `log` | those |
//! | `source` | who answers commands that only read |
//! | `transcript`, `sentences`, `news` | what happens, as people read it: events of sessions, streamed text, the rest |
//! | `table`, `plot`, `when` | columns; bars; points in time and spans |

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
pub(crate) mod models;
mod news;
mod plot;
pub(crate) mod plugins;
pub(crate) mod restore;
mod sentences;
pub(crate) mod session;
pub(crate) mod sessions;
mod source;
pub(crate) mod status;
pub(crate) mod table;
mod tail;
pub(crate) mod tokens;
mod transcript;
pub(crate) mod usage;
pub(crate) mod when;

use serde_json::Value;

use crate::exit::Failure;
use crate::terminal::{json_line, put};

/// A list for scripts: one object a line.
///
/// # Errors
/// Status 1 where it can't be written.
fn objects<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Result<(), Failure> {
    for row in rows {
        if !put(&json_line(row))? {
            // Nobody reads any more.
            break;
        }
    }
    Ok(())
}
