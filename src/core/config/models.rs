//! `[providers.*]` and `[agents.*]`: who answers, and where a model is asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::credentials::{Secrets, described};
use super::headers::{self, key_header};
use super::load::{DEFAULT_TOOLS, EMBEDDED_ADAPTERS, EMBEDDED_PLUGINS, check_name};
use super::offer::{is_service, ollama_url};
use super::plugins::PluginSecrets;
use super::section::{At, Report, Section, nearest};
use super::tree::Origin;
use super::{Agent, McpServer, Patience, Plugin, Provider};
use crate::access::Secret;
use crate::ids::{AgentId, PluginName};
use crate::provider::ProviderKind;
use crate::provider::address::is_loopback;
use crate::provider::model::ModelRef;
use crate::tools::built_in::{ToolGroup, is_built_in};
use crate::tools::mcp::McpGrant;
use crate::tools::node::NodeTool;

impl Provider {
    /// One of this kind at this base URL, otherwise as where nothing else is said.
    pub fn new(kind: ProviderKind, base_url: &str, api_key: Option<Secret>) -> Self {
        let patience = if is_loopback(base_url) { Patience::at_home() } else { Patience::default() };
        let base_url = base_url.trim_end_matches('/').to_owned();
        let (more_keys, key_places, headers) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (max_concurrent, ca_file) = (0, None);
        Self { kind, base_url, api_key, more_keys, key_places, max_concurrent, headers, ca_file, patience }
    }

    /// Its keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Secret> {
        self.api_key.iter().chain(&self.more_keys)
    }

    /// The same with each of its keys alone, with what that key is called: once without where it has none.
    pub fn by_key(&self) -> Vec<(String, Self)> {
        let with = |api_key: Option<&Secret>| Self {
            api_key: api_key.cloned(),
            more_keys: Vec::new(),
            key_places: Vec::new(),
            ..self.clone()
        };
        if self.api_key.is_none() {
            return vec![(String::new(), with(None))];
        }
        let named = |at| self.key_places.get(at).cloned().unwrap_or_else(|| format!("key {}", at + 1));
        self.keys().enumerate().map(|(at, key)| (named(at), with(Some(key)))).collect()
    }

    /// Whether it is a service that wants a key, and there is none.
    pub fn lacks_key(&self) -> bool {
        let wants_key = !self.kind.preset().key_variable.is_empty();
        wants_key && self.kind.is_home(&self.base_url) && self.api_key.is_none()
    }
}

/// Where the variable of a kind says that its service is; none where that is not understood.
pub fn url_of_variable(kind: ProviderKind, said: &str) -> Option<String> {
    let url = said.trim().trim_end_matches('/');
    match kind {
        ProviderKind::Ollama => ollama_url(url),
        _ => is_base_url(url).then(|| url.to_owned()),
    }
}

pub(super) type Providers = BTreeMap<String, Provider>;

pub(super) fn providers(
    s: Section,
    r: &mut Report,
    secrets: &mut Secrets<'_>,
    granted: &PluginSecrets,
) -> Providers {
    let mut providers = Providers::new();
    for (name, s) in s.named(r) {
        check_name(r, &s.origin(""), "providers", &name);
        if name == "auto" {
            r.complain(&s.origin(""), "providers: \"auto\" is reserved");
        }
        if let Some(provider) = provider(&name, s, r, secrets, granted) {
            providers.insert(name, provider);
        }
    }
    providers
}

