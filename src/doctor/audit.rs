//! Looks whether the record of tool calls is as it was written.

use std::path::Path;

use clawmux_actors::store::{self, Audited};

use super::Findings;

pub(super) fn look(store: &Path, found: &mut Findings) {
    if !store.exists() {
        return found.fine("audit", format!("no tool call is on record: there is no {}", store.display()));
    }
    match store::audit(store) {
        Ok(Audited::Whole(0, _)) => found.fine("audit", "no tool call is on record"),
        Ok(Audited::Whole(calls, first)) => {
            let older = match first {
                1 => String::new(),
                first => format!("; the {} before them were left out, being older", first - 1),
            };
            found.fine("audit", format!("{calls} tool calls are on record, as they were written{older}"));
        }
        Ok(Audited::Broken(why)) => found.error(
            "audit",
            format!("the record of tool calls in {} is not as it was written: {why}", store.display()),
            "somebody changed the store besides the daemon, or the disk did: compare it with a backup",
        ),
        Err(error) => {
            found.error("audit", error.message, "clawmux doctor without --audit looks at the store")
        }
    }
}
