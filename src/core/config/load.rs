//! From layers of text to a validated [`Config`], or to every complaint there is.
//!
//! Pure: who calls has read the files, knows the environment, and lends a function that reads
//! secret files. Defaults stand here, where each key is read; the sample `gateway.toml` writes them out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::document::{shown, shown_file};
use super::section::{Report, Section, nearest};
use super::tree::{Complaint, File, Flag, Origin, merge};
use super::{
    Config, Files, Gateway, Limits, Log, LogFormat, OpenClaw, Scheduler, Store, Xeno, approvals, bus,
    channels, cluster, credentials, mcp, memory, models, plugins, spending,
};
use crate::access::authority::Authority;
use crate::access::token;
use crate::conversation::router::Binding;
use crate::conversation::session::Recovery;
use crate::error::Error;
use crate::ids::{AgentId, SessionKey};
use crate::prompt::run_options::PROMPT_COST;
use crate::schedule::Cron;

/// The plugins that ship in the binary.
pub const EMBEDDED_PLUGINS: [&str; 8] =
    ["calc", "clock", "echo", "fetch", "notes", "slack", "telegram", "webhook"];

/// Those of them that are adapters of channels, and no tools.
pub(super) const EMBEDDED_ADAPTERS: [&str; 3] = ["slack", "telegram", "webhook"];

/// Those of them that an agent is offered where its `tools` are not written.
pub const DEFAULT_TOOLS: [&str; 2] = ["echo", "clock"];

/// All that a configuration is made of.
pub struct Sources<'a> {
    /// The files, the weakest first.
    pub files: &'a [File<'a>],
    /// The environment: values of keys (`CLAWMUX__SECTION__KEY`) and secrets.
    pub env: &'a [(String, String)],
    /// Values from the command line, which win over all others.
    pub flags: &'a [Flag<'a>],
    /// The folder that relative paths start from.
    pub home: &'a Path,
    /// The name of this machine.
    pub host: &'a str,
    /// Reads a file that holds a secret; the error says why it can't be read.
    pub read_secret: &'a mut dyn FnMut(&Path) -> Result<String, String>,
    /// Whether a file is there.
    pub is_file: &'a mut dyn FnMut(&Path) -> bool,
    /// Whether the store in this file knows of a credential that the daemon gave out.
    pub has_issued: &'a mut dyn FnMut(&Path) -> bool,
}

/// A configuration to run on.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration that they make.
    pub config: Config,
    /// What has no effect or is probably not meant.
    pub warnings: Vec<Complaint>,
}

/// Puts the layers together and validates them.
///
/// # Errors
/// Every complaint, in the order of the layers and lines.
pub fn load(sources: Sources<'_>) -> Result<Loaded, Vec<Complaint>> {
    let (config, mut report) = read(sources)?;
    report.sort();
    if report.complaints.is_empty() {
        Ok(Loaded { config, warnings: report.warnings })
    } else {
        Err(report.complaints)
    }
}

/// What is found in a configuration, whether one can run on it or not.
#[derive(Clone, Debug)]
pub struct Examined {
    /// What to run on; only of use where nothing is complained of.
    pub config: Option<Config>,
    /// What its strongest file says, as JSON. Here and in `effective`, [`HIDDEN`](super::HIDDEN)
    /// stands for what may be a secret. Null where the file is no TOML.
    pub file: Json,
    /// What all keys say, whoever said it.
    pub effective: Json,
    /// Where what they say was written, as `section.key`, where it was; of plugins as `plugins.NAME`.
    pub origins: BTreeMap<String, Origin>,
    /// Why one can't run on it.
    pub complaints: Vec<Complaint>,
    /// What has no effect or is probably not meant.
    pub warnings: Vec<Complaint>,
}

impl Examined {
    /// Adds what only the file system or others know to be wrong, each where its key was written. What stands where
    /// something else is wrong already says nothing new.
    pub fn complain(&mut self, messages: impl IntoIterator<Item = String>) {
        for message in messages {
            let complaint = self.placed(message);
            let is_known = complaint.at != Origin::Default
                && self.complaints.iter().any(|known| known.at == complaint.at);
            if !is_known {
                self.complaints.push(complaint);
            }
        }
        self.complaints.sort();
    }