fn provider(
    name: &str,
    mut s: Section,
    r: &mut Report,
    secrets: &mut Secrets<'_>,
    granted: &PluginSecrets,
) -> Option<Provider> {
    let kinds = ProviderKind::ALL.map(|kind| (kind.name(), Some(kind)));
    let Some(kind) = s.choice(r, "kind", ProviderKind::from_name(name), &kinds) else {
        if !s.has("kind") {
            let allowed = ProviderKind::ALL.map(|kind| format!("{:?}", kind.name())).join(" or ");
            r.complain(&s.origin(""), format!("providers.{name}.kind: missing; allowed is {allowed}"));
        }
        for key in ["base_url", "api_key_env", "api_key_file", "ca_file"] {
            s.optional(r, key);
        }
        for key in ["api_key_envs", "api_key_files"] {
            s.texts(r, key, Some(&[]));
        }
        s.count(r, "max_concurrent", 0, 0..=CONCURRENT_MAX);
        patience(&mut s, r, Provider::new(ProviderKind::OpenAi, "", None).patience);
        s.section(r, "headers").named_texts(r);
        s.finish(r);
        return None;
    };
    let from_env = base_url_in_env(kind, r, secrets);
    let base_url = base_url_of(kind, &mut s, r, from_env.as_deref());
    let at_home = kind.is_home(&base_url);
    let complaints = r.complaints.len();
    // A key of the environment goes where the environment says, and nowhere else.
    let is_its_own = at_home || (from_env.is_some() && !s.has("base_url"));
    let variable = if is_its_own { kind.preset().key_variable } else { "" };
    let listed = more_keys(&mut s, r, secrets);
    // One that nobody named gives way to those that somebody did.
    let variable = if listed.is_some() { "" } else { variable };
    let sought = secrets.either(&mut s, r, "api_key_env", variable, "api_key_file");
    if sought.secret.is_none()
        && listed.is_none()
        && r.complaints.len() == complaints
        && (sought.is_named || (at_home && !variable.is_empty()))
    {
        let what = sought.described();
        r.warn(
            &s.origin("api_key_env"),
            format!("providers.{name}: {what} is not set, so {name} is asked without a key"),
        );
    }
    let place = sought.place();
    let first = sought.secret.map(|secret| (secret, place));
    let (keys, key_places): (Vec<_>, _) =
        different(first, listed.unwrap_or_default(), &s, r).into_iter().unzip();
    let mut keys = keys.into_iter();
    let (api_key, more_keys) = (keys.next(), keys.collect());
    let ca_file = s.optional(r, "ca_file").map(|path| secrets.home.join(path));
    let key_header = api_key.as_ref().and_then(|_| key_header(kind.format()));
    let headers = headers::read(s.section(r, "headers"), r, name, key_header, granted);
    if (api_key.is_some() || !headers.is_empty())
        && base_url.starts_with("http://")
        && !is_loopback(&base_url)
    {
        let what = if api_key.is_some() { "the key travels" } else { "the headers travel" };
        r.warn(&s.origin("base_url"), format!("{}: {what} unencrypted", s.name("base_url")));
    }
    let usual = Provider::new(kind, &base_url, api_key);
    let patience = patience(&mut s, r, usual.patience);
    let max_concurrent = s.count(r, "max_concurrent", 0, 0..=CONCURRENT_MAX);
    s.finish(r);
    Some(Provider { more_keys, key_places, max_concurrent, headers, ca_file, patience, ..usual })
}

/// More calls of one provider at once than any machine makes.
const CONCURRENT_MAX: u64 = 1_000_000;

/// A key, and the variable or file that it is in.
type Placed = (Secret, String);

/// The most keys of one provider.
const KEYS_MAX: usize = 64;

