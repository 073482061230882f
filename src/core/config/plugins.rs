//! `[[plugins]]`, and `[secrets.*]` that they are granted.

use std::collections::BTreeMap;
use std::path::Path;

use http::HeaderName;

use super::credentials::Secrets;
use super::load::{DEFAULT_TOOLS, EMBEDDED_ADAPTERS, EMBEDDED_PLUGINS, check_name};
use super::section::{Report, Section, nearest};
use super::tree::Origin;
use super::{Approval, Channel, Plugin, Sandbox};
use crate::hex::from_hex;
use crate::ids::PluginName;
use crate::tools::built_in::{ToolGroup, is_built_in};
use crate::tools::plugin::signature::PublicKey;
use crate::tools::plugin::{CallLimits, Capability, PluginSecret, SecretPlace};

/// What `[secrets.*]` says, by name; none where the secret itself is missing.
pub(super) type PluginSecrets = BTreeMap<String, Option<PluginSecret>>;

pub(super) fn secrets(s: Section, r: &mut Report, sources: &mut Secrets<'_>) -> PluginSecrets {
    let mut secrets = PluginSecrets::new();
    for (name, mut s) in s.named(r) {
        check_name(r, &s.origin(""), "secrets", &name);
        let complaints = r.complaints.len();
        let sought = sources.either(&mut s, r, "value_env", "", "value_file");
        if sought.secret.is_none() && r.complaints.len() == complaints {
            let why = match sought.is_named {
                true => format!("{} is not set", sought.described()),
                false => "value_env or value_file must say where its value is".to_owned(),
            };
            r.complain(&s.origin("value_env"), format!("secrets.{name}: {why}"));
        }
        let is_in_path = s.choice(r, "place", false, &[("header", false), ("path", true)]);
        let header = s.text(r, "header", "authorization");
        let prefix = s.text(r, "prefix", "");
        let place = if is_in_path {
            for key in ["header", "prefix"] {
                if s.has(key) {
                    r.complain(
                        &s.origin(key),
                        format!("secrets.{name}.{key}: the secret stands in the path"),
                    );
                }
            }
            Some(SecretPlace::Path)
        } else {
            match HeaderName::from_bytes(header.as_bytes()) {
                Ok(name) => Some(SecretPlace::Header { name, prefix }),
                Err(_) => {
                    let why = format!("secrets.{name}.header: {header:?} is not the name of a header");
                    r.complain(&s.origin("header"), why);
                    None
                }
            }
        };
        let secret = sought.secret.zip(place).map(|(value, place)| PluginSecret { value, place });
        if let Some(Err(why)) = secret.as_ref().map(PluginSecret::check) {
            r.complain(&s.origin(""), format!("secrets.{name}: {why}"));
        }
        s.finish(r);
        secrets.insert(name, secret);
    }
    secrets
}

pub(super) fn plugins(
    sections: Vec<Section>,
    r: &mut Report,
    home: &Path,
    secrets: &PluginSecrets,
) -> Vec<Plugin> {
    let mut plugins: Vec<Plugin> = Vec::new();
    for s in sections {
        let plugin = plugin(s, r, home, secrets);
        if plugins.iter().any(|known| known.name == plugin.0.name) {
            let name = plugin.0.name.as_str();
            r.complain(&plugin.1, format!("plugins: there are two plugins named {name:?}"));
        }
        plugins.push(plugin.0);
    }
    plugins
}

/// `[sandbox]`
pub(super) fn sandbox(mut s: Section, r: &mut Report) -> Sandbox {
    let mut trusted_keys = Vec::new();
    for text in s.texts(r, "trusted_keys", Some(&[])).unwrap_or_default() {
        match PublicKey::parse(&text.value) {
            Ok(key) => trusted_keys.push(key),
            Err(why) => r.complain(&text.origin, format!("sandbox.trusted_keys: {why}")),
        }
    }
    s.finish(r);
    Sandbox { trusted_keys }
}

/// Adds the plugins that ship in the binary, have no entry and are named as a tool: to name one is enough.
pub(super) fn add_embedded<'a>(plugins: &mut Vec<Plugin>, tools: impl Iterator<Item = &'a PluginName>) {
    for tool in tools {
        let is_embedded =
            EMBEDDED_PLUGINS.contains(&tool.as_str()) && !DEFAULT_TOOLS.contains(&tool.as_str());
        if is_embedded && !plugins.iter().any(|known| known.name == *tool) {
            plugins.push(Plugin {
                name: tool.clone(),
                path: None,
                capabilities: None,
                secrets: BTreeMap::new(),
                limits: CallLimits::default(),
                concurrent_calls: 0,
                sha256: None,
                may_be_unsigned: false,
                approval: Approval::default(),
                settings: BTreeMap::new(),
            });
        }
    }
}

/// Adds the adapters that ship in the binary, have no entry and are named by a channel. Their manifests name the
/// secrets they are given.
pub(super) fn add_adapters(
    plugins: &mut Vec<Plugin>,
    channels: &[Channel],
    secrets: &PluginSecrets,
    r: &mut Report,
) {
    for channel in channels.iter() {
        let adapter = &channel.adapter;
        if plugins.iter().any(|known| known.name == *adapter) {
            continue;
        }
        if !EMBEDDED_ADAPTERS.contains(&adapter.as_str()) {
            let key = format!("channels.{}", channel.name);
            let at = r.origins.get(&format!("{key}.adapter")).cloned().unwrap_or(Origin::Default);
            let known = EMBEDDED_ADAPTERS.join(", ");
            r.complain(
                &at,
                format!("{key}.adapter: no plugin {adapter} is configured, and of adapters only {known} ship in the binary"),
            );
            continue;
        }
        add_embedded(plugins, std::iter::once(adapter));
        if let Some(added) = plugins.iter_mut().find(|known| known.name == *adapter) {
            let known = secrets.iter().filter_map(|(name, secret)| Some((name.clone(), secret.clone()?)));
            added.secrets = known.collect();
        }
    }
}

