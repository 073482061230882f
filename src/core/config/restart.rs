//! What a running daemon can't change: what it was started with holds until it is started anew.

use serde_json::Value as Json;

use super::{Config, at, placed};

/// The keys, as `section.key`, and the section whose change takes effect with the next start alone.
pub const TAKES_A_RESTART: [&str; 9] = [
    "gateway.listen",
    "gateway.socket_group",
    "gateway.handshake_timeout_ms",
    "gateway.max_connections",
    "openclaw.control_ui",
    "xeno.home",
    "store.path",
    "log.format",
    "cluster",
];

/// Whether a change of this key, or of this section with it, takes effect with the next start alone.
pub fn takes_a_restart(path: &str) -> bool {
    let is_below =
        |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'));
    TAKES_A_RESTART.iter().any(|key| *key == path || is_below(key, path) || is_below(path, key))
}

/// What `effective` says, but for what takes a restart, which is as in `started`.
pub fn in_effect(effective: &Json, started: &Json) -> Json {
    let value = |key: &&str| ((*key).to_owned(), at(started, key).cloned().unwrap_or_default());
    let kept: Vec<_> = TAKES_A_RESTART.iter().map(value).collect();
    // Keys of sections that are always there.
    placed(effective, &kept, false).unwrap_or_else(|_| effective.clone())
}

impl Config {
    /// This configuration as a daemon can run on it that runs on `running`: what takes a restart is as
    /// it is there.
    #[must_use]
    pub fn without_what_takes_a_restart(self, running: &Self) -> Self {
        let mut config = self;
        let now = running.clone();
        config.gateway.listen = now.gateway.listen;
        config.gateway.socket_group = now.gateway.socket_group;
        config.gateway.handshake_timeout = now.gateway.handshake_timeout;
        config.gateway.max_connections = now.gateway.max_connections;
        config.openclaw.control_ui = now.openclaw.control_ui;
        config.xeno.home = now.xeno.home;
        config.store.path = now.store.path;
        config.log.format = now.log.format;
        config.cluster = now.cluster;
        config
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::{File, Sources, is_known, load};
    use super::*;

    #[test]
    fn what_is_in_effect_is_the_new_but_for_what_takes_a_restart() {
        let started = json!({ "store": { "path": "a" }, "limits": { "queue": 1 }, "xeno": {} });
        let now = json!({ "store": { "path": "b" }, "limits": { "queue": 2 }, "xeno": { "home": "x" } });
        let effective = in_effect(&now, &started);
        assert_eq!((&effective["store"]["path"], &effective["limits"]["queue"]), (&json!("a"), &json!(2)));
        assert_eq!(effective["xeno"], json!({}));
    }

    #[test]
    fn every_key_of_the_list_is_one_and_stays_what_it_was() {
        for key in TAKES_A_RESTART {
            assert!(is_known(key), "{key}");
            let value = match key {
                "gateway.listen" => r#"["127.0.0.1:9"]"#,
                "gateway.handshake_timeout_ms" | "gateway.max_connections" => "4321",
                "log.format" => r#""json""#,
                "cluster" => r#"{ durability = "unchecked" }"#,
                _ => r#""x""#,
            };
            let text = format!("{key} = {value}\n[limits]\nqueue = 3\n");
            let other = load(Sources {
                files: &[File { name: "f", text: &text }],
                env: &[],
                flags: &[],
                home: Path::new(""),
                host: "ada",
                read_secret: &mut |_| Err("none".into()),
                is_file: &mut |_| true,
                has_issued: &mut |_| false,
            });
            let other = other.unwrap_or_else(|complaints| panic!("{key}: {complaints:?}")).config;
            let running = Config::default();
            let mut expected = running.clone();
            expected.limits.queue = 3;
            assert_ne!(other, expected, "{key} was set");
            assert_eq!(other.without_what_takes_a_restart(&running), expected, "{key}");
            assert!(takes_a_restart(key));
        }
        assert!(takes_a_restart("cluster.lease_ms") && !takes_a_restart("clusters"));
        assert!(takes_a_restart("store") && !takes_a_restart("limits.queue") && !takes_a_restart("stor"));
    }
}
