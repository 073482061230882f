//! Plugins: whether each that is configured can be loaded, and what is kept of them compiled.

use std::path::Path;

use clawmux_actors::sandbox::cache;
use clawmux_core::config::Config;

use super::Findings;
use crate::preflight;

/// Tries those that are configured as a start would, and looks at what is kept. Those that can't be read are told
/// of with the configuration, which is not `is_fine` then.
pub(super) fn look(config: &Config, home: &Path, is_fine: bool, found: &mut Findings) {
    let broken = preflight::plugins(config, home);
    if broken.is_empty() && is_fine && !config.plugins.is_empty() {
        found.fine("plugin", format!("{} configured, and all of them can be loaded", config.plugins.len()));
    }
    for why in broken {
        found.error("plugin", why, "correct its file, or remove it from the configuration");
    }
    for why in cache::complaints(&home.join("cache")) {
        let advice = "nothing of it is run: the next start compiles anew what it can't trust";
        found.warning("plugin", format!("plugins kept compiled: {why}"), advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_actors::store::Severity;

    #[test]
    fn what_is_kept_and_not_to_be_trusted_is_told() {
        let home = tempfile::tempdir().unwrap();
        let mut found = Findings::default();
        look(&Config::default(), home.path(), true, &mut found);
        assert!(found.0.is_empty(), "there is nothing to say");
        std::fs::create_dir(home.path().join("cache")).unwrap();
        std::fs::write(home.path().join("cache").join("loading-7-0"), "").unwrap();
        look(&Config::default(), home.path(), true, &mut found);
        assert!(found.0[0].severity == Severity::Warning && found.0[0].what.contains("a start died"));
    }
}