    /// What is said of a key, or of a plugin, with the place where that was written.
    pub fn placed(&self, message: String) -> Complaint {
        let unplaced = Complaint { at: Origin::Default, message };
        let (key, _) = unplaced.split();
        let plugins = self.origins.iter().filter_map(|(path, at)| Some((path.strip_prefix("plugins.")?, at)));
        let mut named = plugins.filter(|(name, _)| unplaced.message.contains(&format!("plugin {name}: ")));
        let at = self.origins.get(key).or_else(|| named.next().map(|(_, at)| at)).cloned();
        Complaint { at: at.unwrap_or(Origin::Default), ..unplaced }
    }
}

/// Looks into a configuration. A file that is not there counts as one without text.
pub fn examine(sources: Sources<'_>) -> Examined {
    let no_file = File { name: "", text: "" };
    let file = shown_file(sources.files.last().unwrap_or(&no_file)).unwrap_or_default();
    match read(sources) {
        Ok((config, mut report)) => {
            report.sort();
            let effective = shown(&report.effective);
            Examined {
                config: Some(config),
                file,
                effective,
                origins: report.origins,
                complaints: report.complaints,
                warnings: report.warnings,
            }
        }
        Err(complaints) => {
            let (effective, origins) = (json!({}), BTreeMap::new());
            Examined { config: None, file, effective, origins, complaints, warnings: Vec::new() }
        }
    }
}

impl Default for Config {
    /// What no file, an empty environment and an empty home path give.
    fn default() -> Self {
        let read_secret = &mut |_: &Path| Err("there is none".to_owned());
        let is_file = &mut |_: &Path| false;
        let (home, has_issued) = (Path::new(""), &mut |_: &Path| false);
        load(Sources { files: &[], env: &[], flags: &[], home, host: "", read_secret, is_file, has_issued })
            .expect("the defaults are valid: a test loads them")
            .config
    }
}

pub(super) fn read(sources: Sources<'_>) -> Result<(Config, Report), Vec<Complaint>> {
    let Sources { files, env, flags, home, host, read_secret, is_file, has_issued } = sources;
    let mut root = Section::root(merge(files, env, flags)?);
    let mut report = Report::default();
    let r = &mut report;

    let (gateway, listen_origin) = gateway(root.section(r, "gateway"), r);
    let mut secrets = credentials::Secrets { env, home, read_file: read_secret };
    let (auth, lengths) = credentials::auth(root.section(r, "auth"), r, &mut secrets);
    credentials::check_lengths(&lengths, &gateway.listen, r);
    let granted = plugins::secrets(root.section(r, "secrets"), r, &mut secrets);
    let mut providers = models::providers(root.section(r, "providers"), r, &mut secrets, &granted);
    let mut plugins = plugins::plugins(root.list(r, "plugins"), r, home, &granted);
    let mcp = mcp::servers(root.list(r, "mcp"), r, home, &granted);
    let offered = models::Offered { plugins: &plugins, mcp: &mcp };
    let agents = models::agents(root.section(r, "agents"), r, &mut providers, &secrets, home, &offered);
    let approvals = approvals::approvals(root.section(r, "approvals"), r, &offered);
    let channels = channels::channels(root.section(r, "channels"), r, &mut secrets);
    let bus = bus::bus(root.section(r, "bus"), r, &mut secrets, &auth);
    let cluster = cluster::cluster(root.section(r, "cluster"), r, &mut secrets, host);
    plugins::add_adapters(&mut plugins, &channels, &granted, r);
    plugins::add_embedded(&mut plugins, agents.values().flat_map(|agent| &agent.tools));

    let named: BTreeSet<&str> = agents.keys().map(AgentId::as_str).collect();
    let mut default = root.section(r, "default");
    let default_agent = Some(default.text(r, "agent", "main")).filter(|name| !name.is_empty());
    if let Some(name) = &default_agent {
        check_agent(r, &default.origin("agent"), &default.name("agent"), name, &named);
    }
    default.finish(r);
    let bindings = bindings(root.list(r, "bindings"), r, &named);

    let sandbox = plugins::sandbox(root.section(r, "sandbox"), r);

    let budgets = spending::budgets(root.section(r, "budgets"), r, &named);
    let models = spending::models(root.section(r, "models"), r, &providers);

    let limits = limits(root.section(r, "limits"), r);

    let memory = memory::memory(root.section(r, "memory"), r, &mut providers, &secrets);

    let scheduler = scheduler(root.section(r, "scheduler"), r);
    let files = files_section(root.section(r, "files"), r, home);
    let openclaw = openclaw(root.section(r, "openclaw"), r, home, is_file);
    let xeno = xeno(root.section(r, "xeno"), r, home);

    let mut section = root.section(r, "store");
    let store = Store {
        path: home.join(section.text(r, "path", "clawmux.db")),
        recovery: section.choice(
            r,
            "recovery",
            Recovery::Resume,
            &[("resume", Recovery::Resume), ("interrupt", Recovery::Interrupt)],
        ),
        retention_days: section.integer(r, "retention_days", 0, 0..=36_500),
        max_bytes: section.integer(r, "max_bytes", 0, 0..=1 << 50),
    };
    if section.has("path") && store.path == home {
        r.complain(&section.origin("path"), "store.path: expected the path of a file, found \"\"");
    }
    section.finish(r);

    let log = log(root.section(r, "log"), r);
    root.finish(r);

    if let Err(error) = Authority::new(&auth).may_listen(&gateway.listen)
        && !has_issued(&store.path)
    {
        r.complain(&listen_origin, format!("gateway.listen: {}", error.message));
    }
    let config = Config {
        gateway,
        auth,
        providers,
        agents,
        default_agent: default_agent.map(AgentId::new),
        bindings,
        plugins,
        mcp,
        channels,
        bus,
        cluster,
        sandbox,
        approvals,
        models,
        budgets,
        limits,
        memory,
        scheduler,
        files,
        openclaw,
        xeno,
        store,
        log,
    };
    Ok((config, report))
}