/// The keys that are listed, those of variables first; none where no list is written. Of a variable that is not
/// set it is said so; the others are asked with.
fn more_keys(s: &mut Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Option<Vec<Placed>> {
    let (envs, files) = (s.texts(r, "api_key_envs", Some(&[])), s.texts(r, "api_key_files", Some(&[])));
    if envs.is_none() && files.is_none() {
        return None;
    }
    let mut keys = Vec::new();
    for At { value, origin } in envs.unwrap_or_default() {
        let complaints = r.complaints.len();
        let key = secrets.in_env(r, &origin, &s.name("api_key_envs"), &value);
        if key.is_none() && r.complaints.len() == complaints {
            let (name, what) = (s.name("api_key_envs"), described(&value));
            r.warn(&origin, format!("{name}: {what} is not set, so it is asked without that key"));
        }
        keys.extend(key.map(|key| (key, value)));
    }
    for At { value, origin } in files.unwrap_or_default() {
        let key = secrets.in_file(r, &origin, &s.name("api_key_files"), &value);
        keys.extend(key.map(|key| (key, value)));
    }
    Some(keys)
}

/// The keys of a provider, each once: one that is there twice would be asked with again once it is refused.
fn different(first: Option<Placed>, more: Vec<Placed>, s: &Section, r: &mut Report) -> Vec<Placed> {
    let mut keys: Vec<Placed> = Vec::new();
    for (at, key) in first.into_iter().chain(more).enumerate() {
        if let Some(same) = keys.iter().position(|known| known.0 == key.0) {
            let (same, at) = (same + 1, at + 1);
            let what =
                format!("{}: key {at} is the same as key {same}: keep one of them", s.name("api_key_envs"));
            r.complain(&s.origin("api_key_envs"), what);
        }
        keys.push(key);
    }
    if keys.len() > KEYS_MAX {
        let what =
            format!("{}: there are {} keys, of which {KEYS_MAX} may be", s.name("api_key_envs"), keys.len());
        r.complain(&s.origin("api_key_envs"), what);
    }
    keys
}

fn patience(s: &mut Section, r: &mut Report, usual: Patience) -> Patience {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let retries = s.integer(r, "retries", usual.retries.into(), 0..=10);
    Patience {
        connect: s.millis(r, "connect_timeout_ms", ms(usual.connect)),
        first_byte: s.millis(r, "first_byte_timeout_ms", ms(usual.first_byte)),
        silence: s.millis(r, "silence_timeout_ms", ms(usual.silence)),
        total: s.millis(r, "total_timeout_ms", ms(usual.total)),
        retries: u32::try_from(retries).unwrap_or(u32::MAX),
    }
}

/// What a base URL has to look like.
const EXPECTED_URL: &str = "http:// or https://, a host and a path, without user, query or fragment";

fn base_url_of(kind: ProviderKind, s: &mut Section, r: &mut Report, from_env: Option<&str>) -> String {
    let text = s.text(r, "base_url", kind.preset().base_url);
    if let Some(url) = from_env.filter(|_| !s.has("base_url")) {
        return url.to_owned();
    }
    let url = text.trim_end_matches('/');
    let good = match kind {
        ProviderKind::Offline => url.is_empty(),
        _ => is_base_url(url),
    };
    if !good {
        let expected = match kind {
            ProviderKind::Offline => "nothing: the offline provider has no address",
            _ => EXPECTED_URL,
        };
        r.complain(&s.origin("base_url"), format!("{}: expected {expected}", s.name("base_url")));
    }
    url.to_owned()
}

/// Whether a provider can be at this URL: `http` or `https`, a host and perhaps a path, and nothing that could
/// be a secret.
pub fn is_base_url(url: &str) -> bool {
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    host.is_some_and(|rest| {
        let authority = rest.split('/').next().unwrap_or_default();
        !authority.is_empty()
            && !authority.contains('@')
            && has_good_port(authority)
            && rest.chars().all(|c| c.is_ascii_graphic() && !"?#\"<>\\^`{|}".contains(c))
    })
}

/// Whether what follows a host, if anything does, is a port.
fn has_good_port(authority: &str) -> bool {
    let behind = authority.rsplit_once(']').map_or(authority, |(_, behind)| behind);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
    behind.split_once(':').is_none_or(|(_, port)| is_port(port))
}

/// Where the environment says that a kind's service is; none where it says nothing, or what is no URL, which
/// is complained of.
fn base_url_in_env(kind: ProviderKind, r: &mut Report, secrets: &Secrets<'_>) -> Option<String> {
    let variable = kind.preset().url_variable;
    let said = secrets.variable(variable).filter(|said| !said.trim().is_empty())?;
    let url = url_of_variable(kind, said);
    if url.is_none() {
        r.complain(&Origin::Env(variable.into()), format!("{variable}: expected {EXPECTED_URL}"));
    }
    url
}

/// Reads the agents; the providers that they use without an entry are filled in.
pub(super) fn agents(
    s: Section,
    r: &mut Report,
    providers: &mut Providers,
    secrets: &Secrets<'_>,
    home: &Path,
    offered: &Offered<'_>,
) -> BTreeMap<AgentId, Agent> {
    let mut sections = s.named(r);
    if !sections.iter().any(|(name, _)| name == "main") {
        // The built-in layer has an agent `main`, whatever others a file adds.
        sections.push(("main".into(), Section::absent("agents.main", "agents.*")));
    }
    let mut agents = BTreeMap::new();
    for (name, s) in sections {
        check_name(r, &s.origin(""), "agents", &name);
        let agent = agent(name, s, r, providers, secrets, home, offered);
        agents.insert(agent.id.clone(), agent);
    }
    agents
}

fn agent(
    name: String,
    mut s: Section,
    r: &mut Report,
    providers: &mut Providers,
    secrets: &Secrets<'_>,
    home: &Path,
    offered: &Offered<'_>,
) -> Agent {
    let wanted = s.text(r, "provider", "auto");
    let model = s.text(r, "model", "");
    let provider = if wanted == "auto" {
        let found = automatic(providers, secrets);
        if found == ProviderKind::Offline.name()
            && providers.values().any(|p| p.kind != ProviderKind::Offline)
        {
            r.warn(
                &s.origin("provider"),
                format!(
                    "agents.{name}.provider: \"auto\" knows only providers that are named like their kind and have their key, so this agent runs offline; name one of {}",
                    providers.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
                ),
            );
        }
        found.to_owned()
    } else {
        wanted
    };
    let mut models = Vec::new();
    if let Some(kind) = known(&provider, &s.origin("provider"), &s.name("provider"), r, providers, secrets) {
        let base_url = providers.get(&provider).map(|known| known.base_url.as_str()).unwrap_or_default();
        // Without a name it is the first that its server lists.
        let default = || kind.default_model(base_url).unwrap_or_default().to_owned();
        meant_elsewhere(&model, &provider, kind, &s, r, providers);
        let model = if model.is_empty() { default() } else { model };
        models.push(ModelRef { provider, model });
    }
    for At { value, origin } in s.texts(r, "fallback", Some(&[])).unwrap_or_default() {
        match value.split_once('/') {
            Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
                if known(provider, &origin, &s.name("fallback"), r, providers, secrets).is_some() {
                    models.push(ModelRef { provider: provider.to_owned(), model: model.to_owned() });
                }
            }
            // Its own default.
            None if providers.contains_key(&value) || ProviderKind::from_name(&value).is_some() => {
                if let Some(kind) = known(&value, &origin, &s.name("fallback"), r, providers, secrets) {
                    let base_url = providers.get(&value).map(|known| known.base_url.as_str()).unwrap_or_default();
                    let model = kind.default_model(base_url).unwrap_or_default().to_owned();
                    models.push(ModelRef { provider: value, model });
                }
            }
            _ => r.complain(
                &origin,
                format!(
                    "{}: expected PROVIDER/MODEL such as \"openai/gpt-4o\", or a provider with a default model, found {value:?}",
                    s.name("fallback")
                ),
            ),
        }
    }
    let max_tokens = s.integer(r, "max_tokens", 4096, 1..=1_000_000) as u32;
    let soul = home.join(s.text(r, "soul", "SOUL.md"));
    let skills = skills(&mut s, r, home);
    let (mut tools, mut node_tools, mut mcp_tools) = (Vec::new(), Vec::new(), Vec::new());
    let mut built_in: Vec<ToolGroup> = Vec::new();
    match s.texts(r, "tools", Some(&DEFAULT_TOOLS)) {
        None => tools.extend(DEFAULT_TOOLS.map(PluginName::from)),
        Some(texts) => {
            for text in texts {
                if let Some(group) = ToolGroup::from_name(&text.value) {
                    if !built_in.contains(&group) {
                        built_in.push(group);
                    }
                    continue;
                }
                if let Some(granted) = McpGrant::parse(&text.value) {
                    mcp_tools.extend(mcp_tool(granted, &text.origin, &s, r, offered.mcp));
                    continue;
                }
                match NodeTool::parse(&text.value) {
                    None => tools.push(tool(text, &s, r, offered.plugins)),
                    Some(granted) => node_tools.extend(node_tool(granted, &text.origin, &s, r, &node_tools)),
                }
            }
        }
    }
    for granted in node_tools.iter().filter(|granted| tools.contains(&granted.name)) {
        let message = format!(
            "{}: {granted} would be offered as {}, which is a plugin: grant one of them",
            s.name("tools"),
            granted.name
        );
        r.complain(&s.origin("tools"), message);
    }
    for granted in &mcp_tools {
        for tool in tools.iter().filter(|tool| granted.offers(tool)) {
            let message =
                format!("{}: {granted} may be offered as {tool}, which is a plugin", s.name("tools"));
            r.complain(&s.origin("tools"), message);
        }
    }
    s.finish(r);
    Agent { id: AgentId::new(name), models, max_tokens, soul, tools, node_tools, mcp_tools, built_in, skills }
}

