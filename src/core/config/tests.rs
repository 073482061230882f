//! The loader from outside: layers in, a configuration or complaints out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::access::authority::digest;
use crate::conversation::approval::Toolbox;
use crate::provider::budget::{Among, BudgetRule, Caps};
use crate::provider::price::{Money, Rate};
use crate::scope::Scope;
use crate::scope::Scopes;
use crate::tools::call::ToolCall;

const SAMPLE: &str = include_str!("../../../gateway.toml");

struct Given<'a> {
    files: Vec<(&'a str, &'a str)>,
    env: Vec<(&'a str, &'a str)>,
    listen: Vec<&'a str>,
}

impl Given<'_> {
    fn read(&self) -> Result<(Config, section::Report), Vec<Complaint>> {
        self.with(load::read)
    }

    fn with<T>(&self, load: impl FnOnce(Sources<'_>) -> T) -> T {
        self.on("ada", load)
    }

    /// On a machine of this name.
    fn on<T>(&self, host: &str, load: impl FnOnce(Sources<'_>) -> T) -> T {
        let files: Vec<File<'_>> = self.files.iter().map(|(name, text)| File { name, text }).collect();
        let env: Vec<(String, String)> =
            self.env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let listen: Vec<String> = self.listen.iter().map(|text| (*text).into()).collect();
        let flag = Flag { name: "--listen", key: "gateway.listen", values: &listen };
        let flags = if listen.is_empty() { vec![] } else { vec![flag] };
        let mut read_secret = |path: &Path| match path.file_name().and_then(|name| name.to_str()) {
            Some("missing") => Err("no such file".to_owned()),
            Some("empty") => Ok("\n".to_owned()),
            Some(name) => Ok(format!("secret of {name}\n")),
            None => Err("not a file".to_owned()),
        };
        load(Sources {
            files: &files,
            env: &env,
            flags: &flags,
            home: Path::new("/home"),
            host,
            read_secret: &mut read_secret,
            is_file: &mut |path| path.starts_with("/home/ui"),
            has_issued: &mut |path| path == Path::new("/home/issued.db"),
        })
    }

    fn config(&self) -> Config {
        self.loaded().config
    }

    fn loaded(&self) -> Loaded {
        self.with(load).unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")))
    }

    fn complaints(&self) -> Vec<String> {
        match self.with(load) {
            Ok(_) => panic!("accepted: {:?} {:?}", self.files, self.env),
            Err(complaints) => lines(&complaints),
        }
    }
}

fn lines(complaints: &[Complaint]) -> Vec<String> {
    complaints.iter().map(Complaint::to_string).collect()
}

fn toml(text: &str) -> Given<'_> {
    Given { files: vec![("gateway.toml", text)], env: vec![], listen: vec![] }
}

fn env<'a>(env: &[(&'a str, &'a str)]) -> Given<'a> {
    Given { files: vec![], env: env.to_vec(), listen: vec![] }
}

/// The sample with its commented examples taken in.
fn sample_with_examples() -> String {
    let example = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        let key = rest.split_once(" = ").map_or("", |(key, _)| key);
        let is_key =
            !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        (rest.starts_with('[') || is_key).then(|| rest.to_owned())
    };
    SAMPLE.lines().map(|line| example(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn the_sample_is_the_defaults() {
    let loaded = Given { files: vec![("gateway.toml", SAMPLE)], env: vec![], listen: vec![] }
        .with(|sources| load(Sources { home: Path::new(""), ..sources }));
    let loaded = loaded.unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")));
    assert_eq!(loaded.config, Config::default());
    assert_eq!(lines(&loaded.warnings), Vec::<String>::new());
}

#[test]
fn the_examples_of_the_sample_hold_and_no_key_is_missing() {
    let text = sample_with_examples();
    // `token_file` beside `token_env` stands for "instead of".
    let given = Given {
        env: vec![
            ("CI_KEY", "key"),
            ("GITHUB_TOKEN", "token"),
            ("TELEGRAM_WEBHOOK_SECRET", "a-secret-of-telegram"),
        ],
        ..toml(&text)
    };
    let (_, report) = given.read().unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")));
    assert_eq!(lines(&report.complaints), Vec::<String>::new());

    let mut written = BTreeSet::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split_once("]]")) {
            section = format!("{}[]", name.0);
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            section = match name.0.split_once('.') {
                Some((free @ ("agents" | "channels" | "models" | "providers" | "secrets"), _)) => {
                    format!("{free}.*")
                }
                _ => name.0.to_owned(),
            };
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            written.insert(format!("{section}.{key}"));
        }
    }
    // What has free names is written as one table.
    let known = report.keys.all().map(|(path, _)| path.strip_suffix(".*").unwrap_or(path).to_owned());
    let known: BTreeSet<String> = known.collect();
    let mut missing: Vec<_> = known.difference(&written).collect();
    // Said in the comment of the key beside it.
    missing.retain(|key| !SAMPLE.contains("or key_file, or sha256") || *key != "auth.api_keys[].key_file");
    missing.retain(|key| !SAMPLE.contains("or value_file, a file") || *key != "secrets.*.value_file");
    missing.retain(|key| !SAMPLE.contains("or secret_file, a file") || *key != "channels.*.secret_file");
    let keys = ["nkey_file", "token_env", "token_file"];
    let instead = ["bus", "cluster"].map(|section| keys.map(|key| format!("{section}.{key}"))).concat();
    missing.retain(|key| {
        !SAMPLE.contains("instead: nkey_file, or token_env or token_file") || !instead.contains(key)
    });
    assert!(missing.is_empty(), "write these keys into gateway.toml: {missing:?}");
    let unknown: Vec<_> = written.difference(&known).collect();
    assert!(unknown.is_empty(), "gateway.toml writes keys that have no effect: {unknown:?}");
}

#[test]
fn nothing_at_all_runs_offline_on_loopback() {
    let config = env(&[]).config();
    assert_eq!(config.gateway.listen, ["127.0.0.1:18789".parse().unwrap()]);
    let main = &config.agents[&AgentId::from("main")];
    assert_eq!(main.models, [ModelRef { provider: "offline".into(), model: "offline".into() }]);
    assert_eq!(main.soul, Path::new("/home/SOUL.md"));
    assert_eq!(config.store.path, Path::new("/home/clawmux.db"));
    assert_eq!(config.default_agent, Some("main".into()));
    assert_eq!(config.auth.token, None);
}

#[test]
fn later_layers_win_key_by_key() {
    let given = Given {
        files: vec![
            (
                "/etc/clawmux/gateway.toml",
                "[limits]\nqueue = 1\n[budgets]\nsession = 1\ndaily = 1\nmonthly = 1",
            ),
            ("gateway.toml", "[budgets]\ndaily = 2\nmonthly = 2"),
        ],
        env: vec![("CLAWMUX__BUDGETS__MONTHLY", "3"), ("CLAWMUX__GATEWAY__LISTEN", "127.0.0.1:1")],
        listen: vec!["127.0.0.1:2", "[::1]:3"],
    };
    let config = given.config();
    assert_eq!(
        config.budgets,
        Budgets { session: 1, all: Caps { daily: 2, monthly: 3, ..Caps::default() }, ..Budgets::default() }
    );
    assert_eq!(config.limits.queue, 1);
    assert_eq!(config.gateway.listen, ["127.0.0.1:2".parse().unwrap(), "[::1]:3".parse().unwrap()]);
}

#[test]
fn the_environment_can_say_every_kind_of_value() {
    let config = env(&[
        ("CLAWMUX__AGENTS__MAIN__TOOLS", "echo, clock"),
        ("CLAWMUX__AGENTS__WORK__PROVIDER", "offline"),
        ("CLAWMUX__GATEWAY__ALLOWED_ORIGINS", "[\"https://A.example/\"]"),
        ("CLAWMUX__STORE__RECOVERY", "interrupt"),
        ("CLAWMUX__GATEWAY__DRAIN_TIMEOUT_MS", "1_500"),
        ("CLAWMUX__BINDINGS", "[{agent = \"work\", channel = \"x\"}]"),
        ("CLAWMUX_HOME", "not a key"),
    ])
    .config();
    assert_eq!(config.agents[&AgentId::from("main")].tools, ["echo".into(), "clock".into()]);
    assert_eq!(config.gateway.allowed_origins, ["https://a.example"]);
    assert_eq!(config.store.recovery, Recovery::Interrupt);
    assert_eq!(config.gateway.drain_timeout, Duration::from_millis(1500));
    assert_eq!(config.bindings[0].agent.as_str(), "work");
}

#[test]
fn commands_of_nodes_are_granted_as_tools() {
    let text = r#"[agents.main]
tools = ["echo", "node:laptop/system.which", "node:0123456789abcdef01234567/camera.snap"]
"#;
    let loaded = toml(text).loaded();
    assert_eq!(lines(&loaded.warnings), Vec::<String>::new(), "a node that is not there now may come");
    let agent = &loaded.config.agents[&AgentId::from("main")];
    assert_eq!(agent.tools, ["echo".into()]);
    let names: Vec<&str> = agent.node_tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["node_laptop_system_which", "node_0123456789abcdef01234567_camera_snap"]);

    let text = r#"[agents.main]
tools = ["node:laptop", "node:a/b.c", "node:a/b c", "node_a_b_c"]
"#;
    let complaints = toml(text).complaints();
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    assert!(
        complaints[0].contains("gateway.toml:2") && complaints[0].contains("NODE/COMMAND"),
        "{complaints:?}"
    );
    assert!(complaints[1].contains("both be offered as node_a_b_c"), "{complaints:?}");
    assert!(complaints[2].contains("which is a plugin"), "{complaints:?}");
}

