//! `[providers.*]` and `[agents.*]`: who answers, and where a model is asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::credentials::Secrets;
use super::load::{DEFAULT_TOOLS, EMBEDDED_ADAPTERS, EMBEDDED_PLUGINS, check_name};
use super::section::{At, Report, Section, nearest};
use super::tree::Origin;
use super::{Agent, McpServer, Patience, Plugin, Provider};
use crate::ids::{AgentId, PluginName};
use crate::provider::ProviderKind;
use crate::provider::model::ModelRef;
use crate::provider::openai::is_openai;
use crate::tools::built_in::{ToolGroup, is_built_in};
use crate::tools::mcp::McpGrant;
use crate::tools::node::NodeTool;

const KINDS: [ProviderKind; 3] = [ProviderKind::Anthropic, ProviderKind::OpenAi, ProviderKind::Offline];

impl Provider {
    /// Whether it is a service that wants a key, and there is none.
    pub fn lacks_key(&self) -> bool {
        let is_home = self.kind != ProviderKind::Offline && self.base_url == home_url(self.kind);
        is_home && self.api_key.is_none()
    }
}

/// Where a kind's own service is; the key of its environment variable goes there and nowhere else.
const fn home_url(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Anthropic => "https://api.anthropic.com",
        ProviderKind::OpenAi => "https://api.openai.com/v1",
        ProviderKind::Offline => "",
    }
}

/// The variable of the environment that holds the key of a kind's service; empty for one without a network.
pub const fn key_variable(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Anthropic => "ANTHROPIC_API_KEY",
        ProviderKind::OpenAi => "OPENAI_API_KEY",
        ProviderKind::Offline => "",
    }
}

/// The variable of the environment that says where a kind's service is, as its other clients honour it; empty
/// for one without a network. It holds where the configuration gives no `base_url`.
pub const fn url_variable(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Anthropic => "ANTHROPIC_BASE_URL",
        ProviderKind::OpenAi => "OPENAI_BASE_URL",
        ProviderKind::Offline => "",
    }
}

/// The model of an agent that names none, at a provider of this kind at this base URL. None for servers that
/// have models of their own: OpenAI's are not asked of anybody but OpenAI.
pub fn default_model(kind: ProviderKind, base_url: &str) -> Option<&'static str> {
    match kind {
        ProviderKind::Anthropic => Some("claude-sonnet-4-5"),
        ProviderKind::OpenAi => is_openai(base_url).then_some("gpt-4o"),
        ProviderKind::Offline => Some("offline"),
    }
}

pub(super) type Providers = BTreeMap<String, Provider>;

pub(super) fn providers(s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Providers {
    let mut providers = Providers::new();
    for (name, s) in s.named(r) {
        check_name(r, &s.origin(""), "providers", &name);
        if name == "auto" {
            r.complain(&s.origin(""), "providers: \"auto\" is reserved");
        }
        if let Some(provider) = provider(&name, s, r, secrets) {
            providers.insert(name, provider);
        }
    }
    providers
}

fn provider(name: &str, mut s: Section, r: &mut Report, secrets: &mut Secrets<'_>) -> Option<Provider> {
    let by_name = KINDS.into_iter().find(|kind| kind.name() == name);
    let kinds = KINDS.map(|kind| (kind.name(), Some(kind)));
    let kind = s.choice(r, "kind", by_name, &kinds);
    let (base_url, api_key, ca_file);
    match kind {
        Some(kind) => {
            let from_env = base_url_in_env(kind, r, secrets);
            base_url = base_url_of(kind, &mut s, r, from_env.as_deref());
            let at_home = base_url == home_url(kind);
            let complaints = r.complaints.len();
            // A key of the environment goes where the environment says, and nowhere else.
            let is_its_own = at_home || (from_env.is_some() && !s.has("base_url"));
            let variable = if is_its_own { key_variable(kind) } else { "" };
            let sought = secrets.either(&mut s, r, "api_key_env", variable, "api_key_file");
            if sought.secret.is_none()
                && r.complaints.len() == complaints
                && (sought.is_named || (at_home && !base_url.is_empty()))
            {
                let what = sought.described();
                r.warn(
                    &s.origin("api_key_env"),
                    format!("providers.{name}: {what} is not set, so {name} is asked without a key"),
                );
            }
            api_key = sought.secret;
            ca_file = s.optional(r, "ca_file").map(|path| secrets.home.join(path));
        }
        None => {
            if !s.has("kind") {
                r.complain(
                    &s.origin(""),
                    format!("providers.{name}.kind: missing; allowed is \"anthropic\" or \"openai\" or \"offline\""),
                );
            }
            for key in ["base_url", "api_key_env", "api_key_file", "ca_file"] {
                s.optional(r, key);
            }
            s.finish(r);
            return None;
        }
    }
    let kind = kind?;
    if api_key.is_some() && base_url.starts_with("http://") && !is_local(&base_url) {
        r.warn(&s.origin("base_url"), format!("{}: the key travels unencrypted", s.name("base_url")));
    }
    let patience =
        patience(&mut s, r, if is_local(&base_url) { Patience::at_home() } else { Patience::default() });
    s.finish(r);
    Some(Provider { kind, base_url, api_key, ca_file, patience })
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
    let text = s.text(r, "base_url", home_url(kind));
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
            && rest.chars().all(|c| c.is_ascii_graphic() && !"?#\"<>\\^`{|}".contains(c))
    })
}