/// The folders of an agent's skills, each once: its own, then the home's.
fn skills(s: &mut Section, r: &mut Report, home: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for At { value, origin } in s.texts(r, "skills", Some(&[])).unwrap_or_default() {
        if value.trim().is_empty() {
            r.complain(&origin, format!("{}: expected a folder, found {value:?}", s.name("skills")));
        } else if !folders.contains(&home.join(&value)) {
            folders.push(home.join(value));
        }
    }
    let own = home.join("skills");
    folders.retain(|folder| *folder != own);
    folders.push(own);
    folders
}

/// What there is for agents to be granted.
pub(super) struct Offered<'a> {
    pub(super) plugins: &'a [Plugin],
    pub(super) mcp: &'a [McpServer],
}

/// A tool of an MCP server, or all of them; the server and, where it has a list, the tool are configured.
fn mcp_tool(
    granted: Result<McpGrant, String>,
    at: &Origin,
    s: &Section,
    r: &mut Report,
    servers: &[McpServer],
) -> Option<McpGrant> {
    let checked = granted.and_then(|grant| {
        let Some(server) = servers.iter().find(|known| known.name == grant.server) else {
            let near = nearest(&grant.server, servers.iter().map(|known| known.name.as_str()));
            let near = near.map(|near| format!(", did you mean {near:?}?")).unwrap_or_default();
            return Err(format!("{grant}: there is no [[mcp]] named {:?}{near}", grant.server));
        };
        match (&grant.tool, &server.tools) {
            (Some(tool), Some(allowed)) if !allowed.contains(tool) => {
                Err(format!("{grant}: tools of [[mcp]] {} does not have it", grant.server))
            }
            _ => Ok(grant),
        }
    });
    checked.map_err(|why| r.complain(at, format!("{}: {why}", s.name("tools")))).ok()
}