#[test]
fn built_in_tools_are_granted_by_their_groups() {
    let loaded = toml("[agents.main]\ntools = [\"echo\", \"memory\", \"memory\"]\n").loaded();
    assert_eq!(lines(&loaded.warnings), Vec::<String>::new());
    let agent = &loaded.config.agents[&AgentId::from("main")];
    assert_eq!((&*agent.tools, &*agent.built_in), (&["echo".into()][..], &[ToolGroup::Memory][..]));

    let text = "[agents.main]\ntools = [\"memory_search\", \"read_result\"]\n[[plugins]]\nname = \"sessions\"\npath = \"a.wasm\"\n";
    let complaints = toml(text).complaints();
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    let said = complaints.join("\n");
    for why in [
        r#""memory_search" is granted by the name of its group, "memory""#,
        r#""read_result" is offered without a grant"#,
        r#""sessions" is the name of a built-in tool or of a group of them"#,
    ] {
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn every_complaint_comes_at_once_with_its_place() {
    let text = r#"[gateway]
listen = ["127.0.0.1:1", "here"]
handshake_timeout_ms = 0
heartbeet_interval_ms = 5

[auth]
token = "geheim-geheim"
loopback = "maybe"

[agents.Main]
[agents.main]
provider = "antropic"
max_tokens = "many"
fallback = ["gpt-4o"]

[default]
agent = "man"

[[bindings]]
agent = "nobody"

[[plugins]]
name = "mine"
capabilities = ["http:ftp://x", "host_function:clock"]
approval = "sometimes"
[[plugins]]
name = "echo"
[[plugins]]
name = "echo"

[budgets]
daily = -1
[sections]
x = 1
"#;
    let given = Given {
        env: vec![("CLAWMUX__LIMITS__QUEUE", "x"), ("CLAWMUX__LIMITS__QUEU", "1"), ("CLAWMUX__", "1")],
        ..toml(text)
    };
    // A variable that names no key is found before anything is read; the rest comes together.
    assert_eq!(given.complaints(), ["CLAWMUX__: expected CLAWMUX__SECTION__KEY"]);
    let given = Given { env: given.env[..2].to_vec(), ..given };
    let complaints = given.complaints();
    for (line, says) in [
        ("gateway.toml:2:", "expected ADDR:PORT"),
        ("gateway.toml:3:", "expected a whole number from 1 to 86400000, found 0"),
        ("gateway.toml:4:", "heartbeet_interval_ms: unknown key; did you mean heartbeat_interval_ms?"),
        (
            "gateway.toml:7:",
            "auth.token: unknown key; secrets are never written here: use token_env or token_file",
        ),
        ("gateway.toml:8:", "expected \"auto\" or \"required\" or \"skip\", found \"maybe\""),
        ("gateway.toml:10:", "expected a name of lowercase letters"),
        ("gateway.toml:12:", "there is no provider \"antropic\"; did you mean \"anthropic\"?"),
        ("gateway.toml:13:", "max_tokens: expected a whole number"),
        ("gateway.toml:14:", "expected PROVIDER/MODEL"),
        ("gateway.toml:17:", "there is no agent \"man\"; did you mean \"main\"?"),
        ("gateway.toml:20:", "there is no agent \"nobody\"; there are:"),
        ("gateway.toml:23:", "plugins.path: missing for \"mine\""),
        (
            "gateway.toml:24:",
            "plugins.capabilities: mine: capability \"http:ftp://x\": the scheme is \"ftp\"",
        ),
        ("gateway.toml:25:", "plugins.approval: expected \"never\" or \"ask\", found \"sometimes\""),
        ("gateway.toml:29:", "two plugins named \"echo\""),
        ("gateway.toml:32:", "budgets.daily: expected a whole number of at least 0, found -1"),
        ("gateway.toml:33:", "sections: unknown key"),
        ("CLAWMUX__LIMITS__QUEUE:", "expected a whole number from 1 to 100000, found \"x\""),
        ("CLAWMUX__LIMITS__QUEU:", "did you mean queue?"),
    ] {
        assert!(
            complaints.iter().any(|c| c.starts_with(line) && c.contains(says)),
            "no complaint {line} {says} in\n{}",
            complaints.join("\n")
        );
    }
    assert_eq!(complaints.len(), 19, "{}", complaints.join("\n"));
    assert!(!complaints.join("").contains("geheim"), "a secret is not repeated");
}

#[test]
fn no_plugin_has_the_name_of_a_built_in_tool() {
    let complaints = toml("[[plugins]]\nname = \"read_result\"\npath = \"x.wasm\"\n").complaints();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("\"read_result\" is the name of a built-in tool"), "{complaints:?}");
}

#[test]
fn broken_toml_is_complained_of_with_its_line_in_every_file() {
    let given = Given {
        files: vec![("a.toml", "[gateway]\nlisten = [\n"), ("b.toml", "x = 1\n[log\n")],
        env: vec![],
        listen: vec![],
    };
    let complaints = given.complaints();
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].starts_with("a.toml:") && complaints[1].starts_with("b.toml:2: not valid TOML"));
}

#[test]
fn a_section_that_is_none_and_a_key_that_is_a_section() {
    let complaints =
        toml("gateway = 3\nlog = { format = { x = 1 } }\nagents = { main = 1 }\nbindings = 1").complaints();
    assert!(complaints[0].contains("expected a section [gateway], found 3"), "{complaints:?}");
    assert!(complaints[1].contains("found a section"), "{complaints:?}");
    assert!(complaints[2].contains("agents.main: expected a section"), "{complaints:?}");
    assert!(complaints[3].contains("expected sections [[bindings]]"), "{complaints:?}");
}

#[test]
fn the_control_ui_is_a_folder_with_a_page() {
    let openclaw = toml("[openclaw]\ntick_interval_ms = 200\ncontrol_ui = \"ui\"").config().openclaw;
    assert_eq!(openclaw.control_ui.as_deref(), Some(Path::new("/home/ui")));
    assert_eq!(openclaw.tick_interval, Duration::from_millis(200));
    assert_eq!(openclaw.max_payload_bytes, 26_214_400, "its own, not the gateway's");
    let complaints = toml("[openclaw]\ntick_interval_ms = 1\ncontrol_ui = \"/elsewhere\"").complaints();
    assert!(complaints[0].starts_with("gateway.toml:2: openclaw.tick_interval_ms"), "{complaints:?}");
    assert!(complaints[1].starts_with("gateway.toml:3: openclaw.control_ui"), "{complaints:?}");
    assert!(complaints[1].contains("no index.html in /elsewhere"), "{complaints:?}");
}

#[test]
fn auto_is_the_first_whose_key_is_set() {
    let models = |text, env: &[_]| {
        let given = Given { env: env.to_vec(), ..toml(text) };
        let config = given.config();
        let model = config.agents[&AgentId::from("main")].models[0].clone();
        assert!(config.providers.contains_key(&model.provider), "{model:?} is filled in");
        (model.provider, model.model)
    };
    let is = |provider: &str, model: &str| (provider.to_owned(), model.to_owned());
    let (anthropic, openai) = (("ANTHROPIC_API_KEY", "a"), ("OPENAI_API_KEY", "o"));
    assert_eq!(models("", &[anthropic, openai]), is("anthropic", "claude-sonnet-4-5"));
    assert_eq!(models("", &[openai]), is("openai", "gpt-4o"));
    assert_eq!(models("", &[("ANTHROPIC_API_KEY", " ")]), is("offline", "offline"));
    assert_eq!(models("[agents.main]\nmodel = \"o3\"", &[openai]), is("openai", "o3"));
    // A configured one counts by its own key, or none where it is a server of one's own.
    let own = "[agents.main]\nmodel = \"llama\"\n[providers.openai]\nbase_url = \"http://127.0.0.1:1/v1/\"";
    assert_eq!(models(own, &[]), is("openai", "llama"));
    let keyed = "[providers.anthropic]\napi_key_env = \"MY_KEY\"";
    assert_eq!(models(keyed, &[("MY_KEY", "x"), openai]), is("anthropic", "claude-sonnet-4-5"));
    assert_eq!(models(keyed, &[anthropic]), is("offline", "offline"));
    // Then the others, in their order; a server only where it is configured.
    let (groq, router) = (("GROQ_API_KEY", "g"), ("OPENROUTER_API_KEY", "r"));
    assert_eq!(models("", &[groq, router, openai]), is("openai", "gpt-4o"));
    assert_eq!(models("", &[groq, router]), is("openrouter", "openrouter/auto"));
    assert_eq!(models("", &[groq]), is("groq", ""), "the first that it lists");
    assert_eq!(models("", &[("OLLAMA_HOST", "gpu.lan")]), is("offline", "offline"));
    assert_eq!(models("[providers.ollama]", &[]), is("ollama", ""));
    assert_eq!(models("[providers.ollama]", &[openai]), is("openai", "gpt-4o"));
}

#[test]
fn providers_get_their_own_key_only() {
    let text = "[providers.openai]\nkind = \"openai\"\n[providers.lab]\nkind = \"openai\"\nbase_url = \"http://lab:1/v1/\"\n\
                [providers.filed]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_file = \"keys/filed\"\nca_file = \"ca.pem\"";
    let given = Given { env: vec![("OPENAI_API_KEY", "o")], ..toml(text) };
    let config = given.config();
    assert_eq!(config.providers["openai"].api_key, Some(Secret::new("o")));
    assert_eq!(config.providers["lab"].api_key, None, "the key of api.openai.com goes nowhere else");
    assert_eq!(config.providers["lab"].base_url, "http://lab:1/v1");
    assert_eq!(config.providers["filed"].api_key, Some(Secret::new("secret of filed")));
    assert_eq!(config.providers["filed"].ca_file, Some(PathBuf::from("/home/ca.pem")));
    for bad in ["ftp://x", "https://", "http://user:pw@host", "http://x?key=1", "x", "http://a b"] {
        let text = format!("[providers.lab]\nkind = \"openai\"\nbase_url = {bad:?}");
        let complaints = toml(&text).complaints();
        assert!(complaints[0].contains("providers.lab.base_url: expected http://"), "{complaints:?}");
        assert!(!complaints[0].contains("pw"), "{complaints:?}");
    }
    assert!(
        toml("[providers.lab]\nbase_url = \"http://x\"").complaints()[0]
            .contains("providers.lab.kind: missing")
    );
}