/// Where the environment says that a kind's service is; none where it says nothing, or what is no URL, which
/// is complained of.
fn base_url_in_env(kind: ProviderKind, r: &mut Report, secrets: &Secrets<'_>) -> Option<String> {
    let variable = url_variable(kind);
    let url = secrets.variable(variable)?.trim().trim_end_matches('/');
    if url.is_empty() || is_base_url(url) {
        return Some(url.to_owned()).filter(|url| !url.is_empty());
    }
    r.complain(&Origin::Env(variable.into()), format!("{variable}: expected {EXPECTED_URL}"));
    None
}

fn is_local(url: &str) -> bool {
    ["http://127.", "http://localhost", "http://[::1]"].iter().any(|local| url.starts_with(local))
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
        let found = automatic(&name, &model, r, providers, secrets);
        if found == ProviderKind::Offline.name()
            && providers.values().any(|p| p.kind != ProviderKind::Offline)
        {
            r.warn(
                &s.origin("provider"),
                format!(
                    "agents.{name}.provider: \"auto\" knows only providers named anthropic and openai that have their key, so this agent runs offline; name one of {}",
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
        let model = Some(model).filter(|model| !model.is_empty());
        match model.or_else(|| default_model(kind, base_url).map(str::to_owned)) {
            Some(model) => models.push(ModelRef { provider, model }),
            None => {
                let at = if s.has("model") { s.origin("model") } else { s.origin("provider") };
                r.complain(
                    &at,
                    format!(
                        "{}: missing; {base_url} has models of its own, which `clawmux models` lists: name one of them",
                        s.name("model")
                    ),
                );
            }
        }
    }
    for At { value, origin } in s.texts(r, "fallback", Some(&[])).unwrap_or_default() {
        match value.split_once('/') {
            Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
                if known(provider, &origin, &s.name("fallback"), r, providers, secrets).is_some() {
                    models.push(ModelRef { provider: provider.to_owned(), model: model.to_owned() });
                }
            }
            _ => r.complain(
                &origin,
                format!(
                    "{}: expected PROVIDER/MODEL such as \"openai/gpt-4o\", found {value:?}",
                    s.name("fallback")
                ),
            ),
        }
    }
    let max_tokens = s.integer(r, "max_tokens", 4096, 1..=1_000_000) as u32;
    let soul = home.join(s.text(r, "soul", "SOUL.md"));
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
    Agent { id: AgentId::new(name), models, max_tokens, soul, tools, node_tools, mcp_tools, built_in }
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
    }
    let plugins = || plugins.iter().map(|plugin| plugin.name.as_str());
    let known = || EMBEDDED_PLUGINS.into_iter().chain(ToolGroup::ALL.map(ToolGroup::name)).chain(plugins());
    if !known().any(|name| name == text.value) {
        let hint = nearest(&text.value, known()).map(|near| format!("; did you mean {near:?}?"));
        let message = format!(
            "{}: no plugin {:?} is configured{}",
            s.name("tools"),
            text.value,
            hint.unwrap_or_else(|| ": it is offered once it is loaded".into())
        );
        r.warn(&text.origin, message);
    }
    PluginName::new(text.value)
}

/// What `auto` stands for: a provider that can be asked, Anthropic's before OpenAI's.
fn automatic(
    agent: &str,
    model: &str,
    r: &mut Report,
    providers: &Providers,
    secrets: &Secrets<'_>,
) -> &'static str {
    for kind in [ProviderKind::Anthropic, ProviderKind::OpenAi] {
        if let Some(provider) = providers.get(kind.name()) {
            // A server of one's own may want no key.
            if provider.api_key.is_some() || provider.base_url != home_url(provider.kind) {
                return kind.name();
            }
            continue;
        }
        let is_set = |name: &str| secrets.variable(name).is_some_and(|value| !value.trim().is_empty());
        // What is no URL is complained of once the provider is used, so it must be.
        let url = secrets.variable(url_variable(kind)).map_or("", |url| url.trim().trim_end_matches('/'));
        let is_own = !url.is_empty() && url != home_url(kind);
        if is_own && is_base_url(url) && model.is_empty() && default_model(kind, url).is_none() {
            let variable = url_variable(kind);
            r.warn(
                &Origin::Env(variable.into()),
                format!(
                    "agents.{agent}.model: not set, and {variable} names a server with models of its own: this agent \
                     runs offline until it is set; `clawmux setup` chooses one"
                ),
            );
        } else if is_own || is_set(key_variable(kind)) {
            return kind.name();
        }
    }
    ProviderKind::Offline.name()
}

/// The kind of the provider called `name`. Those called as their kind need no entry.
fn known(
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
    if let Some(kind) = KINDS.into_iter().find(|kind| kind.name() == name) {
        let api_key = match kind {
            ProviderKind::Offline => None,
            kind => secrets.in_env(r, at, key, key_variable(kind)),
        };
        let base_url = base_url_in_env(kind, r, secrets).unwrap_or_else(|| home_url(kind).to_owned());
        if api_key.is_none() && kind != ProviderKind::Offline && base_url == home_url(kind) {
            let variable = key_variable(kind);
            let why =
                format!("the environment variable {variable} is not set, so {name} is asked without a key");
            r.warn(at, format!("{key}: {why}"));
        }
        let patience = if is_local(&base_url) { Patience::at_home() } else { Patience::default() };
        let provider = Provider { kind, base_url, api_key, ca_file: None, patience };
        providers.insert(name.to_owned(), provider);
        return Some(kind);
    }
    let all = || providers.keys().map(String::as_str).chain(KINDS.map(ProviderKind::name)).chain(["auto"]);
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