/// A command of a node, offered under a name that no other tool may have.
fn node_tool(
    granted: Result<NodeTool, String>,
    at: &Origin,
    s: &Section,
    r: &mut Report,
    others: &[NodeTool],
) -> Option<NodeTool> {
    match granted {
        Err(why) => r.complain(at, format!("{}: {why}", s.name("tools"))),
        Ok(tool) => match others.iter().find(|other| other.name == tool.name) {
            Some(other) => r.complain(
                at,
                format!(
                    "{}: {other} and {tool} would both be offered as {}: grant one of them",
                    s.name("tools"),
                    tool.name
                ),
            ),
            None => return Some(tool),
        },
    }
    None
}

/// Tells where a model's name begins with that of a provider, as it does elsewhere: `groq/llama-3` for an agent
/// that is offline, `local/m` for one of `local`.
fn meant_elsewhere(
    model: &str,
    provider: &str,
    kind: ProviderKind,
    s: &Section,
    r: &mut Report,
    providers: &Providers,
) {
    let Some((prefix, rest)) = model.split_once('/') else { return };
    let at = s.origin("model");
    let is_provider = providers.contains_key(prefix) || ProviderKind::from_name(prefix).is_some();
    if kind == ProviderKind::Offline && is_provider && prefix != provider {
        let instead = format!("for {rest:?} of {prefix:?} set provider = {prefix:?} and model = {rest:?}");
        r.complain(&at, format!("{}: {model:?} is no model of {provider:?}; {instead}", s.name("model")));
    } else if prefix == provider && kind != ProviderKind::OpenRouter {
        let why = format!("{provider} is asked for a model named {model:?}; did you mean {rest:?}?");
        r.warn(&at, format!("{}: {why}", s.name("model")));
    }
}

