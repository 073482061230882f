//! `clawmux log`: what the running daemon writes to its log.

use serde_json::{Value, json};

use super::print;
use crate::answer::Members;
use crate::cli::Global;
use crate::exit::Failure;
use crate::terminal::one_line;

/// Runs `log`.
pub(crate) fn run(global: &Global, level: Option<&str>) -> Result<(), Failure> {
    let params = match level {
        None => json!({}),
        Some(filter) if filter.contains(['=', ',', '[']) => json!({ "filter": filter }),
        Some(level) => json!({ "level": level }),
    };
    print::done(global, "admin.log", &params, described)
}

fn described(answer: &Value) -> String {
    let text = |name: &str| one_line(answer.text(name), 500);
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
        assert_eq!(described(&json!({"filter": "info", "configured": "info"})), "info");
        assert!(described(&json!({"filter": "debug", "configured": "info"})).contains("bring back info"));
    }
}