fn gateway(mut s: Section, r: &mut Report) -> (Gateway, Origin) {
    let listen = match s.texts(r, "listen", Some(&["127.0.0.1:18789"])) {
        None => vec![SocketAddr::from(([127, 0, 0, 1], 18789))],
        Some(texts) => {
            let mut listen = Vec::with_capacity(texts.len());
            if texts.is_empty() {
                r.complain(&s.origin("listen"), "gateway.listen: expected at least one ADDR:PORT");
            }
            for text in texts {
                match text.value.parse::<SocketAddr>() {
                    Ok(address) if address.port() != 0 && listen.contains(&address) => {
                        r.complain(&text.origin, format!("gateway.listen: {address} is listed twice"));
                    }
                    Ok(address) => listen.push(address),
                    Err(_) => r.complain(
                        &text.origin,
                        format!(
                            "gateway.listen: expected ADDR:PORT such as \"127.0.0.1:18789\" or \"[::1]:18789\", found {:?}",
                            text.value
                        ),
                    ),
                }
            }
            listen
        }
    };
    let mut allowed_origins = Vec::new();
    for origin in s.texts(r, "allowed_origins", Some(&[])).unwrap_or_default() {
        match normal_origin(&origin.value) {
            Some(normal) => allowed_origins.push(normal),
            None => r.complain(
                &origin.origin,
                format!(
                    "gateway.allowed_origins: expected SCHEME://HOST[:PORT] such as \"https://app.example.com\", found {:?}",
                    origin.value
                ),
            ),
        }
    }
    let socket_group = Some(s.text(r, "socket_group", "")).filter(|group| !group.is_empty());
    let gateway = Gateway {
        listen,
        allowed_origins,
        socket_group,
        handshake_timeout: s.millis(r, "handshake_timeout_ms", 10_000),
        heartbeat_interval: s.millis(r, "heartbeat_interval_ms", 30_000),
        heartbeat_timeout: s.millis(r, "heartbeat_timeout_ms", 90_000),
        max_payload_bytes: s.count(r, "max_payload_bytes", 10_485_760, 1024..=1 << 30),
        message_timeout: s.millis(r, "message_timeout_ms", 60_000),
        max_unfinished_bytes: s.count(r, "max_unfinished_bytes", 268_435_456, 1 << 20..=1 << 40),
        max_buffered_bytes: s.count(r, "max_buffered_bytes", 16_777_216, 65_536..=1 << 40),
        max_connections: s.count(r, "max_connections", 0, 0..=10_000_000),
        slow_consumer_timeout: s.millis(r, "slow_consumer_timeout_ms", 30_000),
        drain_timeout: s.millis(r, "drain_timeout_ms", 10_000),
    };
    if gateway.heartbeat_timeout <= gateway.heartbeat_interval {
        let key =
            if s.has("heartbeat_timeout_ms") { "heartbeat_timeout_ms" } else { "heartbeat_interval_ms" };
        r.complain(
            &s.origin(key),
            "gateway.heartbeat_timeout_ms: expected more than heartbeat_interval_ms, so that clients have time to answer",
        );
    }
    let origin = s.origin("listen");
    s.finish(r);
    (gateway, origin)
}