/// A tool that no entry loads may still be loaded at run time, so it is only warned of.
fn tool(text: At<String>, s: &Section, r: &mut Report, plugins: &[Plugin]) -> PluginName {
    if EMBEDDED_ADAPTERS.contains(&text.value.as_str())
        && !plugins.iter().any(|known| known.name.as_str() == text.value && known.path.is_some())
    {
        let why = format!("{}: {:?} is the adapter of a channel, not a tool", s.name("tools"), text.value);
        r.complain(&text.origin, why);
    }
    if is_built_in(&text.value) {
        let group = ToolGroup::ALL.into_iter().find(|group| group.tools().contains(&text.value.as_str()));
        let hint = group.map_or_else(
            || "is offered without a grant".to_owned(),
            |group| format!("is granted by the name of its group, {:?}", group.name()),
        );
        r.complain(&text.origin, format!("{}: {:?} {hint}", s.name("tools"), text.value));
        return PluginName::new(text.value);
    }
    let plugins = || plugins.iter().map(|plugin| plugin.name.as_str());
    let known = || EMBEDDED_PLUGINS.into_iter().chain(ToolGroup::ALL.map(ToolGroup::name)).chain(plugins());
    if !known().any(|name| name == text.value) {
        let groups = || ToolGroup::ALL.map(ToolGroup::name).join(", ");
        let hint = nearest(&text.value, known()).map(|near| format!("; did you mean {near:?}?"));
        let message = format!(
            "{}: no plugin {:?} is configured{}",
            s.name("tools"),
            text.value,
            hint.unwrap_or_else(|| format!(
                ", and the groups of built-in tools are {}; it is offered once a plugin of that name is loaded",
                groups()
            ))
        );
        r.warn(&text.origin, message);
    }
    PluginName::new(text.value)
}

/// What `auto` stands for: the first provider, in the order of the kinds, that is named like its kind and can be
/// asked. One that is configured may be a server of one's own, which wants no key.
fn automatic(providers: &Providers, secrets: &Secrets<'_>) -> &'static str {
    let is_set = |name: &str| secrets.variable(name).is_some_and(|value| !value.trim().is_empty());
    let can_be_asked = |kind: &ProviderKind| {
        let preset = kind.preset();
        if let Some(provider) = providers.get(preset.name) {
            return provider.kind != ProviderKind::Offline && !provider.lacks_key();
        }
        // What is no URL is complained of once the provider is used, so it must be.
        let url = secrets.variable(preset.url_variable).map(str::trim).filter(|url| !url.is_empty());
        let is_own = url.is_some_and(|url| !kind.is_home(url));
        is_service(*kind) && (is_own || is_set(preset.key_variable))
    };
    let found = ProviderKind::ALL.iter().find(|kind| can_be_asked(kind));
    found.copied().unwrap_or(ProviderKind::Offline).name()
}

/// The kind of the provider called `name`. Those called as their kind need no entry.
pub(super) fn known(
    name: &str,
    at: &Origin,
    key: &str,
    r: &mut Report,
    providers: &mut Providers,
    secrets: &Secrets<'_>,
) -> Option<ProviderKind> {
    if let Some(provider) = providers.get(name) {
        return Some(provider.kind);
    }
    if let Some(kind) = ProviderKind::from_name(name) {
        let preset = kind.preset();
        let variable = preset.key_variable;
        let api_key = match variable {
            "" => None,
            variable => secrets.in_env(r, at, key, variable),
        };
        let base_url = base_url_in_env(kind, r, secrets).unwrap_or_else(|| preset.base_url.to_owned());
        let provider = Provider::new(kind, &base_url, api_key);
        if provider.lacks_key() {
            let why =
                format!("the environment variable {variable} is not set, so {name} is asked without a key");
            r.warn(at, format!("{key}: {why}"));
        }
        providers.insert(name.to_owned(), provider);
        return Some(kind);
    }
    let kinds = || ProviderKind::ALL.map(ProviderKind::name);
    let all = || providers.keys().map(String::as_str).chain(kinds()).chain(["auto"]);
    let hint = match nearest(name, all()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!(
            "there are: {}",
            all().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
        ),
    };
    r.complain(at, format!("{key}: there is no provider {name:?}; {hint}"));
    None
}