#[test]
fn a_provider_may_have_several_keys() {
    let keys = |config: &Config, name: &str| -> Vec<String> {
        config.providers[name].keys().map(|key| key.expose().to_owned()).collect()
    };
    let env = vec![("OPENAI_API_KEY", "o"), ("A", "a"), ("B", "b")];
    let text = "[providers.openai]\napi_key_envs = [\"A\", \"GONE\", \"B\"]\napi_key_files = [\"keys/c\"]\n\
                [providers.both]\nkind = \"openai\"\nbase_url = \"https://lab\"\napi_key_env = \"B\"\napi_key_envs = [\"A\"]\n\
                [providers.none]\nkind = \"openai\"\nbase_url = \"https://lab\"\napi_key_envs = [\"GONE\"]";
    let loaded = Given { env: env.clone(), ..toml(text) }.loaded();
    assert_eq!(
        keys(&loaded.config, "openai"),
        ["a", "b", "secret of c"],
        "the one that nobody named gives way"
    );
    assert_eq!(keys(&loaded.config, "both"), ["b", "a"]);
    assert_eq!(keys(&loaded.config, "none"), [""; 0]);
    let warnings = lines(&loaded.warnings);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains(
            "gateway.toml:2: providers.openai.api_key_envs: the environment variable GONE is not set"
        ),
        "{warnings:?}"
    );
    for (text, says) in [
        ("api_key_envs = [\"A\", \"A\"]", "providers.openai.api_key_envs: key 2 is the same as key 1"),
        ("api_key_envs = [\"sk-ant-geheim\"]", "expected the name of an environment variable, not a secret"),
        ("api_key_envs = \"A\"", "providers.openai.api_key_envs: expected a list of strings"),
        ("max_concurrent = -1", "providers.openai.max_concurrent: expected"),
    ] {
        let text = format!("[providers.openai]\n{text}");
        let complaints = Given { env: env.clone(), ..toml(&text) }.complaints();
        assert!(complaints[0].contains(says) && !complaints[0].contains("geheim"), "{complaints:?}");
    }
    let text = "[providers.openai]\nmax_concurrent = 7";
    assert_eq!(Given { env, ..toml(text) }.config().providers["openai"].max_concurrent, 7);
}

#[test]
fn the_environment_says_where_a_service_is_that_no_file_says() {
    let (url, key) = (("OPENAI_BASE_URL", " http://127.0.0.1:1/v1/ "), ("OPENAI_API_KEY", "o"));
    let of = |text: &'static str, env: &[(&'static str, &'static str)]| {
        let loaded = Given { env: env.to_vec(), ..toml(text) }.loaded();
        let openai = loaded.config.providers.get("openai").cloned();
        (openai, loaded.config.agents[&AgentId::from("main")].models[0].to_string(), lines(&loaded.warnings))
    };
    for text in [
        "[agents.main]\nmodel = \"llama\"",
        "[agents.main]\nprovider = \"openai\"\nmodel = \"llama\"",
        "[providers.openai]\n[agents.main]\nmodel = \"llama\"",
    ] {
        let (openai, model, warnings) = of(text, &[url, key]);
        let openai = openai.unwrap();
        assert_eq!((openai.base_url.as_str(), model.as_str()), ("http://127.0.0.1:1/v1", "openai/llama"));
        assert_eq!(openai.api_key, Some(Secret::new("o")), "both are the environment's");
        let (openai, _, none) = of(text, &[url]);
        assert!(openai.unwrap().api_key.is_none() && warnings.is_empty(), "{warnings:?}");
        assert!(none.is_empty(), "nobody named a key: {none:?}");
    }
    let file = "[providers.openai]\nbase_url = \"https://lab/v1\"\n[agents.main]\nmodel = \"llama\"";
    let openai = of(file, &[url, key]).0.unwrap();
    assert_eq!((openai.base_url.as_str(), openai.api_key), ("https://lab/v1", None), "the file wins");
    let anthropic = ("ANTHROPIC_BASE_URL", "https://proxy.example/anthropic/");
    let given = Given { env: vec![anthropic, ("ANTHROPIC_API_KEY", "a")], ..toml("") };
    assert_eq!(given.config().providers["anthropic"].base_url, "https://proxy.example/anthropic");
    let given = Given { env: vec![("OPENAI_BASE_URL", "http://me:pw@x"), key], ..toml("") };
    let complaints = given.complaints();
    assert!(complaints[0].contains("OPENAI_BASE_URL: expected http://"), "{complaints:?}");
    assert!(!complaints[0].contains("pw"), "{complaints:?}");
}

