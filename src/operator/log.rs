//! `clawmux log`: what the running daemon writes to its log.

use serde_json::{Value, json};

use crate::admin_client::{call, home_of};
use crate::cli::{Global, Log};
use crate::exit::Failure;
use crate::terminal::{json_line, one_line, say};

/// Runs it.
///
/// # Errors
/// As [`call`].
pub(crate) fn run(global: &Global, options: &Log) -> Result<(), Failure> {
    let params = match options.level.as_deref() {
        None => json!({}),
        Some(filter) if filter.contains(['=', ',', '[']) => json!({ "filter": filter }),
        Some(level) => json!({ "level": level }),
    };
    let answer = call(&home_of(global)?, "admin.log", &params)?;
    say(&if options.json { json_line(&answer) } else { told(&answer) });
    Ok(())
}

fn told(answer: &Value) -> String {
    let text = |name: &str| one_line(answer[name].as_str().unwrap_or("-"), 500);
    let (filter, configured) = (text("filter"), text("configured"));
    if filter == configured {
        filter
    } else {
        format!(
            "{filter} (until the next reload or restart, which bring back {configured}; to keep it: `clawmux config set \
             log.filter {filter}`)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_not_said_twice() {
        assert_eq!(told(&json!({"filter": "info", "configured": "info"})), "info");
        assert!(told(&json!({"filter": "debug", "configured": "info"})).contains("bring back info"));
    }
}