/// An origin as browsers send it. A trailing slash is forgiven; a path, a user or `*` is not.
fn normal_origin(text: &str) -> Option<String> {
    let text = text.strip_suffix('/').unwrap_or(text).to_ascii_lowercase();
    let (scheme, authority) = text.split_once("://")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let good = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !authority.is_empty()
        && authority.chars().all(plain);
    good.then_some(text)
}

fn bindings(sections: Vec<Section>, r: &mut Report, agents: &BTreeSet<&str>) -> Vec<Binding> {
    let mut bindings = Vec::with_capacity(sections.len());
    for mut s in sections {
        let agent = s.text(r, "agent", "");
        check_agent(r, &s.origin("agent"), &s.name("agent"), &agent, agents);
        let binding = Binding {
            agent: AgentId::new(agent),
            channel: s.optional(r, "channel"),
            account: s.optional(r, "account"),
            peer: s.optional(r, "peer"),
            guild: s.optional(r, "guild"),
            team: s.optional(r, "team"),
        };
        let narrow = binding.account.is_some()
            || binding.peer.is_some()
            || binding.guild.is_some()
            || binding.team.is_some();
        if narrow && binding.channel.is_none() {
            r.warn(
                &s.origin("agent"),
                "bindings: no channel is named, so this matches the same name in every channel",
            );
        }
        bindings.push(binding);
        s.finish(r);
    }
    bindings
}

fn limits(mut s: Section, r: &mut Report) -> Limits {
    let limits = Limits {
        requests_burst: s.integer(r, "requests_burst", 100, 0..=1_000_000) as u32,
        requests_per_second: s.integer(r, "requests_per_second", 20, 1..=1_000_000) as u32,
        queue: s.count(r, "queue", 64, 1..=100_000),
        queued_bytes: s.integer(r, "queued_bytes", 64 << 20, 0..=1 << 50),
        sessions: s.integer(r, "sessions", 10_000, 0..=1 << 50),
        store_bytes: s.integer(r, "store_bytes", 1 << 30, 0..=1 << 50),
        subscriptions: s.count(r, "subscriptions", 256, 1..=65_536),
        agents: s.count(r, "agents", 10, 1..=10_000),
        agent_depth: s.integer(r, "agent_depth", 3, 1..=100) as u32,
        connections: s.count(r, "connections", 256, 1..=1_000_000),
        unauthenticated: s.count(r, "unauthenticated", 256, 1..=1_000_000),
        file_quota_bytes: s.integer(r, "file_quota_bytes", 1 << 30, 0..=1 << 50),
    };
    if (1..PROMPT_COST).contains(&limits.requests_burst) {
        r.complain(
            &s.origin("requests_burst"),
            format!("limits.requests_burst: a prompt costs {PROMPT_COST}, so none would ever pass: expected 0 or at least {PROMPT_COST}"),
        );
    }
    s.finish(r);
    limits
}