/// One plugin, and where its name was written.
fn plugin(mut s: Section, r: &mut Report, home: &Path, secrets: &PluginSecrets) -> (Plugin, Origin) {
    let name = s.text(r, "name", "");
    let named = s.origin("name");
    check_name(r, &named, &s.name("name"), &name);
    if is_built_in(&name) || ToolGroup::from_name(&name).is_some() {
        let why = format!(
            "plugins.name: {name:?} is the name of a built-in tool or of a group of them: choose another"
        );
        r.complain(&named, why);
    }
    let path = s.optional(r, "path");
    let at = if path.is_some() { s.origin("path") } else { named.clone() };
    r.origins.insert(format!("plugins.{name}"), at);
    if path.is_none() && !EMBEDDED_PLUGINS.contains(&name.as_str()) {
        let embedded = EMBEDDED_PLUGINS.join(", ");
        r.complain(&named, format!("plugins.path: missing for {name:?}; only {embedded} ship in the binary"));
    }
    let (capabilities, granted) = grants(&mut s, r, &name, secrets);
    let default = CallLimits::default();
    let limits = CallLimits {
        timeout: s.millis(r, "timeout_ms", 5000),
        memory_mb: s.integer(r, "memory_mb", default.memory_mb.into(), 1..=4096) as u32,
        fuel: s.integer(r, "fuel", default.fuel, 1..=u64::MAX),
        output_bytes: s.count(r, "output_bytes", default.output_bytes, 1..=64 << 20),
        host_calls: s.integer(r, "host_calls", default.host_calls.into(), 0..=1_000_000_000) as u32,
        http_bytes: s.count(r, "http_bytes", default.http_bytes, 0..=1 << 30),
    };
    let concurrent_calls = s.count(r, "concurrent_calls", 0, 0..=64);
    let sha256 = s.optional(r, "sha256").and_then(|text| {
        let digest = from_hex(&text);
        if digest.is_none() {
            r.complain(
                &s.origin("sha256"),
                format!("plugins.sha256: {name}: expected 64 hexadecimal digits"),
            );
        }
        digest
    });
    let may_be_unsigned = s.choice(r, "unsigned", false, &[("refuse", false), ("allow", true)]);
    let choices = [("never", Approval::Never), ("ask", Approval::Ask)];
    let approval = s.choice(r, "approval", Approval::Never, &choices);
    let settings = s.section(r, "settings").named_texts(r);
    let settings = settings.into_iter().map(|(name, text)| (name, text.value)).collect();
    s.finish(r);
    let plugin = Plugin {
        name: PluginName::new(name),
        path: path.map(|path| home.join(path)),
        capabilities,
        secrets: granted,
        limits,
        concurrent_calls,
        sha256,
        may_be_unsigned,
        approval,
        settings,
    };
    (plugin, named)
}

/// The secret of this name; none where it was complained of already.
///
/// # Errors
/// There is none of this name.
pub(super) fn secret_named(name: &str, secrets: &PluginSecrets) -> Result<Option<PluginSecret>, String> {
    secrets.get(name).cloned().ok_or_else(|| {
        let near = nearest(name, secrets.keys().map(String::as_str));
        let near = near.map(|near| format!(", did you mean {near:?}?")).unwrap_or_default();
        format!("there is no [secrets.{name}]{near}")
    })
}

/// Its grants, and the secrets that they name.
fn grants(
    s: &mut Section,
    r: &mut Report,
    name: &str,
    secrets: &PluginSecrets,
) -> (Option<Vec<Capability>>, BTreeMap<String, PluginSecret>) {
    let Some(texts) = s.texts(r, "capabilities", None) else { return (None, BTreeMap::new()) };
    let (mut capabilities, mut granted) = (Vec::with_capacity(texts.len()), BTreeMap::new());
    for text in texts {
        let complaint = match Capability::parse(&text.value) {
            Ok(capability) => {
                let unknown = match &capability {
                    Capability::Secret(grant) => secret_named(&grant.name, secrets)
                        .map(|secret| granted.extend(secret.map(|secret| (grant.name.clone(), secret))))
                        .err(),
                    _ => None,
                };
                capabilities.push(capability);
                unknown.map(|why| format!("capability {:?}: {why}", text.value))
            }
            Err(why) => Some(why),
        };
        if let Some(why) = complaint {
            r.complain(&text.origin, format!("plugins.capabilities: {name}: {why}"));
        }
    }
    // A secret whose requests no other grant allows would never be sent.
    for capability in &capabilities {
        if let Capability::Secret(secret) = capability {
            let is_reached = capabilities.iter().any(|other| match other {
                Capability::Http(http) => http.covers(&secret.to) || secret.to.covers(http),
                _ => false,
            });
            if !is_reached {
                let why = format!(
                    "plugins.capabilities: {name}: no grant of http allows requests that {capability} is for"
                );
                r.complain(&s.origin("capabilities"), why);
            }
        }
    }
    (Some(capabilities), granted)
}
