//! A command that is the only one on a home: no daemon runs there, and none begins meanwhile.

use std::path::Path;

use clawmux_actors::host::bound::Bound;

use crate::admin_client::Link;
use crate::exit::{FAILED, Failure};
use crate::home;

/// Claims the home, made if there is none, until the claim is dropped.
///
/// # Errors
/// Status 1 where a daemon runs on it. Nothing is changed then.
pub(super) fn claim(home: &Path) -> Result<Bound, Failure> {
    let running = |who: &str| {
        let why = format!("a daemon ({who}) runs on {}: stop it first", home.display());
        Failure::new(FAILED, format!("{why}. Nothing was changed"))
    };
    if let Some(who) = home::holder(home) {
        return Err(running(&who));
    }
    if matches!(Link::open_if_there(home), Ok(Some(_))) {
        return Err(running("on its socket"));
    }
    home::create(home)?;
    Ok(Bound::new(home, None, None, None)?)
}