fn openclaw(mut s: Section, r: &mut Report, home: &Path, is_file: &mut dyn FnMut(&Path) -> bool) -> OpenClaw {
    const HOUR_MS: u64 = 3_600_000;
    let tick_ms = s.integer(r, "tick_interval_ms", 15_000, 100..=HOUR_MS);
    let max_payload_bytes = s.count(r, "max_payload_bytes", 26_214_400, 1024..=1 << 30);
    let control_ui = s.optional(r, "control_ui").map(|path| home.join(path));
    if let Some(folder) = control_ui.as_ref().filter(|folder| !is_file(&folder.join("index.html"))) {
        r.complain(
            &s.origin("control_ui"),
            format!(
                "openclaw.control_ui: expected the folder of an installed Control UI, such as NODE_MODULES/openclaw/dist/control-ui: there is no index.html in {}",
                folder.display()
            ),
        );
    }
    s.finish(r);
    OpenClaw { tick_interval: Duration::from_millis(tick_ms), max_payload_bytes, control_ui }
}

fn log(mut s: Section, r: &mut Report) -> Log {
    let formats = [
        ("auto", LogFormat::Auto),
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
        ("journald", LogFormat::Journald),
    ];
    let log =
        Log { format: s.choice(r, "format", LogFormat::Auto, &formats), filter: s.text(r, "filter", "info") };
    s.finish(r);
    log
}

fn scheduler(mut s: Section, r: &mut Report) -> Scheduler {
    const YEAR_MINUTES: u64 = 366 * 24 * 60;
    let minutes = s.integer(r, "heartbeat_minutes", 0, 0..=YEAR_MINUTES);
    let result_to = s.optional(r, "heartbeat_result_to").filter(|key| !key.is_empty());
    let result_to = result_to.and_then(|key| {
        let read = SessionKey::parse(&key);
        let why = |error: Error| {
            r.complain(
                &s.origin("heartbeat_result_to"),
                format!("scheduler.heartbeat_result_to: {}", error.message),
            )
        };
        read.map_err(why).ok()
    });
    let scheduler = Scheduler {
        heartbeat_result_to: result_to,
        heartbeat: (minutes > 0).then(|| Duration::from_secs(minutes * 60)),
        heartbeat_tokens: s.integer(r, "heartbeat_tokens", 20_000, 0..=u64::MAX),
        new_session_cron: Some(s.text(r, "new_session_cron", "")).filter(|cron| !cron.is_empty()),
    };
    if let Some(expression) = &scheduler.new_session_cron
        // Which zone is no matter for whether it can be understood.
        && let Err(error) = Cron::new(expression, "UTC")
    {
        r.complain(&s.origin("new_session_cron"), format!("scheduler.new_session_cron: {error}"));
    }
    s.finish(r);
    scheduler
}

fn files_section(mut s: Section, r: &mut Report, home: &Path) -> Files {
    let roots = s.texts(r, "attachment_roots", Some(&[])).unwrap_or_default();
    let attachment_roots = roots.into_iter().map(|root| home.join(root.value)).collect();
    s.finish(r);
    Files { attachment_roots }
}

fn xeno(mut s: Section, r: &mut Report, home: &Path) -> Xeno {
    let xeno = Xeno {
        home: Some(s.text(r, "home", "")).filter(|path| !path.is_empty()).map(|path| home.join(path)),
        max_line_bytes: s.count(r, "max_line_bytes", 16_777_216, 1024..=1 << 30),
    };
    s.finish(r);
    xeno
}

pub(super) fn check_agent(r: &mut Report, at: &Origin, key: &str, name: &str, agents: &BTreeSet<&str>) {
    if agents.contains(name) {
        return;
    }
    let near = nearest(name, agents.iter().copied()).map(|near| format!("; did you mean {near:?}?"));
    let all = || format!("; there are: {}", agents.iter().copied().collect::<Vec<_>>().join(", "));
    r.complain(at, format!("{key}: there is no agent {name:?}{}", near.unwrap_or_else(all)));
}

/// Names are lowercase, so that environment variables can name them.
pub(super) fn check_name(r: &mut Report, at: &Origin, key: &str, name: &str) {
    const CHARS_MAX: usize = token::NAME_BYTES_MAX;
    let good = token::is_name(name);
    if !good {
        r.complain(
            at,
            format!("{key}: expected a name of lowercase letters, digits, '-', '_' and '.', at most {CHARS_MAX}, found {name:?}"),
        );
    }
}
