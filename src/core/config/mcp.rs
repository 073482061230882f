//! `[[mcp]]`: MCP servers, whose tools agents may be granted.

use std::collections::BTreeMap;
use std::path::Path;

use super::plugins::{PluginSecrets, secret_named};
use super::section::{Report, Section};
use super::{Approval, McpCommand, McpFolder, McpReach, McpServer, McpUrl};
use crate::access::Secret;
use crate::tools::mcp::{SERVER_CHARS_MAX, is_server_name};
use crate::tools::plugin::{GrantedSecret, HttpGrant, SecretGrant};

/// What stands behind a folder that may only be read.
const READ_ONLY: &str = ":ro";

/// What a value of `env`, or of a header, begins with that is the name of a secret.
pub(super) const SECRET: &str = "secret:";

pub(super) fn servers(
    sections: Vec<Section>,
    r: &mut Report,
    home: &Path,
    secrets: &PluginSecrets,
) -> Vec<McpServer> {
    let mut servers: Vec<McpServer> = Vec::new();
    for mut s in sections {
        let name = s.text(r, "name", "");
        let named = s.origin("name");
        if !is_server_name(&name) {
            let why = format!(
                "mcp.name: expected lowercase letters, digits and '-', at most {SERVER_CHARS_MAX}, found {name:?}"
            );
            r.complain(&named, why);
        }
        if servers.iter().any(|known| known.name == name) {
            r.complain(&named, format!("mcp: there are two servers named {name:?}"));
        }
        servers.extend(server(s, r, name, home, secrets));
    }
    servers
}

fn server(
    mut s: Section,
    r: &mut Report,
    name: String,
    home: &Path,
    secrets: &PluginSecrets,
) -> Option<McpServer> {
    let command: Vec<String> =
        s.texts(r, "command", None).unwrap_or_default().into_iter().map(|text| text.value).collect();
    let url = s.optional(r, "url");
    let (env, in_env) = env(s.section(r, "env"), r, &name, secrets);
    let folders = folders(&mut s, r, home);
    let memory_mb = s.integer(r, "memory_mb", 1024, 16..=1 << 20);
    let processes = s.count(r, "processes", 32, 1..=10_000);
    let sent = s.texts(r, "secrets", Some(&[])).unwrap_or_default();
    let tools = s.texts(r, "tools", None).map(|texts| texts.into_iter().map(|text| text.value).collect());
    let timeout = s.millis(r, "timeout_ms", 60_000);
    let output_bytes = s.count(r, "output_bytes", 1 << 20, 1..=16 << 20);
    let choices = [("never", Approval::Never), ("ask", Approval::Ask)];
    let approval = s.choice(r, "approval", Approval::Never, &choices);
    let reach = match (command.is_empty(), &url) {
        (false, Some(_)) => {
            r.complain(&s.origin("url"), format!("mcp.url: {name} has a command as well; keep one of them"));
            None
        }
        (true, None) => {
            r.complain(&s.origin("name"), format!("mcp: {name} has neither a command nor a url"));
            None
        }
        (false, None) => {
            if s.has("secrets") && !sent.is_empty() {
                let why = format!(
                    "mcp.secrets: they go to a url; give {name} one as env = {{ VARIABLE = \"secret:NAME\" }}"
                );
                r.complain(&s.origin("secrets"), why);
            }
            Some(McpReach::Command(McpCommand {
                command,
                env,
                secrets: in_env,
                folders,
                memory_bytes: memory_mb << 20,
                processes,
            }))
        }
        (true, Some(url)) => {
            for key in ["env", "folders", "memory_mb", "processes"] {
                if s.has(key) {
                    r.complain(&s.origin(key), format!("mcp.{key}: {name} has a url; this is for a command"));
                }
            }
            match HttpGrant::of_url(url) {
                Ok((url, grant)) => {
                    let mut granted = Vec::new();
                    for text in sent {
                        match secret_named(&text.value, secrets) {
                            Ok(secret) => granted.extend(secret.map(|secret| GrantedSecret {
                                grant: SecretGrant { name: text.value.clone(), to: grant.clone() },
                                secret,
                            })),
                            Err(why) => r.complain(&text.origin, format!("mcp.secrets: {name}: {why}")),
                        }
                    }
                    Some(McpReach::Url(McpUrl { url, grant, secrets: granted }))
                }
                Err(why) => {
                    r.complain(&s.origin("url"), format!("mcp.url: {name}: {why}"));
                    None
                }
            }
        }
    };
    s.finish(r);
    reach.map(|reach| McpServer { name, reach, tools, approval, timeout, output_bytes })
}

/// What its environment has besides what every program needs, and the secrets in there.
fn env(
    s: Section,
    r: &mut Report,
    name: &str,
    secrets: &PluginSecrets,
) -> (BTreeMap<String, Secret>, Vec<Secret>) {
    let (mut env, mut hidden) = (BTreeMap::new(), Vec::new());
    for (variable, text) in s.named_texts(r) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if variable.is_empty() || !variable.bytes().all(is_plain) {
            r.complain(&text.origin, format!("mcp.env: {name}: {variable:?} is not the name of a variable"));
            continue;
        }
        let value = match text.value.strip_prefix(SECRET) {
            None => Some(Secret::new(text.value.as_str())),
            Some(secret) => match secret_named(secret, secrets) {
                Ok(secret) => {
                    hidden.extend(secret.as_ref().map(|secret| secret.value.clone()));
                    secret.map(|secret| secret.value)
                }
                Err(why) => {
                    r.complain(&text.origin, format!("mcp.env.{variable}: {name}: {why}"));
                    None
                }
            },
        };
        match value {
            Some(value) if value.expose().contains('\0') => {
                r.complain(&text.origin, format!("mcp.env.{variable}: {name}: it has a zero byte"));
            }
            Some(value) => {
                env.insert(variable, value);
            }
            None => {}
        }
    }
    (env, hidden)
}

fn folders(s: &mut Section, r: &mut Report, home: &Path) -> Vec<McpFolder> {
    let mut folders = Vec::new();
    for text in s.texts(r, "folders", Some(&[])).unwrap_or_default() {
        let (path, is_writable) = match text.value.strip_suffix(READ_ONLY) {
            Some(path) => (path, false),
            None => (text.value.as_str(), true),
        };
        if path.is_empty() {
            r.complain(&text.origin, "mcp.folders: expected a folder, found \"\"");
            continue;
        }
        folders.push(McpFolder { path: home.join(path), is_writable });
    }
    folders
}