#[test]
fn kinds_know_where_they_are_and_what_their_key_is_called() {
    for (kind, variable, base_url) in [
        ("openai-responses", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("openrouter", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
        ("gemini", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta/openai"),
        ("mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
        ("deepseek", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
        ("groq", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    ] {
        for text in [
            format!("[providers.{kind}]"),
            format!("[agents.main]\nprovider = {kind:?}"),
            format!("[providers.{kind}]\nbase_url = \"{}\"", base_url.trim_end_matches("/v1")),
        ] {
            let given = Given { env: vec![(variable, "k")], ..toml(&text) };
            let provider = given.config().providers[kind].clone();
            let is_same = provider.base_url.trim_end_matches("/v1") == base_url.trim_end_matches("/v1");
            assert!(is_same && provider.kind.name() == kind, "{provider:?}");
            assert_eq!(provider.api_key, Some(Secret::new("k")), "{text}");
        }
        let elsewhere = format!("[providers.{kind}]\nbase_url = \"http://lab:1\"");
        let given = Given { env: vec![(variable, "k")], ..toml(&elsewhere) };
        assert_eq!(given.config().providers[kind].api_key, None, "it goes nowhere else");
    }
    let ollama = |env: &[(&'static str, &'static str)]| {
        let loaded = Given { env: env.to_vec(), ..toml("[agents.main]\nprovider = \"ollama\"") }.loaded();
        assert_eq!(lines(&loaded.warnings), [""; 0], "it wants no key");
        loaded.config.providers["ollama"].base_url.clone()
    };
    assert_eq!(ollama(&[]), "http://127.0.0.1:11434/v1");
    assert_eq!(ollama(&[("OLLAMA_HOST", "gpu.lan:99")]), "http://gpu.lan:99/v1");
    let complaints = toml("[providers.lab]\nkind = \"opnai\"").complaints();
    assert!(
        complaints[0].contains("\"openai-responses\"") && complaints[0].contains("\"groq\""),
        "{complaints:?}"
    );
}

#[test]
fn headers_are_sent_besides_those_that_are_ours() {
    let lab = "[providers.lab]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1\"\napi_key_file = \"k\"\n[providers.lab.headers]\n";
    let secret = "[secrets.team]\nvalue_env = \"TEAM\"\n";
    let text = format!("{secret}{lab}X-Title = \"clawmux\"\nx-team = \"secret:team\"\nuser-agent = \"me\"\n");
    let given = Given { env: vec![("TEAM", "geheim")], ..toml(&text) };
    let config = given.config();
    let headers = &config.providers["lab"].headers;
    let sent: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(sent, [("user-agent", "me"), ("x-team", "geheim"), ("x-title", "clawmux")]);
    assert!(!format!("{config:?}").contains("geheim"));
    for (header, says) in [
        (
            "Content-Length = \"1\"",
            "providers.lab.headers.Content-Length: clawmux sets content-length itself",
        ),
        (
            "authorization = \"Basic x\"",
            "providers.lab.headers.authorization: the key is sent in authorization",
        ),
        ("\"a b\" = \"x\"", "providers.lab.headers: \"a b\" is not the name of a header"),
        ("Cookie = \"geheim\"", "providers.lab.headers.Cookie: secrets are never written here"),
        ("x = \"secret:teams\"", "there is no [secrets.teams], did you mean \"team\"?"),
        ("x = \"geheim\\n\"", "providers.lab.headers.x: it has characters that a header can't hold"),
        ("x = \"\"", "providers.lab.headers.x: it is empty"),
        ("x = \"a\"\nX = \"b\"", "it is there twice"),
    ] {
        let text = format!("{secret}{lab}{header}");
        let complaints = Given { env: vec![("TEAM", "geheim")], ..toml(&text) }.complaints();
        assert!(complaints[0].contains(says) && !complaints[0].contains("geheim"), "{complaints:?}");
    }
    // What may be a secret is not shown.
    let shown = Given { env: vec![("TEAM", "geheim")], ..toml(&text) }.with(examine).file;
    let shown = &shown["providers"]["lab"]["headers"];
    assert_eq!((&shown["X-Title"], &shown["x-team"]), (&json!("(hidden)"), &json!("secret:team")));
}

#[test]
fn models_of_openai_are_asked_of_nobody_else() {
    let text = "[providers.lab]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:11434/v1\"\n[agents.main]\nprovider = \"lab\"";
    let unnamed = |config: Config| config.agents[&AgentId::from("main")].models[0].to_string();
    assert_eq!(unnamed(toml(text).config()), "lab", "the first that it lists");
    let named = format!("{text}\nmodel = \"llama3.2\"");
    assert_eq!(toml(&named).config().agents[&AgentId::from("main")].models[0].model, "llama3.2");
    let openai = "[providers.eu]\nkind = \"openai\"\nbase_url = \"https://eu.api.openai.com/v1\"\n[agents.main]\nprovider = \"eu\"";
    assert_eq!(toml(openai).config().agents[&AgentId::from("main")].models[0].model, "gpt-4o");
    let own = env(&[("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"), ("OPENAI_API_KEY", "o")]).loaded();
    assert_eq!((unnamed(own.config), lines(&own.warnings)), ("openai".to_owned(), Vec::new()));
}

#[test]
fn warnings_name_the_variable_that_is_not_set() {
    let warnings = |text: &'static str| lines(&toml(text).loaded().warnings).join("\n");
    let said = warnings(
        "[providers.lab]\nkind = \"openai\"\nbase_url = \"http://lab:1\"\napi_key_env = \"LAB_KEY\"",
    );
    assert!(
        said.contains("the environment variable LAB_KEY is not set, so lab is asked without a key"),
        "{said}"
    );
    let said = warnings("[agents.main]\nprovider = \"anthropic\"");
    assert!(said.contains("the environment variable ANTHROPIC_API_KEY is not set"), "{said}");
    assert_eq!(
        warnings(
            "[agents.main]\nprovider = \"offline\"\n[providers.lab]\nkind = \"openai\"\nbase_url = \"http://lab:1\""
        ),
        "",
        "nobody named one"
    );
    assert_eq!(warnings("[auth.jwt]\nissuer = \"me\""), "");
    let complaints = toml("[auth]\ntoken_env = \"abcdef0123456789\"").complaints();
    assert!(complaints[0].contains("the environment variable it names is not set"), "{complaints:?}");
    let complaints = toml("[auth.jwt]\nsecret_env = \"MY_SECRET\"").complaints();
    assert!(complaints[0].contains("the environment variable MY_SECRET is not set"), "{complaints:?}");
}

#[test]
fn models_that_are_named_as_elsewhere_are_understood_or_said_to_be_elsewhere() {
    let local = "[providers.local]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:8080\"\n[agents.main]\n";
    let complaints = toml("[agents.main]\nmodel = \"groq/llama-3\"").complaints();
    assert!(complaints[0].contains("set provider = \"groq\" and model = \"llama-3\""), "{complaints:?}");
    let text = format!("{local}provider = \"local\"\nmodel = \"local/m\"");
    let warnings = toml(&text).with(examine).warnings;
    assert!(
        warnings.iter().any(|warning| warning.to_string().contains("did you mean \"m\"?")),
        "{warnings:?}"
    );
    let text = format!("{local}provider = \"offline\"\nfallback = [\"local\", \"nowhere\"]");
    let complaints = toml(&text).complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("found \"nowhere\""), "{complaints:?}");
    let config = toml(&text.replace(", \"nowhere\"", "")).config();
    let models: Vec<_> =
        config.agents[&AgentId::from("main")].models.iter().map(ToString::to_string).collect();
    assert_eq!(models[1], "local", "its own default");
}

#[test]
fn tools_that_are_not_there_are_named_with_what_there_is() {
    for (tool, says) in [
        ("ehco", "did you mean \"echo\"?"),
        ("messages", "the groups of built-in tools are memory"),
        ("job_add", "granted by the name of its group, \"jobs\""),
    ] {
        let examined = toml(&format!("[agents.main]\ntools = [\"{tool}\"]")).with(examine);
        let said = examined.complaints.iter().chain(&examined.warnings);
        let said: Vec<String> = said.map(ToString::to_string).collect();
        assert!(said.len() == 1 && said[0].contains(says), "{tool}: {said:?}");
    }
}

#[test]
fn ports_of_base_urls_are_ports() {
    use super::models::is_base_url;
    for good in
        ["http://h", "http://h:1", "https://[::1]:65535/v1", "http://[::1]/v1", "http://127.0.0.1:80/v1"]
    {
        assert!(is_base_url(good), "{good}");
    }
    for bad in [
        "http://h:",
        "http://h:0",
        "http://h:x",
        "http://127.0.0.1:29104x",
        "http://h:65536",
        "http://h:+80",
        "http://::1:80",
    ] {
        assert!(!is_base_url(bad), "{bad}");
    }
}

#[test]
fn fallbacks_follow_the_model() {
    let text = "[agents.main]\nprovider = \"offline\"\nfallback = [\"openai/gpt-4o\", \"anthropic/a/b\"]";
    let config = toml(text).config();
    let models: Vec<String> = config.agents[&AgentId::from("main")]
        .models
        .iter()
        .map(|model| format!("{}/{}", model.provider, model.model))
        .collect();
    assert_eq!(models, ["offline/offline", "openai/gpt-4o", "anthropic/a/b"]);
}

#[test]
fn vectors_are_made_by_a_provider_that_can() {
    let memory = |text: &str| format!("[memory]\nembeddings = {text:?}\n");
    for off in ["", "off"] {
        assert_eq!(toml(&memory(off)).config().memory.embeddings, None);
    }
    let model = toml(&memory("ollama/nomic-embed-text")).config().memory.embeddings.unwrap();
    assert_eq!(model.to_string(), "ollama/nomic-embed-text");
    for (text, says) in [
        ("nomic", "memory.embeddings: expected \"off\" or PROVIDER/MODEL such as"),
        ("nobody/m", "memory.embeddings: "),
        ("anthropic/m", "memory.embeddings: anthropic is of the kind anthropic, which makes no vectors"),
        ("offline/m", "memory.embeddings: offline is of the kind offline"),
    ] {
        let complaints = toml(&memory(text)).complaints();
        assert!(complaints.len() == 1 && complaints[0].contains(says), "{text}: {complaints:?}");
    }
}

#[test]
fn credentials_come_from_where_the_configuration_says() {
    let hex = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let text = format!(
        "[auth]\ntoken_file = \"token\"\n[[auth.api_keys]]\nname = \"a\"\nsha256 = \"{hex}\"\nrole = \"user\"\n\
         [[auth.api_keys]]\nname = \"b\"\nkey_env = \"B\"\nscopes = [\"daemon.read\", \"operator.approvals\"]\n\
         [[auth.api_keys]]\nname = \"c\"\nkey_file = \"/c\"\nrole = \"admin\""
    );
    let given = Given { env: vec![("B", "bee"), ("CLAWMUX_TOKEN", "other")], ..toml(&text) };
    let auth = given.config().auth;
    assert_eq!(auth.token, Some(Secret::new("secret of token")));
    assert_eq!(auth.api_keys[0].sha256, digest("test"));
    assert_eq!(auth.api_keys[0].scopes, Scopes::USER);
    assert_eq!(auth.api_keys[1].sha256, digest("bee"));
    assert_eq!(auth.api_keys[1].scopes, Scopes::of(&[Scope::Read, Scope::Approve]));
    assert_eq!((auth.api_keys[2].sha256, auth.api_keys[2].scopes), (digest("secret of c"), Scopes::ADMIN));
    assert_eq!(
        env(&[("CLAWMUX_TOKEN", "0123456789abcdef\n")]).config().auth.token.unwrap().expose().len(),
        16
    );
}

#[test]
fn a_credential_that_is_not_there_is_never_no_credential() {
    for (text, says) in [
        ("[auth]\ntoken_env = \"MY_TOKEN\"", "is not set"),
        ("[auth]\ntoken_env = \"sk-very-secret\"", "expected the name of an environment variable"),
        ("[auth]\ntoken_file = \"missing\"", "/home/missing can't be read: no such file"),
        ("[auth]\ntoken_file = \"empty\"", "is empty"),
        ("[[auth.api_keys]]\nname = \"a\"\nrole = \"user\"", "has no key"),
        ("[[auth.api_keys]]\nname = \"a\"\nrole = \"user\"\nsha256 = \"12\"", "64 hexadecimal digits"),
        ("[[auth.api_keys]]\nname = \"a\"\nkey_file = \"k\"", "has no role"),
        ("[[auth.api_keys]]\nname = \"a\"\nkey_file = \"k\"\nrole = \"root\"", "found \"root\""),
        (
            "[[auth.api_keys]]\nname = \"a\"\nkey_file = \"k\"\nscopes = [\"daemon.reed\"]",
            "did you mean \"daemon.read\"",
        ),
        ("[[auth.api_keys]]\nname = \"token\"\nkey_file = \"k\"\nrole = \"user\"", "is reserved"),
        ("[[auth.api_keys]]\nname = \"a\"\nkey_env = \"NOT_SET\"\nrole = \"user\"", "is not set"),
        ("[auth]\nloopback = \"required\"", "no credential is configured"),
        ("[auth.jwt]\nsecret_env = \"MY_SECRET\"", "is not set"),
        ("[auth.jwt]\nsecret_env = \"sk-very-secret\"", "expected the name of an environment variable"),
        ("[auth.jwt]\nsecret_file = \"missing\"", "/home/missing can't be read: no such file"),
        ("[auth.jwt]\nsecret_file = \"k\"", "auth.jwt.secret_file: the secret must have at least 32 bytes"),
        ("[auth.jwt]\nissuer = \"\"", "auth.jwt.issuer: expected a name"),
        ("[auth.jwt]\nsecret = \"sk-very-secret\"", "use secret_env or secret_file"),
    ] {
        let complaints = toml(text).complaints().join("\n");
        assert!(complaints.contains(says) && !complaints.contains("very-secret"), "{text}: {complaints}");
    }
    assert!(env(&[("CLAWMUX_TOKEN", "")]).complaints()[0].contains("CLAWMUX_TOKEN is empty"));
}

#[test]
fn a_jwt_secret_is_a_credential_and_a_short_one_is_refused() {
    const LONG: &str = "0123456789abcdef0123456789abcdef";
    assert_eq!(env(&[]).config().auth.jwt, None);
    let complaints = env(&[("CLAWMUX_JWT_SECRET", &LONG[1..])]).complaints();
    assert!(complaints[0].contains("at least 32 bytes") && !complaints[0].contains("1234"), "{complaints:?}");
    let jwt = env(&[("CLAWMUX_JWT_SECRET", LONG)]).config().auth.jwt.unwrap();
    assert_eq!((&*jwt.issuer, &*jwt.audience), ("wundr-orchestrator", "wundr-daemon"));
    assert_eq!(jwt.secret.expose(), LONG);
    let text = "[auth.jwt]\nsecret_env = \"S\"\nissuer = \"me\"\naudience = \"you\"";
    let given = Given { env: vec![("S", LONG)], listen: vec!["0.0.0.0:1"], ..toml(text) };
    let jwt = given.config().auth.jwt.unwrap();
    assert_eq!((&*jwt.issuer, &*jwt.audience), ("me", "you"));
}

#[test]
fn secrets_that_can_be_guessed_are_refused_off_loopback() {
    const KEYS: &str = "[[auth.api_keys]]\nname = \"ci\"\nkey_env = \"CI\"\nrole = \"user\"";
    let given = |token: &'static str, key: &'static str, listen: &'static str| Given {
        env: vec![("CLAWMUX_TOKEN", token), ("CI", key)],
        listen: vec![listen],
        ..toml(KEYS)
    };
    const LONG: &str = "0123456789abcdef0123456789abcdef";
    for (token, key, says) in [
        ("0123456789abcde", LONG, "auth.token_env: the secret is shorter than 16 characters"),
        (LONG, "x", "gateway.toml:1: auth.api_keys: \"ci\": the secret is shorter than 16"),
    ] {
        let complaints = given(token, key, "0.0.0.0:1").complaints();
        assert!(complaints.len() == 1 && complaints[0].contains(says), "{complaints:?}");
        let loaded = given(token, key, "127.0.0.1:1").with(load).unwrap();
        let warned = loaded.warnings.iter().any(|warning| warning.message.contains("easy to guess"));
        assert!(warned, "{:?}", loaded.warnings);
    }
    let loaded = given("0123456789abcdef", LONG, "0.0.0.0:1").with(load).unwrap();
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].message.contains("shorter than 32 characters"), "{:?}", loaded.warnings);
    let fine = given("token-0123456789abcdef-0123456789abcdef", LONG, "0.0.0.0:1").with(load).unwrap();
    assert!(fine.warnings.is_empty(), "{:?}", fine.warnings);
}

#[test]
fn a_jwt_may_be_bound_to_a_life() {
    const LONG: &str = "0123456789abcdef0123456789abcdef";
    let given = |text| Given { env: vec![("CLAWMUX_JWT_SECRET", LONG)], ..toml(text) };
    assert_eq!(given("").config().auth.jwt.unwrap().max_life, None);
    let week = given("[auth.jwt]\nmax_life_days = 7").config().auth.jwt.unwrap();
    assert_eq!(week.max_life, Some(Duration::from_secs(7 * 86_400)));
}

#[test]
fn off_loopback_without_credentials_is_a_complaint_with_its_place() {
    let open = Given { listen: vec!["0.0.0.0:18789"], ..env(&[]) };
    let complaints = open.complaints();
    assert!(
        complaints[0].starts_with("--listen: ") && complaints[0].contains("CLAWMUX_TOKEN"),
        "{complaints:?}"
    );
    assert!(Given { env: vec![("CLAWMUX_TOKEN", "0123456789abcdef")], ..open }.with(load).is_ok());
    // One that was given out is one.
    for listen in ["0.0.0.0:18789", "127.0.0.1:18789"] {
        let text = "[auth]\nloopback = \"required\"\n[store]\npath = \"issued.db\"";
        assert!(Given { listen: vec![listen], ..toml(text) }.with(load).is_ok());
    }
}

#[test]
fn limits_that_nothing_passes_are_refused() {
    for burst in [1, 4] {
        let text = format!("[limits]\nrequests_burst = {burst}");
        assert!(toml(&text).complaints()[0].contains("a prompt costs 5"));
    }
    assert_eq!(toml("[limits]\nrequests_burst = 0").config().limits.requests_burst, 0);
    let complaints = toml("[gateway]\nheartbeat_timeout_ms = 30000").complaints();
    assert!(complaints[0].starts_with("gateway.toml:2: gateway.heartbeat_timeout_ms"), "{complaints:?}");
}

#[test]
fn no_debug_output_of_a_configuration_holds_a_secret() {
    let given = env(&[("CLAWMUX_TOKEN", "hush-hush-hush-hush"), ("OPENAI_API_KEY", "hush-too")]);
    assert!(!format!("{:?}", given.loaded()).contains("hush"));
}

proptest! {
    #[test]
    fn no_file_panics(text in any::<String>()) {
        let _ = toml(&text).with(load);
    }

    #[test]
    fn no_variable_panics(name in "[A-Z_]{0,24}", value in any::<String>()) {
        let name = format!("CLAWMUX__{name}");
        let _ = env(&[(&name, &value)]).with(load);
    }

    /// Whatever stands in place of a value, the complaint names its line.
    #[test]
    fn wrong_values_have_lines(
        value in prop_oneof![Just("1.5"), Just("[]"), Just("{}"), Just("1979-05-27"), Just("[[1]]"), Just("-1")],
        lines_before in 0_usize..5,
    ) {
        let text = format!("{}[limits]\nqueue = {value}\n", "\n".repeat(lines_before));
        let complaints = toml(&text).complaints();
        prop_assert!(complaints[0].starts_with(&format!("gateway.toml:{}: limits.queue", lines_before + 2)), "{complaints:?}");
    }
}

fn examined(text: &str) -> Examined {
    toml(text).with(examine)
}

/// What the file becomes when it is to say this.
fn edited(text: &str, asked: &serde_json::Value) -> Result<String, Vec<String>> {
    let now = examined(text);
    edit(text, asked, &now.file, &now.effective).map_err(|complaints| lines(&complaints))
}

#[test]
fn the_schema_has_every_key_of_the_sample_and_no_other() {
    fn paths(schema: &serde_json::Value, path: &str, found: &mut BTreeSet<String>) {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match schema["type"].as_str() {
            Some("object") => {
                for (name, schema) in schema["properties"].as_object().unwrap() {
                    paths(schema, &below(name), found);
                }
                if schema["additionalProperties"].is_object() {
                    paths(&schema["additionalProperties"], &below("*"), found);
                }
            }
            Some("array") if schema["items"]["type"] == "object" => {
                paths(&schema["items"], &format!("{path}[]"), found);
            }
            _ => {
                found.insert(path.to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    paths(&schema().json, "", &mut found);
    let text = sample_with_examples();
    let given = Given { env: vec![("CI_KEY", "key"), ("GITHUB_TOKEN", "token")], ..toml(&text) };
    let (_, report) = given.read().unwrap();
    let known: BTreeSet<String> = report.keys.all().map(|(path, _)| path.to_owned()).collect();
    assert_eq!(found, known, "what is read of the sample, which another test compares with its text");

    let at = |pointer: &str| schema().json.pointer(pointer).unwrap_or_else(|| panic!("{pointer}"));
    assert_eq!(at("/properties/limits/properties/queue")["default"], 64);
    assert_eq!(at("/properties/limits/properties/queue")["maximum"], 100_000);
    assert_eq!(at("/properties/log/properties/format")["enum"][2], "json");
    assert_eq!(at("/properties/gateway/properties/listen")["default"][0], "127.0.0.1:18789");
    let provider = at("/properties/providers/additionalProperties/properties");
    assert_eq!(provider["base_url"]["default"], serde_json::Value::Null, "it depends on the kind");
    for hint in &schema().hints {
        let listed = known.iter().any(|path| {
            let path = path.replace("[]", "");
            path == hint.path || path.starts_with(&format!("{}.", hint.path))
        });
        assert!(listed, "{hint:?}");
    }
    let help = |path: &str| schema().hints.iter().find(|hint| hint.path == path).map(|hint| &*hint.help);
    assert_eq!(help("limits.queue"), Some("prompts waiting per session"));
    assert_eq!(help("plugins.capabilities"), Some("what is not granted is denied"));
    assert_eq!(help("agents.*.soul"), Some("always in front of the conversation"));
}

#[test]
fn what_is_shown_has_no_secrets() {
    let text = "[auth]\ntoken = \"geheim\"\ntoken_env = \"sk-geheim\"\n[auth.nested]\nx = \"geheim\"\n\
                [[auth.api_keys]]\nname = \"a\"\nsha256 = \"geheim\"\nsecret = [\"geheim\"]\n\
                [providers.lab]\nkind = \"openai\"\nbase_url = \"https://me:geheim@lab\"\napi_key = \"geheim\"\n\
                [other]\nx = \"geheim\"\n[limits]\nqueue = 3\nqueu = \"geheim\"";
    let given = Given { env: vec![("CLAWMUX_TOKEN", "geheim"), ("GEHEIM", "geheim")], ..toml(text) };
    let found = given.with(examine);
    assert!(!found.complaints.is_empty());
    for shown in [&found.file, &found.effective] {
        assert!(!shown.to_string().contains("\"geheim") && !shown.to_string().contains(":geheim"), "{shown}");
        assert!(!shown.to_string().contains("sk-geheim"), "{shown}");
        assert_eq!(shown["limits"]["queue"], 3);
    }
    assert_eq!(found.file["auth"]["api_keys"][0]["name"], "a");
    assert_eq!(found.file["auth"]["token"], HIDDEN);
    let said = lines(&found.complaints).join("\n");
    assert!(!said.contains("sk-geheim") && !said.contains("me:geheim"), "{said}");
}

#[test]
fn the_effective_values_are_those_of_all_layers_in_their_kinds() {
    let given = Given {
        files: vec![
            ("/etc", "[limits]\nqueue = 7\n"),
            ("home", "[limits]\nsubscriptions = 8\n[xeno]\nhome = \"/x\""),
        ],
        env: vec![("CLAWMUX__BUDGETS__DAILY", "9"), ("CLAWMUX__AGENTS__MAIN__TOOLS", "echo, clock")],
        listen: vec![],
    };
    let found = given.with(examine);
    assert_eq!(found.file, serde_json::json!({ "limits": { "subscriptions": 8 }, "xeno": { "home": "/x" } }));
    let effective = &found.effective;
    assert_eq!(effective["limits"]["queue"], 7);
    assert_eq!(effective["limits"]["subscriptions"], 8);
    assert_eq!(effective["limits"]["unauthenticated"], 256, "a default");
    assert_eq!(effective["budgets"]["daily"], 9, "a number, though the environment has texts");
    assert_eq!(effective["agents"]["main"]["tools"], serde_json::json!(["echo", "clock"]));
    assert_eq!(effective["xeno"]["home"], "/x", "also what has no effect yet");
    assert_eq!(effective["store"]["path"], "clawmux.db", "as it is written, not where it leads");
}

#[test]
fn an_edit_changes_what_is_asked_and_nothing_else() {
    let text = "# mine\n[limits] # of mine\nqueue = 3   # few\n# and\nsubscriptions = 4\n\n[budgets]\ndaily = 5\n\n\
                [[plugins]]\nname = \"echo\" # the first\nfuel = 10\n[[plugins]]\nname = \"clock\"\n";
    let mut asked = examined(text).effective;
    asked["limits"]["queue"] = 30.into();
    asked["memory"]["episodic_turns"] = 6.into();
    asked["agents"]["work"] = serde_json::json!({ "provider": "offline" });
    asked["budgets"].as_object_mut().unwrap().remove("daily");
    asked["plugins"][1]["fuel"] = 20.into();
    asked["bindings"] = serde_json::json!([{ "agent": "work", "channel": "x" }]);
    let new = edited(text, &asked).unwrap();
    assert!(
        new.starts_with(
            "# mine\n[limits] # of mine\nqueue = 30   # few\n# and\nsubscriptions = 4\n\n[budgets]\n"
        ),
        "{new}"
    );
    let config = toml(&new).config();
    assert_eq!((config.limits.queue, config.memory.episodic_turns, config.budgets.all.daily), (30, 6, 0));
    assert_eq!((config.plugins[0].limits.fuel, config.plugins[1].limits.fuel), (10, 20));
    assert_eq!(config.bindings[0].channel.as_deref(), Some("x"));
    assert!(config.agents.contains_key(&AgentId::from("work")));
    assert!(
        !new.contains("unauthenticated") && !new.contains("timeout_ms"),
        "defaults are not written: {new}"
    );
    assert!(new.contains("# the first"), "{new}");

    let fewer = edited(&new, &serde_json::json!({ "plugins": [{ "name": "clock" }] })).unwrap();
    let config = toml(&fewer).config();
    assert_eq!((config.plugins.len(), config.plugins[0].name.as_str()), (1, "clock"));
    assert_eq!(config.limits.queue, 64, "what is left out is taken away");
}

#[test]
fn what_can_not_be_written_is_said_by_name() {
    for (asked, says) in [
        (serde_json::json!([1]), "configuration: expected an object of sections"),
        (serde_json::json!({ "limits": { "queue": null } }), "limits.queue: null is no value"),
        (serde_json::json!({ "limits": { "queue": u64::MAX } }), "limits.queue: the number is too large"),
    ] {
        assert!(edited("", &asked).unwrap_err()[0].contains(says), "{asked}");
    }
    for (asked, says) in [
        (serde_json::json!({ "limits": { "queue": 1.5 } }), "limits.queue: expected a whole number"),
        (serde_json::json!({ "auth": { "token": "s" } }), "secrets are never written here: use token_env"),
        (serde_json::json!({ "nonsense": { "x": 1 } }), "nonsense: unknown key"),
        (serde_json::json!({ "limits": 3 }), "limits: expected a section"),
        (
            serde_json::json!({ "agents": { "main": { "tools": "echo" } } }),
            "agents.main.tools: expected a list",
        ),
    ] {
        let new = edited("", &asked).unwrap();
        let complaints = toml(&new).complaints();
        assert!(complaints[0].contains(says), "{asked}: {complaints:?}");
    }
    let complaint = examined("[limits]\nqueue = 0").complaints.remove(0);
    assert_eq!(complaint.split().0, "limits.queue");
}

#[test]
fn a_merge_patch_changes_what_it_names() {
    let base = serde_json::json!({ "a": { "x": 1, "y": 2 }, "b": [1] });
    let patch = serde_json::json!({ "a": { "x": null, "z": { "w": null, "v": 3 } }, "b": [2, 3] });
    assert_eq!(patched(&base, &patch), serde_json::json!({ "a": { "y": 2, "z": { "v": 3 } }, "b": [2, 3] }));
}

/// Parts of files, of which any together are one.
const PARTS: [&str; 11] = [
    "[gateway] # x\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"] # y\nallowed_origins = []\n",
    "[limits]\n\n# a\nqueue = 0x10\n",
    "[auth]\ntoken_file = \"token\"\n[[auth.api_keys]]\nname = \"b\"\nkey_file = \"k\"\nrole = \"user\"\n",
    "[agents.main]\nprovider = \"offline\"\n\n[agents.work] # w\nmax_tokens = 1_000\ntools = []\nsoul = '''x.md'''\n",
    "[providers.lab]\nkind = \"openai\"\nbase_url = \"http://lab:1/v1/\"\n",
    "[[bindings]]\nagent = \"main\"\nchannel = \"x\"\n# and\n[[bindings]]\nagent = \"main\"\n",
    "plugins = [{ name = \"echo\", fuel = 5 }]\n",
    "[xeno]\nhome = \"/x\"\n",
    "[budgets]\n",
    "[openclaw]\r\ntick_interval_ms = 200\r\n",
    "[log]\nfilter = \"info\" # as by default\n",
];

proptest! {
    /// What was got can be set, and is then as it was, down to the last comment: both as the file
    /// says it and as all layers do. And a change of one key is that one change.
    #[test]
    fn setting_what_was_got_changes_nothing(chosen in prop::collection::btree_set(0..PARTS.len(), 0..PARTS.len()), queue in 1u64..1000) {
        // A key outside of sections stands first.
        let mut parts: Vec<&str> = chosen.iter().map(|index| PARTS[*index]).collect();
        parts.sort_by_key(|part| part.starts_with('['));
        let text = parts.concat();
        let now = Given { env: vec![("CLAWMUX__GATEWAY__LISTEN", "127.0.0.1:9")], ..toml(&text) }.with(examine);
        prop_assert!(now.complaints.is_empty(), "{:?}", now.complaints);
        prop_assert_eq!(edit(&text, &now.file, &now.file, &now.effective), Ok(text.clone()));
        prop_assert_eq!(edit(&text, &now.effective, &now.file, &now.effective), Ok(text.clone()));
        let mut asked = now.effective.clone();
        asked["limits"]["queue"] = queue.into();
        let new = edit(&text, &asked, &now.file, &now.effective).unwrap();
        let after = examined(&new);
        prop_assert_eq!(&after.effective["limits"]["queue"], &serde_json::json!(queue));
        let changed = patched(&now.file, &serde_json::json!({ "limits": { "queue": queue } }));
        let is_default = queue == 64 && !chosen.contains(&1);
        prop_assert_eq!(&after.file, if is_default { &now.file } else { &changed });
    }
}

#[test]
fn what_is_written_on_a_command_line_becomes_what_its_key_wants() {
    for (path, text, value) in [
        ("limits.queue", "7", json!(7)),
        ("limits.queue", "many", json!("many")),
        ("agents.main.model", "4", json!("4")),
        ("agents.main.model", "\"4\"", json!("4")),
        ("agents.main.model", "gpt-4o", json!("gpt-4o")),
        ("agents.main.tools", "[\"echo\"]", json!(["echo"])),
        ("agents.main.tools", "echo, clock", json!(["echo", "clock"])),
        ("agents.main.tools", "echo", json!(["echo"])),
        ("log.filter", "info,clawmux=debug", json!("info,clawmux=debug")),
        ("store.recovery", "resume", json!("resume")),
        ("budgets", "{ daily = 3 }", json!({ "daily": 3 })),
        ("memory.episodic_turns", "1.5", json!(1.5)),
    ] {
        assert_eq!(super::value_of_text(path, text), value, "{path} {text}");
    }
}

#[test]
fn who_names_no_key_is_told_which_is_meant() {
    for (path, says) in [
        ("limits.queu", "limits.queu: unknown key; did you mean queue?"),
        ("limit", "limit: unknown key; did you mean limits?"),
        ("queue", "queue: unknown key; did you mean limits.queue?"),
        (
            "providers.lab.api_key",
            "providers.lab.api_key: unknown key; secrets are never written here: use api_key_env or api_key_file",
        ),
        (
            "auth.token",
            "auth.token: unknown key; secrets are never written here: use token_env or token_file",
        ),
    ] {
        assert_eq!(no_such_key(path).as_deref(), Some(says));
    }
    assert!(no_such_key("store.zzz").unwrap().contains("known here: max_bytes, path, "));
    for known in ["limits", "limits.queue", "agents.x.model", "providers.lab", "plugins"] {
        assert_eq!(no_such_key(known), None, "{known}");
    }
}

#[test]
fn what_is_taken_away_leaves_no_empty_section() {
    let without = |document: serde_json::Value, path: &str| unset(&document, path);
    let both = json!({ "limits": { "queue": 3 }, "auth": { "jwt": { "issuer": "me" } } });
    assert_eq!(without(both.clone(), "limits.queue"), json!({ "auth": { "jwt": { "issuer": "me" } } }));
    assert_eq!(without(both.clone(), "auth.jwt.issuer"), json!({ "limits": { "queue": 3 } }));
    assert_eq!(without(both.clone(), "auth"), json!({ "limits": { "queue": 3 } }));
    assert_eq!(without(both.clone(), "budgets.daily"), both);
    let named = json!({ "providers": { "openai": { "base_url": "x" } } });
    assert_eq!(without(named, "providers.openai.base_url"), json!({ "providers": { "openai": {} } }));

    let text = "# the lab\n\n[limits]\nqueue = 3 # few\n\n# spend little\n[budgets]\ndaily = 9\n";
    let asked = json!({ "budgets": { "daily": 9 } });
    assert_eq!(edited(text, &asked).unwrap(), "# the lab\n\n\n# spend little\n[budgets]\ndaily = 9\n");
    let below = "# the lab\n[limits]\nqueue = 3\n[agents.main]\nmodel = \"x\"\n";
    let asked = json!({ "agents": { "main": { "model": "x" } } });
    assert_eq!(edited(below, &asked).unwrap(), "# the lab\n[agents.main]\nmodel = \"x\"\n");
    let asked = json!({ "limits": { "queue": 3 } });
    assert_eq!(edited(text, &asked).unwrap(), "# the lab\n\n[limits]\nqueue = 3 # few\n\n# spend little\n");
}

#[test]
fn what_is_not_said_is_known() {
    let said = json!({ "auth": { "token_env": "A" }, "providers": { "lab": { "kind": "openai" } } });
    assert_eq!(unsaid(&said, "auth.token_file"), ["auth.token_file"]);
    let lab = unsaid(&said, "providers");
    assert!(lab.contains(&"providers.lab.ca_file".to_owned()), "{lab:?}");
    assert!(!lab.iter().any(|key| key.contains('*') || key.ends_with(".kind")), "{lab:?}");
}

#[test]
fn secrets_of_plugins_come_from_elsewhere_and_go_where_a_grant_says() {
    let text = r#"
[secrets.github]
value_env = "GITHUB_TOKEN"
prefix = "Bearer "
[secrets.bot]
value_env = "BOT_TOKEN"
place = "path"
[[plugins]]
name = "x"
path = "x.wasm"
capabilities = ["http:api.github.com/v1", "secret:github@api.github.com", "http:t.example", "secret:bot@t.example"]
http_bytes = 10
host_calls = 0
concurrent_calls = 3
"#;
    let given = Given { env: vec![("GITHUB_TOKEN", "geheim-1"), ("BOT_TOKEN", "12:geheim")], ..toml(text) };
    let config = given.config();
    let plugin = &config.plugins[0];
    assert_eq!((plugin.limits.http_bytes, plugin.limits.host_calls, plugin.concurrent_calls), (10, 0, 3));
    let names: Vec<&str> = plugin.secrets.keys().map(String::as_str).collect();
    assert_eq!(names, ["bot", "github"]);
    assert_eq!(plugin.secrets["github"].value.expose(), "geheim-1");
    assert!(!format!("{config:?}").contains("geheim"));

    let text = r#"
[secrets.github]
value_env = "GITHUB_TOKEN"
[secrets.none]
[secrets.bad]
value_env = "BAD"
place = "path"
header = "x-key"
[secrets.odd]
value_env = "GITHUB_TOKEN"
header = "a b"
[[plugins]]
name = "x"
path = "x.wasm"
capabilities = ["secret:githup@x.example", "http:x.example", "secret:github@y.example", "secret:github@*"]
"#;
    let complaints = Given { env: vec![("BAD", "a/geheim")], ..toml(text) }.complaints();
    for says in [
        "secrets.github: the environment variable GITHUB_TOKEN is not set",
        "secrets.none: value_env or value_file must say where its value is",
        "secrets.bad: it has characters that can't stand in a path",
        "secrets.bad.header: the secret stands in the path",
        "secrets.odd.header: \"a b\" is not the name of a header",
        "there is no [secrets.githup], did you mean \"github\"?",
        "no grant of http allows requests that secret:github@https://y.example/ is for",
        "a secret goes to one host, not to all",
    ] {
        assert!(
            complaints.iter().any(|line| line.contains(says)),
            "no complaint {says} in\n{}",
            complaints.join("\n")
        );
    }
    assert!(!complaints.join("").contains("geheim"));
}

#[test]
fn a_plugin_that_ships_is_configured_by_being_named_as_a_tool() {
    let config = toml("[agents.main]\ntools = [\"fetch\", \"echo\"]").config();
    let names: Vec<&str> = config.plugins.iter().map(|plugin| plugin.name.as_str()).collect();
    assert_eq!(names, ["fetch"]);
    assert_eq!(Config::default().plugins, []);
}

#[test]
fn mcp_servers_are_programs_or_urls_with_what_they_are_given() {
    let text = r#"
[agents.main]
tools = ["echo", "mcp:files/*", "mcp:web/search"]
[[mcp]]
name = "files"
command = ["npx", "-y", "server-files"]
env = { LEVEL = "info", TOKEN = "secret:k" }
folders = ["notes", "/srv:ro"]
approval = "ask"
[[mcp]]
name = "web"
url = "https://mcp.example/v1?x=1"
secrets = ["k"]
tools = ["search"]
[secrets.k]
value_env = "K"
"#;
    let config = Given { env: vec![("K", "s3cret-k")], ..toml(text) }.config();
    let [files, web] = &config.mcp[..] else { panic!("{:?}", config.mcp) };
    let McpReach::Command(command) = &files.reach else { panic!("{files:?}") };
    assert_eq!(command.env["TOKEN"].expose(), "s3cret-k");
    assert_eq!(command.secrets.len(), 1, "what stands there in plain is none");
    let folders: Vec<_> = command.folders.iter().map(|f| (f.path.to_str().unwrap(), f.is_writable)).collect();
    assert_eq!(folders, [("/home/notes", true), ("/srv", false)]);
    assert_eq!((files.approval, files.tools.as_ref()), (Approval::Ask, None));
    let McpReach::Url(url) = &web.reach else { panic!("{web:?}") };
    assert_eq!(
        (url.url.as_str(), url.grant.to_string().as_str()),
        ("https://mcp.example/v1?x=1", "https://mcp.example/")
    );
    assert_eq!(url.secrets.len(), 1);
    let grants: Vec<String> =
        config.agents[&AgentId::from("main")].mcp_tools.iter().map(ToString::to_string).collect();
    assert_eq!(grants, ["mcp:files/*", "mcp:web/search"]);
    assert!(!format!("{config:?}").contains("s3cret-k"));
}

#[test]
fn mcp_servers_that_make_no_sense_are_named() {
    let command = "[[mcp]]\nname = \"a\"\ncommand = [\"x\"]\n";
    for (text, says) in [
        ("[[mcp]]\nname = \"a\"", "mcp: a has neither a command nor a url"),
        ("[[mcp]]\ncommand = [\"x\"]", "found \"\""),
        ("[[mcp]]\nname = \"a_b\"\ncommand = [\"x\"]", "expected lowercase letters, digits and '-'"),
        (&format!("{command}url = \"https://x\""), "keep one of them"),
        (&format!("{command}secrets = [\"k\"]"), "they go to a url"),
        (&format!("{command}env = {{ A = \"secret:k\" }}"), "there is no [secrets.k]"),
        (&format!("{command}env = {{ \"A B\" = \"x\" }}"), "not the name of a variable"),
        (&format!("{command}env = {{ A = 7 }}"), "mcp.env.A: expected text"),
        (&format!("{command}folders = [\":ro\"]"), "expected a folder"),
        (&format!("{command}{command}"), "two servers named \"a\""),
        (&format!("{command}colour = 1"), "mcp.colour: unknown key"),
        ("[[mcp]]\nname = \"a\"\nurl = \"ftp://x\"", "mcp.url: a: "),
        ("[[mcp]]\nname = \"a\"\nurl = \"https://u:p@x\"", "mcp.url: a: "),
        ("[[mcp]]\nname = \"a\"\nurl = \"https://x\"\nfolders = [\"/x\"]", "mcp.folders: a has a url"),
        ("[agents.main]\ntools = [\"mcp:files/x\"]", "there is no [[mcp]] named \"files\""),
        (&format!("[agents.main]\ntools = [\"mcp:a\"]\n{command}"), "expected mcp:SERVER/TOOL"),
        (&format!("[agents.main]\ntools = [\"mcp:a/y\"]\n{command}tools = [\"x\"]"), "does not have it"),
        (&format!("[agents.main]\ntools = [\"mcp:a/*\", \"mcp_a_x\"]\n{command}"), "which is a plugin"),
    ] {
        let complaints = toml(text).complaints();
        assert!(complaints.iter().any(|complaint| complaint.contains(says)), "{text}\n{complaints:?}");
    }
}

#[test]
fn channels_have_an_adapter_and_a_way_in() {
    let text = r#"
[channels.telegram]
mode = "poll"
allow = ["1", " 2 "]
[channels.ops]
adapter = "webhook"
secret_env = "OPS"
pairing = "code"
[secrets.telegram]
value_env = "TG"
place = "path"
"#;
    let config =
        Given { env: vec![("OPS", "s3cret-of-the-ops-room"), ("TG", "123:abc")], ..toml(text) }.config();
    let [ops, telegram] = &config.channels[..] else { panic!("{:?}", config.channels) };
    assert_eq!((ops.adapter.as_str(), ops.is_pairing, ops.allow.len()), ("webhook", true, 0));
    assert!(matches!(&ops.mode, ChannelMode::Webhook(secret) if secret.expose() == "s3cret-of-the-ops-room"));
    assert_eq!(
        (telegram.adapter.as_str(), telegram.allow.as_slice()),
        ("telegram", &["1".into(), "2".into()][..])
    );
    assert_eq!(telegram.mode, ChannelMode::Poll(Duration::from_secs(1)));
    let adapter = config.plugins.iter().find(|plugin| plugin.name.as_str() == "telegram").unwrap();
    assert!(adapter.secrets.contains_key("telegram"), "its manifest says where it goes");
    assert!(!format!("{config:?}").contains("s3cret"));
}

#[test]
fn channels_that_make_no_sense_are_named() {
    for (text, says) in [
        ("[channels.webhook]", "channels.webhook: secret_env or secret_file must say"),
        ("[channels.webhook]\nsecret_env = \"NOWHERE\"", "NOWHERE is not set"),
        ("[channels.webhook]\nsecret_env = \"SHORT\"", "6 characters and can be guessed"),
        ("[channels.telegram]\nmode = \"poll\"\nsecret_env = \"HERE\"", "a secret is for webhooks"),
        ("[channels.webhook]\nsecret_env = \"HERE\"\npoll_interval_ms = 500", "it is for mode = \"poll\""),
        (
            "[channels.irc]\nmode = \"poll\"",
            "no plugin irc is configured, and of adapters only slack, telegram, webhook",
        ),
        (
            "[channels.\"A b\"]\nmode = \"poll\"\nadapter = \"telegram\"",
            "expected a name of lowercase letters",
        ),
        ("[channels.telegram]\nmode = \"push\"", "channels.telegram.mode: expected"),
        ("[channels.telegram]\nmode = \"poll\"\ncolour = 1", "channels.telegram.colour: unknown key"),
        ("[agents.main]\ntools = [\"telegram\"]", "is the adapter of a channel, not a tool"),
    ] {
        let complaints =
            Given { env: vec![("HERE", "s3cret-that-is-here"), ("SHORT", "s3cret")], ..toml(text) }
                .complaints();
        assert!(complaints.iter().any(|complaint| complaint.contains(says)), "{text}\n{complaints:?}");
    }
}

#[test]
fn a_rule_for_a_group_is_one_for_each_of_its_tools() {
    let rules =
        toml("[[approvals.rules]]\ntool = \"sessions\"\nargument = \"text\"\n").config().approvals.rules;
    let tools: Vec<&str> = rules.iter().map(|rule| rule.tool.as_str()).collect();
    assert_eq!(tools, ToolGroup::Sessions.tools());
    assert!(
        rules.iter().all(|rule| rule.asks && rule.input.as_ref().is_some_and(|input| input.member == "text"))
    );
}

#[test]
fn skills_of_an_agent_come_before_those_of_the_home() {
    let text = "[agents.main]\nskills = [\"more\", \"/srv/skills\", \"more\", \"skills\"]\ntools = [\"skills\"]\n[agents.bare]\n";
    let config = toml(text).config();
    let folders = |agent: &str| config.agents[&AgentId::from(agent)].skills.clone();
    let home = folders("bare").remove(0);
    assert!(home.ends_with("skills"), "{home:?}");
    assert_eq!(folders("main"), [home.with_file_name("more"), "/srv/skills".into(), home]);
    let skills = config.agents[&AgentId::from("main")].skills(5000);
    assert!(skills.is_granted && !config.agents[&AgentId::from("bare")].skills(5000).is_granted);
    let complaints = toml("[agents.main]\nskills = [\" \"]\n").complaints();
    assert!(complaints[0].contains("agents.main.skills: expected a folder"), "{complaints:?}");
}

#[test]
fn rules_say_which_calls_wait() {
    let text = r#"
[[mcp]]
name = "files"
command = ["x"]
[[approvals.rules]]
tool = "fetch"
argument = "url"
matches = "https://intranet.*"
[[approvals.rules]]
tool = "mcp:files/*"
argument = "options.path"
matches = "*/secret/*"
[[approvals.rules]]
tool = "mcp:files/*"
approval = "never"
[[approvals.rules]]
tool = "*"
"#;
    let rules = toml(text).config().approvals.rules;
    let gated = vec!["mcp_files_read".into()];
    let tools = Toolbox { gated, rules: rules.into(), ..Toolbox::default() };
    let waits = |name: &str, input: serde_json::Value| {
        tools.waits(&ToolCall { id: "c".into(), name: name.into(), input })
    };
    for (name, input, is_asked) in [
        ("fetch", json!({ "url": "HTTPS://Intranet.example/x" }), true),
        ("mcp_files_write", json!({ "options": { "path": "/home/secret/a" } }), true),
        ("mcp_files_write", json!({ "options": { "path": "/home/a" } }), false),
        ("mcp_files_read", json!({}), false),
        ("mcp_other_read", json!({}), true),
        ("echo", json!({}), true),
    ] {
        assert_eq!(waits(name, input.clone()), is_asked, "{name} {input}");
    }
    for (tool, warned) in [
        ("notess", Some("there is no tool \"notess\", so this rule is for no call; did you mean \"notes\"?")),
        ("zz*", Some("there is no tool \"zz*\"")),
        ("mcp_other_x", Some("there is no tool")),
        ("notes", None),
        ("no*", None),
        ("*", None),
        ("send_message", None),
        ("mcp_files_read", None),
        ("mcp:files/read", None),
        ("node:phone/camera.snap", None),
    ] {
        let rule =
            format!("[[mcp]]\nname = \"files\"\ncommand = [\"x\"]\n[[approvals.rules]]\ntool = {tool:?}");
        let warnings = lines(&toml(&rule).loaded().warnings);
        assert_eq!(
            warnings.iter().find(|line| line.contains("approvals")).is_some(),
            warned.is_some(),
            "{warnings:?}"
        );
        assert!(warned.is_none_or(|says| warnings.iter().any(|line| line.contains(says))), "{warnings:?}");
    }
    for (text, says) in [
        ("[[approvals.rules]]", "expected a tool"),
        ("[[approvals.rules]]\ntool = \"mcp:x\"", "expected mcp:SERVER/TOOL"),
        ("[[approvals.rules]]\ntool = \"x\"\nmatches = \"y\"", "argument must say of what"),
        ("[[approvals.rules]]\ntool = \"x\"\ncolour = 1", "unknown key"),
        ("[[approvals.rules]]\ntool = \"mcp:x/y\"", "mcp:x/y: there is no [[mcp]] named \"x\""),
        ("[[approvals.rules]]\ntool = \"x\"\nargument = \"\"", "expected the name of a member"),
        ("[[approvals.rules]]\ntool = \"x\"\nargument = \"a..b\"", "expected the name of a member"),
        ("[[approvals.rules]]\ntool = \"x\"\nargument = \"a\"\nmatches = \"\"", "expected a pattern"),
    ] {
        let complaints = toml(text).complaints();
        assert!(complaints.iter().any(|complaint| complaint.contains(says)), "{text}\n{complaints:?}");
    }
}

#[test]
fn budgets_in_money_and_what_is_known_of_models_are_read() {
    let text = r#"
[providers.lab]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
[budgets]
daily_cost = 0.25
session_cost = 2
[[budgets.rules]]
agent = "main"
principal = "*"
monthly = 9
[models."lab/m.1"]
context_window = 8192
images = false
input_price = 2.5
output_price = 10
[models."lab/*"]
reasoning = true
"#;
    let (config, _) =
        toml(text).read().unwrap_or_else(|complaints| panic!("{}", lines(&complaints).join("\n")));
    let dollars = |dollars| Money::from_dollars(dollars).unwrap();
    let budgets = &config.budgets;
    assert_eq!((budgets.session_cost, budgets.all.daily_cost), (dollars(2.0), dollars(0.25)));
    let rule = BudgetRule {
        agent: Among::One("main".into()),
        principal: Among::Each,
        caps: Caps { monthly: 9, ..Caps::default() },
    };
    assert_eq!(budgets.rules, [rule]);
    let facts = config.models.of(&ModelRef { provider: "lab".into(), model: "m.1".into() });
    assert_eq!((facts.context_window, facts.images, facts.reasoning), (Some(8192), Some(false), Some(true)));
    assert_eq!(facts.price.map(|price| price.input), Rate::per_million(2.5));

    let wrong = r#"
[budgets]
daily_cost = -1
monthly_cost = "much"
[[budgets.rules]]
daily = 5
[[budgets.rules]]
agent = "nobody"
[models.m]
images = "yes"
[models."other/m"]
input_price = 1
"#;
    let complaints = toml(wrong).complaints();
    for says in [
        "budgets.daily_cost: expected a number from 0 to 1000000, found -1",
        "budgets.monthly_cost: expected a number from 0 to 1000000, found \"much\"",
        "name an agent or a principal",
        "there is no agent \"nobody\"",
        "no budget is named",
        "images: expected true or false, found \"yes\"",
        "expected PROVIDER/MODEL",
        "there is no provider \"other\"",
        "a price needs both input_price and output_price",
    ] {
        assert!(complaints.iter().any(|c| c.contains(says)), "no {says} in\n{}", complaints.join("\n"));
    }
}

/// Such a section, with the machine being called `host`.
fn cluster_of(host: &str, text: &str) -> Result<(Option<Cluster>, Vec<String>), Vec<String>> {
    let text = format!("[cluster]\n{text}");
    match toml(&text).on(host, load) {
        Ok(loaded) => Ok((loaded.config.cluster, lines(&loaded.warnings))),
        Err(complaints) => Err(lines(&complaints)),
    }
}

const MONITORED: &str = "monitor = [\"http://a:8222\", \"http://b:8222\", \"http://c:8222\"]\n";

#[test]
fn a_cluster_is_named_after_the_machine_and_has_the_defaults_of_the_sample() {
    let (cluster, warnings) = cluster_of("box-1.example", MONITORED).unwrap();
    let monitor = ["http://a:8222", "http://b:8222", "http://c:8222"].map(str::to_owned).to_vec();
    let expected = Cluster {
        name: "clawmux".into(),
        node: "box-1.example".into(),
        servers: vec!["nats://127.0.0.1:4222".into()],
        credential: BusCredential::None,
        ca_file: None,
        client_certificate: None,
        replicas: 3,
        lease: Duration::from_secs(3),
        max_log_bytes: None,
        partition_grace: Duration::from_secs(30),
        monitor,
        durability: Durability::Required,
    };
    assert_eq!((cluster, warnings), (Some(expected), Vec::new()));
    assert_eq!(Config::default().cluster, None);
    // A variable is enough to have one.
    let given = Given { env: vec![("CLAWMUX__CLUSTER__NODE", "b")], ..toml("") };
    assert!(given.complaints()[0].contains("cluster.monitor: it names 0 servers of 3"));
}

#[test]
fn what_a_cluster_is_reached_with_is_read_as_that_of_the_bus_is() {
    let text = "node = \"b\"\nservers = [\"tls://a:4222\", \"nats://b\"]\nnkey_file = \"seed\"\nca_file = \"ca\"\n\
        client_cert_file = \"cert\"\nclient_key_file = \"key\"\nreplicas = 1\ndurability = \"unchecked\"\n\
        max_log_bytes = 5\n";
    let (cluster, warnings) = cluster_of("a", text).unwrap();
    let cluster = cluster.unwrap();
    assert_eq!(cluster.credential, BusCredential::Nkey(Secret::new("secret of seed")));
    assert_eq!(cluster.client_certificate, Some(("/home/cert".into(), "/home/key".into())));
    assert_eq!((cluster.node.as_str(), cluster.max_log_bytes), ("b", Some(5)));
    for says in
        ["servers: what is said goes to b in the clear", "replicas: 1 is for", "durability: it is not"]
    {
        assert!(warnings.iter().any(|w| w.contains(&format!("cluster.{says}"))), "{says}: {warnings:?}");
    }
    let wrong =
        "servers = [\"http://a\"]\ntoken_env = \"GONE\"\nnkey_file = \"missing\"\nclient_key_file = \"k\"\n";
    let complaints = cluster_of("a", &format!("{wrong}{MONITORED}")).unwrap_err();
    for says in [
        "cluster.servers: expected nats://HOST:PORT or tls://HOST:PORT",
        "cluster.token_env: the environment variable GONE is not set",
        "cluster.nkey_file: /home/missing can't be read: no such file",
        "cluster.nkey_file: there is token_env as well",
        "cluster.client_key_file: client_cert_file belongs to it",
    ] {
        assert!(complaints.iter().any(|c| c.contains(says)), "no {says} in\n{}", complaints.join("\n"));
    }
    let bus = toml("[bus]\nservers = [\"http://a\"]\nnkey_file = \"missing\"\nclient_key_file = \"k\"\n");
    let of_bus = bus.complaints();
    for says in ["bus.servers: expected", "bus.nkey_file: /home/missing", "bus.client_key_file: client_cert"]
    {
        assert!(of_bus.iter().any(|c| c.contains(says)), "no {says} in\n{}", of_bus.join("\n"));
    }
}

#[test]
fn a_cluster_that_could_not_work_is_refused_with_what_to_do() {
    let of = |host: &str, text: &str| cluster_of(host, text).unwrap_err().join("\n");
    for (host, text, says) in [
        (
            "localhost",
            MONITORED,
            "gateway.toml:1: cluster.node: this machine is called localhost, as others are",
        ),
        ("a b", MONITORED, "cluster.node: the name of this machine, \"a b\", can't be that of a node"),
        ("", MONITORED, "cluster.node: the name of this machine, \"\", can't be"),
        (
            "a",
            "name = \"a.b\"\n",
            "gateway.toml:2: cluster.name: expected 1 to 32 letters, digits, '-' and '_', not two '-' in a row",
        ),
        ("a", "node = \"a*\"\n", "gateway.toml:2: cluster.node: expected 1 to 64 letters"),
        ("a", "replicas = 4\n", "cluster.replicas: expected 3 or 5 (or 1, to try it out), found 4"),
        ("a", "lease_ms = 400\n", "cluster.lease_ms: expected a whole number from 1000 to 60000, found 400"),
        ("a", "monitor = [\"127.0.0.1:8222\"]\n", "cluster.monitor: expected http://HOST:PORT"),
        ("a", "monitor = [\"http://a:1\", \"http://a:1\"]\n", "cluster.monitor: it names 1 servers of 3"),
        ("a", "durability = \"maybe\"\n", "cluster.durability: expected \"required\" or \"unchecked\""),
    ] {
        let complaints = of(host, text);
        assert!(complaints.contains(says), "no {says} in\n{complaints}");
    }
}
